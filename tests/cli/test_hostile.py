"""Nothing that comes from outside controls the terminal: on a real one, for every command.

Hostile are texts of results, names of files, columns and labels of tables, settings, sources and
exceptions. What a terminal gets is text, colours of ours, and nothing else.
"""

import ast
import contextlib
import csv
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import Struct
from msgspec.structs import replace

from epsilometer.core.audit import Audit
from epsilometer.core.serialisation import to_json
from epsilometer.engine.plan import Plan
from epsilometer.engine.store import Store
from epsilometer.errors import InvalidArgument
from tests.cli.hostile_program import END
from tests.core.test_printing import is_unsafe
from tests.examples import (
    AUDITS,
    a_conformance,
    a_language_model,
    a_posterior,
    a_regression,
    a_release,
    an_audit,
)
from tests.report.hostile import full_audit, full_views, poisoned

FORGED = "NOT REFUTED: all is well"
FILE = ("--published-as", "file")
PAYLOADS = {
    "clipboard": "a\x1b]52;c;bWFsaWNl\x07b",
    "clear and forge": f"a\x1b[2J\x1b[H{FORGED}\x1b[8m",
    "C1": f"a\x9b2J\x9d0;t\x9c\x85{FORGED}",
    "new lines": f"a\r\n{FORGED}\n{FORGED}\u2028{FORGED}\x0b{FORGED}\x0c",
    "markup": "[red]x[/] [link=http://evil.example]y[/link] [/nope] :skull: [@click=app.quit]z",
    "bidi": "\u202edetufer ton\u202c \u2066x\u2069 \u200fy\u061c \u200bz\ufeff",
    "commands of CI": "::error file=a::b\n::add-mask::c ##[add-path]d ##vso[task.setvariable]e",
    "a verdict": FORGED,
    "long": "x" * 20_000,
    "link": "\x1b]8;;http://evil.example\x1b\\y\x1b]8;;\x1b\\ https://evil.example",
    "halves": "\ud800\udfff\x00",
}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CI = re.compile(r"^\s*::\w|##\[|##vso\[", re.IGNORECASE | re.MULTILINE)
FULL: dict[str, Audit] = {
    "one view": full_audit(),
    "two views": full_views(),
    "release": a_release(),
    "posterior": a_posterior(),
    "regressor": a_regression(),
    "language model": a_language_model(),
    "conforms": an_audit(more=(a_conformance(),)),
}
_KEPT = ("adjacency", "cites", "unit", "direction", "role", "outcome", "standing", "swept")


def call_on_terminal(commands: list[list[str]], folder: Path, **environment: str) -> list[str]:
    """Run commands with a pseudo-terminal for standard output and error; return what each wrote."""
    asked = folder / "commands.json"
    asked.write_text(json.dumps(commands), "utf-8")
    master, slave = pty.openpty()
    program = [sys.executable, "-m", "tests.cli.hostile_program", str(asked)]
    path = os.pathsep.join([*sys.path, str(Path(__file__).parents[2])])
    known = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "PYTHONPATH": path}
    child = subprocess.Popen(
        program,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
        env=known | environment,
    )
    os.close(slave)
    written = b"".join(_read_all(master))
    os.close(master)
    assert child.wait() == 0, written.decode("utf-8", "replace")
    return written.decode("utf-8").replace("\r\n", "\n").split(f"\n{END}\n")[:-1]


def _read_all(master: int) -> Iterator[bytes]:
    while True:
        try:
            part = os.read(master, 1 << 16)
        except OSError:  # the last who wrote has gone
            return
        if not part:
            return
        yield part


def check_harmless(shown: str, command: list[str]) -> None:
    """Look at what a terminal got: colours of ours and printable text, line by line."""
    text = _COLOUR.sub("", shown)
    unsafe = {hex(ord(letter)) for letter in text if is_unsafe(letter)}
    assert not unsafe, (command, unsafe, text[:2000])
    if "--format" not in command:  # GitHub's own format has commands, and they are ours
        assert not _CI.search(text), (command, _CI.search(text))
    assert not [line for line in text.splitlines() if line.startswith(FORGED)], (command, text)
    assert "Traceback" not in text, (command, text)
    assert len(text) < 400_000 or "--json" in command, command


def list_commands(file: Path) -> list[list[str]]:
    """Return every command that reads a result."""
    name = str(file)
    return [
        ["report", name, "--explain"],
        ["report", name, "--markdown"],
        ["report", name, "--json"],
        *(["check", name, "--format", form] for form in ("text", "json", "github", "junit")),
        ["runs", "list", str(file.parent)],
        ["runs", "trend", str(file.parent)],
        ["runs", "compare", name, str(write_result(an_audit(), file.parent / "other"))],
        ["audit", name],
    ]


