"""Audits of training runs: valid when watched, when stopped, and when runs fail."""

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import epsilometer as em
from epsilometer import Claim, Scores, UntilNarrow, UntilRefuted, epsilon_lower_bound
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.scores import Sides
from epsilometer.engine.engines import Engine, InProcess, Local
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import Done, run
from epsilometer.engine.runs import Program, RunsJob, View, join_scores
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument
from tests import oracles
from tests.engine.jobs import Shuffled

HERE = InProcess()
DELTA = 0.05


@dataclass(frozen=True)
class Shift:
    """The Gaussian mechanism: N(μ, 1) with the record, N(0, 1) without it."""

    mu: float

    def __call__(self, runs: int, rng: np.random.Generator) -> Scores:
        return Scores(inside=rng.normal(self.mu, 1, runs), outside=rng.normal(0, 1, runs))


def epsilon_of(mu: float, delta: float) -> float:
    """The exact ε of the mechanism, from its δ(ε)."""

    def excess(epsilon: float) -> float:
        return float(oracles.gaussian_delta(mu, epsilon, 20)) - delta

    return float(scipy.optimize.brentq(excess, 0, 50))


def audit(mu: float, *, claim: float | None, runs: int = 600, **more: Any) -> em.Audit:
    return audit_runs(Shift(mu), claim=claim, runs=runs, **more)


def audit_runs(play: Any, *, claim: Any = None, **options: Any) -> em.Audit:
    """Audit a function by options of the subject and of the call, in any order."""
    given = {"engine": HERE, "delta": DELTA, **options}
    asked = {
        name: given.pop(name)
        for name in ("engine", "delta", "confidence", "seed", "out", "until")
        if name in given
    }
    return em.audit(em.Runs(play, **given), claim, **asked)


# Stopping early


@pytest.mark.slow
def test_a_true_claim_is_rarely_refuted_although_it_is_watched(rng: np.random.Generator) -> None:
    """ε is exactly what is claimed, and the claim is judged after every unit."""
    exact, audits = epsilon_of(1.0, DELTA), 300
    wrong = sum(
        audit(1.0, claim=exact, until=UntilRefuted(), seed=seed, block=10).verdict == "refuted"
        for seed in rng.integers(2**32, size=audits).tolist()
    )
    assert not oracles.too_often(wrong, audits)


def test_a_false_claim_is_refuted_early_and_a_true_one_not_at_all() -> None:
    exact = epsilon_of(3.0, DELTA)
    early = audit(3.0, claim=exact / 4, until=UntilRefuted(), runs=5000)
    assert early.verdict == "refuted"
    assert early.provenance.used < early.provenance.units / 2
    assert early.epsilon > exact / 4
    assert early.bounds[0].n_in < 5000 / 2
    late = audit(2.0, claim=epsilon_of(2.0, DELTA), until=UntilRefuted(), runs=2000)
    assert (late.verdict, late.provenance.used) == ("not refuted", late.provenance.units)


@pytest.mark.parametrize(("until", "used"), [(UntilNarrow(0.01), 950), (UntilRefuted(), 1000)])
def test_what_was_seen_while_placing_thresholds_is_not_bet_on(
    until: UntilNarrow | UntilRefuted, used: int
) -> None:
    """Five of a hundred units are a pilot where a ceiling is asked for; else there is none."""
    whole = audit(1.0, claim=40.0, until=until, runs=1000)
    assert whole.bounds[0].n_in == whole.bounds[0].n_out == used
    assert whole.views[0].attack.n_in == 1000
    pairs, epsilons = zip(*whole.evidence[0].growth, strict=True)
    assert all(np.diff(epsilons) >= 0)
    assert all(np.diff(pairs) > 0)
    assert max(pairs) <= 2 * used


@pytest.mark.parametrize("width", [0.8, 1.5])
def test_a_narrow_audit_stops_when_more_runs_could_add_no_more(width: float) -> None:
    found = audit(1.0, claim=None, until=UntilNarrow(width), runs=40_000, block=400)
    assert found.verdict == "no claim"
    assert 1 < found.provenance.used < found.provenance.units
    ideal = best_at_any_threshold(1.0, DELTA)
    # The attack's own ε is at most the ceiling, which is at most width above the bound.
    assert found.epsilon < ideal < found.epsilon + width + 0.05


