"""List runs with Flower's own wrappers that do not do what is accounted for.

What is accounted for is read from the wrappers.
"""

from functools import partial
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    Strategy,
)

from epsilometer.zoo.flower_rounds import EVERYBODY, SIGMA, C, make_clients, program


def _wrap(strategy: Strategy, noise: float = SIGMA) -> Strategy:
    return DifferentialPrivacyServerSideFixedClipping(strategy, noise, C, EVERYBODY)


@program("EPS-0226", part="strategy", settings={}, clients=partial(make_clients, unequal=True))
def _wrap_weights_by_examples(seed: int) -> Strategy:
    return _wrap(FedAvg(fraction_evaluate=0.0))


@program("EPS-0227", part="strategy", settings={})
def _wrap_server_learning_rate(seed: int) -> Strategy:
    return _wrap(FedAvgM(fraction_evaluate=0.0, server_learning_rate=2.0))


@program("EPS-0228", part="strategy", settings={})
def _wrap_fedadam(seed: int) -> Strategy:
    return _wrap(FedAdam(fraction_evaluate=0.0))


@program("EPS-0229", part="strategy", settings={})
def _wrap_median(seed: int) -> Strategy:
    return _wrap(FedMedian(fraction_evaluate=0.0))


@program("EPS-0230", part="strategy", settings={})
def _count_twice_the_clients(seed: int) -> Strategy:
    """Declare twice as many sampled clients as reply."""
    return DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_evaluate=0.0), SIGMA, C, 2 * EVERYBODY
    )


@program("EPS-0231", part="strategy", settings={})
def _clip_nowhere(seed: int) -> Strategy:
    """Leave clipping to clients without a clipping mod."""
    return DifferentialPrivacyClientSideFixedClipping(
        FedAvg(fraction_evaluate=0.0), SIGMA, C, EVERYBODY
    )


@program("EPS-0232", part="strategy", settings={})
def _adapt_before_noise(seed: int) -> Strategy:
    """Adapt the clipping norm between clipping and noise, as Flower does."""
    return DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(fraction_evaluate=0.0), SIGMA, EVERYBODY, initial_clipping_norm=0.1
    )


@program("EPS-0233", part="strategy", settings={})
class _CountWithoutNoise(DifferentialPrivacyServerSideAdaptiveClipping):
    """Adapts the clipping norm by the exact number of clipped updates."""

    def __init__(self, seed: int) -> None:
        super().__init__(FedAvg(fraction_evaluate=0.0), SIGMA, EVERYBODY, initial_clipping_norm=4.0)

    def _noisy_fraction(self, count: int, total: int) -> float:
        return count / total


@program("EPS-0234", part="strategy", settings={})
class _HalveTheNoise(DifferentialPrivacyServerSideFixedClipping):
    """Overrides Flower's noise by half of it."""

    def __init__(self, seed: int) -> None:
        super().__init__(FedAvg(fraction_evaluate=0.0), SIGMA, C, EVERYBODY)

    def _add_noise_to_aggregated_arrays(self, aggregated_arrays: ArrayRecord) -> Any:
        kept, self.noise_multiplier = self.noise_multiplier, self.noise_multiplier / 2
        try:
            return super()._add_noise_to_aggregated_arrays(aggregated_arrays)
        finally:
            self.noise_multiplier = kept
