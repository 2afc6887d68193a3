"""Mutation testing of `stats`: `make mutation`, which goes on where it was stopped.

    python docs/mutation.py                 every mutant that has no verdict yet
    python docs/mutation.py --survivors     those that survived, once more, after tests were added
    python docs/mutation.py binomial        those of a module, anew
    python docs/mutation.py --table         the table of docs/mutation.md, of what is known by now

mutmut is configured in pyproject.toml and keeps its verdicts in mutants/; `mutmut show NAME` prints
a mutant, `mutmut results` the names of those that survived.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from math import ceil
from pathlib import Path

import mutmut.__main__
import pytest
from mutmut.state import state
from mutmut.workers.isolation import ForkRunner

STATS = Path("mutants/src/epsilometer/stats")
VERDICTS = {0: "survived", 1: "killed", 3: "killed", None: "open", 33: "no test"}  # else timeout
SECONDS, TESTS = 6.0, 80  # a mutant is judged by so many of the tests that reach it, at most


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
        ForkRunner.submit = judged_by_few(ForkRunner.submit)
        mutmut.__main__.cli(["run", *cores, "--", *names], standalone_mode=False)
    print(table())


def judged_by_few(submit):  # type: ignore[no-untyped-def]
    """Some functions are reached by hundreds of tests: those of their own file, then the quick."""

    def submit_few(self, mutant, tests, cpu_limit, estimated):  # type: ignore[no-untyped-def]
        took, own = state().duration_by_test, f"test_{mutant.split('.x')[0].rsplit('.')[-1]}.py"
        chosen, spent = [], 0.0
        for test in sorted(tests, key=lambda test: (own not in test, took[test])):
            if not chosen or (spent + took[test] <= SECONDS and len(chosen) < TESTS):
                chosen.append(test)
                spent += took[test]
        submit(self, mutant, chosen, ceil(10 + 4 * spent), 4 * spent + 20)

    return submit_few


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
        "| Module | Mutants | Killed | Timeout | Survived | Not run | Rate |",
        "|---" + "|--:" * 6 + "|",
    ]
    for module, of in counts.items():
        survived, judged = of["survived"] + of["no test"], of.total() - of["open"]
        rate = f"{(of['killed'] + of['timeout']) / judged:.1%}" if judged else "–"
        row = (of.total(), of["killed"], of["timeout"], survived, of["open"])
        lines.append(f"| {module} | {' | '.join(map(str, row))} | {rate} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
