"""Read events of any release of dp_accounting, without importing it."""

from collections.abc import Iterator
from typing import Any

from epsilometer.conformance.books import Booked
from epsilometer.errors import InvalidArgument


def read_events(event: Any, *, truncated: bool = False) -> list[Booked]:
    """Return the books of a tree of events, as (noise multiplier, sampling rate, steps) entries.

    Guarantee: exact. Events that are not understood are rejected, never ignored.
    Assumption: an event of Gaussian noise is one step.

    Args:
        event: A ``DpEvent``, or a ``PrivacyAccountant``, whose ledger is read.
        truncated: Whether batches may be truncated; entries do not say so: also call
            :func:`read_truncation`.

    Raises:
        InvalidArgument: It is another object, or does not describe single steps.
    """
    event = getattr(event, "ledger", event)
    if not is_event(event):
        raise InvalidArgument(
            f"Expected a DpEvent or a PrivacyAccountant, got {type(event).__name__}."
        )
    if not truncated and read_truncation(event) is not None:
        raise InvalidArgument(
            "Expected Poisson sampling on the books, got batches that are cut off."
        )
    return join_entries(_read(event))


def read_truncation(event: Any) -> tuple[int, int] | None:
    """Return the number of records and the size at which batches are truncated, or None.

    Raises:
        InvalidArgument: Steps are truncated in different ways.
    """
    cuts = set(_list_cuts(getattr(event, "ledger", event)))
    if len(cuts) > 1:
        raise InvalidArgument(
            "Expected batches that are all cut off at the same number of records, or nowhere, got "
            "several numbers on the books."
        )
    return cuts.pop() if cuts else None


def is_event(value: Any) -> bool:
    """Tell whether an object is an event of dp_accounting."""
    return any(base.__name__ == "DpEvent" for base in type(value).__mro__)


def join_entries(entries: list[Booked]) -> list[Booked]:
    """Join adjacent entries with the same noise and rate.

    Example:
        >>> join_entries([(1.0, 0.1, 2), (1.0, 0.1, 3), (2.0, 0.1, 1)])
        [(1.0, 0.1, 5), (2.0, 0.1, 1)]
    """
    joined: list[Booked] = []
    for noise, rate, count in entries:
        if joined and joined[-1][:2] == (noise, rate):
            joined[-1] = (noise, rate, joined[-1][2] + count)
        else:
            joined.append((noise, rate, count))
    return joined


def _list_cuts(event: Any) -> Iterator[tuple[int, int] | None]:
    if type(event).__name__ == "TruncatedSubsampledGaussianDpEvent":
        yield int(event.dataset_size), int(event.truncated_batch_size)
    elif type(event).__name__ == "GaussianDpEvent":
        yield None
    for each in getattr(event, "events", ()):
        yield from _list_cuts(each)
    if is_event(getattr(event, "event", None)):
        yield from _list_cuts(event.event)


def _read(event: Any) -> list[Booked]:
    match type(event).__name__:
        case "NoOpDpEvent":
            return []
        case "GaussianDpEvent":
            return [(float(event.noise_multiplier), 1.0, 1)]
        case "PoissonSampledDpEvent":
            rate = float(event.sampling_probability)
            return [(noise, rate * own, count) for noise, own, count in _read(event.event)]
        case "SelfComposedDpEvent":
            times = int(event.count)
            return [(noise, rate, own * times) for noise, rate, own in _read(event.event)]
        case "ComposedDpEvent":
            return [entry for each in event.events for entry in _read(each)]
        case "TruncatedSubsampledGaussianDpEvent":
            return [(float(event.noise_multiplier), float(event.sampling_probability), 1)]
    raise InvalidArgument(
        f"Expected events of Gaussian noise and Poisson sampling, got {type(event).__name__}: "
        "what it says of single steps is not known."
    )
