"""What do predictions with uncertainty give away of a record, and in which form may they be shown?

Models are trained with the record and without it, again and again; what each says of the record is
kept. All forms of publishing, numbers of samples and units of rounding are judged on these same
predictions, so that none of them costs another training.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.attacks.disclosure import ReleaseForm
from epsilometer.attacks.predictions import OneByOne, SamplerFactory, Trainings
from epsilometer.audits.failures import Failures
from epsilometer.audits.posterior_job import PosteriorJob
from epsilometer.audits.posterior_runs import AllFailed, Asked
from epsilometer.canaries.data import Record, records
from epsilometer.core.claim import Claim
from epsilometer.engine.engines import Engine, InProcess, Local
from epsilometer.engine.events import Listener
from epsilometer.engine.fingerprints import fingerprint, name_of
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import run
from epsilometer.errors import InvalidArgument
from epsilometer.mechanisms.samplers import Poisson
from epsilometer.core.audit import PosteriorAudit
from epsilometer.types import FloatArray, IntArray

if TYPE_CHECKING:
    from epsilometer.training.ensemble import EnsembleDPSGD

FORMS = (
    ReleaseForm("samples"),
    ReleaseForm("quantiles"),
    ReleaseForm("mean+std"),
    ReleaseForm("mean+std", unit=0.01),
    ReleaseForm("mean"),
    ReleaseForm("vector"),
    ReleaseForm("label"),
)
SWEPT = (ReleaseForm("samples"), ReleaseForm("mean+std"), ReleaseForm("mean"))
COUNTS = (1, 2, 5, 10, 50, 100, 1000)
UNITS = (1e-4, 1e-3, 1e-2, 1e-1)
_FEWEST = 8  # runs: half of them are learned from


class Knobs(TypedDict, total=False):
    """What :func:`audit_posterior` and :func:`posterior_job` take alike, as the former tells."""

    record: Record | int
    runs: int
    delta: float
    samples: int
    forms: Sequence[ReleaseForm] | None
    swept: Sequence[ReleaseForm]
    counts: Sequence[int]
    units: Sequence[float]
    test: tuple[ArrayLike, ArrayLike] | None
    claim: float | Claim | None
    line: float | None
    advantage: float | None
    confidence: float
    at_once: int | None
    seed: int
    subject: str
    name: str
    parameters: Mapping[str, Any] | None
    command: str | None


def audit_posterior(
    sampler_factory: "SamplerFactory | EnsembleDPSGD",
    data: tuple[ArrayLike, ArrayLike],
    *,
    directory: Path | str | None = None,
    engine: Engine | None = None,
    listen: Sequence[Listener] = (),
    **how: Unpack[Knobs],
) -> PosteriorAudit:
    """Says what forms of publishing predictions with uncertainty leak, and which may be published.

    Guarantees: all forms' bounds together exceed the true ε in at most ``1 - confidence`` of
        audits; so do limits on advantages. The same arguments give the same result, byte for byte
        on the same kind of device, however the work was split, killed or resumed. A run that
        diverged, or raised, counts against a refutation and is told.
    Assumes: runs are independent; the record was not chosen by looking at them. That a form stays
        below the line says what these attacks on this record found, and proves no privacy.

    Args:
        sampler_factory: ``factory(features, labels, rng)`` trains once and returns a
            ``PosteriorSampler``, called run by run; with processes it must be something that can be
            pickled. Or an ``EnsembleDPSGD`` of a module with dropout: its runs are trained many at
            once and sampled by MC dropout. Without noise, and with a ``clip_norm`` that nothing
            reaches, that is plain SGD.
        data: Features ``(n, …)`` and classes ``(n,)``.
        directory: Where the run lives, so that the same call can finish it after a crash.
        engine: What executes units: processes by default, on a GPU this process.
        listen: Who is told what happens.
        **how: ``record``, ``runs`` and ``delta``, which are needed; and

            - ``record``: the ``Record`` that is added to the data or not; or the number of a row,
              which is left out or not;
            - ``runs``: with the record, and as many without it;
            - ``samples``: predictions of each model, T;
            - ``forms``: what might be published, finest first; seven by default;
            - ``swept``: forms that are shown with other ``counts`` of samples and ``units``;
            - ``test``: features and labels that utility is measured on;
            - ``claim``: the promised ε, or a ``Claim`` for a record more or less;
            - ``line``: the ε that no form may be proved to exceed; the claim's, or 1;
            - ``advantage``: what TPR − FPR of the attack may be; by default what (line, δ)-DP
              allows any attack;
            - ``confidence``: of all forms together;
            - ``at_once``: models trained at once, or calls of a factory that make a unit;
            - ``seed``, ``subject``.

    Example:
        >>> from epsilometer import InProcess
        >>> from epsilometer.attacks.posterior import FromCallable
        >>> from epsilometer.canaries.data import Record
        >>> def factory(features, labels, rng):  # remembers whether there are eleven records
        ...     p = (0.9 if len(labels) > 10 else 0.2) + rng.uniform(-0.05, 0.05)
        ...     return FromCallable(lambda x, samples, rng: np.tile([1 - p, p], (samples, 1)))
        >>> result = audit_posterior(
        ...     factory, (np.zeros((10, 1)), np.arange(10) % 2), record=Record([1.0], label=1),
        ...     runs=60, samples=2, delta=1e-5, claim=0.1, engine=InProcess(),
        ... )
        >>> result.verdict, result.plan.chosen
        ('refuted', None)
    """
    job = posterior_job(sampler_factory, data, **how)
    if engine is None:
        device = getattr(sampler_factory, "device", "cpu")
        engine = Local() if device == "cpu" else InProcess()
    where = None if directory is None else Path(directory)
    failures = Failures(InvalidArgument)
    try:
        result = run(job, where, engine=engine, listen=[*listen, failures])
    except AllFailed as error:
        raise AllFailed(f"{error} One said: {failures.reason}") from error
    assert isinstance(result, PosteriorAudit)  # as the job returns
    return result


def posterior_job(
    sampler_factory: "SamplerFactory | EnsembleDPSGD",
    data: tuple[ArrayLike, ArrayLike],
    *,
    record: Record | int,
    runs: int,
    delta: float,
    samples: int = 100,
    forms: Sequence[ReleaseForm] | None = None,
    swept: Sequence[ReleaseForm] = SWEPT,
    counts: Sequence[int] = COUNTS,
    units: Sequence[float] = UNITS,
    test: tuple[ArrayLike, ArrayLike] | None = None,
    claim: float | Claim | None = None,
    line: float | None = None,
    advantage: float | None = None,
    confidence: float = 0.95,
    at_once: int | None = None,
    seed: int = 0,
    subject: str = "",
    name: str = "audit_posterior",
    parameters: Mapping[str, Any] | None = None,
    command: str | None = None,
) -> PosteriorJob:
    """The work of :func:`audit_posterior`, for whoever runs it."""
    _validate.whole(_FEWEST, runs=runs)
    _validate.whole(1, samples=samples, at_once=1 if at_once is None else at_once)
    _validate.open_unit(delta=delta, confidence=confidence)
    features, labels, differing = _neighbours(data, record)
    claimed = _claim(claim, delta)
    most = line if line is not None else 1.0 if claimed is None else claimed.epsilon
    _validate.at_least(0, line=most)
    allowed = _allowed(most, delta) if advantage is None else advantage
    _validate.probability(advantage=allowed)
    asked = Asked.of(
        forms=FORMS if forms is None else tuple(forms),
        swept=tuple(swept),
        counts=tuple(counts),
        units=tuple(units),
        samples=samples,
        claim=claimed,
        delta=delta,
        confidence=confidence,
        line=most,
        advantage=allowed,
    )
    tested = None if test is None else records(*test)
    if tested is not None and tested[0].shape[1:] != features.shape[1:]:
        raise InvalidArgument(
            f"Expected test records of shape {features.shape[1:]}, as the data's, got "
            f"{tested[0].shape[1:]}."
        )
    trained: dict[str, Any]
    if hasattr(sampler_factory, "state_dict"):
        raise InvalidArgument(
            "Expected what trains a module, got the module itself. Give "
            "EnsembleDPSGD(module, loss, …), or a factory(features, labels, rng)."
        )
    if not callable(sampler_factory) and hasattr(sampler_factory, "train"):
        trainings, block, noise, trained = _ensemble(
            sampler_factory, features, labels, differing, runs=runs, at_once=at_once
        )
    else:
        if not callable(sampler_factory):
            raise InvalidArgument(
                "Expected a factory(features, labels, rng) that returns a PosteriorSampler, or an "
                f"EnsembleDPSGD, got {type(sampler_factory).__name__}."
            )
        trainings = OneByOne(
            factory=sampler_factory, features=features, labels=labels, record=differing
        )
        block, noise, trained = at_once or 1, None, {"factory": name_of(sampler_factory)}
    blocks = -(-runs // block)
    plan = Plan(
        audit=name,
        parameters={
            "runs": runs,
            "at_once": block,
            "samples": samples,
            "shown": [str(shown) for shown in asked.shown],
            "forms": len(asked.forms),
            "delta": delta,
            "confidence": confidence,
            "claim": None if claimed is None else asdict(claimed),
            "line": [most, allowed],
            "training": trained,
            **(parameters or {}),
        },
        units=2 * blocks,
        seed=seed,
        command=command or f"audit_posterior(sampler_factory, data, {runs=}, {delta=}, {seed=})",
        inputs={
            "data": fingerprint((features, labels)),
            "record": fingerprint((differing.features, differing.label)),
            **({} if tested is None else {"test": fingerprint(tested)}),
            **_trained_by(sampler_factory),
        },
    )
    return PosteriorJob(
        plan=plan,
        trainings=trainings,
        record=differing,
        runs=runs,
        block=block,
        asked=asked,
        test=tested,
        noise=noise,
        poisson=isinstance(getattr(sampler_factory, "sampler", None), Poisson),
        subject=subject or "predictions with uncertainty",
    )


def _neighbours(data: Any, record: Record | int) -> tuple[FloatArray, IntArray, Record]:
    """Records without the one that differs, and that one."""
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise InvalidArgument(f"Expected data=(features, labels), got {type(data).__name__}.")
    features, labels = records(*data)
    if isinstance(record, Record):
        if record.features.shape != features.shape[1:]:
            raise InvalidArgument(
                f"Expected a record of shape {features.shape[1:]}, as those of data, got "
                f"{record.features.shape}."
            )
        return features, labels, record
    _validate.whole(0, record=record)
    if record >= len(labels):
        raise InvalidArgument(f"Expected a row below {len(labels)}, got record={record}.")
    left = np.delete(features, record, axis=0), np.delete(labels, record)
    return *left, Record(features=features[record], label=int(labels[record]))


def _ensemble(
    training: Any,
    features: FloatArray,
    labels: IntArray,
    record: Record,
    *,
    runs: int,
    at_once: int | None,
) -> tuple[Trainings, int, tuple[float, float, int], dict[str, Any]]:
    """Many models at once: the record first, so that it can be left out."""
    with needs("torch", extra="torch"):
        from epsilometer.training import memory
        from epsilometer.training.game import same_steps
        from epsilometer.training.posterior import DropoutRuns
    every = np.concatenate([record.features[None].astype(features.dtype), features])
    known = np.concatenate([[record.label], labels])
    sampler, rate = training.sampler, training.batch_size / len(known)
    batches = sampler.batches(len(known), training.batch_size, rng=np.random.default_rng(0))
    steps = sum(1 for _ in batches)
    if isinstance(sampler, Poisson):
        rate = rate if sampler.rate is None else sampler.rate
        sampler = Poisson(rate=rate, steps=steps)  # the same with the record and without it
    one = replace(training, runs=1, sampler=sampler)
    DropoutRuns(training=one, features=every, labels=known).check()
    same_steps(one, len(known), "add_remove")
    together = min(runs, at_once or memory.at_once(one, every, known))
    trainings = DropoutRuns(training=replace(one, runs=together), features=every, labels=known)
    told = {
        part: getattr(training, part)
        for part in ("noise_multiplier", "clip_norm", "learning_rate", "batch_size", "epochs")
    }
    words = {
        "loss": name_of(training.loss),
        "sampler": repr(sampler),
        "optimizer": repr(training.optimizer),
        "initial": training.initial,
        "device": training.device.partition(":")[0],
    }
    noise = (training.noise_multiplier, rate, steps * training.epochs)
    return trainings, together, noise, {**told, **words}


def _trained_by(factory: Any) -> dict[str, str]:
    """The module that is trained; or a factory by its contents, where they can be compared."""
    module = getattr(factory, "module", None)
    if not callable(factory) and module is not None:
        return {"module": fingerprint((str(module), [*module.state_dict().values()]))}
    try:
        return {"factory": fingerprint(factory)}
    except InvalidArgument:
        return {}


def _claim(claim: float | Claim | None, delta: float) -> Claim | None:
    if claim is None:
        return None
    if not isinstance(claim, Claim):
        return Claim(epsilon=claim, delta=delta, adjacency="add_remove")
    if claim.delta != delta:
        raise InvalidArgument(f"Expected delta to be the claim's {claim.delta!r}, got {delta!r}.")
    if claim.adjacency not in ("unstated", "add_remove"):
        raise InvalidArgument(
            f"Expected a claim for a record more or less, got one for {claim.adjacency!r}: an ε "
            "for one adjacency says nothing about another."
        )
    return claim


def _allowed(epsilon: float, delta: float) -> float:
    """The most that TPR − FPR of any attack can be under (ε, δ)-DP (Kairouz et al. 2015)."""
    return min(1.0, math.tanh(epsilon / 2) + 2 * delta / (1 + math.exp(min(epsilon, 700.0))))
