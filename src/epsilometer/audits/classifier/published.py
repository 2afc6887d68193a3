"""Audit a model before publication: the parts that classifiers and regressors share."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from epsilometer import _validate
from epsilometer._files import write_whole
from epsilometer.audits.classifier.advice import RECORDS
from epsilometer.audits.classifier.attacks.evaluation import DELTA, RecordScores, bound_one_run
from epsilometer.audits.classifier.attacks.shadow_attacks import ATTACKS
from epsilometer.audits.classifier.groups import (
    GroupedRisk,
    compare_groups,
    describe_left_out,
    read_groups,
)
from epsilometer.audits.classifier.kinds import check_kind
from epsilometer.audits.classifier.leaks import Leak, read_leaks
from epsilometer.audits.classifier.release import (
    ChangeAtMost,
    Measured,
    PdtpAtMost,
    ReleaseRule,
    apply_rules,
    share_exposed,
    weigh_rule,
)
from epsilometer.audits.classifier.sklearn_models import (
    Preprocessing,
    check_choice,
    clone_with_seed,
)
from epsilometer.core.audit import Audit, Provenance
from epsilometer.core.findings import GroupRisk, MembershipFinding, RuleFinding
from epsilometer.core.printing import to_csv_text
from epsilometer.core.scores import Scores
from epsilometer.engine.code import find_code
from epsilometer.engine.engines import Engine, Local
from epsilometer.engine.events import Listener
from epsilometer.engine.fingerprints import fingerprint, name_of
from epsilometer.engine.leases import Call, Outcome, Outcomes
from epsilometer.engine.plan import Plan
from epsilometer.engine.request import Request
from epsilometer.engine.run import Done, Unwatched, Watch
from epsilometer.engine.shards import Arrays, check_arrays
from epsilometer.errors import InvalidArgument
from epsilometer.stats import clusters
from epsilometer.stats.score_finding import round_threshold
from epsilometer.types import BoolArray, FloatArray, IntArray

LISTED = 1000  # largest number of records in a result
USUAL_ATTACKS = ("loss", "lira", "rmia")


class PublishedModel:
    """Settings shared by classifiers and regressors, and their checks.

    The fields stay in the classes themselves: their order is that of results and plans.
    """

    kind: ClassVar[str]
    method: ClassVar[str]  # the method that predicts
    limiting: ClassVar[type[PdtpAtMost] | type[ChangeAtMost]]  # the rule about single records
    rule_kinds: ClassVar[tuple[type[ReleaseRule], ...]]

    estimator: Any
    X: Any
    published_as: Any
    model_file: Path | None
    preprocessing: Preprocessing
    patience: float
    attacks: Sequence[str] | str
    shadows: int
    groups: Mapping[str, ArrayLike] | None
    rules: Sequence[ReleaseRule] | ReleaseRule | None
    record_names: Sequence[str] | None
    show_records: bool
    title: str
    caveats: tuple[str, ...]
    source: Any

    def list_attacks(self) -> Sequence[str]:
        """Return the names of all attacks that can be run."""
        raise NotImplementedError

    def list_usual_rules(self) -> tuple[ReleaseRule, ...]:
        """Return the default rules."""
        raise NotImplementedError

    def check_settings(self) -> None:
        """Refuse settings that cannot be audited, and normalise lists."""
        if not hasattr(self.estimator, "fit"):
            raise InvalidArgument(
                f"Expected an estimator with fit and {self.method}, got "
                f"{type(self.estimator).__name__}."
            )
        check_kind(self.estimator, self.kind)
        check_choice(Preprocessing, preprocessing=self.preprocessing)
        if self.model_file is not None and self.published_as != "file":
            raise InvalidArgument(
                f"Expected model_file with published_as='file', got {self.published_as!r}: "
                "no one receives the file."
            )
        if isinstance(self.rules, ReleaseRule):
            object.__setattr__(self, "rules", (self.rules,))
        for name in ("attacks", "rules"):
            if not isinstance(getattr(self, name), (str, list, tuple, type(None))):
                raise InvalidArgument(
                    f"Expected {name} as a list, got {_validate.short(getattr(self, name))}."
                )
        known = self.list_attacks()
        for attack in self.attack_names:
            if attack not in known:
                raise InvalidArgument(
                    f"Expected attacks among {', '.join(known)}, or 'all', got {attack!r}."
                )
        if not self.deciding_rules:
            raise InvalidArgument("Expected at least one rule in rules, got none.")
        for rule in self.deciding_rules:
            if not isinstance(rule, self.rule_kinds):
                names = ", ".join(kind.__name__ for kind in self.rule_kinds)
                raise InvalidArgument(f"Expected rules of {names}, got {_validate.short(rule)}.")
        _validate.at_least(0, patience=self.patience)
        _validate.whole(4, shadows=self.shadows)
        for name in ("feature_names", "record_names"):  # a text would be split into letters
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(map(str, getattr(self, name))))

    @property
    def attack_names(self) -> tuple[str, ...]:
        """Names of the attacks that are run."""
        if isinstance(self.attacks, str):
            return tuple(self.list_attacks()) if self.attacks == "all" else (self.attacks,)
        return tuple(self.attacks)

    @property
    def deciding_rules(self) -> tuple[ReleaseRule, ...]:
        """The rules that decide: those given, or the default ones."""
        if isinstance(self.rules, Sequence):
            return tuple(self.rules)
        return self.list_usual_rules()

    @property
    def limit(self) -> float:
        """Risk above which a record is exposed."""
        rules = (rule for rule in self.deciding_rules if isinstance(rule, self.limiting))
        return next((rule.limit for rule in rules), 1.0)

    def has_rule(self, kind: type[ReleaseRule]) -> bool:
        """Tell whether a rule of this kind is among the deciding ones."""
        return any(isinstance(rule, kind) for rule in self.deciding_rules)


class PublishedTask:
    """Settings, and everything derived from them and from the records.

    Settings that cannot be audited are refused here, before any work begins.

    Attributes:
        subject: The settings.
        request: What was requested in addition.
        size: Number of records.
        groups: Column → group of each record.
        content: Bytes of the model's file, if there is one.
        confidence: Confidence of the verdict.
        delta: δ of the bounds shown with attacks.
        seed: Seed of all randomness.
        asked: Rows of the records that attacks query; None: all.
    """

    subject: PublishedModel
    asked: IntArray | None = None

    def __init__(self, subject: PublishedModel, request: Request, size: int) -> None:
        self.subject, self.request, self.size = subject, request, size
        names = subject.record_names
        if names is not None and len(names) != size:
            raise InvalidArgument(
                f"Expected {size} names of records in record_names, got {len(names)}."
            )
        clone_with_seed(subject.estimator, request.seed)  # refuses estimators without clone
        self.groups = read_groups(subject.groups, size)
        self.content = None if subject.model_file is None else read_model_file(subject.model_file)
        self.confidence, self.seed = request.confidence, request.seed
        self.delta = DELTA if request.delta is None else request.delta

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the work, in order."""
        raise NotImplementedError

    @property
    def attacked(self) -> Any:
        """Index that selects the records attacks query."""
        return slice(None) if self.asked is None else self.asked

    @property
    def first_row(self) -> int:
        """Number of the first record: 1 in a file, where lines count from 1; 0 in an array."""
        return 0 if self.subject.source is None else 1

    def stream(self, *key: int) -> np.random.Generator:
        """Return a separate random stream for each key."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(2, *key)))


def refuse_claim(subject: PublishedModel, request: Request) -> None:
    """Refuse a claim, and stopping at one: rules decide once everything is measured."""
    name = type(subject).__name__
    if request.claim is not None:
        raise InvalidArgument(
            f"Expected no claim for {name}: its rules decide whether it may be released. "
            f"For example: rules=({subject.limiting.__name__}(limit=1.0),)."
        )
    if request.until is not None:
        raise InvalidArgument(
            f"Expected no until for {name}, got {request.until!r}: its rules are applied "
            "when all is measured."
        )


def read_model_file(path: Any) -> bytes:
    """Return the bytes of the model's file."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(
            f"Expected model_file that can be read, got {str(path)!r}: {error.strerror}."
        ) from error


