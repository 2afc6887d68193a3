"""Mutation testing of `stats`: `make mutation`, which goes on where it was stopped.

    python docs/mutation.py                 every mutant that has no verdict yet
    python docs/mutation.py --survivors     and those that survived, after tests were added
    python docs/mutation.py binomial        those of a module, anew; or its survivors alone
    python docs/mutation.py --table         tests/stats/mutants.md, of what is known by now

mutmut makes the mutants as pyproject.toml says, and its files in mutants/ keep the verdicts:
`mutmut show NAME` prints a mutant, `mutmut results` names those that survived. The loop is ours:
tests are collected once, and each mutant is judged in a fork of that process, which takes a
fraction of a second where a pytest of its own takes several.
"""

import argparse
import gc
import json
import os
import random
import resource
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import mutmut.__main__ as mutants
import pytest
from _pytest.config import _prepareconfig
from mutmut.configuration import config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state
from mutmut.stats import load_stats, save_stats
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import mangled_name_from_mutant_name

PAGE = Path("tests/stats/mutants.md")
TEXT = """# Mutants of `stats`

Written by `make mutation`. What they are, and which survive: [mutation](../../docs/mutation.md).

"""
SOURCE = Path("src/epsilometer/stats")
STATS = "mutants" / SOURCE
VERDICTS = {0: "survived", 1: "killed", None: "not run", 33: "no test"}  # else: killed by the clock
QUICK = 2.5, 80  # seconds and tests by which a mutant is judged, at most, of those that reach it
THOROUGH = 6.0, 300  # the same for survivors


def main() -> None:
    """Does what was asked for; prints and writes the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("modules", nargs="*", help="as the table names them")
    parser.add_argument("--survivors", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=float("inf"), help="then stop")
    asked = parser.parse_args()
    if not asked.table:
        files = {
            str(path.relative_to(SOURCE).with_suffix("")): SourceFileMutationData(path=path)
            for path in walk_mutatable_files()
        }
        if unknown := set(asked.modules) - files.keys():
            parser.error(f"expected modules as the table names them, got {', '.join(unknown)}")
        make(asked.cores)
        for file in files.values():
            file.load()
        items = collect()
        anew = asked.modules and not asked.survivors
        names = [
            (file, name)
            for module, file in files.items()
            if not asked.modules or module in asked.modules
            for name, code in file.exit_code_by_key.items()
            if anew or code is None or (asked.survivors and code in (0, 33))
        ]
        find_reach(items, {mangled_name_from_mutant_name(name) for _, name in names})
        random.Random(0).shuffle(names)  # who stops early has a fair sample
        limits = THOROUGH if asked.survivors else QUICK
        judge(names, items, limits, asked.cores, time.monotonic() + asked.seconds)
    if any(verdicts()):
        PAGE.write_text(f"{TEXT}{table()}\n", "utf-8")
    print(table())


def make(cores: int) -> None:
    """Mutants of what is new or has changed."""
    set_mutant_under_test("mutant_generation")
    Path("mutants").mkdir(exist_ok=True)
    mutants.copy_src_dir()
    mutants.copy_also_copy_files()
    mutants.setup_source_paths()
    mutants.create_mutants(cores)


def collect() -> dict[str, pytest.Item]:
    """All tests, in this process, ready to be run by its forks."""
    set_mutant_under_test("")
    os.chdir("mutants")
    knobs = config()
    asked = [*knobs.pytest_add_cli_args, *knobs.pytest_add_cli_args_test_selection]
    session_of = _prepareconfig(["--rootdir=.", "-q", "-s", *asked])
    session_of._do_configure()
    session = pytest.Session.from_config(session_of)
    session_of.hook.pytest_sessionstart(session=session)
    session_of.hook.pytest_collection(session=session)
    os.chdir("..")
    return {item.nodeid: item for item in session.items}


class Failed(Exception):
    """Raised by the first report of a failure."""


class Watch:
    """A pytest plugin that lets a failure out."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Setup and teardown count as the test itself."""
        if report.failed:
            raise Failed(report.nodeid)


def run(item: pytest.Item) -> None:
    """One test; raises where it fails."""
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)


