"""The checks of deployments that split prefill from decode."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from poise.exporter.checks.result import State, Status
from poise.exporter.engines import dialects
from poise.exporter.engines.page import PageParser
from poise.exporter.snapshot import Engine, ModelShape, NodeSnapshot, Role, RouterBackend

from tests.check_lines import Scene, line, lines
from tests.pd_scenes import NIXL, decode, pd_engine, pd_node, pd_router, prefill
from tests.recorded import CAPTURES
from tests.scenes import play


def healthy(second: float) -> NodeSnapshot:
    """Five requests of 400 prompt tokens a second, each transferred."""
    tokens = 2000.0 * second
    return pd_node(
        prefill(finished=5 * second, generated=5 * second, sources={"local_compute": tokens}),
        decode(finished=5 * second, generated=500 * second, transfers=5 * second, sources={"external_kv_transfer": tokens}),
        routers=[pd_router()],
    )


def test_healthy_deployment_passes_every_line() -> None:
    outcome = play(healthy, 61)
    ours = {result.check: result for result in outcome.results if result.deployment}
    assert {name: result.status for name, result in ours.items()} == dict.fromkeys(
        ("router_answers", "pd_roles", "pd_routing", "pd_match", "kv_transfer", "pd_rtt"), Status.PASS
    )
    assert ours["pd_roles"].sentence == "1 prefill engine and 1 decode engine live here"
    assert ours["pd_routing"].sentence == "requests in the last 60 s: 300 at prefill, 300 at decode"
    assert ours["kv_transfer"].sentence == "300 transfers of 8.0 MiB in the last 60 s, none failed"
    assert ours["pd_rtt"].sentence == "at most 0.2 ms from this node"
    assert ours["pd_match"].evidence["KV dtype"] == "bfloat16", "auto is the model's own"
    assert {(result.engine, result.deployment) for result in ours.values()} == {("n1:8200", "qwen-pd")}


def test_engines_that_split_nothing_have_no_such_lines() -> None:
    mixed = pd_engine(Role.MIXED, config={"kv_connector": None})
    assert [result.check for result in play(lambda _: pd_node(mixed), 0).results if result.deployment] == []


def test_deployments_of_other_nodes_are_told_apart() -> None:
    """A router's node, with the engines of two deployments elsewhere."""
    first, second = pd_router(), dataclasses.replace(pd_router(), name="n1:8001", deployment="other-pd")
    elsewhere = (
        RouterBackend("http://n7:9100", Role.PREFILL, True, "n7:9100"),
        RouterBackend("http://n7:9200", Role.DECODE, True, "n7:9200"),
    )
    found = play(lambda _: pd_node(routers=[first, dataclasses.replace(second, backends=elsewhere)]), 0).results
    assert {(result.engine, result.deployment) for result in found if result.check == "pd_roles"} == {
        ("n1:8200", "qwen-pd"),
        ("n7:9200", "other-pd"),
    }


# ------------------------------------------------------------------------------------------------------------------- roles
def test_role_without_a_living_engine_is_a_problem() -> None:
    found = line(pd_node(prefill(), decode(page=False, process_up=False)), "pd_roles")
    assert (found.state, found.sentence) == (State.PROBLEM, "no decode engine lives: n1:8200 is gone")
    assert found.engine == "n1:8200"


def test_role_that_the_router_calls_unhealthy_or_does_not_know_is_a_problem() -> None:
    sick = pd_router((("n1:8100", Role.PREFILL, True), ("n1:8200", Role.DECODE, False)))
    assert line(pd_node(prefill(), decode(), routers=[sick]), "pd_roles").sentence == "the router calls every decode engine unhealthy"
    missing = pd_router((("n1:8100", Role.PREFILL, True),))
    found = line(pd_node(prefill(), routers=[missing]), "pd_roles")
    assert (found.state, found.sentence) == (State.PROBLEM, "the router knows no decode engine")


def test_role_of_another_node_is_unknown_and_the_router_that_names_it_is_enough() -> None:
    found = line(pd_node(prefill()), "pd_roles")
    assert (found.status, found.state) == (Status.UNKNOWN, State.OK)
    assert found.sentence == "no engine of role decode is known here"
    far = pd_router((("n1:8100", Role.PREFILL, True), ("n2:8200", Role.DECODE, None)))
    assert line(pd_node(prefill(), routers=[far]), "pd_roles").status is Status.PASS