def best_at_any_threshold(mu: float, delta: float) -> float:
    """What thresholds on N(μ, 1) against N(0, 1) prove at best, on a fine grid of them."""
    cuts = np.linspace(-6, 6, 20_001)
    fpr, tpr = scipy.stats.norm.sf(cuts), scipy.stats.norm.sf(cuts, mu)
    return float(np.max(np.log(np.maximum(tpr - delta, 1e-300) / fpr)))


def test_a_narrower_audit_takes_longer() -> None:
    used = [
        audit(1.0, claim=None, until=UntilNarrow(width), runs=40_000, block=400).provenance.used
        for width in (2.0, 1.0, 0.7)
    ]
    assert used == sorted(used)
    assert used[0] < used[-1]


@pytest.mark.parametrize("until", [None, UntilRefuted(), UntilNarrow(2.0)])
def test_the_order_and_the_engine_leave_no_trace(
    until: Any, tmp_path: Path, rng: np.random.Generator
) -> None:
    engines: list[Engine] = [HERE, Shuffled(rng=rng), Local(count=2, kind="threads")]
    plain = {"claim": 0.5, "until": until, "runs": 20_000, "block": 1000}
    made = [
        audit(1.0, engine=engine, out=tmp_path / str(i), **plain)
        for i, engine in enumerate(engines)
    ]
    assert len({result.to_json() for result in made}) == 1
    if until is not None:
        assert made[0].provenance.used < made[0].provenance.units
    texts = {(tmp_path / str(i) / "result.json").read_bytes() for i in range(len(engines))}
    assert len(texts) == 1


# Failures


PARAMETERS = {"settings": {}, "delta": DELTA, "confidence": 0.95, "until": None}


def job_of(programs: int = 1, *, blocks: int = 8, mu: float = 2.0, **changed: Any) -> RunsJob:
    program = Program(play=Shift(mu), subject="a shift", adversary="sees all")
    plain: dict[str, Any] = {
        "plan": Plan(audit="x", parameters=PARAMETERS, units=programs * blocks, seed=0),
        "subject": "shifts",
        "claim": Claim(epsilon=1.5, delta=DELTA),
        "programs": (program,) * programs,
        "runs": blocks * 25,
        "block": 25,
        "delta": DELTA,
    }
    return RunsJob(**{**plain, **changed})


SCORES = st.floats(-3, 3) | st.sampled_from([0.0, 1.0, -math.inf, math.inf])


@st.composite
def units_and_failures(draw: st.DrawFn) -> tuple[list[Arrays], set[int]]:
    blocks, size = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    column = st.lists(SCORES, min_size=size, max_size=size).map(np.array)
    units = [{"inside": draw(column) + 1, "outside": draw(column)} for _ in range(blocks)]
    return units, draw(st.sets(st.integers(0, blocks - 1), min_size=1))


@settings(max_examples=60)
@given(units_and_failures(), st.sampled_from([0.0, 0.05]), st.sampled_from([0.9, 0.95]))
def test_a_failed_unit_never_raises_the_bound(
    case: tuple[list[Arrays], set[int]], delta: float, confidence: float
) -> None:
    """Whatever the units would have shown, and whichever of them failed."""
    units, failed = case
    size = units[0]["inside"].size
    job = job_of(blocks=len(units), runs=size * len(units), block=size)
    weaker = [job.missing(i) if i in failed else arrays for i, arrays in enumerate(units)]
    whole, less = (
        epsilon_lower_bound(join_scores(part), delta=delta, confidence=confidence).epsilon
        for part in (units, weaker)
    )
    assert less <= whole


def test_a_bound_with_failures_is_rarely_wrong_whatever_made_them_fail(
    rng: np.random.Generator,
) -> None:
    """The worst that failures can do: those units fail whose scores speak for the mechanism."""
    exact, audits, wrong = epsilon_of(1.0, DELTA), 150, 0
    job = job_of(mu=1.0)
    for _ in range(audits):
        units = []
        for i in range(8):
            arrays = {"inside": rng.normal(1, 1, 25), "outside": rng.normal(0, 1, 25)}
            private = arrays["inside"].mean() - arrays["outside"].mean() < 1
            units.append(job.missing(i) if private else arrays)
        bound = epsilon_lower_bound(join_scores(units), delta=DELTA)
        wrong += bound.epsilon > exact
    assert not oracles.too_often(wrong, audits)


@dataclass(frozen=True)
class Fragile:
    """Fails in a share ``rate`` of units, and draws no number for it."""

    mu: float
    rate: float

    def __call__(self, runs: int, rng: np.random.Generator) -> Scores:
        if copy.deepcopy(rng).random() < self.rate:
            raise RuntimeError("diverged")
        return Shift(self.mu)(runs, rng)


