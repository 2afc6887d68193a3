"""Tables 1 and 2 and figures 1 to 5 of the training-privacy paper (Long et al. 2017).

    python reproductions/training_privacy/tables.py --data DATA --quick
    python reproductions/training_privacy/tables.py --data DATA --device cuda

Half of 2,000 candidates are trained on, then the other half, again and again; 100 targets are
attacked in each of the models. One pool of 20 shadow models serves all attacks. Each row's parts
are kept under --runs: killed and called again, it goes on. Prints a line a row as JSON.
"""

import argparse
import json
import os
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import records
import scipy.stats
from model_trees import JAR, ModelTrees
from models import Classifier, Logistic, NaiveBayes, Networks
from nets import Training
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from epsilometer.audits.classifier.attacks.shadow_attacks import distance, frequency, lira, rmia
from epsilometer.audits.classifier.attacks.shadows import ShadowPool
from epsilometer.audits.classifier.leave_one_out.pdtp import changes
from epsilometer.types import BoolArray, FloatArray, IntArray

SHADOWS = 20
AVERAGED = 10  # measurements of PDTP in the tables; figure 3 has more
PAPERS = ("untargeted", "frequency", "distance")
DATA: dict[str, Callable[[Path], records.Records]] = {
    "Adult": records.adult,
    "Shopping-10": records.shopping_10,
    "Shopping-100": records.shopping_100,
}


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How much of the paper's protocol is run.

    Attributes:
        iterations: Times that the candidates are halved; two models each.
        targets: Records that are attacked.
        pairs: Shadows of either side for a target.
        measured: Iterations in which PDTP is measured.
        seed: Of halves and targets.
    """

    iterations: int = 100
    targets: int = 100
    pairs: int = 5
    measured: int = 10
    seed: int = 0

    def member(self, n: int) -> BoolArray:
        """Who is in which set: two an iteration, and then those of the shadows."""
        rng = np.random.default_rng([self.seed, 0])
        halves = [rng.permutation(n) < n // 2 for _ in range(self.iterations + SHADOWS // 2)]
        return np.stack([side for half in halves for side in (half, ~half)])

    def chosen(self, n: int) -> IntArray:
        """Numbers of the targets."""
        rng = np.random.default_rng([self.seed, 1])
        return np.sort(rng.choice(n, self.targets, replace=False))


QUICK = Protocol(iterations=10, targets=50, pairs=3, measured=3)


@dataclass(frozen=True, eq=False)
class Row:
    """A model on some data."""

    data: str
    kind: str
    classifier: Classifier


def rows(device: str, batch: int = 32) -> list[Row]:
    """In the order of Table 2; batches are such that training accuracy is the published one.

    Model trees are left out where Weka is not installed.

    Args:
        device: Of networks.
        batch: Of networks on Adult.
    """
    overfitted = Networks(Training(epochs=30, batch=1, device=device))
    found = [Row("Adult", "NN", Networks(Training(epochs=100, batch=batch, device=device)))]
    found += [Row("Adult", "NB", NaiveBayes()), Row("Adult", "LR", Logistic())]
    if JAR.exists():
        found += [Row("Adult", "LMT", ModelTrees())]
    found += [Row("Shopping-10", "NN", overfitted)]
    found += [Row("Shopping-10", "NB", NaiveBayes()), Row("Shopping-10", "LR", Logistic())]
    found += [Row("Shopping-100", "NN", overfitted), Row("Shopping-100", "NB", NaiveBayes())]
    return found


@dataclass(frozen=True, eq=False, kw_only=True)
class Seen:
    """What was trained, and said.

    Attributes:
        member: Who is in which set, ``(models + shadows, n)``.
        targets: Which records are attacked.
        models: ln p of the attacked models at all candidates, ``(models, n, classes)``.
        shadows: The same of the shadows.
        with_target: ln p of shadows with each target, at it, ``(pairs, targets, classes)``.
        without_target: The same of their twins without it.
        measured: ln p of attacked models with the target, at it, ``(measured, targets, classes)``.
        left_out: The same of their twins without it.
        fresh: And of twins with random numbers of their own, where training is random.
    """

    member: BoolArray
    targets: IntArray
    models: FloatArray
    shadows: FloatArray
    with_target: FloatArray
    without_target: FloatArray
    measured: FloatArray
    left_out: FloatArray
    fresh: FloatArray | None


def train(row: Row, data: records.Records, how: Protocol, where: Path) -> Seen:
    """Trains all models of a row, or reads what is there."""
    n = data.labels.size
    member, targets = how.member(n), how.chosen(n)
    attacked = 2 * how.iterations
    everywhere = kept(
        where / "models.npy",
        lambda: row.classifier.everywhere(data, member, np.arange(len(member))),
    )
    shadows = _having(member, targets, attacked, len(member), how.pairs)
    measured = _having(member, targets, 0, 2 * how.measured, how.measured)

    def twins(sets: IntArray, name: str, *, fresh: bool = False) -> FloatArray:
        pairs = np.stack([sets, np.broadcast_to(targets, sets.shape)], axis=-1).reshape(-1, 2)
        found = kept(
            where / f"{name}.npy",
            lambda: row.classifier.without(data, member, pairs, fresh=fresh),
        )
        return found.reshape(*sets.shape, -1)

    return Seen(
        member=member,
        targets=targets,
        models=everywhere[:attacked],
        shadows=everywhere[attacked:],
        with_target=everywhere[shadows, targets],
        without_target=twins(shadows, "shadow-twins"),
        measured=everywhere[measured, targets],
        left_out=twins(measured, "twins"),
        fresh=twins(measured, "fresh-twins", fresh=True) if row.classifier.random else None,
    )


def attack(seen: Seen, data: records.Records) -> dict[str, BoolArray]:
    """Who is said to be in: by attack, ``(models, targets)``."""
    labels = data.labels[seen.targets]
    paired = _pool(
        np.concatenate([seen.with_target, seen.without_target]),
        np.repeat([True, False], len(seen.with_target))[:, None] & np.ones(labels.size, bool),
        labels,
        data.classes,
    )
    inside = seen.member[len(seen.models) :]
    few = _pool(seen.shadows[:, seen.targets], inside[:, seen.targets], labels, data.classes)
    every = _pool(seen.shadows, inside, data.labels, data.classes)
    half = len(seen.with_target)
    said: dict[str, list[BoolArray]] = {}
    for log_proba in seen.models:
        here = log_proba[seen.targets]
        for name, found, places in (
            ("frequency", frequency(paired, here, pairs=None), slice(None)),
            ("distance", distance(paired, here, pairs=None), slice(None)),
            ("distance, not paired", distance(few, here, pairs=half), slice(None)),
            ("LiRA", lira(every, log_proba), seen.targets),
            ("RMIA", rmia(every, log_proba), seen.targets),
        ):
            said.setdefault(name, []).append((found.values > found.threshold)[places])
    return {"untargeted": untargeted(seen, data)} | {k: np.stack(v) for k, v in said.items()}


def untargeted(seen: Seen, data: records.Records) -> BoolArray:
    """A network of 32 ReLU, trained once on what all shadows say of all candidates.

    Inputs are scaled and Adam takes the steps, as in
    ``epsilometer.audits.classifier.attacks.shadow_attacks.untargeted``, which would train it anew
    for every model that is attacked.
    """
    described = np.hstack([data.features, np.eye(data.classes)[data.labels]]).astype(np.float32)
    inside = seen.member[len(seen.models) :]
    known = [np.hstack([np.exp(each), described]) for each in seen.shadows]
    net = make_pipeline(
        StandardScaler(),
        MLPClassifier(
            (32,), learning_rate_init=0.01, batch_size=256, max_iter=30, tol=0, random_state=0
        ),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 30 epochs are what was asked for
        net.fit(np.concatenate(known), inside.ravel())
    at = seen.targets
    asked = (np.hstack([np.exp(each[at]), described[at]]) for each in seen.models)
    return np.stack([net.predict(each) for each in asked]).astype(bool)


def measured(row: Row, seen: Seen, data: records.Records) -> dict[str, Any]:
    """The numbers of a row, and what its figures show: an entry a target."""
    truth = seen.member[: len(seen.models), seen.targets]
    risk, binned = _risk(seen.measured, seen.left_out)
    right = seen.models.argmax(axis=2) == data.labels
    inside = seen.member[: len(seen.models)]
    said = attack(seen, data)
    accuracy = {name: (found == truth).mean(axis=0) for name, found in said.items()}
    best = np.max([accuracy[name] for name in PAPERS], axis=0)
    mean = binned[:AVERAGED].mean(axis=0)
    found: dict[str, Any] = {
        "data": row.data,
        "model": row.kind,
        "models": len(seen.models),
        "train": float(right[inside].mean()),
        "test": float(right[~inside].mean()),
        "pdtp": float(mean.mean()),
        "pdtp_unbinned": float(risk[:AVERAGED].mean()),
        "attacks": {name: _figures(said[name], truth, mean) for name in said},
        "best": _correlation(mean, best) | _claims(mean, best),
        "by_measurements": [
            _correlation(binned[:k].mean(axis=0), accuracy["distance"])["correlation"]
            for k in range(1, len(binned) + 1)
        ],
        "targets": {"pdtp": mean.tolist(), "best": best.tolist()}
        | {name: values.tolist() for name, values in accuracy.items()},
    }
    if seen.fresh is not None:
        _, fresh = _risk(seen.measured, seen.fresh)
        found["pdtp_fresh"] = float(fresh.mean())
        found["fresh"] = {
            name: _correlation(fresh.mean(axis=0), accuracy[name]) for name in PAPERS
        } | {"best": _correlation(fresh.mean(axis=0), best)}
    return found


def _risk(full: FloatArray, without: FloatArray) -> tuple[FloatArray, FloatArray]:
    """PDTP, and binned PDTP, ``(measured, targets)``."""
    flat = (part.reshape(-1, part.shape[-1]).astype(np.float64) for part in (full, without))
    values, binned = changes(*flat)
    return values.reshape(full.shape[:2]), binned.reshape(full.shape[:2])


def _figures(said: BoolArray, truth: BoolArray, risk: FloatArray) -> dict[str, float]:
    """Of all attacks together; the standard error is over targets."""
    each = (said == truth).mean(axis=0)
    hits, alarms = int((said & truth).sum()), int((said & ~truth).sum())
    return {
        "accuracy": float(each.mean()),
        "error": float(each.std(ddof=1) / np.sqrt(each.size)),
        "precision": hits / max(hits + alarms, 1),
        "recall": hits / int(truth.sum()),
        "f1": 2 * hits / (hits + alarms + int(truth.sum())),
    } | _correlation(risk, each)


def _correlation(risk: FloatArray, accuracy: FloatArray) -> dict[str, float]:
    if np.ptp(risk) == 0 or np.ptp(accuracy) == 0:
        return {"correlation": float("nan"), "p": float("nan")}
    found = scipy.stats.pearsonr(risk, accuracy)
    return {"correlation": float(found.statistic), "p": float(found.pvalue)}


def _claims(risk: FloatArray, best: FloatArray) -> dict[str, float | None]:
    """What the paper says of the best of three attacks on a record, by its PDTP."""

    def share(chosen: BoolArray, above: float) -> float | None:
        return float((best[chosen] > above).mean()) if chosen.any() else None

    return {
        "above_1": int((risk > 1).sum()),
        "share_over_80_above_1": share(risk > 1, 0.8),
        "share_over_60_above_1": share(risk > 1, 0.6),
        "share_over_90_above_4": share(risk > 4, 0.9),
        "highest_below_half": float(best[risk < 0.5].max()) if (risk < 0.5).any() else None,
    }


def _having(member: BoolArray, targets: IntArray, first: int, last: int, most: int) -> IntArray:
    """The first sets from ``first`` on that have each target, ``(most, targets)``."""
    return np.stack(
        [first + np.flatnonzero(member[first:last, target])[:most] for target in targets], axis=1
    )


def _pool(log_proba: FloatArray, member: BoolArray, labels: IntArray, classes: int) -> ShadowPool:
    right = log_proba.argmax(axis=2) == labels  # of everybody: these attacks do not look at it
    return ShadowPool(
        log_proba=log_proba,
        member=member,
        labels=labels,
        classes=np.arange(classes),
        train_accuracy=np.mean(right, axis=1),
        test_accuracy=np.mean(right, axis=1),
    )


def kept(path: Path, make: Callable[[], FloatArray]) -> FloatArray:
    """What a file has, or what is made and put there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part.npy")
        np.save(part, make())
        part.replace(path)
    return np.asarray(np.load(path))


