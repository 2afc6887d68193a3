"""Draws docs/demo.svg, the README's picture, from what ``make demo`` wrote: ``make picture``."""

import io
import re
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from epsilometer.report.terminal import summary
from epsilometer.results import AuditGroup, from_json


def main() -> None:
    """Reads the results named on the command line and writes the picture beside this file."""
    group = from_json(Path(sys.argv[1]).read_text("utf-8"))
    assert isinstance(group, AuditGroup)
    console = Console(record=True, width=100, file=io.StringIO())
    console.print("$ make demo\n")
    for result in group.results:
        console.print(summary(result))
    # Without the fonts that rich would fetch: the picture must not call anybody.
    template = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    svg = console.export_svg(title="epsilometer", code_format=template, unique_id="demo")
    svg = svg.replace("Fira Code", "Menlo, Consolas, DejaVu Sans Mono")
    (Path(__file__).parent / "demo.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
