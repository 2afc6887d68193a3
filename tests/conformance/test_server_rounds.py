"""Rounds of a server: what it released beside the replies that it saw."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats

from epsilometer.conformance.server_rounds import SHARE, AccountedMean, RoundWatch, _Lean, _Round
from epsilometer.errors import InvalidArgument

FLAKE = 1e-6
SHAPES = {"a": (20, 10), "b": (40,), "c": (3,)}
Arrays = dict[str, Any]


def norm_of(update: Arrays) -> float:
    return math.sqrt(sum(float(np.sum(part**2)) for part in update.values()))


def clip_whole(update: Arrays, limit: float) -> Arrays:
    factor = min(1.0, limit / norm_of(update))
    return {name: factor * part for name, part in update.items()}


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
    dtype: Any = np.float64,
) -> RoundWatch:
    """Run a server with updates of norm 1.5 or so, where nothing else is said."""
    rng = np.random.default_rng(seed)
    known = accounted or AccountedMean(noise_multiplier=1.0, clip_norm=1.0)
    watch = RoundWatch()
    model = {name: rng.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}
    for _ in range(rounds):
        watch.begin(model, known)
        examples = rng.integers(1, 100, replies)
        weights = examples / examples.sum() if weigh else np.full(replies, 1 / replies)
        mean = dict.fromkeys(SHAPES, 0.0)
        for many, weight in zip(examples.tolist(), weights.tolist(), strict=True):
            update = {name: spread * rng.normal(size=s) + spread / 4 for name, s in SHAPES.items()}
            own = {name: (model[name] + update[name]).astype(dtype) for name in model}
            watch.add(own, examples=many)
            clipped = clip(update, known.norm)
            mean = {name: mean[name] + weight * clipped[name] for name in mean}
        scale = noise * known.noise_multiplier * known.norm / replies
        model = {
            name: (
                value
                + known.server_rate * (multiple * mean[name] + scale * rng.normal(size=value.shape))
            ).astype(dtype)
            for name, value in model.items()
        }
        watch.end(model, same_client=True)
    return watch


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


WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "half the noise": ("noise scale", {"noise": 0.5}),
    "no noise": ("noise scale", {"noise": 0.0}),
    "no clipping": ("clipping", {"clip": lambda update, limit: update, "spread": 0.5}),
    "arrays apart": ("clipping", {"clip": clip_every_array, "spread": 1.0, "rounds": 20}),
    "weights": ("equal weights", {"weigh": True, "replies": 60}),
    "twice the mean": ("multiple of the mean", {"multiple": 2.0, "replies": 40}),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_servers_are_found_by_their_own_check(name: str) -> None:
    check, settings = WRONG[name]
    found = run_server(3, **settings).finding()
    assert found.verdict == "violated"
    assert found.check(check).outcome == "violated"


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


@pytest.mark.parametrize("noise", [1.0, 3.0])
def test_evidence_has_expectation_one_at_most(noise: float) -> None:
    """Whatever the scale of the noise, and though all arrays have scales of their own."""
    rng = np.random.default_rng(11)
    values = []
    for _ in range(400):
        ended = _Round(
            {"a": np.zeros(30), "b": np.zeros(4)},
            AccountedMean(noise_multiplier=1.0, clip_norm=1.0),
        )
        ended.add({"a": rng.normal(size=30), "b": rng.normal(size=4)}, None, canary=False)
        moved = {"a": noise * rng.normal(size=30), "b": 2 * noise * rng.normal(size=4)}
        clipped = clip_whole({"a": ended._raw[:30], "b": ended._raw[30:]}, 1.0)
        assert not ended.close({name: clipped[name] + moved[name] for name in moved})
        lean = _Lean(level=SHARE)
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
