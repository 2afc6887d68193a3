"""Describe the audit of a classifier: its settings, and the task that follows from them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer.audits.classifier.attacks.evaluation import DELTA
from epsilometer.audits.classifier.attacks.shadow_attacks import ATTACKS
from epsilometer.audits.classifier.kinds import check_kind
from epsilometer.audits.classifier.leave_one_out.families import (
    Family,
    Removable,
    family_of,
    find_scaled,
)
from epsilometer.audits.classifier.leave_one_out.refits import PATIENCE
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
    clone_with_seed,
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
USUAL = ("loss", "lira", "rmia")
_STEPS = 25  # measurements of a removal plan
MOST_BYTES = 4 << 30  # of predictions of shadows
_LEAST_RECORDS = 320  # of which an eighth is enough to train on
_MOST_RECORDS = 20_000  # beyond which no removal plan is made unless asked
# What is done unasked must take minutes on tables of any size.
_REFITTED = 2_000_000  # rows of all models that are fitted without a record
_COMPARED = 400_000_000  # rows of all that are computed, where each is computed from all others
_FEWEST = 40  # records that are left out, however many there are
_REMEDIES = ((5_000, 9), (20_000, 2))  # up to so many records, so many remedies


@dataclass(frozen=True, eq=False)
class Classifier:
    """A classifier trained on these records: may it be published, and what would help?

    Its ``rules`` decide, so that a claimed ε is refused. No δ is needed; one that is given is that
    of the bounds beside attacks.

    Guarantee: *do not release* is wrong in at most ``1 - confidence`` of audits where it rests on
        samples, and certain where all records were measured exactly; *release* says the same of
        each rule, as these attacks measure it, and proves no privacy. The same settings give the
        same audit, byte for byte, however often the work was killed.
    Assumption: one record per row; scores of different records are independent. Attacks are made
        on models that were trained on halves of the records.

    Attributes:
        estimator: As of scikit-learn, not fitted; pipelines too.
        X: Features: an array, a sparse matrix or a data frame.
        y: Labels.
        published_as: What others are given. ``"file"``: the fitted model itself, which is then
            searched for records; the default, since it shows most. ``"api"``: probabilities, with
            ``decimals``. ``"labels"``: the predicted class alone.
        model_file: The file that is to be published, if there is one already: pickle, joblib,
            skops, ONNX. Its bytes are searched; it is never loaded.
        records: Which are left out one by one: row numbers, ``"all"``, ``"sample:500"`` for 500
            by chance, or ``"screen:500"`` for 250 that models of halves of the records point at
            and 250 by chance from the others. None: all of small tables; of larger ones so many,
            by a screen, that their number times that of the records is 2 million (400 million for
            nearest neighbours and where logistic regression without a record takes a look at all
            others; all, for other exact families).
        preprocessing: Whether a pipeline's earlier steps are fitted again without the record
            (``"refit"``), or held as fitted to all (``"fixed"``).
        patience: Seconds that refits may take; more is refused before it begins.
        attacks: Names of ``ATTACKS``, or ``"all"``; none: only leave-one-out risk is judged.
        shadows: Models in the pool of shadows; all of them are attacked.
        precision: How wide limits on attacks may be, upper less lower; more models are trained and
            attacked until they are no wider, or until more models no longer narrow them.
        skip_trend: Attack no models of a quarter and an eighth of the records, whose trend says
            what a model of all records would show.
        threats: Beside membership: ``attribute:COLUMN`` guesses a hidden column, ``range`` tells
            whether anybody alike was in, ``structure`` counts records whose answer or leaf few
            share, ``usage`` tells which share of a dataset was used. None are measured unasked.
        groups: Column → group of each record, to see whether some are more at risk.
        rules: By which it is judged; ``RULES`` by default, without attacks only the first.
        decimals: With how many decimals an API shows probabilities; None: all.
        removal: Measurements of the plan to drop records; None: 25 where records can be left out
            without fitting again, else none.
        remedies: How many remedies that need new models are carried out and measured, at most,
            where some rule does not pass; each costs as much as the attacks. 0: none. None: 9; 2 of
            more than 5,000 records; none of more than 20,000.
        variation: Models trained on all records with other seeds, to see how much predictions
            vary anyway; 0: none.
        feature_names: Of the columns of X.
        categorical: Which columns of X are mere names of something.
        record_names: Of the records, for ``records.csv`` in the run's directory alone.
        target: ln p of a model that is there already, shape ``(records, classes)``, and which of
            the records it was trained on: attacked in place of models of the pool, and compared
            with them.
        fitted: The model that is to be published, fitted already to those records that ``target``
            says, or to all: searched in place of one that is fitted here, and compared with it.
        show_records: Write row numbers of the riskiest records into the result; without it they
            are named by their rank alone, and ``records.csv`` in the run's directory says which
            they are.
        title: What is audited, in words; the estimator's class by default.
        caveats: What a reader must know beforehand.
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

    estimator: Any = field(metadata=DATA)
    X: Any = field(metadata=DATA)
    y: Any = field(metadata=DATA)
    _: KW_ONLY
    published_as: PublishedAs = "file"
    model_file: Path | None = None
    records: Sequence[int] | IntArray | str | None = field(default=None, metadata=NAMED_DATA)
    preprocessing: Preprocessing = "refit"
    patience: float = PATIENCE
    attacks: Sequence[str] | str = USUAL
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
        if not hasattr(self.estimator, "fit"):
            raise InvalidArgument(
                "Expected an estimator with fit and predict_proba, got "
                f"{type(self.estimator).__name__}."
            )
        check_kind(self.estimator, "classifier")
        check_choice(Preprocessing, preprocessing=self.preprocessing)
        self._check_publishing()
        self._check_lists()
        _validate.at_least(0, patience=self.patience)
        _validate.whole(4, shadows=self.shadows)
        _validate.positive(precision=1.0 if self.precision is None else self.precision)
        _validate.whole(0, variation=self.variation, removal=self.removal or 0)
        _validate.whole(0, remedies=self.remedies or 0)
        _validate.whole(1, decimals=1 if self.decimals is None else self.decimals)
        if self.variation == 1:
            raise InvalidArgument("Expected variation of at least 2 models, or 0 for none, got 1.")
        for name in ("feature_names", "record_names"):  # a text is taken letter by letter
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(map(str, getattr(self, name))))

    def _check_publishing(self) -> None:
        check_choice(PublishedAs, published_as=self.published_as)
        if self.decimals is not None and self.published_as != "api":
            raise InvalidArgument(
                f"Expected decimals with published_as='api', got published_as="
                f"{self.published_as!r}: whoever has the file has all digits, and a label has none."
            )
        if self.model_file is not None and self.published_as != "file":
            raise InvalidArgument(
                f"Expected model_file with published_as='file', got {self.published_as!r}: "
                "nobody is given the file."
            )

    def _check_lists(self) -> None:
        if isinstance(self.rules, ReleaseRule):
            object.__setattr__(self, "rules", (self.rules,))
        if isinstance(self.threats, str):
            object.__setattr__(self, "threats", (self.threats,))
        check_threats(self.threats)
        for name in ("attacks", "rules"):
            if not isinstance(getattr(self, name), (str, list, tuple, type(None))):
                raise InvalidArgument(
                    f"Expected {name} as a list, got {_validate.short(getattr(self, name))}."
                )
        for attack in self.attack_names:
            if attack not in ATTACKS:
                raise InvalidArgument(
                    f"Expected attacks among {', '.join(ATTACKS)}, or 'all', got {attack!r}."
                )
        if not self.deciding_rules:
            raise InvalidArgument("Expected at least one rule in rules, got none.")
        for rule in self.deciding_rules:
            if not isinstance(rule, ReleaseRule):
                known = ", ".join(kind.__name__ for kind in get_args(ReleaseRule))
                raise InvalidArgument(f"Expected rules of {known}, got {_validate.short(rule)}.")

    @property
    def attack_names(self) -> tuple[str, ...]:
        """The attacks that are run, by their names in ``ATTACKS``."""
        if isinstance(self.attacks, str):
            return tuple(ATTACKS) if self.attacks == "all" else (self.attacks,)
        return tuple(self.attacks)

    @property
    def deciding_rules(self) -> tuple[ReleaseRule, ...]:
        """The rules that decide: those given, or the usual ones."""
        if isinstance(self.rules, Sequence):
            return tuple(self.rules)
        return list_usual_rules(self.published_as, self.attack_names, self.threats)

    @property
    def shown(self) -> int | None:
        """Decimals of probabilities that others see; None: all of them; −1: the class alone."""
        return -1 if self.published_as == "labels" else self.decimals

    @property
    def limit(self) -> float:
        """PDTP above which a record is exposed."""
        rules = (rule for rule in self.deciding_rules if isinstance(rule, PdtpAtMost))
        return next((rule.limit for rule in rules), 1.0)


