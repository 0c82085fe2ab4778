"""Copies of the rules: time shortened, links elsewhere, alerts left out; names and meaning kept."""

from __future__ import annotations

import pytest
from poise.alerts import shipped
from poise.alerts.rules import RuleFile, load, parse_rules
from poise.alerts.scale import rebase, runbook_url, scale_rules, without

FILES = [load(path) for path in shipped.rule_files()]


def by_name(files: list[RuleFile]) -> list[tuple[str, bool]]:
    return [(rule.name, rule.alert) for file in files for rule in file.rules]


def scaled(factor: float) -> list[RuleFile]:
    return [parse_rules(scale_rules(path.read_text(encoding="utf-8"), factor), path.name) for path in shipped.rule_files()]


def test_every_rule_keeps_its_name_and_labels() -> None:
    copies = scaled(0.05)
    assert by_name(copies) == by_name(FILES)
    for original, copy in zip(FILES, copies, strict=True):
        assert [rule.labels for rule in copy.rules] == [rule.labels for rule in original.rules]


def test_waits_and_ranges_and_ages_shrink_together() -> None:
    rules = {rule.name: rule for file in scaled(0.05) for rule in file.rules}
    assert rules["NodeGPUUnowned"].wait == 30.0
    assert rules["NodeGPUUnowned"].keep_firing_for == 15.0
    assert "[15s]" in rules["poise_gpu:busy:ratio_rate5m"].expr
    assert "< 45" in rules["poise_engine:starting:age_seconds"].expr
    assert "< 60" in rules["EngineDown"].expr


def test_a_scaled_alert_says_that_the_times_in_its_texts_are_not_its_own() -> None:
    alerts = [rule for file in scaled(0.05) for rule in file.alerts]
    assert all("multiplies them by 0.05" in rule.annotations["time_scale"] for rule in alerts)


def test_a_factor_of_one_changes_nothing_but_comments() -> None:
    for original, copy in zip(FILES, scaled(1), strict=True):
        assert [rule.wait for rule in copy.rules] == [rule.wait for rule in original.rules]


@pytest.mark.parametrize("factor", [0, -1, 1.5])
def test_a_factor_that_makes_no_sense_is_named(factor: float) -> None:
    with pytest.raises(ValueError, match=f"not {factor:g}"):
        scale_rules("groups: []", factor)


def test_an_alert_that_is_left_out_is_gone_and_an_empty_group_with_it() -> None:
    assert not any(rule.name == "NodeGPUUnowned" for file in FILES for rule in without(file, ["NodeGPUUnowned"]).rules)
    assert [group for file in FILES for group in without(file, ["Watchdog"]).groups if not group.rules] == []


def test_links_point_where_they_are_told() -> None:
    for file in FILES:
        for rule in rebase(file, runbooks="https://git.example/runbooks/{alert}.md", dashboard="https://poise.example/").alerts:
            assert rule.annotations["runbook_url"] == f"https://git.example/runbooks/{rule.name}.md"
            assert rule.annotations["dashboard_url"].startswith("https://poise.example/")


def test_a_base_without_a_place_for_the_name_gets_it_appended() -> None:
    assert runbook_url("https://wiki.example/alerts/", "GPULost") == "https://wiki.example/alerts/GPULost"


@pytest.mark.parametrize(
    "base",
    [
        *("javascript:alert(1)", "ftp://x", "poise.example", "", "http://", "http://x:0", "http://x:99999", "http://[::1"),
        *(
            "http://x/{{ .Value }}",
            "http://x/{",
            "http://x/ y",
            "http://x/\n- evil: 1",
            'http://x/"',
            "http://x/'",
            "http://x/<b>",
            "http://x/\x1b[31m",
        ),
        *("http://x/\\y", "http://x/`y`", "http://x/{other}"),
    ],
)
def test_a_link_that_is_no_address_of_a_page_is_refused(base: str) -> None:
    for links in ({"dashboard": base}, {"runbooks": base}):
        with pytest.raises(ValueError, match="is no address of a page: give one such as") as caught:
            rebase(FILES[0], **links)
        assert str(caught.value).isprintable()
    with pytest.raises(ValueError, match=r"--dashboard-base 'http://x/\{alert\}' is no address"):
        rebase(FILES[0], dashboard="http://x/{alert}")


def test_a_password_in_a_link_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="--runbook-base holds a user or password, which every alert would carry") as caught:
        rebase(FILES[0], runbooks="https://user:planted@wiki.example/")
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize("base", ["http://localhost:9748", "https://[2001:db8::1]:8443/a/", "https://w.example/?page=%20{alert}#top"])
def test_addresses_of_pages_are_taken_as_runbooks(base: str) -> None:
    rebase(FILES[0], runbooks=base)
