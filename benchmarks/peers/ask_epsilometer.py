"""Questions to epsilometer itself, asked as its peers are: ``stopwatch.answer``."""

from typing import Any

import federation
import numpy as np
import repeated
import stopwatch
import subjects
from stopwatch import BoolArray, FloatArray

from epsilometer.audits.classifier.attacks.evaluation import evaluate
from epsilometer.audits.classifier.attacks.shadow_attacks import rmia
from epsilometer.audits.classifier.attacks.shadows import shadow_pool
from epsilometer.core.scores import Design, ScoreCounts, Scores
from epsilometer.engine.engines import InProcess
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.thresholds import Best, Fixed


def default_bound(inside: FloatArray, outside: FloatArray) -> float:
    return epsilon_lower_bound(Scores(inside, outside), delta=1e-5).epsilon


def best_threshold(inside: FloatArray, outside: FloatArray) -> float:
    return epsilon_lower_bound(Scores(inside, outside), delta=1e-5, rule=Best()).epsilon


def one_run(inside: FloatArray, outside: FloatArray) -> float:
    return epsilon_lower_bound(Scores(inside, outside, design="coins"), delta=1e-6).epsilon


def joint_beta(fn: int, fp: int, tn: int, tp: int) -> float:
    counts = ScoreCounts([0.0], [fn, tp], [tn, fp])
    return epsilon_lower_bound(counts, delta=1e-5, method="joint_beta", rule=Fixed(0.0)).epsilon


def scores_default(scores: FloatArray, member: BoolArray) -> dict[str, float]:
    return {"default": _bound(scores, member)}


def scores_one_run(scores: FloatArray, member: BoolArray) -> dict[str, float]:
    return {"one_run": _bound(scores, member, "one_run")}


def scores_gdp(scores: FloatArray, member: BoolArray) -> dict[str, float]:
    return {"gdp": _bound(scores, member, "gdp")}


def membership(member: BoolArray, leaks: bool, seed: int) -> dict[str, float]:
    """The target against 16 models of an adversary who has records like its own."""
    x, y = subjects.records()
    model = subjects.target(member, leaks, seed)
    with np.errstate(divide="ignore"):
        seen = np.log(model.predict_proba(x))
    pool = shadow_pool(
        subjects.forest(0), x, y, models=16, engine=InProcess(), seed=1000 + int(seed)
    )
    found = evaluate(rmia(pool, seen), member, coins=True)
    return {"bound": found.bound.epsilon, "auc": found.auc.value, "sure": 1 - found.p_value}


def training(given: str) -> dict[str, Any]:
    """The audit ``SITUATION:SEED``: many models at once, with the record and without it."""
    from epsilometer.audits.dpsgd.game import RecordGame
    from epsilometer.core.record import Record
    from epsilometer.networks.ensemble import EnsembleDPSGD, cross_entropy
    from epsilometer.networks.models import mlp
    from epsilometer.sampling.samplers import Poisson

    situation, _, seed = given.partition(":")
    x, y = repeated.records()
    ensemble = EnsembleDPSGD(
        mlp(64, 10),
        cross_entropy,
        runs=repeated.RUNS,
        sampler=Poisson(),
        noise_multiplier=repeated.NOISE[situation],
        learning_rate=repeated.RATE,
        batch_size=repeated.BATCH,
        epochs=repeated.EPOCHS,
    )
    record = Record(features=x[0], label=int(y[0]))
    game = RecordGame(
        training=ensemble, features=x, labels=y, record=record, adjacency="add_remove"
    )
    sides = game.play(repeated.RUNS, np.random.default_rng(int(seed)))["loss"]
    return {"inside": sides.inside.tolist(), "outside": sides.outside.tolist()}


def federated(given: str) -> dict[str, Any]:
    """The audit ``SITUATION:SEED``: cosines of canaries with how far the model moved."""
    from epsilometer.audits.federated.directions import SphereCanaries
    from epsilometer.audits.federated.simulation import FederatedTraining
    from epsilometer.networks.ensemble import cross_entropy
    from epsilometer.networks.models import mlp

    situation, _, seed = given.partition(":")
    how = federation.settings(situation)
    simulated = FederatedTraining(
        mlp(federation.FEATURES, federation.CLASSES, federation.HIDDEN),
        cross_entropy,
        clients=federation.records(how["clients"]),
        rounds=how["rounds"],
        cohort=how["clients"],
        noise_multiplier=how["noise"],
        learning_rate=federation.RATE,
        batch_size=federation.BATCH,
    )
    canaries = SphereCanaries(count=how["canaries"], dimension=simulated.size, key=1000 + int(seed))
    ended = simulated.train(
        rng=np.random.default_rng(int(seed)),
        canaries=canaries,
        repetitions=how["rounds"],
        iterates="none",
    )
    return {"cosines": ended.moved.tolist(), "dimension": simulated.size}


def _bound(scores: FloatArray, member: BoolArray, method: str | None = None) -> float:
    # They were drawn independently, each in by a coin: as runs, and as canaries of one run.
    design: Design = "coins" if method == "one_run" else "runs"
    given = Scores(scores[member], scores[~member], design=design)
    return epsilon_lower_bound(given, delta=1e-5, method=method).epsilon


if __name__ == "__main__":
    stopwatch.answer(
        {
            "default_bound": default_bound,
            "best_threshold": best_threshold,
            "one_run": one_run,
            "joint_beta": joint_beta,
            "scores_default": scores_default,
            "scores_one_run": scores_one_run,
            "scores_gdp": scores_gdp,
            "membership": membership,
            "training": training,
            "federated": federated,
        },
        tool="epsilometer",
    )
