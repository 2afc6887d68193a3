"""Observations that contradict their design are refused, and honest ones are spared."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats

import epsilometer as em
from epsilometer import ScoreCounts, Scores
from epsilometer.accounting.family import poisson_bound
from epsilometer.core.scores import CANARIES, Design
from epsilometer.errors import InvalidArgument
from epsilometer.stats import designs
from epsilometer.stats.designs import IMPLAUSIBLE, inspect_observations
from epsilometer.stats.estimators import REGISTRY, choose_rule
from epsilometer.types import FloatArray
from tests import oracles

DELTA = 1e-5
FOR_RUNS = [name for name, method in REGISTRY.items() if "runs" in method.designs]
FOR_CANARIES = [name for name in REGISTRY if name not in FOR_RUNS]


def scored(rng: np.random.Generator, n_in: int, n_out: int, **stated: object) -> Scores:
    return Scores(rng.normal(size=n_in), rng.normal(size=n_out), **stated)  # type: ignore[arg-type]


# Which method takes which design


@pytest.mark.parametrize("design", CANARIES)
@pytest.mark.parametrize("method", FOR_RUNS)
def test_methods_for_runs_refuse_canaries(
    method: str, design: Design, rng: np.random.Generator
) -> None:
    """Clopper–Pearson proved 3.88 of 500 separated canaries of one run, where 3.07 is right."""
    scores = scored(rng, 250, 250, design=design)
    with pytest.raises(InvalidArgument, match=f"independent runs.* for {method}.*by one_run"):
        em.epsilon_lower_bound(scores, delta=DELTA, method=method)


@pytest.mark.parametrize("method", FOR_CANARIES)
def test_one_run_methods_refuse_runs(method: str, rng: np.random.Generator) -> None:
    with pytest.raises(InvalidArgument, match=f"canaries of one run for {method}, got independent"):
        em.epsilon_lower_bound(scored(rng, 250, 250), delta=DELTA, method=method)


def test_the_family_of_dpsgd_refuses_canaries(rng: np.random.Generator) -> None:
    scores = scored(rng, 250, 250, design="coins")
    with pytest.raises(InvalidArgument, match=r"independent runs.* for poisson_family"):
        poisson_bound(scores, sampling_rate=0.1, steps=10, delta=DELTA)


def test_the_design_chooses_the_method_where_nobody_does(rng: np.random.Generator) -> None:
    chosen = {design: choose_rule(None, None, design)[0] for design in ("runs", *CANARIES)}
    assert chosen == {"runs": "calibrated", **dict.fromkeys(CANARIES, "one_run")}
    found = em.epsilon_lower_bound(scored(rng, 250, 240, design="coins"), delta=DELTA)
    assert (found.method, found.design, found.inclusion) == ("one_run", "coins", 0.5)


def test_canaries_of_one_run_prove_less_than_as_many_runs() -> None:
    """The 3.88 that Clopper–Pearson gave, and what is right: a coin is guessed for each canary."""
    sides = np.full(250, 5.0), np.full(250, -5.0)
    proved = [
        em.epsilon_lower_bound(Scores(*sides, design=design), delta=0.0).epsilon
        for design in ("runs", "coins")
    ]
    perfect = np.log(0.05 ** (1 / 500) / (1 - 0.05 ** (1 / 500)))  # (e^ε/(1 + e^ε))^500 = 5 %
    assert 0.999 * perfect < proved[1] <= perfect + 1e-6


# Numbers inside


@pytest.mark.parametrize("method", FOR_CANARIES)
@pytest.mark.parametrize(("n_in", "n_out"), [(200, 3000), (10, 100_000), (300, 700), (700, 300)])
def test_numbers_that_fair_coins_never_give_are_refused(
    method: str, n_in: int, n_out: int, rng: np.random.Generator
) -> None:
    """Without any leak these proved 2.46 to 6.84, "valid"."""
    scores = scored(rng, n_in, n_out, design="coins")
    with pytest.raises(InvalidArgument, match=rf"Expected about .* got {n_in:,}, .* million"):
        em.epsilon_lower_bound(scores, delta=DELTA, method=method)
    with pytest.raises(InvalidArgument, match="Expected about"):
        em.audit(scores, 1.0, delta=DELTA)


@pytest.mark.parametrize("chance", [0.5, 0.1, 0.9])
@pytest.mark.parametrize("total", [1, 20, 1000, 100_000])
def test_a_number_is_refused_exactly_where_its_two_sided_chance_is_one_in_a_million(
    chance: float, total: int
) -> None:
    law = scipy.stats.binom(total, chance)
    spread = np.unique(np.clip(np.arange(-9, 10) * law.std() + law.mean(), 0, total).astype(int))
    for n_in in spread:
        bins = [[0, n_in], [0, total - n_in]]
        counts = ScoreCounts([0.0], *bins, design="coins", inclusion=chance)
        two_sided = 2 * min(law.cdf(n_in), law.sf(n_in - 1))
        if two_sided < IMPLAUSIBLE:
            with pytest.raises(InvalidArgument, match="canaries inside"):
                inspect_observations(counts)
        else:
            assert inspect_observations(counts) == ()


def test_coins_that_were_thrown_are_spared(rng: np.random.Generator) -> None:
    for total in (2, 10, 300, 10_000):
        for n_in in rng.binomial(total, 0.3, 2_000):
            counts = ScoreCounts([0.0], [0, n_in], [0, total - n_in], design="coins", inclusion=0.3)
            assert inspect_observations(counts) == ()


@pytest.mark.parametrize("design", ["runs", "fixed"])
def test_fixed_numbers_are_whatever_they_are(design: Design, rng: np.random.Generator) -> None:
    assert inspect_observations(scored(rng, 200, 3000, design=design)) == ()


def test_pairs_have_two_sides(rng: np.random.Generator) -> None:
    with pytest.raises(InvalidArgument, match=r"as many scores inside as outside.* 20 and 21"):
        scored(rng, 20, 21, design="paired")
    with pytest.raises(InvalidArgument, match="lost which scores are a pair"):
        ScoreCounts.at([0.0], design="paired")


def test_counts_of_different_designs_are_not_added() -> None:
    coins = ScoreCounts.at([0.0], design="coins")
    assert (coins + coins).design == "coins"
    for other in (ScoreCounts.at([0.0]), ScoreCounts.at([0.0], design="coins", inclusion=0.1)):
        with pytest.raises(InvalidArgument, match="counts of one design"):
            coins + other


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        ({"design": "coin"}, "runs, coins, fixed, paired, got 'coin'"),
        ({"design": ["coins"]}, "design to be one of"),
        ({"design": "coins", "inclusion": 0.0}, r"inclusion in \(0, 1\)"),
        ({"design": "coins", "inclusion": "half"}, "number for inclusion"),
        ({"inclusion": 0.3}, "inclusion = 0.5 with design = 'runs'"),
        ({"design": "paired", "inclusion": 0.3}, "inclusion = 0.5 with design = 'paired'"),
    ],
)
def test_what_is_no_design_is_told(stated: dict, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        Scores([1.0], [0.0], **stated)


# Copies: a zoo of honest scores, and of copied ones

Draw = Callable[[np.random.Generator, int], FloatArray]
HONEST: dict[str, Draw] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "float32": lambda rng, n: rng.normal(10, 0.1, n).astype(np.float32),
    "perfect attack": lambda rng, n: np.full(n, 2.0),
    "randomised response": lambda rng, n: (rng.random(n) < 0.7).astype(float),
    "three atoms": lambda rng, n: rng.integers(3, size=n).astype(float),
    "rounded to 1 decimal": lambda rng, n: rng.normal(size=n).round(1),
    "rounded to 3 decimals": lambda rng, n: rng.normal(size=n).round(3),
    "rounded to 5 decimals": lambda rng, n: rng.normal(size=n).round(5),
    "four digits": lambda rng, n: np.array([float(f"{x:.4g}") for x in rng.exponential(size=n)]),
    "accuracy of 100": lambda rng, n: rng.binomial(100, 0.9, n) / 100,
    "accuracy of 7,919": lambda rng, n: rng.binomial(7919, 0.9, n) / 7919,
    "float32 accuracy": lambda rng, n: (rng.binomial(7919, 0.9, n) / 7919).astype(np.float32),
    "counts": lambda rng, n: rng.poisson(30.0, n).astype(float),
    "large counts": lambda rng, n: rng.poisson(10_000.0, n).astype(float),
    "ranks of 64": lambda rng, n: rng.integers(64, size=n).astype(float),
    "float16 losses": lambda rng, n: -rng.exponential(size=n).astype(np.float16).astype(float),
    "bfloat16 losses": lambda rng, n: np.ldexp(np.rint(rng.uniform(128, 256, n)), -9),
    "clipped": lambda rng, n: np.clip(rng.normal(size=n), -0.5, 0.5),
    "six ratios": lambda rng, n: np.log([0.1, 0.3, 0.7, 1.1, 2.3, 5.9])[rng.integers(6, size=n)],
    "half at 0": lambda rng, n: rng.normal(size=n) * (rng.random(n) < 0.5),
    "half lost": lambda rng, n: np.where(rng.random(n) < 0.5, np.inf, rng.normal(size=n)),
}
COPIED: dict[str, Draw] = {
    "twice": lambda rng, n: np.repeat(rng.normal(size=n // 2), 2),
    "5 times": lambda rng, n: np.tile(rng.normal(size=n // 5), 5),
    "20 times": lambda rng, n: np.tile(rng.normal(size=n // 20), 20),
    "20 times, float32": lambda rng, n: np.tile(rng.normal(size=n // 20), 20).astype(np.float32),
    "losses in float16": lambda rng, n: np.tile(
        np.unique(rng.exponential(size=n // 10).astype(np.float16)), 10
    ),
}
JOINED: dict[str, Draw] = {
    "half of it twice": lambda rng, n: _join(rng.normal(size=2 * n // 3), n // 3),
    "a tenth of it twice": lambda rng, n: _join(rng.normal(size=9 * n // 10), n // 10),
    "a tenth twice, float32": lambda rng, n: _join(rng.normal(size=9 * n // 10), n // 10).astype(
        np.float32
    ),
    "64 seeds": lambda rng, n: rng.choice(rng.normal(size=64), n),
}
SIZES = [100, 1_000, 30_000]
FEW = [8, 20, 45]


def _join(values: FloatArray, again: int) -> FloatArray:
    return np.concatenate([values, values[:again]])


@pytest.mark.parametrize("size", [*FEW, *SIZES])
@pytest.mark.parametrize("name", HONEST)
@pytest.mark.in_turn(3)
def test_honest_scores_are_spared(name: str, size: int) -> None:
    """Of 50 small audits, or 8 large ones, none is refused and none is remarked on."""
    for seed in range(50 if size <= 1_000 else 8):
        draw = HONEST[name]
        rng = np.random.default_rng(seed)
        assert inspect_observations(Scores(draw(rng, size), draw(rng, size))) == ()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", COPIED)
def test_copied_rows_are_refused(name: str, size: int) -> None:
    """Also where one side alone was copied, and in whatever order the rows are."""
    if size / 20 < 8:
        size *= 2
    for seed in range(10):
        rng = np.random.default_rng(seed)
        copied = rng.permutation(COPIED[name](rng, size))
        for sides in ((copied, rng.normal(size=size)), (rng.normal(size=size), copied)):
            with pytest.raises(InvalidArgument, match=r"every value exactly \d+ times"):
                inspect_observations(Scores(*sides))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", JOINED)
def test_repeats_of_continuous_scores_are_remarked_on(name: str, size: int) -> None:
    """Not refused: 64 seeds, drawn at random, are few but honest."""
    caught = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        scores = Scores(rng.normal(size=size), rng.permutation(JOINED[name](rng, size)))
        remarks = inspect_observations(scores)
        caught += len(remarks) == 1 and "outside occur more than once" in remarks[0]
    assert caught >= 9


@pytest.mark.parametrize(("values", "again"), [(10, 5), (20, 9), (50, 9)])
def test_few_scores_that_repeat_are_remarked_on(values: int, again: int) -> None:
    """50 + 50 null scores, 9 of them three times: a false bound in 11 of 60 audits, no remark."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sides = (rng.normal(size=values) for _ in range(2))
        scores = Scores(*(np.concatenate([side, side[:again], side[:again]]) for side in sides))
        assert all("more than once" in remark for remark in inspect_observations(scores))
        assert len(inspect_observations(scores)) == 2