class ClassifierTask:
    """A classifier's settings, and what follows from them and its records.

    What cannot be audited is refused here, before any work begins.

    Attributes:
        subject: The settings.
        request: What was asked beside them.
        classes: The labels, in order.
        codes: Positions of the records' labels among them.
        categorical: Which features are names of something; None: none are.
        groups: Column → group of each record.
        target: ln p of a model that is there already, and who was in it; None: models of the pool.
        content: Bytes of the model's file, if there is one.
        records: Which are left out: row numbers, a number of them by a screen, or None for all.
        remedies: How many remedies that need new models are carried out, at most.
        removal: Measurements of the removal plan; 0: there is none.
        confidence: Of the verdict.
        delta: δ of the bounds beside attacks.
        seed: From which all randomness follows.
    """

    def __init__(self, subject: Classifier, request: Request) -> None:
        if request.claim is not None:
            raise InvalidArgument(
                "Expected no claim for Classifier: its rules decide whether it may be released. "
                "Give rules=(PdtpAtMost(limit=1.0),), say."
            )
        if request.until is not None:
            raise InvalidArgument(
                f"Expected no until for Classifier, got {request.until!r}: its rules are applied "
                "when all is measured."
            )
        self.subject, self.request = subject, request
        self.classes, self.codes = read_labels(subject.y)
        _check_sizes(subject, self.classes.size, self.codes.size)
        clone_with_seed(subject.estimator, request.seed)  # refuses what cannot be cloned
        self.categorical: BoolArray | None = None
        if subject.categorical is not None:
            self.categorical = np.asarray(subject.categorical, bool)
        self.groups = read_groups(subject.groups, self.codes.size)
        self.target: tuple[FloatArray, BoolArray] | None = None
        if subject.target is not None:
            log_proba, member = subject.target
            self.target = np.asarray(log_proba, np.float64), np.asarray(member, bool)
        self.content = None if subject.model_file is None else read_model_file(subject.model_file)
        self.records = _choose_usual(subject, self.codes.size)
        self.remedies = _count_remedies(subject, self.codes.size)
        self.removal = _count_measurements(subject, self.codes.size)
        self.confidence, self.seed = request.confidence, request.seed
        self.delta = DELTA if request.delta is None else request.delta

    @property
    def first_row(self) -> int:
        """The number of the first record: 1 in a table, as people count lines; 0 in an array."""
        return 0 if self.subject.source is None else 1

    @property
    def _can_extrapolate(self) -> bool:
        wanted = bool(self.subject.attack_names) and not self.subject.skip_trend
        enough = self.codes.size >= max(_LEAST_RECORDS, 16 * self.classes.size)
        return wanted and enough and self.target is None

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the work, in order."""
        wanted = {
            "attacks": bool(self.subject.attack_names),  # whose models are a screen of records
            "leave-one-out": True,
            "sizes": self._can_extrapolate,
            "file": any(isinstance(rule, NoRecordInFile) for rule in self.subject.deciding_rules),
            "extraction": any(
                isinstance(rule, NoRecordInAnswers) for rule in self.subject.deciding_rules
            ),
            "threats": bool(self.subject.threats),
            "removal": self.removal > 0,
            "variation": self.subject.variation > 0,
            "remedies": bool(self.subject.attack_names) and self.subject.remedies != 0,
        }
        return tuple(part for part, needed in wanted.items() if needed)


def list_usual_rules(
    published_as: str, attacks: Sequence[str], threats: Sequence[str]
) -> tuple[ReleaseRule, ...]:
    """Return the rules that decide where none are given: about all that is measured.

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


