"""What the pages show, as frozen values: templates read these and nothing else, and the JSON twin is these.

Knows no series, no template and no clock. States and words are separate: a state chooses shape and colour, a word is what a person reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from poise.dashboard.numbers import Number


@dataclass(frozen=True, slots=True)
class SourceContext:
    """Where numbers come from and how fresh they are: `state` is live, late, stale, down, loading, waiting or unknown."""

    name: str
    state: str
    word: str
    detail: str


@dataclass(frozen=True, slots=True)
class StepContext:
    """One step of long work: `state` is waiting, running, done or failed; `fraction` is 0..1 or None."""

    name: str
    state: str
    word: str
    detail: str
    fraction: float | None
    seconds: str


@dataclass(frozen=True, slots=True)
class ProgressContext:
    """Long work under way. `quiet` says for how long it has been silent, when that is too long."""

    title: str
    state: str
    steps: tuple[StepContext, ...]
    quiet: str = ""


@dataclass(frozen=True, slots=True)
class CheckContext:
    """One result of a check. `state` is ok, watch, problem or unknown; `status` pass, fail or unknown."""

    key: str
    check: str
    title: str
    status: str
    state: str
    word: str
    subject: str
    gpu: str
    sentence: str
    cause: str
    fix: str
    evidence: tuple[tuple[str, str], ...]
    since: str
    since_iso: str


@dataclass(frozen=True, slots=True)
class VerdictContext:
    """The node in a word, a summary and at most three lines, worst first. `announced` is what a screen reader hears when it changes."""

    state: str
    word: str
    summary: str
    announced: str
    lines: tuple[CheckContext, ...] = ()


@dataclass(frozen=True, slots=True)
class SegmentContext:
    """A part of a bar: `kind` chooses its look, `start` and `width` are shares 0..1 of the bar."""

    kind: str
    start: float
    width: float
    label: str


@dataclass(frozen=True, slots=True)
class SparkContext:
    """A drawn history: SVG paths in a box of `sparkline.WIDTH` by `sparkline.HEIGHT`, gaps as (x, width), and the same in words."""

    line: str
    area: str
    gaps: tuple[tuple[float, float], ...]
    label: str


@dataclass(frozen=True, slots=True)
class BusyContext:
    """Utilization: mean of 60 s with the range of its samples, as shares 0..1 in `value`s; `range` is that range in one text."""

    mean: Number
    low: Number
    high: Number
    range: str
    spark: SparkContext


@dataclass(frozen=True, slots=True)
class MemoryContext:
    """Device memory of a card, split by who holds it."""

    used: Number
    total: Number
    own: Number
    others: Number
    foreign: Number
    unattributed: Number
    free: Number
    segments: tuple[SegmentContext, ...]


@dataclass(frozen=True, slots=True)
class LinksContext:
    """NVLink of a card: bytes per second in both directions, in one text too, and links up; `has_links` is False where it has none."""

    has_links: bool
    both: Number
    send: Number
    receive: Number
    up: Number
    total: Number
    some_down: bool


@dataclass(frozen=True, slots=True)
class ClockEventContext:
    """A reason that holds the clock where it is; `slows` tells those that cost speed from idling and set clocks."""

    reason: str
    word: str
    slows: bool


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """A process with memory on the card."""

    pid: str
    title: str
    memory: Number


@dataclass(frozen=True, slots=True)
class CardContext:
    """One card in one group. `state` is up, lost, hangs or failed; `check_state` the worst state of a check about it ("" when none fails)."""

    key: str
    uuid: str
    index: str
    label: str
    cuda: str
    model: str
    rank: str
    state: str
    word: str
    explanation: str
    check_state: str
    check_word: str
    busy: BusyContext
    memory: MemoryContext
    power: Number
    power_limit: Number
    temperature: Number
    clock: Number
    clock_max: Number
    clock_events: tuple[ClockEventContext, ...]
    links: LinksContext
    processes: tuple[ProcessContext, ...]


@dataclass(frozen=True, slots=True)
class FigureContext:
    """One labelled figure of an engine, with a second line of figures or words below it."""

    key: str
    label: str
    unit: str
    first: Number
    first_label: str = ""
    second: Number | None = None
    second_label: str = ""
    below: str = ""
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class EngineContext:
    """One engine: what it is, how fresh it is, its figures and its cards in rank order."""

    key: str
    engine: str
    deployment: str
    model: str
    role: str
    role_word: str
    version: str
    parallel: tuple[str, ...]
    ranks_seen: Number
    ranks_expected: Number
    ranks_missing: bool
    visible_used: str
    source: SourceContext
    check_state: str
    check_word: str
    figures: tuple[FigureContext, ...]
    cards: tuple[CardContext, ...]


@dataclass(frozen=True, slots=True)
class DeploymentContext:
    """The engines that answer for one model. `named` is False when the deployment is one engine of the same name."""

    name: str
    named: bool
    engines: tuple[EngineContext, ...]


@dataclass(frozen=True, slots=True)
class OverviewContext:
    """The page `/`."""

    node: str
    simulated: bool
    driver: str
    as_of: str
    as_of_iso: str
    stale: str
    notice: str
    waiting: bool
    sources: tuple[SourceContext, ...]
    progress: ProgressContext | None
    verdict: VerdictContext
    checks: tuple[CheckContext, ...]
    checks_counts: str
    checks_open: bool
    deployments: tuple[DeploymentContext, ...]
    unowned: tuple[CardContext, ...]
