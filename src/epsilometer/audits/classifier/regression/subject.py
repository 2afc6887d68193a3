"""Describe the audit of a regressor: its settings, and the task that follows from them."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.audits.classifier.attacks.evaluation import DELTA
from epsilometer.audits.classifier.kinds import check_kind
from epsilometer.audits.classifier.leave_one_out.refits import PATIENCE
from epsilometer.audits.classifier.regression.targets import read_targets
from epsilometer.audits.classifier.release import (
    AdvantageAtMost,
    CaughtAtMost,
    ChangeAtMost,
    NoRecordInFile,
    ReleaseRule,
)
from epsilometer.audits.classifier.sklearn_models import (
    Preprocessing,
    check_choice,
    clone_with_seed,
    count_rows,
)
from epsilometer.audits.classifier.subject import read_groups, read_model_file
from epsilometer.core.settings import DATA, NAMED_DATA
from epsilometer.engine.request import Request
from epsilometer.errors import InvalidArgument
from epsilometer.types import IntArray

PublishedAs: TypeAlias = Literal["file", "api"]
ATTACKS = ("loss", "lira", "rmia", "lira-offline")  # those that need residuals alone
RULES: tuple[ReleaseRule, ...] = (
    NoRecordInFile(),
    ChangeAtMost(),
    AdvantageAtMost(),
    CaughtAtMost(),
)


@dataclass(frozen=True, eq=False)
class Regressor:
    """A regressor trained on these records: may it be published?

    Its ``rules`` decide, as those of a ``Classifier`` do, by the same judge.

    Guarantee: *do not release* is wrong in at most ``1 - confidence`` of audits where it rests on
        samples, and certain where all records were measured exactly; *release* says the same of
        each rule, as these attacks measure it, and proves no privacy. The same settings give the
        same audit, byte for byte.
    Assumption: one record per row; scores of different records are independent. Attacks are made
        on models that were trained on halves of the records.

    Attributes:
        estimator: As of scikit-learn, or of scikit-survival; not fitted; pipelines too.
        X: Features: an array, a sparse matrix or a data frame.
        y: Numbers: one per record, or several, shape ``(records, outputs)``. Or pairs (event,
            time), a structured array, of a survival model.
        published_as: What others are given: ``"file"``, the fitted model, which is then searched
            for records; or ``"api"``, predictions, with ``rounding`` and ``noise``.
        model_file: The file that is to be published, if there is one already. It is never loaded.
        rounding: An API rounds predictions to multiples of it; None: it does not.
        noise: Standard deviation of normal noise that an API adds to every answer; None: none.
        records: Which are left out one by one: row numbers, ``"sample:500"``; None: all, or 500
            where each of more than 2,000 needs a fit of its own; fewer of more than 4,000, at
            least 40.
        preprocessing: Whether a pipeline's earlier steps are fitted again without the record
            (``"refit"``), or held as fitted to all (``"fixed"``).
        patience: Seconds that refits may take; more is refused before it begins.
        attacks: Names among ``loss``, ``lira``, ``rmia`` and ``lira-offline``; none: only changes
            of predictions are judged.
        shadows: Models in the pool of shadows; all of them are attacked.
        groups: Column → group of each record, to see whether some are more at risk.
        rules: By which it is judged.
        feature_names: Of the columns of X.
        categorical: Which columns of X are mere names of something.
        record_names: Of the records, for ``records.csv`` in the run's directory alone.
        show_records: Write row numbers of the riskiest records into the result.
        title: What is audited, in words; the estimator's class by default.
        caveats: What a reader must know beforehand.
        source: Where the records came from, if from a file.

    Example:
        >>> import epsilometer as em
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.neighbors import KNeighborsRegressor
        >>> nearest = em.Regressor(
        ...     KNeighborsRegressor(1), *load_diabetes(return_X_y=True), attacks=()
        ... )
        >>> audit = em.audit(nearest, engine=em.InProcess())
        >>> audit.verdict, audit.one(em.findings.PredictionChange).exposed
        ('do not release', 220)
    """

    estimator: Any = field(metadata=DATA)
    X: Any = field(metadata=DATA)
    y: Any = field(metadata=DATA)
    _: KW_ONLY
    published_as: PublishedAs = "file"
    model_file: Path | None = None
    rounding: float | None = None
    noise: float | None = None
    records: Sequence[int] | IntArray | str | None = field(default=None, metadata=NAMED_DATA)
    preprocessing: Preprocessing = "refit"
    patience: float = PATIENCE
    attacks: Sequence[str] | str = ("loss", "lira", "rmia")
    shadows: int = 32
    groups: Mapping[str, ArrayLike] | None = field(default=None, metadata=DATA)
    rules: Sequence[ReleaseRule] | ReleaseRule | None = None
    feature_names: Sequence[str] | None = field(default=None, metadata=DATA)
    categorical: ArrayLike | None = field(default=None, metadata=DATA)
    record_names: Sequence[str] | None = field(default=None, metadata=DATA)
    show_records: bool = False
    title: str = ""
    caveats: tuple[str, ...] = ()
    source: Any = None

    def __post_init__(self) -> None:
        if not hasattr(self.estimator, "fit"):
            raise InvalidArgument(
                f"Expected an estimator with fit and predict, got {type(self.estimator).__name__}."
            )
        check_kind(self.estimator, "regressor")
        check_choice(Preprocessing, preprocessing=self.preprocessing)
        check_choice(PublishedAs, published_as=self.published_as)
        self._check_publishing()
        self._check_lists()
        _validate.at_least(0, patience=self.patience)
        _validate.whole(4, shadows=self.shadows)
        for name in ("feature_names", "record_names"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(map(str, getattr(self, name))))

    def _check_publishing(self) -> None:
        for name in ("rounding", "noise"):
            value = getattr(self, name)
            if value is None:
                continue
            _validate.positive(**{name: value})
            if self.published_as != "api":
                raise InvalidArgument(
                    f"Expected {name} with published_as='api', got {self.published_as!r}: whoever "
                    "has the file has all digits, and asks without noise."
                )
        if self.model_file is not None and self.published_as != "file":
            raise InvalidArgument(
                f"Expected model_file with published_as='file', got {self.published_as!r}: "
                "nobody is given the file."
            )

    def _check_lists(self) -> None:
        if isinstance(self.rules, ReleaseRule):
            object.__setattr__(self, "rules", (self.rules,))
        for attack in self.attack_names:
            if attack not in ATTACKS:
                raise InvalidArgument(
                    f"Expected attacks among {', '.join(ATTACKS)}, or 'all', got {attack!r}."
                )
        if not self.deciding_rules:
            raise InvalidArgument("Expected at least one rule in rules, got none.")
        for rule in self.deciding_rules:
            known = {type(usual) for usual in RULES}
            if type(rule) not in known:
                names = ", ".join(k.__name__ for k in get_args(ReleaseRule) if k in known)
                raise InvalidArgument(f"Expected rules of {names}, got {_validate.short(rule)}.")

    @property
    def attack_names(self) -> tuple[str, ...]:
        """The attacks that are run, by their names."""
        if isinstance(self.attacks, str):
            return ATTACKS if self.attacks == "all" else (self.attacks,)
        return tuple(self.attacks)

    @property
    def deciding_rules(self) -> tuple[ReleaseRule, ...]:
        """The rules that decide: those given, or the usual ones."""
        if isinstance(self.rules, Sequence):
            return tuple(self.rules)
        measured = {NoRecordInFile: self.published_as == "file", ChangeAtMost: True}
        return tuple(r for r in RULES if measured.get(type(r), bool(self.attack_names)))

    @property
    def limit(self) -> float:
        """Change in units above which a record is exposed."""
        rules = (rule for rule in self.deciding_rules if isinstance(rule, ChangeAtMost))
        return next((rule.limit for rule in rules), 1.0)


class RegressorTask:
    """A regressor's settings, and what follows from them and its records.

    Attributes:
        subject: The settings.
        request: What was asked beside them.
        targets: What is predicted.
        groups: Column → group of each record.
        content: Bytes of the model's file, if there is one.
        confidence: Of the verdict.
        delta: δ of the bounds beside attacks.
        seed: From which all randomness follows.
    """

    def __init__(self, subject: Regressor, request: Request) -> None:
        if request.claim is not None:
            raise InvalidArgument(
                "Expected no claim for Regressor: its rules decide whether it may be released. "
                "Give rules=(ChangeAtMost(limit=1.0),), say."
            )
        if request.until is not None:
            raise InvalidArgument(
                f"Expected no until for Regressor, got {request.until!r}: its rules are applied "
                "when all is measured."
            )
        self.subject, self.request = subject, request
        self.targets = read_targets(subject.y)
        n = self.targets.records
        if count_rows(subject.X) != n:
            raise InvalidArgument(
                f"Expected as many rows in X as numbers in y, got {count_rows(subject.X)} and {n}."
            )
        names = subject.record_names
        if names is not None and len(names) != n:
            raise InvalidArgument(
                f"Expected {n} names of records in record_names, got {len(names)}."
            )
        clone_with_seed(subject.estimator, request.seed)  # refuses what cannot be cloned
        self.groups = read_groups(subject.groups, n)
        self.content = None if subject.model_file is None else read_model_file(subject.model_file)
        self.confidence, self.seed = request.confidence, request.seed
        self.delta = DELTA if request.delta is None else request.delta

    @property
    def first_row(self) -> int:
        """The number of the first record: 1 in a table, as people count lines; 0 in an array."""
        return 0 if self.subject.source is None else 1

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the work, in order."""
        wanted = {
            "leave-one-out": True,
            "attacks": bool(self.subject.attack_names),
            "file": any(isinstance(rule, NoRecordInFile) for rule in self.subject.deciding_rules),
        }
        return tuple(part for part, needed in wanted.items() if needed)

    def stream(self, *key: int) -> np.random.Generator:
        """Return a random stream of its own for each key."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(2, *key)))
