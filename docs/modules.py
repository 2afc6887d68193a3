"""Write the list of all modules into modules.md: ``python docs/modules.py``.

A module's line is the first line of its own docstring.
"""

import ast
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "epsilometer"
BEGIN, END = "<!-- modules -->\n", "<!-- end of modules -->\n"


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return text.partition("\n")[0]


def list_modules() -> str:
    """Return every module with its line, package by package."""
    packages: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        packages.setdefault(path.parent.relative_to(SOURCE).as_posix(), []).append(path)
    lines = []
    for package, paths in packages.items():
        own = [path for path in paths if path.name != "__init__.py"]
        about = first_line(SOURCE / package / "__init__.py")
        lines.append(f"\n**{'epsilometer' if package == '.' else package + '/'}**: {about}\n")
        lines += [f"- `{path.stem}`: {first_line(path)}" for path in own]
    return "\n".join(lines).lstrip("\n") + "\n"


def main() -> None:
    """Replace what stands between the two marks."""
    page = HERE / "modules.md"
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{list_modules()}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
