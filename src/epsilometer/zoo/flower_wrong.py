"""List federated runs with Flower that do not do what is accounted for."""

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import Grid

from epsilometer.conformance.round_sums import AccountedMean
from epsilometer.types import FloatArray
from epsilometer.zoo.flower_rounds import (
    CLIENTS,
    EVERYBODY,
    ROUNDS,
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

# The scale of noise, for so many replies.

program("EPS-0201", part="scale")(lambda server, replies: 0.0)
program("EPS-0202", part="scale")(lambda server, replies: SIGMA * C / replies / 2)
program("EPS-0203", part="scale")(lambda server, replies: SIGMA * C / replies**2)
program("EPS-0204", part="scale")(lambda server, replies: SIGMA * C / (CLIENTS + EVERYBODY))
program("EPS-0205", part="scale")(lambda server, replies: SIGMA * C / replies * 0.9**server.round)
program("EPS-0206", part="scale")(
    lambda server, replies: 0.0 if server.round % 2 else SIGMA * C / replies
)


@program("EPS-0207", part="draw")
def _average_small_noise(server: PrivateMean, scale: float) -> Arrays:
    """Add noise scaled for the mean to every update, so that averaging shrinks it."""
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
    """Reseed the generator for every array of a round."""
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
    """Truncate noise at two standard deviations."""
    noise = draw(server, scale)
    return {name: np.clip(part, -2 * scale, 2 * scale) for name, part in noise.items()}


@program("EPS-0215", part="draw")
def _cancel(server: PrivateMean, scale: float) -> Arrays:
    """Subtract the noise of the previous round."""
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


# Programs that were written after the checks, and changed none of them.


@program("EPS-0235", part="draw")
def _draw_laplace(server: PrivateMean, scale: float) -> Arrays:
    """Draw Laplace noise of the same variance."""
    root = math.sqrt(2)
    return {name: server.rng.laplace(0, scale / root, shape) for name, shape in SHAPES.items()}


@program("EPS-0236", part="draw")
def _draw_heavy_tails(server: PrivateMean, scale: float) -> Arrays:
    """Draw Student's t with three degrees of freedom, of the same variance."""
    root = math.sqrt(3)
    return {name: scale / root * server.rng.standard_t(3, shape) for name, shape in SHAPES.items()}


@program("EPS-0237", part="average")
def _trust_one_client(
    server: PrivateMean, updates: Sequence[Arrays], weights: FloatArray
) -> Arrays:
    """Multiply one client's update by ten, as if it were never clipped."""
    trusted = {name: 10 * part for name, part in updates[0].items()}
    return average(server, [trusted, *updates[1:]], weights)


@program("EPS-0238", part="average")
def _count_one_client_three_times(
    server: PrivateMean, updates: Sequence[Arrays], weights: FloatArray
) -> Arrays:
    """Add up a reply again whenever its client connects again."""
    every = [*updates, updates[3], updates[3]]
    return average(server, every, np.full(len(every), weights[0]))


@program("EPS-0239", part="publish")
def _spare_small_coordinates(server: PrivateMean, mean: Arrays, noise: Arrays) -> Arrays:
    """Add noise where the mean is large, and none to the smallest three tenths."""
    least = {name: np.quantile(np.abs(part), 0.3) for name, part in mean.items()}
    return {
        name: part + np.where(np.abs(part) > least[name], noise[name], 0.0)
        for name, part in mean.items()
    }


@program("EPS-0240", part="average")
def _add_the_last_round_again(
    server: PrivateMean, updates: Sequence[Arrays], weights: FloatArray
) -> Arrays:
    """Keep replies in a buffer that is emptied a round too late."""
    mean, last = average(server, updates, weights), server.memory.get("mean", {})
    server.memory["mean"] = mean
    return {name: part + last.get(name, 0.0) for name, part in mean.items()}


program("EPS-0241", part="scale")(lambda server, replies: SIGMA * C / (1.3 * replies))


@program("EPS-0242", part="draw")
def _seed_by_the_round(server: PrivateMean, scale: float) -> Arrays:
    """Seed the generator with the number of the round, which everyone knows."""
    server.rng = np.random.default_rng(server.round)
    return draw(server, scale)


@program("EPS-0243", part="draw")
def _repeat_rows(server: PrivateMean, scale: float) -> Arrays:
    """Draw one row for all rows of an array."""
    rows = {name: server.rng.normal(0, scale, shape[1]) for name, shape in SHAPES.items()}
    return {name: np.broadcast_to(row, SHAPES[name]) for name, row in rows.items()}


@program("EPS-0244", part="clip")
def _clip_by_the_longest_array(update: Arrays) -> Arrays:
    longest = max(float(np.linalg.norm(part)) for part in update.values())
    return {name: part * min(1.0, C / longest) for name, part in update.items()}


@program("EPS-0245", part="draw")
def _round_coarsely(server: PrivateMean, scale: float) -> Arrays:
    """Round noise to whole standard deviations."""
    return {name: scale * np.round(part / scale) for name, part in draw(server, scale).items()}


@program("EPS-0246", part="draw")
def _smooth(server: PrivateMean, scale: float) -> Arrays:
    """Average noise with that of the next coordinate."""
    noise = draw(server, scale)
    return {name: (part + np.roll(part, 1, axis=-1)) / 2 for name, part in noise.items()}


@program("EPS-0247", part="draw")
def _spare_every_second_coordinate(server: PrivateMean, scale: float) -> Arrays:
    noise = draw(server, scale)
    return {name: part * (np.arange(part.shape[1]) % 2) for name, part in noise.items()}


@program("EPS-0248", part="draw")
def _mirror(server: PrivateMean, scale: float) -> Arrays:
    """Draw half of an array, and take its negative for the other half."""
    halves = {name: part[: len(part) // 2] for name, part in draw(server, scale).items()}
    return {name: np.concatenate([half, -half]) for name, half in halves.items()}


@program("EPS-0249", part="average")
def _drop_long_updates(
    server: PrivateMean, updates: Sequence[Arrays], weights: FloatArray
) -> Arrays:
    """Leave clipped updates out, and divide by the number of the others."""
    short = [update for update in updates if measure_norm(update) < 0.99 * C]
    return average(server, short, np.full(len(short), 1 / len(short)))


@program("EPS-0250", part="publish")
def _release_the_last_mean(server: PrivateMean, mean: Arrays, noise: Arrays) -> Arrays:
    """Publish the last round without noise, as the final model."""
    return mean if server.round == ROUNDS else add(server, mean, noise)


@program("EPS-0251", part="clip")
def _forget_to_clip_one_array(update: Arrays) -> Arrays:
    clipped = clip({name: part for name, part in update.items() if name != "out"})
    return {**clipped, "out": update["out"]}


# Programs that the checks missed when they were written; what was then added finds these.


class _Unsafe(PrivateMean):
    """Keeps the weights without noise, and returns them with noise."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, publish=self._keep_clean)
        self.clean: ArrayRecord | None = None

    @staticmethod
    def _keep_clean(server: Any, mean: Arrays, noise: Arrays) -> Arrays:
        new = {name: (server._sent[name] + mean[name]).astype(np.float32) for name in mean}
        server.clean = ArrayRecord({name: Array(part) for name, part in new.items()})
        return add(server, mean, noise)


@program("EPS-0252", part="strategy")
class _TrainOnCleanWeights(_Unsafe):
    """Sends clients the weights without noise to train on."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: Any, grid: Grid
    ) -> Any:
        return super().configure_train(server_round, self.clean or arrays, config, grid)


@program("EPS-0253", part="strategy")
class _EvaluateCleanWeights(_Unsafe):
    """Sends clients the weights without noise to evaluate."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.fraction_evaluate = 1.0

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: Any, grid: Grid
    ) -> Any:
        return super().configure_evaluate(server_round, self.clean or arrays, config, grid)


@program("EPS-0254", part="strategy")
class _AverageLatestReplies(PrivateMean):
    """Asks half of the clients per round, and averages the latest replies of all."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, average=self._average_latest)
        self.fraction_train = 0.5

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        every = list(replies)
        self.memory["nodes"] = [each.metadata.src_node_id for each in every if each.has_content()]
        return super().aggregate_train(server_round, every)

    @staticmethod
    def _average_latest(
        server: PrivateMean, updates: Sequence[Arrays], weights: FloatArray
    ) -> Arrays:
        latest = server.memory.setdefault("latest", {})
        latest.update(zip(server.memory["nodes"], updates, strict=True))
        return average(server, list(latest.values()), np.full(len(latest), weights[0]))


@program("EPS-0255", part="average")
def _take_one_reply(server: PrivateMean, updates: Sequence[Arrays], weights: FloatArray) -> Arrays:
    """Use only the update that is nearest to the others, as Krum does."""
    rows = np.array([np.concatenate([np.ravel(u[name]) for name in SHAPES]) for u in updates])
    squares = np.sum(rows**2, axis=1)
    apart = squares[:, None] + squares - 2 * rows @ rows.T
    return dict(updates[int(np.argmin(np.sort(apart, axis=1)[:, :40].sum(axis=1)))])


@program("EPS-0256", part="average")
def _weigh_by_length(server: PrivateMean, updates: Sequence[Arrays], weights: FloatArray) -> Arrays:
    """Weight by the cube of the clipped norm: long updates count most."""
    lengths = np.array([measure_norm(update) for update in updates]) ** 3
    return average(server, updates, lengths / lengths.sum())


program("EPS-0257", part="draw")(
    lambda server, scale: {name: part - part.mean() for name, part in draw(server, scale).items()}
)


@program("EPS-0258", part="publish")
def _spare_the_mean(server: PrivateMean, mean: Arrays, noise: Arrays) -> Arrays:
    """Remove the component of the noise along the mean, to preserve utility."""
    along = sum(float(np.vdot(mean[name], noise[name])) for name in mean) / measure_norm(mean) ** 2
    return {name: part + noise[name] - along * part for name, part in mean.items()}


@program("EPS-0259", part="average")
def _add_last_rounds_replies(
    server: PrivateMean, updates: Sequence[Arrays], weights: FloatArray
) -> Arrays:
    """Add half of the replies of the previous round again."""
    last, server.memory["last"] = server.memory.get("last", []), updates[::2]
    return average(server, [*updates, *last], np.full(len(updates) + len(last), weights[0]))


@program("EPS-0260", part="weigh")
def _weigh_by_loss(server: PrivateMean, examples: FloatArray) -> FloatArray:
    """Weight by the losses of clients, which change from round to round."""
    losses = server.rng.exponential(size=examples.size)
    return np.asarray(losses / losses.sum())


@program("EPS-0261", part="draw")
def _cut_from_a_table(server: PrivateMean, scale: float) -> Arrays:
    """Draw one table of noise, and use random slices of it."""
    table = server.memory.setdefault("table", server.rng.normal(size=5000))
    starts = {name: int(server.rng.integers(5000 - math.prod(s))) for name, s in SHAPES.items()}
    return {
        name: scale * table[starts[name] : starts[name] + math.prod(shape)].reshape(shape)
        for name, shape in SHAPES.items()
    }


# Programs that were written later, of which some were missed; what was then added finds three more.


@program("EPS-0262", part="draw")
def _seed_by_the_clock(server: PrivateMean, scale: float) -> Arrays:
    """Seed the generator with the second in which it draws."""
    server.rng = np.random.default_rng(int(time.time()))
    return draw(server, scale)


@program("EPS-0263", part="publish")
def _take_all_noise_back(server: PrivateMean, mean: Arrays, noise: Arrays) -> Arrays:
    """Subtract the noise of all earlier rounds from the final model."""
    earlier = server.memory.get("noise", dict.fromkeys(SHAPES, 0.0))
    server.memory["noise"] = {name: earlier[name] + part for name, part in noise.items()}
    if server.round < ROUNDS:
        return add(server, mean, noise)
    return {name: mean[name] + part - earlier[name] for name, part in noise.items()}


@program("EPS-0264", part="strategy")
class _SpareOneClient(PrivateMean):
    """Removes the component of the noise along the update of one client."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, average=self._keep_one, publish=self._spare)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        every = sorted(replies, key=lambda reply: reply.metadata.src_node_id)
        return super().aggregate_train(server_round, every)

    @staticmethod
    def _keep_one(server: PrivateMean, updates: Sequence[Arrays], weights: FloatArray) -> Arrays:
        server.memory["one"] = updates[0]
        return average(server, updates, weights)

    @staticmethod
    def _spare(server: PrivateMean, mean: Arrays, noise: Arrays) -> Arrays:
        one = server.memory["one"]
        along = sum(float(np.vdot(one[name], noise[name])) for name in one) / measure_norm(one) ** 2
        return {name: mean[name] + noise[name] - along * one[name] for name in mean}


@program("EPS-0265", part="draw")
def _draw_low_rank(server: PrivateMean, scale: float) -> Arrays:
    """Draw noise of rank 4, as for the factors of adapters."""
    return {
        name: scale / 2 * (server.rng.normal(size=(rows, 4)) @ server.rng.normal(size=(4, columns)))
        for name, (rows, columns) in SHAPES.items()
    }


@program("EPS-0266", part="draw")
def _permute_one_noise(server: PrivateMean, scale: float) -> Arrays:
    """Draw noise once, and permute its values in every round."""
    noise = server.memory.setdefault("noise", draw(server, scale))
    return {
        name: server.rng.permutation(part.ravel()).reshape(part.shape)
        for name, part in noise.items()
    }


@program("EPS-0267", part="draw")
def _scale_by_weights(server: PrivateMean, scale: float) -> Arrays:
    """Add noise in proportion to the size of each weight."""
    return {
        name: part * np.abs(server._sent[name]) / np.sqrt(np.mean(server._sent[name] ** 2))
        for name, part in draw(server, scale).items()
    }


program("EPS-0268", part="publish")(
    lambda server, mean, noise: {
        name: part + np.abs(noise[name]) * np.sign(part) for name, part in mean.items()
    }
)


@program("EPS-0269", part="clip")
def _take_max_for_min(update: Arrays) -> Arrays:
    """Scale short updates up, and leave long ones unclipped."""
    factor = max(1.0, C / measure_norm(update))
    return {name: factor * part for name, part in update.items()}


program("EPS-0270", part="average", clip=lambda update: update)(
    lambda server, updates, weights: clip(average(server, updates, weights))
)

program(
    "EPS-0271",
    part="weigh",
    clients=partial(make_clients, unequal=True),
    settings={"accounted": AccountedMean(noise_multiplier=SIGMA, clip_norm=C, weights="examples")},
)(lambda server, examples: examples / examples.sum())


@program("EPS-0272", part="average")
def _count_somebody_twice(
    server: PrivateMean, updates: Sequence[Arrays], weights: FloatArray
) -> Arrays:
    """Add one reply twice, a different one in every round."""
    again = updates[int(server.rng.integers(len(updates)))]
    return average(server, [*updates, again], np.full(len(updates) + 1, weights[0]))


@program("EPS-0273", part="draw")
def _reuse_columns(server: PrivateMean, scale: float) -> Arrays:
    """Reuse the noise of one array for another, with its columns permuted."""
    noise = draw(server, scale)
    return {**noise, "second": noise["first"][:20, server.rng.permutation(30)]}
