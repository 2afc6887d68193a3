"""Describe the audit of a classifier: its settings, and the task that follows from them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.audits.classifier.attacks.shadow_attacks import ATTACKS
from epsilometer.audits.classifier.leave_one_out.families import (
    Family,
    Removable,
    family_of,
    find_scaled,
)
from epsilometer.audits.classifier.leave_one_out.refits import PATIENCE
from epsilometer.audits.classifier.published import (
    USUAL_ATTACKS,
    PublishedModel,
    PublishedTask,
    refuse_claim,
)
from epsilometer.audits.classifier.release import (
    RULES,
    GainAtMost,
    NoRecordInAnswers,
    NoRecordInFile,
    PdtpAtMost,
    ReleaseRule,
)
from epsilometer.audits.classifier.sklearn_models import (
    Preprocessing,
    Unwrapped,
    check_choice,
    list_last,
    read_labels,
    unwrap_pipeline,
)
from epsilometer.audits.classifier.threats.measuring import check_threats
from epsilometer.audits.classifier.threats.threat import USAGE
from epsilometer.core.settings import DATA, NAMED_DATA
from epsilometer.engine.request import Request
from epsilometer.errors import InvalidArgument
from epsilometer.types import BoolArray, FloatArray, IntArray

PublishedAs: TypeAlias = Literal["file", "api", "labels"]
_QUERIES = 9  # number of the random stream that draws the records attacks query
_STEPS = 25  # default number of measurements of a removal plan
MOST_BYTES = 4 << 30  # largest size of the predictions of shadows
_LEAST_RECORDS = 320  # records from which an eighth is enough to train on
_MOST_RECORDS = 20_000  # beyond this, less is done by default, without a removal plan
# Defaults must take minutes on tables of any size.
_REFITTED = 2_000_000  # total rows of models fitted without a record; half for large tables
_COMPARED = 400_000_000  # total rows compared, if each prediction needs all others
_FEWEST = 24  # smallest number of records to leave out
_ASKED = 8_192  # records that attacks query, if each answer searches all records
_REMEDIES = ((5_000, 9), (20_000, 2))  # number of remedies, up to a number of records


@dataclass(frozen=True, eq=False)
class Classifier(PublishedModel):
    """A classifier trained on these records: may it be published, and what would help?

    Its ``rules`` decide, so a claimed ε is refused. No δ is needed; if given, it is the δ of the
    bounds shown with attacks.

    Guarantee: *do not release* is wrong in at most ``1 - confidence`` of audits where it rests on
        samples. It is certain where all records were measured exactly. *Release* has the same error
        for each rule, as measured by these attacks, and proves no privacy. The same settings give
        the same audit, byte for byte.
    Assumption: one record per row; scores of different records are independent. Attacks are made
        on models that were trained on halves of the records.

    Attributes:
        estimator: A scikit-learn estimator or pipeline, not fitted.
        X: Features: an array, a sparse matrix or a data frame.
        y: Labels.
        published_as: What is published. ``"file"``: the fitted model itself, which is then
            searched for records; the default, since it shows most. ``"api"``: probabilities, with
            ``decimals``. ``"labels"``: the predicted class alone.
        model_file: The file to publish, if there is one already: pickle, joblib, skops, ONNX. Its
            bytes are searched; it is never loaded.
        records: Records to leave out one by one: row numbers, ``"all"``, or ``"sample:500"`` for
            500 at random. ``"screen:500"`` takes the 250 that a screen ranks highest and 250 at
            random. None: all records of small tables. From n records of larger ones, a screen and
            a sample choose 2 million / n, or 1 million / n above 20,000 records, but at least 24.
            It is 400 million / n for nearest neighbours, and for logistic regression if leaving
            out one record needs all others. Other exact families leave out all.
        preprocessing: Whether a pipeline's earlier steps are fitted again without the record
            (``"refit"``), or kept as fitted to all records (``"fixed"``).
        patience: Seconds that refits may take; an audit that needs more is refused before it
            starts.
        attacks: Names of ``ATTACKS``, or ``"all"``; none: only leave-one-out risk is judged.
        shadows: Models in the pool of shadows. All of them are attacked; above 8,192 records
            fewer, down to 8, unless ``precision`` is given.
        precision: Largest width of limits on attacks. More models are trained and attacked until
            limits are that close, or stop improving.
        skip_trend: Attack no models of a quarter and an eighth of the records, whose trend predicts
            the result for a model of all records.
        threats: Threats besides membership; none by default. ``attribute:COLUMN`` guesses a hidden
            column, and ``range`` tells whether someone similar was a member. ``structure`` counts
            records whose answer or leaf few others share, and ``usage`` estimates which share of a
            dataset was used.
        groups: Column → group of each record, to see whether some are more at risk.
        rules: Rules that decide; by default one for everything that is measured.
        decimals: Number of decimals of the probabilities that an API returns; None: all.
        removal: Measurements of the plan to drop records; None: 25 if records can be left out
            without refitting, else none.
        remedies: Largest number of remedies to measure that need new models, if some rule does not
            pass. Each costs as much as the attacks. None: 9; 2 above 5,000 records, and none above
            20,000.
        variation: Models trained on all records with other seeds, to see how much predictions
            vary for other reasons; 0: none.
        feature_names: Names of the columns of X.
        categorical: Which columns of X are categorical.
        record_names: Names of the records, for ``records.csv`` in the run's directory alone.
        target: ln p of an existing model, shape ``(records, classes)``, and which records it was
            trained on. It is attacked instead of models of the pool, and compared with them.
        fitted: The model to publish, fitted already to the records that ``target`` names, or to
            all. It is searched instead of one fitted here, and compared with it.
        show_records: Write row numbers of the riskiest records into the result. Otherwise they have
            a rank, which ``records.csv`` in the run's directory maps to a row.
        title: What is audited, in words; the estimator's class by default.
        caveats: Caveats to show first.
        source: Where the records came from, if from a file.

    Example:
        >>> import epsilometer as em
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.neighbors import KNeighborsClassifier
        >>> nearest = em.Classifier(
        ...     KNeighborsClassifier(1), *load_iris(return_X_y=True), attacks=()
        ... )
        >>> audit = em.audit(nearest, engine=em.InProcess())
        >>> audit.verdict, audit.one(em.findings.LeaveOneOut).exposed
        ('do not release', 6)
    """

    kind = "classifier"
    method = "predict_proba"
    limiting = PdtpAtMost
    rule_kinds = get_args(ReleaseRule)

    estimator: Any = field(metadata=DATA)
    X: Any = field(metadata=DATA)
    y: Any = field(metadata=DATA)
    _: KW_ONLY
    published_as: PublishedAs = "file"
    model_file: Path | None = None
    records: Sequence[int] | IntArray | str | None = field(default=None, metadata=NAMED_DATA)
    preprocessing: Preprocessing = "refit"
    patience: float = PATIENCE
    attacks: Sequence[str] | str = USUAL_ATTACKS
    shadows: int = 32
    precision: float | None = None
    skip_trend: bool = False
    threats: Sequence[str] = ()
    groups: Mapping[str, ArrayLike] | None = field(default=None, metadata=DATA)
    rules: Sequence[ReleaseRule] | ReleaseRule | None = None
    decimals: int | None = None
    removal: int | None = None
    remedies: int | None = None
    variation: int = 0
    feature_names: Sequence[str] | None = field(default=None, metadata=DATA)
    categorical: ArrayLike | None = field(default=None, metadata=DATA)
    record_names: Sequence[str] | None = field(default=None, metadata=DATA)
    target: tuple[ArrayLike, ArrayLike] | None = field(default=None, metadata=DATA)
    fitted: Any = field(default=None, metadata=DATA)
    show_records: bool = False
    title: str = ""
    caveats: tuple[str, ...] = ()
    source: Any = None

    def __post_init__(self) -> None:
        check_choice(PublishedAs, published_as=self.published_as)
        if self.decimals is not None and self.published_as != "api":
            raise InvalidArgument(
                f"Expected decimals with published_as='api', got published_as="
                f"{self.published_as!r}: the file gives all digits, and a label has none."
            )
        if isinstance(self.threats, str):
            object.__setattr__(self, "threats", (self.threats,))
        check_threats(self.threats)
        self.check_settings()
        _validate.positive(precision=1.0 if self.precision is None else self.precision)
        _validate.whole(0, variation=self.variation, removal=self.removal or 0)
        _validate.whole(0, remedies=self.remedies or 0)
        _validate.whole(1, decimals=1 if self.decimals is None else self.decimals)
        if self.variation == 1:
            raise InvalidArgument("Expected variation of at least 2 models, or 0 for none, got 1.")

    def list_attacks(self) -> Sequence[str]:
        """Return the names of all attacks that can be run."""
        return tuple(ATTACKS)

    def list_usual_rules(self) -> tuple[ReleaseRule, ...]:
        """Return the default rules."""
        return list_usual_rules(self.published_as, self.attack_names, self.threats)

    @property
    def shown(self) -> int | None:
        """Number of decimals of probabilities that others see; None: all; −1: the class alone."""
        return -1 if self.published_as == "labels" else self.decimals


class ClassifierTask(PublishedTask):
    """A classifier's settings, and everything derived from them and its records.

    Settings that cannot be audited are refused here, before any work begins.

    Attributes:
        classes: The labels, in order.
        codes: Positions of the records' labels among them.
        categorical: Which features are categorical; None: none are.
        groups: Column → group of each record.
        target: ln p of an existing model, and its members; None: models of the pool.
        records: Records to leave out: row numbers, a number of them by a screen, or None for all.
        asked: Rows of the records that attacks query; None: all.
        remedies: Largest number of remedies to try that need new models.
        removal: Measurements of the removal plan; 0: there is no plan.
    """

    subject: Classifier

    def __init__(self, subject: Classifier, request: Request) -> None:
        refuse_claim(subject, request)
        self.classes, self.codes = read_labels(subject.y)
        _check_sizes(subject, self.classes.size, self.codes.size)
        super().__init__(subject, request, self.codes.size)
        self.categorical: BoolArray | None = None
        if subject.categorical is not None:
            self.categorical = np.asarray(subject.categorical, bool)
        self.target: tuple[FloatArray, BoolArray] | None = None
        if subject.target is not None:
            log_proba, member = subject.target
            self.target = np.asarray(log_proba, np.float64), np.asarray(member, bool)
        self.records = _choose_usual(subject, self.codes.size)
        self.asked = self._choose_asked()
        self.remedies = _count_remedies(subject, self.codes.size)
        self.removal = _count_measurements(subject, self.codes.size)

    def _choose_asked(self) -> IntArray | None:
        """Draw the records that attacks query, if querying all takes long."""
        family = family_of([*list_last(self.subject.estimator)][-1])
        if family is None or not family.searches or self.codes.size <= _ASKED:
            return None
        drawn = self.stream(_QUERIES).choice(self.codes.size, _ASKED, replace=False)
        return np.sort(drawn).astype(np.int64)

    @property
    def _can_extrapolate(self) -> bool:
        wanted = bool(self.subject.attack_names) and not self.subject.skip_trend
        enough = self.codes.size >= max(_LEAST_RECORDS, 16 * self.classes.size)
        return wanted and enough and self.target is None

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the work, in order."""
        wanted = {
            "attacks": bool(self.subject.attack_names),  # their models serve as a screen
            "leave-one-out": True,
            "sizes": self._can_extrapolate,
            "file": self.subject.has_rule(NoRecordInFile),
            "extraction": self.subject.has_rule(NoRecordInAnswers),
            "threats": bool(self.subject.threats),
            "removal": self.removal > 0,
            "variation": self.subject.variation > 0,
            "remedies": bool(self.subject.attack_names) and self.subject.remedies != 0,
        }
        return tuple(part for part, needed in wanted.items() if needed)


