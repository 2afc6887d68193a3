"""Notebooks as pages of the site: plain Markdown, so that nothing is fetched from anywhere.

Their outputs are those that are committed, which the tests compare with what they do today.
"""

from typing import Any


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
