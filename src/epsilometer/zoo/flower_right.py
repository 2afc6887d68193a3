"""List federated runs with Flower that do what is accounted for, in unusual ways."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedProx,
    Strategy,
)

from epsilometer.conformance.round_sums import AccountedMean
from epsilometer.types import FloatArray
from epsilometer.zoo.flower_rounds import (
    EVERYBODY,
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

LAYERS = dict.fromkeys(SHAPES, C / math.sqrt(len(SHAPES)))
MIXING = np.eye(8) - 0.5 * np.eye(8, k=-1)

program("EPS-1201", part="draw")(draw)
program("EPS-1202", part="scale")(lambda server, replies: 1.2 * SIGMA * C / replies)


@program("EPS-1203", part="draw")
def _add_shares_of_noise(server: PrivateMean, scale: float) -> Arrays:
    """Add to every update its share of the noise, 1/√n of that of the sum."""
    shares = [draw(server, scale * math.sqrt(EVERYBODY)) for _ in range(EVERYBODY)]
    return {name: np.mean([share[name] for share in shares], axis=0) for name in SHAPES}


program(
    "EPS-1204",
    part="publish",
    settings={"accounted": AccountedMean(noise_multiplier=SIGMA, clip_norm=C, server_rate=0.5)},
)(lambda server, mean, noise: {name: (mean[name] + noise[name]) / 2 for name in mean})


@program(
    "EPS-1205",
    part="clip",
    settings={"accounted": AccountedMean(noise_multiplier=SIGMA, clip_norm=LAYERS)},
)
def _clip_every_array_to_its_norm(update: Arrays) -> Arrays:
    """Clip every array to C/√3."""
    root = math.sqrt(len(SHAPES))
    return {name: clip({name: root * part})[name] / root for name, part in update.items()}


@program(
    "EPS-1206",
    part="average",
    scale=lambda server, replies: SIGMA * C / 100,
    settings={"accounted": AccountedMean(noise_multiplier=SIGMA, clip_norm=C, clients=100)},
)
def _divide_by_a_fixed_number(
    server: PrivateMean, updates: Sequence[Arrays], weights: FloatArray
) -> Arrays:
    """Divide by the expected number of clients, however many reply."""
    return average(server, updates, np.full(len(updates), 1 / 100))


@program(
    "EPS-1207",
    part="weigh",
    clients=partial(make_clients, unequal=True),
    scale=lambda server, replies: SIGMA * C * server.memory["largest"],
    settings={"accounted": AccountedMean(noise_multiplier=SIGMA, clip_norm=C, weights="examples")},
)
def _weigh_and_remember(server: PrivateMean, examples: FloatArray) -> FloatArray:
    """Weight by examples, with noise for the largest weight."""
    weights = np.asarray(examples / examples.sum())
    server.memory["largest"] = float(weights.max())
    return weights


program(
    "EPS-1208",
    part="read",
    clients=partial(make_clients, updates=True),
    settings={
        "accounted": AccountedMean(noise_multiplier=SIGMA, clip_norm=C),
        "replies": "updates",
    },
)(lambda reply, sent: reply)


@program(
    "EPS-1209",
    part="draw",
    settings={"accounted": AccountedMean(noise_multiplier=SIGMA, clip_norm=C, noise=MIXING)},
)
def _take_back_half_of_the_last_noise(server: PrivateMean, scale: float) -> Arrays:
    """Add correlated noise that is declared."""
    noise = draw(server, scale)
    last = server.memory.get("noise", dict.fromkeys(SHAPES, 0.0))
    server.memory["noise"] = noise
    return {name: part - 0.5 * last[name] for name, part in noise.items()}


program("EPS-1210", part="weigh", clients=partial(make_clients, unequal=True))(
    lambda server, examples: np.full(examples.size, 1 / examples.size)
)


@program("EPS-1211", part="strategy", settings={})
def _wrap_fedavg(seed: int) -> Strategy:
    return DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_evaluate=0.0), SIGMA, C, EVERYBODY
    )


@program("EPS-1212", part="strategy", settings={})
def _wrap_fedprox(seed: int) -> Strategy:
    return DifferentialPrivacyServerSideFixedClipping(
        FedProx(fraction_evaluate=0.0, proximal_mu=0.1), SIGMA, C, EVERYBODY
    )


@program(
    "EPS-1213",
    part="strategy",
    settings={},
    clients=partial(make_clients, mods=[fixedclipping_mod]),
)
def _clip_in_the_clients(seed: int) -> Strategy:
    return DifferentialPrivacyClientSideFixedClipping(
        FedAvg(fraction_evaluate=0.0), SIGMA, C, EVERYBODY
    )


@program("EPS-1214", part="strategy", settings={})
def _adapt_slowly(seed: int) -> Strategy:
    """Adapt the clipping norm so slowly that noise is for the norm that was clipped to."""
    return DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(fraction_evaluate=0.0),
        SIGMA,
        EVERYBODY,
        initial_clipping_norm=1.0,
        clip_norm_lr=1e-4,
    )


@program("EPS-1215", part="clip")
def _clip_arrays_without_saying_so(update: Arrays) -> Arrays:
    """Clip every array to C/√3, where C over all arrays is accounted for."""
    return _clip_every_array_to_its_norm(update)


@program("EPS-1216", part="clip")
def _clip_to_half_the_norm(update: Arrays) -> Arrays:
    return {name: part / 2 for name, part in clip({n: 2 * p for n, p in update.items()}).items()}


@program("EPS-1217", part="average")
def _leave_five_out(server: PrivateMean, updates: Sequence[Arrays], weights: FloatArray) -> Arrays:
    """Leave out the same five replies in every round, and divide by the number of all."""
    return average(server, updates[5:], weights[5:])


@program("EPS-1218", part="draw")
def _draw_in_two_parts(server: PrivateMean, scale: float) -> Arrays:
    first, second = draw(server, 0.6 * scale), draw(server, 0.8 * scale)
    return {name: first[name] + second[name] for name in first}


@program("EPS-1219", part="draw")
def _draw_by_torch(server: PrivateMean, scale: float) -> Arrays:
    generator = torch.Generator().manual_seed(int(server.rng.integers(2**63)))
    return {
        name: torch.normal(0.0, scale, shape, generator=generator).numpy()
        for name, shape in SHAPES.items()
    }


@program("EPS-1220", part="clip")
def _clip_smoothly(update: Arrays) -> Arrays:
    """Divide by C plus the norm: no update is ever longer than C."""
    norm = measure_norm(update)
    return {name: C * part / (C + norm) for name, part in update.items()}


@program("EPS-1221", part="publish")
def _take_half_a_step_without_saying_so(server: PrivateMean, mean: Arrays, noise: Arrays) -> Arrays:
    return {name: (mean[name] + noise[name]) / 2 for name in mean}


@program("EPS-1222", part="publish")
def _take_steps_that_decay(server: PrivateMean, mean: Arrays, noise: Arrays) -> Arrays:
    """Multiply the noisy mean by 3 · 0.7^round without declaring it."""
    rate = 3 * 0.7**server.round
    return {name: rate * (mean[name] + noise[name]) for name in mean}


@program("EPS-1223", part="average", scale=lambda server, replies: SIGMA * C / (replies - 15))
def _average_fewer_replies(
    server: PrivateMean, updates: Sequence[Arrays], weights: FloatArray
) -> Arrays:
    """Average without the last 15 replies, with noise for the number that remains."""
    kept = updates[:-15]
    return average(server, kept, np.full(len(kept), 1 / len(kept)))


@program("EPS-1224", part="strategy")
class _AskHalf(PrivateMean):
    """Asks half of the clients per round."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.fraction_train = 0.5


