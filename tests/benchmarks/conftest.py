"""Modules of ``benchmarks``, as its scripts import them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _import_benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Find them by name, and forget them afterwards: ``sizes`` remembers how it was called."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]
