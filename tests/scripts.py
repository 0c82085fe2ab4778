"""Files of scripts/ as modules: they are run by path, so that what stands beside one is found, and no package has them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def loaded(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module for one test, with its folder first on the path as Python has it when the script is run."""
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    return module
