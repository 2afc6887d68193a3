"""Notebooks of the documentation, run as a reader would: in a folder of their own.

``python -m tests.notebooks`` runs all of them and writes their outputs, which is `make notebooks`.
"""

import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))
# Those of frameworks with environments of their own, where `make test-NAME` runs them.
ELSEWHERE = {"huggingface": "transformers", "jax": "jax_privacy"}
RUNNABLE = [
    path for path in NOTEBOOKS if path.stem not in ELSEWHERE or find_spec(ELSEWHERE[path.stem])
]
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def executed(path: Path, folder: Path) -> NotebookNode:
    """The notebook with the outputs of today, and no metadata that differs between machines."""
    notebook = nbformat.read(path, as_version=4)
    own = {name: str(folder / name) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR")}
    own["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    own["OMP_NUM_THREADS"] = "1"
    working = folder / "working"
    working.mkdir()
    client = NotebookClient(
        notebook,
        timeout=600,
        record_timing=False,
        coalesce_streams=True,  # or a line is cut where a process happened to flush
        extra_arguments=["--log-level=ERROR"],  # that nothing is encrypted on this machine
        resources={"metadata": {"path": str(working)}},
    )
    client.execute(env={**os.environ, **own})
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
    return notebook


def texts(notebook: NotebookNode) -> list[str]:
    """What each code cell shows, as plain text."""
    return [
        "".join(_text(output) for output in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def _text(output: NotebookNode) -> str:
    if output.output_type == "stream":
        return str(output.text)
    return str(output.get("data", {}).get("text/plain", output.output_type))


def main() -> None:
    """Runs them, or those that are named, and writes them back."""
    for path in RUNNABLE:
        if len(sys.argv) > 1 and path.stem not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            notebook = executed(path, Path(folder))
        nbformat.write(notebook, path)
        print(path.name, file=sys.stderr)


if __name__ == "__main__":
    main()
