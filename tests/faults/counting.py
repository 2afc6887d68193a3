"""Count faults that tests inject, by kind, where ``EPSILOMETER_FAULTS`` names a file for it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILE = "EPSILOMETER_FAULTS"


def count(kind: str, times: int = 1, *, survived: bool = True) -> None:
    """Notes faults, and whether they were survived."""
    if where := os.environ.get(FILE):
        line = json.dumps({"kind": kind, "times": times, "survived": survived})
        with Path(where).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


@contextmanager
def faults(kind: str, times: int = 1) -> Iterator[None]:
    """Faults that are survived if nothing inside fails."""
    survived = False
    try:
        yield
        survived = True
    finally:
        count(kind, times, survived=survived)