def list_usual_rules(
    published_as: str, attacks: Sequence[str], threats: Sequence[str]
) -> tuple[ReleaseRule, ...]:
    """Return the default rules: one for everything that is measured.

    Example:
        >>> [type(rule).__name__ for rule in list_usual_rules("labels", (), ("range",))]
        ['NoRecordInAnswers', 'PdtpAtMost', 'GainAtMost']
    """
    measured = {
        NoRecordInFile: published_as == "file",
        NoRecordInAnswers: published_as != "file",
        PdtpAtMost: True,
    }
    usual = tuple(rule for rule in RULES if measured.get(type(rule), bool(attacks)))
    return (*usual, GainAtMost()) if set(threats) - {USAGE} else usual


def count_bytes(classes: int, records: int, models: int) -> int:
    """Return the size of the predictions of a pool."""
    return 4 * classes * records * models


def _check_sizes(subject: Classifier, classes: int, n: int) -> None:
    if classes > n // 2:
        raise InvalidArgument(
            f"Expected no more classes than a shadow has records, got {classes} classes of "
            f"{n} records. If y is a number, audit it as em.Regressor, epsilometer regressor."
        )
    size = count_bytes(classes, n, subject.shadows)
    if subject.attack_names and size > MOST_BYTES:
        raise InvalidArgument(
            f"Expected predictions of all shadows to fit into {MOST_BYTES >> 30} GiB, "
            f"{subject.shadows} of {n:,} records and {classes:,} classes need "
            f"{size / 2**30:.1f}. Take fewer shadows, or no attacks. If y is a number, audit "
            "it as em.Regressor, epsilometer regressor."
        )
    shape: tuple[int, ...] = getattr(subject.X, "shape", ())
    for name in ("feature_names", "categorical"):
        given = getattr(subject, name)
        if given is not None and len(shape) == 2 and len(given) != shape[1]:
            raise InvalidArgument(
                f"Expected {name} for each of {shape[1]} columns of X, got {len(given)}."
            )


