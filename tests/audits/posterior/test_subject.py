"""Audits of predictions with uncertainty: leaks are found, the null is spared, every form holds."""

import json
import typing
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

import epsilometer as em
from epsilometer import Audit, Claim, InProcess, Local, Posterior, ReleaseForm, Scores
from epsilometer.audits.posterior import finding as posterior_finding
from epsilometer.audits.posterior import subject as posterior
from epsilometer.audits.posterior.disclosure import Kind
from epsilometer.audits.posterior.finding import can_derive, learn_scores
from epsilometer.audits.posterior.forms import DeepEnsemble, FromCallable, McDropout
from epsilometer.audits.posterior.runs import Collected, Shown, Side
from epsilometer.core import judge
from epsilometer.core.findings import (
    FormDifference,
    FormFinding,
    FormPlan,
    PosteriorRuns,
    SweepPoint,
    TheoryEpsilon,
)
from epsilometer.core.record import Record
from epsilometer.core.settings import from_settings
from epsilometer.engine.events import Event
from epsilometer.engine.request import Request
from epsilometer.errors import EpsilometerError, InvalidArgument
from epsilometer.networks import devices
from epsilometer.networks.ensemble import EnsembleDPSGD, cross_entropy
from epsilometer.networks.models import dropout_mlp
from epsilometer.sampling.samplers import Poisson, Shuffle
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.thresholds import HoldOut
from tests.calibration import posterior as calibration

FLAKE, DELTA = 1e-6, 1e-5
FEATURES, CLASSES = 6, 3
KINDS: tuple[Kind, ...] = typing.get_args(Kind)
FEW = tuple(ReleaseForm(kind) for kind in ("mean+std", "mean", "vector", "label"))


