"""What a person can say of a target, and what each mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from poise.history.targets import parse_target, targets


def test_a_name_and_a_url_are_enough() -> None:
    target = parse_target("gpu-1=http://gpu-1:9747/metrics/")
    assert (target.name, target.url, target.job) == ("gpu-1", "http://gpu-1:9747/metrics", "poise")
    assert dict(target.labels) == {"instance": "gpu-1", "job": "poise"}
    assert (target.interval, target.timeout, target.honor_labels) == (5.0, 4.0, False)


def test_everything_can_be_said_on_one_line() -> None:
    target = parse_target(
        "a=https://h/x,job=lab,interval=10s,timeout=3s,honor_labels=true,sample_limit=10,body_size_limit=1000,metrics_path=/m,"
        "bearer_token_file=t,ca_file=ca.pem"
    )
    assert (target.url, target.job, target.interval, target.timeout) == ("https://h/x/m", "lab", 10.0, 3.0)
    assert (target.honor_labels, target.sample_limit, target.body_limit) == (True, 10, 1000)
    assert target.beside(Path("/etc/poise")).access.bearer_token_file == "/etc/poise/t"


def test_a_table_may_carry_labels() -> None:
    (target,) = targets([{"name": "a", "url": "http://a:1", "labels": {"cluster": "x", "empty": ""}}])
    assert dict(target.labels) == {"cluster": "x", "instance": "a", "job": "poise"}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("http://a:1", "expected NAME=URL, for example gpu-1=http://gpu-1:9747"),
        ("a=gpu:1", "is not of the form http://HOST:PORT"),
        ("localhost=http://localhost:1", "is a loopback address; choose a name"),
        ("a=http://u:geheim@h", "url holds a user or password"),
        ("a=http://h,token=geheim", "give bearer_token_file=FILE or bearer_token_env=VARIABLE"),
        ("a=http://h,interval=0s", "interval: must lie between"),
        ("a=http://h,interval=2s,timeout=3s", "timeout 3 s is longer than the interval 2 s"),
        ("a=http://h,sample_limit=0", "sample_limit 0 is not a number from 1 to 50000"),
        ("a=http://h,honor_labels=maybe", "honor_labels: expected true or false"),
        ("a=http://h,metrics_path=m", "metrics_path 'm' is no path of a URL"),
        ("a=http://h,job= ", "job is empty"),
        ("a=http://h,ca_file=x", "ca_file is about TLS"),
        ("a=http://h a=http://i", "target 'a' stands twice with job 'poise'"),
        ([{"name": "a", "url": "http://h", "labels": {"job": "x"}}], "'job' is no label that a target may carry"),
        ([{"name": "a", "url": "http://h", "labels": {"__x": "x"}}], "'__x' is no label that a target may carry"),
        ([{"name": "a", "url": "http://h", "labels": {"x": 1}}], "x must be text, not 1"),
        ([{"name": "a", "url": "http://h", "labels": "x"}], "labels must be a table"),
        ([{"name": "a", "url": "http://h", "colour": "red"}], "unknown key 'colour'"),
        ([{"name": "a"}], "is not of the form http://HOST:PORT"),
        ({"name": "a"}, "expected a list of tables"),
    ],
)
def test_each_mistake_is_named(value: object, words: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        targets(value)
    assert words in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_the_same_name_in_two_jobs_is_two_targets() -> None:
    assert len(targets("a=http://h a=http://h:2,job=other")) == 2
