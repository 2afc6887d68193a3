"""Folders of results, for tests of what is made of them."""

import os
from pathlib import Path
from typing import Any

from epsilometer import to_json
from epsilometer.results import AuditResult
from tests.examples import a_bound, an_audit

NOON = 1_750_000_000  # long ago, so that files are settled


def put(path: Path, result: Any, *, written: float = NOON) -> Path:
    """A result, or any text, in a file of some age."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(result if isinstance(result, str) else to_json(result), "utf-8")
    os.utime(path, (written, written))
    return path


def digits(epsilon: float, **changed: Any) -> AuditResult:
    return an_audit(subject="digits", bound=a_bound(epsilon=epsilon, **changed))
