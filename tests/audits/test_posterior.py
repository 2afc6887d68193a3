"""Audits of predictions with uncertainty: leaks are found, the null is spared, every form holds."""

import inspect
import typing
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

from epsilometer import (
    InProcess,
    Local,
    PosteriorAudit,
    PrivacyClaim,
    ReleaseForm,
    Scores,
    audit_posterior,
    to_json,
)
from epsilometer.attacks import learned
from epsilometer.attacks.disclosure import Kind
from epsilometer.attacks.posterior import DeepEnsemble, FromCallable, McDropout
from epsilometer.audits import posterior_finding
from epsilometer.audits.form_plan import derives
from epsilometer.audits.posterior import Knobs, posterior_job
from epsilometer.audits.posterior_runs import Collected, Shown, World
from epsilometer.canaries.data import Record
from epsilometer.engine.events import Event
from epsilometer.engine.run import run
from epsilometer.errors import EpsilometerError, InvalidArgument
from epsilometer.mechanisms.samplers import Poisson
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.thresholds import HoldOut
from epsilometer.training.ensemble import EnsembleDPSGD, cross_entropy
from epsilometer.training.models import dropout_mlp
from tests.calibration import posterior as calibration

pytestmark = pytest.mark.usefixtures("coarse")
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


def audit(factory: Any = None, **changed: Any) -> PosteriorAudit:
    how: dict[str, Any] = {
        "record": odd(),
        "runs": 40,
        "samples": 8,
        "delta": DELTA,
        "test": blobs(30, seed=1),
        "engine": InProcess(),
        "forms": FEW,
        "swept": (),
    }
    return audit_posterior(
        training() if factory is None else factory, blobs(21), **{**how, **changed}
    )


def by_form(result: PosteriorAudit, name: str) -> Any:
    (found,) = [form for form in result.forms if form.form == name]
    return found


# Verdicts on real training


def test_a_leak_is_found_and_the_plan_keeps_away_from_it() -> None:
    result = audit(runs=100, at_once=50, claim=0.5, forms=None)
    assert result.verdict == "refuted"
    mean = by_form(result, "mean")
    assert mean.epsilon > 0.5
    assert mean.standing == by_form(result, "samples").standing == "above"
    assert mean.advantage_low > 0.245  # what ε = 0.5 allows
    assert result.plan.chosen in (None, "label", "vector")
    assert mean.raw > mean.epsilon
    assert [bound.valid for bound in mean.audit.also] == [True, False]
    assert [b.valid for b in by_form(result, "mean+std").audit.also] == [True, True, False, False]
    assert by_form(result, "mean").accuracy > 0.9


def test_training_under_heavy_noise_is_spared() -> None:
    result = audit(
        training(noise_multiplier=8.0, clip_norm=1.0, epochs=2), runs=40, at_once=40, claim=0.5
    )
    assert result.verdict == "not refuted"
    assert {said.method for said in result.theory} == {"RDP", "PLD"}
    rdp, pld = (said.epsilon for said in result.theory)
    assert 0 < pld < rdp
    assert "Poisson sampling at rate 0.36" in result.theory[0].note


def test_an_accountant_of_other_batches_says_so() -> None:
    from epsilometer.mechanisms.samplers import Shuffle

    shuffled = training(noise_multiplier=8.0, clip_norm=1.0, epochs=1, sampler=Shuffle())
    result = audit(shuffled, runs=8, at_once=8)
    assert "as if" in result.theory[0].note
    assert not audit(training(epochs=1), runs=8, at_once=8).theory  # plain SGD promises nothing


class Forgets:
    """Trains for real on all records but the last where they are more than 21: the null."""

    def __call__(self, features: Any, labels: Any, rng: np.random.Generator) -> McDropout:
        trained = training(epochs=1, batch_size=21).train(features[:21], labels[:21], rng=rng)
        return McDropout(trained.models.model(0))


def test_training_that_ignores_the_record_is_spared() -> None:
    result = audit(Forgets(), runs=30, claim=0.01, test=None)
    assert result.verdict == "not refuted"
    assert result.tested == 0
    assert result.forms[0].accuracy is None
    assert any("nothing is known of utility" in caveat for caveat in result.caveats)


