"""Audit TensorFlow Privacy: does a Keras optimiser do what its accountant assumes?"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.accounting.pld import varied_poisson_epsilon
from epsilometer.conformance.books import Booked, Books
from epsilometer.conformance.clipping import ClippingWatch
from epsilometer.conformance.dp_events import is_event, read_events
from epsilometer.conformance.noise_checks import LEVEL
from epsilometer.conformance.participation import ParticipationWatch
from epsilometer.conformance.watch import StepWatch
from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.core.claim import Claim, as_claim
from epsilometer.core.findings import Check, ConformanceFinding
from epsilometer.engine.framework_audits import make_framework_audit
from epsilometer.engine.request import Request
from epsilometer.errors import InvalidArgument

__all__ = ["Audited", "audited", "read_books"]
_SHARE = LEVEL / 8  # of the level, for what is not noise
_FEW = 10  # records of a batch, below which steps of one record each may be chance
_ROUNDING = 1e-4  # relative, of a norm in single precision
_CLIPPING = "no gradients of single records: em.Step replays a step with and without a record"
_NO_CANARIES = "No canaries were planted: the claim is judged by conformance alone."


def read_books(
    source: Any = None,
    *,
    number_of_examples: int | None = None,
    batch_size: int | None = None,
    num_epochs: float | None = None,
    noise_multiplier: float | None = None,
    used_microbatching: bool = True,
) -> list[Booked]:
    """Return the books as (noise multiplier, sampling rate, steps) entries.

    Guarantee: exact. Events that are not understood are rejected, never ignored.
    Assumption: an event of Gaussian noise is one step.

    Args:
        source: A ``DpEvent`` or a ``PrivacyAccountant``. Otherwise pass the arguments of
            ``compute_dp_sgd_privacy_statement``, by the same names.
        number_of_examples: Records of the training set.
        batch_size: Records in a step.
        num_epochs: Passes over the training set.
        noise_multiplier: Noise multiplier of the optimiser.
        used_microbatching: Whether a clipped gradient may contain several records; then half of the
            noise is booked, as in TF-Privacy.

    Example:
        >>> read_books(number_of_examples=1_000, batch_size=50, num_epochs=2,
        ...            noise_multiplier=1.1, used_microbatching=False)
        [(1.1, 0.05, 40)]
    """
    numbers = (number_of_examples, batch_size, num_epochs, noise_multiplier)
    if source is not None:
        if any(number is not None for number in numbers):
            raise InvalidArgument("Expected events or numbers as books, got both.")
        return read_events(source)
    if number_of_examples is None or batch_size is None:
        raise InvalidArgument("Expected number_of_examples and batch_size, got none of one.")
    if num_epochs is None or noise_multiplier is None:
        raise InvalidArgument("Expected num_epochs and noise_multiplier, got none of one.")
    _validate.whole(1, number_of_examples=number_of_examples, batch_size=batch_size)
    _validate.positive(num_epochs=num_epochs)
    _validate.at_least(0, noise_multiplier=noise_multiplier)
    rate = batch_size / number_of_examples
    if rate > 1:
        raise InvalidArgument(
            f"Expected a batch_size of at most {number_of_examples} records, got {batch_size}."
        )
    noise = noise_multiplier / (2 if used_microbatching else 1)
    return [(noise, rate, math.ceil(num_epochs / rate))]


def audited(optimizer: Any, *, records: int, batch_size: int) -> "Audited":
    """Audit a Keras optimiser of TensorFlow Privacy: one line before compiling the model.

    ``run = audited(optimizer, records=60_000, batch_size=256)``, then ``model.compile`` and
    ``model.fit`` as usual, and ``run.result(books, delta=1e-5)``.

    Guarantee: at most 1 correct run in 1,000 is found violated. What the optimiser computes is
        unchanged.
    Assumption: one process, not compiled by XLA; every call of the optimiser is a step.

    Args:
        optimizer: For example ``DPKerasSGDOptimizer``, with Gaussian noise.
        records: Records of the training set.
        batch_size: Accounted records in a step.
    """
    with needs("tensorflow", extra="tf"):
        import tensorflow as tf
    query = getattr(optimizer, "_dp_sum_query", None)
    gaussian = all(hasattr(query, name) for name in ("_l2_norm_clip", "_stddev"))
    # Vectorized ones have a query too, and add noise without it
    if not gaussian or not hasattr(optimizer, "gradient_accumulation_steps"):
        raise InvalidArgument(
            "Expected a Keras optimizer of TensorFlow Privacy whose query adds Gaussian noise, as "
            f"DPKerasSGDOptimizer (none that is vectorized), got {type(optimizer).__name__}."
        )
    _validate.whole(1, records=records, batch_size=batch_size)
    if batch_size > records:
        raise InvalidArgument(f"Expected a batch_size of at most {records}, got {batch_size}.")
    return Audited(tf, optimizer, records, batch_size)


class Audited:
    """Watch an optimiser; made by :func:`audited`.

    Attributes:
        steps: Number of observed steps.
    """

    def __init__(self, tf: Any, optimizer: Any, records: int, batch_size: int) -> None:
        query = optimizer._dp_sum_query
        self._tf, self._optimizer = tf, optimizer
        self._clip, self._stddev = float(query._l2_norm_clip), float(query._stddev)
        _validate.positive(l2_norm_clip=self._clip, noise=self._stddev)
        self.noise_multiplier = self._stddev / self._clip
        self._records, self._rate = records, batch_size / records
        self._before = int(optimizer.iterations.numpy())
        self._noise = StepWatch(level=LEVEL / 2)
        self._participation = ParticipationWatch(records, self._rate, level=_SHARE)
        self._books = Books()
        self.steps, self._longest, self._largest, self._most = 0, 0.0, 1.0, 0
        self._rows: Any = None
        optimizer._dp_sum_query = _WatchedQuery(query, self._watch_result)
        self._own = optimizer._compute_gradients
        optimizer._compute_gradients = self._compute_gradients

    def result(
        self,
        books: Any,
        *,
        delta: float | None = None,
        claim: Claim | float | None = None,
        confidence: float = 0.95,
    ) -> Audit:
        """Judge a claim by the observations of the run.

        Args:
            books: A ``DpEvent``, an accountant, or what :func:`read_books` returned.
            delta: δ of the claim; not needed with a ``Claim``.
            claim: The claimed ε, or a ``Claim``; by default the ε of the books at ``delta``.
            confidence: Confidence of the audit.
        """
        entries = _as_entries(books)
        given = as_claim(claim, delta=delta)
        at = Request(claim=given, delta=delta if given is None else given.delta).known_delta
        if given is None and (epsilon := _report_epsilon(entries, at)) is not None:
            given = Claim(epsilon, at, sampler="Poisson", accountant="PLD")
        request = Request(claim=given, delta=at, confidence=confidence)
        return make_framework_audit(
            "tf_privacy",
            ("tensorflow", "tensorflow_privacy"),
            "audited",
            subject=f"TensorFlow Privacy, {type(self._optimizer).__name__}, {self.steps:,} steps",
            findings=(self.find_conformance(entries),),
            caveats=(_NO_CANARIES,),
            supplied={"optimizer": self._optimizer, "books": books},
            settings={"records": self._records, "batch_size": round(self._rate * self._records)},
            claim=request.fill_claim(adjacency="add_remove", unit="record"),
            delta=at,
            confidence=confidence,
            seed=0,
        )

    def find_conformance(self, books: Any) -> ConformanceFinding:
        """Return whether the run so far did what was accounted for."""
        found = self._noise.finding(
            ClippingWatch(level=_SHARE, missing=_CLIPPING).check(),
            self._check_sums(),
            self._check_losses(),
            self._check_steps(),
            *self._participation.checks(),
            *self._books.check(_as_entries(books)),
        )
        return replace(found, steps=self.steps, level=LEVEL)

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> Any:
        """Count the records of a step, which has one loss per record."""
        tf = self._tf

        def count(values: Any) -> Any:
            self._rows = tf.shape(values)[0] if values.shape.rank else tf.constant(1)
            return values

        watched: Any = (lambda: count(loss())) if callable(loss) else count(loss)
        return self._own(watched, var_list, grad_loss=grad_loss, tape=tape)

    def _watch_result(self, own: Callable[..., Any], sums: Any, state: Any) -> Any:
        """Let the query add its noise, and read this noise from the graph."""
        tf = self._tf
        noised, after, event = own(sums, state)
        before = [tf.cast(part, tf.float32) for part in tf.nest.flatten(sums)]
        added = [
            tf.cast(part, tf.float32) - base
            for part, base in zip(tf.nest.flatten(noised), before, strict=True)
        ]
        rows = tf.constant(0) if self._rows is None else self._rows
        groups = self._optimizer._num_microbatches
        clipped = rows if groups is None else tf.constant(groups)
        tf.numpy_function(self._see, [rows, clipped, tf.linalg.global_norm(before), *added], [])
        return noised, after, event

    def _see(self, rows: Any, clipped: Any, norm: Any, *residual: Any) -> None:
        self.steps += 1
        self._most = max(self._most, int(rows))
        together = max(1.0, float(rows) / max(1, int(clipped)))  # records per clipped gradient
        self._largest = max(self._largest, together)
        # If a gradient contains several records, one of them may reverse it.
        noise = self.noise_multiplier / (2 if together > 1 else 1)
        self._books.take_step(noise, self._rate)
        self._longest = max(self._longest, float(norm) / (max(1, int(clipped)) * self._clip))
        if int(rows):
            self._participation.see_rows(0, int(rows))
        arrays = [np.asarray(part, np.float64) / self._stddev for part in residual]
        self._noise.see([(f"variable {place}", array) for place, array in enumerate(arrays)])

    def _check_sums(self) -> Check:
        return Check(
            name="norm of the sum",
            outcome=judge.judge_limit(self._longest if self.steps else None, limit=1 + _ROUNDING),
            expected="sums of clipped gradients, each of the clipping norm at most",
            seen=f"at most {self._longest:.4g} clipping norms per gradient",
            value=self._longest,
            steps=self.steps,
        )

    def _check_losses(self) -> Check:
        """Detect a loss that is one number per batch: then the gradient of the mean is clipped."""
        known = self.steps > 1 and self._rate * self._records >= _FEW and self._most > 0
        averaged = float(self._most == 1)
        return Check(
            name="losses of records",
            outcome=judge.judge_limit(averaged if known else None, limit=0),
            expected='one loss per record, as with reduction="none"',
            seen=f"at most {self._most} losses in a step",
            value=averaged,
            steps=self.steps,
        )

    def _check_steps(self) -> Check:
        taken = int(self._optimizer.iterations.numpy()) - self._before
        lost = max(0, taken - self.steps)
        seen = f"{taken} steps taken, noise in {self.steps}"
        if not self.steps:  # nothing is known of a graph that was compiled before
            seen += ": call audited() before the model is compiled"
        return Check(
            name="steps with noise",
            outcome=judge.judge_limit(lost if self.steps else None, limit=0),
            expected="every step of the optimiser adds noise",
            seen=seen,
            value=float(lost),
            steps=taken,
        )


class _WatchedQuery:
    """Wrap a query of TF-Privacy to record its noise; everything else is unchanged."""

    def __init__(self, own: Any, watch: Callable[..., Any]) -> None:
        self._own, self._watch = own, watch

    def get_noised_result(self, sample_state: Any, global_state: Any) -> Any:
        return self._watch(self._own.get_noised_result, sample_state, global_state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def _as_entries(books: Any) -> Sequence[Booked]:
    if is_event(books) or hasattr(books, "ledger"):
        return read_events(books)
    if not isinstance(books, (list, tuple)):
        raise InvalidArgument(
            f"Expected a DpEvent, an accountant or read_books(…), got {type(books).__name__}."
        )
    return [(float(noise), float(rate), int(count)) for noise, rate, count in books]


def _report_epsilon(books: Sequence[Booked], delta: float) -> float | None:
    """Return the ε of the books; None if it is unknown or infinite."""
    rates = {rate for _, rate, _ in books}
    if len(rates) != 1 or any(noise == 0 for noise, _, _ in books):
        return None
    noise = [(each, count) for each, _, count in books]
    return varied_poisson_epsilon(noise, sampling_rate=rates.pop(), delta=delta)
