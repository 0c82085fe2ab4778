"""The version of the installed distribution. Knows nothing else."""

from __future__ import annotations


def installed_version() -> str:
    """The version of the installed distribution, or "unknown" in a bare source tree."""
    # Imported here: it costs tens of milliseconds, in which a starting command could not yet handle a signal.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("poise")
    except PackageNotFoundError:
        return "unknown"