def test_ensembles_are_audited_by_the_same_protocol(rng: np.random.Generator) -> None:
    def factory(features: Any, labels: Any, rng: np.random.Generator) -> DeepEnsemble:
        how = training(runs=3, epochs=2)
        trained = how.train(features, labels, rng=rng)
        return DeepEnsemble([trained.models.model(i) for i in range(3)])

    result = audit(factory, runs=8, samples=3, test=blobs(3, seed=1))
    assert "vector" not in [form.form for form in result.forms]  # members have none together
    assert any("no form 'vector'" in caveat for caveat in result.caveats)
    assert result.tested == 3 * 8


# The same bytes


def test_engines_and_resumed_runs_give_the_same_bytes(tmp_path: Path) -> None:
    how: dict[str, Any] = {"runs": 12, "at_once": 4, "engine": InProcess()}
    whole = to_json(audit(**how))
    assert to_json(audit(**{**how, "engine": Local(count=2)})) == whole

    class Enough(Exception):
        pass

    def stop(event: Event) -> None:
        if event.name == "progress":
            raise Enough

    directory = tmp_path / "run"
    with pytest.raises(Enough):
        audit(**how, directory=directory, listen=[stop])
    assert not (directory / "result.json").exists()
    assert to_json(audit(**how, directory=directory)) == whole


def test_another_question_is_another_run(tmp_path: Path) -> None:
    how: dict[str, Any] = {"runs": 8, "at_once": 8, "directory": tmp_path / "run"}
    audit(training(epochs=1), **how)
    with pytest.raises(EpsilometerError):
        audit(training(epochs=1), **how, samples=9)


# Forms, sweeps, differences, the plan


@pytest.fixture(scope="module")
def leaky() -> PosteriorAudit:
    swept = (ReleaseForm("samples"), ReleaseForm("mean+std"), ReleaseForm("mean"))
    forms = (*swept, ReleaseForm("label"))
    return audit(runs=16, at_once=16, forms=forms, swept=swept, counts=(1, 2, 8), units=(0.01, 0.5))


def test_sweeps_end_where_forms_are(leaky: PosteriorAudit) -> None:
    for name in ("samples", "mean+std", "mean"):
        form = by_form(leaky, name)
        ends = [
            point
            for point in leaky.sweeps
            if point.shows == name and point.unit is None and point.samples == 8
        ]
        assert [point.swept for point in ends] == ["samples", "unit"]
        for point in ends:
            assert (point.raw, point.advantage) == (form.raw, form.advantage)
            assert (point.accuracy, point.ties) == (form.accuracy, form.ties)
    assert {point.samples for point in leaky.sweeps} == {1, 2, 8}
    assert {point.unit for point in leaky.sweeps} == {None, 0.01, 0.5}


def test_rounding_coarsely_costs_labels(leaky: PosteriorAudit) -> None:
    of = {
        point.unit: point
        for point in leaky.sweeps
        if point.swept == "unit" and point.shows == "mean"
    }
    assert of[0.5].ties > of[0.01].ties >= of[None].ties
    assert of[0.5].accuracy < of[None].accuracy


def test_all_pairs_of_forms_are_compared_on_the_same_runs(leaky: PosteriorAudit) -> None:
    forms = {form.form: form.advantage for form in leaky.forms}
    assert len(leaky.differences) == len(forms) * (len(forms) - 1) / 2
    for gap in leaky.differences:
        assert gap.difference == pytest.approx(forms[gap.first] - forms[gap.second])
        assert gap.low <= gap.difference <= gap.high


def test_one_sample_has_no_spread_and_says_so() -> None:
    result = audit(training(epochs=1), runs=8, at_once=8, samples=1, forms=None, swept=FEW[:1])
    for name in ("samples", "quantiles", "mean+std"):
        assert any("no spread" in said for said in by_form(result, name).audit.bound.caveats)
    assert not any("no spread" in said for said in by_form(result, "mean").audit.bound.caveats)
    assert sum("no spread" in said for said in result.caveats) == 4  # rounded and not
    assert not [point for point in result.sweeps if point.swept == "samples"]


