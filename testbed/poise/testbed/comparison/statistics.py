"""The arithmetic of repetitions: mean, spread, a confidence interval, and whether one shape is faster than another.

Pure. Knows nothing of what the numbers are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Student's t for a two-sided 95 % interval by degrees of freedom 1 to 30 (any table of the distribution); beyond, the normal one.
T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
NORMAL_95 = 1.960


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over repetitions. `low` and `high` bound the 95 % confidence interval of the mean; None for one repetition, which has none.
    `spread` is the widest distance between two repetitions, as a share of the mean."""

    mean: float
    repetitions: int
    least: float
    most: float
    low: float | None
    high: float | None

    @property
    def spread(self) -> float | None:
        return None if self.repetitions < 2 or self.mean == 0 else (self.most - self.least) / self.mean


@dataclass(frozen=True, slots=True)
class Verdict:
    """One shape against one card. `ratio`: how many times as good (2: twice the tokens, or half the latency); `per_gpu`: that for each GPU
    that it takes. `faster` is None for the base itself."""

    faster: bool | None
    ratio: float
    per_gpu: float
    words: str


def estimate(values: Sequence[float]) -> Estimate:
    """Of one value a repetition. Raises ValueError without any."""
    if not values:
        raise ValueError("there is no repetition")
    count = len(values)
    mean = math.fsum(values) / count
    # A mean of equal floats can fall a bit outside of them.
    mean = min(max(mean, min(values)), max(values))
    low = high = None
    if count > 1:
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
        half = student(count - 1) * deviation / math.sqrt(count)
        low, high = mean - half, mean + half
    return Estimate(mean, count, min(values), max(values), low, high)


def student(degrees: int) -> float:
    """Student's t, 95 % two-sided. Raises ValueError for less than one degree of freedom."""
    if degrees < 1:
        raise ValueError(f"{degrees} degrees of freedom")
    return T_95[degrees - 1] if degrees <= len(T_95) else NORMAL_95


def overlap(first: Estimate, second: Estimate) -> bool:
    """Whether the intervals touch; where one has none, its single value stands for it."""
    first_low, first_high = _bounds(first)
    second_low, second_high = _bounds(second)
    return first_low <= second_high and second_low <= first_high


def _bounds(value: Estimate) -> tuple[float, float]:
    return (value.mean if value.low is None else value.low, value.mean if value.high is None else value.high)


def judge(shape: Estimate, base: Estimate, gpus: int, base_gpus: int, higher_is_better: bool) -> Verdict:
    """Whether `shape` on `gpus` is faster than `base`, the one card: only when its interval lies clear of the other's, on the better side.

    With a single repetition there is no interval, and the word says so. A base or shape of 0 cannot be compared: ratio 0.
    """
    better, worse = (shape.mean, base.mean) if higher_is_better else (base.mean, shape.mean)
    ratio = better / worse if worse > 0 else 0.0
    per_gpu = ratio * base_gpus / gpus
    clear = not overlap(shape, base)
    faster = clear and ratio > 1
    price = f"{per_gpu:.2f}× per GPU"
    once = "" if min(shape.repetitions, base.repetitions) > 1 else ", measured once: no spread known"
    if faster:
        words = f"{ratio:.2f}× one card, {price}{once}"
    elif clear:
        words = f"no faster than one card: {ratio:.2f}×, {price}{once}"
    else:
        words = f"no faster than one card: {ratio:.2f}×, within the spread, {price}{once}"
    return Verdict(faster, ratio, per_gpu, words)
