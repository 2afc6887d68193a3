"""Folders of audits, for tests of what is made of them."""

import os
from pathlib import Path
from typing import Any

from epsilometer import Audit
from tests.examples import a_bound, an_audit

NOON = 1_750_000_000  # long ago, so that files are settled


def put(path: Path, result: Audit | str, *, written: float = NOON) -> Path:
    """Put an audit, or any text, into a file of some age."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(result if isinstance(result, str) else result.to_json(), "utf-8")
    os.utime(path, (written, written))
    return path


def digits(epsilon: float, **changed: Any) -> Audit:
    return an_audit(subject="digits", bound=a_bound(epsilon=epsilon, **changed))