UNITS = (None, 0.5, 0.25)
WHOLE = tuple(ReleaseForm(kind) for kind in ("samples", "mean+std", "mean", "label"))


EVERY = [ReleaseForm(kind, unit) for kind in KINDS for unit in UNITS]


@pytest.mark.parametrize(
    ("fine", "coarse"), [pair for pair in product(EVERY, EVERY) if derives(*pair)], ids=str
)
def test_what_is_said_to_derive_does(
    fine: ReleaseForm, coarse: ReleaseForm, rng: np.random.Generator
) -> None:
    """No two predictions look alike in a form and apart in one that is made of it."""
    samples = rng.dirichlet(np.ones(2), (3000, 2)).round(1)
    vectors = rng.dirichlet(np.ones(2), 3000).round(1)
    known: dict[bytes, bytes] = {}
    shown = zip(fine.published(samples, vectors), coarse.published(samples, vectors), strict=True)
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
    order = ("above", "cannot tell", "below")
    for fine, coarse in [("samples", "mean"), ("mean+std", "mean"), ("mean", "label")]:
        stands = [order.index(by_form(result, name).standing) for name in (fine, coarse)]
        assert stands[0] <= stands[1]
    assert by_form(result, "samples").standing == "above"


def _spread(p: float, rng: np.random.Generator) -> np.ndarray:
    moved = float(np.clip(p + rng.normal(0, 0.05), 0.01, 0.99))
    return np.array([(1 - moved) / 2, moved, (1 - moved) / 2])


def test_an_attack_that_is_worse_than_guessing_is_no_sign_of_safety() -> None:
    right, wrong = np.ones(40), -np.ones(40)
    unlucky = posterior_finding._advantage(Scores(inside=wrong, outside=right), 0.95)
    assert unlucky.value == -1
    assert unlucky.high == 1


def test_the_finest_form_below_the_line_is_chosen() -> None:
    def factory(features: Any, labels: Any, rng: np.random.Generator) -> FromCallable:
        p = float(rng.uniform(0.3, 0.6))
        return FromCallable(lambda x, samples, rng: np.tile(_spread(p, rng), (samples, 1)))

    result = audit(factory, runs=300, test=None, line=1.0)
    assert result.plan.chosen == "mean+std"
    few = audit(factory, runs=20, test=None, line=1.0)
    assert few.plan.chosen is None
    assert "runs of either world might" in few.plan.advice[-1]


# The valid bound under a known null, and the mistake it does not make


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("mean+std", "quantiles")]


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
        return learned.learned_scores(*twice, rng=_Unmoved(order), fraction=fraction)  # type: ignore[arg-type]

    monkeypatch.setattr(posterior_finding, "learned_scores", unfair)
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
        job = posterior_job(
            _null,
            blobs(21),
            record=odd(),
            runs=24,
            samples=4,
            delta=DELTA,
            forms=WHOLE[1:],
            swept=(),
            seed=seed,
        )
        wrong += any(each.bound.epsilon > 0 for each in run(job, engine=InProcess()).audits)  # type: ignore[union-attr]
    assert scipy.stats.binomtest(wrong, audits, 0.05, "greater").pvalue > FLAKE


def _null(features: Any, labels: Any, rng: np.random.Generator) -> FromCallable:
    weights = rng.gamma(2.0, 1.0, CLASSES)
    return FromCallable(lambda x, samples, rng: rng.dirichlet(weights + 0.5, samples))


