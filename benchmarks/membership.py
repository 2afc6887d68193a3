"""Times LiRA and RMIA beside the loops they stand for, and shows what each attack finds in real
models; writes ``benchmarks/membership.md``.
"""

import dataclasses
import functools
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.special
import scipy.stats
from jobs import make_pool
from results import machine
from sizes import choose_size, write_page
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.tree import DecisionTreeClassifier

from epsilometer.audits.classifier.attacks.evaluation import RecordScores
from epsilometer.audits.classifier.attacks.shadow_attacks import (
    distance,
    frequency,
    lira,
    rank_below,
    reference,
    rmia,
    threshold,
    untargeted,
)
from epsilometer.audits.classifier.attacks.shadows import ShadowPool, shadow_pool
from epsilometer.stats.tradeoff import tradeoff_curve

_PAGE = Path(__file__).resolve().parent / "membership.md"
_RECORDS, _MODELS, _CLASSES, _REPEATS = *choose_size((10_000, 100), (200, 8)), 10, choose_size(5, 1)
_POOL, _TARGETS = choose_size((32, 8), (12, 1))
_GROWN = choose_size((10**3, 10**4, 3 * 10**4, 10**5), (50, 100))
_DIGITS = choose_size(1_797, 100)
_ATTACKS: dict[str, Callable[[ShadowPool, int], RecordScores]] = {
    "confidence": lambda pool, at: threshold(pool, at, statistic="confidence"),
    "loss": threshold,
    "loss, a threshold for each class": lambda pool, at: threshold(pool, at, by_class=True),
    "untargeted": lambda pool, at: untargeted(pool, at, rng=np.random.default_rng(at)),
    "frequency, 5 pairs": frequency,
    "distance, 5 pairs": distance,
    "distance, all pairs": lambda pool, at: distance(pool, at, pairs=None),
    "LiRA, offline": lambda pool, at: lira(pool, at, online=False),
    "LiRA, online": lira,
    "RMIA, offline": lambda pool, at: rmia(pool, at, online=False),
    "RMIA, online": rmia,
}
_TEXT = """# Membership attacks

Written by `python benchmarks/membership.py`; do not edit. CPU seconds of all threads, {records:,}
records, {models} shadow models, {classes} classes; medians of {repeats} calls, each on a pool that
has nothing in memory but its predictions; the loops: of one call. Memory is what Python and NumPy
held at most during the call, beside the predictions themselves ({pool_mb:.0f} MB).

Measured on {machine}.

| | here | memory | naive | ratio |
| --- | --- | --- | --- | --- |
{rows}

Naive LiRA goes through the records one by one and asks SciPy for the two densities; naive RMIA
compares every record with every other, {pairs_mb:,.0f} MB of ratios. Both give the same scores
(largest difference {lira_apart:.1g} and {rmia_apart:.1g}; ln p is kept in single precision).

Memory of LiRA and of RMIA beside the predictions of {shadows} shadow models, own labels alone:
{grown}. But for a few numbers per record it is bounded by a block of records.

## What they find

AUC, mean over {targets} models of a pool of {found_models}; each is attacked by all others but its
twin.

| | {models_found} |
| --- |{columns}
{found}

Trees are always sure, of outsiders too: confidence without the label tells nothing of them.
"""


def main() -> None:
    """Measures and writes the page."""
    log_proba, member, labels = _predictions()
    target = _predictions(seed=1)[0][0].astype(np.float64)
    lean = np.stack([log_proba[:, :, 0], np.log1p(-np.exp(log_proba[:, :, 0]))], axis=2)

    def pool(own: bool = False) -> ShadowPool:
        """A new one, so that nothing of a call before is remembered."""
        return ShadowPool(
            log_proba=lean if own else log_proba,
            member=member,
            labels=labels,
            classes=np.arange(_CLASSES),
            train_accuracy=np.ones(_MODELS),
            test_accuracy=np.ones(_MODELS),
            kept="own" if own else "all",
        )

    naive_scores: dict[str, Any] = {}
    naive_lira = _seconds(lambda: naive_scores.update(lira=_naive_lira(pool(), target)))
    naive_rmia = _seconds(lambda: naive_scores.update(rmia=_naive_rmia(pool(), target)))
    gained = np.random.default_rng(2).normal(size=_RECORDS)
    rows = [
        _row(
            "LiRA, online",
            pool,
            lambda shadows: lira(shadows, target, variance="record"),
            naive=naive_lira,
            target=0.15,
        ),
        _row(
            "the same, own labels kept alone",
            lambda: pool(own=True),
            lambda shadows: lira(shadows, target, variance="record"),
            naive=naive_lira,
            target=0.15,
        ),
        _row("LiRA, offline", pool, lambda shadows: lira(shadows, target, online=False)),
        _row(
            "RMIA, online",
            pool,
            lambda shadows: rmia(shadows, target, gamma=2.0),
            naive=naive_rmia,
            target=0.1,
            memory=100,
        ),
        _row(
            f"its comparison with {_RECORDS:,} others alone",
            lambda: gained,
            lambda each: rank_below(each, each, gamma=2.0),
        ),
    ]
    here = lira(pool(), target, variance="record").values
    beside = rmia(pool(), target, gamma=2.0).values
    write_page(
        _PAGE,
        _TEXT.format(
            records=_RECORDS,
            models=_MODELS,
            classes=_CLASSES,
            repeats=_REPEATS,
            pool_mb=log_proba.nbytes / 1e6,
            machine=machine(),
            rows="\n".join(rows),
            pairs_mb=8e-6 * _RECORDS**2,
            lira_apart=float(np.abs(here - naive_scores["lira"]).max()),
            rmia_apart=float(np.abs(beside - naive_scores["rmia"]).max()),
            shadows=make_pool(_GROWN[0])[0].models,
            grown=_grow_memory(),
            **_found(),
        ),
    )