def test_deployment_that_was_stopped_is_no_longer_judged_as_one() -> None:
    gone: dict[str, Any] = {"page": False, "process_up": False}
    dead = pd_router(up=False)
    outcome = play(lambda _: pd_node(prefill(**gone), decode(**gone), routers=[dead]), 0)
    assert [result.check for result in outcome.results if result.deployment] == []
    assert {result.check for result in outcome.results if result.status is Status.FAIL} == {"engine_answers"}


# ------------------------------------------------------------------------------------------------------------------ router
def test_router_that_died_before_living_engines_is_the_first_thing_said() -> None:
    dead = dataclasses.replace(pd_router(up=False), error="its process is gone", backends=())
    outcome = play(lambda _: pd_node(prefill(), decode(), routers=[dead]), 61)
    found = next(result for result in outcome.results if result.check == "router_answers")
    assert (found.status, found.state, found.engine, found.deployment) == (Status.FAIL, State.PROBLEM, "n1:8200", "qwen-pd")
    assert found.sentence == "router n1:8000 does not answer, so that no request reaches the engines of qwen-pd"
    assert outcome.verdict.lines[0].check == "router_answers"
    routing = next(result for result in outcome.results if result.check == "pd_routing")
    assert "list" not in routing.sentence, "a router that is gone has none"


def test_router_beside_another_that_answers_is_watched() -> None:
    second = dataclasses.replace(pd_router(up=False), name="n1:8001", error="connection refused")
    found = lines(pd_node(prefill(), decode(), routers=[pd_router(), second]), "router_answers")
    assert [(result.status, result.state) for result in found] == [(Status.PASS, State.OK), (Status.FAIL, State.WATCH)]
    assert found[1].cause == "connection refused"


def test_router_that_calls_an_engine_unhealthy_is_watched() -> None:
    sick = pd_router((("n1:8100", Role.PREFILL, True), ("n1:8200", Role.DECODE, False)))
    found = line(pd_node(prefill(), decode(), routers=[sick]), "router_answers")
    assert (found.state, found.sentence) == (State.WATCH, "router n1:8000 holds n1:8200 for unhealthy and sends nothing there")


def test_engine_that_died_here_is_not_taken_for_one_on_another_node() -> None:
    for living, dead in ((prefill(), decode(page=False, process_up=False)), (decode(), prefill(page=False, process_up=False))):
        snapshot = pd_node(living, dead, routers=[pd_router()])
        assert lines(snapshot, "rdma") == []
        assert [result.sentence for result in lines(snapshot, "nccl_environment") if "another node" in result.sentence + result.cause] == []


# ----------------------------------------------------------------------------------------------------------------- routing
def test_router_that_does_not_split_before_engines_that_do_is_a_problem() -> None:
    found = line(pd_node(prefill(), decode(), routers=[pd_router(disaggregated=False)]), "pd_routing")
    assert found.state is State.PROBLEM
    assert "sends whole requests to engines that only prefill or only decode" in found.sentence


def test_router_with_exchanged_addresses_is_a_problem_unless_the_role_is_from_the_router_itself() -> None:
    exchanged = pd_router((("n1:8200", Role.PREFILL, True), ("n1:8100", Role.DECODE, True)))
    found = line(pd_node(prefill(), decode(), routers=[exchanged]), "pd_routing")
    assert found.sentence == "router n1:8000 sends prefill to n1:8200, which was started for decode"
    told = [prefill(role_source="router"), decode(role_source="router")]
    assert line(pd_node(*told, routers=[exchanged]), "pd_routing", 2).status is Status.PASS


@pytest.mark.parametrize(
    ("at_prefill", "at_decode", "words"),
    [
        ({}, {"finished": 1.0, "generated": 50.0}, "decode answered 61 requests in the last 60 s and prefill none"),
        ({"finished": 1.0, "generated": 1.0}, {}, "prefill answered 61 requests in the last 60 s and decode none"),
        ({"finished": 1.0, "generated": 45.0}, {"finished": 1.0}, "prefill engines generated 45 tokens per request in the last 60 s"),
    ],
)
def test_phase_that_goes_past_its_role_is_named(at_prefill: dict[str, float], at_decode: dict[str, float], words: str) -> None:
    def scene(second: float) -> NodeSnapshot:
        def grown(rates: dict[str, float]) -> dict[str, Any]:
            return {name: rate * second * 61 / 60 for name, rate in rates.items()}

        return pd_node(prefill(**grown(at_prefill)), decode(**grown(at_decode)))

    found = line(scene, "pd_routing", 60)
    assert found.status is Status.FAIL
    assert found.sentence == words