def fragile(rate: float, *, claim: float, mu: float = 3.0, **more: Any) -> em.Audit:
    return audit_runs(Fragile(mu, rate), **{"runs": 2000, "claim": claim, **more})


def test_failures_are_counted_and_refuse_a_verdict_that_they_could_hide() -> None:
    found = fragile(0.1, claim=4.0, mu=2.0)
    assert fragile(0.0, claim=4.0, mu=2.0).verdict == "not refuted"
    assert found.provenance.failed > 0
    assert found.provenance.used + found.provenance.failed == found.provenance.units == 100
    assert found.verdict == "cannot judge"
    assert "units failed" in found.judgement.reason


def test_a_claim_that_falls_although_runs_failed_has_fallen() -> None:
    found = fragile(0.1, claim=0.2)
    assert found.provenance.failed > 0
    assert found.verdict == "refuted"
    assert found.epsilon < fragile(0.0, claim=0.2).epsilon


def test_runs_that_failed_do_not_make_an_attack_look_finished() -> None:
    """Counted against the attack they would: its ceiling is for what they might have shown."""
    plain = {"claim": 40.0, "mu": 1.0, "runs": 20_000, "block": 400, "until": UntilNarrow(1.5)}
    whole, some = fragile(0.0, **plain), fragile(0.2, **plain)
    assert whole.provenance.used < 50
    assert some.provenance.failed
    assert some.provenance.used + some.provenance.failed == 50


@pytest.mark.parametrize("until", [None, UntilRefuted(), UntilNarrow(0.5)])
def test_an_audit_of_which_everything_failed_says_nothing(until: Any) -> None:
    found = fragile(1.0, claim=0.0, until=until)
    assert (found.verdict, found.epsilon) == ("cannot judge", 0.0)
    assert (found.provenance.used, found.provenance.failed) == (0, 100)


@pytest.mark.parametrize("until", [None, UntilRefuted()])
def test_an_audit_resumed_after_failures_is_that_of_an_undisturbed_one(
    until: Any, tmp_path: Path
) -> None:
    job = job_of(blocks=40, runs=1000, until=until)
    whole = run(job, tmp_path / "whole", engine=HERE)
    program = replace(job.programs[0], play=Fragile(2.0, 0.3))
    failed = run(replace(job, programs=(program,)), tmp_path / "run", engine=HERE)
    assert failed.provenance.failed
    assert run(job, tmp_path / "run", engine=HERE) == whole
    found, expected = (tmp_path / name / "result.json" for name in ("run", "whole"))
    assert found.read_bytes() == expected.read_bytes()
    assert not list((tmp_path / "run" / "failures").iterdir())


def test_each_program_has_its_own_runs_and_failures_and_all_share_the_confidence() -> None:
    job = job_of(programs=3)
    views = job.findings((job.unit(i) for i in range(24)), done_of(job))
    assert [view.units for view in views] == [8, 8, 8]
    assert [view.failed for view in views] == [0, 0, 0]
    scores = [join_scores(job.unit(i) for i in range(start, start + 8)) for start in (0, 8, 16)]
    for view, own in zip(views, scores, strict=True):
        alone = epsilon_lower_bound(own, delta=DELTA, confidence=1 - 0.05 / 3)
        assert (view.bound.epsilon, view.bound.confidence) == (alone.epsilon, alone.confidence)
    assert len({view.bound.epsilon for view in views}) == 3
    failed = job.findings((job.unit(i) for i in range(24)), done_of(job, failed={0, 9, 10}))
    assert [(view.used, view.failed) for view in failed] == [(7, 1), (6, 2), (8, 0)]
    found = run(job, engine=HERE)
    assert set(found.views) == set(views)
    assert found.confidence == 0.95


def done_of(job: RunsJob, *, failed: Iterable[int] = ()) -> Done:
    return Done(plan=job.plan, seen=job.plan.units, failed=frozenset(failed))