def main() -> None:
    """Prints a line a row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("EPSILOMETER_DATA"))
    parser.add_argument("--quick", action="store_true", help="A tenth of the protocol.")
    parser.add_argument("--measured", type=int, help="Iterations in which PDTP is measured.")
    parser.add_argument("--device", default="cpu", help="Of networks.")
    parser.add_argument("--batch", type=int, default=32, help="Of networks on Adult.")
    parser.add_argument("--only", default="", help="Rows whose name matches this: 'NN|Adult'.")
    parser.add_argument("--runs", type=Path, default=Path("reproduction-runs"))
    parser.add_argument(
        "--out", type=Path, help="A folder for a file a row, which figures.py draws."
    )
    given = parser.parse_args()
    how = QUICK if given.quick else Protocol()
    if given.measured:
        how = replace(how, measured=given.measured)
    for row in rows(given.device, given.batch):
        name = f"{row.kind}-{row.data}"
        if not re.search(given.only, name):
            continue
        begun = time.perf_counter(), time.process_time()
        data = DATA[row.data](given.data)
        where = given.runs / "-".join(map(str, (name, given.batch, *asdict(how).values())))
        found = measured(row, train(row, data, how, where), data)
        found["protocol"] = asdict(how)
        found["seconds"] = round(time.perf_counter() - begun[0], 1)
        found["cpu_seconds"] = round(time.process_time() - begun[1], 1)
        if given.out:
            given.out.mkdir(parents=True, exist_ok=True)
            (given.out / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")
        told = {k: v for k, v in found.items() if k not in ("targets", "by_measurements")}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
