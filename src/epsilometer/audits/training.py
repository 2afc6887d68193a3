"""Does your own training code keep its promise? It is called with a record and without it."""

import hashlib
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.audits.failures import Failures
from epsilometer.audits.runs import Program, RunsJob, Until, stoppable
from epsilometer.canaries.data import Record, records
from epsilometer.core.claim import Adjacency, Claim
from epsilometer.core.claim import adjacency as known_adjacency
from epsilometer.engine.engines import Engine, Local
from epsilometer.engine.events import Listener
from epsilometer.engine.fingerprints import fingerprint, name_of
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import Done, Watch, run
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument, warn
from epsilometer.observations import Scores
from epsilometer.core.audit import AuditResult
from epsilometer.types import FloatArray, IntArray

Train: TypeAlias = Callable[[Any, int], Any]
Score: TypeAlias = Callable[[Any, Any], Any]
_LOCAL = Local()
_NAN = "Scored nan: "
_ROUNDS = 8  # of mixing a run's number into its seed


class WrongScore(InvalidArgument):
    """A run gave something that is no score: the call is wrong, and further runs are no use."""


class Worlds(Protocol):
    """The dataset with the record and the one without it."""

    def world(self, *, present: bool) -> Any:
        """What ``train`` is given in one run."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class _ArrayWorlds:
    """Arrays that the canary is added to, or where it replaces a record."""

    features: FloatArray
    labels: IntArray
    canary: Record
    replaced: int | None

    def world(self, *, present: bool) -> tuple[FloatArray, IntArray]:
        """New arrays for each run, so that a train that writes into them spoils no other run."""
        if not present:
            return self.features.copy(), self.labels.copy()
        if self.replaced is not None:
            features, labels = self.features.copy(), self.labels.copy()
            features[self.replaced], labels[self.replaced] = self.canary.features, self.canary.label
            return features, labels
        added = self.canary.features[None].astype(self.features.dtype)
        return np.concatenate([self.features, added]), np.append(self.labels, self.canary.label)


@dataclass(frozen=True, eq=False, kw_only=True)
class _GivenWorlds:
    """Two datasets of the user's, of any kind."""

    with_record: Any
    without_record: Any

    def world(self, *, present: bool) -> Any:
        return self.with_record if present else self.without_record


@dataclass(frozen=True, eq=False, kw_only=True)
class Training:
    """A training function, its two datasets, and how a trained model is scored."""

    train: Train
    worlds: Worlds
    score: Score | None
    canary: Any

    def run(self, *, present: bool, seed: int) -> float:
        """Trains once; the score, which may be nan."""
        trained = self.train(self.worlds.world(present=present), seed)
        if self.score is None:
            advice = "Where it returns a model, give score=negative_loss, or a score of your own."
            return _number(trained, who="train", advice=advice)
        return _number(self.score(trained, self.canary), who="score", advice="")


def _number(value: Any, *, who: str, advice: str) -> float:
    shape = getattr(value, "shape", None)
    single = value.item() if shape is not None and np.prod(shape) == 1 else value
    if isinstance(single, numbers.Real):
        return float(single)
    kind = "None" if value is None else type(value).__name__
    raise WrongScore(
        f"Expected {who} to return a score, one number that is higher where the record was in, "
        f"got {kind}{'' if shape is None else f' of shape {tuple(shape)}'}. {advice}".rstrip()
    )


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """Pairs of runs, with the record and without it: ``runs.block`` pairs are a unit of work."""

    runs: RunsJob
    training: Training
    adjacency: Adjacency

    @property
    def plan(self) -> Plan:
        """Everything that determines the result."""
        return self.runs.plan

    def unit(self, index: int) -> Arrays:
        """Trains the pairs of one block. A nan counts against the attack, and is counted."""
        first = index * self.runs.block
        pairs = range(first, min(first + self.runs.block, self.runs.runs))
        scores = np.array(
            [
                [
                    self.training.run(
                        present=present, seed=run_seed(2 * pair + present, of=self.plan.seed)
                    )
                    for pair in pairs
                ]
                for present in (True, False)
            ]
        )
        lost = np.isnan(scores)
        inside, outside = np.where(lost, [[-np.inf], [np.inf]], scores)
        return {"inside": inside, "outside": outside, "nan": lost.sum(axis=1)}

    def missing(self, index: int) -> Arrays:
        """Runs that failed, scored as if each had spoken against the attack."""
        return {**self.runs.missing(index), "nan": np.zeros(2, np.int64)}

    def watch(self) -> Watch:
        """What watches any runs."""
        return self.runs.watch()

    def result(self, units: Iterable[Arrays], done: Done) -> AuditResult:
        """The audit of all runs; its bound says how many of them scored nan."""
        lost = np.zeros(2, np.int64)

        def counted() -> Iterator[Arrays]:
            for arrays in units:
                lost[:] += arrays["nan"]
                yield arrays

        found = self.runs.result(counted(), done)
        assert isinstance(found, AuditResult)  # one program, one audit
        caveats = (said_nan(lost, found.attack.n_in),) if lost.any() else ()
        bound, *also = (
            replace(each, adjacency=self.adjacency, caveats=(*each.caveats, *caveats))
            for each in (found.bound, *found.also)
        )
        return replace(found, bound=bound, also=tuple(also))