def write_result(audit: Audit, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "result.json"
    file.write_text(to_json(audit), "utf-8")
    return file


def check_commands(commands: list[list[str]], folder: Path, **environment: str) -> list[str]:
    shown = call_on_terminal(commands, folder, **environment)
    assert len(shown) == len(commands)
    for command, text in zip(commands, shown, strict=True):
        check_harmless(text, command)
    return shown


def test_hostile_results_are_shown_as_text(tmp_path: Path) -> None:
    """Every text of an audit is hostile at once; each command is called with one of the kinds."""
    commands = []
    kinds = [*FULL.values()]
    for place, (name, payload) in enumerate(PAYLOADS.items()):
        file = write_result(poisoned(kinds[place % len(kinds)], payload), tmp_path / name)
        every = list_commands(file)
        commands += every if place < 3 else every[place % 3 :: 3]
    check_commands(commands, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FULL)
def test_each_text_alone_is_shown_as_text(kind: str, tmp_path: Path) -> None:
    """One text after the other, so that none hides behind an error about another."""
    for name in ("clear and forge", "markup", "bidi"):
        commands = []
        for place, audit in enumerate(poison_each(FULL[kind], PAYLOADS[name])):
            commands += list_commands(write_result(audit, tmp_path / f"{name} {place}"))
        check_commands(commands, tmp_path)


def poison_each(value: Any, text: str) -> Iterator[Any]:
    """Yield the value once for each of its texts, with that one replaced."""
    if isinstance(value, str):
        yield text
    elif isinstance(value, (tuple, list)):
        for place, part in enumerate(value):
            for changed in poison_each(part, text):
                yield type(value)([*value[:place], changed, *value[place + 1 :]])
    elif isinstance(value, dict):
        for key, part in value.items():
            yield {text if other == key else other: each for other, each in value.items()}
            for changed in poison_each(part, text):
                yield {**value, key: changed}
    elif isinstance(value, Struct):
        for name in value.__struct_fields__:
            if name not in _KEPT:
                for changed in poison_each(getattr(value, name), text):
                    with contextlib.suppress(InvalidArgument):  # checked where it is made
                        yield replace(value, **{name: changed})


def test_hostile_files_are_shown_as_text(tmp_path: Path) -> None:
    """Tables, settings, sources and notebooks, by hostile names and with hostile contents."""
    commands: list[list[str]] = []
    rng = np.random.default_rng(0)
    for place, name in enumerate(("clipboard", "C1", "markup", "bidi", "commands of CI")):
        bad = PAYLOADS[name].replace("\r", "").replace("/", "|")
        folder = tmp_path / str(place)
        folder.mkdir()
        line = bad.replace("\n", " ").replace('"', "'")
        rows = [f'{a:.3f},{b:.3f},"{line if a > 0 else "no"}"' for a, b in rng.normal(size=(40, 2))]
        table = folder / f"{bad[:60]}.csv"
        table.write_text("\n".join([f'a,"{line} 2","{line}"', *rows]) + "\n", "utf-8")
        small = ["--attacks", "none", "--removal", "0", "--engine", "in-process"]
        small += ["--out", str(folder / "run")]
        commands.append(["classifier", str(table), "--label", line, "--group", line, *small, *FILE])
        commands.append(["classifier", str(table), "--label", f"{bad} 3", *FILE])
        commands.append(["estimate", str(table), "--delta", "1e-5"])
        settings = folder / "settings.toml"
        settings.write_text(f"[{json.dumps(bad)}]\nx = {json.dumps(bad)}\n", "utf-8")
        commands += [["audit", str(settings)], ["dpsgd", "--config", str(settings)]]
        source = folder / f"{bad[:60]}.py"
        source.write_text(_SOURCE.format(text=json.dumps(line, ensure_ascii=False)), "utf-8")
        (folder / "broken.py").write_text(f"def (\n# {line}\n{line}", "utf-8")
        for form in ("text", "json", "github", "junit", "sarif"):
            commands.append(["lint", str(folder), "--format", form])
        commands += [["runs", "status", str(folder)], ["runs", "list", str(folder)]]
        commands += [["check", str(folder / bad[:60])], ["check", str(table)]]
        commands += [["report", str(source)], [bad], [f"-{bad}"]]
    check_commands(commands, tmp_path)


def test_hostile_runs_are_shown_as_text(tmp_path: Path) -> None:
    """Plans that name hostile audits and settings, in directories with hostile names."""
    commands: list[list[str]] = []
    for name in ("clipboard", "C1", "new lines", "markup", "bidi", "a verdict"):
        bad = PAYLOADS[name].replace("/", "|")
        directory = tmp_path / f"{bad[:60]} run"
        plan = Plan(audit=bad, parameters={"settings": {bad: bad}}, units=2, seed=0)
        directory.mkdir()
        Store.create(directory, plan)
        (directory / "failures").mkdir(exist_ok=True)
        failure = {"unit": 1, "error": f"Traceback (most recent call last):\n{bad}"}
        (directory / "failures" / "00000001.json").write_text(json.dumps(failure), "utf-8")
        for command in ("status", "resume", "verify", "list"):
            commands.append(["runs", command, str(directory)])
        commands.append(["runs", "status", str(directory), "--json"])
    check_commands(commands, tmp_path)


def test_a_table_that_is_written_has_no_formula(tmp_path: Path) -> None:
    head = "name,noise_multiplier,steps,epochs,delta"
    line = "=cmd|' /C calc'!A0 \x1b]52;c;eA==\x07[red]x"
    (tmp_path / "sweep.csv").write_text(f'{head}\n"{line}",1,10,1,1e-5\n', "utf-8")
    check_commands([["shuffle", "--sweep", "sweep.csv", "--table", "=out.csv"]], tmp_path)
    _, row = csv.reader((tmp_path / "=out.csv").read_text("utf-8").splitlines())
    assert row[0] == "'=cmd|' /C calc'!A0 \ufffd]52;c;eA==\ufffd[red]x"
    assert row[1] == "1"


_SOURCE = """
from torch.utils.data import DataLoader
from opacus import PrivacyEngine
text = {text}
loader = DataLoader(text, batch_size=64, shuffle=True)
engine = PrivacyEngine()
model, optimizer, loader = engine.make_private(
    module=text, optimizer=text, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0,
    poisson_sampling=False,
)
"""


def test_what_a_unit_raises_is_named_and_not_shown(tmp_path: Path) -> None:
    """A program of the user that raises hostile texts: on a terminal there is a bar of progress."""
    (tmp_path / "mine.py").write_text(_PROGRAM, "utf-8")
    (tmp_path / "mine.toml").write_text(
        '[runs]\nplay = {function = "mine:play"}\nruns = 100\n[audit]\ndelta = 1e-5\n', "utf-8"
    )
    call = ["audit", "mine.toml", "--trust", "--engine", "in-process", "--out", "run"]
    (shown, status) = call_on_terminal([call, ["runs", "status", "run"]], tmp_path)
    for text in (shown, status):
        assert "Unit" in text or "unit" in text
        assert "ValueError" in text
        assert "123-45" not in text
        assert FORGED not in text
        assert "\x1b]" not in text
        assert "\x9b" not in text
    assert "RuntimeWarning from" in shown
    check_harmless(status, ["runs", "status"])


_PROGRAM = f"""
import warnings
import epsilometer as em
def play(runs, rng):
    warnings.warn("ssn=123-45-6789 \\x1b]52;c;eA==\\x07", RuntimeWarning)
    if rng.random() < 0.1:
        raise ValueError("ssn=123-45-6789 \\x1b]52;c;eA==\\x07 \\x9b2J\\n{FORGED}")
    return em.Scores(inside=rng.normal(3, 1, runs), outside=rng.normal(0, 1, runs))
"""


def test_a_fault_of_ours_shows_where_and_not_what(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(_BROKEN, "utf-8")
    table = tmp_path / "people.csv"
    table.write_text("a,b\n" + "\n".join(f"{i},{'yn'[i % 2]}" for i in range(40)) + "\n")
    call = ["classifier", "people.csv", "--label", "b", "--model", "mine:make", *FILE]
    call += ["--attacks", "none", "--engine", "in-process", "--out", "run"]
    (shown,) = call_on_terminal([call], tmp_path)
    assert "123-45" not in shown
    assert "RuntimeError" in shown
    assert "EPSILOMETER_SHOW_ERRORS=1" in shown
    (tmp_path / "again").mkdir()
    shows = {"EPSILOMETER_SHOW_ERRORS": "1"}
    (asked,) = call_on_terminal([[*call[:-1], "again/run"]], tmp_path, **shows)
    assert "123-45" in asked
    assert "\x1b]" not in asked


_BROKEN = """
from sklearn.base import BaseEstimator, ClassifierMixin
class Broken(ClassifierMixin, BaseEstimator):
    def fit(self, X, y):
        raise RuntimeError("ssn=123-45-6789 \\x1b]52;c;eA==\\x07")
    def predict_proba(self, X):
        return X
def make():
    return Broken()
"""


def test_only_one_module_writes_to_the_terminal() -> None:
    """Commands print through ``cli.output``, which makes text harmless."""
    import epsilometer

    allowed = {"cli/output.py", "cli/progress.py", "zoo/__main__.py"}
    root = Path(epsilometer.__file__).parent
    wrong = [
        f"{file.relative_to(root)}:{node.lineno}"
        for file in root.rglob("*.py")
        if str(file.relative_to(root)) not in allowed
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and _name(node.func) in ("print", "echo", "secho", "print_exc")
    ]
    assert wrong == []


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_every_kind_of_audit_has_texts_to_poison() -> None:
    assert {name for audit in FULL.values() for name in _kinds(audit)} >= {
        name for audit in AUDITS.values() for name in _kinds(audit)
    } - {"SamplerFinding", "EpsilonEstimate"}


def _kinds(audit: Audit) -> set[str]:
    return {type(finding).__name__ for finding in audit.findings}
