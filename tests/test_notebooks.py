"""The notebooks of the documentation run, and show what is committed."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from tests.notebooks import METADATA, NOTEBOOKS, RUNNABLE, executed, texts

# A notebook of frameworks that are not installed must not pass by not being there.
assert {path.stem for path in NOTEBOOKS} >= {
    *("opacus", "flower", "scikit_learn", "jax", "huggingface"),
}
REFRESH = "If the new output is right, `make notebooks` writes it into the notebooks."
# Addresses in memory, timings, bars of progress, folders of a machine.
NOISE = re.compile(r"0x[0-9a-f]{6}|\d+(?:\.\d+)? ?(?:ms|seconds)\b|█|it/s|/(?:tmp|home|root|work)/")


def outputs(notebook: NotebookNode) -> list[NotebookNode]:
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


@pytest.mark.parametrize(
    "path",
    [  # Those that train take half a minute.
        pytest.param(path, marks=pytest.mark.slow if path.stem in {"opacus", "flower"} else ())
        for path in RUNNABLE
    ],
    ids=lambda path: path.stem,
)
def test_shows_what_is_committed(path: Path, tmp_path: Path) -> None:
    committed, today = nbformat.read(path, as_version=4), executed(path, tmp_path)
    complaints = [output.text for output in outputs(today) if output.get("name") == "stderr"]
    assert complaints == [], "a reader would see warnings"
    for number, (then, now) in enumerate(zip(texts(committed), texts(today), strict=True), 1):
        assert now == then, f"{path.name}, code cell {number}. {REFRESH}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_holds_nothing_of_the_machine_it_ran_on(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata == METADATA, REFRESH
    assert all(cell.metadata == {} for cell in notebook.cells), REFRESH
    assert NOISE.findall(json.dumps(notebook, ensure_ascii=False)) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_was_run_from_the_first_cell_to_the_last(path: Path) -> None:
    cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), REFRESH
    assert all(output.output_type != "error" for cell in cells for output in cell.outputs)
    assert any(texts(nbformat.read(path, as_version=4)))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        for target in re.findall(r"\]\(([^)#\s]+)", cell.source):
            assert "://" in target or (path.parent / target).exists(), target