def blobs(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three classes, each around a corner of its own."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    centres = 2.0 * np.eye(CLASSES, FEATURES)
    return (centres[labels] + rng.normal(0, 0.5, (count, FEATURES))).astype(np.float32), labels


def odd() -> Record:
    """In the middle of one class, and of another by its label."""
    return Record(2.0 * np.eye(CLASSES, FEATURES)[0].astype(np.float32), label=1)


def training(**changed: Any) -> EnsembleDPSGD:
    plain: dict[str, Any] = {
        "runs": 1,
        "noise_multiplier": 0.0,
        "clip_norm": 1e6,
        "learning_rate": 0.5,
        "batch_size": 8,
        "epochs": 12,
        "sampler": Poisson(),
    }
    with torch.random.fork_rng(devices=[]):  # the plan names the module's own weights
        torch.manual_seed(0)
        module = changed.pop("module", None) or dropout_mlp(FEATURES, CLASSES, 0.2, hidden=16)
    return EnsembleDPSGD(module, cross_entropy, **{**plain, **changed})


def subject(factory: Any = None, **changed: Any) -> Posterior:
    how: dict[str, Any] = {
        "record": odd(),
        "runs": 40,
        "samples": 8,
        "test": blobs(30, seed=1),
        "forms": FEW,
        "swept": (),
    }
    return Posterior(training() if factory is None else factory, blobs(21), **{**how, **changed})


def audit(
    factory: Any = None,
    *,
    claim: Any = None,
    delta: float | None = DELTA,
    out: Path | None = None,
    engine: Any = None,
    listen: Any = (),
    **changed: Any,
) -> Audit:
    return em.audit(
        subject(factory, **changed),
        claim,
        delta=delta,
        out=out,
        engine=engine or InProcess(),
        listen=listen,
    )


def by_form(result: Audit, name: str) -> FormFinding:
    (found,) = [form for form in result.find(FormFinding) if form.form == name]
    return found


def plan_of(result: Audit) -> FormPlan:
    (found,) = result.find(FormPlan)
    return found


def runs_of(result: Audit) -> PosteriorRuns:
    (found,) = result.find(PosteriorRuns)
    return found


# Verdicts on real training


def test_a_leak_is_found_and_the_plan_keeps_away_from_it() -> None:
    result = audit(runs=100, at_once=50, claim=0.5, forms=posterior.FORMS)
    assert result.verdict == judge.REFUTED
    assert plan_of(result).forms == tuple(str(form) for form in posterior.FORMS)
    mean = by_form(result, "mean")
    assert mean.epsilon > 0.5
    assert mean.standing == by_form(result, "samples").standing == "above"
    assert mean.advantage_low > 0.245  # what ε = 0.5 allows
    assert plan_of(result).chosen in (None, "label", "vector")
    assert result.advice == plan_of(result).advice
    assert mean.raw > mean.epsilon
    assert [bound.valid for bound in mean.view.also] == [True, False]
    assert [b.valid for b in by_form(result, "mean+std").view.also] == [True, True, False, False]
    assert mean.accuracy is not None
    assert mean.accuracy > 0.9
    assert result.claim == Claim(0.5, delta=DELTA, adjacency="add_remove")
    assert {bound.adjacency for bound in result.bounds} == {"add_remove"}
    assert {bound.confidence for bound in result.bounds} == {1 - 0.05 / 7}  # shared


def test_training_under_heavy_noise_is_spared() -> None:
    result = audit(
        training(noise_multiplier=8.0, clip_norm=1.0, epochs=2), runs=40, at_once=40, claim=0.5
    )
    assert result.verdict == judge.NOT_REFUTED
    theory = result.find(TheoryEpsilon)
    assert {said.method for said in theory} == {"RDP", "PLD"}
    rdp, pld = (said.epsilon for said in theory)
    assert 0 < pld < rdp
    assert "Poisson sampling at rate 0.3333" in theory[0].note


def test_an_accountant_of_other_batches_says_so() -> None:
    shuffled = training(noise_multiplier=8.0, clip_norm=1.0, epochs=1, sampler=Shuffle())
    result = audit(shuffled, runs=8, at_once=8)
    assert "as if" in result.find(TheoryEpsilon)[0].note
    plain = audit(training(epochs=1), runs=8, at_once=8)
    assert not plain.find(TheoryEpsilon)  # plain SGD claims nothing


class Forgets:
    """Trains for real on all records but the last where they are more than 21: the null."""

    def __call__(self, features: Any, labels: Any, rng: np.random.Generator) -> McDropout:
        trained = training(epochs=1, batch_size=21).train(features[:21], labels[:21], rng=rng)
        return McDropout(trained.models.model(0))


def test_training_that_ignores_the_record_is_spared() -> None:
    result = audit(Forgets(), runs=30, claim=0.01, test=None)
    assert result.verdict == judge.NOT_REFUTED
    assert runs_of(result).tested == 0
    assert result.find(FormFinding)[0].accuracy is None
    assert any("utility was not measured" in caveat for caveat in result.caveats)


def test_ensembles_are_audited_by_the_same_protocol(rng: np.random.Generator) -> None:
    def factory(features: Any, labels: Any, rng: np.random.Generator) -> DeepEnsemble:
        how = training(runs=3, epochs=2)
        trained = how.train(features, labels, rng=rng)
        return DeepEnsemble([trained.models.model(i) for i in range(3)])

    result = audit(factory, runs=8, samples=3, test=blobs(3, seed=1))
    assert "vector" not in plan_of(result).forms  # members have none together
    assert len(result.views) == len(FEW) - 1
    assert any("no form 'vector'" in caveat for caveat in result.caveats)
    assert runs_of(result).tested == 3 * 8


# The same bytes


def test_engines_and_resumed_runs_give_the_same_bytes(tmp_path: Path) -> None:
    how: dict[str, Any] = {"runs": 12, "at_once": 4, "claim": 0.5}
    whole = audit(**how).to_json()
    assert audit(**how, engine=Local(count=2)).to_json() == whole
    directory = tmp_path / "run"
    with pytest.raises(Enough):
        audit(**how, out=directory, listen=[stop])
    assert not (directory / "result.json").exists()
    assert audit(**how, out=directory).to_json() == whole


class Enough(Exception):
    pass


def stop(event: Event) -> None:
    if event.name == "progress":
        raise Enough


def test_a_run_goes_on_with_as_many_models_at_once_as_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free memory comes and goes; another number would be another run."""
    monkeypatch.setattr(devices, "choose_at_once", lambda *_: 5)
    with pytest.raises(Enough):
        audit(training(epochs=1), runs=12, out=tmp_path / "run", listen=[stop])
    monkeypatch.setattr(devices, "choose_at_once", lambda *_: 3)
    result = audit(training(epochs=1), runs=12, out=tmp_path / "run")
    assert result.provenance.units == 2 * 3  # blocks of 5, 5 and 2
    assert audit(training(epochs=1), runs=12).provenance.units == 2 * 4


def test_another_question_is_another_run(tmp_path: Path) -> None:
    how: dict[str, Any] = {"runs": 8, "at_once": 8, "out": tmp_path / "run"}
    audit(training(epochs=1), **how)
    with pytest.raises(EpsilometerError, match="samples"):
        audit(training(epochs=1), **how, samples=9)
    with pytest.raises(EpsilometerError, match="epochs"):
        audit(training(epochs=2), **how)
    with pytest.raises(EpsilometerError, match="module"):
        audit(training(epochs=1, module=dropout_mlp(FEATURES, CLASSES, 0.2, hidden=8)), **how)


def test_settings_name_how_it_was_trained_and_no_data() -> None:
    source = audit(training(epochs=1), runs=8, at_once=8).provenance
    assert set(source.supplied) == {"factory", "data", "record", "test"}
    assert source.settings["record"] == {"supplied": "Record"}  # not even its label
    trained = source.settings["factory"]
    assert (trained["learning_rate"], trained["epochs"]) == (0.5, 1)
    assert trained["module"] == {"supplied": "Sequential"}
    assert "0.5" not in json.dumps(source.settings["data"])


def test_forms_may_be_written_as_text() -> None:
    settings = {"runs": 8, "forms": ["mean+std:0.01", "label"], "swept": [], "record": 3}
    with pytest.raises(InvalidArgument, match=r"Expected Posterior\.factory"):
        from_settings(Posterior, settings)
    written = subject(forms=["mean+std:0.01", "label"], swept=("mean",))
    assert written.forms == (ReleaseForm("mean+std", unit=0.01), ReleaseForm("label"))
    assert written.swept == (ReleaseForm("mean"),)


# Forms, sweeps, differences, the plan


@pytest.fixture(scope="module")
def leaky() -> Audit:
    swept = (ReleaseForm("samples"), ReleaseForm("mean+std"), ReleaseForm("mean"))
    forms = (*swept, ReleaseForm("label"))
    return audit(runs=16, at_once=16, forms=forms, swept=swept, counts=(1, 2, 8), units=(0.01, 0.5))


def test_sweeps_end_where_forms_are(leaky: Audit) -> None:
    for name in ("samples", "mean+std", "mean"):
        form = by_form(leaky, name)
        ends = [
            point
            for point in leaky.find(SweepPoint)
            if point.shows == name and point.unit is None and point.samples == 8
        ]
        assert [point.swept for point in ends] == ["samples", "unit"]
        for point in ends:
            assert (point.raw, point.advantage) == (form.raw, form.advantage)
            assert (point.accuracy, point.ties) == (form.accuracy, form.ties)
    assert {point.samples for point in leaky.find(SweepPoint)} == {1, 2, 8}
    assert {point.unit for point in leaky.find(SweepPoint)} == {None, 0.01, 0.5}


def test_rounding_coarsely_costs_labels(leaky: Audit) -> None:
    of = {
        point.unit: point
        for point in leaky.find(SweepPoint)
        if point.swept == "unit" and point.shows == "mean"
    }
    ties, accuracy = (
        {unit: getattr(of[unit], name) for unit in of} for name in ("ties", "accuracy")
    )
    assert ties[0.5] > ties[0.01] >= ties[None]
    assert accuracy[0.5] < accuracy[None]


def test_all_pairs_of_forms_are_compared_on_the_same_runs(leaky: Audit) -> None:
    forms = {form.form: form.advantage for form in leaky.find(FormFinding)}
    differences = leaky.find(FormDifference)
    assert len(differences) == len(forms) * (len(forms) - 1) / 2
    for gap in differences:
        assert gap.difference == pytest.approx(forms[gap.first] - forms[gap.second])
        assert gap.low <= gap.difference <= gap.high


def test_one_sample_has_no_spread_and_says_so() -> None:
    result = audit(
        training(epochs=1), runs=8, at_once=8, samples=1, forms=posterior.FORMS, swept=FEW[:1]
    )
    for name in ("samples", "quantiles", "mean+std"):
        assert any("no spread" in said for said in by_form(result, name).view.bound.caveats)
    assert not any("no spread" in said for said in by_form(result, "mean").view.bound.caveats)
    assert sum("no spread" in said for said in result.caveats) == 4  # rounded and not
    assert not [point for point in result.find(SweepPoint) if point.swept == "samples"]


UNITS = (None, 0.5, 0.25)
WHOLE = tuple(ReleaseForm(kind) for kind in ("samples", "mean+std", "mean", "label"))


EVERY = [ReleaseForm(kind, unit) for kind in KINDS if kind != "set" for unit in UNITS]
EVERY += [ReleaseForm("set", level=level) for level in (0.6, 0.8)]


@pytest.mark.parametrize(
    ("fine", "coarse"), [pair for pair in product(EVERY, EVERY) if can_derive(*pair)], ids=str
)
def test_what_is_said_to_derive_does(
    fine: ReleaseForm, coarse: ReleaseForm, rng: np.random.Generator
) -> None:
    """No two predictions look alike in a form and apart in one that is made of it."""
    samples = rng.dirichlet(np.ones(2), (3000, 2)).round(1)
    vectors = rng.dirichlet(np.ones(2), 3000).round(1)
    known: dict[bytes, bytes] = {}
    shown = zip(fine.publish(samples, vectors), coarse.publish(samples, vectors), strict=True)
    for mine, other in shown:
        looks = other.round(6).tobytes()
        assert known.setdefault(mine.round(6).tobytes(), looks) == looks


def test_a_form_stands_no_better_than_what_is_made_of_it() -> None:
    """Samples are many features for few runs: its own attack sees less than that on the mean."""

    def factory(features: Any, labels: Any, rng: np.random.Generator) -> FromCallable:
        shift = 0.25 if len(labels) > 21 else 0.0
        p = np.clip(0.4 + shift + rng.normal(0, 0.1), 0.05, 0.95)
        return FromCallable(
            lambda x, samples, rng: np.stack([_spread(p, rng) for _ in range(samples)])
        )

    result = audit(factory, runs=200, test=None, line=0.5, forms=WHOLE)
    order = ("above", "unclear", "below")
    for fine, coarse in [("samples", "mean"), ("mean+std", "mean"), ("mean", "label")]:
        stands = [order.index(by_form(result, name).standing) for name in (fine, coarse)]
        assert stands[0] <= stands[1]
    assert by_form(result, "samples").standing == "above"


def test_a_set_of_classes_is_a_form_too() -> None:
    """Whoever has the mean makes the set; where it moves with the record it is seen."""

    def factory(features: Any, labels: Any, rng: np.random.Generator) -> FromCallable:
        p = (0.97 if len(labels) > 21 else 0.8) + rng.uniform(-0.02, 0.02)
        return FromCallable(lambda x, samples, rng: np.tile([p, 1 - p, 0], (samples, 1)))

    result = audit(factory, runs=60, test=None, line=0.5, forms=("mean", "set:0.9", "label"))
    assert by_form(result, "set of 0.9").standing == "above"
    assert by_form(result, "mean").standing == "above"
    assert by_form(result, "label").standing == "below"  # it is the first class always
    assert "zhu2024" in result.cites


def _spread(p: float, rng: np.random.Generator) -> np.ndarray:
    moved = float(np.clip(p + rng.normal(0, 0.05), 0.01, 0.99))
    return np.array([(1 - moved) / 2, moved, (1 - moved) / 2])


def test_an_attack_that_is_worse_than_guessing_is_no_sign_of_safety() -> None:
    right, wrong = np.ones(40), -np.ones(40)
    unlucky = posterior_finding._limit_advantage(Scores(inside=wrong, outside=right), 0.95)
    assert unlucky.value == -1
    assert unlucky.high == 1


def test_the_finest_form_below_the_line_is_chosen() -> None:
    def factory(features: Any, labels: Any, rng: np.random.Generator) -> FromCallable:
        p = float(rng.uniform(0.3, 0.6))
        return FromCallable(lambda x, samples, rng: np.tile(_spread(p, rng), (samples, 1)))

    result = audit(factory, runs=300, test=None, line=1.0)
    assert plan_of(result).chosen == "mean+std"
    assert plan_of(result).epsilon == 1.0
    few = audit(factory, runs=8, test=None, line=1.0)
    assert plan_of(few).chosen is None
    assert "as many without, might decide" in few.advice[-1]


@pytest.mark.parametrize(
    ("claim", "line", "used"), [(None, None, 1.0), (0.5, None, 0.5), (0.5, 2.0, 2.0)]
)
def test_the_line_is_the_claim_where_none_is_drawn(
    claim: float | None, line: float | None, used: float
) -> None:
    assert (
        plan_of(audit(_of([0.5, 0.2, 0.3]), runs=8, test=None, claim=claim, line=line)).epsilon
        == used
    )


def test_reach_and_power_are_those_of_all_forms_together() -> None:
    result = audit(_of([0.5, 0.2, 0.3]), runs=200, test=None, claim=0.5)
    assert result.verdict == judge.NOT_REFUTED
    perfect = Scores(inside=1.0 + np.arange(100.0), outside=-1.0 - np.arange(100.0))
    each = 1 - 0.05 / len(result.views)
    assert result.reach == epsilon_lower_bound(perfect, delta=DELTA, confidence=each).epsilon
    assert {view.reach for view in result.views} == {result.reach}
    assert {view.power for view in result.views} == {result.power}
    assert result.power is not None
    assert result.power > 0.5
    beyond = audit(_of([0.5, 0.2, 0.3]), runs=200, test=None, claim=50.0)
    assert beyond.verdict == judge.CANNOT_JUDGE
    silent = audit(_of([0.5, 0.2, 0.3]), runs=200, test=None)
    assert {(view.reach, view.power) for view in silent.views} == {(result.reach, None)}


# The valid bound under a known null, and the mistake it does not make


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("mean+std", "quantiles")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mean", *SLOW, "samples"])
def test_false_alarms_of_the_learned_attack(kind: Kind, rng: np.random.Generator) -> None:
    audits = 1000
    wrong = sum(calibration.learned_bound(kind, 24, rng) > 0 for _ in range(audits))
    assert scipy.stats.binomtest(wrong, audits, 0.05, "greater").pvalue > FLAKE


def test_an_attack_scored_on_what_it_learned_from_is_caught(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unfair(inside: Any, outside: Any, *, rng: Any, fraction: float) -> Any:
        twice = [np.concatenate([side, side]) for side in (inside, outside)]
        order = np.random.default_rng(0)
        return learn_scores(*twice, rng=_Unmoved(order), fraction=fraction)  # type: ignore[arg-type]

    monkeypatch.setattr(posterior_finding, "learn_scores", unfair)
    wrong = sum(calibration.learned_bound("samples", 24, rng) > 0 for _ in range(100))
    assert scipy.stats.binomtest(wrong, 100, 0.05, "greater").pvalue < FLAKE


class _Unmoved:
    """Permutes nothing, so that halves of doubled data are the same runs."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def permutation(self, count: int) -> np.ndarray:
        return np.arange(count)


def test_the_papers_estimate_exceeds_a_half_under_the_null(rng: np.random.Generator) -> None:
    found = [calibration.raw_estimate("mean+std", 100, rng) for _ in range(60)]
    assert np.mean(np.array(found) > 0.5) > 0.8


@pytest.mark.slow
def test_all_forms_together_are_rarely_wrong(rng: np.random.Generator) -> None:
    """The worst of three forms: they share the confidence."""
    audits, wrong = 60, 0
    for seed in rng.integers(2**32, size=audits).tolist():
        found = em.audit(
            Posterior(
                _null, blobs(21), record=odd(), runs=24, samples=4, forms=WHOLE[1:], swept=()
            ),
            delta=DELTA,
            seed=seed,
            engine=InProcess(),
        )
        wrong += any(bound.epsilon > 0 for bound in found.bounds)
    assert scipy.stats.binomtest(wrong, audits, 0.05, "greater").pvalue > FLAKE


def _null(features: Any, labels: Any, rng: np.random.Generator) -> FromCallable:
    weights = rng.gamma(2.0, 1.0, CLASSES)
    return FromCallable(lambda x, samples, rng: rng.dirichlet(weights + 0.5, samples))


def test_runs_that_are_lost_only_weaken_what_is_proved(rng: np.random.Generator) -> None:
    def side(mean: float, lost: int) -> Side:
        p = np.clip(rng.normal(mean, 0.05, (40, 4)), 0.01, 0.99)
        samples = np.stack([1 - p, p], axis=-1).astype(np.float32)
        return Side(samples=samples, vector=None, lost=lost)

    for lost in (0, 1, 5, 20):
        inside, outside = side(0.7, lost), side(0.3, lost)
        seen = Collected(inside=inside, outside=outside, utility=None, tested=0)
        attack = posterior_finding._Attack(collected=seen, label=1, delta=DELTA, seed=0)
        shown = Shown(ReleaseForm("mean"), 4)
        scores = attack.score(shown)
        assert (scores.inside == -np.inf).sum() == (scores.outside == np.inf).sum() == lost
        found = epsilon_lower_bound(scores, delta=DELTA).epsilon
        joint, *_ = attack.bound_jointly(shown, HoldOut(0.5), 0.95)
        if lost == 0:
            whole = found, joint.epsilon
            assert min(whole) > 0.5
        else:
            assert (found, joint.epsilon) < whole


# What diverges, fails, or is wrong


def test_runs_that_diverge_count_and_are_told() -> None:
    result = audit(training(learning_rate=1e30), runs=8, at_once=8, claim=0.1)
    runs = runs_of(result)
    assert runs.diverged_inside == runs.diverged_outside == runs.runs == 8
    assert result.verdict == judge.NOT_REFUTED
    assert all(form.epsilon == 0 for form in result.find(FormFinding))
    assert plan_of(result).chosen is None  # what was lost might have leaked
    assert {form.standing for form in result.find(FormFinding)} == {"unclear"}
    assert any("Diverged or failed: 8 of 8" in caveat for caveat in result.caveats)


@pytest.mark.parametrize("with_record", [True, False])
def test_a_record_that_makes_all_models_diverge_is_no_crash(with_record: bool) -> None:
    def factory(features: Any, labels: Any, rng: np.random.Generator) -> FromCallable:
        lost = (len(labels) > 21) == with_record
        p = np.full(CLASSES, np.nan if lost else 1 / CLASSES)
        return FromCallable(lambda x, samples, rng: np.tile(p, (samples, 1)))

    result = audit(factory, runs=10, test=None, forms=WHOLE)
    runs = runs_of(result)
    assert sorted((runs.diverged_inside, runs.diverged_outside)) == [0, 10]
    assert plan_of(result).chosen is None


def test_a_factory_whose_models_diverge_now_and_then_goes_on() -> None:
    def factory(features: Any, labels: Any, rng: np.random.Generator) -> FromCallable:
        lost = rng.random() < 0.3
        p = np.full(CLASSES, np.nan if lost else 1 / CLASSES)
        return FromCallable(lambda x, samples, rng: np.tile(p, (samples, 1)))

    result = audit(factory, runs=20, test=None)
    assert 0 < runs_of(result).diverged_inside + runs_of(result).diverged_outside < 40
    assert result.provenance.failed == 0


def test_runs_that_raise_are_failed_units_and_no_acquittal() -> None:
    def factory(features: Any, labels: Any, rng: np.random.Generator) -> FromCallable:
        if rng.random() < 0.2:
            raise RuntimeError("no memory today")
        return FromCallable(lambda x, samples, rng: np.full((samples, CLASSES), 1 / CLASSES))

    result = audit(factory, runs=40, test=None, claim=0.1)
    assert result.provenance.failed > 0
    assert {view.failed for view in result.views} == {result.provenance.failed}
    assert result.reach is not None
    assert result.reach > 0.1
    assert result.verdict == judge.CANNOT_JUDGE


def test_where_all_runs_raise_the_reason_is_told() -> None:
    def factory(features: Any, labels: Any, rng: np.random.Generator) -> FromCallable:
        raise RuntimeError("no memory today")

    with pytest.raises(InvalidArgument, match=r"all of them failed.*no memory today"):
        audit(factory, runs=8, test=None)


def _of(probabilities: Any) -> Any:
    def factory(features: Any, labels: Any, rng: np.random.Generator) -> FromCallable:
        return FromCallable(lambda x, samples, rng: np.tile(probabilities, (samples, 1)))

    return factory


def _other_classes(features: Any, labels: Any, rng: np.random.Generator) -> FromCallable:
    classes = 3 if len(labels) > 21 else 4
    return FromCallable(lambda x, samples, rng: np.full((samples, classes), 1 / classes))


@pytest.mark.parametrize(
    ("factory", "changed", "told"),
    [
        (None, {"record": Record(np.ones(1), label=0)}, "record of shape"),
        (None, {"record": 21}, "row below 21"),
        (None, {"runs": 7}, "runs"),
        (None, {"samples": 0}, "samples"),
        (None, {"delta": 0.0}, "delta"),
        (None, {"forms": ()}, "forms of publishing"),
        (None, {"forms": (ReleaseForm("mean"), ReleaseForm("mean"))}, "each once"),
        (None, {"counts": (0,)}, "counts"),
        (None, {"line": -1.0}, "line"),
        (None, {"advantage": 2.0}, "advantage"),
        (None, {"test": (np.zeros((3, 2)), [0, 1, 2])}, "test records of shape"),
        (None, {"claim": Claim(1.0, delta=1e-6)}, "claim's 1e-06"),
        (None, {"claim": Claim(1.0, delta=DELTA, adjacency="zero_out")}, "zero_out"),
        (None, {"delta": None}, "Expected delta, got none"),
        (None, {"record": "x"}, "record"),
        (None, {"forms": "mean"}, "forms as a list"),
        (None, {"forms": ("mean:much",)}, "forms: Expected a form as"),
        (None, {"swept": ("cake",)}, "swept: Expected one of"),
        (None, {"forms": (7,)}, "forms: Expected a ReleaseForm"),
        (None, {"units": (2.0,)}, "units"),
        (None, {"units": (0.0,)}, "units"),
        (None, {"at_once": 0}, "at_once"),
        (None, {"test": 7}, r"test=\(features, labels\)"),
        ("not a factory", {}, "EnsembleDPSGD, got str"),
        (nn.Linear(2, 2), {}, "got the module itself"),
        (lambda x, y, rng: None, {}, "predict"),
        (_of([0.5, 0.5]), {}, "3 classes"),
        (_of([3.0, 1.0, 2.0]), {}, "softmax"),
        (_other_classes, {}, "same classes"),
    ],
)
def test_wrong_calls_are_told(factory: Any, changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        audit(factory, **{"runs": 8, "test": None, **changed})


@pytest.mark.parametrize(
    "module",
    [nn.Linear(FEATURES, CLASSES), nn.Sequential(nn.Dropout(0.0), nn.Linear(FEATURES, CLASSES))],
)
def test_a_module_without_dropout_is_refused(module: nn.Module) -> None:
    with pytest.raises(InvalidArgument, match="no uncertainty to audit"):
        audit(training(module=module), runs=8)


def test_nothing_can_be_said_before_all_runs_are_there() -> None:
    with pytest.raises(InvalidArgument, match="Expected no until with Posterior"):
        em.audit(subject(runs=8), 1.0, delta=DELTA, until=em.UntilRefuted())


def test_a_row_of_the_data_may_be_the_record() -> None:
    job = posterior.make_job(
        Posterior(training(epochs=1), blobs(22), record=3, runs=8, at_once=8),
        Request(delta=DELTA),
    )
    features, labels = blobs(22)
    np.testing.assert_array_equal(job.record.features, features[3])
    np.testing.assert_array_equal(job.trainings.labels, [labels[3], *np.delete(labels, 3)])  # type: ignore[attr-defined]


def test_what_is_named_by_a_file_is_run_again_from_its_provenance() -> None:
    source = {
        "type": "DropoutOnRecords",
        "file": "digits",
        "records": 60,
        "test": 20,
        "model": "dropout_mlp",
        "hidden": 8,
        "batch_size": 20,
        "record": "mislabelled",
    }
    settings = {"source": source, "runs": 8, "samples": 3, "forms": ["mean:0.01"], "swept": []}
    first = em.audit(from_settings(Posterior, settings), 3.195138, delta=DELTA, engine=InProcess())
    assert first.subject == "dropout_mlp on digits, mislabelled record"
    assert not first.provenance.supplied
    again = em.audit(
        from_settings(Posterior, first.provenance.settings),
        first.claim,
        seed=first.provenance.seed,
        engine=InProcess(),
    )
    assert again.to_json() == first.to_json()
