"""Rounds of a server: what it released beside the replies that it saw."""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats

from epsilometer.conformance import whitening
from epsilometer.conformance.averages import LeanCheck
from epsilometer.conformance.guesses import GuessedNoise
from epsilometer.conformance.round_sums import AccountedMean, RoundSums
from epsilometer.conformance.server_rounds import SHARE, RoundWatch
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

FLAKE = 1e-6
SHAPES = {"a": (20, 10), "b": (40,), "c": (3,)}
Arrays = dict[str, Any]


def norm_of(update: Arrays) -> float:
    return math.sqrt(sum(float(np.sum(part**2)) for part in update.values()))


def clip_whole(update: Arrays, limit: float) -> Arrays:
    factor = min(1.0, limit / max(norm_of(update), 1e-300))
    return {name: factor * part for name, part in update.items()}


def average_all(every: Arrays, weights: FloatArray) -> Arrays:
    return {name: np.tensordot(weights, part, 1) for name, part in every.items()}


def run_server(
    seed: int,
    *,
    rounds: int = 8,
    replies: int = 12,
    accounted: AccountedMean | None = None,
    clip: Callable[[Arrays, float], Arrays] = clip_whole,
    noise: float = 1.0,
    multiple: float = 1.0,
    weigh: bool = False,
    spread: float = 0.1,
    uneven: float = 0.0,
    average: Callable[[Arrays, FloatArray], Arrays] = average_all,
    shapes: dict[str, tuple[int, ...]] = SHAPES,
    pull: float = 0.0,
    draw: Callable[[int, np.random.Generator], np.random.Generator] = lambda number, rng: rng,
    dtype: Any = np.float64,
) -> RoundWatch:
    """Run a server with updates of norm 1.5 or so, where nothing else is said.

    Args:
        seed: Of everything.
        rounds: How many.
        replies: In every round.
        accounted: What the server is accounted to release.
        clip: Clips an update to a norm.
        noise: By what the accounted noise is multiplied.
        multiple: By what the mean is multiplied.
        weigh: Whether clients weigh by examples.
        spread: Of single coordinates of an update.
        uneven: By how much the logarithms of updates' lengths differ.
        average: Averages clipped updates, of all clients by array, by weights.
        shapes: Of the arrays.
        pull: By how much of the weights updates pull them back, as training does.
        draw: Returns the generator of a round's noise.
        dtype: Of the weights.
    """
    rng = np.random.default_rng([seed, 1])
    mixing = None if accounted is None else accounted.noise
    drawn: list[Arrays] = []
    known = accounted or AccountedMean(noise_multiplier=1.0, clip_norm=1.0, server_rate=1.0)
    watch = RoundWatch()
    model = {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    for number in range(rounds):
        examples = rng.integers(1, 100, replies)
        watch.begin(model, known, usual_examples=float(examples.mean()))
        weights = examples / examples.sum() if weigh else np.full(replies, 1 / replies)
        clipped = []
        for client, many in enumerate(examples.tolist()):
            length = math.exp(uneven * (client / replies - 0.5))
            update = {
                name: length * (spread * rng.normal(size=s) + spread / 4) - pull * model[name]
                for name, s in shapes.items()
            }
            own = {name: (model[name] + update[name]).astype(dtype) for name in model}
            watch.add(own, examples=many, client=client)
            clipped.append(clip(update, known.norm))
        every = {name: np.array([update[name] for update in clipped]) for name in shapes}
        mean = average(every, weights)
        generator = draw(number, rng)
        drawn.append({name: generator.normal(size=value.shape) for name, value in model.items()})
        row = np.eye(rounds)[number] if mixing is None else np.asarray(mixing)[number]
        scale = noise * known.noise_multiplier * known.norm / replies
        model = {
            name: (
                value
                + known.rate
                * (
                    multiple * mean[name]
                    + scale * sum(row[t] * own[name] for t, own in enumerate(drawn) if row[t])
                )
            ).astype(dtype)
            for name, value in model.items()
        }
        watch.end(model, same_client=mixing is None)
    return watch


def clip_to_half(update: Arrays, limit: float) -> Arrays:
    return clip_whole(update, limit / 2)


def clip_smoothly(update: Arrays, limit: float) -> Arrays:
    return {name: limit * part / (limit + norm_of(update)) for name, part in update.items()}


def clip_every_part(update: Arrays, limit: float) -> Arrays:
    """Clip every array, so that all together are no longer than the limit."""
    own = limit / math.sqrt(len(update))
    return {name: clip_whole({name: part}, own)[name] for name, part in update.items()}


def count_accused(seeds: range) -> int:
    accused = 0
    for seed in seeds:
        rng = np.random.default_rng([seed, 7])
        watch = run_server(
            seed,
            rounds=int(rng.integers(1, 16)),
            replies=8,
            accounted=AccountedMean(
                noise_multiplier=float(rng.choice([0.5, 1.0, 4.0])),
                clip_norm=float(rng.choice([0.3, 1.0, 5.0])),
                server_rate=float(rng.choice([0.1, 1.0])),
            ),
            noise=float(rng.choice([1.0, 1.0, 1.5])),
            clip=(clip_whole, clip_to_half, clip_smoothly, clip_every_part)[seed % 4],
            uneven=float(rng.choice([0.0, 3.0])),
        )
        accused += watch.finding().verdict == "violated"
    return accused


def test_right_servers_are_spared() -> None:
    assert count_accused(range(40)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("cell", range(10))
def test_at_most_one_right_server_in_a_thousand_is_accused(cell: int) -> None:
    runs = 500
    accused = count_accused(range(1000 + cell * runs, 1000 + (cell + 1) * runs))
    assert accused <= scipy.stats.binom.isf(FLAKE, runs, 1e-3)


def clip_every_array(update: Arrays, limit: float) -> Arrays:
    return {name: clip_whole({name: part}, limit)[name] for name, part in update.items()}


def take_the_median(every: Arrays, weights: FloatArray) -> Arrays:
    return {name: np.median(part, axis=0) for name, part in every.items()}


def trim_a_quarter(every: Arrays, weights: FloatArray) -> Arrays:
    cut = len(weights) // 4
    return {name: np.sort(part, axis=0)[cut:-cut].mean(axis=0) for name, part in every.items()}


def average_the_short(every: Arrays, weights: FloatArray) -> Arrays:
    """Leave out what was clipped, and divide by the number of the others."""
    squares = sum(np.sum(np.square(part), axis=(1, 2)) for part in every.values())
    short = np.sqrt(squares) < 0.99
    return {name: part[short].mean(axis=0) for name, part in every.items()}


def count_one_twice_more(every: Arrays, weights: FloatArray) -> Arrays:
    more = weights.copy()
    more[-1] *= 3
    return average_all(every, more)


def count_long_ones_twice(every: Arrays, weights: FloatArray) -> Arrays:
    squares = sum(np.sum(np.square(part), axis=(1, 2)) for part in every.values())
    return average_all(every, weights * np.where(np.sqrt(squares) > 0.99, 2.0, 1.0))


def take_the_first(every: Arrays, weights: FloatArray) -> Arrays:
    return {name: part[0] for name, part in every.items()}


class Repeat:
    """Add the mean of the round before again."""

    def __init__(self) -> None:
        self.last: Arrays = {}

    def __call__(self, every: Arrays, weights: FloatArray) -> Arrays:
        now = average_all(every, weights)
        last, self.last = self.last or now, now
        return {name: (part + last[name]) / 2 for name, part in now.items()}


class Centred:
    """Draw noise whose sum is zero."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def normal(self, size: Any) -> FloatArray:
        drawn = self.rng.normal(size=size)
        return np.asarray(drawn - drawn.mean())


WIDE = {"a": (40, 30), "b": (20, 20)}
OTHER = {"replies": 30, "shapes": WIDE, "spread": 0.02, "uneven": 2.0}
WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "half the noise": ("noise scale", {"noise": 0.5}),
    "no noise": ("noise scale", {"noise": 0.0}),
    "no clipping": ("clipping", {"clip": lambda update, limit: update, "spread": 0.5}),
    "arrays apart": ("clipping", {"clip": clip_every_array, "spread": 1.0, "rounds": 20}),
    "weights": ("equal weights", {"weigh": True, "replies": 60}),
    "twice the mean": ("multiple of the mean", {"multiple": 2.0, "replies": 40}),
    "a median": ("mean of all updates", {**OTHER, "average": take_the_median}),
    "a trimmed mean": ("mean of all updates", {**OTHER, "average": trim_a_quarter, "rounds": 30}),
    "the short alone": (
        "mean of all updates",
        {**OTHER, "average": average_the_short, "spread": 0.05},
    ),
    "a client thrice": (
        "weight of single clients",
        {**OTHER, "average": count_one_twice_more, "rounds": 20},
    ),
    "the long ones twice": (
        "mean of all updates",
        {**OTHER, "average": count_long_ones_twice, "spread": 0.05},
    ),
    "one reply": ("weight of single clients", {**OTHER, "average": take_the_first}),
    "the round before": (
        "updates of earlier rounds",
        {**OTHER, "average": Repeat(), "spread": 0.05},
    ),
    "sums without noise": ("noise in every part", {"draw": lambda number, rng: Centred(rng)}),
    "seeds of rounds": (
        "noise that cannot be guessed",
        {"draw": lambda number, rng: np.random.default_rng(number)},
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_servers_are_found_by_their_own_check(name: str) -> None:
    check, settings = WRONG[name]
    found = run_server(3, **settings).finding()
    assert found.verdict == "violated"
    assert found.check(check).outcome == "violated"


MIXING = np.eye(40) - 0.5 * np.eye(40, k=-1)


def test_declared_noise_that_clients_pull_back_is_no_multiple_of_the_mean() -> None:
    """Noise of the round before is in the updates, and in what is left of the release."""
    declared = AccountedMean(noise_multiplier=1.0, clip_norm=1.0, noise=MIXING)
    settings = {"rounds": 40, "replies": 20, "pull": 0.5, "shapes": WIDE, "spread": 0.01}
    found = run_server(0, accounted=declared, **settings).finding()
    assert found.verdict == "conforms"
    assert found.check("multiple of the mean").outcome == "conforms"
    assert run_server(0, accounted=declared, **settings, multiple=2.0).finding().verdict == (
        "violated"
    )


def test_large_models_with_declared_noise_are_not_compared_with_means(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(whitening, "MOST_KEPT", 100)
    declared = AccountedMean(noise_multiplier=1.0, clip_norm=1.0, noise=MIXING)
    found = run_server(0, accounted=declared, rounds=8, pull=0.5).finding()
    assert "too large to whiten" in found.check("clipping").seen
    assert found.check("noise scale").outcome == "conforms"


def test_less_of_clients_with_few_examples_is_no_weight_by_examples() -> None:
    """A server that clips to half the norm takes most from long updates, which have few."""
    rng = np.random.default_rng(5)
    watch, model = RoundWatch(), {"a": np.zeros(2000)}
    common = rng.normal(size=2000) / 2
    for _ in range(10):
        watch.begin(model, AccountedMean(noise_multiplier=1.0, clip_norm=1.0), usual_examples=55.0)
        total = rng.normal(size=2000)
        for client in range(40):
            update = common + rng.normal(size=2000)
            update *= (3.0 if client % 2 else 0.4) / np.linalg.norm(update)
            watch.add({"a": model["a"] + update}, examples=10 if client % 2 else 100)
            total = total + clip_to_half({"a": update}, 1.0)["a"]
        model = {"a": model["a"] + total / 40}
        watch.end(model)
    assert watch.finding().verdict == "conforms"
    assert watch.finding().check("equal weights").outcome == "conforms"


def test_clients_that_do_not_move_and_clients_that_move_alike_are_no_fault() -> None:
    same = {"spread": 0.0, "pull": 0.01}
    for settings in ({"spread": 0.0}, same):
        assert run_server(0, **settings).finding().verdict == "conforms"


def test_a_generator_that_is_seeded_once_is_a_remark() -> None:
    one = np.random.default_rng(7)
    found = run_server(0, draw=lambda number, rng: one).finding()
    assert found.check("noise that cannot be guessed").outcome == "remark"
    assert found.verdict == "conforms"
    assert run_server(0).finding().check("noise that cannot be guessed").outcome == "conforms"


@pytest.mark.parametrize(
    "settings",
    [
        {"accounted": AccountedMean(noise_multiplier=1.0, clip_norm=50.0)},  # nothing is clipped
        {"rounds": 1, "replies": 2},
    ],
)
def test_what_could_not_be_found_is_not_tested(settings: dict[str, Any]) -> None:
    found = run_server(0, **settings).finding()
    assert found.check("clipping").outcome == "not tested"
    assert found.verdict == "conforms"


def test_less_than_the_mean_is_a_remark() -> None:
    check = run_server(0, multiple=0.3, replies=60).finding().check("multiple of the mean")
    assert check.outcome == "remark"
    assert "something else" in check.seen


LOW: dict[str, Any] = {
    "accounted": AccountedMean(noise_multiplier=0.1, clip_norm=1.0, server_rate=1.0),
    "shapes": {"a": (40, 50), "b": (600,), "c": (3,)},
}


def leave_three_out(every: Arrays, weights: FloatArray) -> Arrays:
    return average_all({name: part[3:] for name, part in every.items()}, weights[3:])


@pytest.mark.parametrize(
    "parts",
    [
        {"clip": clip_to_half},
        {"clip": clip_smoothly},
        {"clip": clip_every_part},
        {"average": leave_three_out},
    ],
)
def test_what_right_servers_leave_out_is_no_repeated_noise(parts: dict[str, Any]) -> None:
    """It is alike in all rounds, and showed where noise is small: all four were accused."""
    for seed in range(2):
        found = run_server(seed, **LOW, **parts).finding()
        assert found.verdict == "conforms", found
        assert found.check("independence of steps").outcome == "conforms"


def test_wrong_noise_shows_beside_what_is_left_out() -> None:
    """What is left out made too little noise look like enough."""
    little = run_server(0, **LOW, clip=clip_to_half, noise=0.5).finding()
    assert little.check("noise scale").outcome == "violated"
    assert little.check("noise scale").value == pytest.approx(0.5, abs=0.05)
    again = run_server(
        0, **LOW, clip=clip_to_half, draw=lambda number, rng: np.random.default_rng([9, 9, 9])
    ).finding()
    assert again.check("independence of steps").outcome == "violated"


OPEN = AccountedMean(noise_multiplier=1.0, clip_norm=1.0)  # no rate is declared


def test_noise_that_is_small_beside_the_mean_is_found_without_a_declared_rate() -> None:
    found = run_server(0, **{**OTHER, "accounted": OPEN, "noise": 0.5, "spread": 0.05}).finding()
    assert found.check("multiple of the mean").outcome == "violated"


def test_small_noise_is_not_tested_where_updates_are_too_short_to_tell_the_rate() -> None:
    found = run_server(0, accounted=OPEN, noise=0.5, spread=1e-4).finding()
    assert found.verdict == "not tested"
    assert "declare server_rate" in found.check("noise scale").seen


def test_small_steps_are_a_remark() -> None:
    settings = {**OTHER, "accounted": OPEN, "noise": 0.5, "multiple": 0.5, "spread": 0.05}
    found = run_server(0, **settings).finding()
    assert found.verdict == "conforms"
    assert found.check("noise scale").outcome == "remark"
    assert "so is the mean" in found.check("noise scale").seen


@pytest.mark.parametrize("noise", [1.0, 3.0])
def test_evidence_has_expectation_one_at_most(noise: float) -> None:
    """Whatever the scale of the noise, and though all arrays have scales of their own."""
    rng = np.random.default_rng(11)
    values = []
    for _ in range(400):
        ended = RoundSums(
            {"a": np.zeros(30), "b": np.zeros(4)},
            AccountedMean(noise_multiplier=1.0, clip_norm=1.0),
        )
        ended.add({"a": rng.normal(size=30), "b": rng.normal(size=4)}, None, canary=False)
        moved = {"a": noise * rng.normal(size=30), "b": 2 * noise * rng.normal(size=4)}
        clipped = clip_whole({"a": ended._raw[:30], "b": ended._raw[30:]}, 1.0)
        assert not ended.close({name: clipped[name] + moved[name] for name in moved})
        lean = LeanCheck(level=SHARE)
        lean.lean(ended, [2 * ended.mean / ended.unit], 1)
        values.append(math.exp(lean._bets.value()))
    assert np.mean(values) < 1 + 5 * np.std(values) / math.sqrt(len(values))
    assert np.mean(values) > 0.3  # the weight of the first bet is a half


def test_norms_of_replies_are_exact_where_clients_clip() -> None:
    clients = AccountedMean(noise_multiplier=1.0, clip_norm=1.0, clipped_by="clients")
    keep = {"accounted": clients, "clip": lambda update, limit: update}
    long = run_server(0, **keep).finding()
    assert long.check("norms of replies").outcome == "violated"
    assert "96 of 96 replies are longer" in long.check("norms of replies").seen
    short = run_server(0, **keep, spread=0.01).finding()
    assert short.check("norms of replies").outcome == "conforms"
    assert short.check("clipping").outcome == "not tested"


def test_rounds_that_cannot_be_compared_have_a_reason() -> None:
    coarse = run_server(
        0, dtype=np.float16, accounted=AccountedMean(noise_multiplier=0.01, clip_norm=1.0)
    )
    assert coarse.finding().verdict == "not tested"
    assert "8 rounds left out: weights are rounded" in coarse.finding().check("all rounds").seen
    watch = RoundWatch()
    assert watch.finding().verdict == "not tested"
    model, known = {"a": np.zeros(9)}, AccountedMean(noise_multiplier=1.0, clip_norm=1.0)
    for reply, reason in (
        ({"b": np.zeros(9)}, "replies have other arrays"),
        ({"a": np.full(9, np.nan)}, "a reply was not finite"),
    ):
        watch.begin(model, known)
        watch.add(reply)
        watch.end(model)
        assert any(reason in check.seen for check in watch.finding().checks)
    silent = AccountedMean(noise_multiplier=0.0, clip_norm=1.0)
    watch.begin(model, silent)
    watch.end(model)
    assert any("no noise is accounted" in check.seen for check in watch.finding().checks)
    assert watch.rounds == 0
    assert watch.bound_epsilon(delta=1e-5, alpha=0.01) is None


def test_the_epsilon_of_what_ran_is_near_the_truth() -> None:
    sound, half = (
        run_server(0, noise=noise).bound_epsilon(delta=1e-5, alpha=1e-3) for noise in (1, 0.5)
    )
    assert sound is not None
    assert half is not None
    truth = 14.6  # of 8 rounds with σ = 1, by the Gaussian mechanism at σ/√8
    assert 0.8 * truth < sound.epsilon < truth
    assert half.epsilon > truth


def test_settings_are_checked() -> None:
    with pytest.raises(InvalidArgument, match="weights to be one of equal, examples"):
        AccountedMean(noise_multiplier=1.0, clip_norm=1.0, weights="even")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        AccountedMean(noise_multiplier=1.0, clip_norm=0.0)
    with pytest.raises(InvalidArgument):
        AccountedMean(noise_multiplier=1.0, clip_norm={"a": -1.0})
    assert AccountedMean(noise_multiplier=1.0, clip_norm={"a": 3.0, "b": 4.0}).norm == 5.0


@pytest.mark.parametrize(
    ("send", "outcome", "verdict"),
    [
        (lambda mean, noise: mean + noise, "conforms", "conforms"),
        (lambda mean, noise: mean, "violated", "violated"),  # noise is in what is returned alone
        (lambda mean, noise: mean + noise / 4, "violated", "violated"),
        (lambda mean, noise: (mean + noise) / 2, "not tested", "not tested"),  # may well be right
        (lambda mean, noise: mean + 2 * noise, "not tested", "not tested"),
    ],
)
def test_what_clients_are_sent_is_what_was_released(
    send: Callable[[FloatArray, FloatArray], FloatArray], outcome: str, verdict: str
) -> None:
    rng, watch, model = np.random.default_rng(2), RoundWatch(), np.zeros(2000)
    accounted = AccountedMean(noise_multiplier=1.0, clip_norm=1.0)
    for _ in range(4):
        watch.begin({"a": model}, accounted)
        updates = rng.normal(size=(30, 2000)) / 50
        for update in updates:
            watch.add({"a": model + update})
        mean, noise = updates.mean(axis=0), rng.normal(size=2000) / 30
        watch.end({"a": model + mean + noise})
        watch.see_sent({"a": model + send(mean, noise)})
        model = model + mean + noise
    found = watch.finding()
    assert found.check("weights that clients are sent").outcome == outcome
    assert found.verdict == verdict


def test_weights_that_are_moved_on_by_momentum_are_no_leak() -> None:
    """They hold the mean of all rounds, and the noise of all rounds, which adds up more slowly."""
    rng, watch, (model, ahead) = np.random.default_rng(2), RoundWatch(), np.zeros((2, 2000))
    accounted, common = AccountedMean(noise_multiplier=1.0, clip_norm=1.0), np.ones(2000)
    for _ in range(8):
        watch.begin({"a": model}, accounted)
        updates = (rng.normal(size=(30, 2000)) + common) / 90
        for update in updates:
            watch.add({"a": model + update})
        step = updates.mean(axis=0) + rng.normal(size=2000) / 30
        model, ahead = model + step, 0.9 * (ahead + step)
        watch.end({"a": model})
        watch.see_sent({"a": model + ahead})
    assert watch.finding().verdict == "not tested"


def test_arrays_without_noise_that_change_are_named() -> None:
    rng, watch = np.random.default_rng(2), RoundWatch()
    accounted = AccountedMean(noise_multiplier=1.0, clip_norm=1.0, without=("scale", "still"))
    model = {"a": np.zeros(99), "n": np.arange(3), "scale": np.ones(2), "still": np.ones(2)}
    for _ in range(2):
        watch.begin(model, accounted)
        watch.add(model)
        new = {"a": rng.normal(size=99), "n": model["n"] + 1, "scale": 2 * model["scale"]}
        model = {**model, **new}
        watch.end(model)
    check = watch.finding().check("arrays without noise")
    assert check.outcome == "not tested"
    assert check.seen.endswith("changed: 'n', 'scale'")


Publish = Callable[[int, Arrays, Arrays, dict[str, Any]], Arrays]  # number, mean, noise, memory


def run_publisher(
    seed: int, publish: Publish, *, rounds: int = 8, accounted: AccountedMean = OPEN
) -> RoundWatch:
    """Run a server that makes something of mean and noise, with ten clients."""
    shapes = {"a": (40, 20), "b": (30, 20), "c": (3,)}
    rng, watch, memory = np.random.default_rng([seed, 2]), RoundWatch(), dict[str, Any]()
    model = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for number in range(rounds):
        watch.begin(model, accounted)
        clipped = []
        for client in range(10):
            update = {name: 0.05 * rng.normal(size=shape) for name, shape in shapes.items()}
            reply = {name: (model[name] + update[name]).astype(np.float32) for name in model}
            watch.add(reply, client=client)
            seen = {name: np.float64(reply[name]) - model[name] for name in model}
            clipped.append(clip_whole(seen, 1.0))
        mean = {name: np.mean([each[name] for each in clipped], axis=0) for name in shapes}
        memory["one"] = clipped[0]
        noise = {name: rng.normal(0, 0.1, shape) for name, shape in shapes.items()}
        step = publish(number, mean, noise, memory)
        model = {name: np.float32(model[name] + step[name]) for name in model}
        watch.end(model, same_client=True)
    return watch


def add_noise(_: int, mean: Arrays, noise: Arrays, memory: dict[str, Any]) -> Arrays:
    return {name: mean[name] + noise[name] for name in mean}


def leave_first(number: int, mean: Arrays, noise: Arrays, memory: dict[str, Any]) -> Arrays:
    return {**add_noise(number, mean, noise, memory), "a": np.zeros((40, 20))}


def leave_first_at_first(
    number: int, mean: Arrays, noise: Arrays, memory: dict[str, Any]
) -> Arrays:
    return (leave_first if number < 4 else add_noise)(number, mean, noise, memory)


def wait_twice(number: int, mean: Arrays, noise: Arrays, memory: dict[str, Any]) -> Arrays:
    released = add_noise(number, mean, noise, memory)
    return {name: 0 * part for name, part in released.items()} if number in (2, 5) else released


def add_more_to_one(number: int, mean: Arrays, noise: Arrays, memory: dict[str, Any]) -> Arrays:
    return add_noise(number, mean, {**noise, "b": 3 * noise["b"]}, memory)


@pytest.mark.parametrize("rate", [None, 1.0])
@pytest.mark.parametrize("publish", [leave_first, leave_first_at_first, wait_twice])
def test_what_is_not_released_does_not_leak(publish: Publish, rate: float | None) -> None:
    accounted = AccountedMean(noise_multiplier=1.0, clip_norm=1.0, server_rate=rate)
    watch = run_publisher(0, publish, accounted=accounted)
    found = watch.finding()
    assert found.verdict == "conforms"
    unreleased = [
        each.seen for each in found.checks if each.name == "arrays that were not released"
    ]
    assert len(unreleased) == (publish is not wait_twice)
    assert all(text.endswith("'a'") for text in unreleased)
    assert watch.rounds == (6 if publish is wait_twice else 8)
    bound = watch.bound_epsilon(delta=1e-5, alpha=1e-3)
    assert (bound is None) == (publish is leave_first)  # of arrays of which some are missing


@pytest.mark.parametrize("rate", [None, 1.0])
def test_more_noise_in_one_array_is_no_fault(rate: float | None) -> None:
    accounted = AccountedMean(noise_multiplier=1.0, clip_norm=1.0, server_rate=rate)
    assert run_publisher(0, add_more_to_one, accounted=accounted).finding().verdict == "conforms"


def take_noise_back(number: int, mean: Arrays, noise: Arrays, memory: dict[str, Any]) -> Arrays:
    earlier = memory.get("noise", dict.fromkeys(mean, 0.0))
    memory["noise"] = {name: earlier[name] + part for name, part in noise.items()}
    own = {name: part - earlier[name] for name, part in noise.items()} if number == 7 else noise
    return add_noise(number, mean, own, memory)


def spare_one(number: int, mean: Arrays, noise: Arrays, memory: dict[str, Any]) -> Arrays:
    one = memory["one"]
    along = sum(float(np.vdot(one[name], noise[name])) for name in one) / norm_of(one) ** 2
    return add_noise(number, mean, {n: part - along * one[n] for n, part in noise.items()}, memory)


def shuffle_noise(number: int, mean: Arrays, noise: Arrays, memory: dict[str, Any]) -> Arrays:
    rng = np.random.default_rng(number)
    first = memory.setdefault("first", noise)
    mixed = {n: rng.permutation(part.ravel()).reshape(part.shape) for n, part in first.items()}
    return add_noise(number, mean, mixed, memory)


def copy_rows(number: int, mean: Arrays, noise: Arrays, memory: dict[str, Any]) -> Arrays:
    own = np.random.default_rng(number).permutation(noise["a"][:30])
    return add_noise(number, mean, {**noise, "b": own}, memory)


@pytest.mark.parametrize(
    ("publish", "check"),
    [
        (take_noise_back, "independence of steps"),
        (spare_one, "noise along updates"),
        (shuffle_noise, "values of noise"),
        (copy_rows, "values of noise"),
    ],
)
def test_noise_that_is_used_again_or_missing_is_found(publish: Publish, check: str) -> None:
    assert run_publisher(0, publish).finding().check(check).outcome == "violated"


def test_seeds_by_the_clock_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_800_000_007.5)
    for second, outcome in ((1_800_000_003, "violated"), (1_799_999_000, "conforms")):
        guessed = GuessedNoise()
        for number in range(2):
            noise = np.random.default_rng(second + number).normal(size=100)
            guessed.see([("a", noise)], began=1_800_000_000.0)
        assert guessed.check().outcome == outcome


def normalise(update: Arrays, limit: float) -> Arrays:
    return {name: limit * part / norm_of(update) for name, part in update.items()}


@pytest.mark.parametrize("clip", [normalise, clip_whole, clip_smoothly])
def test_normalised_updates_may_be_declared(clip: Callable[[Arrays, float], Arrays]) -> None:
    known = AccountedMean(noise_multiplier=0.3, clip_norm=1.0, server_rate=1.0, normalised=True)
    settings: dict[str, Any] = {"accounted": known, "clip": clip, "spread": 0.04, "uneven": 2.0}
    assert run_server(0, **settings).finding().verdict == "conforms"
    settings |= {"clip": lambda update, limit: clip(update, 2 * limit), "spread": 0.4}
    assert run_server(0, **settings).finding().verdict == "violated"


def test_undeclared_normalised_updates_are_too_much_of_the_mean() -> None:
    assert run_server(0, clip=normalise, spread=0.02, rounds=16).finding().verdict == "violated"


def lattice(number: int, mean: Arrays, noise: Arrays, memory: dict[str, Any]) -> Arrays:
    rounded = {name: np.round(part / 0.1 * 16) / 16 * 0.1 for name, part in noise.items()}
    return add_noise(number, mean, rounded, memory)


@pytest.mark.parametrize("publish", [add_noise, lattice])
def test_values_of_noise_return_by_chance_alone(publish: Publish) -> None:
    for seed in range(20):
        check = run_publisher(seed, publish, rounds=12).finding().check("values of noise")
        assert check.outcome != "violated", seed