@pytest.mark.parametrize(("values", "times"), [(3, 5), (4, 4), (5, 3), (5, 4), (6, 3), (7, 2)])
def test_few_values_that_repeat_evenly_are_remarked_on(values: int, times: int) -> None:
    """5 + 5 null scores three times: a false bound in 24 of 60 audits, no remark."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        scores = Scores(*(np.tile(rng.normal(size=values), times) for _ in range(2)))
        (remark,) = inspect_observations(scores)
        assert f"occurs exactly {times} times" in remark


@pytest.mark.parametrize("size", [10, *SIZES])
@pytest.mark.parametrize("part", [0.5, 1.0])
def test_rows_given_on_both_sides_are_remarked_on(part: float, size: int) -> None:
    """One file given twice proves ε ≥ 0 whatever leaks; nothing said so."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        inside = rng.normal(size=size)
        kept = round(part * size)
        outside = rng.permutation(np.append(inside[:kept], rng.normal(size=size - kept)))
        for scores in (Scores(inside, outside), Scores(np.float32(inside), np.float32(outside))):
            (remark,) = inspect_observations(scores)
            assert "occur both inside and outside" in remark


def test_scores_of_all_sizes_are_inspected(rng: np.random.Generator) -> None:
    """Gaps of them overflow; and all are multiples of the smallest, as large floats are whole."""
    far = np.append(rng.normal(size=40), [-1.7e308, 1.7e308, 1e-200, 2e-200])
    (remark,) = inspect_observations(Scores(_join(far, 20), rng.normal(size=60)))
    assert "20 of 44 different scores inside occur more than once" in remark


