"""Commands that are described in a file: small files, written and run in folders of their own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from click.testing import Result

from tests.cli.calls import call

Sections: TypeAlias = dict[str, dict[str, Any]]


def with_changes(plain: Sections, **parts: dict[str, Any]) -> Sections:
    """The sections with other values; None takes a key away. ``source`` is a part of its own."""
    merged = {name: {**plain.get(name, {}), **parts.get(name, {})} for name in {**plain, **parts}}
    return {
        name: {key: value for key, value in part.items() if value is not None}
        for name, part in merged.items()
    }


def in_toml(value: Any) -> str:
    """JSON's numbers, texts, lists, true and false are TOML's own; its tables are not."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {in_toml(part)}" for key, part in value.items()) + "}"
    return json.dumps(value)


def write(path: Path, subject: str, plain: Sections) -> Path:
    """As TOML."""
    titles = {"subject": subject, "source": f"{subject}.source"}
    lines = [
        line
        for name, part in plain.items()
        if part
        for line in (
            f"[{titles.get(name, name)}]",
            *(f"{key} = {in_toml(part[key])}" for key in part),
        )
    ]
    path.write_text("\n".join(lines), "utf-8")
    return path


def audit_of(command: str, plain: Sections) -> Any:
    """A fixture that runs the command on a changed file, in a folder of its own."""

    @pytest.fixture
    def audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
        monkeypatch.chdir(tmp_path)

        def run(*options: object, **parts: dict[str, Any]) -> Result:
            file = write(Path("audit.toml"), command, with_changes(plain, **parts))
            quiet = ("--out", "run", "--engine", "in-process", "--log-json")
            return call(command, "--config", file, *quiet, *options)

        return run

    return audit


def check_replay(result: Path, *options: object) -> None:
    """``audit RESULT`` gives the bytes of the result, and its exit code."""
    plain = json.loads(result.read_text("utf-8"))
    done = call("audit", result, "--engine", "in-process", "--json", *options)
    assert done.stdout == result.read_text("utf-8"), done.output[-2000:]
    checked = call("check", result, "--format", "json")
    assert json.loads(checked.stdout)["verdict"] == plain["verdict"]
    assert checked.exit_code == done.exit_code
