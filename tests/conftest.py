import gc
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

# No deadlines: how long an example takes is the machine's business. In CI the same examples always.
# `make slow` asks for more of them: --hypothesis-profile=thorough.
_PLAIN = hypothesis.settings(deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.register_profile("ours", _PLAIN, max_examples=30)
hypothesis.settings.register_profile("thorough", _PLAIN, max_examples=200)
hypothesis.settings.load_profile("ours")

# What a terminal of the person who runs the tests can show is not what they are about.
for name in ("FORCE_COLOR", "NO_COLOR", "COLORTERM", "CLICOLOR_FORCE"):
    os.environ.pop(name, None)

REFERENCE = Path(__file__).parent / "reference"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage among the ten thousand tests that are being made."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before slow tests are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave all but every n-th case of a test marked ``in_turn(n)`` to ``make slow``."""
    cases: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("in_turn")
        if marker is not None:
            name = item.nodeid.partition("[")[0]
            if cases[name] % marker.args[0]:
                item.add_marker(pytest.mark.slow)
            cases[name] += 1


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Indexes of results lie where the tests end, and not among the user's."""
    os.environ["SOURCE_DATE_EPOCH"] = "1767225600"  # of stamps, so that pages are the same bytes
    os.environ["EPSILOMETER_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leave out fsync, most of the time of a small run, but on disks that are really full.

    Power cuts are simulated above it: what counts there is that it is called.
    """
    if request.path.name != "test_disks.py":
        monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Another stream for each test; EPSILOMETER_TEST_SEED (0 to 99, all must pass) shifts all."""
    seed = int(os.environ.get("EPSILOMETER_TEST_SEED", "0"))
    return np.random.default_rng([seed, *request.node.nodeid.encode()])


def run_often(every: Iterable[Any], often: Collection[Any]) -> list[Any]:
    """Return parameters, of which ``make test`` runs those in ``often``, ``make slow`` the others.

    Every case of what one fast case guards already is worth a run before a release, not more.
    """
    return [
        each
        if each in often
        else pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=pytest.mark.slow)
        for each in every
    ]


def cases(group: str, prefix: str = "") -> list[Any]:
    """Reference cases of a group whose id begins so, as pytest parameters."""
    every = json.loads((REFERENCE / "cases.json").read_text("utf-8"))
    return [
        pytest.param(case["inputs"], case["expected"], id=case["id"])
        for case in every
        if case["group"] == group and case["id"].startswith(prefix)
    ]


def peer_values(name: str) -> list[Any]:
    """Values of peers under a name, as pytest parameters (inputs, value)."""
    every = json.loads((REFERENCE / "peers_one_run_and_bounds.json").read_text("utf-8"))
    return [pytest.param(case["inputs"], case["value"]) for case in every if case["name"] == name]