def find_reach(items: dict[str, pytest.Item], functions: set[str]) -> None:
    """Which functions a test reaches and how long it takes, of tests that are not known yet."""
    load_stats()
    known = state()
    if functions - known.tests_by_mangled_function_name.keys():  # a new one: all may reach it
        known.duration_by_test.clear()
    set_mutant_under_test("stats")
    next(iter(items.values())).config.pluginmanager.register(Watch())
    os.chdir("mutants")
    for name in items.keys() - known.duration_by_test.keys():
        known._stats.clear()
        began = time.process_time()
        run(items[name])
        known.duration_by_test[name] = time.process_time() - began
        for function in known._stats:
            known.tests_by_mangled_function_name[function].add(name)
    os.chdir("..")
    save_stats()


def judge(
    names: list[tuple[SourceFileMutationData, str]],
    items: dict[str, pytest.Item],
    limits: tuple[float, int],
    cores: int,
    until: float,
) -> None:
    """Runs a fork a mutant, as many at a time as there are cores."""
    running: dict[int, tuple[SourceFileMutationData, str]] = {}
    gc.freeze()  # forks need not look through what they share
    for file, name in names:
        if time.monotonic() > until:
            break
        while len(running) >= cores:
            note(running)
        tests, seconds = chosen(name, items, *limits)
        if not tests:
            file.exit_code_by_key[name] = 33
            continue
        child = os.fork()
        if not child:
            os._exit(judged(name, [items[test] for test in tests], seconds))
        running[child] = file, name
    while running:
        note(running)


def chosen(
    mutant: str, items: dict[str, pytest.Item], seconds: float, count: int
) -> tuple[list[str], float]:
    """Some functions are reached by hundreds of tests: those of their own file, then the quick."""
    took = state().duration_by_test
    module = mutant.partition(".x")[0].rpartition(".")[2]
    own = "test_contract.py" if module == "estimators" else f"test_{module}.py"
    reach = state().tests_by_mangled_function_name[mangled_name_from_mutant_name(mutant)]
    some: list[str] = []
    spent = 0.0
    for test in sorted(reach & items.keys(), key=lambda test: (own not in test, took[test])):
        if not some or (spent + took[test] <= seconds and len(some) < count):
            some.append(test)
            spent += took[test]
    return some, spent


def judged(mutant: str, tests: list[pytest.Item], seconds: float) -> int:
    """In a fork: 1 where a test fails, 0 where none does; the clock kills what hangs."""
    set_mutant_under_test(mutant)
    limit = int(time.process_time() + 4 * seconds + 10)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.chdir("mutants")
    try:
        for test in tests:
            run(test)
    except BaseException:
        return 1
    return 0


def note(running: dict[int, tuple[SourceFileMutationData, str]]) -> None:
    """Waits for a fork and writes its verdict down."""
    child, status = os.wait()
    file, name = running.pop(child)
    file.exit_code_by_key[name] = os.waitstatus_to_exitcode(status)
    file.save()


def verdicts() -> Iterator[tuple[str, str, str]]:
    """Module, mutant, verdict."""
    for path in sorted(STATS.rglob("*.meta")):
        module = str(path.relative_to(STATS)).removesuffix(".py.meta")
        for name, code in json.loads(path.read_text("utf-8"))["exit_code_by_key"].items():
            yield module, name, VERDICTS.get(code, "timeout")


def table() -> str:
    """A row a module, in Markdown."""
    counts: dict[str, Counter[str]] = {}
    for module, _, verdict in verdicts():
        counts.setdefault(module, Counter())[verdict] += 1
    counts["all"] = sum(counts.values(), Counter())
    lines = [
        "| Module | Mutants | Killed | Timeout | Survived | Not run | Rate |",
        "|---" + "|--:" * 6 + "|",
    ]
    for module, of in counts.items():
        survived, seen = of["survived"] + of["no test"], of.total() - of["not run"]
        rate = f"{(of['killed'] + of['timeout']) / seen:.1%}" if seen else "–"
        row = (of.total(), of["killed"], of["timeout"], survived, of["not run"])
        lines.append(f"| {module} | {' | '.join(map(str, row))} | {rate} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