def said_nan(lost: IntArray, runs: int) -> str:
    """What a reader must know of runs that diverged, with the record and without it."""
    return (
        f"{_NAN}{lost[0]} of {runs} runs with the record, {lost[1]} of {runs} without it. "
        "They count against a refutation. If the record makes training diverge, that is a leak: "
        "score such runs by a number, or ±inf, and it is seen."
    )


def run_seed(number: int, *, of: int) -> int:
    """The seed of a run, by its number: 32 bits, as every framework takes, and no two alike.

    Drawn at random, two of 10⁵ such seeds would be alike. A permutation of all 2³² numbers, mixed
    from the audit's seed ``of`` as a cipher is (Feistel's network), repeats none.

    Example:
        >>> len({run_seed(number, of=0) for number in range(10_000)})
        10000
    """
    _validate.whole(0, number=number, of=of)
    if number >= 2**32:
        raise InvalidArgument(f"Expected fewer than 2³² runs in an audit, got number {number}.")
    left, right = divmod(number, 2**16)
    for part in range(_ROUNDS):
        text = f"{of} {part} {right}".encode()
        mixed = int.from_bytes(hashlib.blake2b(text, digest_size=2).digest(), "little")
        left, right = right, left ^ mixed
    return left << 16 | right


def audit_training(
    train: Train,
    *,
    runs: int,
    delta: float,
    data: tuple[ArrayLike, ArrayLike] | None = None,
    canary: Any = None,
    with_record: Any = None,
    without_record: Any = None,
    claim: Claim | None = None,
    score: Score | None = None,
    adjacency: Adjacency | None = None,
    replaced: int | None = None,
    confidence: float = 0.95,
    also: Sequence[str] = (),
    until: Until | None = None,
    seed: int = 0,
    subject: str = "",
    adversary: str = "",
    block: int = 1,
    parameters: Mapping[str, Any] | None = None,
    directory: Path | str | None = None,
    engine: Engine = _LOCAL,
    listen: Sequence[Listener] = (),
) -> AuditResult:
    """Trains ``runs`` times with a record and as often without it, and judges the claim by that.

    Guarantees: the same arguments give the same result, byte for byte, however the work was split,
        killed or resumed; a bound that exceeds the true ε in at most ``1 - confidence`` of audits,
        also where a rule stops early. No two runs get the same seed. A run that raises, or scores
        nan, counts against a refutation and is told.
    Assumes: ``train`` takes all its randomness from its seed; the record was not chosen by looking
        at runs of this audit.

    Args:
        train: ``train(data, seed)`` trains once, in any framework, and returns a score (a number,
            higher where the record was in) or a model. With processes or Dask it must be
            something that can be pickled.
        runs: Runs of either kind, at most.
        delta: δ of the bound; must be the claim's.
        data: Features of shape ``(n, …)`` and labels of shape ``(n,)``, whole numbers from 0.
            ``train`` gets them as new arrays in each run, features as floats.
        canary: The ``Record`` that is added to ``data`` or left out. With datasets of your own,
            whatever ``score`` is to be given.
        with_record: In place of ``data``: a dataset of any kind that has the record. Every run gets
            this very object, and must not change it.
        without_record: Its neighbour, without the record.
        claim: What was promised.
        score: ``score(model, record)`` where ``train`` returns a model:
            ``epsilometer.attacks.loss.negative_loss`` or your own.
        adjacency: The neighbouring relation: the claim's by default; else ``"add_remove"`` for
            ``data``, where ``"replace"`` puts the canary in the place of a record.
        replaced: The record that is replaced; the last one by default.
        confidence: One-sided confidence of the bound.
        also: Methods whose bounds are shown beside it and decide nothing; not with ``until``.
        until: When to stop early; the bound is then anytime-valid, and smaller for as many runs.
        seed: From which the seeds of all runs are derived.
        subject: What was audited, in words.
        adversary: Whose view the scores are computed from, in words.
        block: Pairs of runs that make a unit of work: more where a run takes less than a moment.
        parameters: Whatever else determines what ``train`` does, as JSON values. A run directory is
            never continued with other parameters, data, or functions of another name; what
            is not named here cannot be checked.
        directory: Where the run lives, so that the same call can finish it after a crash.
        engine: What executes the runs.
        listen: Who is told what happens.

    Example:
        >>> import numpy as np
        >>> from epsilometer import InProcess, Claim
        >>> from epsilometer.canaries.data import Record
        >>> def train(data, seed):  # releases a sum of clipped features, with half of the noise
        ...     features, labels = data
        ...     noise = np.random.default_rng(seed).normal(0, 0.5)
        ...     return np.clip(features, -1, 1).sum() + noise
        >>> result = audit_training(
        ...     train,
        ...     data=(np.zeros((10, 1)), np.arange(10) % 2),
        ...     canary=Record([9.0], label=0),
        ...     runs=500,
        ...     delta=1e-5,
        ...     claim=Claim(epsilon=1.0, delta=1e-5),
        ...     engine=InProcess(),
        ... )
        >>> result.verdict, result.bound.adjacency
        ('refuted', 'add_remove')
    """
    _validate.whole(2, runs=runs)
    _validate.whole(1, block=block)
    _callable(train=train, score=score)
    stoppable(until, claim=claim, also=also, blocks=-(-runs // block))
    neighbours = _adjacency(adjacency, claim, arrays=data is not None)
    worlds: Worlds
    if data is None:
        worlds = _given(with_record, without_record)
    elif with_record is not None or without_record is not None:
        raise InvalidArgument("Expected data, or with_record and without_record, got both.")
    else:
        worlds = _arrays(data, canary, neighbours, replaced)
    name = name_of(train)
    adversary = adversary or (
        "sees the score that train returns"
        if score is None
        else f"sees the trained model, by {name_of(score).rpartition('.')[2]}"
    )
    subject = subject or f"training by {name.rpartition('.')[2]}"
    plan = Plan(
        audit="audit_training",
        parameters={
            "train": name,
            "score": None if score is None else name_of(score),
            "runs": runs,
            "block": block,
            "delta": delta,
            "confidence": confidence,
            "claim": None if claim is None else asdict(claim),
            "adjacency": neighbours,
            "also": list(also),
            "until": repr(until),
            "subject": subject,
            "adversary": adversary,
            "parameters": dict(parameters or {}),
        },
        units=-(-runs // block),
        seed=seed,
        command=f"audit_training({name}, {runs=}, {delta=}, {seed=})",
        inputs=_inputs(
            {"train": train, "score": score, "data": worlds, "canary": canary},
            needed=directory is not None,
        ),
    )
    program = Program(play=_by_number, subject=subject, claim=claim, adversary=adversary)
    job = TrainingJob(
        runs=RunsJob(
            plan=plan,
            subject=subject,
            programs=(program,),
            runs=runs,
            block=block,
            delta=delta,
            confidence=confidence,
            also=tuple(also),
            until=until,
        ),
        training=Training(train=train, worlds=worlds, score=score, canary=canary),
        adjacency=neighbours,
    )
    failures = Failures(WrongScore)
    where = None if directory is None else Path(directory)
    result = run(job, where, engine=engine, listen=[*listen, failures])
    assert isinstance(result, AuditResult)  # as ``TrainingJob`` returns
    _warn(result, failures.reason)
    return result


def _by_number(runs: int, rng: np.random.Generator) -> Scores:
    raise AssertionError("Runs of training have a number each: TrainingJob.unit trains them.")


def _callable(*, train: Any, score: Any) -> None:
    if not callable(train):
        raise InvalidArgument(f"Expected a function train(data, seed), got {train!r}.")
    if score is not None and not callable(score):
        raise InvalidArgument(f"Expected a function score(model, record), got {score!r}.")


def _adjacency(given: Adjacency | None, claim: Claim | None, *, arrays: bool) -> Adjacency:
    promised = "unstated" if claim is None else claim.adjacency
    chosen = given or promised
    known_adjacency(chosen)
    if arrays and given is None and promised == "unstated":
        chosen = "add_remove"
    if promised not in ("unstated", chosen):
        raise InvalidArgument(
            f"Expected adjacency={promised!r}, as the claim has it, got {given!r}: an ε for one "
            "adjacency says nothing about another."
        )
    if arrays and chosen not in ("add_remove", "replace"):
        raise InvalidArgument(
            f"Expected adjacency 'add_remove' or 'replace' with data, got {chosen!r}. "
            "Give two datasets, with_record and without_record, that are such neighbours."
        )
    return chosen


def _given(with_record: Any, without_record: Any) -> _GivenWorlds:
    for name, value in (("with_record", with_record), ("without_record", without_record)):
        if value is None:
            raise InvalidArgument(
                "Expected data=(features, labels) and a canary, or two datasets with_record and "
                f"without_record, got no {name}."
            )
    return _GivenWorlds(with_record=with_record, without_record=without_record)


def _arrays(data: Any, canary: Any, neighbours: Adjacency, replaced: int | None) -> _ArrayWorlds:
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise InvalidArgument(
            f"Expected data=(features, labels), got {type(data).__name__}. Other datasets are "
            "given as with_record and without_record."
        )
    if not isinstance(canary, Record):
        raise InvalidArgument(
            f"Expected a canary Record(features, label) with data, got {type(canary).__name__}. "
            "epsilometer.canaries.data makes some that stand out."
        )
    features, labels = records(*data)
    if canary.features.shape != features.shape[1:]:
        raise InvalidArgument(
            f"Expected a canary of shape {features.shape[1:]}, as the records of data, "
            f"got {canary.features.shape}."
        )
    if canary.label > labels.max():
        raise InvalidArgument(
            f"Expected a canary of one of the classes 0 to {labels.max()}, got {canary.label}."
        )
    if neighbours != "replace":
        if replaced is not None:
            raise InvalidArgument(
                f"Expected adjacency='replace' with replaced={replaced!r}, got {neighbours!r}."
            )
        return _ArrayWorlds(features=features, labels=labels, canary=canary, replaced=None)
    place = len(labels) - 1 if replaced is None else replaced
    _validate.whole(0, replaced=place)
    if place >= len(labels):
        raise InvalidArgument(f"Expected replaced below {len(labels)}, got {place}.")
    return _ArrayWorlds(features=features, labels=labels, canary=canary, replaced=place)


def _inputs(values: Mapping[str, Any], *, needed: bool) -> dict[str, str]:
    found = {}
    for name, value in values.items():
        try:
            if value is not None:
                found[name] = fingerprint(value)
        except InvalidArgument as error:
            if needed:
                raise InvalidArgument(
                    f"Cannot tell whether a run is continued with the same {name}. {error} "
                    "Give arrays, tensors or paths of files; or audit without a directory."
                ) from error
    return found


def _warn(result: AuditResult, reason: str) -> None:
    """What must not be overlooked by somebody who reads the verdict alone."""
    failed, units = result.provenance.failed, result.provenance.units
    said = [caveat for caveat in result.bound.caveats if caveat.startswith(_NAN)]
    if failed:
        said.append(
            f"{failed} of {units} units failed and count against a refutation; one said: {reason}"
        )
    for text in said:
        warn(text)
