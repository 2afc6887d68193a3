"""Audit your own training code by calling it with a record and without it."""

import hashlib
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.core.audit import Audit
from epsilometer.core.claim import Adjacency, Claim, check_adjacency
from epsilometer.core.findings import EpsilonFinding
from epsilometer.core.record import Record, check_records
from epsilometer.core.scores import Scores
from epsilometer.core.settings import DATA
from epsilometer.engine.engines import Local
from epsilometer.engine.fingerprints import fingerprint, name_of
from epsilometer.engine.plan import Plan
from epsilometer.engine.request import Request
from epsilometer.engine.run import Done, Watch
from epsilometer.engine.runs import Failures, Program, RunsJob, check_parameters, check_until
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument, warn
from epsilometer.types import FloatArray, IntArray

Train: TypeAlias = Callable[[Any, int], Any]
Score: TypeAlias = Callable[[Any, Any], Any]
_NAN = "Scored nan: "
_ROUNDS = 8  # rounds of mixing a run's number into its seed


class WrongScore(InvalidArgument):
    """A run returned something other than a score, so further runs are pointless."""


class Datasets(Protocol):
    """Provide the dataset with the record and the one without it."""

    def choose(self, *, present: bool) -> Any:
        """Return the dataset that ``train`` receives in one run."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class _ArrayDatasets:
    """Add the canary to arrays, or replace a record by it."""

    features: FloatArray
    labels: IntArray
    canary: Record
    replaced: int | None

    def choose(self, *, present: bool) -> tuple[FloatArray, IntArray]:
        """Return copies of the arrays: a ``train`` that changes them affects no other run."""
        if not present:
            return self.features.copy(), self.labels.copy()
        if self.replaced is not None:
            features, labels = self.features.copy(), self.labels.copy()
            features[self.replaced], labels[self.replaced] = self.canary.features, self.canary.label
            return features, labels
        added = self.canary.features[None].astype(self.features.dtype)
        return np.concatenate([self.features, added]), np.append(self.labels, self.canary.label)


@dataclass(frozen=True, eq=False, kw_only=True)
class _GivenDatasets:
    """Provide two datasets of any kind, given by the user."""

    with_record: Any
    without_record: Any

    def choose(self, *, present: bool) -> Any:
        return self.with_record if present else self.without_record


@dataclass(frozen=True, eq=False, kw_only=True)
class Training:
    """Hold a training function, its two datasets, and the score of a trained model."""

    train: Train
    datasets: Datasets
    score: Score | None
    canary: Any

    def run(self, *, present: bool, seed: int) -> float:
        """Train once, and return the score, which may be nan."""
        trained = self.train(self.datasets.choose(present=present), seed)
        if self.score is None:
            advice = "Where it returns a model, give score=negative_loss, or a score of your own."
            return _read_number(trained, who="train", advice=advice)
        return _read_number(self.score(trained, self.canary), who="score", advice="")


def _read_number(value: Any, *, who: str, advice: str) -> float:
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
    """Execute pairs of runs, with and without the record: ``runs.block`` pairs per unit of work."""

    runs: RunsJob
    training: Training
    adjacency: Adjacency

    @property
    def plan(self) -> Plan:
        """Everything that determines the result."""
        return self.runs.plan

    def unit(self, index: int) -> Arrays:
        """Train the pairs of one block. A nan counts against the attack, and is counted."""
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
        """Score runs that failed as if each had spoken against the attack."""
        return {**self.runs.missing(index), "nan": np.zeros(2, np.int64)}

    def watch(self) -> Watch:
        """Return the watch of the runs."""
        return self.runs.watch()

    def result(self, units: Iterable[Arrays], done: Done) -> Audit:
        """Return the audit of all runs; a caveat of its bound counts those that scored nan."""
        lost = np.zeros(2, np.int64)

        def counted() -> Iterator[Arrays]:
            for arrays in units:
                lost[:] += arrays["nan"]
                yield arrays

        found = self.runs.result(counted(), done)
        finding = found.one(EpsilonFinding)
        assert finding is not None  # one program, one finding
        caveats = (_word_nan(lost, finding.attack.n_in),) if lost.any() else ()
        bound, *also = (
            replace(each, adjacency=self.adjacency, caveats=(*each.caveats, *caveats))
            for each in (finding.bound, *finding.also)
        )
        return replace(found, findings=(replace(finding, bound=bound, also=tuple(also)),))


def _word_nan(lost: IntArray, runs: int) -> str:
    """Return the caveat about runs that diverged, with the record and without it."""
    return (
        f"{_NAN}{lost[0]} of {runs} runs with the record, {lost[1]} of {runs} without it. They "
        "count against a refutation. If the record makes training diverge, that is a leak: "
        "score such runs by a number, or ±inf, so that it counts."
    )


def run_seed(number: int, *, of: int) -> int:
    """Return the 32-bit seed of a run by its number; no two runs have the same.

    Of 10⁵ seeds drawn at random, two would probably be equal. A Feistel permutation of all 2³²
    numbers, keyed by the audit's seed ``of``, repeats none.

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


