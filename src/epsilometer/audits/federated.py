"""What does federated training leak of a client? One run with canaries among them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.attacks.iterates import IteratesSeen
from epsilometer.audits.federated_run import audit_iterates
from epsilometer.canaries.hadamard import HadamardCanaries
from epsilometer.canaries.sphere import Directions, SphereCanaries
from epsilometer.core.claim import Claim
from epsilometer.engine.engines import Engine, InProcess, Local
from epsilometer.engine.events import Listener
from epsilometer.engine.fingerprints import fingerprint, name_of
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import Done, Unwatched, Watch, run
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument
from epsilometer.core.audit import AuditGroup, AuditResult
from epsilometer.stats.sphere import cosine_quantile
from epsilometer.types import FloatArray

if TYPE_CHECKING:
    from epsilometer.training.federated import FederatedTraining

Statistic: TypeAlias = Literal["moved", "model"]
Iterates: TypeAlias = Literal["updates", "steps"]
Family: TypeAlias = Literal["hadamard", "sphere"]


@dataclass(frozen=True, eq=False, kw_only=True)
class FederatedJob:
    """One training for each number of repetitions.

    Attributes:
        plan: Everything that determines the result.
        training: How it is trained.
        canaries: How many are planted; as many more are only looked at.
        repetitions: Rounds of each planted canary, one entry a training; None: drawn like clients.
        delta: δ.
        claim: What was promised; None: what accounting says.
        statistic: What of the final model is looked at.
        iterates: What of every round is looked at.
        family: Kind of canaries.
        test: Records on which final models are tried.
        confidence: One-sided.
        subject: What was audited, in words.
    """

    plan: Plan
    training: "FederatedTraining"
    canaries: int
    repetitions: tuple[int | None, ...]
    delta: float
    claim: Claim | None
    statistic: Statistic
    iterates: Iterates
    family: Family
    test: tuple[Any, Any] | None
    confidence: float
    subject: str

    def unit(self, index: int) -> Arrays:
        """One training."""
        with needs("torch", extra="torch"):
            from epsilometer.training.tasks import accuracy
        rng = self.plan.stream(index)
        kind = HadamardCanaries if self.family == "hadamard" else SphereCanaries
        family: Directions = kind(
            count=2 * self.canaries, dimension=self.training.size, key=int(rng.integers(2**63))
        )
        ended = self.training.train(
            canaries=family,
            planted=self.canaries,
            repetitions=self.repetitions[index],
            iterates=self.iterates,
            rng=rng,
        )
        right = [] if self.test is None else [accuracy(ended.module, self.test)]
        return {
            "final": ended.moved if self.statistic == "moved" else ended.model,
            "largest": np.concatenate([ended.observed, ended.unobserved]),
            "took": ended.participations,
            "lost": np.array([ended.lost.sum(), ended.members.sum()]),
            "accuracy": np.array(right, np.float64),
        }

    def missing(self, index: int) -> Arrays:
        """A run that failed: planted canaries as if none had left a trace, the others as if all."""
        low = -np.abs(_null(self.canaries, self.training.size))
        return {
            "final": low,
            "largest": np.concatenate([low, -low]),
            "took": np.ones(self.canaries, np.int64),
            "lost": np.zeros(2, np.int64),
            "accuracy": np.zeros(0),
        }

    def watch(self) -> Watch:
        """Nothing can be said before a training is over."""
        return Unwatched()

    def result(self, units: Iterable[Arrays], done: Done) -> AuditGroup:
        """For each training: who sees the final model, and who sees all rounds."""
        audits: list[AuditResult] = []
        for index, (arrays, often) in enumerate(zip(units, self.repetitions, strict=True)):
            told = _told(arrays)
            group = audit_iterates(
                IteratesSeen(
                    final=arrays["final"],
                    largest=arrays["largest"],
                    took=arrays["took"],
                    rounds=self.training.rounds,
                    still=0,
                    lost=0,
                ),
                dimension=self.training.size,
                delta=self.delta,
                claim=self.claim or self._accounted(often),
                confidence=self.confidence,
                seed=self.plan.seed,
                subject=f"{self.subject}, {_often(often)}",
                told=told,
                provenance=done.provenance(range(index, index + 1)),
            )
            audits += group.results
        return AuditGroup(subject=self.subject, results=tuple(audits))

    def _accounted(self, often: int | None) -> Claim | None:
        """What accounting promises a client who takes part as canaries do."""
        epsilon, how = self.training.epsilon(self.delta, canaries=self.canaries, repetitions=often)
        if not self.training.noise_multiplier:
            return None
        return Claim(
            epsilon=epsilon,
            delta=self.delta,
            adjacency="zero_out",
            sampler=type(self.training.participation).__name__,
            accountant=how,
        )


def federated_job(
    training: "FederatedTraining",
    *,
    canaries: int = 1000,
    repetitions: Sequence[int] | None = (1,),
    delta: float,
    claim: float | Claim | None = None,
    statistic: Statistic = "moved",
    iterates: Iterates = "updates",
    family: Family = "hadamard",
    test: tuple[ArrayLike, ArrayLike] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    subject: str = "federated training",
    name: str = "audit_federated",
    parameters: Mapping[str, Any] | None = None,
    command: str | None = None,
) -> FederatedJob:
    """The work of :func:`audit_federated`, for whoever runs it."""
    _validate.whole(2, canaries=canaries)
    _validate.open_unit(delta=delta, confidence=confidence)
    _one_of(statistic=(statistic, Statistic), iterates=(iterates, Iterates))
    _one_of(family=(family, Family))
    often = _repetitions(repetitions, training.rounds)
    if 2 * canaries > training.size:
        raise InvalidArgument(
            f"Expected at most {training.size // 2} canaries for {training.size} trainable "
            f"parameters, since as many more are only looked at, got {canaries}. Give fewer, or a "
            "larger model."
        )
    training.check(planted=canaries, repetitions=often[0])
    promised = _claim(claim, delta)
    return FederatedJob(
        plan=Plan(
            audit=name,
            parameters={
                "canaries": canaries,
                "repetitions": list(often),
                "delta": delta,
                "claim": None if promised is None else asdict(promised),
                "statistic": statistic,
                "iterates": iterates,
                "family": family,
                "confidence": confidence,
                "training": _in_words(training),
                "subject": subject,
                **(parameters or {}),
            },
            units=len(often),
            seed=seed,
            command=command
            or f"audit_federated(training, {canaries=}, {repetitions=}, {delta=}, {seed=})",
            inputs={
                "clients": fingerprint(list(training.clients)),
                "module": fingerprint(
                    (str(training.module), [*training.module.state_dict().values()])
                ),
                **({} if test is None else {"test": fingerprint(test)}),
            },
        ),
        training=training,
        canaries=canaries,
        repetitions=often,
        delta=delta,
        claim=promised,
        statistic=statistic,
        iterates=iterates,
        family=family,
        test=test,
        confidence=confidence,
        subject=subject,
    )


def audit_federated(
    training: "FederatedTraining",
    *,
    canaries: int = 1000,
    repetitions: Sequence[int] | None = (1,),
    delta: float,
    claim: float | Claim | None = None,
    statistic: Statistic = "moved",
    iterates: Iterates = "updates",
    family: Family = "hadamard",
    test: tuple[ArrayLike, ArrayLike] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    subject: str = "federated training",
    directory: Path | str | None = None,
    engine: Engine | None = None,
    listen: Sequence[Listener] = (),
) -> AuditGroup:
    """Trains once, with canaries among the clients, and says what that leaks of a client.

    For each number of repetitions there are two results: of whoever sees the final model, and of
    whoever sees every round.

    Guarantees: those of ``audit_cosines``, for each result alone; the same arguments give the same
        result, byte for byte on the same kind of device, however often the work was killed.
    Assumes: canaries are far fewer than parameters.

    Args:
        training: A :class:`~epsilometer.training.federated.FederatedTraining`.
        canaries: How many are planted; as many more are never sent, and only looked at.
        repetitions: In how many rounds each canary takes part: a training for each. None: canaries
            are drawn like clients, and among them.
        delta: δ of the bounds; must be the claim's.
        claim: What was promised; by default what accounting says of a client who takes part as
            canaries do.
        statistic: ``"moved"`` compares canaries with θ_T − θ_0, ``"model"`` with θ_T, as the paper
            does; initial weights are public in federated training.
        iterates: ``"updates"`` compares them with the noisy mean of each round, ``"steps"`` with
            how far the server went, which is what a deployment sees.
        family: ``"hadamard"`` (quick) or ``"sphere"`` (the paper's).
        test: Records on which final models are tried, to see that canaries do no harm.
        confidence: One-sided confidence of the bounds.
        seed: From which all randomness follows.
        subject: What was audited, in words.
        directory: Where the run lives, so that the same call can finish it after a crash.
        engine: What executes trainings: processes by default, on a GPU this process.
        listen: Who is told what happens.

    Example:
        >>> from torch import nn
        >>> from epsilometer import InProcess
        >>> from epsilometer.training.ensemble import cross_entropy
        >>> from epsilometer.training.federated import FederatedTraining
        >>> data = np.random.default_rng(0)
        >>> clients = [(data.normal(size=(9, 99)), np.arange(9) % 40) for _ in range(20)]
        >>> training = FederatedTraining(
        ...     nn.Linear(99, 40), cross_entropy, clients=clients, rounds=10, cohort=2,
        ...     noise_multiplier=0.5, learning_rate=0.1,
        ... )
        >>> found = audit_federated(training, canaries=300, delta=1e-5, engine=InProcess())
        >>> final, every_round = found.results
        >>> final.verdict, every_round.verdict  # by accounting, ε is at most 9.6
        ('not refuted', 'not refuted')
        >>> final.estimates[0].epsilon < every_round.estimates[0].epsilon
        True
    """
    job = federated_job(
        training,
        canaries=canaries,
        repetitions=repetitions,
        delta=delta,
        claim=claim,
        statistic=statistic,
        iterates=iterates,
        family=family,
        test=test,
        confidence=confidence,
        seed=seed,
        subject=subject,
    )
    if engine is None:
        engine = Local() if training.device == "cpu" else InProcess()
    result = run(job, None if directory is None else Path(directory), engine=engine, listen=listen)
    assert isinstance(result, AuditGroup)  # as ``FederatedJob`` returns
    return result


def _null(count: int, dimension: int) -> FloatArray:
    """Even quantiles of the law of canaries that took no part."""
    return cosine_quantile((np.arange(count) + 0.5) / count, dimension)


def _claim(claim: float | Claim | None, delta: float) -> Claim | None:
    if claim is None or isinstance(claim, Claim):
        return claim
    return Claim(epsilon=claim, delta=delta, adjacency="zero_out")


def _one_of(**named: tuple[str, Any]) -> None:
    for name, (value, kinds) in named.items():
        if value not in get_args(kinds):
            raise InvalidArgument(
                f"Expected {name} to be one of {', '.join(get_args(kinds))}, got {value!r}."
            )


def _repetitions(given: Sequence[int] | None, rounds: int) -> tuple[int | None, ...]:
    if given is None:
        return (None,)
    often = tuple(given)
    if not often:
        raise InvalidArgument("Expected at least one number of repetitions, got none.")
    for each in often:
        _validate.whole(1, repetitions=each)
        if each > rounds:
            raise InvalidArgument(
                f"Expected at most {rounds} repetitions, one a round, got {each}."
            )
    return often


def _told(arrays: Arrays) -> tuple[str, ...]:
    said = [
        f"The final model is right on {right:.1%} of the test data." for right in arrays["accuracy"]
    ]
    lost, members = arrays["lost"].tolist()
    if lost:
        said.append(
            f"{lost} of {members} updates were not finite and were left out: a smaller "
            "learning_rate of clients would make them fewer."
        )
    return tuple(said)


def _often(often: int | None) -> str:
    if often is None:
        return "canaries drawn like clients"
    return "each canary once" if often == 1 else f"each canary {often} times"


def _in_words(training: "FederatedTraining") -> dict[str, Any]:
    """Everything about the training but its module and clients, as JSON values."""
    return {
        "loss": name_of(training.loss),
        "rounds": training.rounds,
        "cohort": training.cohort,
        "participation": repr(training.participation),
        "noise_multiplier": training.noise_multiplier,
        "noise": repr(training.noise),
        "clip": repr(training.clip),
        "learning_rate": training.learning_rate,
        "batch_size": training.batch_size,
        "epochs": training.epochs,
        "client_optimizer": repr(training.client_optimizer),
        "server_rate": training.server_rate,
        "server_optimizer": repr(training.server_optimizer),
        "divisor": training.divisor,
        "at_once": training.at_once,
        "device": training.device.partition(":")[0],
    }
