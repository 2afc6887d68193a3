"""Choose which records are left out: all, given ones, a sample, or a screen's and a sample."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from epsilometer.errors import InvalidArgument
from epsilometer.stats.membership import count_unseen
from epsilometer.types import BoolArray, FloatArray, IntArray

_EXPECTED = "Expected row numbers, None, 'sample:500' or 'screen:500' for records, got"


@dataclass(frozen=True, eq=False, kw_only=True)
class Chosen:
    """The records to leave out.

    Attributes:
        records: Row numbers.
        screened: Which of them a screen chose; the others were drawn at random from the rest.
        unseen: With 95 % confidence at most this many records have a larger value than the largest
            here; 0 where all were measured, None where the caller chose them.
    """

    records: IntArray
    screened: BoolArray
    unseen: int | None


def choose_records(
    records: IntArray | str | None,
    of: int,
    *,
    seed: int,
    screen: Callable[[], FloatArray] | None = None,
) -> Chosen:
    """Return the records to leave out.

    ``"screen:500"`` takes the 250 that a screen ranks highest, and draws 250 from the others. A
    screen finds the riskiest more often than chance, but does not clear those it passes over.

    Args:
        records: The requested records.
        of: Total number of records.
        seed: Seed of the random draw.
        screen: Ranks all records; None if there is no screen.

    Example:
        >>> chosen = choose_records("screen:4", 100, seed=0, screen=lambda: np.arange(100.0))
        >>> chosen.records[chosen.screened], chosen.records[~chosen.screened].size, chosen.unseen
        (array([98, 99]), 2, 75)
    """
    if records is None:
        return _draw(of, of, seed)
    if isinstance(records, str):
        word, _, number = records.partition(":")
        known = ("sample",) if screen is None else ("sample", "screen")
        if word not in known or not number.isdecimal() or int(number) == 0:
            raise InvalidArgument(f"{_EXPECTED} {records!r}.")
        if word == "sample" or screen is None or int(number) >= of:
            return _draw(int(number), of, seed)
        return choose_screened(screen(), int(number), seed=seed)
    wanted = np.asarray(records)
    if wanted.ndim != 1 or wanted.dtype.kind not in "iu" or wanted.size == 0:
        raise InvalidArgument(f"{_EXPECTED} an array of {wanted.dtype} with shape {wanted.shape}.")
    if wanted.min() < 0 or wanted.max() >= of:
        raise InvalidArgument(
            f"Expected records in [0, {of}), got {wanted.min()} to {wanted.max()}."
        )
    return Chosen(
        records=wanted.astype(np.int64), screened=np.zeros(wanted.size, bool), unseen=None
    )


def choose_screened(ranked: FloatArray, size: int, *, seed: int) -> Chosen:
    """Return half of ``size`` by a screen's values, and the other half drawn from the rest."""
    of = ranked.size
    if size >= of:
        return _draw(of, of, seed)
    order = np.argsort(-ranked, kind="stable")
    top, others = order[: size // 2], order[size // 2 :]
    drawn = np.random.default_rng(seed).choice(others, size - top.size, replace=False)
    records = np.sort(np.concatenate([top, drawn])).astype(np.int64)
    return Chosen(
        records=records,
        screened=np.isin(records, top),
        unseen=count_unseen(drawn.size, others.size),
    )


def _draw(size: int, of: int, seed: int) -> Chosen:
    records, unseen = np.arange(of), 0
    if size < of:
        drawn = np.random.default_rng(seed).choice(of, size, replace=False)
        records, unseen = np.sort(drawn).astype(np.int64), count_unseen(size, of)
    return Chosen(records=records, screened=np.zeros(records.size, bool), unseen=unseen)
