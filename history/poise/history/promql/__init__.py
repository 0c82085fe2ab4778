"""PromQL over stored series: the part of the language that rules, pages and panels use, with the values that Prometheus gives."""
