"""No node, however strange, breaks a check: each gives results that are complete, and of a key of their own."""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st
from poise.exporter import metrics as m
from poise.exporter.checks.result import State, Status
from poise.exporter.checks.runner import Runner
from poise.exporter.procfs import COMMUNICATION
from poise.exporter.snapshot import Engine, Gpu, Libraries, ModelShape, NodeSnapshot, RdmaPort, Reason, Role

from tests.pd_scenes import pd_engine, pd_router
from tests.scenes import START, card, engine, node

NUMBERS = st.sampled_from([0.0, 1.0, 0.5, 7.0, 1e18, -1.0, float("nan"), float("inf")])
READINGS = st.dictionaries(
    st.sampled_from(
        [
            m.ENGINE_REQUESTS_RUNNING,
            m.ENGINE_REQUESTS_WAITING,
            m.ENGINE_KV_CACHE_USAGE,
            m.ENGINE_PREEMPTIONS,
            m.ENGINE_GENERATION_TOKENS,
            m.ENGINE_SLEEPING,
        ]
    ),
    NUMBERS,
)
VERSIONS = st.sampled_from(["", "12", "12.8", "x.y", "13.0", "2.27.3"])
TEXTS = st.sampled_from(["", "0", "1", "lo", "^mlx5", "=mlx5_0:1", "Socket", "\u0663", "tcp,sm", "x" * 50])


@st.composite
def engines(draw: st.DrawFn) -> list[Engine]:
    """Some engines, mixed or of a split deployment, with anything missing."""
    found = []
    for number in range(draw(st.integers(0, 3))):
        told = {
            "communication": draw(st.dictionaries(st.sampled_from(sorted(COMMUNICATION)), TEXTS, max_size=3)),
            "nnodes": draw(st.sampled_from([1, 2])),
            "gpu_memory_utilization": draw(st.sampled_from([None, 0.1, 0.9, 1.0])),
            "dtype": draw(st.sampled_from([None, "half", "float32", "?"])),
            "max_num_seqs": draw(st.sampled_from([None, 1, 256])),
        }
        if draw(st.booleans()):
            role = draw(st.sampled_from(list(Role)))
            one = pd_engine(
                role, name=f"n1:{8100 + number}", config=told, page=draw(st.booleans()), rtt=draw(st.sampled_from([None, 0.0, 9.0]))
            )
        else:
            one = engine(
                f"n1:{8000 + number}",
                cards=draw(st.sampled_from([[], [0], [0, 1], [1, 2]])),
                tensor=draw(st.sampled_from([None, 1, 3])),
                page=draw(st.booleans()),
                shape=draw(st.sampled_from([None, ModelShape(), ModelShape(4, 3, "bfloat16"), ModelShape(1, 1)])),
                libraries=draw(st.sampled_from([None, Libraries()]) | st.builds(Libraries, VERSIONS, VERSIONS, VERSIONS, VERSIONS)),
                readings=draw(READINGS),
                ranks={1: draw(READINGS)} if draw(st.booleans()) else None,
                **told,
            )
        observed = dataclasses.replace(one.observed, process_up=draw(st.sampled_from([True, False, None])))
        if draw(st.booleans()):
            one = dataclasses.replace(one, visible=None, used=None, local_world_size=None)
        found.append(dataclasses.replace(one, observed=observed))
    return found


@st.composite
def cards(draw: st.DrawFn) -> list[Gpu]:
    """Some cards that report anything of themselves."""
    found = []
    for index in range(draw(st.integers(0, 3))):
        gpu = card(index, links={0: draw(st.booleans())}, busy=draw(NUMBERS))
        more = {
            m.GPU_RECOVERY_ACTION: {(): draw(st.sampled_from([0.0, 3.0, 99.0]))},
            m.GPU_XID_LAST: {(draw(st.sampled_from(["79", "x", "", "\u0663"])),): draw(st.sampled_from([0.0, START, START + 1e9]))},
            m.GPU_FABRIC_STATE: {(draw(st.sampled_from(["completed", "failed", "?"])),): 1.0},
            m.GPU_PAIR_INFO: {("9", f"GPU-{draw(st.integers(0, 3))}", draw(st.sampled_from(["NV18", "SYS", "?"])), "ok"): 1.0},
            m.GPU_NVLINK_TX: {("0",): draw(NUMBERS)},
        }
        kept = {metric: value for metric, value in more.items() if draw(st.booleans())}
        absent = {metric: draw(st.sampled_from(list(Reason))) for metric in more if metric not in kept}
        found.append(dataclasses.replace(gpu, up=draw(st.booleans()), readings={**gpu.readings, **kept}, absent=absent))
    return found


@st.composite
def nodes(draw: st.DrawFn) -> NodeSnapshot:
    """A node of such parts."""
    scene = node(draw(cards()), draw(engines()), expected=draw(st.sampled_from([None, 0, 2])), driver=draw(st.sampled_from(["", "570.1"])))
    ports = draw(st.sampled_from([None, (), (RdmaPort("mlx5_0", 1, "ACTIVE", "", "", 5, None),), (RdmaPort("x", 1, "", "", ""),)]))
    routers = draw(st.sampled_from([(), (pd_router(),), (pd_router((), up=False),), (pd_router(errors={"prefill": 9.0}),)]))
    return dataclasses.replace(scene, rdma_ports=ports, routers=routers)


@settings(max_examples=25)
@given(st.lists(nodes(), min_size=1, max_size=3))
def test_no_node_breaks_a_check_and_each_result_is_whole(scenes: list[NodeSnapshot]) -> None:
    runner = Runner()
    for position, scene in enumerate(scenes):
        outcome = runner.observe(dataclasses.replace(scene, taken_at=START + 31.0 * position))
    assert [result.sentence for result in outcome.results if result.sentence.startswith("the check itself failed")] == []
    keys = [(result.check, result.engine, result.uuid) for result in outcome.results]
    assert len(keys) == len(set(keys)), "each has series of its own"
    for result in outcome.results:
        assert result.sentence
        assert "\n" not in result.sentence
        assert (result.status is Status.FAIL) == bool(result.status is Status.FAIL and result.cause), result
        assert result.state in (State.OK, State.UNKNOWN) or result.status is Status.FAIL