@dataclass(frozen=True, eq=False)
class TrainFunction:
    """Audit your training function by calling it with and without a record.

    Guarantee: the same settings give the same audit, byte for byte, however the work was split,
        killed or resumed. The bound exceeds the true ε in at most ``1 - confidence`` of audits,
        even if a rule stops early. No two runs get the same seed. A run that raises, or scores nan,
        counts against a refutation and is reported.
    Assumption: ``train`` takes all its randomness from its seed; the record was not chosen by
        looking at runs of this audit.

    Attributes:
        train: ``train(data, seed)`` trains once, in any framework, and returns a score (a number,
            higher where the record was in) or a model. With processes or Dask it must be picklable.
        data: Features of shape ``(n, …)`` and labels of shape ``(n,)``, whole numbers from 0.
            ``train`` gets them as new arrays in each run, features as floats.
        canary: The ``Record`` that is added to ``data`` or left out. With your own datasets: the
            record that is passed to ``score``.
        runs: Largest number of runs with the record, and of runs without it.
        with_record: Instead of ``data``: a dataset of any kind that has the record. Every run gets
            this very object, and must not change it.
        without_record: Its neighbour, without the record.
        score: ``score(model, record)`` if ``train`` returns a model:
            ``epsilometer.networks.loss.negative_loss`` or your own.
        adjacency: The neighbouring relation: the claim's by default; else ``"add_remove"`` for
            ``data``; with ``"replace"`` the canary takes the place of a record.
        replaced: The record that is replaced; the last one by default.
        also: Methods whose bounds are reported too but decide nothing; not with ``until``.
        block: Pairs of runs per unit of work: use more if a run is very short.
        title: What was audited, in words.
        adversary: Whose view the scores are computed from, in words.
        parameters: Everything else that determines what ``train`` does, as JSON values. A run
            directory is never continued with other parameters, data, or functions of another name;
            those not named here cannot be checked.

    Example:
        >>> import numpy as np
        >>> import epsilometer as em
        >>> def train(data, seed):  # releases a sum of clipped features, with half of the noise
        ...     features, labels = data
        ...     noise = np.random.default_rng(seed).normal(0, 0.5)
        ...     return np.clip(features, -1, 1).sum() + noise
        >>> data = np.zeros((10, 1)), np.arange(10) % 2
        >>> subject = em.TrainFunction(train, data, em.Record([9.0], label=0), runs=500)
        >>> audit = em.audit(subject, em.Claim(1.0, delta=1e-5), engine=em.InProcess())
        >>> audit.verdict, audit.bounds[0].adjacency
        ('refuted', 'add_remove')
    """

    train: Train = field(metadata=DATA)
    data: tuple[ArrayLike, ArrayLike] | None = field(default=None, metadata=DATA)
    canary: Any = field(default=None, metadata=DATA)
    _: KW_ONLY
    runs: int
    with_record: Any = field(default=None, metadata=DATA)
    without_record: Any = field(default=None, metadata=DATA)
    score: Score | None = field(default=None, metadata=DATA)
    adjacency: Adjacency | None = None
    replaced: int | None = None
    also: tuple[str, ...] = ()
    block: int = 1
    title: str = ""
    adversary: str = ""
    parameters: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        _validate.whole(2, runs=self.runs)
        _validate.whole(1, block=self.block)
        check_parameters(self.parameters)
        if not callable(self.train):
            raise InvalidArgument(f"Expected a function train(data, seed), got {self.train!r}.")
        if self.score is not None and not callable(self.score):
            raise InvalidArgument(f"Expected a function score(model, record), got {self.score!r}.")
        given = (self.with_record, self.without_record)
        if self.data is not None and any(each is not None for each in given):
            raise InvalidArgument("Expected data, or with_record and without_record, got both.")


SUBJECTS = (TrainFunction,)


