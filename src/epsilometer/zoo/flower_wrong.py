"""List federated runs with Flower that do not do what is accounted for."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
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

from epsilometer.types import FloatArray
from epsilometer.zoo.flower_rounds import (
    CANARIES,
    CLIENTS,
    SHAPES,
    SIGMA,
    Arrays,
    C,
    PrivateMean,
    add,
    average,
    clip,
    draw,
    make_clients,
    measure_norm,
    program,
)

EVERYBODY = CLIENTS + CANARIES

# The scale of noise, for so many replies.

program("EPS-0201", part="scale")(lambda server, replies: 0.0)
program("EPS-0202", part="scale")(lambda server, replies: SIGMA * C / replies / 2)
program("EPS-0203", part="scale")(lambda server, replies: SIGMA * C / replies**2)
program("EPS-0204", part="scale")(lambda server, replies: SIGMA * C / (2 * CLIENTS + CANARIES))
program("EPS-0205", part="scale")(lambda server, replies: SIGMA * C / replies * 0.9**server.round)
program("EPS-0206", part="scale")(
    lambda server, replies: 0.0 if server.round % 2 else SIGMA * C / replies
)


@program("EPS-0207", part="draw")
def _average_small_noise(server: PrivateMean, scale: float) -> Arrays:
    """Add the noise of the mean to every update, and average it away."""
    return draw(server, scale / math.sqrt(EVERYBODY))


# The noise itself.


@program("EPS-0208", part="draw")
def _spare_the_last_array(server: PrivateMean, scale: float) -> Arrays:
    return {**draw(server, scale), "out": np.zeros(SHAPES["out"])}


@program("EPS-0209", part="draw")
def _spare_the_first_array(server: PrivateMean, scale: float) -> Arrays:
    return {**draw(server, scale), "first": np.zeros(SHAPES["first"])}


@program("EPS-0210", part="draw")
def _seed_every_array(server: PrivateMean, scale: float) -> Arrays:
    """Seed the generator anew for every array of a round."""
    return {
        name: np.random.default_rng(server.round).normal(0, scale, shape)
        for name, shape in SHAPES.items()
    }


@program("EPS-0211", part="draw")
def _seed_every_round(server: PrivateMean, scale: float) -> Arrays:
    server.rng = np.random.default_rng(0)
    return draw(server, scale)


@program("EPS-0212", part="draw")
def _seed_from_few(server: PrivateMean, scale: float) -> Arrays:
    """Take one of four seeds in turn."""
    server.rng = np.random.default_rng(server.round % 4)
    return draw(server, scale)


@program("EPS-0213", part="draw")
def _draw_uniform(server: PrivateMean, scale: float) -> Arrays:
    limit = math.sqrt(3) * scale
    return {name: server.rng.uniform(-limit, limit, shape) for name, shape in SHAPES.items()}


@program("EPS-0214", part="draw")
def _cut_off(server: PrivateMean, scale: float) -> Arrays:
    """Cut noise off at two standard deviations."""
    noise = draw(server, scale)
    return {name: np.clip(part, -2 * scale, 2 * scale) for name, part in noise.items()}


@program("EPS-0215", part="draw")
def _cancel(server: PrivateMean, scale: float) -> Arrays:
    """Take off the noise of the round before."""
    noise = draw(server, scale)
    last = server.memory.get("noise", dict.fromkeys(SHAPES, 0.0))
    server.memory["noise"] = noise
    return {name: part - last[name] for name, part in noise.items()}


# What it is added to.

program("EPS-0216", part="clip")(lambda update: update)


@program("EPS-0217", part="clip")
def _clip_every_array(update: Arrays) -> Arrays:
    """Clip every array to C by itself."""
    return {name: clip({name: part})[name] for name, part in update.items()}


program("EPS-0218", part="clip")(
    lambda update: {name: np.clip(part, -C, C) for name, part in update.items()}
)


@program("EPS-0219", part="clip")
def _clip_to_twice_the_norm(update: Arrays) -> Arrays:
    return {name: 2 * part for name, part in clip({n: p / 2 for n, p in update.items()}).items()}


@program("EPS-0220", part="clip")
def _normalise_by_the_mean_square(update: Arrays) -> Arrays:
    """Compare the root mean square with C, not the norm."""
    mean_square = measure_norm(update) / math.sqrt(sum(part.size for part in update.values()))
    return {name: part * min(1.0, C / mean_square) for name, part in update.items()}


@program("EPS-0221", part="weigh", clients=partial(make_clients, unequal=True))
def _weigh_by_examples(server: PrivateMean, examples: FloatArray) -> FloatArray:
    return np.asarray(examples / examples.sum())


program("EPS-0222", part="publish")(
    lambda server, mean, noise: add(server, {name: 2 * part for name, part in mean.items()}, noise)
)


@program("EPS-0223", part="average")
def _add_momentum_before_noise(
    server: PrivateMean, updates: Sequence[Arrays], weights: FloatArray
) -> Arrays:
    mean, last = average(server, updates, weights), server.memory.get("velocity", {})
    server.memory["velocity"] = {name: mean[name] + 0.9 * last.get(name, 0.0) for name in mean}
    return dict(server.memory["velocity"])


@program("EPS-0224", part="average")
def _take_the_median(server: PrivateMean, updates: Sequence[Arrays], weights: FloatArray) -> Arrays:
    return {name: np.median([update[name] for update in updates], axis=0) for name in SHAPES}


@program("EPS-0225", part="average")
def _add_up_in_place_of_the_mean(
    server: PrivateMean, updates: Sequence[Arrays], weights: FloatArray
) -> Arrays:
    return average(server, updates, np.ones(len(updates)))


# Flower's own wrappers: what is accounted for is read from them.


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
    """Say that twice as many clients are sampled as reply."""
    return DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_evaluate=0.0), SIGMA, C, 2 * EVERYBODY
    )


@program("EPS-0231", part="strategy", settings={})
def _clip_nowhere(seed: int) -> Strategy:
    """Leave clipping to clients that have no mod for it."""
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
