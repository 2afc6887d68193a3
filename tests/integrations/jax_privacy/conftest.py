"""These tests need JAX-Privacy, which has an environment of its own: ``make test-jax``."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
os.environ.setdefault("KERAS_BACKEND", "jax")
collect_ignore_glob = [] if find_spec("jax_privacy") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let JAX-Privacy 2.0.0 call functions that optax 0.2.8 has renamed; ours call none."""
    for item in items:
        if item.path.parent != HERE:
            continue
        item.add_marker(pytest.mark.filterwarnings("ignore:optax.global_norm:DeprecationWarning"))
