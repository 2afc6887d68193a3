"""A sampler of another package: its law is all that audits, accountants and commands need."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import epsilometer as em
from epsilometer.core.settings import from_settings, parse_choice, to_settings

SOURCE = '''
from dataclasses import dataclass

import numpy as np

from epsilometer.samplers import Law


@dataclass(frozen=True)
class FirstHalf:
    """Every epoch shuffles within its first half and within its second half."""

    parts: int = 2

    def batches(self, records, batch_size, *, rng):
        for half in np.array_split(np.arange(records), self.parts):
            order = rng.permutation(half)
            yield from np.split(order, range(batch_size, order.size, batch_size))

    def law(self, steps, batch_size):
        return Law(steps=-(-steps // self.parts), absent=1)  # takes another record's place


@dataclass(frozen=True)
class Unknown:
    """A sampler of which nothing is known."""

    def batches(self, records, batch_size, *, rng):
        yield rng.permutation(records)[:batch_size]
'''
SETTING = {"noise_multiplier": 1.0, "steps": 20, "observations": 2000}


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Install a package that has a sampler, registered by one line of its metadata."""
    info = tmp_path / "halves-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: halves\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[epsilometer.samplers]\nhalves = halves:FirstHalf\n")
    (tmp_path / "halves.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    import halves  # type: ignore[import-not-found]

    yield halves
    sys.modules.pop("halves", None)


def test_a_sampler_with_a_law_is_audited(outside: ModuleType) -> None:
    audit = em.audit(em.ShuffledSGD(**SETTING, sampler=outside.FirstHalf()), delta=1e-5)
    (view,) = audit.views
    assert view.computed is not None
    expected = em.shuffle_epsilon(noise_multiplier=1.0, steps=10, delta=1e-5)
    assert view.computed.epsilon == expected.epsilon  # ten batches hide a record, not twenty
    assert 0 < audit.epsilon <= audit.upper < np.inf
    assert audit.subject.startswith("DP-SGD with FirstHalf, 20 steps")


def test_a_sampler_without_a_law_is_told_what_to_add(outside: ModuleType) -> None:
    with pytest.raises(em.errors.InvalidArgument, match=r"Add a method law\(steps, batch_size\)"):
        em.audit(em.ShuffledSGD(**SETTING, sampler=outside.Unknown()), em.Claim(0.5, delta=1e-5))


def test_a_law_that_is_none_is_refused(outside: ModuleType) -> None:
    class Wrong(outside.Unknown):  # type: ignore[misc]
        def law(self, steps: int, batch_size: int | None) -> float:
            return 0.5

    with pytest.raises(em.errors.InvalidArgument, match=r"to return an epsilometer.samplers.Law"):
        em.shuffle_epsilon(noise_multiplier=1.0, steps=10, delta=1e-5, sampler=Wrong())


def test_settings_name_it(outside: ModuleType) -> None:
    assert parse_choice("halves:4") == outside.FirstHalf(4)
    training = em.ShuffledSGD(**SETTING, sampler=outside.FirstHalf(4))
    settings = to_settings(training)
    assert settings["sampler"] == {"type": "FirstHalf", "parts": 4}
    assert from_settings(em.ShuffledSGD, settings).sampler == training.sampler


def test_commands_take_it_by_name(outside: ModuleType, tmp_path: Path) -> None:
    options = [
        "--sampler",
        "halves:4",
        "--noise-multiplier",
        "1",
        "--steps",
        "20",
        "--observations",
        "2000",
        "-v",
    ]
    called = subprocess.run(
        [
            sys.executable,
            "-c",
            "from epsilometer.cli.main import main; main()",
            "shuffle",
            *options,
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert called.returncode == 1, called.stderr  # the ε of Poisson accounting is refuted
    assert "With FirstHalf, the mechanism's ε is between" in " ".join(called.stdout.split())


def test_models_are_trained_by_it(outside: ModuleType, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    data = rng.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2
    training = em.DPSGD(
        torch.nn.Linear(3, 2),
        data,
        runs=40,
        learning_rate=0.1,
        batch_size=4,
        noise_multiplier=0.05,
        sampler=outside.FirstHalf(),
        views=("updates",),
    )
    audit = em.audit(training, em.Claim(0.1, delta=1e-5), engine=em.InProcess())
    assert audit.verdict == "refuted"
