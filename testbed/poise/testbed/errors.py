"""The error that the testbed shows to a person. Knows nothing else."""

from __future__ import annotations


class TestbedError(Exception):
    """Something a person can act on. The text names the thing, the value and the way out; it is shown without traceback."""

    __test__ = False  # pytest collects classes by name