@pytest.mark.parametrize(
    ("computed", "status"), [(0.5, Status.FAIL), (0.1, Status.PASS)], ids=["decode computes them", "answers to a burst that is over"]
)
def test_part_of_the_requests_that_go_past_prefill_is_named_when_decode_computes_their_prompts(computed: float, status: Status) -> None:
    def scene(second: float) -> NodeSnapshot:
        sources = {"local_compute": 100 * computed * second, "external_kv_transfer": 100 * (1 - computed) * second}
        return pd_node(prefill(finished=second, generated=second), decode(finished=2 * second, generated=90 * second, sources=sources))

    found = line(scene, "pd_routing", 60)
    assert found.status is status
    assert (found.sentence == "60 of the 120 requests that decode answered in the last 60 s did not pass prefill") is (
        status is Status.FAIL
    )


def test_answers_whose_prompts_passed_prefill_before_the_window_did_not_go_past_it() -> None:
    def scene(second: float) -> NodeSnapshot:
        taken = {"local_compute": 0.0, "external_kv_transfer": 9000.0}
        return pd_node(prefill(finished=300, generated=300), decode(finished=second, generated=90 * second, sources=taken))

    assert line(scene, "pd_routing", 60).status is Status.PASS


def test_requests_that_fail_behind_the_router_are_a_problem_and_a_few_are_not() -> None:
    def scene(rate: float) -> Scene:
        return lambda second: pd_node(
            prefill(), decode(), routers=[pd_router(requests={"prefill": 5 * second}, errors={"prefill": rate * second})]
        )

    found = line(scene(1.0), "pd_routing", 60)
    assert (found.state, found.sentence) == (
        State.PROBLEM,
        "60 of 300 requests that the router sent to prefill failed in the last 60 s",
    )
    assert line(scene(1 / 60), "pd_routing", 60).status is Status.PASS


def test_engines_of_other_nodes_are_counted_by_the_router() -> None:
    def scene(second: float) -> NodeSnapshot:
        far = pd_router((("n2:8100", Role.PREFILL, True), ("n1:8200", Role.DECODE, True)), requests={"prefill": 0.0})
        return pd_node(decode(finished=second, generated=9 * second), routers=[far])

    assert line(scene, "pd_routing", 60).sentence == "decode answered 60 requests in the last 60 s and prefill none"


def test_routing_of_an_idle_deployment_passes_and_of_a_silent_one_is_unknown() -> None:
    assert line(pd_node(prefill(), decode()), "pd_routing", 12).sentence == "no request in the last 10 s"
    assert line(pd_node(prefill(page=False), decode(page=False)), "pd_routing", 12).status is Status.UNKNOWN


# ------------------------------------------------------------------------------------------------------------------- match
@pytest.mark.parametrize(
    ("other", "fact"),
    [
        ({"version": "0.31.0"}, "vLLM version"),
        ({"cache": {"block_size": "128", "cache_dtype": "auto"}}, "block size"),
        ({"cache": {"block_size": "16", "cache_dtype": "fp8"}}, "KV dtype"),
        ({"config": {"model": "qwen-7b"}}, "model"),
        ({"config": {"revision": "abc"}}, "revision"),
        ({"config": {"kv_connector": "MooncakeConnector"}}, "KV connector"),
        ({"config": {"dtype": "half"}}, "dtype and KV dtype"),
        ({"shape": ModelShape(32, 8, "float16")}, "dtype and KV dtype"),
    ],
)
def test_difference_between_the_roles_is_a_problem_that_names_both_values(other: dict[str, Any], fact: str) -> None:
    found = line(pd_node(prefill(), decode(**other)), "pd_match")
    assert found.state is State.PROBLEM
    assert found.sentence.startswith(f"prefill and decode differ in {fact} (")
    assert "n1:8100" in found.sentence
    assert "n1:8200" in found.sentence


