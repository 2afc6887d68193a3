"""Mutation testing of `stats`: `make mutation`, which goes on where it was stopped.

    python docs/mutation.py                 every mutant that has no verdict yet
    python docs/mutation.py --survivors     those that survived, once more, after tests were added
    python docs/mutation.py binomial        those of a module, anew
    python docs/mutation.py --table         the table of docs/mutation.md, of what is known by now

mutmut is configured in pyproject.toml and keeps its verdicts in mutants/.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import mutmut.__main__
import pytest

STATS = Path("mutants/src/epsilometer/stats")
VERDICTS = {0: "survived", 1: "killed", 3: "killed", None: "open", 33: "no test"}  # else timeout


def main() -> None:
    """Runs what was asked for and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--survivors", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--cores", default=None)
    asked = parser.parse_args()
    names = [f"epsilometer.stats.*{module}.x*" for module in asked.modules]
    if asked.survivors:
        names += [name for _, name, verdict in verdicts() if verdict in ("survived", "no test")]
    if not asked.table:
        cores = ["--max-children", asked.cores] if asked.cores else []
        # mutmut 3.8 asks for a name that pytest 9.2 does not have any more.
        pytest.Item._nodeid = property(lambda item: item.nodeid)
        mutmut.__main__.cli(["run", *cores, "--", *names], standalone_mode=False)
    print(table())


def verdicts() -> Iterator[tuple[str, str, str]]:
    """Module, mutant, verdict."""
    for path in sorted(STATS.rglob("*.meta")):
        module = str(path.relative_to(STATS)).removesuffix(".py.meta")
        for name, code in json.loads(path.read_text("utf-8"))["exit_code_by_key"].items():
            yield module, name, VERDICTS.get(code, "timeout")


def table() -> str:
    """A row a module, in Markdown; a mutant that hangs counts as killed."""
    counts: dict[str, Counter[str]] = {}
    for module, _, verdict in verdicts():
        counts.setdefault(module, Counter())[verdict] += 1
    counts["all"] = sum(counts.values(), Counter())
    lines = [
        "| Module | Mutants | Killed | Timeout | Survived | Rate |",
        "|---" + "|--:" * 5 + "|",
    ]
    for module, of in counts.items():
        mutants, survived = of.total(), of["survived"] + of["no test"]
        rate = (of["killed"] + of["timeout"]) / max(mutants - of["open"], 1)
        unknown = f" ({of['open']} not run)" if of["open"] else ""
        lines.append(
            f"| {module} | {mutants}{unknown} | {of['killed']} | {of['timeout']} | {survived} "
            f"| {rate:.1%} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
