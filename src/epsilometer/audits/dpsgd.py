"""Does DP-SGD keep its promise? Thousands of real trainings, with a canary and without it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Required, TypeAlias, TypedDict, Unpack, get_args

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.accounting import pld
from epsilometer.audits.dpsgd_job import DpsgdJob, unproven
from epsilometer.audits.dpsgd_one_run import OneRun, enough_canaries
from epsilometer.audits.dpsgd_views import (
    Look,
    gradient_program,
    known_views,
    loss_program,
    views_that_stop,
)
from epsilometer.audits.runs import RunsJob, Until, stoppable
from epsilometer.canaries.data import Record, mislabelled, records
from epsilometer.canaries.gradient import (
    Adversary,
    TargetCanary,
    dirac_direction,
    displaces,
    random_direction,
)
from epsilometer.core.claim import Adjacency, Claim
from epsilometer.engine.engines import Engine, InProcess, Local
from epsilometer.engine.events import Listener
from epsilometer.engine.fingerprints import fingerprint, name_of
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import run
from epsilometer.errors import InvalidArgument
from epsilometer.mechanisms.samplers import Poisson, Sampler, Shuffle
from epsilometer.core.audit import AuditGroup, AuditResult
from epsilometer.types import FloatArray

if TYPE_CHECKING:
    from epsilometer.training.ensemble import EnsembleDPSGD

Direction: TypeAlias = Literal["random", "dirac"]
_SHUFFLE = Shuffle()
_UNITS = 10_000  # at most: more would only be more files


class Knobs(TypedDict, total=False):
    """What :func:`audit_dpsgd` and :func:`dpsgd_job` take alike, as the former tells."""

    runs: Required[int]
    delta: Required[float]
    claim: float | Claim | None
    adversary: Adversary
    adjacency: Adjacency
    sampler: Sampler
    noise_multiplier: float | None
    clip_norm: float
    learning_rate: Required[float]
    optimizer: Any
    batch_size: Required[int]
    epochs: int
    loss: Any
    direction: Direction
    views: Sequence[Look]
    canary: Record | None
    canaries: int
    initial: Literal["fresh", "given"]
    device: str
    at_once: int | None
    confidence: float
    until: Until | None
    seed: int
    subject: str
    name: str
    parameters: Mapping[str, Any] | None
    command: str | None


def dpsgd_job(
    module: Any,
    data: tuple[ArrayLike, ArrayLike],
    *,
    runs: int,
    delta: float,
    claim: float | Claim | None = None,
    adversary: Adversary = "partially_informed",
    adjacency: Adjacency = "zero_out",
    sampler: Sampler = _SHUFFLE,
    noise_multiplier: float | None = None,
    clip_norm: float = 1.0,
    learning_rate: float,
    optimizer: Any = None,
    batch_size: int,
    epochs: int = 1,
    loss: Any = None,
    direction: Direction = "random",
    views: Sequence[Look] = ("updates", "model"),
    canary: Record | None = None,
    canaries: int = 0,
    initial: Literal["fresh", "given"] = "fresh",
    device: str = "cpu",
    at_once: int | None = None,
    confidence: float = 0.95,
    until: Until | None = None,
    seed: int = 0,
    subject: str = "DP-SGD",
    name: str = "audit_dpsgd",
    parameters: Mapping[str, Any] | None = None,
    command: str | None = None,
) -> DpsgdJob:
    """The work of :func:`audit_dpsgd`, for whoever runs it."""
    with needs("torch", extra="torch"):
        from epsilometer.training import memory
        from epsilometer.training.ensemble import EnsembleDPSGD, cross_entropy
        from epsilometer.training.game import GradientGame, RecordGame, same_steps
        from epsilometer.training.optimizers import SGD
    _validate.whole(2, runs=runs)
    _validate.whole(1, at_once=1 if at_once is None else at_once)
    _validate.open_unit(delta=delta, confidence=confidence)
    known_views(views, adversary, adjacency)
    enough_canaries(canaries)
    if until is not None:
        views_that_stop(views, canaries)
    features, labels = records(*data)
    if _takes_words(module):
        features = features.astype(np.int64)
    claimed = _claim(claim, delta, adjacency)
    steps = _steps(sampler, len(features), batch_size)
    rate = batch_size / len(features)
    if isinstance(sampler, Poisson):
        rate = rate if sampler.rate is None else sampler.rate
        sampler = Poisson(rate=rate, steps=steps)  # the same with the target and without it
    noise = _noise(noise_multiplier, claimed, adjacency, rate=rate, steps=steps * epochs)
    training = EnsembleDPSGD(
        module,
        cross_entropy if loss is None else loss,
        runs=1,
        sampler=sampler,
        noise_multiplier=noise,
        clip_norm=clip_norm,
        learning_rate=learning_rate,
        optimizer=SGD() if optimizer is None else optimizer,
        batch_size=batch_size,
        epochs=epochs,
        initial=initial,
        device=device,
    )
    same_steps(training, len(features), adjacency)
    training.check(features, labels)
    together = min(runs, at_once or memory.at_once(training, features, labels))
    block = together * max(1, -(-runs // (together * _UNITS)))
    blocks = -(-runs // block)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    target = TargetCanary(
        adversary=adversary,
        direction=_direction(direction, training.size, rng),
        adjacency=adjacency,
        batch_size=batch_size,
        displaces=displaces(sampler),
    )
    many = replace(training, runs=together)
    programs = []
    if by_gradient := tuple(view for view in views if view != "loss"):
        game = GradientGame(
            training=many, features=features, labels=labels, canary=target, views=by_gradient
        )
        programs.append(
            gradient_program(
                game.play,
                by_gradient,
                subject=subject,
                claim=claimed,
                adversary=adversary,
                adjacency=adjacency,
                sampler=sampler,
                noise_multiplier=noise,
                rate=rate,
                steps=steps * epochs,
                delta=delta,
                confidence=confidence,
                seed=seed,
            )
        )
    if "loss" in views:
        seen = Record(features=features[0], label=int(labels[0]))
        record = canary or mislabelled(seen, classes=int(labels.max()) + 1, rng=rng)
        by_loss = RecordGame(
            training=many, features=features, labels=labels, record=record, adjacency=adjacency
        )
        programs.append(loss_program(by_loss.play, subject, claimed))
    stoppable(until, claim=claimed, also=(), blocks=blocks)
    one = None
    if canaries:
        one = OneRun(
            training=training,
            features=features,
            labels=labels,
            canaries=canaries,
            claim=claimed,
            delta=delta,
            confidence=confidence,
            seed=seed,
            subject=subject,
        )
    plan = Plan(
        audit=name,
        parameters={
            "runs": runs,
            "block": block,
            "at_once": together,
            "delta": delta,
            "confidence": confidence,
            "claim": None if claimed is None else asdict(claimed),
            "adversary": adversary,
            "adjacency": adjacency,
            "direction": direction,
            "views": list(views),
            "canaries": canaries,
            "training": _in_words(training),
            "until": repr(until),
            "subject": subject,
            **(parameters or {}),
        },
        units=blocks * len(programs) + (one is not None),
        seed=seed,
        command=command or f"audit_dpsgd(module, data, {runs=}, {delta=}, {adversary=}, {seed=})",
        inputs={
            "data": fingerprint((features, labels)),
            "module": fingerprint((str(module), [*module.state_dict().values()])),
            **({} if canary is None else {"canary": fingerprint((canary.features, canary.label))}),
        },
    )
    many_runs = RunsJob(
        plan=plan,
        subject=subject,
        programs=tuple(programs),
        runs=runs,
        block=block,
        delta=delta,
        confidence=confidence,
        until=until,
    )
    return DpsgdJob(runs=many_runs, one=one, adjacency=adjacency, unproven=unproven(target))


def audit_dpsgd(
    module: Any,
    data: tuple[ArrayLike, ArrayLike],
    *,
    directory: Path | str | None = None,
    engine: Engine | None = None,
    listen: Sequence[Listener] = (),
    **how: Unpack[Knobs],
) -> AuditResult | AuditGroup:
    """Trains with a canary and without it, thousands of times, and judges the claim by that.

    All runs are trained many at once, by :class:`~epsilometer.training.ensemble.EnsembleDPSGD`.

    Guarantees: the same arguments give the same result, byte for byte on the same kind of device,
        however the work was split, killed or resumed; bounds that exceed the true ε in at most
        ``1 - confidence`` of audits, each alone; a run that diverged counts against a refutation
        and is told.
    Assumes: the module treats the examples of a batch one by one. The view ``"steps"`` assumes
        Gaussian noise and Poisson sampling.

    Args:
        module: A ``torch.nn.Module``.
        data: Features ``(n, …)`` and classes ``(n,)``; record 0 is the target.
        directory: Where the run lives, so that the same call can finish it after a crash.
        engine: What executes units: processes by default, on a GPU this process.
        listen: Who is told what happens.
        **how: ``runs`` of either kind and ``delta``, which are needed, as are ``learning_rate`` and
            ``batch_size``; and

            - ``claim``: the promised ε, or a ``Claim``;
            - ``adversary``: what she may insert, as :mod:`~epsilometer.canaries.gradient` tells;
            - ``adjacency``: ``"zero_out"``, ``"add_remove"`` or ``"replace"``;
            - ``sampler``: how batches are drawn; ``Shuffle()`` by default;
            - ``noise_multiplier``: by default what accounting by Poisson sampling asks for;
            - ``clip_norm``, ``epochs``, ``optimizer``, ``loss`` (cross-entropy), ``initial``,
              ``device``: as of ``EnsembleDPSGD``;
            - ``direction``: the canary gradient, ``"random"`` or ``"dirac"`` (one parameter);
            - ``views``: who sees what, each a result of its own: ``"updates"`` all noisy sums,
              ``"model"`` and ``"loss"`` the final model only, ``"steps"`` single steps, for a tight
              bound on Poisson-sampled training (alone, at rates up to a half, the target is in all
              runs: steps that did not draw it are enough to compare with);
            - ``canary``: the record of the view ``"loss"``; record 0 mislabelled by default;
            - ``canaries``: gradient canaries in one further run, each in by its own coin;
            - ``at_once``: models trained at once; as many as fit and are quickest by default;
            - ``confidence``, ``until``, ``seed``, ``subject``: as of ``audit_runs``.

    Example:
        >>> import numpy as np
        >>> from torch import nn
        >>> from epsilometer import InProcess
        >>> rng = np.random.default_rng(0)
        >>> data = rng.normal(size=(100, 5)).astype(np.float32), np.arange(100) % 2
        >>> result = audit_dpsgd(
        ...     nn.Linear(5, 2), data, runs=1000, delta=1e-5, claim=1.0, adversary="worst_case",
        ...     learning_rate=0.1, batch_size=1, views=("updates",), engine=InProcess(),
        ... )
        >>> result.verdict  # batches are shuffled, the noise is that of Poisson sampling
        'refuted'
    """
    job = dpsgd_job(module, data, **how)
    if engine is None:
        engine = Local() if how.get("device", "cpu") == "cpu" else InProcess()
    where = None if directory is None else Path(directory)
    result = run(job, where, engine=engine, listen=listen)
    assert isinstance(result, (AuditResult, AuditGroup))  # as the job returns
    return result


def _takes_words(module: Any) -> bool:
    """Whether features are the numbers of words."""
    return any(type(part).__name__ == "Embedding" for part in module.modules())


def _direction(kind: Direction, size: int, rng: np.random.Generator) -> FloatArray:
    if kind not in get_args(Direction):
        raise InvalidArgument(f"Expected direction 'random' or 'dirac', got {kind!r}.")
    return (random_direction if kind == "random" else dirac_direction)(size, rng=rng)


def _claim(
    claim: float | Claim | None, delta: float, adjacency: Adjacency
) -> Claim | None:
    if isinstance(claim, Claim) and claim.delta != delta:
        raise InvalidArgument(f"Expected delta to be the claim's {claim.delta!r}, got {delta!r}.")
    if claim is None or isinstance(claim, Claim):
        return claim
    return Claim(
        epsilon=claim, delta=delta, adjacency=adjacency, sampler="Poisson", accountant="PLD"
    )


def _noise(
    noise_multiplier: float | None,
    claim: Claim | None,
    adjacency: Adjacency,
    *,
    rate: float,
    steps: int,
) -> float:
    """As given, or what accounting by Poisson sampling asks for."""
    if noise_multiplier is not None:
        return noise_multiplier
    if claim is None:
        raise InvalidArgument("Expected noise_multiplier, or a claim to derive it from, got none.")
    if adjacency == "replace":
        raise InvalidArgument(
            "Expected noise_multiplier with adjacency='replace', got none: no accountant tells "
            "what a claim asks for where records are replaced."
        )
    return pld.poisson_noise(
        epsilon=claim.epsilon,
        delta=claim.delta,
        sampling_rate=rate,
        steps=steps,
        adjacency=adjacency,
    )


def _steps(sampler: Sampler, count: int, batch_size: int) -> int:
    _validate.whole(1, batch_size=batch_size)
    if count < batch_size:
        raise InvalidArgument(
            f"Expected at least a batch of {batch_size} records, got {count}. "
            "Give a smaller batch_size."
        )
    return sum(1 for _ in sampler.batches(count, batch_size, rng=np.random.default_rng(0)))


def _in_words(training: "EnsembleDPSGD") -> dict[str, Any]:
    """Everything about the training but its module and loss, as JSON values."""
    return {
        "loss": name_of(training.loss),
        "sampler": repr(training.sampler),
        "noise_multiplier": training.noise_multiplier,
        "clip_norm": training.clip_norm,
        "learning_rate": training.learning_rate,
        "optimizer": repr(training.optimizer),
        "batch_size": training.batch_size,
        "epochs": training.epochs,
        "initial": training.initial,
        "device": training.device.partition(":")[0],
    }
