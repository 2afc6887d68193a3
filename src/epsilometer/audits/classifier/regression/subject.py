"""Describe the audit of a regressor: its settings, and the task that follows from them."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.audits.classifier.leave_one_out.refits import PATIENCE
from epsilometer.audits.classifier.published import (
    USUAL_ATTACKS,
    PublishedModel,
    PublishedTask,
    refuse_claim,
)
from epsilometer.audits.classifier.regression.targets import read_targets
from epsilometer.audits.classifier.release import (
    AdvantageAtMost,
    CaughtAtMost,
    ChangeAtMost,
    NoRecordInAnswers,
    NoRecordInFile,
    ReleaseRule,
)
from epsilometer.audits.classifier.sklearn_models import Preprocessing, check_choice, count_rows
from epsilometer.core.settings import DATA, NAMED_DATA
from epsilometer.engine.request import Request
from epsilometer.errors import InvalidArgument
from epsilometer.types import IntArray

PublishedAs: TypeAlias = Literal["file", "api"]
ATTACKS = ("loss", "lira", "rmia", "lira-offline")  # attacks that need only residuals
RULES: tuple[ReleaseRule, ...] = (
    NoRecordInFile(),
    NoRecordInAnswers(),
    ChangeAtMost(),
    AdvantageAtMost(),
    CaughtAtMost(),
)


@dataclass(frozen=True, eq=False)
class Regressor(PublishedModel):
    """A regressor trained on these records: may it be published?

    Its ``rules`` decide, in the same way as those of a ``Classifier``.

    Guarantee: *do not release* is wrong in at most ``1 - confidence`` of audits where it rests on
        samples, and certain where all records were measured exactly; *release* has the same error
        for each rule, as measured by these attacks, and proves no privacy. The same settings give
        the same audit, byte for byte.
    Assumption: one record per row; scores of different records are independent. Attacks are made
        on models that were trained on halves of the records.

    Attributes:
        estimator: An estimator of scikit-learn or scikit-survival, or a pipeline, not fitted.
        X: Features: an array, a sparse matrix or a data frame.
        y: Targets: one number per record, or several, shape ``(records, outputs)``. For a survival
            model, pairs (event, time), as a structured array.
        published_as: What is published: ``"file"``, the fitted model, which is then searched
            for records; or ``"api"``, predictions, with ``rounding`` and ``noise``.
        model_file: The file to publish, if there is one already. It is never loaded.
        rounding: Unit to which an API rounds predictions; None: not rounded.
        noise: Standard deviation of normal noise that an API adds to every answer; None: none.
        records: Records to leave out one by one: row numbers, or ``"sample:500"``. None: all; if
            more than 2,000 would each need a refit, 500 at random, or fewer above 4,000 records,
            but at least 40.
        preprocessing: Whether a pipeline's earlier steps are fitted again without the record
            (``"refit"``), or kept as fitted to all records (``"fixed"``).
        patience: Seconds that refits may take; an audit that needs more is refused before it
            starts.
        attacks: Names among ``loss``, ``lira``, ``rmia`` and ``lira-offline``; none: only changes
            of predictions are judged.
        shadows: Models in the pool of shadows; all of them are attacked.
        groups: Column → group of each record, to see whether some are more at risk.
        rules: Rules that decide; by default one for everything that is measured.
        feature_names: Names of the columns of X.
        categorical: Which columns of X are categorical.
        record_names: Names of the records, for ``records.csv`` in the run's directory alone.
        show_records: Write row numbers of the riskiest records into the result.
        title: What is audited, in words; the estimator's class by default.
        caveats: Caveats to show first.
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

    kind = "regressor"
    method = "predict"
    limiting = ChangeAtMost
    rule_kinds = tuple(kind for kind in get_args(ReleaseRule) if kind in set(map(type, RULES)))

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
    attacks: Sequence[str] | str = USUAL_ATTACKS
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
        check_choice(PublishedAs, published_as=self.published_as)
        self._check_answers()
        self.check_settings()

    def _check_answers(self) -> None:
        for name in ("rounding", "noise"):
            value = getattr(self, name)
            if value is None:
                continue
            _validate.positive(**{name: value})
            if self.published_as != "api":
                raise InvalidArgument(
                    f"Expected {name} with published_as='api', got {self.published_as!r}: the file "
                    "gives all digits, without noise."
                )

    def list_attacks(self) -> Sequence[str]:
        """Return the names of all attacks that can be run."""
        return ATTACKS

    def list_usual_rules(self) -> tuple[ReleaseRule, ...]:
        """Return the default rules."""
        return list_usual_rules(self.published_as, bool(self.attack_names))


def list_usual_rules(published_as: str, attacked: bool) -> tuple[ReleaseRule, ...]:
    """Return the default rules: one for everything that is measured."""
    file = published_as == "file"
    measured = {NoRecordInFile: file, NoRecordInAnswers: not file, ChangeAtMost: True}
    return tuple(rule for rule in RULES if measured.get(type(rule), attacked))


class RegressorTask(PublishedTask):
    """A regressor's settings, and everything derived from them and its records.

    Attributes:
        targets: What is predicted.
    """

    subject: Regressor

    def __init__(self, subject: Regressor, request: Request) -> None:
        refuse_claim(subject, request)
        self.targets = read_targets(subject.y)
        n = self.targets.records
        if count_rows(subject.X) != n:
            raise InvalidArgument(
                f"Expected as many rows in X as numbers in y, got {count_rows(subject.X)} and {n}."
            )
        super().__init__(subject, request, n)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the work, in order."""
        wanted = {
            "leave-one-out": True,
            "attacks": bool(self.subject.attack_names),
            "file": self.subject.has_rule(NoRecordInFile),
            "extraction": self.subject.has_rule(NoRecordInAnswers),
        }
        return tuple(part for part, needed in wanted.items() if needed)
