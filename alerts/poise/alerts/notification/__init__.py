"""From alerts to people: Alertmanager's API, what is sent when, silences."""
