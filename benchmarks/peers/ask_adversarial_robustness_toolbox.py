"""Questions to IBM's Adversarial Robustness Toolbox: ``stopwatch.answer``."""

import time
from typing import Any

import numpy as np
import stopwatch
import subjects
import torch
from art.attacks.inference.membership_inference import MembershipInferenceBlackBox
from art.estimators.classification import PyTorchClassifier, SklearnClassifier
from art.metrics import PDTP
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from stopwatch import BoolArray
from torch import nn

EPOCHS, BATCH, RATE, HIDDEN = 10, 128, 1e-3, 64  # its own defaults, and Adam's


def records(name: str) -> tuple[Any, Any]:
    """Features, standardised, and labels; up to 1,000."""
    load = load_digits if name == "digits" else load_breast_cancer
    x, y = (part[:1000] for part in load(return_X_y=True))
    spread = x.std(0)
    return (x - x.mean(0)) / np.where(spread > 0, spread, 1), y


def network(features: int, classes: int) -> nn.Sequential:
    """The network."""
    return nn.Sequential(nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))


def _classifier(model: str, x: Any, y: Any) -> Any:
    if model == "mlp":
        module = network(x.shape[1], y.shape[1])
        return PyTorchClassifier(
            model=module,
            loss=nn.CrossEntropyLoss(),
            optimizer=torch.optim.Adam(module.parameters(), lr=RATE),
            input_shape=x.shape[1:],
            nb_classes=y.shape[1],
            device_type="cpu",
        )
    made = {
        "gaussian": GaussianNB,
        "logistic": lambda: LogisticRegression(tol=1e-8, max_iter=1000),
        "neighbours": KNeighborsClassifier,
    }[model]()
    made.fit(x, y.argmax(1))  # it asks a fitted model for its shape
    return SklearnClassifier(made)


def pdtp(given: str) -> dict[str, Any]:
    """``MODEL DATA RECORDS``: ln of its ratios, ``num_iter=1``.

    MODEL is gaussian, logistic, neighbours or mlp; DATA is digits (1,000 records) or cancer (569);
    the first RECORDS are removed in turn. For the mlp ``null`` are the same with nothing removed.
    """
    model, data, removed = given.split()
    count = int(removed)
    torch.set_num_threads(1)
    x, places = records(data)
    x = x.astype(np.float32) if model == "mlp" else x
    y = np.eye(int(places.max()) + 1)[places]
    target, extra = _classifier(model, x, y), _classifier(model, x, y)
    target.fit(x, y)
    start = time.process_time()
    _, worst, _ = PDTP(target, extra, x, y, indexes=np.arange(count), num_iter=1)
    return {
        "cpu_seconds": time.process_time() - start,
        "values": np.log(worst).tolist(),
        "null": _null(target, extra, x, y, count) if model == "mlp" else [],
    }


def membership_nn(member: BoolArray, leaks: bool, seed: int) -> dict[str, float]:
    return {"nn": _accuracy(member, leaks, seed, "nn")}


def membership_rf(member: BoolArray, leaks: bool, seed: int) -> dict[str, float]:
    return {"rf": _accuracy(member, leaks, seed, "rf")}


def _accuracy(member: BoolArray, leaks: bool, seed: int, kind: str) -> float:
    """Of its guesses, balanced, on the half of the records that its attack did not learn from."""
    torch.manual_seed(int(seed))
    np.random.seed(int(seed))
    x, y = subjects.records()
    model = SklearnClassifier(subjects.target(member, leaks, seed))
    attack = MembershipInferenceBlackBox(model, attack_model_type=kind)
    learn = np.arange(y.size) % 2 == 0
    inside, outside = learn & member, learn & ~member
    attack.fit(x[inside], y[inside], x[outside], y[outside])
    said = attack.infer(x[~learn], y[~learn]).ravel()
    was_in = member[~learn]
    return float((said[was_in] == 1).mean() + (said[~was_in] == 0).mean()) / 2


def _null(target: Any, extra: Any, x: Any, y: Any, count: int) -> list[float]:
    """What it would say of removing nothing: of a record that is there twice, and stays."""
    twice, labels = np.concatenate([x, x[:1]]), np.concatenate([y, y[:1]])
    found = []
    for _ in range(count):
        _, worst, _ = PDTP(target, extra, twice, labels, indexes=np.array([len(x)]), num_iter=1)
        found.append(float(np.log(worst[0])))
    return found


if __name__ == "__main__":
    stopwatch.answer(
        {"pdtp": pdtp, "membership_nn": membership_nn, "membership_rf": membership_rf},
        tool="adversarial-robustness-toolbox",
    )
