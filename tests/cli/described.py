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
    """The config with other values; None takes a key away."""
    merged = {name: {**plain[name], **parts.get(name, {})} for name in plain}
    return {
        name: {key: value for key, value in part.items() if value is not None}
        for name, part in merged.items()
    }


def write(path: Path, plain: Sections) -> Path:
    """As TOML; JSON's numbers, texts, lists, true and false are its own."""
    lines = [
        line
        for name, part in plain.items()
        for line in (f"[{name}]", *(f"{key} = {json.dumps(part[key])}" for key in part))
    ]
    path.write_text("\n".join(lines), "utf-8")
    return path


def audit_of(command: str, plain: Sections) -> Any:
    """A fixture that runs the command on a changed config, in a folder of its own."""

    @pytest.fixture
    def audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
        monkeypatch.chdir(tmp_path)

        def run(*options: object, **parts: dict[str, Any]) -> Result:
            file = write(Path("audit.toml"), with_changes(plain, **parts))
            quiet = ("--run", "run", "--engine", "in-process", "--quiet")
            return call(command, "--config", file, *quiet, *options)

        return run

    return audit