def test_runs_that_are_lost_only_weaken_what_is_proved(rng: np.random.Generator) -> None:
    def world(mean: float, lost: int) -> World:
        p = np.clip(rng.normal(mean, 0.05, (40, 4)), 0.01, 0.99)
        samples = np.stack([1 - p, p], axis=-1).astype(np.float32)
        return World(samples=samples, vector=None, lost=lost)

    for lost in (0, 1, 5, 20):
        inside, outside = world(0.7, lost), world(0.3, lost)
        seen = Collected(inside=inside, outside=outside, utility=None, tested=0)
        attack = posterior_finding._Attack(collected=seen, label=1, delta=DELTA, seed=0)
        shown = Shown(ReleaseForm("mean"), 4)
        scores = attack.scores(shown)
        assert (scores.inside == -np.inf).sum() == (scores.outside == np.inf).sum() == lost
        found = epsilon_lower_bound(scores, delta=DELTA).epsilon
        joint, *_ = attack.joint(shown, HoldOut(0.5), 0.95)
        if lost == 0:
            whole = found, joint.epsilon
            assert min(whole) > 0.5
        else:
            assert (found, joint.epsilon) < whole


# What diverges, fails, or is wrong


def test_runs_that_diverge_count_and_are_told() -> None:
    result = audit(training(learning_rate=1e30), runs=8, at_once=8, claim=0.1)
    assert result.diverged_inside == result.diverged_outside == 8
    assert result.verdict == "not refuted"
    assert all(form.epsilon == 0 for form in result.forms)
    assert result.plan.chosen is None  # what was lost might have leaked
    assert {form.standing for form in result.forms} == {"cannot tell"}
    assert any("Diverged or failed: 8 of 8" in caveat for caveat in result.caveats)


@pytest.mark.parametrize("with_record", [True, False])
def test_a_record_that_makes_all_models_diverge_is_no_crash(with_record: bool) -> None:
    def factory(features: Any, labels: Any, rng: np.random.Generator) -> FromCallable:
        lost = (len(labels) > 21) == with_record
        p = np.full(CLASSES, np.nan if lost else 1 / CLASSES)
        return FromCallable(lambda x, samples, rng: np.tile(p, (samples, 1)))

    result = audit(factory, runs=10, test=None, forms=WHOLE)
    assert sorted((result.diverged_inside, result.diverged_outside)) == [0, 10]
    assert result.plan.chosen is None


def test_a_factory_whose_models_diverge_now_and_then_goes_on() -> None:
    def factory(features: Any, labels: Any, rng: np.random.Generator) -> FromCallable:
        lost = rng.random() < 0.3
        p = np.full(CLASSES, np.nan if lost else 1 / CLASSES)
        return FromCallable(lambda x, samples, rng: np.tile(p, (samples, 1)))

    result = audit(factory, runs=20, test=None)
    assert 0 < result.diverged_inside + result.diverged_outside < 40
    assert result.provenance.failed == 0


def test_runs_that_raise_are_failed_units_and_no_acquittal() -> None:
    def factory(features: Any, labels: Any, rng: np.random.Generator) -> FromCallable:
        if rng.random() < 0.2:
            raise RuntimeError("no memory today")
        return FromCallable(lambda x, samples, rng: np.full((samples, CLASSES), 1 / CLASSES))

    result = audit(factory, runs=20, test=None, claim=1.0)
    assert result.provenance.failed > 0
    assert result.verdict == "no verdict"


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
        (None, {"record": Record([1.0], label=0)}, "record of shape"),
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
        (None, {"claim": PrivacyClaim(epsilon=1.0, delta=1e-6)}, "claim's 1e-06"),
        (
            None,
            {"claim": PrivacyClaim(epsilon=1.0, delta=DELTA, adjacency="zero_out")},
            "zero_out",
        ),
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


def test_a_row_of_the_data_may_be_the_record() -> None:
    job = posterior_job(training(epochs=1), blobs(22), record=3, runs=8, delta=DELTA, at_once=8)
    features, labels = blobs(22)
    np.testing.assert_array_equal(job.record.features, features[3])
    np.testing.assert_array_equal(job.trainings.labels, [labels[3], *np.delete(labels, 3)])  # type: ignore[attr-defined]


def test_the_call_takes_what_its_job_takes() -> None:
    taken = inspect.signature(posterior_job).parameters
    assert set(typing.get_type_hints(Knobs)) == set(taken) - {"sampler_factory", "data"}
