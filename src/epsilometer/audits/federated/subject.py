"""Bound what federated training leaks of a client, by one run with canaries among the clients."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.audits.federated.clipping import Clipping, FixedClip
from epsilometer.audits.federated.hadamard import HadamardCanaries
from epsilometer.audits.federated.iterates import IteratesSeen
from epsilometer.audits.federated.participation import EveryEpoch, Participation
from epsilometer.audits.federated.run import measure_iterates
from epsilometer.audits.federated.sphere import Directions, SphereCanaries
from epsilometer.core.audit import Audit
from epsilometer.core.bound import EpsilonEstimate
from epsilometer.core.claim import Claim
from epsilometer.core.findings import EpsilonFinding
from epsilometer.core.settings import DATA
from epsilometer.engine.engines import InProcess, Local
from epsilometer.engine.fingerprints import fingerprint, name_of
from epsilometer.engine.plan import Plan
from epsilometer.engine.request import Request
from epsilometer.engine.run import Done, Unwatched, Watch
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument
from epsilometer.stats.sphere import cosine_quantile
from epsilometer.types import FloatArray

if TYPE_CHECKING:
    from epsilometer.audits.federated.simulation import FederatedTraining

Statistic: TypeAlias = Literal["moved", "model"]
Iterates: TypeAlias = Literal["updates", "steps"]
Family: TypeAlias = Literal["hadamard", "sphere"]


@dataclass(frozen=True, eq=False)
class Federated:
    """Federated averaging with user-level differential privacy, and canaries among the clients.

    It is trained once per number of repetitions. Each training is looked at by who sees the final
    model, and by who sees the model of every round.

    Guarantee: that of ``Cosines``, for all views together; the same settings give the same audit,
        byte for byte on the same kind of device, however often the work was killed.
    Assumption: canaries are far fewer than parameters; the server is honest.

    Attributes:
        module: The model of torch, and its first weights; it is copied.
        clients: (features, labels) of every client.
        loss: ``loss(outputs, labels)``, one number per example, or a loss of torch that can be
            told not to average; cross-entropy by default.
        rounds: T.
        cohort: Members of a round; on average, where that varies.
        noise_multiplier: z: noise of standard deviation z · S is added to a sum of updates of
            norm S at most.
        learning_rate: Of clients.
        participation: Who takes part when; ``federation.EveryEpoch()`` by default.
        noise: Whether noise is independent from round to round, or how not;
            ``federation.IndependentNoise()`` by default.
        clip: The clipping norm S, fixed or adaptive; ``federation.FixedClip(1.0)`` by default.
        batch_size: Of clients.
        epochs: Passes of a client over its records in one round.
        client_optimizer: What clients make their steps with; ``optimizers.SGD()`` by default.
        server_rate: Learning rate of the server; with 1 and SGD the mean update is the step.
        server_optimizer: What the server makes its steps with; ``optimizers.SGD()`` by default.
        divisor: By what the sum is divided; the mean number of members by default.
        at_once: Clients trained at once.
        device: ``"cpu"`` or ``"cuda"``.
        canaries: How many are planted; as many more are never sent, and only looked at.
        repetitions: In how many rounds each canary takes part: one training per number. None:
            canaries are drawn like clients, and among them.
        statistic: ``"moved"`` compares canaries with θ_T − θ_0, ``"model"`` with θ_T, as the paper
            does; initial weights are public in federated training.
        iterates: ``"updates"`` compares them with the noisy mean of each round, ``"steps"`` with
            how far the server went, which is what a deployment sees.
        family: ``"hadamard"`` (quick) or ``"sphere"`` (the paper's).
        test: (features, labels) on which final models are tried, to see that canaries do no harm.
        title: What was audited, in words.
        source: What brought module, clients and test, where a file names it.

    Example:
        >>> import numpy as np, epsilometer as em
        >>> from torch import nn
        >>> data = np.random.default_rng(0)
        >>> clients = [(data.normal(size=(9, 99)), np.arange(9) % 40) for _ in range(20)]
        >>> training = em.Federated(
        ...     nn.Linear(99, 40), clients, rounds=10, cohort=2, noise_multiplier=0.5,
        ...     learning_rate=0.1, canaries=300,
        ... )
        >>> audit = em.audit(training, 10.1, delta=1e-5, engine=em.InProcess())
        >>> audit.verdict, audit.claim.unit
        ('not refuted', 'client')
        >>> final, rounds = audit.view("final model"), audit.view("all rounds")
        >>> final.estimates[0].epsilon < rounds.estimates[0].epsilon
        True
        >>> round(final.estimates[-1].epsilon, 1)  # what accounting says
        10.0
    """

    module: Any = field(metadata=DATA)
    clients: Sequence[tuple[ArrayLike, ArrayLike]] = field(metadata=DATA)
    _: KW_ONLY
    loss: Any = field(default=None, metadata=DATA)
    rounds: int
    cohort: int
    noise_multiplier: float
    learning_rate: float
    participation: Participation = field(default_factory=EveryEpoch)
    noise: Any = None  # torch is imported with its types, and those of optimisers
    clip: Clipping = field(default_factory=FixedClip)
    batch_size: int = 20
    epochs: int = 1
    client_optimizer: Any = None
    server_rate: float = 1.0
    server_optimizer: Any = None
    divisor: float | None = None
    at_once: int = 32
    device: str = "cpu"
    canaries: int = 1000
    repetitions: tuple[int, ...] | None = (1,)
    statistic: Statistic = "moved"
    iterates: Iterates = "updates"
    family: Family = "hadamard"
    test: tuple[ArrayLike, ArrayLike] | None = field(default=None, metadata=DATA)
    title: str = "federated training"
    source: Any = field(default=None, metadata=DATA)

    def __post_init__(self) -> None:
        _validate.whole(1, rounds=self.rounds)
        _validate.whole(2, canaries=self.canaries)
        for name, kinds in (("statistic", Statistic), ("iterates", Iterates), ("family", Family)):
            if getattr(self, name) not in get_args(kinds):
                raise InvalidArgument(
                    f"Expected {name} to be one of {', '.join(get_args(kinds))}, "
                    f"got {getattr(self, name)!r}."
                )
        if self.repetitions is not None:
            object.__setattr__(self, "repetitions", tuple(self.repetitions))
            _check_repetitions(self.repetitions, self.rounds)

    def make_training(self) -> "FederatedTraining":
        """Return what trains by these settings."""
        with needs("torch", extra="torch"):
            from epsilometer.audits.federated.simulation import FederatedTraining
            from epsilometer.networks.ensemble import cross_entropy
        options = {
            option.name: getattr(self, option.name)
            for option in fields(FederatedTraining)
            if getattr(self, option.name) is not None  # or it has a default there too
        }
        return FederatedTraining(**{"loss": cross_entropy, **options})


SUBJECTS = (Federated,)


def run_audit(subject: Federated, request: Request) -> Audit:
    """Train with canaries among the clients, and judge the claim by what is seen of them."""
    usual = Local() if subject.device == "cpu" else InProcess()
    return request.execute(make_job(subject, request), usual=usual)


@dataclass(frozen=True, eq=False, kw_only=True)
class FederatedJob:
    """One training per number of repetitions.

    Attributes:
        plan: Everything that determines the result.
        subject: What is audited.
        training: What trains.
        claim: What was claimed, if anything.
        delta: δ of all bounds.
        confidence: One-sided, of all bounds together.
    """

    plan: Plan
    subject: Federated
    training: "FederatedTraining"
    claim: Claim | None
    delta: float
    confidence: float

    @property
    def repetitions(self) -> tuple[int | None, ...]:
        """Rounds of each planted canary, one entry per training; None: drawn like clients."""
        return (None,) if self.subject.repetitions is None else self.subject.repetitions

    def unit(self, index: int) -> Arrays:
        """Train once."""
        with needs("torch", extra="torch"):
            from epsilometer.audits.federated.tasks import accuracy
        subject, rng = self.subject, self.plan.stream(index)
        kind = HadamardCanaries if subject.family == "hadamard" else SphereCanaries
        family: Directions = kind(
            count=2 * subject.canaries, dimension=self.training.size, key=int(rng.integers(2**63))
        )
        ended = self.training.train(
            canaries=family,
            planted=subject.canaries,
            repetitions=self.repetitions[index],
            iterates=subject.iterates,
            rng=rng,
        )
        right = [] if subject.test is None else [accuracy(ended.module, subject.test)]
        return {
            "final": ended.moved if subject.statistic == "moved" else ended.model,
            "largest": np.concatenate([ended.observed, ended.unobserved]),
            "took": ended.participations,
            "lost": np.array([ended.lost.sum(), ended.members.sum()]),
            "accuracy": np.array(right, np.float64),
        }

    def missing(self, index: int) -> Arrays:
        """A failed run: planted canaries as if none had left a trace, the others as if all had."""
        canaries = self.subject.canaries
        low = -np.abs(_null_quantiles(canaries, self.training.size))
        return {
            "final": low,
            "largest": np.concatenate([low, -low]),
            "took": np.ones(canaries, np.int64),
            "lost": np.zeros(2, np.int64),
            "accuracy": np.zeros(0),
        }

    def watch(self) -> Watch:
        """Nothing can be said before a training is over."""
        return Unwatched()

    def result(self, units: Iterable[Arrays], done: Done) -> Audit:
        """Return the audit: per training, who sees the final model and who sees all rounds."""
        found: list[EpsilonFinding] = []
        share = 1 - (1 - self.confidence) / len(self.repetitions)
        for index, (arrays, often) in enumerate(zip(units, self.repetitions, strict=True)):
            found += measure_iterates(
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
                claim=self.claim,
                confidence=share if len(self.repetitions) > 1 else self.confidence,
                seed=self.plan.seed,
                subject=f"{self.subject.title}, {_word_repetitions(often)}",
                caveats=_word_run(arrays),
                estimates=self._account(often),
                **done.counts(range(index, index + 1)),
            )
        return Audit(
            subject=self.subject.title,
            claim=self.claim,
            findings=tuple(found),
            provenance=done.provenance,
        )

    def _account(self, often: int | None) -> list[EpsilonEstimate]:
        """Return what accounting says of a client who takes part as canaries do."""
        epsilon, how = self.training.epsilon(
            self.delta, canaries=self.subject.canaries, repetitions=often
        )
        if math.isinf(epsilon):
            return []
        return [
            EpsilonEstimate(
                epsilon=epsilon,
                low=epsilon,
                high=epsilon,
                delta=self.delta,
                confidence=1.0,
                method="accounting",
                direction="both",
                subject=f"a client who takes part as canaries do ({how})",
                role="reference",
                adjacency="zero_out",
            )
        ]


def make_job(subject: Federated, request: Request) -> FederatedJob:
    """Return the trainings of an audit, all settings checked."""
    request = replace(request, claim=request.fill_claim(adjacency="zero_out", unit="client"))
    delta = request.known_delta
    _validate.open_unit(delta=delta)
    if request.until is not None:
        raise InvalidArgument(
            "Expected no until=… with Federated, whose trainings are each seen as a whole, got "
            f"{request.until!r}."
        )
    training = subject.make_training()
    if 2 * subject.canaries > training.size:
        raise InvalidArgument(
            f"Expected at most {training.size // 2} canaries for {training.size} trainable "
            f"parameters, since as many more are only looked at, got {subject.canaries}. Give "
            "fewer, or a larger model."
        )
    often = (None,) if subject.repetitions is None else subject.repetitions
    training.check(planted=subject.canaries, repetitions=often[0])
    return FederatedJob(
        plan=request.make_plan(
            subject,
            units=len(often),
            inputs=_fingerprint_inputs(subject, training),
            loss=name_of(training.loss),
            # Their settings may be no JSON values, as an encoder of noise is none.
            participation=repr(training.participation),
            noise=repr(training.noise),
            clip=repr(training.clip),
        ),
        subject=subject,
        training=training,
        claim=request.claim,
        delta=delta,
        confidence=request.confidence,
    )


def _fingerprint_inputs(subject: Federated, training: "FederatedTraining") -> dict[str, str]:
    module = training.module
    return {
        **dict(() if subject.source is None else subject.source.fingerprints()),
        "clients": fingerprint(list(training.clients)),
        "module": fingerprint((str(module), [*module.state_dict().values()])),
        **({} if subject.test is None else {"test": fingerprint(subject.test)}),
    }


def _null_quantiles(count: int, dimension: int) -> FloatArray:
    """Return even quantiles of the law of canaries that took no part."""
    return cosine_quantile((np.arange(count) + 0.5) / count, dimension)


def _check_repetitions(often: tuple[int, ...], rounds: int) -> None:
    if not often:
        raise InvalidArgument("Expected at least one number of repetitions, got none.")
    for each in often:
        _validate.whole(1, repetitions=each)
        if each > rounds:
            raise InvalidArgument(
                f"Expected at most {rounds} repetitions, one per round, got {each}."
            )


def _word_run(arrays: Arrays) -> tuple[str, ...]:
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


def _word_repetitions(often: int | None) -> str:
    if often is None:
        return "canaries drawn like clients"
    return "each canary once" if often == 1 else f"each canary {often} times"
