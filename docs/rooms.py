"""Writes the list of all modules into design.md: ``python docs/rooms.py``.

A module's line is the first line of its own docstring.
"""

import ast
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "epsilometer"
BEGIN, END = "<!-- modules -->\n", "<!-- end of modules -->\n"


def first_line(path: Path) -> str:
    """What a module says of itself."""
    told = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return told.partition("\n")[0]


def modules() -> str:
    """Every module with its line, room by room."""
    rooms: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        rooms.setdefault(path.parent.relative_to(SOURCE).as_posix(), []).append(path)
    lines = []
    for room, paths in rooms.items():
        own = [path for path in paths if path.name != "__init__.py"]
        about = first_line(SOURCE / room / "__init__.py")
        lines.append(f"\n**{'epsilometer' if room == '.' else room + '/'}**: {about}\n")
        lines += [f"- `{path.stem}`: {first_line(path)}" for path in own]
    return "\n".join(lines).lstrip("\n") + "\n"


def main() -> None:
    """Replaces what stands between the two marks."""
    page = HERE / "design.md"
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{modules()}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