def test_a_remark_becomes_a_caveat(rng: np.random.Generator) -> None:
    scores = Scores(rng.normal(size=900), _join(rng.normal(size=600), 300))
    found = em.epsilon_lower_bound(scores, delta=DELTA)
    assert found.valid
    assert found.caveats == inspect_observations(scores)


def test_null_scores_copied_20_times_prove_nothing_false() -> None:
    """They gave a false bound in 51 of 60 audits, 1.44 on average, without a remark."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sides = [np.tile(rng.normal(size=50), 20) for _ in range(2)]
        for method in (None, "clopper_pearson", "anytime"):
            with pytest.raises(InvalidArgument, match="every value exactly 20 times"):
                em.epsilon_lower_bound(Scores(*sides), delta=DELTA, method=method)


# What follows from a design


@pytest.mark.parametrize("design", CANARIES)
def test_an_audit_of_canaries_has_reach_power_and_growth(
    design: Design, rng: np.random.Generator
) -> None:
    scores = Scores(rng.normal(3, 1, 120), rng.normal(size=120), design=design)
    found = em.audit(scores, 0.5, delta=0.0)
    (view,) = found.views
    assert (view.bound.method, view.bound.design) == ("one_run", design)
    assert found.reach is not None
    assert found.power is not None
    assert found.reach >= view.bound.epsilon > 0.5
    assert len(view.evidence.growth) == 2
    assert found.provenance.settings["design"] == design


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({}, "Design: independent runs, one score each."),
        (
            {"design": "coins"},
            "Design: canaries of one run, each included by its own fair coin toss.",
        ),
        (
            {"design": "coins", "inclusion": 0.45},
            "canaries of one run, each included by its own coin toss with probability 0.45.",
        ),
        ({"design": "fixed"}, "a fixed number of them included at random."),
        ({"design": "paired"}, "one of each pair included by a fair coin toss."),
    ],
)
def test_the_first_line_of_every_answer_says_the_design(
    stated: dict, said: str, rng: np.random.Generator, tmp_path
) -> None:  # type: ignore[no-untyped-def]
    scores = Scores(rng.normal(3, 1, 120), rng.normal(size=120), **stated)
    found = em.audit(scores, 1.0, delta=DELTA)
    assert said in str(found).splitlines()[0]
    markdown = found.save(tmp_path / "audit.md").read_text("utf-8")
    assert said in markdown.splitlines()[0]
    page = found.save(tmp_path / "audit.html").read_text("utf-8")
    assert said in page
    assert em.load(found.save(tmp_path / "audit.json")) == found


def test_few_values_copied_on_both_sides_are_refused(rng: np.random.Generator) -> None:
    """Five values 20 times each may be chance on one side, but not on both."""
    inside, outside = (np.repeat(rng.normal(size=5), 20) for _ in range(2))
    assert em.epsilon_lower_bound(Scores(inside, rng.normal(size=100)), delta=1e-5).valid
    with pytest.raises(InvalidArgument, match="exactly 20 times"):
        em.epsilon_lower_bound(Scores(inside, outside), delta=1e-5)
    answers = np.repeat([0.0, 1.0], 50)  # two answers, equally often by chance
    assert em.epsilon_lower_bound(Scores(answers, answers), delta=1e-5).epsilon == 0


def test_pairs_sorted_apart_are_refused() -> None:
    """A table sorted by score has lost its pairs: null scores gave a false bound in 16 of 30."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        inside, outside = np.sort(rng.normal(size=300)), np.sort(rng.normal(size=300))
        for order in (slice(None), slice(None, None, -1)):
            with pytest.raises(InvalidArgument, match="who was paired with whom is lost"):
                em.epsilon_lower_bound(
                    Scores(inside[order], outside[order], design="paired"), delta=0.0
                )
            with pytest.raises(InvalidArgument, match="who was paired with whom is lost"):
                em.epsilon_lower_bound(
                    Scores(inside[order], outside[order]),
                    delta=0.0,
                    method="anytime",
                    rule=em.rules.Fixed(0.0),
                )


def test_sorting_pairs_apart_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the refusal is for."""
    monkeypatch.setattr(designs, "refuse_sorted_pairs", lambda scores: None)
    wrong = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sides = (np.sort(rng.normal(size=100)) for _ in range(2))
        wrong += em.epsilon_lower_bound(Scores(*sides, design="paired"), delta=0.0).epsilon > 0
    assert oracles.too_often(wrong, 20)


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        (np.full(50, 2.0), np.full(50, 1.0)),  # a perfect attack that answers yes or no
        (np.arange(9.0), np.arange(9.0) - 1),  # few enough for chance
        (np.arange(50.0), -np.arange(50.0)),
        (np.arange(50.0), np.roll(np.arange(50.0), 1)),  # pairs sorted by one of their scores
    ],
)
def test_pairs_that_may_be_pairs_are_spared(inside: np.ndarray, outside: np.ndarray) -> None:
    assert em.epsilon_lower_bound(Scores(inside, outside, design="paired"), delta=0.0).valid
