"""Read the books of JAX-Privacy's accountants: events, training parameters, plans, Keras settings.

All become one list of (noise multiplier, sampling rate, steps) for ``conformance.books``.
"""

import math
from dataclasses import dataclass
from typing import Any

import dp_accounting
from jax_privacy.accounting import DpParams, analysis

from epsilometer import _validate
from epsilometer.conformance.books import Booked
from epsilometer.conformance.dp_events import is_event, join_entries, read_events, read_truncation
from epsilometer.errors import InvalidArgument

_INTERVAL = 1e-3  # of privacy losses, as in the Keras API: rounds up, and takes a second


@dataclass(frozen=True, kw_only=True)
class BookedSampling:
    """Describe how batches are drawn according to the books: by default, Poisson sampling.

    Attributes:
        fixed: Whether batches are random subsets of one size. Then entries have half of the noise.
        records: Number of records from which batches are drawn, if they are truncated.
        most: Size at which a batch is truncated; None if none is.
    """

    fixed: bool = False
    records: int = 0
    most: int | None = None


def read_sampling(source: Any) -> BookedSampling:
    """Return how batches are drawn according to the books, a source of :func:`read_books`.

    Example:
        >>> read_sampling(dp_accounting.GaussianDpEvent(1.0)).most is None
        True
    """
    if isinstance(source, DpParams):
        return BookedSampling(
            fixed=source.sampling_method is analysis.SamplingMethod.FIXED_BATCH_SIZE,
            records=source.num_samples // (source.cycle_length or 1),
            most=source.truncated_batch_size,
        )
    cut = read_truncation(_find_event(source))
    return BookedSampling() if cut is None else BookedSampling(records=cut[0], most=cut[1])


def read_books(source: Any, *, steps: int | None = None, cycle_length: int = 1) -> list[Booked]:
    """Return the books as (noise multiplier, sampling rate, steps) entries.

    Guarantee: exact. Events that are not understood are rejected, never ignored.
    Assumption: a booked event is one step, or one cycle of steps if records are divided into
        ``cycle_length`` groups that take turns.

    Args:
        source: A ``DpEvent`` of dp_accounting, a ``PrivacyAccountant`` (its ledger is read), a
            ``DpParams`` of JAX-Privacy, or any object with a ``dp_event``, such as a
            ``DPExecutionPlan``.
        steps: Number of updates, planned or taken; only for ``DpParams``, which lack it.
        cycle_length: Groups of records that take turns, as in cyclic Poisson sampling: an event
            per cycle is that many steps. ``DpParams`` have their own.

    Example:
        >>> step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.1))
        >>> read_books(dp_accounting.SelfComposedDpEvent(step, 500))
        [(1.1, 0.01, 500)]
    """
    _validate.whole(1, cycle_length=cycle_length)
    if isinstance(source, DpParams):
        if steps is None:
            raise InvalidArgument("Expected steps= with DpParams, which do not have them.")
        return _read_params(source, steps)
    entries = read_events(_find_event(source), truncated=True)
    return [(n, q, count * cycle_length) for n, q, count in entries]


def report_epsilon(source: Any, *, delta: float, steps: int | None = None) -> float:
    """Return the ε of these books by privacy-loss distributions of dp_accounting.

    Neighbours differ by adding or removing one record, as for JAX-Privacy's accountants.

    Example:
        >>> event = dp_accounting.GaussianDpEvent(1.0)
        >>> round(report_epsilon(event, delta=1e-5), 2)
        4.38
    """
    _validate.open_unit(delta=delta)
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=_INTERVAL)
    sampling = read_sampling(source)
    for noise, rate, count in read_books(source, steps=steps):
        if noise == 0:
            return math.inf
        step: Any = dp_accounting.GaussianDpEvent(noise)
        if sampling.most is not None:
            step = dp_accounting.TruncatedSubsampledGaussianDpEvent(
                dataset_size=sampling.records,
                sampling_probability=rate,
                truncated_batch_size=sampling.most,
                noise_multiplier=noise,
            )
        elif rate < 1:
            step = dp_accounting.PoissonSampledDpEvent(rate, step)
        accountant.compose(step, count)
    return float(accountant.get_epsilon(delta))


def _find_event(source: Any) -> Any:
    event = getattr(source, "dp_event", getattr(source, "ledger", source))
    if not is_event(event):
        raise InvalidArgument(
            "Expected a DpEvent, a PrivacyAccountant, DpParams or a DPExecutionPlan, got "
            f"{type(source).__name__}."
        )
    return event


def _read_params(params: Any, steps: int) -> list[Booked]:
    """Return the events that ``DpsgdTrainingAccountant`` composes for these parameters."""
    if (params.examples_per_user or 1) > 1:
        raise InvalidArgument(
            f"Expected examples_per_user of 1 or None, got {params.examples_per_user}: the audit "
            "is of single records, and not of users with several."
        )
    if not params.is_finite_guarantee:
        return [(0.0, 1.0, steps)]
    if params.noise_multipliers is None:
        raise InvalidArgument("Expected noise_multipliers in DpParams, got none.")
    groups = params.cycle_length or 1
    fixed = params.sampling_method is analysis.SamplingMethod.FIXED_BATCH_SIZE
    spans = analysis._interleave_nm_and_bs(params.noise_multipliers, params.batch_sizes, steps)
    return join_entries(
        [
            # A fixed batch size is booked as Poisson sampling of twice the sensitivity.
            (float(noise) / (2 if fixed else 1), float(size) / (params.num_samples // groups), n)
            for n, noise, size in spans
            if n > 0
        ]
    )
