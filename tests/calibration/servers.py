"""How often right servers are accused: ``python -m tests.calibration.servers [RUNS]``.

Every run draws its own model, clients, noise and number of rounds, and goes through the code that
the proxies of Flower and ``IterateWatch`` call.
"""

import math
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import joblib
import numpy as np

from epsilometer.conformance.round_sums import AccountedMean
from epsilometer.conformance.server_rounds import RoundWatch
from epsilometer.stats.binomial import clopper_pearson_upper
from epsilometer.types import FloatArray
from tests.calibration.conformance import to_bfloat16

RUNS = 500  # of every kind
CONFIDENCE = 0.95
Rng = np.random.Generator
Shapes = dict[str, tuple[int, ...]]

TINY: Shapes = {"scale": (1,), "bias": (3,), "weight": (5, 4), "head": (8,)}
SMALL: Shapes = {"weight": (20, 10), "bias": (40,), "out": (3,)}
USUAL: Shapes = {"first": (40, 20), "bias": (40,), "second": (20, 30), "out": (10, 20)}
LARGE: Shapes = {"embedding": (300, 40), "bias": (300,), "out": (10, 300)}


@dataclass(frozen=True, eq=False, kw_only=True)
class Round:
    """One round, as a server sees it.

    Attributes:
        updates: What clients sent, ``(replies, weights)``.
        examples: Their numbers of examples.
        limit: The clipping norm that is accounted for.
        sigma: The noise multiplier that is accounted for.
        ends: Where arrays end in an update.
        number: Of the round, from 0.
        rng: Where noise comes from.
        memory: What the server keeps between rounds.
    """

    updates: FloatArray
    examples: FloatArray
    limit: float
    sigma: float
    ends: Any
    number: int
    rng: Rng
    memory: dict[str, Any]

    @property
    def replies(self) -> int:
        """How many there are."""
        return len(self.updates)

    def draw(self, scale: float) -> FloatArray:
        """Draw noise."""
        return scale * self.rng.normal(size=self.updates.shape[1])


def clip(updates: FloatArray, limit: float) -> FloatArray:
    """Clip every update to a norm."""
    norms = np.linalg.norm(updates, axis=1, keepdims=True)
    return updates * np.minimum(1.0, limit / np.maximum(norms, 1e-300))


def clip_arrays(updates: FloatArray, limit: float, ends: Any) -> FloatArray:
    """Clip every array, so that all together are no longer than the limit."""
    parts = np.split(updates, ends[:-1], axis=1)
    return np.concatenate([clip(part, limit / math.sqrt(len(parts))) for part in parts], axis=1)


def release_mean(seen: Round) -> FloatArray:
    """Release the mean of clipped updates plus noise."""
    mean = clip(seen.updates, seen.limit).mean(axis=0)
    return mean + seen.draw(seen.sigma * seen.limit / seen.replies)


@dataclass(frozen=True, kw_only=True)
class Server:
    """A kind of server.

    Attributes:
        name: In words.
        step: What is added to the weights in a round.
        accounted: What is declared beside σ and the clipping norm; of a run's arrays, rounds.
        shapes: Models of which each run draws one.
        sigmas: Noise multipliers likewise.
        replies: Least and most clients that reply in a round.
        rounds: Least and most rounds.
        share: How many of all clients reply in a round.
        store: Rounds weights as the server stores them.
        pull: By how much of the weights clients pull them back, as training does.
        clipped: Whether clients clip.
        send: What clients are sent to evaluate, of all weights that were released so far.
    """

    name: str
    step: Callable[[Round], FloatArray] = release_mean
    accounted: Callable[[Any, float], dict[str, Any]] = lambda shapes, limit: {}
    shapes: tuple[Shapes, ...] = (SMALL, USUAL)
    sigmas: tuple[float, ...] = (0.5, 1.0, 4.0)
    replies: tuple[int, int] = (4, 24)
    rounds: tuple[int, int] = (1, 16)
    share: float = 1.0
    store: Callable[[Any], Any] = np.float32
    pull: float = 0.0
    clipped: bool = False
    send: Callable[[list[FloatArray]], FloatArray] = lambda released: released[-1]
    given: dict[str, Any] = field(default_factory=dict)

    def watch(self, rng: Rng) -> RoundWatch:
        """Watch one run."""
        shapes = self.shapes[int(rng.integers(len(self.shapes)))]
        sizes = [math.prod(shape) for shape in shapes.values()]
        ends = np.cumsum(sizes)
        sigma = float(rng.choice(self.sigmas))
        limit = float(rng.choice([0.3, 1.0, 5.0]))
        accounted = AccountedMean(
            noise_multiplier=sigma,
            **{"clip_norm": limit, **self.given, **self.accounted(shapes, limit)},
        )
        clients = _Clients(rng, ends[-1], most=self.replies)
        number = int(rng.integers(self.rounds[0], self.rounds[1] + 1))
        watch, memory = RoundWatch(), dict[str, Any]()
        weights = self.store(rng.normal(size=ends[-1]) / 4)
        every = [weights]

        def split(vector: Any) -> dict[str, Any]:
            parts = np.split(vector, ends[:-1])
            return {n: p.reshape(s) for (n, s), p in zip(shapes.items(), parts, strict=True)}

        for place in range(number):
            who = clients.sample(self.share)
            updates = limit * clients.train(who) - self.pull * np.float64(weights)
            if self.clipped:
                updates = clip(updates, limit)
            replies = [self.store(weights + update) for update in updates]
            examples = clients.examples[who]
            watch.begin(split(weights), accounted, usual_examples=float(examples.mean()))
            for reply, many, client in zip(replies, examples, who, strict=True):
                watch.add(split(reply), examples=float(many), client=int(client))
            seen = Round(
                updates=np.array(replies, np.float64) - np.float64(weights),
                examples=examples,
                limit=limit,
                sigma=sigma,
                ends=ends,
                number=place,
                rng=rng,
                memory=memory,
            )
            weights = self.store(np.float64(weights) + self.step(seen))
            watch.end(split(weights), same_client=self.share == 1 and accounted.noise is None)
            every.append(weights)
            watch.see_sent(split(self.send(every)))
        return watch


