"""Does DP-SGD keep its promise? Thousands of real trainings, with a canary and without it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Required,
    TypeAlias,
    TypedDict,
    Unpack,
    get_args,
)

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.accounting import family, pld
from epsilometer.audits.runs import Play, Program, RunsJob, Until, View, joined, stoppable
from epsilometer.audits.scores import audit_scores
from epsilometer.canaries.data import Record, mislabelled, records
from epsilometer.canaries.gradient import (
    IN_WORDS,
    Adversary,
    ManyCanaries,
    TargetCanary,
    dirac_direction,
    displaces,
    random_direction,
)
from epsilometer.claims import Adjacency, PrivacyClaim
from epsilometer.engine.engines import Engine, InProcess, Local
from epsilometer.engine.events import Listener
from epsilometer.engine.fingerprints import fingerprint, name_of
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import Done, Watch, run
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument
from epsilometer.mechanisms.samplers import Poisson, Sampler, Shuffle
from epsilometer.results import AuditGroup, AuditResult, Curve, EpsilonLowerBound
from epsilometer.types import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from epsilometer.training.ensemble import EnsembleDPSGD

Look: TypeAlias = Literal["updates", "model", "loss", "steps"]
Direction: TypeAlias = Literal["random", "dirac"]
_SHUFFLE = Shuffle()
_UNITS = 10_000  # at most: more would only be more files
_LEAST = 0.2  # noise with a curve; below it takes minutes and allows nearly everything
_FEWEST = 20  # canaries of one run: all heads or all tails come once in half a million
_DRAWN = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, 120)])


@dataclass(frozen=True, kw_only=True)
class DpsgdJob:
    """Blocks of runs with one canary and, as the last unit, one run with many.

    Attributes:
        runs: The many runs.
        one: The one run; None if there is none.
        adjacency: What training without the target is.
        unproven: Why a gradient canary's bounds are not valid; nothing where they are.
    """

    runs: RunsJob
    one: "OneRun | None"
    adjacency: Adjacency
    unproven: str = ""

    @property
    def plan(self) -> Plan:
        """Everything that determines the result."""
        return self.runs.plan

    def unit(self, index: int) -> Arrays:
        """Trains one block."""
        if index < self._many:
            return self.runs.unit(index)
        assert self.one is not None
        return self.one.play(self.plan.stream(index))

    def missing(self, index: int) -> Arrays:
        """Runs that failed, scored as if each had spoken against the attack."""
        if index < self._many:
            return self.runs.missing(index)
        assert self.one is not None
        return self.one.missing()

    def watch(self) -> Watch:
        """What watches any runs; it does not look at the one run."""
        return _Watching(self.runs.watch(), self._many)

    def result(self, units: Iterable[Arrays], done: Done) -> AuditResult | AuditGroup:
        """An audit for each view of the runs, and for the one run."""
        every = iter(units)
        programs, blocks = self.runs.programs, self.runs.blocks
        lost = {(n, view.name): np.zeros(2, np.int64) for n, view in self._looks}

        def counted() -> Iterator[Arrays]:
            for index, arrays in enumerate(islice(every, self._many)):
                if index not in done.failed:
                    for view in programs[index // blocks].looks:
                        lost[index // blocks, view.name] += _lost(arrays, view.name)
                yield arrays

        found = self.runs.result(counted(), done).audits
        audits = [
            _told(audit, lost[n, view.name], "runs" if view.bound is None else "steps")
            for audit, (n, view) in zip(found, self._looks, strict=True)
        ]
        audits = [replace(a, bound=replace(a.bound, adjacency=self.adjacency)) for a in audits]
        if self.unproven:
            audits = [
                audit if view.name == "loss" else _not_valid(audit, self.unproven)
                for audit, (_, view) in zip(audits, self._looks, strict=True)
            ]
        if self.one is not None:
            audits.append(self.one.audit(next(every), done, range(self._many, self.plan.units)))
        if len(audits) == 1:
            return audits[0]
        return AuditGroup(subject=self.runs.subject, results=tuple(audits))

    @property
    def _looks(self) -> list[tuple[int, View]]:
        """All views, each with the number of its program."""
        return [(n, view) for n, each in enumerate(self.runs.programs) for view in each.looks]

    @property
    def _many(self) -> int:
        return len(self.runs.programs) * self.runs.blocks


class _Watching:
    """Shows the many runs to their watch, and no more."""

    def __init__(self, watch: Watch, units: int) -> None:
        self._watch, self._left = watch, units

    def see(self, arrays: Arrays) -> None:
        if self._left:
            self._left -= 1
            self._watch.see(arrays)

    def epsilon(self) -> float | None:
        return self._watch.epsilon()

    def enough(self) -> str:
        return self._watch.enough()


def _lost(arrays: Arrays, view: str = "") -> IntArray:
    """How many scores diverged, with the target and without it."""
    inside, outside = arrays[f"{view}inside"], arrays[f"{view}outside"]
    return np.array([np.sum(inside == -np.inf), np.sum(outside == np.inf)])


def _not_valid(audit: AuditResult, why: str) -> AuditResult:
    return replace(
        audit, bound=replace(audit.bound, valid=False, caveats=(*audit.bound.caveats, why))
    )


def _unproven(target: TargetCanary) -> str:
    """Why what she inserts may be more than any pair of neighbours does."""
    by_place = target.adversary in ("partially_informed", "worst_case")
    if target.adjacency != "add_remove" or not target.displaces or not by_place:
        return ""
    return (
        "Not a valid bound: a record less moves others from batch to batch, and no pair of "
        f"datasets is known that does just what {target.adversary} inserts. Take "
        "adjacency='zero_out', or adversary='target_canary'."
    )


def _told(audit: AuditResult, lost: IntArray, what: str) -> AuditResult:
    """The audit, with what a reader must know of runs that diverged."""
    if not lost.any():
        return audit
    said = (
        f"Diverged: {lost[0]} of {audit.attack.n_in} {what} with the target, {lost[1]} of "
        f"{audit.attack.n_out} without it. They count against a refutation; with a smaller "
        "learning_rate there would be fewer."
    )
    return replace(audit, bound=replace(audit.bound, caveats=(*audit.bound.caveats, said)))


@dataclass(frozen=True, eq=False, kw_only=True)
class OneRun:
    """One training with many gradient canaries, each in by its own coin.

    Attributes:
        training: How it is trained; one run.
        features: Records.
        labels: Their labels.
        canaries: How many.
        claim: What was promised.
        delta: δ.
        confidence: One-sided.
        seed: Of the audit.
        subject: What was audited, in words.
    """

    training: "EnsembleDPSGD"
    features: FloatArray
    labels: IntArray
    canaries: int
    claim: PrivacyClaim | None
    delta: float
    confidence: float
    seed: int
    subject: str

    def play(self, rng: np.random.Generator) -> Arrays:
        """Trains, and scores every canary by all noisy sums along it."""
        included = rng.integers(2, size=self.canaries).astype(np.bool_)
        directions = np.stack([random_direction(self.training.size, rng=rng) for _ in included])
        planted = ManyCanaries(
            directions=directions, included=included[None], first=len(self.features)
        )
        trained = self.training.train(self.features, self.labels, rng=rng, canaries=planted)
        alone = TargetCanary(
            adversary="target_canary",
            direction=directions[0],
            batch_size=self.training.batch_size,
        )
        seen = np.moveaxis(trained.observations[0], -1, 0)
        scores = alone.log_ratio(
            np.nan_to_num(seen),
            sampler=self.training.sampler,
            noise_multiplier=self.training.noise_multiplier,
            rate=self.training.batch_size / (len(self.features) + self.canaries),
        )
        if trained.diverged[0] or np.isnan(seen).any():
            return self.missing(included)
        return {"inside": scores[included], "outside": scores[~included]}

    def missing(self, included: BoolArray | None = None) -> Arrays:
        """A run that proves nothing: every canary speaks against the attack."""
        inside = self.canaries // 2 if included is None else int(included.sum())
        return {
            "inside": np.full(inside, -np.inf),
            "outside": np.full(self.canaries - inside, np.inf),
        }

    def audit(self, arrays: Arrays, done: Done, units: range) -> AuditResult:
        """What it proves."""
        found = audit_scores(
            joined([arrays]),
            delta=self.delta,
            claim=self.claim,
            confidence=self.confidence,
            method="one_run",
            seed=self.seed,
            subject=f"{self.subject}, one run with {self.canaries} canaries, all updates seen",
            adversary="sees every noisy sum and chooses the canaries' gradients, not the batches",
            provenance=done.provenance(units),
        )
        found = replace(found, bound=replace(found.bound, adjacency="zero_out"))
        none = np.zeros(2, np.int64)
        return _told(found, none if units[0] in done.failed else _lost(arrays), "canaries")


class Knobs(TypedDict, total=False):
    """What :func:`audit_dpsgd` and :func:`dpsgd_job` take alike, as the former tells."""

    runs: Required[int]
    delta: Required[float]
    claim: float | PrivacyClaim | None
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
    claim: float | PrivacyClaim | None = None,
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
    _known_views(views, adversary, adjacency)
    _enough_canaries(canaries)
    if until is not None:
        _stops(views, canaries)
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
        bound = partial(
            family.poisson_bound,
            sampling_rate=rate,
            steps=steps * epochs,
            delta=delta,
            confidence=confidence,
            seed=seed,
        )
        programs.append(
            Program(
                play=game.play,
                subject=subject,
                claim=claimed,
                adversary=IN_WORDS[adversary],
                curves=_curves(noise, rate, steps * epochs, adjacency),
                views=tuple(
                    _view(look, subject, adversary, sampler, bound, steps * epochs)
                    for look in by_gradient
                ),
            )
        )
    if "loss" in views:
        seen = Record(features=features[0], label=int(labels[0]))
        record = canary or mislabelled(seen, classes=int(labels.max()) + 1, rng=rng)
        by_loss = RecordGame(
            training=many, features=features, labels=labels, record=record, adjacency=adjacency
        )
        programs.append(_loss_program(by_loss.play, subject, claimed))
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
    return DpsgdJob(runs=many_runs, one=one, adjacency=adjacency, unproven=_unproven(target))


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

            - ``claim``: the promised ε, or a ``PrivacyClaim``;
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


def _view(
    look: Look,
    subject: str,
    adversary: Adversary,
    sampler: Sampler,
    bound: Callable[..., EpsilonLowerBound],
    steps: int,
) -> View:
    """What is looked at, and by whom; ``bound`` is for single steps."""
    who = IN_WORDS[adversary]
    if look == "updates":
        return View(name=look, subject=f"{subject}, all updates seen", adversary=who)
    if look == "model":
        return View(
            name=look,
            subject=f"{subject}, final model only: along the canary gradient",
            adversary=who.replace("every noisy sum", "the final model"),
        )
    if not isinstance(sampler, Poisson):
        raise InvalidArgument(
            f"Expected sampler=Poisson() with the view 'steps', got {sampler!r}: its bound is that "
            "of Poisson sampling."
        )
    who = f"{who}; knows all other records and the batches"
    return View(
        name=look,
        subject=f"{subject}, single steps, as Poisson-sampled training of unknown noise",
        adversary=who,
        bound=partial(bound, per="step", adversary=who),
        each=2 * steps,  # the target may be in all runs
    )


def _loss_program(play: Play, subject: str, claim: PrivacyClaim | None) -> Program:
    subject = f"{subject}, final model only: loss on a data canary"
    who = "sees the final model, chooses one record"
    view = View(name="loss", subject=subject, adversary=who)
    return Program(play=play, subject=subject, claim=claim, adversary=who, views=(view,))


def _takes_words(module: Any) -> bool:
    """Whether features are the numbers of words."""
    return any(type(part).__name__ == "Embedding" for part in module.modules())


def _direction(kind: Direction, size: int, rng: np.random.Generator) -> FloatArray:
    if kind not in get_args(Direction):
        raise InvalidArgument(f"Expected direction 'random' or 'dirac', got {kind!r}.")
    return (random_direction if kind == "random" else dirac_direction)(size, rng=rng)


def _known_views(views: Sequence[Look], adversary: Adversary, adjacency: Adjacency) -> None:
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


def _stops(views: Sequence[Look], canaries: int) -> None:
    """Refuses what an audit that stops early could not tell."""
    if canaries or ("loss" in views and len(views) > 1):
        raise InvalidArgument(
            "Expected no canaries and no view 'loss' beside others with until=…, got them: they "
            "are runs of their own, which an audit that stops early might never reach."
        )
    if "steps" in views:
        raise InvalidArgument(
            "Expected no view 'steps' with until=…, got it: its bound does not hold for runs that "
            "were stopped by looking at them."
        )


def _enough_canaries(canaries: int) -> None:
    _validate.whole(0, canaries=canaries)
    if 0 < canaries < _FEWEST:
        raise InvalidArgument(
            f"Expected canaries=0, or {_FEWEST} or more, got {canaries}: each is in by a coin, "
            "and fewer prove nothing."
        )


def _claim(
    claim: float | PrivacyClaim | None, delta: float, adjacency: Adjacency
) -> PrivacyClaim | None:
    if isinstance(claim, PrivacyClaim) and claim.delta != delta:
        raise InvalidArgument(f"Expected delta to be the claim's {claim.delta!r}, got {delta!r}.")
    if claim is None or isinstance(claim, PrivacyClaim):
        return claim
    return PrivacyClaim(
        epsilon=claim, delta=delta, adjacency=adjacency, sampler="Poisson", accountant="PLD"
    )


def _noise(
    noise_multiplier: float | None,
    claim: PrivacyClaim | None,
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


@lru_cache(maxsize=8)
def _curves(noise: float, rate: float, steps: int, adjacency: Adjacency) -> tuple[Curve, ...]:
    """What accounting by Poisson sampling allows, where it has such a curve."""
    if adjacency == "replace" or noise < _LEAST:
        return ()
    fnr = pld.poisson_curve(
        _DRAWN, noise_multiplier=noise, sampling_rate=rate, steps=steps, adjacency=adjacency
    )
    return (
        Curve(
            name="PLD of Poisson sampling",
            fpr=tuple(float(f"{rate:.6g}") for rate in _DRAWN),
            fnr=tuple(float(f"{rate:.6g}") for rate in np.clip(fnr, 0, 1)),
        ),
    )


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