def _choose_usual(subject: Classifier, n: int) -> Any:
    """Return which records to leave out; by default, as many as take minutes."""
    records = subject.records
    if records is None:
        exact = _find_exact(subject)
        family = None if exact is None else exact[0]
        rows = _REFITTED if n <= _MOST_RECORDS else _REFITTED // 2
        if family is not None:
            rows = _COMPARED if family.compares_all else n * n
        size = max(_FEWEST, rows // n)
        few = size >= n or (exact is not None and exact[1]().count_compared() * n <= rows)
        return None if few else f"screen:{size}"
    if isinstance(records, str):
        return None if records == "all" else records
    return np.asarray(records)


def _count_remedies(subject: Classifier, n: int) -> int:
    if subject.remedies is not None:
        return subject.remedies
    return next((count for most, count in _REMEDIES if n <= most), 0)


def _count_measurements(subject: Classifier, n: int) -> int:
    """Return how often a removal plan measures; by default, only if that needs no refits."""
    if subject.removal is not None:
        return subject.removal
    if n > _MOST_RECORDS or not (subject.records is None or isinstance(subject.records, str)):
        return 0
    if isinstance(subject.records, str) and subject.records != "all":
        return 0
    return _STEPS if _find_plain_family(subject) is not None else 0


def leaves_exactly(subject: Classifier) -> bool:
    """Tell whether records can be left out without refitting."""
    return find_family(subject) is not None


def find_family(subject: Classifier) -> Family | None:
    """Return the family by which records are left out; None if models are refitted."""
    found = _find_exact(subject)
    return None if found is None else found[0]


def _find_exact(subject: Classifier) -> tuple[Family, Callable[[], Removable]] | None:
    """Return the family by which records are left out, and a function that fits its model."""
    plain = _find_plain_family(subject)
    if plain is not None:
        inner = _unwrap(subject)
        return plain, lambda: plain.fit(inner.estimator, inner.features, subject.y)
    if subject.preprocessing != "refit":
        return None
    scaled = find_scaled(subject.estimator, subject.X, subject.y)
    if scaled is None:
        return None
    family, peeled = scaled
    return family, lambda: family.fit_peeled(peeled, subject.y)


def _find_plain_family(subject: Classifier) -> Family | None:
    """Return the family if no preprocessing changes with a record."""
    inner = _unwrap(subject)
    family = family_of(inner.estimator)
    if family is None or family.refuses(inner.estimator, inner.features, subject.y):
        return None
    return family


def _unwrap(subject: Classifier) -> Unwrapped:
    return unwrap_pipeline(
        subject.estimator, subject.X, subject.y, preprocessing=subject.preprocessing
    )