class _Clients:
    """Clients whose updates lean to a common direction and to one of their own.

    Half of the runs have clients of very different lengths and numbers of examples.
    """

    def __init__(self, rng: Rng, size: int, *, most: tuple[int, int]) -> None:
        self._rng, self._replies = rng, int(rng.integers(most[0], most[1] + 1))
        self._count = 4 * self._replies
        uneven = rng.integers(2)
        self._lengths = np.exp(rng.normal(0.3, 0.2 + uneven, self._count))
        self.examples = rng.integers(1, 500, self._count) if uneven else np.full(self._count, 64)
        self._common = rng.choice([0.0, 0.5, 2.0]) * rng.normal(size=size)
        self._own = rng.normal(size=(self._count, size))

    def sample(self, share: float) -> Any:
        """Draw who replies: always the same, or some of four times as many."""
        if share == 1:
            return np.arange(self._replies)
        return self._rng.choice(self._count, self._replies, replace=False)

    def train(self, who: Any) -> FloatArray:
        """Return updates, in clipping norms."""
        fresh = self._rng.normal(size=(len(who), self._common.size))
        steps = self._common + self._own[who] / 2 + fresh
        lengths = self._lengths[who][:, None]
        return np.asarray(lengths * steps / np.linalg.norm(steps, axis=1, keepdims=True))


# Right servers.


def weigh_by_examples(seen: Round) -> FloatArray:
    """Weigh by examples, with noise for the largest weight."""
    weights = seen.examples / seen.examples.sum()
    mean = weights @ clip(seen.updates, seen.limit)
    return np.asarray(mean + seen.draw(seen.sigma * seen.limit * float(weights.max())))


def clip_by_arrays(seen: Round) -> FloatArray:
    """Clip every array to its own norm."""
    mean = clip_arrays(seen.updates, seen.limit, seen.ends).mean(axis=0)
    return mean + seen.draw(seen.sigma * seen.limit / seen.replies)


def average_replies(seen: Round) -> FloatArray:
    """Average what clients clipped."""
    return seen.updates.mean(axis=0) + seen.draw(seen.sigma * seen.limit / seen.replies)


def clip_smoothly(seen: Round) -> FloatArray:
    """Divide by the limit plus the norm."""
    norms = np.linalg.norm(seen.updates, axis=1, keepdims=True)
    mean = (seen.limit * seen.updates / (seen.limit + norms)).mean(axis=0)
    return np.asarray(mean + seen.draw(seen.sigma * seen.limit / seen.replies))


def adapt_down(seen: Round) -> FloatArray:
    """Clip harder from round to round, with the noise of the first norm."""
    mean = clip(seen.updates, seen.limit * 0.8**seen.number).mean(axis=0)
    return mean + seen.draw(seen.sigma * seen.limit / seen.replies)


def leave_two_out(seen: Round) -> FloatArray:
    """Leave two replies out, and divide by the number of all."""
    total = clip(seen.updates[2:], seen.limit).sum(axis=0)
    return (total + seen.draw(seen.sigma * seen.limit)) / seen.replies


def divide_by_ten(seen: Round) -> FloatArray:
    """Divide by a fixed number."""
    return (clip(seen.updates, seen.limit).sum(axis=0) + seen.draw(seen.sigma * seen.limit)) / 10


def halve(seen: Round) -> FloatArray:
    """Take half a step, as is declared."""
    return release_mean(seen) / 2