def run_audit(subject: TrainFunction, request: Request) -> Audit:
    """Train ``runs`` times with the record and equally often without it, and judge the claim."""
    blocks = -(-subject.runs // subject.block)
    check_until(request, also=subject.also, blocks=blocks)
    adjacency = _choose_adjacency(subject, request.claim)
    datasets = _make_datasets(subject, adjacency)
    train, score = name_of(subject.train), subject.score
    adversary = subject.adversary or (
        "sees the score that train returns"
        if score is None
        else f"sees the trained model, by {name_of(score).rpartition('.')[2]}"
    )
    title = subject.title or f"training by {train.rpartition('.')[2]}"
    plan = request.make_plan(
        subject,
        units=blocks,
        inputs=_fingerprint_inputs(
            {"train": subject.train, "score": score, "data": datasets, "canary": subject.canary},
            needed=request.out is not None,
        ),
        train=train,
        score=None if score is None else name_of(score),
        adjacency=adjacency,
        title=title,
        adversary=adversary,
    )
    job = TrainingJob(
        runs=RunsJob(
            plan=plan,
            subject=title,
            claim=request.claim,
            programs=(Program(play=_refuse_play, subject=title, adversary=adversary),),
            runs=subject.runs,
            block=subject.block,
            delta=request.known_delta,
            confidence=request.confidence,
            also=tuple(subject.also),
            until=request.until,
        ),
        training=Training(
            train=subject.train, datasets=datasets, score=score, canary=subject.canary
        ),
        adjacency=adjacency,
    )
    failures = Failures(WrongScore)
    found = request.execute(job, usual=Local(), listen=[*request.listen, failures])
    _warn(found, failures)
    return found


def _refuse_play(runs: int, rng: np.random.Generator) -> Scores:
    raise AssertionError("Runs of training have a number each: TrainingJob.unit trains them.")


def _choose_adjacency(subject: TrainFunction, claim: Claim | None) -> Adjacency:
    given, arrays = subject.adjacency, subject.data is not None
    claimed = "unstated" if claim is None else claim.adjacency
    chosen = given or claimed
    check_adjacency(chosen)
    if arrays and given is None and claimed == "unstated":
        chosen = "add_remove"
    if claimed not in ("unstated", chosen):
        raise InvalidArgument(
            f"Expected adjacency={claimed!r}, as the claim has it, got {given!r}: an ε for one "
            "adjacency says nothing about another."
        )
    if arrays and chosen not in ("add_remove", "replace"):
        raise InvalidArgument(
            f"Expected adjacency 'add_remove' or 'replace' with data, got {chosen!r}. "
            "Give two datasets, with_record and without_record, that are such neighbours."
        )
    return chosen


def _make_datasets(subject: TrainFunction, adjacency: Adjacency) -> Datasets:
    if subject.data is not None:
        return _make_arrays(subject.data, subject.canary, adjacency, subject.replaced)
    for name in ("with_record", "without_record"):
        if getattr(subject, name) is None:
            raise InvalidArgument(
                "Expected data=(features, labels) and a canary, or two datasets with_record and "
                f"without_record, got no {name}."
            )
    if _is_same(subject.with_record, subject.without_record):
        raise InvalidArgument(
            "Expected two datasets, got with_record and without_record that are the same: nothing "
            "could be refuted. A list that the record was removed from lost it under both names."
        )
    return _GivenDatasets(with_record=subject.with_record, without_record=subject.without_record)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return one is other


def _make_arrays(
    data: Any, canary: Any, adjacency: Adjacency, replaced: int | None
) -> _ArrayDatasets:
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise InvalidArgument(
            f"Expected data=(features, labels), got {type(data).__name__}. Other datasets are "
            "given as with_record and without_record."
        )
    if not isinstance(canary, Record):
        raise InvalidArgument(
            f"Expected a canary Record(features, label) with data, got {type(canary).__name__}. "
            "epsilometer.audits.training.canaries makes some that stand out."
        )
    features, labels = check_records(*data)
    if canary.features.shape != features.shape[1:]:
        raise InvalidArgument(
            f"Expected a canary of shape {features.shape[1:]}, as the records of data, "
            f"got {canary.features.shape}."
        )
    if canary.label > labels.max():
        raise InvalidArgument(
            f"Expected a canary of one of the classes 0 to {labels.max()}, got {canary.label}."
        )
    if adjacency != "replace":
        if replaced is not None:
            raise InvalidArgument(
                f"Expected adjacency='replace' with replaced={replaced!r}, got {adjacency!r}."
            )
        return _ArrayDatasets(features=features, labels=labels, canary=canary, replaced=None)
    place = len(labels) - 1 if replaced is None else replaced
    _validate.whole(0, replaced=place)
    if place >= len(labels):
        raise InvalidArgument(f"Expected replaced below {len(labels)}, got {place}.")
    return _ArrayDatasets(features=features, labels=labels, canary=canary, replaced=place)


def _fingerprint_inputs(values: Mapping[str, Any], *, needed: bool) -> dict[str, str]:
    found = {}
    for name, value in values.items():
        try:
            if value is not None:
                found[name] = fingerprint(value)
        except InvalidArgument as error:
            if needed:
                raise InvalidArgument(
                    f"Cannot tell whether a run is continued with the same {name}. {error} "
                    "Give arrays, tensors or paths of files; or audit without out."
                ) from error
    return found


def _warn(found: Audit, failures: Failures) -> None:
    """Warn of caveats that someone who reads only the verdict must not overlook."""
    failed, units = found.provenance.failed, found.provenance.units
    said = [text for text in found.bounds[0].caveats if text.startswith(_NAN)]
    if failed:
        said.append(
            f"{failed} of {units} units failed and count against a refutation; "
            f"{failures.describe()}"
        )
    for text in said:
        warn(text)