def fingerprint_inputs(task: PublishedTask, targets: Any) -> dict[str, str]:
    """Return the hashes of all files and data that were given."""
    subject: Any = task.subject
    given = {
        field.name: getattr(subject, field.name)
        for field in dataclasses.fields(subject)
        if field.metadata.get("data") and getattr(subject, field.name) is not None
    }
    given["y"] = targets
    # Texts as arrays: single texts would be tested for being file names, which is slow.
    for name in {"feature_names", "record_names"} & set(given):
        given[name] = np.asarray(given[name], np.str_)
    if task.content is not None:
        given["model_file"] = task.content
    if "groups" in given:
        given["groups"] = task.groups
    # The plan identifies an attack from a plug-in by its code: settings hold only its name.
    for name in subject.attack_names:
        if not name_of(ATTACKS[name]).startswith("epsilometer."):
            given[f"attack {name}"] = find_code(ATTACKS[name]).digests
    files = {} if subject.source is None else dict(subject.source.fingerprints())
    return {**files, **{name: fingerprint(value) for name, value in given.items()}}


@dataclass(frozen=True, eq=False, kw_only=True)
class PublishedJob:
    """The parts of an audit, each a unit.

    Attributes:
        plan: Everything that determines the result.
        task: What is to be measured.
        directory: Where longer parts store their own units; None: nowhere.
        engine: Executes these units.
        listen: Callbacks that receive events.
    """

    plan: Plan
    task: PublishedTask
    directory: Path | None
    engine: Engine
    listen: Sequence[Listener]

    @property
    def work(self) -> Mapping[str, Callable[[], Arrays]]:
        """The function that computes each part."""
        raise NotImplementedError

    def collect(self, found: Mapping[str, Arrays]) -> "PublishedResults":
        """Return the results of the parts, to be combined."""
        raise NotImplementedError

    def unit(self, index: int) -> Arrays:
        """Compute one part of the work."""
        return self.work[self.task.parts[index]]()

    def missing(self, index: int) -> Arrays:
        """Return nothing. It is never called: errors of a part reach the caller."""
        return {}

    def watch(self) -> Watch:
        """Return a watch that never reports: rules need all parts."""
        return Unwatched()

    def result(self, units: Iterable[Arrays], done: Done) -> Audit:
        """Return the audit of all parts, with the rules applied."""
        results = self.collect(dict(zip(self.task.parts, units, strict=True)))
        if self.directory is not None:
            write_whole(self.directory / RECORDS, results.list_records().encode("utf-8"))
        return results.make_audit(done.provenance)

    def _folder(self, name: str) -> Path | None:
        return None if self.directory is None else self.directory / name