@pytest.mark.parametrize(
    ("connector", "decode_path", "status"),
    [
        (NIXL, "/models/other", Status.FAIL),
        (NIXL, "/models/qwen", Status.PASS),
        (NIXL, None, Status.PASS),
        ("MooncakeConnector", "/mnt/qwen", Status.PASS),
    ],
)
def test_other_weights_under_the_same_name_are_told_by_the_path_where_the_connector_compares_it(
    connector: str, decode_path: str | None, status: Status
) -> None:
    engines = (
        prefill(config={"kv_connector": connector, "model_path": "/models/qwen"}),
        decode(config={"kv_connector": connector, "model_path": decode_path}),
    )
    found = line(pd_node(*engines), "pd_match")
    assert found.status is status
    if status is Status.FAIL:
        assert found.sentence == "prefill and decode differ in model path (model path: /models/other on n1:8200; /models/qwen on n1:8100)"


def test_dtype_that_is_said_and_the_model_s_own_are_the_same() -> None:
    assert line(pd_node(prefill(config={"dtype": "bfloat16"}), decode(config={"dtype": "auto"})), "pd_match").status is Status.PASS


def test_what_an_engine_does_not_tell_is_said_and_a_silent_one_is_unknown() -> None:
    far = decode(process_up=None, config={"kv_connector": None}, shape=ModelShape())
    found = line(pd_node(prefill(), far), "pd_match")
    assert (
        found.sentence
        == "alike in model, block size and vLLM version; not known of every engine: revision, dtype, KV dtype and KV connector"
    )
    assert line(pd_node(prefill(), decode(page=False)), "pd_match").status is Status.UNKNOWN
    assert lines(pd_node(prefill()), "pd_match") == []


# --------------------------------------------------------------------------------------------------------------- transfers
def loaded(**more: float) -> Scene:
    """The healthy deployment with `more` counted on decode (failed, late) or prefill (expired) per second."""

    def scene(second: float) -> NodeSnapshot:
        tokens = 2000.0 * second
        at = {name: rate * second for name, rate in more.items()}
        return pd_node(
            prefill(finished=5 * second, expired=at.pop("expired", 0.0), late=at.pop("late", 0.0)),
            decode(finished=5 * second, transfers=5 * second, sources={"external_kv_transfer": tokens}, **at),
        )

    return scene


def test_failing_transfers_are_counted_with_their_share() -> None:
    found = line(loaded(failed=1.0), "kv_transfer", 60)
    assert (found.state, found.sentence) == (State.PROBLEM, "60 of 360 KV transfers failed in the last 60 s")
    assert found.evidence["failed"] == "60 in the last 60 s, 60 since the start"
    assert line(loaded(failed=1 / 60), "kv_transfer", 60).state is State.WATCH


def test_expired_kv_is_watched_and_a_late_notification_is_a_problem() -> None:
    assert line(loaded(expired=0.1), "kv_transfer", 60).sentence == "the KV of 6 requests expired on prefill in the last 60 s"
    late = line(loaded(late=0.05), "kv_transfer", 60)
    assert (late.state, late.sentence) == (State.PROBLEM, "3 transfers were reported done after their lease ended in the last 60 s")


@pytest.mark.parametrize(("local", "state"), [(0.3, State.WATCH), (1.0, State.PROBLEM)])
def test_decode_that_computes_prompts_is_named(local: float, state: State) -> None:
    def scene(second: float) -> NodeSnapshot:
        tokens = 2000.0 * second
        return pd_node(prefill(), decode(sources={"local_compute": local * tokens, "external_kv_transfer": (1 - local) * tokens}))

    found = line(scene, "kv_transfer", 60)
    assert found.state is state
    assert found.sentence == f"decode (n1:8200) computed {local * 100:.0f} % of its prompt tokens itself in the last 60 s"


@pytest.mark.parametrize(("local", "status"), [(0.41, Status.PASS), (0.95, Status.FAIL)])
def test_connector_through_a_store_leaves_the_rest_of_a_chunk_to_decode(local: float, status: Status) -> None:
    def scene(second: float) -> NodeSnapshot:
        sources = {"local_compute": 2000.0 * second * local, "external_kv_transfer": 2000.0 * second * (1 - local)}
        stored = {"kv_connector": "ExampleConnector"}
        return pd_node(prefill(config=stored), decode(config=stored, sources=sources))

    assert line(scene, "kv_transfer", 60).status is status


def test_decode_that_computed_prompts_before_the_window_is_watched() -> None:
    found = line(pd_node(prefill(), decode(sources={"local_compute": 50_000.0})), "kv_transfer", 12)
    assert (found.state, found.sentence) == (State.WATCH, "decode (n1:8200) computed 100 % of its prompt tokens itself since the start")


