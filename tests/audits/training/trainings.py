"""Training functions as users write them, in a module that workers can import."""

import time
from pathlib import Path
from typing import Any

import numpy as np

import epsilometer as em
from epsilometer.core.record import Record
from epsilometer.engine.engines import Engine

DELTA = 0.05
CANARY = Record([1.0, 0.0], label=1)
DATA = (np.zeros((6, 2)), np.array([0, 1, 0, 1, 0, 1]))


def noisy_sum(data: Any, seed: int) -> float:
    """The Gaussian mechanism: a sum that the canary raises by 1, and noise of σ = 1."""
    features, _ = data
    return float(features[:, 0].sum() + np.random.default_rng(seed).normal())


def slow_sum(data: Any, seed: int) -> float:
    time.sleep(0.01)
    return noisy_sum(data, seed)


_ASKED = ("delta", "confidence", "seed", "out", "engine", "until", "listen")


def audit_train(train: Any, *, claim: em.Claim | None = None, **options: Any) -> em.Audit:
    """Audit a function by options of the subject and of the call, in any order."""
    given = {"engine": em.InProcess(), **options}
    asked = {name: given.pop(name) for name in _ASKED if name in given}
    return em.audit(em.TrainFunction(train, **given), claim, **asked)


def audit(out: Path | str, engine: Engine | None = None, **changed: Any) -> em.Audit:
    """An audit to be killed, and sent to clusters."""
    plain: dict[str, Any] = {
        "data": DATA,
        "canary": CANARY,
        "runs": 60,
        "delta": DELTA,
        "claim": em.Claim(3.0, delta=DELTA),
        "out": out,
        "engine": engine or em.InProcess(),
    }
    return audit_train(slow_sum, **{**plain, **changed})


# scikit-learn: output perturbation. sklearn minimises ‖w‖²/2 + C Σ ln(1 + e^(−y⟨w, x⟩)), which is
# 1-strongly convex; a record with ‖x‖ ≤ 1 adds a C-Lipschitz term and so moves w by C at most.

WEIGHT = 0.5  # sklearn's C


def perturbed_regression(data: Any, seed: int, *, noise: float) -> Any:
    """Logistic regression of records of norm 1 at most, released with noise of σ = C · noise."""
    from sklearn.linear_model import LogisticRegression

    features, labels = data
    norms = np.maximum(1.0, np.linalg.norm(features, axis=1, keepdims=True))
    model = LogisticRegression(C=WEIGHT, fit_intercept=False, tol=1e-8, random_state=seed)
    model.fit(features / norms, labels)
    drawn = np.random.default_rng(seed).normal(0, WEIGHT, model.coef_.shape)
    model.coef_ = model.coef_ + noise * drawn
    return model


def network(data: Any, seed: int) -> Any:
    """A small network, trained on all records at once until it knows them by heart."""
    import torch

    torch.manual_seed(seed)
    features, labels = torch.from_numpy(data[0]).float(), torch.from_numpy(data[1])
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(25):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(features), labels).backward()
        optimizer.step()
    return net
