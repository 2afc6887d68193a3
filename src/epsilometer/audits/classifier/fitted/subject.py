"""Describe the audit of a classifier that was fitted elsewhere and cannot be trained again."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.audits.classifier.kinds import check_kind
from epsilometer.audits.classifier.published import read_model_file
from epsilometer.audits.classifier.release import (
    AdvantageAtMost,
    CaughtAtMost,
    NoRecordInAnswers,
    NoRecordInFile,
    PdtpAtMost,
    ReleaseRule,
)
from epsilometer.audits.classifier.sklearn_models import (
    check_choice,
    count_rows,
    predict_logs,
    read_labels,
)
from epsilometer.audits.classifier.subject import PublishedAs, list_usual_rules
from epsilometer.core.settings import DATA
from epsilometer.engine.request import Request
from epsilometer.errors import InvalidArgument
from epsilometer.types import BoolArray, FloatArray

_JUDGED = (NoRecordInFile, NoRecordInAnswers, PdtpAtMost, AdvantageAtMost, CaughtAtMost)


@dataclass(frozen=True, eq=False)
class FittedClassifier:
    """A fitted classifier whose training recipe is unknown: may it be published?

    Its file is searched for records, and its losses on members are compared with those on
    non-members. Without a recipe no reference models can be trained. So stronger attacks and
    leave-one-out risk are not measured, and the default rules never all pass.
    ``Classifier(fitted=…)`` audits a model whose recipe is known.

    Guarantee: *do not release* is wrong in at most ``1 - confidence`` of audits where it rests on
        attacks, and certain where records are in the file.
    Assumption: one record per row; non-members are drawn from the same population as members, and
        were not selected by the model's answers.

    Attributes:
        model: The fitted model, with ``predict_proba`` or ``decision_function``, and ``classes_``,
            as in scikit-learn.
        X: Features as the model takes them: an array, a sparse matrix or a data frame.
        y: Labels.
        member: Which of the records it was trained on; None: all, and no attack can be run.
        published_as: What others are given: ``"file"``, ``"api"`` or ``"labels"``.
        model_file: The file to publish; its bytes are searched in addition to the model.
        decimals: Number of decimals of the probabilities that an API returns; None: all.
        rules: Rules that decide; by default those of ``Classifier``.
        title: What is audited, in words; the model's class by default.
        caveats: Caveats to show first.
        source: Where the records came from, if from a file.

    Example:
        >>> import epsilometer as em
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.tree import DecisionTreeClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> member = np.arange(150) % 2 == 0
        >>> tree = DecisionTreeClassifier(random_state=0).fit(X[member], y[member])
        >>> audit = em.audit(em.FittedClassifier(tree, X, y, member=member))
        >>> audit.verdict, audit.one(em.findings.MembershipFinding).attack
        ('do not release', 'loss')
    """

    model: Any = field(metadata=DATA)
    X: Any = field(metadata=DATA)
    y: Any = field(metadata=DATA)
    _: KW_ONLY
    member: ArrayLike | None = field(default=None, metadata=DATA)
    published_as: PublishedAs = "file"
    model_file: Path | None = None
    decimals: int | None = None
    rules: Sequence[ReleaseRule] | ReleaseRule | None = None
    title: str = ""
    caveats: tuple[str, ...] = ()
    source: Any = None

    def __post_init__(self) -> None:
        if not any(hasattr(self.model, name) for name in ("predict_proba", "decision_function")):
            raise InvalidArgument(
                "Expected a fitted model with predict_proba or decision_function, got "
                f"{type(self.model).__name__}."
            )
        check_kind(self.model, "classifier")
        check_choice(PublishedAs, published_as=self.published_as)
        _validate.whole(1, decimals=1 if self.decimals is None else self.decimals)
        if self.decimals is not None and self.published_as != "api":
            raise InvalidArgument(
                f"Expected decimals with published_as='api', got published_as="
                f"{self.published_as!r}: the file gives all digits, and a label has none."
            )
        if isinstance(self.rules, ReleaseRule):
            object.__setattr__(self, "rules", (self.rules,))
        if not self.deciding_rules:
            raise InvalidArgument("Expected at least one rule in rules, got none.")
        for rule in self.deciding_rules:
            if not isinstance(rule, _JUDGED):
                known = ", ".join(kind.__name__ for kind in _JUDGED)
                raise InvalidArgument(f"Expected rules of {known}, got {_validate.short(rule)}.")

    @property
    def deciding_rules(self) -> tuple[ReleaseRule, ...]:
        """The rules that decide: those given, or the default ones."""
        if isinstance(self.rules, Sequence):
            return tuple(self.rules)
        return list_usual_rules(self.published_as, ("loss",), ())

    @property
    def shown(self) -> int | None:
        """Number of decimals of probabilities that others see; None: all; −1: the class alone."""
        return -1 if self.published_as == "labels" else self.decimals


class FittedTask:
    """A fitted classifier's settings, and what follows from them and its records.

    Attributes:
        subject: The settings.
        classes: The labels, in order.
        codes: Positions of the records' labels among them.
        member: Which records the model was trained on.
        content: Bytes of the model's file, if there is one.
        confidence: Confidence of the verdict.
        seed: Seed of all randomness.
    """

    def __init__(self, subject: FittedClassifier, request: Request) -> None:
        if request.claim is not None:
            raise InvalidArgument(
                "Expected no claim for FittedClassifier: its rules decide about its release."
            )
        if request.until is not None:
            raise InvalidArgument(
                f"Expected no until for FittedClassifier, got {request.until!r}: its rules are "
                "applied when all is measured."
            )
        self.subject = subject
        self.classes, self.codes = read_labels(subject.y)
        n = self.codes.size
        if count_rows(subject.X) != n:
            raise InvalidArgument(
                f"Expected as many rows in X as labels in y, got {count_rows(subject.X)} and {n}."
            )
        self.member: BoolArray = np.ones(n, bool)
        if subject.member is not None:
            given = np.asarray(subject.member)
            if given.shape != (n,) or not np.isin(given, (0, 1)).all():
                raise InvalidArgument(
                    f"Expected a truth value for each of {n} records in member, got "
                    f"{given.dtype} of shape {given.shape}."
                )
            self.member = given.astype(bool)
        if not self.member.any():
            raise InvalidArgument("Expected records that the model was trained on, got none.")
        self.content = None if subject.model_file is None else read_model_file(subject.model_file)
        if not {"attacks", "file"} & set(self.parts):
            raise InvalidArgument(
                "Expected records that the model was not trained on, found none: without a recipe "
                "attacks compare both. Say in member who was in, or give the recipe."
            )
        self.confidence, self.seed = request.confidence, request.seed

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the work, in order."""
        kinds = {type(rule) for rule in self.subject.deciding_rules}
        wanted = {
            "attacks": not self.member.all(),
            "file": NoRecordInFile in kinds,
            "extraction": NoRecordInAnswers in kinds and hasattr(self.subject.model, "fit"),
        }
        return tuple(part for part, needed in wanted.items() if needed)


def predict_shown(
    model: Any,
    X: Any,  # noqa: N803 - as in scikit-learn
    classes: Any,
    *,
    labels: bool,
) -> FloatArray:
    """Return ln p of a fitted model for every record; for labels only, 0 and −inf.

    Raises:
        InvalidArgument: The model does not take these records.
    """
    try:
        if labels and hasattr(model, "predict"):
            answered = np.asarray(model.predict(X)).ravel()[:, None] == classes
            return np.where(answered, 0.0, -np.inf)
        return predict_logs(model, X, classes=classes)
    except InvalidArgument:
        raise
    except Exception as error:  # of any library
        raise InvalidArgument(
            f"Expected records like those the model was fitted to, {type(model).__name__} refuses "
            "these: other columns, other words, or gaps.",
            withheld=str(error)[:300],
        ) from error