def test_failures_of_the_past_are_evidence_and_no_failure() -> None:
    found = line(pd_node(prefill(), decode(failed=7, transfers=20)), "kv_transfer", 12)
    assert found.sentence == "no transfer in the last 10 s; 20 since the start"
    assert found.evidence["failed"] == "0 in the last 10 s, 7 since the start"


def test_few_local_tokens_of_probes_and_the_last_token_of_old_versions_are_quiet() -> None:
    assert line(pd_node(prefill(), decode(sources={"local_compute": 300.0})), "kv_transfer", 12).status is Status.PASS
    old = decode(sources={"local_compute": 100.0, "external_kv_transfer": 40_000.0}, transfers=100)
    assert line(pd_node(prefill(), old), "kv_transfer", 12).status is Status.PASS


def test_engine_that_restarted_in_the_window_is_not_counted_backwards() -> None:
    def scene(second: float) -> NodeSnapshot:
        return pd_node(prefill(), decode(transfers=1000 + second if second < 30 else second - 30))

    assert line(scene, "kv_transfer", 60).sentence == "59 transfers of 8.0 MiB in the last 60 s, none failed"


def test_deployment_that_does_not_answer_has_no_line_about_transfers() -> None:
    assert lines(pd_node(prefill(page=False), decode(page=False)), "kv_transfer") == []


def recorded(engine: Engine, capture: str) -> Engine:
    """The engine with a page that a real vLLM wrote."""
    page = dialects.read_page(PageParser(dialects.wanted).parse((CAPTURES / capture).read_bytes()), "0.32.0", 1.0, 0.01)
    return dataclasses.replace(engine, observed=dataclasses.replace(engine.observed, page=page))


def test_recorded_pages_of_a_real_deployment_pass_under_load_and_idle() -> None:
    before, after = (
        pd_node(recorded(prefill(), f"pd-prefill-{moment}.prom"), recorded(decode(), f"pd-decode-{moment}.prom"))
        for moment in ("before", "after")
    )
    outcome = play(lambda second: before if second < 20 else after, 60)
    found = {result.check: result for result in outcome.results if result.deployment}
    assert {result.status for result in found.values()} == {Status.PASS}
    assert found["kv_transfer"].sentence == "160 transfers of 0.4 MiB in the last 60 s, none failed"
    assert found["kv_transfer"].evidence["prompt tokens computed by decode in the last 60 s"] == "0 %"
    assert found["pd_routing"].sentence == "requests in the last 60 s: 160 at prefill, 160 at decode"
    idle = play(lambda _: after, 12)
    assert {result.status for result in idle.results if result.deployment} == {Status.PASS}


# --------------------------------------------------------------------------------------------------------------- distances
def test_far_engine_is_watched_by_its_shortest_round_trip_and_one_slow_connect_is_not() -> None:
    found = line(pd_node(prefill(), decode(rtt=0.031)), "pd_rtt", 5)
    assert (found.state, found.sentence) == (State.WATCH, "a TCP connect to n1:8200 takes 31 ms at best")
    assert line(lambda second: pd_node(prefill(), decode(rtt=0.2 if second else 0.001)), "pd_rtt", 5).status is Status.PASS
    assert line(pd_node(prefill(rtt=None), decode(rtt=None)), "pd_rtt", 5).status is Status.UNKNOWN


def test_verdict_tells_the_cause_of_a_deployment_s_trouble_and_not_each_of_its_consequences() -> None:
    def scene(second: float) -> NodeSnapshot:
        tokens = 2000.0 * second
        return pd_node(prefill(), decode(version="0.31.0", failed=second, sources={"local_compute": tokens}))

    verdict = play(scene, 61).verdict
    assert [result.check for result in verdict.lines] == ["pd_match"]
    assert verdict.summary.startswith("deployment qwen-pd · prefill and decode differ in vLLM version (")


def test_each_deployment_has_series_of_its_own() -> None:
    other = [prefill(name="n1:9100", deployment="other"), decode(name="n1:9200", deployment="other")]
    outcome = play(lambda _: pd_node(prefill(), decode(), *other), 0)
    keys = [(result.check, result.engine, result.uuid) for result in outcome.results]
    assert len(keys) == len(set(keys))
