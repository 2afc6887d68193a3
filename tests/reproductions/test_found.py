"""What ``docs/found.md`` says was found is found again: its scripts, and the commands it names."""

import re
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "reproductions" / "found"
PAGE = (ROOT / "docs" / "found.md").read_text("utf-8")
SCRIPT = """
import argparse, warnings
import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--shuffle", action="store_true")
given = parser.parse_args()
torch.manual_seed(0)
data = TensorDataset(torch.randn(200, 20), torch.randint(2, (200,)))
model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 2))
if __name__ == "__main__":
    warnings.simplefilter("ignore")
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=20, shuffle=given.shuffle),
        noise_multiplier=1.0, max_grad_norm=1.0, poisson_sampling=not given.shuffle)
    for _ in range(2):
        for inputs, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
"""


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Scripts import each other from their own folder."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_scripts_of_the_page_are_there() -> None:
    named = set(re.findall(r"reproductions/found/(\w+\.py)", PAGE))
    assert named == {path.name for path in FOLDER.glob("*.py")} - {"opacus_step.py"}


def test_every_thread_is_named_by_its_repository() -> None:
    assert {"571", "616", "707", "751", "807", "819", "830"} <= set(
        re.findall(r"meta-pytorch/opacus#(\d+)", PAGE)
    )
    assert not re.search(r"(?<![\w/])#\d+", PAGE)


@pytest.mark.parametrize("collate", ["longest", "fixed"])
def test_padding_to_the_longest_record_mixes_records(collate: str) -> None:
    import pad_to_longest as script

    torch.manual_seed(0)
    model, records = script.AverageNet(), script.encode_names()
    audit = script.audit_collating(model, records, getattr(script, f"collate_{collate}"), steps=4)
    assert audit.conformance is not None
    removed = audit.conformance.check("sensitivity to a removed record")
    if collate == "fixed":
        assert audit.conformance.verdict == "conforms"
        assert removed.value == pytest.approx(1, abs=0.01)
    else:
        (told,) = re.findall(r"averages as `imdb.py` does \(([\d.]+) clipping norms\)", PAGE)
        assert audit.conformance.verdict == "violated"
        assert removed.value == pytest.approx(float(told), rel=0.05)  # other builds of torch


@pytest.mark.parametrize(("option", "code"), [([], 0), (["--shuffle"], 1)])
def test_a_script_is_watched_as_it_is(
    option: list[str],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import watch_opacus
    from opacus import PrivacyEngine

    original = PrivacyEngine.make_private
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, "utf-8")
    asked = ["watch_opacus.py", "--canaries", "20", str(script), *option]
    monkeypatch.setattr(sys, "argv", asked)
    with warnings.catch_warnings():  # the script ignores what Opacus warns of
        assert watch_opacus.main() == code
    told = capsys.readouterr().out
    assert ("Poisson sampling at rate 0.1, as" in told) == (code == 0)
    assert ("violated: records drawn again" in told) == (code == 1)
    assert PrivacyEngine.make_private is original


def test_a_script_without_a_training_is_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import watch_opacus

    script = tmp_path / "empty.py"
    script.write_text("print('nothing')\n", "utf-8")
    monkeypatch.setattr(sys, "argv", ["watch_opacus.py", str(script)])
    assert watch_opacus.main() == 4


@pytest.mark.parametrize(("bits", "largest"), [(8, 3.328), (11, 3.904)])
def test_normals_from_uniforms_of_few_bits_end_where_the_page_says(
    bits: int, largest: float, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import bfloat16_noise as script

    dtype = {8: torch.bfloat16, 11: torch.float16}[bits]
    assert float(torch.tensor(np.sqrt(2 * bits * np.log(2)), dtype=dtype)) == pytest.approx(
        largest, abs=2e-3
    )
    assert f"| {largest} |" in PAGE
    monkeypatch.setattr(sys, "argv", ["bfloat16_noise.py", "--draws", "200000"])
    script.main()
    assert f"{dtype}: largest" in capsys.readouterr().out
    found = script.measure_draws(dtype, draws=200_000)
    if found.largest > largest + 0.02:  # a torch that is right
        assert found.deviation == pytest.approx(1, abs=0.01)
        assert found.beyond == pytest.approx(0.0027, abs=0.0005)
        assert found.impossible < 0.0015
    else:
        assert found.impossible > 0.0015


def test_float32_is_right_everywhere() -> None:
    import bfloat16_noise as script

    found = script.measure_draws(torch.float32, draws=200_000)
    assert found.largest > 4
    assert found.zeros < 1e-4
    assert found.impossible < 0.0015


def test_defects_of_opacus_are_those_of_its_version() -> None:
    import opacus_defects as script
    from opacus import __version__

    found = script.measure_all()
    assert not [value for value in found.values() if isinstance(value, str)]
    schedule = found.pop("ghost clipping with a schedule of C: a record adds, in C")
    if __version__ == "1.6.0":
        assert f"{schedule:.3f} C" in PAGE
        assert schedule == pytest.approx(1 / 0.7, abs=0.01)
    for value in found.values():  # fixed in 1.6
        assert value == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "conforms"), (0.5, "violated")])
def test_a_step_of_a_library_is_checked(factor: float, verdict: str) -> None:
    """By a step of NumPy: the libraries have environments of their own."""
    import library_steps as script

    def step(batch: Any, rng: np.random.Generator) -> Any:
        inputs, _ = batch
        norms = np.linalg.norm(inputs, axis=1, keepdims=True)
        total = (inputs / np.maximum(norms, 1)).sum(axis=0)
        return total + factor * rng.normal(size=total.shape)

    finding = script.audit_step(step).conformance
    assert finding is not None
    assert finding.verdict == verdict
    assert set(script.LIBRARIES) == set(re.findall(r"library_steps.py (\w+)", PAGE))
