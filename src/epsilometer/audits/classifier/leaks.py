"""Hold what a model tells of single records, and keep it in a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from epsilometer.engine.shards import Arrays

Kind: TypeAlias = Literal["rows", "one person", "rebuilt", "unread", "statistics"]


@dataclass(frozen=True, kw_only=True)
class Leak:
    """Information about single records in a model's file.

    Attributes:
        kind: Training rows; parts of the model that belong to one record; records that whoever
            knows all others computes; parts that could not be searched; statistics of many
            records, and other remarks.
        records: How many records that concerns.
        finding: What is where, in a sentence without any value.
    """

    kind: Kind
    records: int
    finding: str


def write_leaks(leaks: Sequence[Leak]) -> Arrays:
    """Return leaks as arrays, as a run keeps them."""
    return {
        "kinds": np.array([leak.kind for leak in leaks], np.str_),
        "records": np.array([leak.records for leak in leaks], np.int64),
        "findings": np.array([leak.finding for leak in leaks], np.str_),
    }


def read_leaks(found: Arrays | None) -> list[Leak] | None:
    """Return leaks from arrays; None where nothing was searched."""
    if found is None:
        return None
    columns = (found[name].tolist() for name in ("kinds", "records", "findings"))
    return [
        Leak(kind=kind, records=records, finding=finding)
        for kind, records, finding in zip(*columns, strict=True)
    ]
