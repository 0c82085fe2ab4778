"""The checklist on scenes: what must be named, in which words, after how long, and what must stay quiet."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from poise.exporter import metrics as m
from poise.exporter.checks.document import document
from poise.exporter.checks.result import State, Status
from poise.exporter.checks.runner import CHECKS, CheckOutcome, Runner
from poise.exporter.snapshot import DriverInfo, Gpu, NodeSnapshot, Reason

from tests.scenes import GIB, START, card, engine, failing, node, play

NO_REQUEST = {m.ENGINE_REQUESTS_RUNNING: 0.0}


def healthy(second: float) -> NodeSnapshot:
    gpus = [card(0, busy=0.97 * second, power=480), card(1, busy=0.95 * second, power=470)]
    return node(gpus, [engine(environment="0,1", tokens=900 * second)], expected=2)


def one_visible(second: float) -> NodeSnapshot:
    """The article: CUDA_VISIBLE_DEVICES=0, tensor parallel size 1, two cards in the node."""
    gpus = [card(0, busy=0.97 * second, power=480), card(1, busy=0.0, power=90)]
    return node(gpus, [engine(cards=[0], environment="0", tokens=500 * second)], expected=2)


def one_card(second: float) -> NodeSnapshot:
    """Both cards visible, tensor parallel size 1."""
    gpus = [card(0, busy=0.97 * second, power=480), card(1, busy=0.02 * second, power=90)]
    return node(gpus, [engine(cards=[0], visible=[0, 1], environment="0,1", tokens=500 * second)], expected=2)


def test_healthy_pair_under_load_passes_every_check() -> None:
    outcome = play(healthy, 70)
    assert {result.status for result in outcome.results} == {Status.PASS}
    assert outcome.verdict.state is State.OK
    assert outcome.verdict.summary == "2 cards, 1 engine; every card that an engine owns does its share"


def test_hidden_card_is_named_at_once_and_its_idleness_is_watched_after_ten_seconds_and_a_problem_after_sixty() -> None:
    runner = Runner()
    at_once = play(one_visible, 0, runner)
    assert at_once.verdict.state is State.WATCH
    hidden = failing(at_once)["visible_devices"]
    assert hidden.sentence == "CUDA_VISIBLE_DEVICES=0 hides GPU 1, which no engine owns"
    assert hidden.gpu == "1"
    assert "CUDA_VISIBLE_DEVICES=0,1 --tensor-parallel-size 2" in hidden.fix

    watched = failing(play(one_visible, 12, Runner()))["idle_unowned_card"]
    assert watched.state is State.WATCH
    assert watched.sentence == "GPU 1 is idle (0 %) while GPU 0 is saturated (97 %), mean of 10 s"
    assert watched.cause == "no engine owns GPU 1: CUDA_VISIBLE_DEVICES=0 hides it"
    assert watched.engine == "n1:8000"

    problem = play(one_visible, 61, Runner())
    assert problem.verdict.state is State.PROBLEM
    assert problem.verdict.summary == (
        "qwen-32b on n1:8000 TP=1 · GPU 1 is idle (0 %) while GPU 0 is saturated (97 %), mean of 60 s · "
        "no engine owns GPU 1: CUDA_VISIBLE_DEVICES=0 hides it"
    )
    assert len(problem.verdict.lines) == 1, "the hidden card is said once"


def test_card_of_an_engine_that_died_is_spoken_for() -> None:
    """A server for each card, one of them killed: what helps is to start it again, not to give its card to the other."""

    def scene(second: float) -> NodeSnapshot:
        living = engine("n1:8000", cards=[0], environment="0", tokens=500 * second)
        dead = engine("n1:8001", cards=[], environment="1", page=False, process_up=False)
        return node([card(0, busy=0.95 * second), card(1)], [living, dead])

    found = failing(play(scene, 61))
    assert set(found) == {"engine_answers"}


def with_foreign_memory(scene: NodeSnapshot, index: int, size: float) -> NodeSnapshot:
    return dataclasses.replace(scene, gpu_process_readings={f"GPU-{index}": {m.GPU_FOREIGN_MEMORY: {(): size}}})


def test_hidden_card_on_which_a_process_of_no_engine_works_is_not_free() -> None:
    assert failing(play(lambda second: with_foreign_memory(one_visible(second), 1, 40 * GIB), 61)) == {}


def with_short_list(scene: NodeSnapshot, index: int, size: float) -> NodeSnapshot:
    """The driver does not list the processes of other containers; `size` bytes of the card are in use."""
    gpus = [dataclasses.replace(gpu, processes=(), processes_complete=False) for gpu in scene.gpus]
    gpus[index] = dataclasses.replace(gpus[index], readings={**gpus[index].readings, m.GPU_MEMORY_USED: {(): size}})
    return dataclasses.replace(scene, gpus=tuple(gpus), gpu_process_readings={})


def test_hidden_card_on_which_another_container_works_is_not_free() -> None:
    assert failing(play(lambda second: with_short_list(one_visible(second), 1, 40 * GIB), 61)) == {}
    outcome = play(lambda second: with_short_list(one_visible(second), 1, 0.3 * GIB), 61)
    assert set(failing(outcome)) == {"idle_unowned_card", "visible_devices"}


def test_hidden_card_with_a_bare_context_of_a_stranger_is_free() -> None:
    outcome = play(lambda second: with_foreign_memory(one_visible(second), 1, 0.3 * GIB), 61)
    assert set(failing(outcome)) == {"idle_unowned_card", "visible_devices"}


def test_engine_known_by_url_only_does_not_blind_the_check_for_unowned_cards() -> None:
    far = engine("far", cards=[], page=True, process_up=None)
    far = dataclasses.replace(far, visible=None, used=None, local_world_size=None)

    def scene(second: float) -> NodeSnapshot:
        alone = one_visible(second)
        return dataclasses.replace(alone, engines=(far, *alone.engines))

    assert failing(play(scene, 61))["idle_unowned_card"].state is State.PROBLEM
    only_far = play(lambda second: dataclasses.replace(one_visible(second), engines=(far,)), 61)
    assert [result.status for result in only_far.results if result.check == "idle_unowned_card"] == [Status.UNKNOWN]


def test_unused_visible_card_is_a_problem_at_once_and_its_skew_joins_under_load() -> None:
    at_once = play(one_card, 0)
    assert at_once.verdict.state is State.PROBLEM
    assert failing(at_once)["parallel_size"].sentence == "the engine has processes on 1 of its 2 visible GPUs; GPU 1 is unused"
    later = play(one_card, 61)
    skew = failing(later)["rank_load"]
    assert skew.sentence == "GPU 1 is idle (2 %) while GPU 0 is saturated (97 %), mean of 60 s"
    assert skew.cause == "the engine has processes on 1 of its 2 visible GPUs: tensor_parallel_size=1, CUDA_VISIBLE_DEVICES=0,1"
    assert later.verdict.lines[0].check == "rank_load"
    assert "idle_unowned_card" not in failing(later), "one card, one sentence"


def meant(scene: NodeSnapshot, gpus: int) -> NodeSnapshot:
    """The scene with `gpus=N` configured for each engine."""
    engines = [dataclasses.replace(one, observed=dataclasses.replace(one.observed, gpus_meant=gpus)) for one in scene.engines]
    return dataclasses.replace(scene, engines=tuple(engines))


@pytest.mark.parametrize("scene", [one_visible, one_card])
def test_card_that_is_left_as_configured_is_quiet(scene: Callable[[float], NodeSnapshot]) -> None:
    outcome = play(lambda second: meant(scene(second), 1), 61)
    assert failing(outcome) == {}
    assert outcome.verdict.state is State.OK


def test_hidden_card_that_is_meant_is_a_problem_at_once_and_under_load() -> None:
    outcome = play(lambda second: meant(one_visible(second), 2), 61)
    found = failing(outcome)
    assert set(found) == {"visible_devices", "parallel_size", "idle_unowned_card"}
    assert {result.state for result in found.values()} == {State.PROBLEM}
    assert found["visible_devices"].sentence == "the engine sees 1 of the 2 cards that it is meant to use"
    assert found["visible_devices"].fix == "start it with CUDA_VISIBLE_DEVICES=0,1, or correct gpus= of --engine n1:8000"
    assert found["parallel_size"].sentence == "the engine has processes on 1 of the 2 cards that it is meant to use"
    assert outcome.verdict.lines[0].check == "idle_unowned_card"


def test_visible_card_that_is_meant_and_unused_is_a_problem_even_where_no_variable_is_set() -> None:
    scene = node([card(0, busy=0), card(1, busy=0)], [engine(cards=[0], visible=[0, 1], environment=None)])
    unused = failing(play(lambda _: meant(scene, 2), 0))["parallel_size"]
    assert (unused.state, unused.evidence["meant"]) == (State.PROBLEM, "2")
    assert unused.fix.startswith("start it with --tensor-parallel-size 2,")


def test_rank_of_a_group_that_idles_is_named_whatever_is_meant() -> None:
    def scene(second: float) -> NodeSnapshot:
        gpus = [card(0, busy=0.97 * second, power=480), card(1, busy=0.0, power=90)]
        return meant(node(gpus, [engine(environment="0,1", tokens=500 * second)], expected=2), 2)

    assert set(failing(play(scene, 61))) == {"rank_load"}


def test_unowned_card_is_named_beside_the_engine_that_was_not_told_and_not_beside_the_one_that_was() -> None:
    def scene(second: float) -> NodeSnapshot:
        gpus = [card(0, busy=0.99 * second, power=480), card(1, busy=0.95 * second, power=470), card(2, busy=0.0, power=90)]
        told = meant(node([], [engine("n1:8000", cards=[0], environment="0")]), 1).engines[0]
        return node(gpus, [told, engine("n1:8001", cards=[1], environment="1")], expected=3)

    assert failing(play(scene, 61))["idle_unowned_card"].engine == "n1:8001"


def test_unused_card_of_an_engine_that_was_not_told_is_only_watched() -> None:
    scene = node([card(0, busy=0), card(1, busy=0)], [engine(cards=[0], visible=[0, 1], environment=None)])
    assert failing(play(lambda _: scene, 0))["parallel_size"].state is State.WATCH


@pytest.mark.parametrize("seconds", [0, 12, 70])
def test_two_engines_of_one_card_each_with_unequal_load_are_quiet(seconds: int) -> None:
    def scene(second: float) -> NodeSnapshot:
        gpus = [card(0, busy=0.99 * second, power=480), card(1, busy=0.01 * second, power=90)]
        engines = [
            engine("n1:8000", cards=[0], environment="0", tokens=500 * second),
            engine("n1:8001", cards=[1], environment="1", tokens=0),
        ]
        return node(gpus, engines, expected=2)

    outcome = play(scene, seconds)
    assert failing(outcome) == {}
    assert outcome.verdict.state is State.OK


@pytest.mark.parametrize("seconds", [0, 12, 70])
def test_two_engines_that_both_see_both_cards_are_quiet(seconds: int) -> None:
    def scene(second: float) -> NodeSnapshot:
        gpus = [card(0, busy=0.99 * second), card(1, busy=0.01 * second)]
        engines = [
            engine("n1:8000", cards=[0], visible=[0, 1], others=[1], tokens=500 * second),
            engine("n1:8001", cards=[1], visible=[0, 1], others=[0]),
        ]
        return node(gpus, engines, expected=2)

    assert failing(play(scene, seconds)) == {}


def test_second_engine_that_still_loads_keeps_its_card() -> None:
    loading = engine("n1:8001", cards=[], visible=[1], environment="1", tensor=1, used=[], page=False, start=START - 30)
    scene = node([card(0, busy=0), card(1, busy=0)], [engine("n1:8000", cards=[0], environment="0"), loading])
    outcome = play(lambda _: scene, 0)
    assert failing(outcome) == {}
    assert outcome.verdict.summary == "2 cards, 2 engines; n1:8001 loading"


def test_idle_node_is_idle_and_not_imbalanced() -> None:
    outcome = play(lambda _: node([card(0, busy=0), card(1, busy=0)], [engine(tokens=5000, readings=NO_REQUEST)], expected=2), 70)
    assert failing(outcome) == {}
    assert outcome.verdict.summary == "2 cards, 1 engine; idle"


def test_loading_engine_is_neither_down_nor_missing_ranks() -> None:
    loading = engine(used=[0], page=False, start=START - 40)
    outcome = play(lambda _: node([card(0, busy=0), card(1, busy=0)], [loading], expected=2), 70)
    assert failing(outcome) == {}
    assert outcome.verdict.state is State.OK


def test_engine_that_loads_for_longer_than_twenty_minutes_is_a_problem() -> None:
    stuck = engine(used=[0], page=False, start=START - 1300)
    assert failing(play(lambda _: node([card(0)], [stuck]), 0))["engine_answers"].state is State.PROBLEM


@pytest.mark.parametrize(("discovered", "state"), [("argv", State.WATCH), ("config", State.PROBLEM)])
def test_gone_process_is_a_problem_where_the_engine_is_configured_and_the_rest_is_not_judged(discovered: str, state: State) -> None:
    gone = engine(process_up=False, page=False, used=[])
    identity = dataclasses.replace(gone.identity, discovered=discovered)
    gone = dataclasses.replace(gone, observed=dataclasses.replace(gone.observed, identity=identity, gone_since=START - 9))
    outcome = play(lambda _: node([card(0, busy=0), card(1, busy=0)], [gone], expected=2), 0)
    assert set(failing(outcome)) == {"engine_answers"}
    assert outcome.verdict.state is state
    assert outcome.verdict.summary.startswith("qwen-32b on n1:8000 TP=2 · the engine's process went 9 s ago")


def test_page_that_stops_answering_is_watched_and_then_a_problem() -> None:
    silent = engine(page=False, last_page_at=START)
    scene = node([card(0, busy=0), card(1, busy=0)], [silent])
    assert failing(play(lambda _: scene, 5))["engine_answers"].state is State.WATCH
    assert failing(play(lambda _: scene, 61))["engine_answers"].state is State.PROBLEM


@pytest.mark.parametrize("age", [30.0, 3600.0])
def test_engine_without_an_address_here_is_unknown_and_neither_loading_nor_a_problem(age: float) -> None:
    headless = engine(page=False, last_page_at=None, start=START - age)
    headless = dataclasses.replace(headless, observed=dataclasses.replace(headless.observed, url=None, page_error="headless node"))
    outcome = play(lambda _: node([card(0, busy=0), card(1, busy=0)], [headless], expected=2), 0)
    assert failing(outcome) == {}
    assert [(result.status, result.sentence) for result in outcome.results if result.check == "engine_answers"] == [
        ("unknown", "headless node")
    ]
    assert "loading" not in outcome.verdict.summary


def test_rank_that_left_its_card_is_a_problem_at_once() -> None:
    scene = node([card(0, busy=0), card(1, busy=0)], [engine(used=[0], environment="0,1")], expected=2)
    missing = failing(play(lambda _: scene, 0))["parallel_size"]
    assert missing.sentence == "the engine has processes on 1 of the 2 cards that its ranks need"


def test_server_that_shuts_down_is_silent_and_not_said_to_miss_ranks() -> None:
    leaving = engine(used=[], page=False, last_page_at=START)
    assert set(failing(play(lambda _: node([card(0, busy=0), card(1, busy=0)], [leaving]), 5))) == {"engine_answers"}


def test_slow_clock_under_load_is_watched_then_a_problem_and_names_the_reason() -> None:
    def scene(second: float) -> NodeSnapshot:
        slow = card(1, busy=0.97 * second, clock=900, power=300)
        slow = dataclasses.replace(slow, readings={**slow.readings, m.GPU_CLOCKS_EVENT: {("hw_thermal_slowdown",): 1.0}})
        return node([card(0, busy=0.97 * second, power=480), slow], [engine(tokens=500 * second)], expected=2)

    assert failing(play(scene, 12))["rank_clock"].state is State.WATCH
    straggler = failing(play(scene, 61))["rank_clock"]
    assert straggler.state is State.PROBLEM
    assert straggler.sentence == "GPU 1 runs at 900 MHz while its group reaches 1980 MHz, mean of 60 s"
    assert straggler.cause == "the driver names hw_thermal_slowdown"


def test_slow_clock_of_an_idle_card_is_quiet() -> None:
    scene = node([card(0, busy=0, clock=210), card(1, busy=0, clock=1980)], [engine(tokens=5, readings=NO_REQUEST)])
    assert failing(play(lambda _: scene, 70)) == {}


def test_link_down_is_a_problem_where_tensor_parallel_needs_it_and_watched_elsewhere() -> None:
    links = {0: True, 1: False, 2: True}
    scene = node([card(0, busy=0, links={0: True}), card(1, busy=0, links=links)], [engine()], expected=2)
    down = failing(play(lambda _: scene, 0))["nvlink_links"]
    assert (down.state, down.sentence) == (State.PROBLEM, "link 1 of GPU 1 is down (2 of 3 up)")
    alone = play(lambda _: node([card(1, links=links)], [], expected=1), 0)
    assert failing(alone)["nvlink_links"].state is State.WATCH


def with_far_ends(gpu: Gpu, known: set[int]) -> Gpu:
    """The card with the far ends of these links known, as of links that were up before."""
    links = [int(link) for (link,) in gpu.readings[m.GPU_NVLINK_UP]]
    far_ends: dict[tuple[str, ...], float] = {(str(link), "switch" if link in known else "unknown", "", ""): 1.0 for link in links}
    return dataclasses.replace(gpu, readings={**gpu.readings, m.GPU_NVLINK_PEER_INFO: far_ends})


def test_links_that_lead_nowhere_are_not_down() -> None:
    """A board of four links of which a bridge joins two: the chip reports the others as inactive for ever."""
    links = {0: True, 1: True, 2: False, 3: False}
    bridged = [with_far_ends(card(index, busy=0, links=links), {0, 1}) for index in (0, 1)]
    outcome = play(lambda _: node(bridged, [engine()], expected=2), 0)
    assert failing(outcome) == {}
    assert [result.sentence for result in outcome.results if result.check == "nvlink_links"] == ["4 links up on 2 cards"]


def test_link_that_was_up_and_is_down_is_named_and_unwired_ones_are_not() -> None:
    broken = with_far_ends(card(0, busy=0, links={0: True, 1: False, 2: False}), {0, 1})
    whole = with_far_ends(card(1, busy=0, links={0: True, 1: True, 2: False}), {0, 1})
    down = failing(play(lambda _: node([broken, whole], [engine()], expected=2), 0))["nvlink_links"]
    assert (down.state, down.sentence) == (State.PROBLEM, "link 1 of GPU 0 is down (1 of 2 up)")


def test_link_that_was_never_up_shows_beside_a_card_of_the_same_kind() -> None:
    broken = with_far_ends(card(0, busy=0, links={0: True, 1: False}), {0})
    whole = with_far_ends(card(1, busy=0, links={0: True, 1: True}), {0, 1})
    fewer = failing(play(lambda _: node([broken, whole], [engine()], expected=2), 0))["nvlink_links"]
    assert (fewer.state, fewer.sentence) == (State.WATCH, "GPU 0 has 1 link up, GPU 1 of the same kind 2")


def test_card_whose_links_are_all_inactive_has_no_bridge_and_is_quiet() -> None:
    assert failing(play(lambda _: node([card(0, links={0: False, 1: False})], expected=1), 0)) == {}


@pytest.mark.parametrize(("reason", "word"), [(Reason.GPU_LOST, "fallen off the bus"), (Reason.TIMEOUT, "does not come back")])
def test_lost_or_hanging_card_is_named_with_its_reason_and_said_once(reason: Reason, word: str) -> None:
    scene = node([card(0, busy=0), card(1, up=False, reason=reason)], [engine()], expected=2)
    outcome = play(lambda _: scene, 0)
    lines = [line for line in outcome.verdict.lines if line.check == "cards"]
    assert len(lines) == 1
    assert lines[0].sentence == "GPU 1 does not answer"
    assert word in lines[0].cause


@pytest.mark.parametrize(
    ("xids", "cause", "told"),
    [
        ({"79": 5.0}, "XID 79, card has fallen off the bus: ", "79"),
        ({"79": 3600.0 * 5, "48": -30.0}, "XID 79, ", "48, 79"),
        ({"79": -3600.0}, "the card has fallen off the bus (NVML", None),
        ({"31": 5.0, "154": 5.0}, "the card has fallen off the bus (NVML", None),
    ],
    ids=["with it", "two", "long before", "none that is fatal"],
)
def test_a_fatal_xid_that_came_with_the_loss_is_its_cause(xids: dict[str, float], cause: str, told: str | None) -> None:
    """Seconds after the card was last read."""
    gone = card(1, up=False, reason=Reason.GPU_LOST)
    gone = dataclasses.replace(gone, readings={m.GPU_XID_LAST: {(code,): START + after for code, after in xids.items()}})
    outcome = play(lambda _: node([card(0, busy=0), gone], [engine()], expected=2), 0)
    (line,) = [result for result in outcome.results if result.check == "cards" and result.uuid]
    assert line.cause.startswith(cause)
    assert line.evidence.get("XIDs") == told
    assert bool(told) is ("restart it" in line.fix)


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        (2, "2 cards of 2 expected answer"),
        (1, "2 cards answer, more than the 1 expected"),
        (0, "2 cards answer, none was expected"),
        (None, "2 cards answer"),
    ],
)
def test_cards_that_answer_are_counted_against_those_that_are_expected(expected: int | None, said: str) -> None:
    outcome = play(lambda _: node([card(0, busy=0), card(1, busy=0)], expected=expected), 0)
    (line,) = [result for result in outcome.results if result.check == "cards"]
    assert (line.status, line.sentence.partition(", ")[2]) == (Status.PASS, said)


def test_fewer_cards_than_expected_is_a_problem() -> None:
    outcome = play(lambda _: node([card(0, busy=0)], expected=2), 0)
    assert failing(outcome)["cards"].sentence == "1 of 2 expected cards answer"


def test_a_driver_that_went_is_named_and_not_the_cards_that_went_with_it() -> None:
    lost = [card(index, up=False, reason=Reason.GPU_LOST) for index in range(8)]
    for expected in (8, 0, None):
        scene = dataclasses.replace(
            node(lost, expected=expected), driver=DriverInfo(error="it does not start (nvmlInit: Driver Not Loaded (9))")
        )
        outcome = Runner().observe(scene)
        assert outcome.verdict.state is State.PROBLEM
        assert outcome.verdict.summary == (
            "n1 · no NVIDIA driver: it does not start (nvmlInit: Driver Not Loaded (9)) · 8 cards should be here and the driver does not answer"
        )
        assert [(result.uuid, result.status) for result in outcome.results if result.check == "cards"] == [("", Status.FAIL)]


def test_no_driver_is_unknown_on_a_machine_without_cards_and_a_problem_on_one_with() -> None:
    assert play(lambda _: node([], expected=0, driver=""), 0).verdict.state is State.UNKNOWN
    assert play(lambda _: node([], expected=2, driver=""), 0).verdict.state is State.PROBLEM


def test_memory_gap_between_ranks_is_watched_but_pipeline_stages_may_differ() -> None:
    gpus = [card(0, busy=0, used=80 * GIB), card(1, busy=0, used=60 * GIB)]
    gap = failing(play(lambda _: node(gpus, [engine()]), 0))["memory_balance"]
    assert gap.sentence == "GPU 0 holds 21 points more of its memory than GPU 1"
    assert failing(play(lambda _: node(gpus, [engine(stages=True)]), 0)) == {}


def test_idle_rank_with_the_power_of_a_busy_one_stays_watched() -> None:
    def scene(second: float) -> NodeSnapshot:
        gpus = [card(0, busy=0.97 * second, power=400), card(1, busy=0.0, power=390)]
        return node(gpus, [engine(tokens=500 * second)])

    assert failing(play(scene, 70))["rank_load"].state is State.WATCH


def test_nothing_holds_since_a_time_to_come_after_a_clock_was_set_back() -> None:
    runner = Runner()
    runner.observe(dataclasses.replace(one_visible(0), taken_at=START))
    back = runner.observe(dataclasses.replace(one_visible(0), taken_at=START - 500))
    assert {result.since for result in back.results} == {START - 500}


def test_clock_set_back_forgets_the_window_instead_of_judging_on_it() -> None:
    runner = Runner()
    play(one_visible, 61, runner)
    back = runner.observe(dataclasses.replace(one_visible(0), taken_at=START - 500))
    assert "idle_unowned_card" not in failing(back)


def test_since_is_the_first_moment_of_the_status() -> None:
    runner = Runner()
    play(healthy, 5, runner)
    first = runner.observe(dataclasses.replace(node([card(0, busy=0)], expected=2), taken_at=START + 6))
    second = runner.observe(dataclasses.replace(node([card(0, busy=0)], expected=2), taken_at=START + 9))
    assert failing(first)["cards"].since == failing(second)["cards"].since == START + 6


def test_broken_check_reports_itself_and_leaves_the_others(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(snapshot: object, window: object) -> list[object]:
        raise RuntimeError("boom")

    monkeypatch.setattr("poise.exporter.checks.runner.CHECKS", (("broken", "Broken", broken), *CHECKS))
    outcome = play(healthy, 2)
    assert [result.sentence for result in outcome.results if result.check == "broken"] == ["the check itself failed: boom"]
    assert len([result for result in outcome.results if result.status is Status.PASS]) >= 6
    assert caplog.text.count("check broken broke") == 1


def test_document_carries_every_result_with_its_subject_and_is_plain_json() -> None:
    scene = dataclasses.replace(one_card(61), taken_at=START)
    outcome: CheckOutcome = Runner().observe(scene)
    page = document(scene, outcome)
    assert page["verdict"]["state"] == "problem"
    assert page["verdict"]["lines"][0]["subject"] == "qwen-32b on n1:8000 TP=1"
    assert len(page["checks"]) == len(outcome.results)
