"""Audit DP-SGD by thousands of real training runs, with a canary and without it."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.accounting import pld
from epsilometer.audits.dpsgd.canaries import (
    Adversary,
    TargetCanary,
    dirac_direction,
    random_direction,
)
from epsilometer.audits.dpsgd.game import GradientGame, OneRun, RecordGame
from epsilometer.audits.dpsgd.job import (
    DPSGDJob,
    Look,
    describe_gradient_runs,
    describe_loss_runs,
    explain_unproven,
)
from epsilometer.core.audit import Audit
from epsilometer.core.claim import Adjacency, Claim
from epsilometer.core.record import Record, check_records, mislabel
from epsilometer.core.settings import DATA
from epsilometer.engine.engines import InProcess, Local
from epsilometer.engine.fingerprints import fingerprint, name_of
from epsilometer.engine.request import Request
from epsilometer.engine.runs import Program, RunsJob, check_until, share_confidence
from epsilometer.engine.store import Store
from epsilometer.errors import InvalidArgument
from epsilometer.networks.trainer import Precision, Trainer, find_backend, name_backend
from epsilometer.sampling.samplers import (
    Sampler,
    Shuffle,
    check_same_steps,
    expected_rate,
    is_displacing,
    pin_sampler,
)
from epsilometer.types import FloatArray, IntArray

CanaryGradient: TypeAlias = Literal["random", "dirac"]
Initial: TypeAlias = Literal["fresh", "given"]
_FEWEST = 20  # canaries of one run: tosses are all equal once in half a million
_UNITS = 10_000  # at most: more would only be more files


@dataclass(frozen=True, eq=False)
class DPSGD:
    """Audit DP-SGD by training it thousands of times with and without a canary.

    Many runs are trained at once, by PyTorch or JAX, depending on the model.

    Guarantee: the same settings give the same audit, byte for byte on the same kind of device,
        however the work was split, killed or resumed. The bounds of all views together exceed the
        true ε in at most ``1 - confidence`` of audits. A run that diverged counts against a
        refutation, and the report says so.
    Assumption: the module processes every example of a batch independently. The view ``"steps"``
        assumes Gaussian noise and Poisson sampling.

    Attributes:
        module: A ``torch.nn.Module``, or a ``JaxModel`` of ``epsilometer.networks.jax_trainer``.
        data: Features ``(n, …)`` and classes ``(n,)``; record 0 is the target.
        runs: Largest number of runs with the canary, and of runs without it.
        learning_rate: Learning rate of the optimizer.
        batch_size: Records per batch; the expected number, where it varies.
        noise_multiplier: Standard deviation of the noise in units of the clipping norm; by default
            what a Poisson accountant requires to satisfy the claim.
        adversary: What the adversary may insert, see :mod:`~epsilometer.audits.dpsgd.canaries`.
        adjacency: ``"zero_out"``, ``"add_remove"`` or ``"replace"``.
        sampler: How batches are drawn; ``Shuffle()`` by default.
        clip_norm: Norm to which gradients are clipped.
        optimizer: Optimizer of :mod:`epsilometer.optimizers`; ``SGD()`` by default.
        epochs: Number of passes over all records.
        loss: ``loss(logits, labels)``; cross-entropy by default.
        direction: The canary gradient, ``"random"`` or ``"dirac"`` (one parameter).
        views: What adversaries see, each with its own finding. ``"updates"``: all noisy sums.
            ``"model"`` and ``"loss"``: the final model only. ``"steps"``: single steps, for a tight
            bound on Poisson-sampled training. Alone, at rates up to a half, it puts the target into
            all runs and compares with steps that did not draw it.
        canary: The record of the view ``"loss"``; record 0 mislabelled by default.
        canaries: Gradient canaries in one further run, each included by a fair coin toss.
        initial: Whether runs start from their own weights, ``"fresh"``, or from the module's,
            ``"given"``.
        device: Where models are trained: ``"cpu"`` or ``"cuda"``.
        precision: Precision of the factors of products in training: ``"float32"``, or for speed
            on a GPU ``"bfloat16"`` or ``"tf32"``; PyTorch only. Noise and the component along the
            canary gradient are not rounded.
        at_once: Models trained at once; by default the fastest number that fits. The random streams
            depend on it, so the provenance records it.
        title: What was audited, in words.
        source: File that ``module`` and ``data`` were read from, if any.

    Example:
        >>> import epsilometer as em
        >>> import numpy as np
        >>> from torch import nn
        >>> rng = np.random.default_rng(0)
        >>> data = rng.normal(size=(100, 5)).astype(np.float32), np.arange(100) % 2
        >>> training = em.DPSGD(
        ...     nn.Linear(5, 2), data, runs=1000, learning_rate=0.1, batch_size=1,
        ...     adversary="worst_case", views=("updates",),
        ... )
        >>> audit = em.audit(training, em.Claim(1.0, delta=1e-5), engine=em.InProcess())
        >>> audit.verdict  # batches are shuffled, the noise is that of Poisson sampling
        'refuted'
    """

    module: Any = field(metadata=DATA)
    data: tuple[ArrayLike, ArrayLike] = field(metadata=DATA)
    _: KW_ONLY
    runs: int
    learning_rate: float
    batch_size: int
    noise_multiplier: float | None = None
    adversary: Adversary = "partially_informed"
    adjacency: Adjacency = "zero_out"
    sampler: Sampler | None = None
    clip_norm: float = 1.0
    optimizer: Any = None
    epochs: int = 1
    loss: Any = None
    direction: CanaryGradient = "random"
    views: tuple[Look, ...] = ("updates", "model")
    canary: Record | None = field(default=None, metadata=DATA)
    canaries: int = 0
    initial: Initial = "fresh"
    device: str = "cpu"
    precision: Precision = "float32"
    at_once: int | None = None
    title: str = "DP-SGD"
    source: Any = field(default=None, metadata=DATA)

    def __post_init__(self) -> None:
        name_backend(self.module)
        if not isinstance(self.data, (tuple, list)) or len(self.data) != 2:
            raise InvalidArgument(
                "Expected data to be a pair of features and labels, got "
                f"{type(self.data).__name__}."
            )
        _validate.whole(2, runs=self.runs)
        _validate.whole(1, batch_size=self.batch_size, epochs=self.epochs)
        _validate.whole(1, at_once=1 if self.at_once is None else self.at_once)
        _check_views(self.views, self.adversary, self.adjacency)
        _check_canaries(self.canaries)
        if self.direction not in get_args(CanaryGradient):
            raise InvalidArgument(
                f"Expected direction 'random' or 'dirac', got {self.direction!r}."
            )
        object.__setattr__(self, "views", tuple(self.views))


SUBJECTS = (DPSGD,)


def run_audit(subject: DPSGD, request: Request) -> Audit:
    """Train with a canary and without it, and judge the claim by the bounds of all views."""
    job = make_job(subject, request)
    return request.execute(job, usual=Local() if subject.device == "cpu" else InProcess())


def make_job(subject: DPSGD, request: Request) -> DPSGDJob:
    """Return the job that executes an audit of DP-SGD."""
    claim = _fill_claim(subject, request)
    request = replace(request, claim=claim)  # stored in full, so that a replay uses it
    delta = request.known_delta
    _validate.open_unit(delta=delta)
    if request.until is not None:
        _check_views_stop(subject.views, subject.canaries)
    features, labels = _read_data(subject)
    training, rate = _make_training(subject, claim, features, labels)
    noise, steps = training.noise_multiplier, _count_steps(training, len(features))
    together = _count_at_once(subject, request.out, training, features, labels)
    block = together * max(1, -(-subject.runs // (together * _UNITS)))
    blocks = -(-subject.runs // block)
    check_until(request, also=(), blocks=blocks)
    rng = np.random.default_rng(np.random.SeedSequence(request.seed, spawn_key=(1,)))
    make = random_direction if subject.direction == "random" else dirac_direction
    target = TargetCanary(
        adversary=subject.adversary,
        direction=make(training.size, rng=rng),
        adjacency=subject.adjacency,
        batch_size=subject.batch_size,
        displaces=is_displacing(training.sampler),
    )
    many = training.with_runs(together)
    further = int(subject.canaries > 0)
    confidence = share_confidence(request.confidence, len(subject.views) + further)
    programs: list[Program] = []
    if by_gradient := tuple(view for view in subject.views if view != "loss"):
        game = GradientGame(
            training=many, features=features, labels=labels, canary=target, views=by_gradient
        )
        programs.append(
            describe_gradient_runs(
                game.play,
                by_gradient,
                subject=subject.title,
                adversary=subject.adversary,
                adjacency=subject.adjacency,
                sampler=training.sampler,
                noise_multiplier=noise,
                rate=rate,
                steps=steps,
                delta=delta,
                confidence=confidence,
                seed=request.seed,
            )
        )
    if "loss" in subject.views:
        seen = Record(features=features[0], label=int(labels[0]))
        record = subject.canary or mislabel(seen, classes=int(labels.max()) + 1, rng=rng)
        by_loss = RecordGame(
            training=many,
            features=features,
            labels=labels,
            record=record,
            adjacency=subject.adjacency,
        )
        programs.append(describe_loss_runs(by_loss.play, subject.title))
    one = None
    if subject.canaries:
        one = OneRun(
            training=training,
            features=features,
            labels=labels,
            canaries=subject.canaries,
            claim=claim,
            delta=delta,
            confidence=confidence,
            seed=request.seed,
            subject=subject.title,
        )
    plan = request.make_plan(
        replace(subject, at_once=together),  # the same streams on every machine
        units=blocks * len(programs) + further,
        inputs=_name_inputs(subject, features, labels),
        block=block,
        at_once=together,
        noise_multiplier=noise,
        rate=rate,
        steps=steps,
        loss=name_of(training.loss),
    )
    many_runs = RunsJob(
        plan=plan,
        subject=subject.title,
        claim=claim,
        programs=tuple(programs),
        runs=subject.runs,
        block=block,
        delta=delta,
        confidence=request.confidence,
        until=request.until,
        further=further,
    )
    return DPSGDJob(
        runs=many_runs,
        one=one,
        adjacency=subject.adjacency,
        records=len(features),
        unproven=explain_unproven(target),
    )


def _fill_claim(subject: DPSGD, request: Request) -> Claim | None:
    claim = request.fill_claim(
        adjacency=subject.adjacency, unit="record", sampler="Poisson", accountant="PLD"
    )
    if claim is not None and claim.adjacency != subject.adjacency:
        raise InvalidArgument(
            f"Expected a claim for adjacency={subject.adjacency!r}, which is audited, got one for "
            f"{claim.adjacency!r}: an ε for one says nothing about the other."
        )
    return claim


def _read_data(subject: DPSGD) -> tuple[FloatArray, IntArray]:
    features, labels = check_records(*subject.data)
    if find_backend(subject.module).takes_whole_numbers(subject.module):
        features = features.astype(np.int64)
    return features, labels


def _make_training(
    subject: DPSGD, claim: Claim | None, features: FloatArray, labels: IntArray
) -> tuple[Trainer, float]:
    """Return the training, and the rate at which its batches draw a record."""
    sampler = Shuffle() if subject.sampler is None else subject.sampler
    steps = _count_batches(sampler, len(features), subject.batch_size)
    rate = expected_rate(sampler, len(features), subject.batch_size)
    sampler = pin_sampler(sampler, len(features), subject.batch_size)  # the same without the target
    training = find_backend(subject.module).make_trainer(
        subject.module,
        subject.loss,
        runs=1,
        sampler=sampler,
        noise_multiplier=_derive_noise(subject, claim, rate=rate, steps=steps * subject.epochs),
        clip_norm=subject.clip_norm,
        learning_rate=subject.learning_rate,
        optimizer=subject.optimizer,
        batch_size=subject.batch_size,
        epochs=subject.epochs,
        initial=subject.initial,
        device=subject.device,
        precision=subject.precision,
    )
    if subject.adjacency == "add_remove":
        check_same_steps(training.sampler, batch_size=training.batch_size, records=len(features))
    training.check(features, labels)
    return training, rate


def _derive_noise(subject: DPSGD, claim: Claim | None, *, rate: float, steps: int) -> float:
    """Return the given noise multiplier, or the one that Poisson accounting requires."""
    if subject.noise_multiplier is not None:
        return subject.noise_multiplier
    if claim is None:
        raise InvalidArgument("Expected noise_multiplier, or a claim to derive it from, got none.")
    if subject.adjacency == "replace":
        raise InvalidArgument(
            "Expected noise_multiplier with adjacency='replace', got none: no accountant tells "
            "what a claim asks for where records are replaced."
        )
    return pld.poisson_noise(
        epsilon=claim.epsilon,
        delta=claim.delta,
        sampling_rate=rate,
        steps=steps,
        adjacency=subject.adjacency,
    )


def _count_batches(sampler: Sampler, count: int, batch_size: int) -> int:
    """Return the number of batches per epoch."""
    if count < batch_size:
        raise InvalidArgument(
            f"Expected at least a batch of {batch_size} records, got {count}. "
            "Give a smaller batch_size."
        )
    return sum(1 for _ in sampler.batches(count, batch_size, rng=np.random.default_rng(0)))


def _count_steps(training: Trainer, count: int) -> int:
    return training.epochs * _count_batches(training.sampler, count, training.batch_size)


def _count_at_once(
    subject: DPSGD,
    out: Path | None,
    training: Trainer,
    features: FloatArray,
    labels: IntArray,
) -> int:
    """Return how many models are trained at once: as given, as in the run so far, or as fit.

    Free memory varies, and another number would make another run.
    """
    if subject.at_once is not None:
        return min(subject.runs, subject.at_once)
    if out is not None and (out / "plan.json").exists():
        begun = Store.open(out).plan.parameters.get("follows", {}).get("at_once")
        if isinstance(begun, int):
            return min(subject.runs, begun)
    return min(subject.runs, training.count_at_once(features, labels))


def _name_inputs(subject: DPSGD, features: FloatArray, labels: IntArray) -> dict[str, str]:
    """Return the SHA-256 of all data, by name: a run is never continued with other data."""
    inputs = {
        "data": fingerprint((features, labels)),
        "module": fingerprint(find_backend(subject.module).list_weights(subject.module)),
    }
    if subject.canary is not None:
        inputs["canary"] = fingerprint((subject.canary.features, subject.canary.label))
    if subject.source is not None:
        inputs.update(subject.source.fingerprints())
    return inputs


def _check_views(views: Sequence[Look], adversary: Adversary, adjacency: Adjacency) -> None:
    """Refuse unknown views, and those without a bound for this adversary or adjacency."""
    unknown = [view for view in views if view not in get_args(Look)]
    if not views or unknown or len(set(views)) < len(views):
        raise InvalidArgument(
            f"Expected views of {', '.join(get_args(Look))}, each once, got {tuple(views)}."
        )
    if "steps" not in views:
        return
    if adversary != "target_canary":
        raise InvalidArgument(
            "Expected adversary='target_canary' with the view 'steps', where steps without the "
            f"target show nothing but noise, got {adversary!r}."
        )
    if adjacency == "replace":
        raise InvalidArgument(
            "Expected adjacency='zero_out' or 'add_remove' with the view 'steps', got 'replace': "
            "its bound is that of a target which is there or not."
        )


def _check_views_stop(views: Sequence[Look], canaries: int) -> None:
    """Refuse views that an audit that stops early might not reach, or could not bound."""
    if canaries or ("loss" in views and len(views) > 1):
        raise InvalidArgument(
            "Expected no canaries and no view 'loss' with others and until=…, got them: they "
            "need separate runs, which an audit that stops early might never reach."
        )
    if "steps" in views:
        raise InvalidArgument(
            "Expected no view 'steps' with until=…, got it: its bound does not hold for runs that "
            "were stopped by looking at them."
        )


def _check_canaries(canaries: int) -> None:
    """Refuse too few canaries for one run to prove anything."""
    _validate.whole(0, canaries=canaries)
    if 0 < canaries < _FEWEST:
        raise InvalidArgument(
            f"Expected canaries=0, or {_FEWEST} or more, got {canaries}: each is in by a coin, "
            "and fewer prove nothing."
        )