def add_more_noise(seen: Round) -> FloatArray:
    """Add one and a half times the noise."""
    mean = clip(seen.updates, seen.limit).mean(axis=0)
    return mean + seen.draw(1.5 * seen.sigma * seen.limit / seen.replies)


def take_small_steps(seen: Round) -> FloatArray:
    """Take a fifth of a step, and say nothing of it."""
    return release_mean(seen) / 5


def take_large_steps(seen: Round) -> FloatArray:
    """Take two and a half steps."""
    return 2.5 * release_mean(seen)


def decay_steps(seen: Round) -> FloatArray:
    """Take shorter steps from round to round."""
    return release_mean(seen) * 0.7**seen.number


def average_fewer(seen: Round) -> FloatArray:
    """Average the first three quarters of the replies, with noise for as many."""
    many = max(1, 3 * seen.replies // 4)
    mean = clip(seen.updates[:many], seen.limit).mean(axis=0)
    return mean + seen.draw(seen.sigma * seen.limit / many)


def take_back_half(seen: Round) -> FloatArray:
    """Add noise less half of the noise of the round before, as is declared."""
    noise = seen.draw(seen.sigma * seen.limit / seen.replies)
    last, seen.memory["noise"] = seen.memory.get("noise", 0.0), noise
    return clip(seen.updates, seen.limit).mean(axis=0) + noise - 0.5 * last


def leave_first_array(seen: Round) -> FloatArray:
    """Release nothing of the first array."""
    step = release_mean(seen)
    step[: seen.ends[0]] = 0.0
    return step


def wait_for_a_quorum(seen: Round) -> FloatArray:
    """Release nothing in every third round."""
    return np.zeros(seen.updates.shape[1]) if seen.number % 3 == 1 else release_mean(seen)


def add_more_to_first_array(seen: Round) -> FloatArray:
    """Add three times the noise to the first array."""
    noise = seen.draw(seen.sigma * seen.limit / seen.replies)
    noise[: seen.ends[0]] *= 3
    return clip(seen.updates, seen.limit).mean(axis=0) + noise


def draw_level(seen: Round) -> FloatArray:
    """Draw by how much more noise is added than accounted, up to twice."""
    noise = seen.draw(seen.rng.uniform(1, 2) * seen.sigma * seen.limit / seen.replies)
    return clip(seen.updates, seen.limit).mean(axis=0) + noise


def normalise(seen: Round) -> FloatArray:
    """Scale every update to the norm, or a little less."""
    norms = np.linalg.norm(seen.updates, axis=1, keepdims=True)
    mean = (seen.limit * seen.updates / (norms + 0.01 * seen.limit)).mean(axis=0)
    return np.asarray(mean + seen.draw(seen.sigma * seen.limit / seen.replies))


def average_rounds(released: list[FloatArray]) -> FloatArray:
    """Average the weights of all rounds."""
    return np.asarray(np.mean(released, axis=0))


def average_latest(released: list[FloatArray]) -> FloatArray:
    """Average the weights of the two latest rounds."""
    return (released[-1] + released[-2]) / 2


def look_ahead(released: list[FloatArray]) -> FloatArray:
    """Go on by momentum of what was released."""
    steps = np.diff(released, axis=0)
    return np.asarray(released[-1] + 0.9 ** np.arange(len(steps), 0, -1) @ steps)


MIXING = np.eye(32) - 0.5 * np.eye(32, k=-1)
LOW = (0.02, 0.1)

RIGHT = (
    Server(name="clipping by the server"),
    Server(name="clipping by clients", step=average_replies, clipped=True,
           given={"clipped_by": "clients"}),
    Server(name="declared norms of arrays", step=clip_by_arrays,
           accounted=lambda shapes, limit: {
               "clip_norm": dict.fromkeys(shapes, limit / math.sqrt(len(shapes)))}),
    Server(name="arrays clipped apart, undeclared", step=clip_by_arrays),
    Server(name="weights by examples, declared", step=weigh_by_examples,
           given={"weights": "examples"}),
    Server(name="a fixed divisor, some clients reply", step=divide_by_ten, share=0.25,
           given={"clients": 10}),
    Server(name="a quarter of the clients replies", share=0.25, rounds=(4, 24)),
    Server(name="correlated noise, declared", step=take_back_half, given={"noise": MIXING},
           pull=0.2, rounds=(2, 20)),
    Server(name="half a step, declared", step=halve, given={"server_rate": 0.5}),
    Server(name="norms adapted downwards", step=adapt_down),
    Server(name="smooth clipping", step=clip_smoothly),
    Server(name="replies left out", step=leave_two_out),
    Server(name="little noise", sigmas=LOW),
    Server(name="little noise, replies left out", step=leave_two_out, sigmas=LOW),
    Server(name="a fifth of a step, undeclared", step=take_small_steps),
    Server(name="long steps, undeclared", step=take_large_steps),
    Server(name="steps that decay, undeclared", step=decay_steps),
    Server(name="fewer replies averaged, undeclared", step=average_fewer),
    Server(name="little noise, fewer averaged", step=average_fewer, sigmas=LOW),
    Server(name="little noise, long steps", step=take_large_steps, sigmas=LOW),
    Server(name="more noise than accounted", step=add_more_noise),
    Server(name="weights pulled back", pull=0.3, rounds=(8, 32)),
    Server(name="tiny models", shapes=(TINY,), rounds=(1, 32)),
    Server(name="large models", shapes=(LARGE,), replies=(4, 12), rounds=(1, 6)),
    Server(name="many clients", replies=(80, 160), rounds=(1, 6)),
    Server(name="two clients", replies=(2, 2), rounds=(1, 32)),
    Server(name="averages of all rounds sent to evaluate", send=average_rounds),
    Server(name="averages of two rounds sent to evaluate", send=average_latest),
    Server(name="sent ahead by momentum", send=look_ahead, rounds=(2, 24)),
    Server(name="an array that is not released", step=leave_first_array),
    Server(name="rounds in which nothing is released", step=wait_for_a_quorum),
    Server(name="more noise in one array", step=add_more_to_first_array),
    Server(name="a noise level drawn in every round", step=draw_level),
    Server(name="normalised updates, declared", step=normalise, given={"normalised": True}),
    Server(name="float16", store=np.float16, sigmas=(1.0, 4.0)),
    Server(name="bfloat16", store=to_bfloat16, sigmas=(4.0, 30.0), replies=(4, 6)),
)  # fmt: skip


# Wrong servers, which the same runs must find.


def halve_noise(seen: Round) -> FloatArray:
    """Add half of the noise."""
    mean = clip(seen.updates, seen.limit).mean(axis=0)
    return mean + seen.draw(seen.sigma * seen.limit / seen.replies / 2)


def double_mean(seen: Round) -> FloatArray:
    """Add noise to twice the mean."""
    return release_mean(seen) + clip(seen.updates, seen.limit).mean(axis=0)


def never_clip(seen: Round) -> FloatArray:
    """Clip nothing, and take small steps."""
    return average_replies(seen) / 5


def repeat_noise(seen: Round) -> FloatArray:
    """Draw the noise of the first round only."""
    noise = seen.draw(seen.sigma * seen.limit / seen.replies)
    noise = seen.memory.setdefault("noise", noise)
    return clip(seen.updates, seen.limit).mean(axis=0) + noise


CROWD: dict[str, Any] = {"replies": (40, 40), "rounds": (12, 12), "shapes": (USUAL,)}
WRONG = (
    Server(name="half the noise", step=halve_noise, sigmas=(0.5,), **CROWD),
    Server(name="twice the mean", step=double_mean, sigmas=(0.5,), **CROWD),
    Server(name="no clipping", step=never_clip, sigmas=(0.1,), **CROWD),
    Server(name="repeated noise", step=repeat_noise, **CROWD),
)


def find_accusers(server: Server, *, runs: int, seed: int = 0) -> list[tuple[str, ...]]:
    """Return which checks accuse, for every run that is accused."""
    found = []
    for run in range(runs):
        rng = np.random.default_rng([seed, run, zlib.crc32(server.name.encode())])
        finding = server.watch(rng).finding()
        if finding.verdict == "violated":
            found.append(tuple(check.name for check in finding.find("violated")))
    return found


def limit_share(accused: int, runs: int) -> float:
    """Return the largest share of accused runs that such a count allows."""
    return float(clopper_pearson_upper(accused, runs, alpha=1 - CONFIDENCE))


def _count_kind(server: Server, runs: int) -> tuple[list[tuple[str, ...]], float]:
    started = time.process_time()
    return find_accusers(server, runs=runs), time.process_time() - started


def main() -> None:
    """Print the table."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    print("| right server | runs | accused | seconds |\n|---|---|---|---|")
    total, why = 0, Counter[str]()
    counted = joblib.Parallel(n_jobs=-1, return_as="generator")(
        joblib.delayed(_count_kind)(server, runs) for server in RIGHT
    )
    for server, (accused, seconds) in zip(RIGHT, counted, strict=True):
        total += len(accused)
        why.update(name for names in accused for name in names)
        print(f"| {server.name} | {runs:,} | {len(accused)} | {seconds:.0f} |", flush=True)
    every = runs * len(RIGHT)
    limit = limit_share(total, every)
    print(f"\n{total} of {every:,} accused: at most {limit:.3%}, at {CONFIDENCE:.0%} confidence.")
    for name, many in why.most_common():
        print(f"- {name}: {many}")


if __name__ == "__main__":
    main()