def read_model_file(path: Any) -> bytes:
    """Return the bytes of the model's file."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(
            f"Expected model_file that can be read, got {str(path)!r}: {error.strerror}."
        ) from error


def _check_sizes(subject: Classifier, classes: int, n: int) -> None:
    if classes > n // 2:
        raise InvalidArgument(
            f"Expected no more classes than a shadow has records, got {classes} classes of "
            f"{n} records. If y is a number, cut it into classes first."
        )
    size = count_bytes(classes, n, subject.shadows)
    if subject.attack_names and size > MOST_BYTES:
        raise InvalidArgument(
            f"Expected predictions of all shadows to fit into {MOST_BYTES >> 30} GiB, "
            f"{subject.shadows} of {n:,} records and {classes:,} classes need "
            f"{size / 2**30:.1f}. Take fewer shadows, or no attacks, or cut a label that is a "
            "number into classes."
        )
    names = subject.record_names
    if names is not None and len(names) != n:
        raise InvalidArgument(f"Expected {n} names of records in record_names, got {len(names)}.")
    shape: tuple[int, ...] = getattr(subject.X, "shape", ())
    for name in ("feature_names", "categorical"):
        given = getattr(subject, name)
        if given is not None and len(shape) == 2 and len(given) != shape[1]:
            raise InvalidArgument(
                f"Expected {name} for each of {shape[1]} columns of X, got {len(given)}."
            )


def read_groups(groups: Mapping[str, ArrayLike] | None, n: int) -> dict[str, NDArray[np.str_]]:
    """Return the groups of all records by their columns, as texts."""
    arrays = {name: np.asarray(values).astype(np.str_) for name, values in (groups or {}).items()}
    for column, array in arrays.items():
        if array.shape != (n,):
            raise InvalidArgument(
                f"Expected a group for each of {n} records in groups[{column!r}], got shape "
                f"{array.shape}."
            )
    return arrays


def _choose_usual(subject: Classifier, n: int) -> Any:
    """Return which records are left out; unasked, as many as take minutes."""
    records = subject.records
    if records is None:
        exact = _find_exact(subject)
        family = None if exact is None else exact[0]
        rows = _REFITTED if family is None else _COMPARED if family.compares_all else n * n
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
    """Return how often a removal plan measures; unasked, only where that needs no refits."""
    if subject.removal is not None:
        return subject.removal
    if n > _MOST_RECORDS or not (subject.records is None or isinstance(subject.records, str)):
        return 0
    if isinstance(subject.records, str) and subject.records != "all":
        return 0
    return _STEPS if _find_plain_family(subject) is not None else 0


def leaves_exactly(subject: Classifier) -> bool:
    """Tell whether records can be left out without fitting again."""
    return find_family(subject) is not None


def find_family(subject: Classifier) -> Family | None:
    """Return the family by which records are left out; None where models are fitted again."""
    found = _find_exact(subject)
    return None if found is None else found[0]


def _find_exact(subject: Classifier) -> tuple[Family, Callable[[], Removable]] | None:
    """Return the family by which records are left out, and what fits its model."""
    plain = _find_plain_family(subject)
    if plain is not None:
        inner = _unwrap(subject)
        return plain, lambda: plain.fit(inner.estimator, inner.features, subject.y)
    if subject.preprocessing != "refit":
        return None
    scaled = find_scaled(subject.estimator, subject.X, subject.y)
    if scaled is None:
        return None
    (family, peeled), fit = scaled, scaled[0].fit_scaled
    assert fit is not None  # or it would not have been found
    return family, lambda: fit(peeled.last, peeled, subject.y)


def _find_plain_family(subject: Classifier) -> Family | None:
    """Return the family where no preprocessing changes with a record."""
    inner = _unwrap(subject)
    family = family_of(inner.estimator)
    if family is None or family.refuses(inner.estimator, inner.features, subject.y):
        return None
    return family


def _unwrap(subject: Classifier) -> Unwrapped:
    return unwrap_pipeline(
        subject.estimator, subject.X, subject.y, preprocessing=subject.preprocessing
    )
