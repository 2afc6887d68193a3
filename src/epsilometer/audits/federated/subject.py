"""Bound what federated training leaks about a client, by one run with canaries among clients."""

import dataclasses
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.audits.federated.cosine_audit import (
    Cosines,
    Noise,
    make_reference,
    measure_cosines,
)
from epsilometer.audits.federated.directions import Family, make_directions
from epsilometer.audits.federated.iterates import IterateSummary
from epsilometer.audits.federated.simulation import FederatedTraining
from epsilometer.core.audit import Audit
from epsilometer.core.bound import EpsilonEstimate
from epsilometer.core.claim import warn_of_delta
from epsilometer.core.findings import EpsilonFinding
from epsilometer.core.settings import DATA
from epsilometer.engine.engines import InProcess, Local
from epsilometer.engine.fingerprints import fingerprint, name_of
from epsilometer.engine.plan import Plan
from epsilometer.engine.request import Request
from epsilometer.engine.run import Done, Unwatched, Watch
from epsilometer.engine.shards import Arrays
from epsilometer.errors import EpsilometerWarning, InvalidArgument
from epsilometer.stats.sphere import cosine_quantile
from epsilometer.types import FloatArray

Statistic: TypeAlias = Literal["moved", "model"]
Iterates: TypeAlias = Literal["updates", "steps"]
Knowledge: TypeAlias = Literal["hidden", "known", "unseen"]
_CHOICES = {"statistic": Statistic, "iterates": Iterates, "family": Family}
_KNOWS = {"known": ", and knows who took part", "hidden": "", "unseen": ""}