@pytest.mark.simulation
@pytest.mark.parametrize("audits", [100, pytest.param(1_000, marks=pytest.mark.slow)])
def test_two_programs_are_wrong_together_no_more_often_than_one(
    audits: int, rng: np.random.Generator
) -> None:
    """Both claims are exactly true: were each bound at 0.95, twice as many audits would err.

    Randomised response has two outcomes, so that the bound errs nearly as often as it may.
    """
    runs, wrong = 400, 0
    for seed in rng.integers(2**32, size=audits).tolist():
        plan = Plan(audit="x", parameters=PARAMETERS, units=2, seed=seed)
        job = job_of(2, blocks=1, runs=runs, block=runs, delta=0.0, plan=plan, claim=None)
        program = replace(job.programs[0], play=randomised_response)
        job = replace(job, programs=(program, program))
        views = job.findings(map(job.unit, range(2)), done_of(job))
        wrong += any(view.bound.refutes(1.0) for view in views)
    assert not oracles.too_often(wrong, audits)


def randomised_response(runs: int, rng: np.random.Generator) -> Scores:
    """The true bit with probability e/(1 + e), else the other."""
    inside, outside = rng.random((2, runs)) < scipy.special.expit(1.0)
    return Scores(inside=inside.astype(float), outside=(~outside).astype(float))


# Views


@dataclass(frozen=True)
class Looked:
    """The same runs seen sharply, dimly, and by parts: three scores of a run, or none inside."""

    empty: bool = False

    def __call__(self, runs: int, rng: np.random.Generator) -> dict[str, Scores | Sides]:
        sharp = Shift(3.0)(runs, rng)
        dim = Scores(*(side + rng.normal(0, 4, runs) for side in (sharp.inside, sharp.outside)))
        inside, outside = (
            (np.repeat(side, 3).reshape(-1, 3) + rng.normal(0, 0.1, (runs, 3))).ravel()
            for side in (sharp.inside, sharp.outside)
        )
        if self.empty and rng.random() < 0.5:
            inside = np.empty(0)
        return {"sharp": sharp, "dim": dim, "parts": Sides(inside, outside)}


def counted_bound(scores: Scores) -> EpsilonLowerBound:
    """Any bound that takes as many scores as there are."""
    return epsilon_lower_bound(scores, delta=DELTA, confidence=0.9)


def look(name: str, **more: Any) -> View:
    return View(name=name, subject=f"the {name} view", adversary=f"who looks {name}", **more)


def looked(*views: View, empty: bool = False, **changed: Any) -> RunsJob:
    job = job_of(**changed)
    program = replace(job.programs[0], play=Looked(empty), views=views)
    return replace(job, programs=(program,))


def test_every_view_of_the_same_runs_has_its_own_result() -> None:
    parts = look("parts", bound=counted_bound, each=3)
    job = looked(look("sharp"), look("dim"), parts)
    found = run(job, engine=HERE)
    assert {view.subject for view in found.views} == {
        "the sharp view",
        "the dim view",
        "the parts view",
    }
    sharp, dim, three = (found.view(name) for name in ("sharp view", "dim view", "parts view"))
    assert [view.bound.adversary for view in (sharp, dim)] == ["who looks sharp", "who looks dim"]
    units = [job.unit(i) for i in range(8)]
    for name, view in (("sharp", sharp), ("dim", dim)):
        expected = epsilon_lower_bound(
            join_scores(units, name), delta=DELTA, confidence=1 - 0.05 / 3
        )
        assert view.bound.epsilon == expected.epsilon
    assert sharp.epsilon > dim.epsilon
    assert three.bound.epsilon == counted_bound(join_scores(units, "parts")).epsilon
    assert three.bound.n_in == 600
    assert {view.units for view in found.views} == {8}
    assert all(view.reach is not None and view.reach > view.epsilon for view in found.views)
    assert all(view.power is not None for view in found.views)


def test_views_that_nobody_asked_for_are_not_kept() -> None:
    job = looked(look("dim"))
    assert [view.subject for view in run(job, engine=HERE).views] == ["the dim view"]
    assert set(job.unit(0)) == {"diminside", "dimoutside"}


def test_a_unit_may_be_empty_on_a_side_where_scores_are_as_many_as_they_are() -> None:
    found = run(looked(look("parts", bound=counted_bound, each=3), empty=True), engine=HERE)
    assert found.provenance.failed == 0
    assert 0 < found.bounds[0].n_in < 600


def test_failed_units_count_against_every_view_as_often_as_they_could_have_scored() -> None:
    lost = looked(look("sharp"), look("parts", bound=counted_bound, each=3)).missing(0)
    assert {name: side.size for name, side in lost.items()} == {
        "sharpinside": 25,
        "sharpoutside": 25,
        "partsinside": 75,
        "partsoutside": 75,
    }
    assert np.all(lost["partsinside"] == -np.inf)
    assert np.all(lost["partsoutside"] == np.inf)