def make_parts(task: PublishedTask, targets: Any, **further: Any) -> dict[str, Any]:
    """Return the fields of every job: its plan, its task, and the engine of its longer parts."""
    request = task.request
    plan = request.make_plan(
        task.subject,
        units=len(task.parts),
        inputs=fingerprint_inputs(task, targets),
        estimator=name_of(type(task.subject.estimator)),
        parts=list(task.parts),
        **further,
    )
    return {
        "plan": plan,
        "task": task,
        "directory": None if request.recompute else request.out,  # recomputing writes nothing
        "engine": request.engine or Local(),
        "listen": request.listen,
    }


def write_scores(
    names: Sequence[str], scores: Callable[[int, str], Sequence[RecordScores]]
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of all attacks; ``scores(index, name)`` returns scores of all targets."""
    for place, name in enumerate(names):
        found = scores(place, name)
        yield f"scores {name}", np.stack([score.values for score in found])
        yield f"named {name}", np.array(found[0].attack)
        yield f"cites {name}", np.array(found[0].cites, np.str_)
        yield f"cut {name}", np.array([score.threshold for score in found])


@dataclass(frozen=True, eq=False, kw_only=True)
class PublishedResults:
    """Results of the parts of an audit, to be combined into one audit.

    Attributes:
        task: The task that was measured.
        found: The arrays of each part.
    """

    task: PublishedTask
    found: Mapping[str, Arrays]

    def make_audit(self, provenance: Provenance) -> Audit:
        """Return the audit: the outcomes of the rules, and their evidence."""
        raise NotImplementedError

    @property
    def measured(self) -> Measured:
        """The quantities that rules use."""
        raise NotImplementedError

    @property
    def risk(self) -> FloatArray:
        """The risk of each measured record."""
        raise NotImplementedError

    @property
    def order(self) -> IntArray:
        """Positions of measured records by risk, the riskiest first."""
        return np.argsort(-self.risk, kind="stable")

    @property
    def classes(self) -> NDArray[np.str_] | None:
        """The class of each record, as a text; None if there are no classes."""
        return None

    @property
    def leaks(self) -> list[Leak] | None:
        """Leaks found in the model's file; None if it was not searched."""
        return read_leaks(self.found.get("file"))

    def apply_rules(self) -> tuple[tuple[RuleFinding, ...], tuple[MembershipFinding, ...]]:
        """Return the outcome of each rule and the results of each attack."""
        rules, confidence = self.task.subject.deciding_rules, self.task.confidence
        return apply_rules(self.measured, rules, confidence=confidence)

    def _judge(self) -> tuple[tuple[RuleFinding, ...], tuple[MembershipFinding, ...]]:
        """Return the rules, the most severe first, and attacks with their bounds."""
        rules, attacks = self.apply_rules()
        kinds = [leak.kind for leak in self.leaks or ()]
        size = self.task.size
        grave = {rule: weigh_rule(rule, size, kinds) for rule in rules if rule.outcome == "fail"}
        rules = tuple(sorted(rules, key=lambda rule: -grave.get(rule, 0.0)))
        return rules, tuple(map(self._add_bound, self.task.subject.attack_names, attacks))

    def list_records(self) -> str:
        """Return the records at risk, as CSV: for the run's directory alone."""
        task, records = self.task, self.found["leave-one-out"]["records"]
        names, classes, risk = task.subject.record_names, self.classes, self.risk
        rows = [
            (
                rank,
                record + task.first_row,
                "" if names is None else names[record],
                *(() if classes is None else (str(classes[record]),)),
                float(risk[index]),
                "" if (right := self.rate_attack(record)) is None else right,
            )
            for rank, index in enumerate(self.order.tolist(), start=1)
            for record in [int(records[index])]
        ]
        middle = () if classes is None else ("class",)
        return to_csv_text(("rank", "row", "name", *middle, "risk", "attacked"), rows)

    @cached_property
    def attacked(self) -> FloatArray | None:
        """How often the strongest attack is right about each record, over the attacked models.

        It is nan for records that no attack queried.
        """
        names = self.task.subject.attack_names
        if not names:
            return None
        found = self.found["attacks"]

        def measure(name: str) -> FloatArray:
            said = found[f"scores {name}"] > found[f"cut {name}"][:, None]
            right: FloatArray = (said == found["member"]).mean(axis=0)
            return right

        every = np.full(self.task.size, np.nan)
        every[self.task.attacked] = max(map(measure, names), key=lambda right: float(right.mean()))
        return every

    def rate_attack(self, record: int) -> float | None:
        """Return how often the strongest attack is right about a record; None: not queried."""
        rate = math.nan if self.attacked is None else float(self.attacked[record])
        return None if math.isnan(rate) else rate

    def _name(self, name: str) -> str:
        """Return the display name of an attack."""
        return str(self.found["attacks"][f"named {name}"])

    def _split(self, name: str, some: BoolArray | None = None) -> clusters.Observed:
        """Return scores of some records, by record where several models were attacked."""
        found = self.found["attacks"]
        at = slice(None) if some is None else some[self.task.attacked]
        values, member = found[f"scores {name}"][:, at], found["member"][:, at]
        if len(member) > 1:
            return clusters.ScoresByRecord.from_models(values, member)
        return Scores(inside=values[member], outside=values[~member])

    def _add_bound(
        self, name: str, finding: MembershipFinding, *, coins: bool = True
    ) -> MembershipFinding:
        """Add the bound of the first model that was attacked: one run, one bound."""
        found = self.found["attacks"]
        scores = RecordScores(
            attack=self._name(name),
            values=found[f"scores {name}"][0],
            threshold=float(found[f"cut {name}"][0]),
            convention="",
        )
        bound = bound_one_run(
            scores,
            found["member"][0],
            coins=coins,
            delta=self.task.delta,
            confidence=self.task.confidence,
        )
        return msgspec.structs.replace(finding, bound=round_threshold(bound))

    def _describe_coverage(self, risk: FloatArray, screened: Any = None) -> str:
        """Describe the share of all records above the limit, if a sample was measured."""
        limit, of, confidence = self.task.subject.limit, self.task.size, self.task.confidence
        if risk.size >= of or not bool(self.found["leave-one-out"]["drawn"]):
            return ""
        share = share_exposed(risk > limit, screened, of, confidence=confidence)
        return (
            f"of all {of:,} records {share.low:.2%} to {share.high:.2%} are above {limit:g}, "
            f"with {confidence:g} confidence"
        )

    def _group_risks(self, attacks: Sequence[MembershipFinding]) -> tuple[GroupRisk, ...]:
        return compare_groups(self._find_groups(attacks))

    def _describe_groups(self) -> list[str]:
        """Return caveats on groups that are too small to be compared."""
        return describe_left_out(self._find_groups(()))

    def _find_groups(self, attacks: Sequence[MembershipFinding]) -> GroupedRisk:
        task, names = self.task, self.task.subject.attack_names
        strongest = max(
            zip(attacks, names, strict=False), key=lambda pair: pair[0].auc, default=None
        )
        own = {} if self.classes is None else {"class": self.classes}
        return GroupedRisk(
            columns={**own, **task.groups},
            records=self.found["leave-one-out"]["records"],
            risk=self.risk,
            limit=task.subject.limit,
            scores=None if strongest is None else partial(self._split, strongest[1]),
            member=None if strongest is None else self.found["attacks"]["member"][0],
            attacked=task.attacked,
            confidence=task.confidence,
            screened=self.found["leave-one-out"].get("screened"),
            attacks=max(len(attacks), 1),
        )

    def _list_cites(self, first: Sequence[str], *then: str) -> tuple[str, ...]:
        """Return all citations: the given ones, with those of the attacks in between."""
        attacks = self.task.subject.attack_names
        own = [str(key) for name in attacks for key in self.found["attacks"][f"cites {name}"]]
        limits = ("waudbysmith2024", "steinke2023") if attacks else ()
        return tuple(dict.fromkeys([*first, *own, *then, *limits]))


@dataclass(frozen=True)
class CallerProcess:
    """Run one part after the other in this process; errors reach the caller."""

    @property
    def workers(self) -> int:
        """One."""
        return 1

    def outcomes(self, call: Call, units: Iterable[int]) -> Outcomes:
        """Yield outcomes in the order of ``units``; none of them failed."""
        for unit in units:
            with threadpool_limits(1):  # the same order of sums on any machine
                arrays = check_arrays(call(unit))
            yield Outcome(unit=unit, arrays=arrays, error="", seconds=0.0)