@dataclass(frozen=True, eq=False)
class Federated(FederatedTraining):
    """Audit federated averaging with user-level differential privacy by canaries among the clients.

    It is trained once per number of repetitions. One adversary sees the final model of a training,
    another the model of every round.

    Guarantee: that of ``Cosines``, for all views together; the same settings give the same audit,
        byte for byte on the same kind of device, however often the work was killed.
    Assumption: canaries are far fewer than parameters; the server is honest.

    Attributes:
        module: The torch model with its initial weights; it is copied.
        clients: (features, labels) of every client.
        loss: ``loss(outputs, labels)``, one number per example, or a loss of torch that has a
            ``reduction``; cross-entropy by default.
        rounds: T.
        cohort: Clients per round; on average, if that varies.
        noise_multiplier: z: noise of standard deviation z · S is added to a sum of updates whose
            norms are at most S.
        learning_rate: Learning rate of clients.
        participation: Who takes part when; ``federation.EveryEpoch()`` by default.
        noise: How the noise of different rounds is correlated; ``federation.IndependentNoise()`` by
            default.
        clip: The clipping norm S, fixed or adaptive; ``federation.FixedClip(1.0)`` by default.
        batch_size: Batch size of the clients.
        epochs: Passes of a client over its records in one round.
        client_optimizer: Optimizer of the clients; ``optimizers.SGD()`` by default.
        server_rate: Learning rate of the server; with 1 and SGD the mean update is the step.
        server_optimizer: Optimizer of the server; ``optimizers.SGD()`` by default.
        divisor: Number by which the sum is divided; by default the mean number of clients per
            round.
        at_once: Clients trained at once.
        device: ``"cpu"`` or ``"cuda"``.
        canaries: Number of planted canaries; as many more are never sent, and only observed.
        repetitions: Numbers of rounds in which each canary takes part: one training for each. None:
            canaries are drawn like clients, and among them.
        statistic: ``"moved"`` compares canaries with θ_T − θ_0, ``"model"`` with θ_T, as the paper
            does; initial weights are public in federated training.
        iterates: ``"updates"`` compares them with the noisy mean of each round, ``"steps"`` with
            the server's steps, as observed in a deployment.
        family: ``"hadamard"`` (quick) or ``"sphere"`` (the paper's).
        test: (features, labels) for testing final models, to show that canaries do not harm
            accuracy.
        title: What was audited, in words.
        source: Task that module, clients and test were read from, if any.

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

    clients: Sequence[tuple[ArrayLike, ArrayLike]] = field(metadata=DATA, kw_only=False)
    loss: Any = field(default=None, metadata=DATA, kw_only=True)
    canaries: int = field(default=1000, kw_only=True)
    repetitions: tuple[int, ...] | None = field(default=(1,), kw_only=True)
    statistic: Statistic = field(default="moved", kw_only=True)
    iterates: Iterates = field(default="updates", kw_only=True)
    family: Family = field(default="hadamard", kw_only=True)
    test: tuple[ArrayLike, ArrayLike] | None = field(default=None, metadata=DATA, kw_only=True)
    title: str = field(default="federated training", kw_only=True)
    source: Any = field(default=None, metadata=DATA, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.whole(2, canaries=self.canaries)
        for name, kinds in _CHOICES.items():
            if getattr(self, name) not in get_args(kinds):
                raise InvalidArgument(
                    f"Expected {name} to be one of {', '.join(get_args(kinds))}, "
                    f"got {getattr(self, name)!r}."
                )
        if self.repetitions is None:
            return
        object.__setattr__(self, "repetitions", tuple(self.repetitions))
        if not self.repetitions:
            raise InvalidArgument("Expected at least one number of repetitions, got none.")
        for often in self.repetitions:
            _validate.whole(1, repetitions=often)
            if often > self.rounds:
                raise InvalidArgument(
                    f"Expected at most {self.rounds} repetitions, one per round, got {often}."
                )


SUBJECTS = (Federated,)


def run_audit(subject: Federated, request: Request) -> Audit:
    """Train with canaries among the clients, and judge the claim by their cosines."""
    usual = Local() if subject.device == "cpu" else InProcess()
    return request.execute(make_job(subject, request), usual=usual)


@dataclass(frozen=True, eq=False, kw_only=True)
class FederatedJob:
    """Execute one training per number of repetitions.

    Attributes:
        plan: Everything that determines the result.
        subject: The audited settings, with defaults filled in.
        request: Claim, δ, seed, and confidence of all bounds together.
    """

    plan: Plan
    subject: Federated
    request: Request

    @property
    def repetitions(self) -> tuple[int | None, ...]:
        """Rounds of each planted canary, one entry per training; None if drawn like clients."""
        return (None,) if self.subject.repetitions is None else self.subject.repetitions

    def unit(self, index: int) -> Arrays:
        """Train once."""
        with needs("torch", extra="torch"):
            from epsilometer.audits.federated.server import measure_accuracy
        subject, rng = self.subject, self.plan.stream(index)
        run = subject.train(
            canaries=make_directions(
                subject.family,
                count=2 * subject.canaries,
                dimension=subject.size,
                key=int(rng.integers(2**63)),
            ),
            planted=subject.canaries,
            repetitions=self.repetitions[index],
            iterates=subject.iterates,
            rng=rng,
        )
        right = [] if subject.test is None else [measure_accuracy(run.module, subject.test)]
        return {
            "final": run.moved if subject.statistic == "moved" else run.model,
            "largest": np.concatenate([run.observed, run.unobserved]),
            "matched": run.matched,
            "took": run.participations,
            "lost": np.array([run.lost.sum(), run.members.sum()]),
            "accuracy": np.array(right, np.float64),
        }

    def missing(self, index: int) -> Arrays:
        """Score a failed run against the attack: only unplanted canaries left a trace."""
        canaries = self.subject.canaries
        # Evenly spaced quantiles of the distribution for canaries that took no part.
        even = cosine_quantile((np.arange(canaries) + 0.5) / canaries, self.subject.size)
        low: FloatArray = -np.abs(even)
        return {
            "final": low,
            "largest": np.concatenate([low, -low]),
            "matched": low,
            "took": np.ones(canaries, np.int64),
            "lost": np.zeros(2, np.int64),
            "accuracy": np.zeros(0),
        }

    def watch(self) -> Watch:
        """Return an empty watch: there is no result before a training is over."""
        return Unwatched()

    def result(self, units: Iterable[Arrays], done: Done) -> Audit:
        """Return the audit: findings for the final model and for all rounds of each training."""
        findings: list[EpsilonFinding] = []
        request = self.request
        if len(self.repetitions) > 1:  # all bounds together keep the confidence
            share = 1 - (1 - request.confidence) / len(self.repetitions)
            request = dataclasses.replace(request, confidence=share)
        for index, (arrays, often) in enumerate(zip(units, self.repetitions, strict=True)):
            findings += measure_iterates(
                IterateSummary(
                    final=arrays["final"],
                    largest=arrays["largest"],
                    took=arrays["took"],
                    rounds=self.subject.rounds,
                    matched=arrays["matched"],
                    orthonormal=self.subject.family == "hadamard",
                ),
                request,
                dimension=self.subject.size,
                participation="hidden" if often is None else "known",
                subject=f"{self.subject.title}, {_word_repetitions(often)}",
                caveats=_word_run(arrays),
                estimates=self._account(often),
                **done.counts(range(index, index + 1)),
            )
        return Audit(
            subject=self.subject.title,
            claim=request.claim,
            findings=tuple(findings),
            caveats=warn_of_delta(request.claim, len(self.subject.clients), "clients"),
            provenance=done.provenance,
        )

    def _account(self, often: int | None) -> list[EpsilonEstimate]:
        """Return the accounted ε of a client who takes part as canaries do."""
        delta = self.request.known_delta
        epsilon, how = self.subject.epsilon(
            delta, canaries=self.subject.canaries, repetitions=often
        )
        if math.isinf(epsilon):
            return []
        subject = f"a client who takes part as canaries do ({how})"
        return [
            make_reference(
                epsilon, delta, method="accounting", subject=subject, adjacency="zero_out"
            )
        ]


def make_job(subject: Federated, request: Request) -> FederatedJob:
    """Return the training runs of an audit, all settings checked."""
    claim = request.fill_claim(adjacency="zero_out", unit="client")
    request = dataclasses.replace(request, claim=claim)
    delta = request.known_delta
    _validate.open_unit(delta=delta)
    if request.until is not None:
        raise InvalidArgument(
            "Expected no until=… with Federated, whose training runs are each seen as a whole, got "
            f"{request.until!r}."
        )
    filled = subject.fill_defaults()
    if 2 * subject.canaries > subject.size:
        raise InvalidArgument(
            f"Expected at most {subject.size // 2} canaries for {subject.size} trainable "
            f"parameters, since as many more are only observed, got {subject.canaries}. Give "
            "fewer, or a larger model."
        )
    often = (None,) if subject.repetitions is None else subject.repetitions
    filled.check(planted=subject.canaries, repetitions=often[0])
    module = subject.module
    inputs = {
        **dict(() if subject.source is None else subject.source.fingerprints()),
        "clients": fingerprint(list(subject.clients)),
        "module": fingerprint((str(module), [*module.state_dict().values()])),
        **({} if subject.test is None else {"test": fingerprint(subject.test)}),
    }
    plan = request.make_plan(
        subject,
        units=len(often),
        inputs=inputs,
        loss=name_of(filled.loss),
        # Their settings may not be JSON values, such as an encoder of noise.
        participation=repr(filled.participation),
        noise=repr(filled.noise),
        clip=repr(filled.clip),
    )
    # Without the engine and listeners, which cannot be sent to workers.
    asked = Request(claim=claim, delta=delta, confidence=request.confidence, seed=request.seed)
    return FederatedJob(plan=plan, subject=filled, request=asked)


def measure_iterates(
    summary: IterateSummary,
    request: Request,
    *,
    dimension: int,
    participation: Knowledge = "hidden",
    noise: Noise = "unknown",
    single: FloatArray | None = None,
    subject: str = "one federated run",
    caveats: Sequence[str] = (),
    estimates: Sequence[EpsilonEstimate] = (),
    **counts: Any,
) -> tuple[EpsilonFinding, ...]:
    """Return the findings for the final model, and for the models of every round.

    The first compares canaries with θ_T − θ_0, since the weights a run begins with are public. If
    participation is ``known``, the second compares each canary with the sum of the rounds in which
    it took part. Otherwise it uses the round with the largest cosine, and the distribution of that
    maximum. After one round both views are the same, and only the first is returned.

    Guarantee: that of ``Cosines``, for both together.
    Assumption: that of ``Cosines``. With ``hidden`` all canaries count, sampled or not. With
        ``known`` only those that took part count, and their rounds are public: the claim must not
        rest on amplification by sampling or shuffling.

    Args:
        summary: Observations of the canaries.
        request: Claim, δ, seed of resampling, and one-sided confidence of all bounds together.
        dimension: Dimension of their space.
        participation: ``hidden``, ``known``, or ``unseen`` if participation was not counted.
        noise: ``"gaussian"`` if every round's noise was found to be Gaussian: then the mean of the
            cosines decides too, in the view of all rounds with known participants.
        single: Cosines of canaries with one reply of their own client each, for an observer of
            replies.
        subject: What was audited, in words.
        caveats: What a reader must know before quoting a bound.
        estimates: Further theoretical ε, listed after those of the cosines.
        **counts: Units of work that were planned, used and failed, if there are any.

    Raises:
        InvalidArgument: No round moved the weights, or no canary took part.
    """
    counted = _select_counted(summary, participation)
    equal = participation != "unseen" and np.unique(summary.took[counted]).size == 1
    said = (*caveats, *_word_participation(summary, participation))
    planted = summary.took.size
    matched = summary.matched if participation == "known" else None
    views: list[tuple[str, str, FloatArray, FloatArray | None]] = [
        (
            "final model",
            "the weights before and after training",
            summary.final[:planted][counted],
            None,
        )
    ]
    if summary.rounds > 1 and matched is not None:
        views.append(("all rounds", "the weights after every round", matched[counted], None))
    elif summary.rounds > 1:
        largest = summary.largest[:planted][counted], summary.largest[planted:]
        views.append(("all rounds", "the weights after every round", *largest))
    if single is not None:
        views.append(("single replies", "one reply of every canary's own client", single, None))
    if len(views) > 1:
        share = 1 - (1 - request.confidence) / len(views)
        request = dataclasses.replace(request, confidence=share)
    knows = ", and knows the clients' updates" if summary.informed else ""
    informed = {"all rounds": knows, "final model": knows if summary.rounds == 1 else ""}
    every_round = "all rounds" if summary.rounds > 1 else "final model"
    exposed = every_round if participation == "known" and matched is not None else None
    findings = []
    for name, view, inside, outside in views:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", EpsilometerWarning)
            finding = measure_cosines(
                Cosines(
                    inside,
                    dimension=dimension,
                    unobserved=outside,
                    rounds=1 if outside is None else summary.rounds,
                    orthonormal=summary.orthonormal,
                    participation="equal" if equal or inside is single else "unequal",
                    noise=noise if name == exposed else "unknown",
                    title=f"{subject}, {summary.rounds:,} rounds: {name}",
                    adversary=f"sees {view}{_KNOWS[participation]}{informed.get(name, '')}",
                ),
                request,
                adjacency="zero_out",
                estimates=estimates,
                distinct=True,
                **counts,
            )
        warned = (str(warning.message) for warning in caught)
        every = dict.fromkeys((*finding.bound.caveats, *said, *warned))
        findings.append(replace(finding, bound=replace(finding.bound, caveats=tuple(every))))
    return tuple(findings)


def _select_counted(summary: IterateSummary, participation: Knowledge) -> NDArray[np.bool_]:
    """Return which planted canaries count."""
    if participation not in _KNOWS:
        raise InvalidArgument(
            f"Expected participation to be one of {', '.join(_KNOWS)}, got {participation!r}."
        )
    if summary.rounds == 0:
        raise InvalidArgument(
            "Expected at least one round that moved the weights, saw none: every round failed, or "
            "no update changed anything."
        )
    if participation == "unseen":
        return np.ones(summary.took.size, np.bool_)
    if not summary.took.any():
        raise InvalidArgument(
            "Expected canaries that took part, but none was sampled in a round that moved the "
            "weights. Designate more canaries, sample more nodes, or train longer."
        )
    return summary.took > 0 if participation == "known" else np.ones(summary.took.size, np.bool_)


def _word_participation(summary: IterateSummary, participation: Knowledge) -> list[str]:
    said = []
    if participation == "unseen":
        said.append("Participation was not observed: all canaries are counted.")
    else:
        some = int(np.sum(summary.took > 0))
        least, most = int(summary.took.min()), int(summary.took.max())
        often = f"{most} times" if least == most else f"{least} to {most} times"
        often = "once" if least == most == 1 else often
        said.append(f"{some} of {summary.took.size} canaries took part, {often} each.")
    if summary.still:
        said.append(f"Rounds with canaries that changed no weight: {summary.still}.")
    if summary.lost:
        said.append(f"Weights that were not finite were skipped: {summary.lost}.")
    return said


def _word_run(arrays: Arrays) -> tuple[str, ...]:
    said = [
        f"The final model predicts {right:.1%} of the test data correctly."
        for right in arrays["accuracy"]
    ]
    lost, members = arrays["lost"].tolist()
    if lost:
        said.append(
            f"{lost} of {members} updates were not finite and were left out: a smaller "
            "learning_rate of clients would reduce their number."
        )
    return tuple(said)


def _word_repetitions(often: int | None) -> str:
    if often is None:
        return "canaries drawn like clients"
    return "each canary once" if often == 1 else f"each canary {often} times"