@program("EPS-1225", part="strategy")
class _SendRounded(PrivateMean):
    """Sends weights in half precision, which changes what was released."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: Any, grid: Grid
    ) -> Any:
        rounded = {
            name: Array(part.numpy().astype(np.float16).astype(np.float32))
            for name, part in arrays.items()
        }
        return super().configure_train(server_round, ArrayRecord(rounded), config, grid)


@program("EPS-1226", part="strategy")
class _EvaluateAverages(PrivateMean):
    """Sends clients the average of released weights to evaluate."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.fraction_evaluate = 1.0

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: Any, grid: Grid
    ) -> Any:
        now = {name: part.numpy() for name, part in arrays.items()}
        last = self.memory.get("average", now)
        self.memory["average"] = {name: (last[name] + now[name]) / 2 for name in now}
        sent = ArrayRecord({n: Array(part) for n, part in self.memory["average"].items()})
        return super().configure_evaluate(server_round, sent, config, grid)


def _leave_first(server: PrivateMean, mean: Arrays, noise: Arrays) -> Arrays:
    noisy = {name: mean[name] + noise[name] for name in mean}
    return {**noisy, "first": np.zeros(SHAPES["first"])}


program("EPS-1227", part="publish")(_leave_first)
program("EPS-1228", part="publish")(
    lambda server, mean, noise: (_leave_first if server.round <= 4 else add)(server, mean, noise)
)


@program("EPS-1229", part="publish")
def _wait_for_a_quorum(server: PrivateMean, mean: Arrays, noise: Arrays) -> Arrays:
    """Release nothing in two rounds, as if too few clients had replied."""
    noisy = add(server, mean, noise)
    return {name: 0.0 * part for name, part in noisy.items()} if server.round in (2, 5) else noisy


@program("EPS-1230", part="draw")
def _add_more_to_one_array(server: PrivateMean, scale: float) -> Arrays:
    noise = draw(server, scale)
    return {**noise, "second": 3 * noise["second"]}


program("EPS-1231", part="draw")(
    lambda server, scale: draw(server, scale * server.rng.uniform(1.0, 2.0))
)


@program(
    "EPS-1232",
    part="clip",
    settings={"accounted": AccountedMean(noise_multiplier=SIGMA, clip_norm=C, normalised=True)},
)
def _normalise(update: Arrays) -> Arrays:
    """Scale every update to C, or a little less."""
    norm = measure_norm(update)
    return {name: C * part / (norm + 0.01) for name, part in update.items()}


@program("EPS-1233", part="average", scale=lambda server, replies: 0.0)
def _add_up_integers(server: PrivateMean, updates: Sequence[Arrays], weights: FloatArray) -> Arrays:
    """Round updates at random to a grid, and add rounded noise, as secure aggregation does."""
    grid, rng = SIGMA * C / 64, server.rng
    return {
        name: grid
        / len(updates)
        * (
            sum(np.floor(update[name] / grid + rng.random(shape)) for update in updates)
            + np.round(rng.normal(0, SIGMA * C / grid, shape))
        )
        for name, shape in SHAPES.items()
    }


@program("EPS-1234", part="average", scale=lambda server, replies: SIGMA * C / 45)
def _average_the_fastest(
    server: PrivateMean, updates: Sequence[Arrays], weights: FloatArray
) -> Arrays:
    """Average 45 of 60 replies, different ones in every round."""
    fastest = server.rng.permutation(len(updates))[:45]
    return average(server, [updates[place] for place in fastest], np.full(45, 1 / 45))


@program("EPS-1235", part="strategy")
class _LoseReplies(PrivateMean):
    """Loses each reply with probability 0.4, and divides by the number of the others."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        every = [reply for reply in replies if self.rng.random() < 0.6]
        return super().aggregate_train(server_round, every)
