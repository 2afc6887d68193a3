"""Build one small audit per subject: what the contract suite runs over.

A new kind of audit gets the whole suite by one more ``Case``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import epsilometer as em
from epsilometer.core import judge

DELTA = 1e-5


@dataclass(frozen=True)
class Case:
    """A subject, and claims whose verdict is known.

    Attributes:
        name: Of the case.
        make: Builds the subject; may write files into the folder that it is given.
        claims: Claimed ε → the verdict that the audit must reach; None → without a claim.
        wrong: A setting with a value that must be refused, and must be named.
        from_file: Whether a saved audit can be run again without supplying anything.
        imports: Whether that needs a function to be imported, and so ``--trust``.
        options: Further arguments of ``em.audit``.
    """

    name: str
    make: Callable[[Path], Any]
    claims: tuple[tuple[float | None, str], ...]
    wrong: tuple[str, Any]
    from_file: bool = False
    imports: bool = False
    options: dict[str, Any] = field(default_factory=dict, hash=False, compare=False)

    def __str__(self) -> str:
        return self.name


def play(runs: int, rng: np.random.Generator) -> em.Scores:
    """A program that leaks: scores with the record are shifted by 3."""
    return em.Scores(inside=rng.normal(3, 1, runs), outside=rng.normal(0, 1, runs))


def release_noisy_sum(numbers: tuple[float, ...], seed: int) -> float:
    """Release a sum with too little noise."""
    return sum(numbers) + np.random.default_rng(seed).normal(0, 0.5)


def sample_posterior(features: Any, labels: Any, rng: np.random.Generator) -> Any:
    """A model that remembers whether there are eleven records."""
    from epsilometer.audits.posterior.forms import FromCallable

    p = (0.9 if len(labels) > 10 else 0.2) + rng.uniform(-0.05, 0.05)
    return FromCallable(lambda x, samples, rng: np.tile([1 - p, p], (samples, 1)))


def take_step(batch: Any, rng: np.random.Generator, noise: float = 1.0) -> Any:
    """One step of DP-SGD on records that are their own gradients."""
    norms = np.linalg.norm(batch, axis=1, keepdims=True)
    return (batch / np.maximum(norms, 1)).sum(axis=0) + noise * rng.normal(size=batch.shape[1])


def take_quiet_step(batch: Any, rng: np.random.Generator) -> Any:
    """The same with half the noise."""
    return take_step(batch, rng, 0.5)


def _step(step: Any) -> Any:
    batch = np.random.default_rng(0).normal(size=(8, 40))
    return em.Step(step, batch, clip_norm=1.0, noise_multiplier=1.0, steps=16, records=2)


def _scores(_: Path) -> Any:
    rng = np.random.default_rng(0)
    return em.Scores(rng.normal(2, 1, 400), rng.normal(0, 1, 400))


def _score_file(folder: Path) -> Any:
    scores = _scores(folder)
    np.savez(folder / "scores.npz", inside=scores.inside, outside=scores.outside)
    return em.read_scores(folder / "scores.npz")


def _counts(folder: Path) -> Any:
    scores = _scores(folder)
    return em.ScoreCounts.at(np.linspace(-4, 6, 50)).add(
        inside=scores.inside, outside=scores.outside
    )


def _dpsgd(_: Path) -> Any:
    from torch import nn

    rng = np.random.default_rng(0)
    data = rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 2
    import torch

    torch.manual_seed(0)
    return em.DPSGD(
        nn.Linear(4, 2),
        data,
        runs=300,
        learning_rate=0.1,
        batch_size=1,
        noise_multiplier=0.5,
        adversary="worst_case",
    )


def _dpsgd_file(_: Path) -> Any:
    from epsilometer.core.settings import from_settings

    source = {"type": "ModelOnRecords", "file": "digits", "records": 40, "hidden": 2}
    settings = {
        "source": source,
        "runs": 200,
        "learning_rate": 0.1,
        "batch_size": 1,
        "noise_multiplier": 0.5,
        "adversary": "worst_case",
        "views": ["updates"],
    }
    return from_settings(em.DPSGD, settings)


def _federated(_: Path) -> Any:
    import torch
    from torch import nn

    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(5, 49)).astype(np.float32), np.arange(5) % 20) for _ in range(12)]
    torch.manual_seed(0)
    return em.Federated(
        nn.Linear(49, 20),
        clients,
        rounds=4,
        cohort=3,
        noise_multiplier=0.05,
        learning_rate=0.1,
        canaries=100,
    )


def _classifier(_: Path) -> Any:
    from sklearn.datasets import load_iris
    from sklearn.neighbors import KNeighborsClassifier

    X, y = load_iris(return_X_y=True)  # noqa: N806
    return em.Classifier(KNeighborsClassifier(1), X, y, attacks=())


def _regressor(_: Path) -> Any:
    from sklearn.datasets import load_diabetes
    from sklearn.neighbors import KNeighborsRegressor

    X, y = load_diabetes(return_X_y=True)  # noqa: N806
    return em.Regressor(KNeighborsRegressor(1), X[:150], y[:150], attacks=())


def _fitted_classifier(_: Path) -> Any:
    from sklearn.datasets import load_iris
    from sklearn.tree import DecisionTreeClassifier

    X, y = load_iris(return_X_y=True)  # noqa: N806
    member = np.arange(150) % 2 == 0
    tree = DecisionTreeClassifier(random_state=0).fit(X[member], y[member])
    return em.FittedClassifier(tree, X, y, member=member)


def _table(folder: Path) -> Any:
    from epsilometer.core.settings import from_settings

    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{'yes' if a + b > 0 else 'no'}" for a, b in rng.normal(size=(80, 2))]
    (folder / "people.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    source = {"type": "TableModel", "file": str(folder / "people.csv"), "label": "label"}
    return from_settings(em.Classifier, {"source": source, "attacks": []})


def _posterior(_: Path) -> Any:
    data = np.zeros((10, 1)), np.arange(10) % 2
    return em.Posterior(
        sample_posterior, data, record=em.Record([1.0], label=1), runs=60, samples=2
    )


def _language_model() -> Any:
    from epsilometer.audits.text.measuring import Measured

    texts = ["the cat sees a stone", "a dog finds the river"]
    planted = em.plant_texts(texts, canaries=em.TextCanaries(count=400))
    rng = np.random.default_rng(0)
    measured = Measured(
        log_probs=tuple(rng.normal(1.5 * coin, 1, 2) for coin in planted.included),
        completions=tuple("what" for _ in planted.canaries),
    )
    return em.LanguageModel(measured, planted, trained=True)


_IN_PROCESS = {"engine": em.InProcess()}
_LEAK = ((0.5, judge.REFUTED), (50.0, judge.CANNOT_JUDGE), (None, judge.NO_CLAIM))

CASES = (
    Case("scores", _scores, (*_LEAK, (3.5, judge.NOT_REFUTED)), ("method", "none")),
    Case(
        "score file",
        _score_file,
        (*_LEAK, (3.5, judge.NOT_REFUTED)),
        ("method", "none"),
        from_file=True,
    ),
    Case("counts", _counts, (*_LEAK, (3.5, judge.NOT_REFUTED)), ("method", "none")),
    Case(
        "runs",
        lambda _: em.Runs(play, runs=400),
        (*_LEAK, (4.2, judge.NOT_REFUTED)),
        ("runs", 1),
        from_file=True,
        imports=True,
        options=_IN_PROCESS,
    ),
    Case(
        "train function",
        lambda _: em.TrainFunction(
            release_noisy_sum, with_record=(1.0, 1.0), without_record=(1.0,), runs=200
        ),
        (*_LEAK, (3.5, judge.NOT_REFUTED)),
        ("runs", 1),
        options=_IN_PROCESS,
    ),
    Case(
        "shuffled SGD",
        lambda _: em.ShuffledSGD(noise_multiplier=1.0, steps=100, observations=2_000),
        (
            (3.5, judge.REFUTED),
            (4.2, judge.NOT_REFUTED),
            (20.0, judge.PROVED),
            (None, judge.NO_CLAIM),
        ),
        ("steps", 0),
        from_file=True,
    ),
    Case("DP-SGD", _dpsgd, _LEAK, ("runs", 1), options=_IN_PROCESS),
    Case("DP-SGD file", _dpsgd_file, _LEAK, ("runs", 1), from_file=True, options=_IN_PROCESS),
    Case(
        "federated",
        _federated,
        ((0.5, judge.REFUTED), (None, judge.NO_CLAIM)),
        ("rounds", 0),
        options=_IN_PROCESS,
    ),
    Case(
        "cosines",
        lambda _: em.Cosines(np.random.default_rng(0).normal(4, 1, 300) / 100, dimension=10_000),
        ((0.5, judge.REFUTED), (25.0, judge.NOT_REFUTED), (None, judge.NO_CLAIM)),
        ("participation", "none"),
    ),
    Case(
        "Gaussian mechanism",
        lambda _: em.GaussianMechanism(0.5, 10_000, canaries=300),
        ((0.5, judge.REFUTED), (12.0, judge.NOT_REFUTED), (None, judge.NO_CLAIM)),
        ("sigma", -1.0),
        from_file=True,
    ),
    Case(
        "classifier",
        _classifier,
        ((None, judge.DO_NOT_RELEASE),),
        ("shadows", 1),
        options=_IN_PROCESS,
    ),
    Case(
        "regressor",
        _regressor,
        ((None, judge.DO_NOT_RELEASE),),
        ("shadows", 1),
        options=_IN_PROCESS,
    ),
    Case(
        "fitted classifier",
        _fitted_classifier,
        ((None, judge.DO_NOT_RELEASE),),
        ("decimals", 0),
    ),
    Case(
        "table",
        _table,
        ((None, judge.DO_NOT_RELEASE),),
        ("shadows", 1),
        from_file=True,
        options=_IN_PROCESS,
    ),
    Case("posterior", _posterior, _LEAK, ("samples", 0), options=_IN_PROCESS),
    Case(
        "language model",
        lambda _: _language_model(),
        (*_LEAK, (4.5, judge.NOT_REFUTED)),
        ("scores", ("none",)),
    ),
    Case(
        "step",
        lambda _: _step(take_step),
        ((None, judge.NO_CLAIM), (1.0, judge.CANNOT_JUDGE)),
        ("clip_norm", -1.0),
    ),
    Case(
        "step with half its noise",
        lambda _: _step(take_quiet_step),
        ((None, judge.VIOLATED), (1.0, judge.VIOLATED)),
        ("noise_multiplier", 0.0),
    ),
)


@cache
def audited(case: Case, claim: float | None, folder: Path) -> em.Audit:
    """Audit a case once per claim; audits are frozen, so tests may share them."""
    return em.audit(case.make(folder), claim, delta=DELTA, **case.options)
