"""Extensions are found by name: by one line of Python, or by an entry point of a package."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import epsilometer as em
from epsilometer import _dispatch
from epsilometer.core.registry import Registry
from epsilometer.core.renderers import RENDERERS
from epsilometer.core.settings import CHOICES
from epsilometer.engine.engines import ENGINES
from epsilometer.errors import InvalidArgument
from epsilometer.stats.estimators import REGISTRY


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put a package with an entry point for each kind on the path."""
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[epsilometer.renderers]\n.log = outside:render\n"
        "[epsilometer.estimators]\nmine = outside:METHOD\n"
        "[epsilometer.engines]\nslow = outside:make_engine\n"
    )
    (tmp_path / "outside.py").write_text(
        "import dataclasses\n"
        "from epsilometer.engine.engines import InProcess\n"
        "from epsilometer.stats.estimators import jeffreys\n"
        "METHOD = dataclasses.replace(jeffreys.METHOD, exact=True)\n"
        "def render(audit): return audit.verdict\n"
        "def make_engine(workers, address): return InProcess()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("outside", None)


def test_own_names_come_first_and_win() -> None:
    registry: Registry[Any] = Registry("shapes", {"a": "math:pi"})
    registry.register("b", 2)
    assert list(registry) == ["a", "b"]
    assert len(registry) == 2
    with pytest.raises(InvalidArgument, match=r"Expected a new name for epsilometer.shapes"):
        registry.register("a", 3)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgument, match="Expected it to be one of a, got 'c'"):
        Registry("shapes", {"a": "math:pi"}).find("c", label="it")


def test_objects_know_their_names() -> None:
    assert CHOICES.name_of(em.samplers.PartialShuffle) == "partial"
    assert CHOICES.name_of(int) is None
    assert CHOICES.path("refuted").endswith(":UntilRefuted")


@pytest.mark.parametrize("registry", [CHOICES, REGISTRY, RENDERERS, ENGINES, _dispatch.SUBJECTS])
def test_everything_registered_can_be_loaded(registry: Registry[Any]) -> None:
    assert all(registry.find(name) is not None for name in registry)


def test_entry_points_are_used(package: Path) -> None:
    scores = em.Scores([2.0] * 90, [0.0] * 90)
    audit = em.audit(scores, em.Claim(1.0, delta=1e-5))
    assert audit.save(package / "audit.log").read_text() == f"{audit.verdict}\n"
    bound = em.epsilon_lower_bound(scores, delta=1e-5, method="mine")
    assert (bound.method, bound.valid) == ("mine", True)
    assert ENGINES.find("slow")(workers=0, address=None) == em.InProcess()


def test_a_subject_is_registered_by_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine:
        """A subject of somebody else."""

    monkeypatch.setattr(_dispatch.SUBJECTS, "_items", dict(_dispatch.SUBJECTS._items))
    answer = em.audit(em.Scores([2.0] * 90, [0.0] * 90), delta=1e-5)
    module = SimpleNamespace(SUBJECTS=(Mine,), run_audit=lambda subject, request: answer)
    _dispatch.SUBJECTS.register("Mine", module)
    assert em.audit(Mine()) is answer
