"""Count the modules that an audit enters: ``python -m tests.journey [NAME … | write]``.

A module is entered when one of its functions runs outside an import. Whoever wants to understand
an audit must open these files; docs/design.md has the table, and a test keeps it.
"""

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import epsilometer

SOURCE = str(Path(epsilometer.__file__).parent) + os.sep
BEGIN, END = "<!-- journeys -->\n", "<!-- end of journeys -->\n"
_IS_FUNCTION = 1  # co_flags of a function's code; a class body has it not
# As many as today: a change may lower these, and never raise them. Behind them what is aimed at.
LIMITS = {"estimate": 45, "shuffle": 53, "dpsgd": 86, "classifier": 112, "federated": 79}
AIMS = {"estimate": 20, "shuffle": 28, "dpsgd": 45, "classifier": 45, "federated": 45}
_SMALL_RUN = ("--out", "run", "--engine", "in-process")
CALLS: dict[str, tuple[str, ...]] = {
    "estimate": ("estimate", "scores.csv", "--delta", "1e-5", "--claim", "3"),
    "shuffle": (
        "shuffle", "--noise-multiplier", "1", "--steps", "100", "--claim", "3.5",
        "--observations", "2000", "--engine", "in-process",
    ),
    "dpsgd": ("dpsgd", "--runs", "20", "--records", "50", *_SMALL_RUN),
    "classifier": (
        "classifier", "people.csv", "--label", "member", "--published-as", "file", "--shadows", "8",
        *_SMALL_RUN,
    ),
    "federated": ("federated", "--rounds", "2", "--canaries", "50", "--claim", "8", *_SMALL_RUN),
}  # fmt: skip


@contextlib.contextmanager
def record_entered(entered: set[str]) -> Iterator[None]:
    """Add the file of every function of the package that is entered, imports left out."""
    importing = threading.local()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == "<module>":
            importing.depth = getattr(importing, "depth", 0) + 1
        elif event == "return" and code.co_name == "<module>":
            importing.depth = getattr(importing, "depth", 1) - 1
        elif (
            event == "call"
            and not getattr(importing, "depth", 0)
            and code.co_flags & _IS_FUNCTION
            and code.co_filename.startswith(SOURCE)
        ):
            entered.add(code.co_filename[len(SOURCE) :])

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None ends it


def count_modules(name: str) -> list[str]:
    """Run the audit at a small size in an empty folder, and list the modules that it entered."""
    from epsilometer.cli.main import main

    entered: set[str] = set()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_example(Path("scores.csv"), lambda i: f"{i * 37 % 101},{i % 2}")
        write_example(Path("people.csv"), lambda i: f"{i * 37 % 101 / 100},{i * i % 3 % 2}")
        with (
            open(os.devnull, "w", encoding="utf-8") as nowhere,
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
            contextlib.suppress(SystemExit),
            record_entered(entered),
        ):
            main(list(CALLS[name]))
    return sorted(entered)


def write_example(path: Path, line: Callable[[int], str]) -> None:
    """Write a table of 200 rows with the columns score and member."""
    path.write_text("\n".join(["score,member", *map(line, range(200))]) + "\n", "utf-8")


def make_table(journeys: dict[str, list[str]]) -> str:
    """Return the table of docs/design.md: how many modules each audit enters."""
    lines = ["| audit | modules entered | aim |", "|---|---|---|"]
    for name, modules in journeys.items():
        lines.append(f"| `epsilometer {name}` | {len(modules)} | {AIMS[name]} |")
    return "\n".join(lines) + "\n"


def write_table() -> None:
    """Replace the table of docs/design.md."""
    page = Path(__file__).parents[1] / "docs" / "design.md"
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    table = make_table({name: count_modules(name) for name in CALLS})
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["write"]:
        write_table()
        sys.exit()
    for journey in sys.argv[1:] or CALLS:
        modules = count_modules(journey)
        print(f"{journey}: {len(modules)} modules entered, at most {LIMITS[journey]}")
        print("\n".join(f"  {module}" for module in modules))
