"""``epsilometer zoo``: counts first, then what is missed; without Opacus it says so."""

import json
import re
from importlib.machinery import ModuleSpec

import pytest
from click.testing import CliRunner

from epsilometer.cli.main import main
from epsilometer.zoo import programs, step
from epsilometer.zoo.__main__ import FILE, LIST
from epsilometer.zoo.page import BEGIN, END, describe_seeds, read_seeds, render_page
from epsilometer.zoo.runner import run_zoo
from epsilometer.zoo.tool import Report


def call(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(main, ["zoo", *arguments])
    return found.exit_code, found.output


def test_counts_come_first() -> None:
    code, said = call("EPS-0001", "EPS-1001")
    assert code == 0
    assert said.startswith("1 of 1 wrong programs found, 1 of 1 right ones passed.\n")
    assert "not installed" not in said


def test_what_is_missed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epsilometer.zoo.runner.check_program", None)
    monkeypatch.setattr(run_zoo, "__kwdefaults__", {**run_zoo.__kwdefaults__, "tool": _see_nothing})
    code, said = call("EPS-0002", "EPS-1001")
    assert code == 0
    assert said.splitlines()[:2] == [
        "0 of 1 wrong programs found, 1 of 1 right ones passed.",
        "missed: EPS-0002 (half the noise)",
    ]


def _see_nothing(program: object, seed: int) -> Report:
    return Report()


def test_machines_get_every_outcome() -> None:
    code, said = call("EPS-0102", "--json", "--seeds", "2", "--seed", "5")
    rows = json.loads(said)
    assert code == 0
    assert [row["seed"] for row in rows] == [5, 6]
    assert {(row["kind"], row["call"], row["steps"]) for row in rows} == {("opacus", "audited", 1)}


def test_sources_are_printed() -> None:
    code, said = call("--source", "EPS-0141", "EPS-1101")
    assert code == 0
    assert "# reported in: Opacus 1.5 to 1.5.2 (pull request 707)" in said
    assert "p.summed_grad += p.grad" in said
    assert "# EPS-1101: plain DP-SGD\n# right\n" in said


def test_unknown_ids_are_refused() -> None:
    code, said = call("EPS-9999")
    assert code == 2
    assert "got 'EPS-9999'" in said


def test_without_opacus_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(programs, "find_spec", find_nothing)
    monkeypatch.setattr(step.program, "programs", list(programs.list_programs("step")[:2]))
    code, said = call()
    assert code == 0
    assert said.startswith("2 of 2 wrong programs found, 0 of 0 right ones passed.")
    assert "The programs that train with Opacus were not run" in said
    assert "pip install 'epsilometer[opacus]'" in said


def test_the_paragraph_of_many_seeds_is_kept() -> None:
    runs = run_zoo(programs.list_programs("step")[-2:], seeds=2, tool=_see_nothing)
    told = describe_seeds(runs, "make zoo SEEDS=2")
    assert "2 programs × 2 seeds, 0 of 4 runs flagged (`make zoo SEEDS=2`)" in told
    page = render_page(runs[:1], seeds=told)
    assert read_seeds(page) == told
    assert read_seeds("") == ""
    assert f"{BEGIN}{told}{END}" in page


def test_all_programs_are_listed() -> None:
    if LIST.exists():  # not where only the package is installed
        page = LIST.read_text("utf-8")
        rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| EPS-")]
        known = [(f" {each.id} ", f" {each.title} ") for each in programs.list_programs()]
        assert sorted(map(tuple, rows)) == sorted(known)


def test_the_page_counts_what_the_list_has() -> None:
    if FILE.exists():
        page, rows = FILE.read_text("utf-8"), LIST.read_text("utf-8")
        missed = re.findall(r"^\| (EPS-\d+) .*\*\*missed\*\*", rows, re.M)
        assert missed == re.findall(r"^- missed: (EPS-\d+) ", page, re.M)
        for title, counts in re.findall(r"^## (.+)\n\n(.+)$", rows, re.M):
            assert f"- {title}: {counts}\n" in page


def test_the_readme_names_what_is_missed() -> None:
    readme = FILE.parents[1] / "README.md"
    if FILE.exists() and readme.exists():
        page, text = FILE.read_text("utf-8"), " ".join(readme.read_text("utf-8").split())
        counted = page.split("## What was found")[1].split("**")[1]
        assert counted.rstrip(".") in text
        lines = page.splitlines()  # what lint misses is indented, and on its own page
        missed = [
            line.removeprefix("- missed: ") for line in lines if line.startswith("- missed: ")
        ]
        assert all(each in text for each in missed)
        assert text.count("EPS-") == len(missed)
