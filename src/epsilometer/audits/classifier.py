"""May this classifier be published? Every record's risk, attacks, a verdict, what would help."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer.attacks.estimators import fresh
from epsilometer.audits.classifier_job import ATTACKS, ClassifierJob, Questions, run_classifier
from epsilometer.audits.release import RULES, PdtpAtMost, ReleaseRule
from epsilometer.audits.standing_out import Data
from epsilometer.engine.engines import Engine
from epsilometer.engine.events import Listener
from epsilometer.engine.fingerprints import fingerprint, name_of
from epsilometer.engine.plan import Plan
from epsilometer.errors import InvalidArgument
from epsilometer.leave_one_out.estimators import labels
from epsilometer.leave_one_out.families import family_of
from epsilometer.leave_one_out.pipelines import Preprocessing, unwrapped
from epsilometer.leave_one_out.refits import PATIENCE
from epsilometer.core.audit import ReleaseAudit
from epsilometer.types import BoolArray, FloatArray, IntArray

USUAL = ("loss", "lira", "rmia")
_LARGEST = 4 << 30  # bytes of predictions of shadows
_SMALL = 20_000  # records beyond which none is made unless asked


def audit_classifier(
    estimator: Any,
    X: Any,  # noqa: N803 - as in scikit-learn
    y: Any,
    *,
    directory: Path | str | None = None,
    engine: Engine | None = None,
    listen: Sequence[Listener] = (),
    **how: Any,
) -> ReleaseAudit:
    """Says whether a classifier trained on these records may be published, and what would help.

    Guarantees: *do not release* is wrong in at most ``1 − confidence`` of audits where it rests on
        samples, and certain where all records were measured exactly; *release* says the same of
        each rule, as these attacks measure it, and proves no privacy. The same arguments give the
        same result, byte for byte, however often the work was killed.
    Assumes: one record a row; scores of different records are independent. Attacks are made on
        models that were trained on halves of the records.

    Args:
        estimator: With scikit-learn's manners, not fitted; pipelines too.
        X: Features: an array, a sparse matrix or a data frame.
        y: Labels.
        directory: Where the run lives, so that the same call can finish it after a crash.
        engine: What executes refits and shadows; processes of this machine by default.
        listen: Who is told what happens.
        how: All that ``classifier_job`` takes: records, attacks, groups, rules, decimals, ….

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.neighbors import KNeighborsClassifier
        >>> from epsilometer import InProcess
        >>> found = audit_classifier(
        ...     KNeighborsClassifier(1), *load_iris(return_X_y=True), attacks=(), engine=InProcess()
        ... )
        >>> found.verdict, found.leaving.exposed
        ('do not release', 6)
    """
    job = classifier_job(estimator, X, y, **how)
    where = None if directory is None else Path(directory)
    return run_classifier(job, where, engine=engine, listen=listen)


def classifier_job(
    estimator: Any,
    X: Any,  # noqa: N803
    y: Any,
    *,
    records: IntArray | str | None = None,
    preprocessing: Preprocessing = "refit",
    patience: float = PATIENCE,
    attacks: Sequence[str] | str = USUAL,
    shadows: int = 32,
    groups: Mapping[str, ArrayLike] | None = None,
    rules: Sequence[ReleaseRule] | None = None,
    decimals: int | None = None,
    confidence: float = 0.95,
    removal: int | None = None,
    variation: int = 0,
    feature_names: Sequence[str] = (),
    categorical: ArrayLike | None = None,
    words: Sequence[Sequence[str] | None] = (),
    record_names: Sequence[str] | None = None,
    target: tuple[ArrayLike, ArrayLike] | None = None,
    show_records: bool = False,
    seed: int = 0,
    subject: str | None = None,
    caveats: tuple[str, ...] = (),
    name: str = "audit_classifier",
    parameters: Mapping[str, Any] | None = None,
    command: str | None = None,
) -> ClassifierJob:
    """The work of :func:`audit_classifier`, for whoever runs it.

    Args:
        estimator: What is trained.
        X: Features.
        y: Labels.
        records: Which are left out one by one: row numbers, ``"sample:500"``, or None for all.
        preprocessing: Whether a pipeline's earlier steps are fitted again without the record
            (``"refit"``), or held as fitted to all (``"fixed"``).
        patience: Seconds that refits may take; more is refused before it begins.
        attacks: Names of ``ATTACKS``, or ``"all"``; none: only leave-one-out risk is judged.
        shadows: Models in the pool of shadows.
        groups: Column → group of each record, to see whether some are more at risk.
        rules: By which it is judged; ``RULES`` by default.
        decimals: With how many decimals probabilities are to be shown; None: all, as where the
            model itself is given away.
        confidence: Of the verdict.
        removal: Measurements of the plan to drop records; None: 25 where records can be left out
            without fitting again, else none.
        variation: Models trained on all records with other seeds, to see how much predictions
            vary anyway; 0: none.
        feature_names: Of the columns of X.
        categorical: Which columns of X are mere names of something.
        words: What numbers in these columns stand for, for ``show_records``.
        record_names: Of the records; their numbers from 0 by default.
        target: ln p of a model that is there already, shape ``(records, classes)``, and which of
            the records it was trained on: attacked in place of models of the pool, and compared
            with them.
        show_records: Write the features of the riskiest records into the result.
        seed: From which all randomness follows.
        subject: What is audited, in words.
        caveats: What a reader must know beforehand.
        name: Under which ``epsilometer resume`` finds it.
        parameters: Of the command that made it.
        command: The call that does it again.
    """
    classes, codes = labels(y)
    if classes.size > codes.size // 2:
        raise InvalidArgument(
            f"Expected no more classes than a shadow has records, got {classes.size} classes of "
            f"{codes.size} records. If y is a number, cut it into classes first."
        )
    asked = _questions(
        records=records,
        preprocessing=preprocessing,
        patience=patience,
        attacks=attacks,
        shadows=shadows,
        rules=rules,
        decimals=decimals,
        confidence=confidence,
        removal=removal,
        variation=variation,
    )
    if not hasattr(estimator, "fit"):
        raise InvalidArgument(
            f"Expected an estimator with fit and predict_proba, got {type(estimator).__name__}."
        )
    if asked.attacks:
        _fits_memory(classes.size, codes.size, asked.shadows)
    fresh(estimator, seed)  # one that cannot be cloned is refused before anything is computed
    n = codes.size
    data = Data(
        estimator=estimator,
        X=X,
        y=y,
        codes=codes,
        names=tuple(map(str, feature_names)),
        categorical=None if categorical is None else np.asarray(categorical, bool),
    )
    if asked.removal is None and not (n <= _SMALL and records is None and _exact(data, asked)):
        asked = replace(asked, removal=0)
    named = tuple(map(str, range(n))) if record_names is None else tuple(record_names)
    if len(named) != n:
        raise InvalidArgument(f"Expected {n} names of records, got {len(named)}.")
    plan = Plan(
        audit=name,
        parameters={
            "estimator": name_of(type(estimator)),  # its parameters are in the fingerprint
            "records": records if isinstance(records, str | None) else fingerprint(records),
            "preprocessing": preprocessing,
            "attacks": list(asked.attacks),
            "shadows": shadows,
            "rules": [repr(rule) for rule in asked.rules],
            "decimals": decimals,
            "confidence": confidence,
            "removal": asked.removal,
            "variation": variation,
            "show_records": show_records,
            "subject": subject,
            **(parameters or {}),
        },
        units=len(asked.parts),
        seed=seed,
        command=command
        or f"audit_classifier({name_of(type(estimator))}, X, y, {attacks=}, {shadows=}, {seed=})",
        inputs={
            "estimator": fingerprint(estimator),
            "X": fingerprint(X),
            "y": fingerprint(y),
            **({} if groups is None else {"groups": fingerprint(dict(groups))}),
            **({} if target is None else {"target": fingerprint(target)}),
        },
    )
    return ClassifierJob(
        plan=plan,
        data=data,
        classes=classes,
        questions=asked,
        groups=_groups(groups, n),
        names=named,
        words=words,
        show_records=show_records,
        subject=subject or type(estimator).__name__,
        caveats=caveats,
        target=_target(target),
    )


def _questions(
    *, attacks: Sequence[str] | str, rules: Sequence[ReleaseRule] | None, **plain: Any
) -> Questions:
    listed = [attacks] if isinstance(attacks, str) else attacks
    named = tuple(ATTACKS) if attacks == "all" else tuple(listed)
    unknown = [attack for attack in named if attack not in ATTACKS]
    if unknown:
        raise InvalidArgument(
            f"Expected attacks among {', '.join(ATTACKS)}, or 'all', got {unknown[0]!r}."
        )
    _validate.whole(4, shadows=plain["shadows"])
    _validate.whole(0, variation=plain["variation"])
    _validate.open_unit(confidence=plain["confidence"])
    if plain["variation"] == 1:
        raise InvalidArgument("Expected at least 2 models to see how they vary, got 1.")
    if plain["decimals"] is not None:
        _validate.whole(1, decimals=plain["decimals"])
    if plain["removal"] is not None:
        _validate.whole(0, removal=plain["removal"])
    usual = RULES if named else tuple(rule for rule in RULES if isinstance(rule, PdtpAtMost))
    judging = usual if rules is None else tuple(rules)
    if not judging:
        raise InvalidArgument("Expected at least one rule for a verdict, got none.")
    return Questions(attacks=named, rules=judging, **plain)


def _fits_memory(classes: int, records: int, shadows: int) -> None:
    size = 4 * classes * records * shadows
    if size > _LARGEST:
        raise InvalidArgument(
            f"Expected predictions of all shadows to fit into {_LARGEST >> 30} GiB, {shadows} of "
            f"{records:,} records and {classes:,} classes need {size / 2**30:.1f}. Take fewer "
            "shadows, or no attacks, or cut a label that is a number into classes."
        )


def _exact(data: Data, asked: Questions) -> bool:
    """Whether records can be left out without fitting again."""
    way = unwrapped(data.estimator, data.X, data.y, preprocessing=asked.preprocessing)
    family = family_of(way.estimator)
    return family is not None and family.refuses(way.estimator, way.features, data.y) is None


def _groups(groups: Mapping[str, ArrayLike] | None, n: int) -> tuple[tuple[str, NDArray[Any]], ...]:
    found = []
    for column, values in (groups or {}).items():
        array = np.asarray(values).astype(np.str_)
        if array.shape != (n,):
            raise InvalidArgument(
                f"Expected a group for each of {n} records in {column!r}, got {array.shape}."
            )
        found.append((column, array))
    return tuple(found)


def _target(
    target: tuple[ArrayLike, ArrayLike] | None,
) -> tuple[FloatArray, BoolArray] | None:
    if target is None:
        return None
    return np.asarray(target[0], np.float64), np.asarray(target[1], bool)