def _predictions(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.zeros(_RECORDS, np.int64)
    coins = rng.random((_MODELS // 2, _RECORDS)) < 0.5
    member = np.concatenate([coins, ~coins])
    logits = rng.normal(size=(_MODELS, _RECORDS, _CLASSES)).astype(np.float32)
    logits[:, :, 0] += member
    return scipy.special.log_softmax(logits, axis=2), member, labels


def _row(
    what: str,
    given: Callable[[], Any],
    call: Callable[[Any], object],
    *,
    naive: float | None = None,
    target: float | None = None,
    memory: float | None = None,
) -> str:
    call(given())  # imports
    seconds = statistics.median(_of_one(given(), call) for _ in range(_REPEATS))
    megabytes = _measure_memory(given(), call)
    met = "" if target is None else f" (target: ≤ {target:g}, {_met(seconds <= target)})"
    held = "" if memory is None else f" (target: ≤ {memory:g}, {_met(megabytes <= memory)})"
    ratio = "" if naive is None else f"{naive / seconds:.0f}"
    beside = "" if naive is None else f"{naive:.2f}"
    return f"| {what} | {seconds:.4f}{met} | {megabytes:.1f} MB{held} | {beside} | {ratio} |"


def _measure_memory(argument: Any, call: Callable[[Any], object]) -> float:
    """Return the megabytes that a call held at most, beside its argument."""
    tracemalloc.start()
    call(argument)
    megabytes = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return megabytes


def _grow_memory() -> str:
    """Return the memory of both attacks on more and more records, in words."""
    found = []
    for records in _GROWN:
        pool, target = make_pool(records)
        calls = [functools.partial(attack, target=target) for attack in (lira, rmia)]
        held = [_measure_memory(dataclasses.replace(pool), call) for call in calls]
        found.append(f"{records:,} records {held[0]:.0f} and {held[1]:.0f} MB")
        make_pool.cache_clear()
    return ", ".join(found)


def _naive_lira(pool: ShadowPool, target: np.ndarray) -> np.ndarray:
    own = pool.log_proba[:, :, 0].astype(np.float64)
    confidence = own - np.log(-np.expm1(own))
    seen = target[:, 0] - np.log(-np.expm1(target[:, 0]))
    scores = np.empty(pool.records)
    for record in range(pool.records):
        at = pool.member[:, record]
        inside, outside = confidence[at, record], confidence[~at, record]
        scores[record] = scipy.stats.norm.logpdf(
            seen[record], inside.mean(), inside.std()
        ) - scipy.stats.norm.logpdf(seen[record], outside.mean(), outside.std())
    return scores


def _naive_rmia(pool: ShadowPool, target: np.ndarray) -> np.ndarray:
    ratio = np.exp(target[:, 0] - reference(pool, online=True, a=0.0))
    return (ratio[:, None] / ratio[None, :] >= 2.0).mean(axis=1)


def _found() -> dict[str, Any]:
    pools = {name: shadow_pool(model, *data, models=_POOL) for name, model, data in _subjects()}
    rows = []
    for name, attack in _ATTACKS.items():
        cells = []
        for pool in pools.values():
            told = [
                tradeoff_curve(attack(pool, at).split(pool.member[at])).auc
                for at in range(0, 2 * _TARGETS, 2)
            ]
            cells.append(f"{statistics.mean(told):.3f}")
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return {
        "targets": _TARGETS,
        "found_models": _POOL,
        "models_found": " | ".join(pools),
        "columns": " --- |" * len(pools),
        "found": "\n".join(rows),
    }


def _subjects() -> list[tuple[str, Any, Any]]:
    digits, cancer = (load(return_X_y=True) for load in (load_digits, load_breast_cancer))
    digits = digits[0][:_DIGITS], digits[1][:_DIGITS]
    few = digits[0][:600] / 16, digits[1][:600]
    return [
        ("forest of 10, digits", RandomForestClassifier(10), digits),
        ("network of 64 ReLU, 600 digits", MLPClassifier(64, max_iter=1000), few),
        ("tree, breast cancer", DecisionTreeClassifier(), cancer),
        ("Gaussian naive Bayes, breast cancer", GaussianNB(), cancer),
    ]


def _of_one(argument: Any, call: Callable[[Any], object]) -> float:
    return _seconds(lambda: call(argument))


def _seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def _met(held: bool) -> str:
    return "met" if held else "missed"


if __name__ == "__main__":
    main()