def test_a_view_that_lacks_scores_fails_with_the_reason(tmp_path: Path) -> None:
    found = run(looked(look("parts")), tmp_path, engine=HERE)  # three of each run, and no bound
    assert found.provenance.failed == 8
    note = (tmp_path / "failures" / "00000000.json").read_text("utf-8")
    assert "Expected play to return 25 scores inside and 25 outside, got 75 and 75" in note


def test_the_first_view_decides_when_to_stop_and_all_hold() -> None:
    plain = {"blocks": 40, "until": UntilRefuted()}
    sharp, dim = (run(looked(*views, **plain), engine=HERE) for views in SHARP_AND_DIM)
    assert len({view.used for view in sharp.views}) == 1
    assert sharp.provenance.used < dim.provenance.used
    assert sharp.verdict == dim.verdict == "refuted"
    assert all(each.view("sharp view").bound.refutes(1.5) for each in (sharp, dim))


SHARP_AND_DIM = [(look("sharp"), look("dim")), (look("dim"), look("sharp"))]


# Calls


def test_blocks_are_as_even_as_runs_allow() -> None:
    job = job_of(blocks=4, runs=10, block=3)
    assert [job.unit(i)["inside"].size for i in range(4)] == [3, 3, 3, 1]
    assert [job.missing(i)["outside"].size for i in range(4)] == [3, 3, 3, 1]


def test_a_play_that_returns_too_few_scores_fails_with_the_reason(tmp_path: Path) -> None:
    def short(runs: int, rng: np.random.Generator) -> Scores:
        return Shift(1.0)(runs - 1, rng)

    found = audit_runs(short, runs=20, block=10, out=tmp_path)
    assert found.provenance.failed == 2
    note = (tmp_path / "failures" / "00000000.json").read_text("utf-8")
    assert "Expected play to return 10 scores inside and 10 outside, got 9 and 9" in note


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"runs": 1}, "runs"),
        ({"runs": 2.5}, "runs"),
        ({"block": 0}, "block"),
        ({"seed": -1}, "seed"),
        ({"until": UntilRefuted(), "claim": None}, "a claim with until"),
        ({"until": UntilRefuted(), "also": ["gdp"]}, "no further methods"),
        ({"until": UntilNarrow(1.0), "also": ["gdp"]}, "no further methods"),
        ({"until": UntilRefuted(), "block": 100}, "two units or more"),
        ({"parameters": {"x": np.zeros(3)}}, "JSON values"),
    ],
)
def test_bad_calls_are_told_before_anything_is_run(wrong: dict[str, Any], said: str) -> None:
    claim = Claim(epsilon=1.0, delta=DELTA)

    def play(runs: int, rng: np.random.Generator) -> Scores:
        raise AssertionError("it was run")

    plain = {"runs": 100, "claim": claim}
    with pytest.raises(InvalidArgument, match=said):
        audit_runs(play, **{**plain, **wrong})


@pytest.mark.parametrize("width", [0.0, -1.0, float("nan")])
def test_a_width_must_be_positive(width: float) -> None:
    with pytest.raises(InvalidArgument, match="width"):
        UntilNarrow(width)


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 1},
        {"runs": 101},
        {"confidence": 0.9},
        {"delta": 0.01, "claim": None},
        {"claim": Claim(epsilon=2.0, delta=DELTA)},
        {"until": UntilRefuted()},
        {"until": UntilNarrow(1.0)},
        {"block": 7},
        {"parameters": {"noise": 2}},
        {"also": ["gdp"]},
        {"adversary": "someone else"},
    ],
)
def test_a_directory_is_never_continued_with_another_audit(
    changed: dict[str, Any], tmp_path: Path
) -> None:
    plain = {"runs": 100, "out": tmp_path}
    plain["claim"] = Claim(epsilon=1.0, delta=DELTA)
    audit_runs(Shift(1.0), **plain)
    with pytest.raises(InvalidArgument, match="Expected no other run"):
        audit_runs(Shift(1.0), **{**plain, **changed})


def canaries(runs: int, rng: np.random.Generator) -> Scores:
    """One training with many canaries: not that many runs."""
    return Scores(rng.normal(2, 1, runs), rng.normal(0, 1, runs), design="coins")


def test_a_program_that_returns_canaries_is_refused() -> None:
    program = Program(play=canaries, subject="a run", adversary="sees all")
    with pytest.raises(InvalidArgument, match="independent runs, one each, got canaries of one"):
        replace(job_of(), programs=(program,)).unit(0)
