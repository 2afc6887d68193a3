"""Hold what a model reveals about single records, and store it in a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from epsilometer.engine.shards import Arrays

Kind: TypeAlias = Literal["rows", "one person", "rebuilt", "unread", "statistics"]


@dataclass(frozen=True, kw_only=True)
class Leak:
    """Information about single records in a model's file or answers.

    Attributes:
        kind: Training rows; parts of the model that belong to one record; records that can be
            computed from all others; parts that could not be searched; statistics of many
            records, and other remarks.
        records: Number of records concerned.
        finding: A sentence that says what was found where, without any value.
    """

    kind: Kind
    records: int
    finding: str


def write_leaks(leaks: Sequence[Leak]) -> Arrays:
    """Return leaks as arrays, to be stored in a run."""
    return {
        "kinds": np.array([leak.kind for leak in leaks], np.str_),
        "records": np.array([leak.records for leak in leaks], np.int64),
        "findings": np.array([leak.finding for leak in leaks], np.str_),
    }


def read_leaks(found: Arrays | None) -> list[Leak] | None:
    """Return leaks from arrays; None if nothing was searched."""
    if found is None:
        return None
    columns = (found[name].tolist() for name in ("kinds", "records", "findings"))
    return [
        Leak(kind=kind, records=records, finding=finding)
        for kind, records, finding in zip(*columns, strict=True)
    ]
