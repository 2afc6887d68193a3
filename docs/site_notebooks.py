"""Notebooks as pages of the site: plain Markdown, so that nothing is fetched from anywhere.

Their outputs are those that are committed, which the tests compare with what they do today.
"""

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

NOTEBOOKS = Path(__file__).parent / "notebooks"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds a page for each notebook, beside the notebook itself."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        page = as_markdown(json.loads(path.read_text("utf-8")), name=path.name)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Links to notebooks lead to their pages; a page of a notebook may link to the notebook."""
    if page.file.src_uri.startswith("notebooks/"):
        return markdown
    return re.sub(r"(\]\((?:[^)\s]*/)?notebooks/\w+)\.ipynb\)", r"\1.md)", markdown)


def as_markdown(notebook: dict[str, Any], *, name: str) -> str:
    """A notebook as Markdown: its text, its code, and what the code printed.

    Example:
        >>> cell = {"cell_type": "code", "source": ["1 + 1"], "outputs": [
        ...     {"output_type": "execute_result", "data": {"text/plain": ["2"]}}]}
        >>> print(as_markdown({"cells": [cell]}, name="sum.ipynb").replace("`" * 3, "'''"))
        '''python
        1 + 1
        '''
        <BLANKLINE>
        ''' { .text .output }
        2
        '''
        <BLANKLINE>
        This page is a notebook that runs: [sum.ipynb](sum.ipynb).
        <BLANKLINE>
    """
    parts = [part for cell in notebook["cells"] for part in _cell(cell)]
    parts.append(f"This page is a notebook that runs: [{name}]({name}).")
    return "\n\n".join(parts) + "\n"


def _cell(cell: dict[str, Any]) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    language, shell = "python", "%%bash\n"
    if source.startswith(shell):
        language, source = "bash", source.removeprefix(shell)
    printed = "".join(_text(output) for output in cell["outputs"]).rstrip()
    shown = [f"``` {{ .text .output }}\n{printed}\n```"] if printed else []
    return [f"```{language}\n{source}\n```", *shown]


def _text(output: dict[str, Any]) -> str:
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", ()))
