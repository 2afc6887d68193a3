"""DP-Sniper: a classifier finds the event, the other half of the runs bounds its ε.

It bounds the ε of pure DP by events of probability ``c`` or more; the claim is turned accordingly.
"""

import tempfile
from typing import Any

import numpy as np
import zoo_answers
from dpsniper.attack.dpsniper import DPSniper
from dpsniper.classifiers.classifier_factory import LogisticRegressionFactory
from dpsniper.classifiers.torch_optimizer_factory import SGDOptimizerFactory
from dpsniper.mechanisms.abstract import Mechanism
from dpsniper.probability.estimators import EpsEstimator, PrEstimator
from dpsniper.search.ddconfig import DDConfig
from dpsniper.utils.initialization import initialize_dpsniper
from zoo_answers import FloatArray

_FLOOR = 0.1


class _Replay(Mechanism):
    """A mechanism that releases numbers drawn before; input 0 is the side without the record."""

    def __init__(self, inside: FloatArray, outside: FloatArray) -> None:
        self._numbers, self._used = (outside, inside), [0, 0]

    def m(self, a: Any, n_samples: int = 1) -> Any:
        side = int(a[0])
        start = self._used[side]
        self._used[side] += n_samples
        return self._numbers[side][start : start + n_samples]


def judge(
    inside: FloatArray, outside: FloatArray, epsilon: float, delta: float
) -> tuple[bool, float]:
    quarter = len(inside) // 4
    config = DDConfig(
        c=_FLOOR,
        n_train=quarter,
        n=quarter,
        n_check=2 * quarter,
        training_batch_size=quarter,
        n_processes=1,
        confidence=0.95,
    )
    mechanism = _Replay(inside, outside)
    factory = LogisticRegressionFactory(in_dimensions=1, optimizer_factory=SGDOptimizerFactory())
    first, second = np.array([1.0]), np.array([0.0])
    attack = DPSniper(mechanism, factory, config).best_attack(first, second)
    estimate = EpsEstimator(PrEstimator(mechanism, config.n_check, config))
    _, bound = estimate.compute_eps_estimate(first, second, attack)
    return bound > zoo_answers.pure_limit(epsilon, delta, _FLOOR), float(bound)


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as folder,
        initialize_dpsniper(DDConfig(n_processes=1), out_dir=folder, torch_threads=1),
    ):
        zoo_answers.answer(judge, tool="dpsniper")
