"""Audits made by hand, for tests that only need one."""

from typing import Any

from epsilometer.core.audit import Audit, Provenance
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound
from epsilometer.core.claim import Claim
from epsilometer.core.findings import (
    AccuracyFinding,
    AttackSummary,
    Check,
    ConformanceFinding,
    Curve,
    EpsilonFinding,
    Evidence,
    Finding,
    FormDifference,
    FormFinding,
    FormPlan,
    GroupRisk,
    LeaveOneOut,
    MembershipFinding,
    MemorisationFinding,
    PosteriorRuns,
    PredictionChange,
    RecordRisk,
    RemedyFinding,
    RemovalPlan,
    RoundingStep,
    RuleFinding,
    SamplerFinding,
    SamplerNoise,
    SweepPoint,
    TheoryEpsilon,
    ThreatFinding,
    Variation,
)

INF = float("inf")


def a_bound(**changed: Any) -> EpsilonLowerBound:
    plain: dict[str, Any] = {
        "epsilon": 2.0,
        "delta": 1e-5,
        "confidence": 0.95,
        "method": "clopper_pearson",
        "threshold_rule": "RankGrid(ratio=4)",
        "valid": True,
        "direction": "both",
        "threshold": 0.5,
        "n_in": 1234,
        "n_out": 567,
    }
    return EpsilonLowerBound(**{**plain, **changed})


def some_evidence(**changed: Any) -> Evidence:
    plain: dict[str, Any] = {
        "fpr": (0.0, 0.1, 1.0),
        "fnr": (1.0, 0.2, 0.0),
        "fpr_low": (0.0, 0.05, 0.9),
        "fpr_high": (0.1, 0.2, 1.0),
        "fnr_low": (0.9, 0.1, 0.0),
        "fnr_high": (1.0, 0.3, 0.1),
        "band_confidence": 0.95,
        "edges": (-1.0, 0.0, 1.0),
        "inside_bins": (234, 1000),
        "outside_bins": (500, 67),
        "growth": ((450, 0.5), (900, 1.0), (1801, 2.0)),
        "curves": (Curve(name="a law", fpr=(0.0, 1.0), fnr=(1.0, 0.0)),),
    }
    return Evidence(**{**plain, **changed})


def a_provenance(**changed: Any) -> Provenance:
    plain: dict[str, Any] = {
        "subject": "Scores",
        "settings": {
            "source": {"type": "ScoreFile", "path": "scores.csv"},
            "method": "clopper_pearson",
            "rule": None,
        },
        "delta": 1e-5,
        "confidence": 0.95,
        "seed": 7,
        "versions": (("epsilometer", "1.0.0"),),
        "shapes": (("inside", "1234"), ("outside", "567")),
    }
    return Provenance(**{**plain, **changed})


def a_view(**changed: Any) -> EpsilonFinding:
    plain: dict[str, Any] = {
        "subject": "scores.csv",
        "bound": a_bound(),
        "attack": AttackSummary(auc=0.875, tpr_at_fpr=((0.01, 0.5),), n_in=1234, n_out=567),
        "evidence": some_evidence(),
        "reach": 5.0,
        "power": 2.5,
    }
    return EpsilonFinding(**{**plain, **changed})


def a_check(name: str = "noise scale", **changed: Any) -> Check:
    plain: dict[str, Any] = {
        "outcome": "conforms",
        "expected": "noise of the accounted scale",
        "seen": "noise of 1.003 of it",
        "value": 1.003,
        "low": 0.99,
        "high": 1.02,
        "log_e": -1.5,
        "detail": "over all coordinates",
        "steps": 64,
    }
    return Check(name=name, **{**plain, **changed})


def a_conformance(*checks: Check, **changed: Any) -> ConformanceFinding:
    plain: dict[str, Any] = {"checks": checks or (a_check(),), "steps": 64, "level": 1e-3}
    return ConformanceFinding(**{**plain, **changed})


def a_violation(**changed: Any) -> ConformanceFinding:
    half = a_check(outcome="violated", seen="noise of 0.5 of it", value=0.5, log_e=INF, steps=2)
    untested = a_check("clipping", outcome="not tested", seen="no canary", value=None, log_e=None)
    return a_conformance(untested, half, **changed)


def a_claim(epsilon: float = 1.0, **changed: Any) -> Claim:
    return Claim(**{"epsilon": epsilon, "delta": 1e-5, **changed})


def an_audit(
    *,
    subject: str = "scores.csv",
    claim: Claim | None = Claim(1.0, delta=1e-5),  # noqa: B008 - it is frozen
    provenance: Provenance | None = None,
    more: tuple[Finding, ...] = (),
    advice: tuple[str, ...] = (),
    caveats: tuple[str, ...] = (),
    cites: tuple[str, ...] = (),
    **view: Any,
) -> Audit:
    """An audit of one view, whose fields are given with those of the audit; refuted by itself."""
    source = a_provenance() if provenance is None else provenance
    own: dict[str, Any] = {
        "subject": subject,
        "units": source.units,
        "used": source.used,
        "failed": source.failed,
        "power": None if claim is None else 2.5,
        **view,
    }
    return Audit(
        subject=subject,
        claim=claim,
        findings=(a_view(**own), *more),
        advice=advice,
        caveats=caveats,
        cites=cites,
        provenance=source,
    )


def several_views(*views: EpsilonFinding, **changed: Any) -> Audit:
    plain: dict[str, Any] = {
        "subject": "several views",
        "claim": a_claim(),
        "provenance": a_provenance(),
    }
    return Audit(**{**plain, "findings": views, **changed})


def an_estimate(epsilon: float, **changed: Any) -> EpsilonEstimate:
    plain: dict[str, Any] = {
        "epsilon": epsilon,
        "low": epsilon / 2,
        "high": 2 * epsilon,
        "delta": 1e-5,
        "confidence": 0.95,
        "method": "two normal distributions",
        "direction": "both",
        "subject": "a run",
    }
    return EpsilonEstimate(**{**plain, **changed})


def computed(low: float, high: float | None = None, **changed: Any) -> EpsilonEstimate:
    """An ε without sampling."""
    most = low if high is None else high
    return an_estimate(
        low, **{"low": low, "high": most, "confidence": 1.0, "method": "exact", **changed}
    )


def a_series(often: tuple[str, ...] = ("once", "2 times", "4 times")) -> Audit:
    """Views of two adversaries, that differ in how often; some refute the claim, some do not."""
    return several_views(
        *(
            a_view(
                subject=f"training, each canary {name}, 9 rounds: {seen}",
                bound=a_bound(epsilon=1.0 + place, adversary=f"sees {seen}"),
                estimates=(an_estimate(2.0 + 3 * place), an_estimate(100.0)),
                reach=9.0,
                power=4.0,
            )
            for place, name in enumerate(often)
            for seen in ("the final model", "all rounds")
        ),
        subject="a series",
        claim=a_claim(2.5),
    )


def a_rule(**changed: Any) -> RuleFinding:
    plain: dict[str, Any] = {
        "rule": "PDTP at most 1",
        "outcome": "fail",
        "finding": "3 of 40 measured records are above 1; the largest has ∞.",
        "value": 0.075,
        "low": 0.075,
        "high": 0.075,
        "limit": 0.0,
        "confidence": 1.0,
    }
    return RuleFinding(**{**plain, **changed})


def a_record(**changed: Any) -> RecordRisk:
    plain: dict[str, Any] = {
        "rank": 1,
        "risk": 1.0,
        "measure": "PDTP, 2 decimals",
        "note": "its class has fewer than 10 records",
        "shown": 5.0,
        "unbinned": 1.0,
    }
    return RecordRisk(**{**plain, **changed})


def an_attack(attack: str = "LiRA, online", **changed: Any) -> MembershipFinding:
    plain: dict[str, Any] = {
        "attack": attack,
        "auc": 0.6,
        "advantage": 0.2,
        "advantage_low": 0.1,
        "advantage_high": 0.3,
        "tpr": 0.05,
        "tpr_low": 0.01,
        "tpr_high": 0.1,
        "fpr": 0.01,
        "confidence": 0.99,
        "n_in": 500,
        "n_out": 500,
        "roc_fpr": (0.0, 0.01, 0.5, 1.0),
        "roc_tpr": (0.0, 0.05, 0.7, 1.0),
        "bound": a_bound(),
        "caveats": ("mind the gap",),
    }
    return MembershipFinding(**{**plain, **changed})


RULES = (a_rule(), a_rule(rule="attacks", outcome="unclear", confidence=0.99))
LEFT_OUT = LeaveOneOut(
    path="refits",
    measured=40,
    of=50,
    decimals=2,
    limit=1.0,
    exposed=3,
    hidden=2,
    edge_only=1,
    infinite=1,
    median=0.01,
    largest=INF,
    median_floor=0.02,
    largest_floor=0.5,
    separation=0.25,
    coverage="at most a tenth",
    edges=(1e-5, 1e-3, 0.1, 10.0),
    bins=(20, 15, 5),
    floor_bins=(25, 14, 1),
)
RELEASE_FINDINGS: tuple[Finding, ...] = (
    LEFT_OUT,
    *(an_attack(name) for name in ("LiRA, online", "loss threshold")),
    *(
        GroupRisk(
            column=column,
            name=name,
            records=20,
            exposed=0.1,
            median=0.02,
            auc=0.6,
            auc_low=0.5,
            auc_high=0.7,
        )
        for column in ("class", "sex", "age")
        for name in ("a", "b")
    ),
    *(
        a_record(
            rank=i + 1,
            risk=INF if i == 0 else 1 / i,
            unbinned=INF if i == 0 else 1 / i,
            floor=0.1,
            edge_only=i == 3,
            scores=(("LiRA, online", 0.5),),
        )
        for i in range(30)
    ),
    *(
        RemedyFinding(
            action=action,
            caught=caught,
            advantage=2 * caught,
            accuracy=0.9,
            exposed=None if caught < 0.1 else 3,
            in_file=None,
            outcome="pass" if caught < 0.1 else "fail",
            helps=caught < 0.1,
        )
        for action, caught in (("", 0.4), ("Publish class labels only.", 0.02))
    ),
    RemovalPlan(
        removed=(0, 1, 2, 3),
        largest=(INF, 3.0, 1.5, 2.0),
        exposed=(3, 2, 1, 2),
        accuracy=(0.9, 0.9, 0.9, 0.8),
        ranks=(1, 2, 4),
        best=2,
        ended="Dropping 2 brings 3 exposed records down to 1.",
    ),
    *(
        RoundingStep(decimals=d, exposed=e, largest=2.0, accuracy=0.9, advantage=0.1)
        for d, e in ((None, 5), (2, 3), (1, 1), (-1, 0))
    ),
    Variation(cause="initialisation", models=4, deciles=tuple(i / 100 for i in range(11))),
    AccuracyFinding(accuracy=0.9),
)


def a_release(
    *,
    rules: tuple[RuleFinding, ...] = RULES,
    findings: tuple[Finding, ...] = RELEASE_FINDINGS,
    **changed: Any,
) -> Audit:
    """An audit of a classifier, with a finding of every kind that it may have."""
    plain: dict[str, Any] = {
        "subject": "naive-bayes on people.csv",
        "claim": None,
        "advice": ("Look at the records.",),
        "caveats": ("Words are known.",),
        "cites": ("long2017",),
        "provenance": a_provenance(subject="Classifier", delta=None),
    }
    return Audit(**{**plain, "findings": (*rules, *findings), **changed})


def a_regression() -> Audit:
    """An audit of a regressor, with a finding of every kind that a classifier has not."""
    change = PredictionChange(
        path="exact: least squares",
        measured=100,
        of=120,
        unit="multiples of 1000",
        limit=1.0,
        exposed=3,
        median=0.25,
        largest=2.5,
        median_floor=None,
        largest_floor=None,
        coverage="Of the rest nothing is known.",
        skill=0.5,
    )
    threat = ThreatFinding(
        threat="attribute",
        column="age",
        value=0.125,
        low=0.0625,
        high=0.25,
        inside=0.75,
        outside=0.625,
        baseline=0.5,
        confidence=0.95,
        note="The model tells more of those inside.",
    )
    return a_release(
        subject="linear on people.csv",
        findings=(change, threat),
        provenance=a_provenance(subject="Regressor", delta=None),
    )


def a_language_model() -> Audit:
    """An audit of a language model: a bound, and what it memorised."""
    memorised = MemorisationFinding(
        canaries="random strings",
        planted=500,
        held_out=500,
        exact=0.25,
        exact_low=0.125,
        exact_high=0.375,
        near=0.5,
        near_low=0.375,
        near_high=0.625,
        near_held_out=0.0,
        similarity=0.75,
        exposure=4.0,
        exposure_low=3.0,
        exposure_high=5.0,
        most_exposure=9.0,
        confidence=0.95,
    )
    return an_audit(subject="a language model", claim=a_claim(3.0), power=4.0, more=(memorised,))


def a_form(form: str = "mean+std, to 0.01", **changed: Any) -> FormFinding:
    kind, _, unit = form.partition(", to ")
    bounds = (
        a_bound(epsilon=0.5),
        a_bound(epsilon=0.25),
        a_bound(epsilon=2.5, valid=False, caveats=("unpaid",)),
        a_bound(epsilon=1.5, valid=False, caveats=("unpaid",)),
    )
    plain: dict[str, Any] = {
        "form": form,
        "shows": kind,
        "unit": float(unit) if unit else None,
        "samples": 50,
        "view": a_view(subject=f"a model, {form}", also=bounds),
        "raw": 2.5,
        "advantage": 0.4,
        "advantage_low": 0.1,
        "advantage_high": 0.7,
        "accuracy": 0.9,
        "ties": 0.01,
        "calibration_error": 0.05,
        "log_loss": 0.3,
        "standing": "above",
    }
    return FormFinding(**{**plain, **changed})


FORMS = (
    a_form("samples"),
    a_form(),
    a_form("label", accuracy=0.8, log_loss=5.0, advantage=0.0, standing="below"),
)
SWEEPS = tuple(
    SweepPoint(
        swept=swept,  # type: ignore[arg-type]
        shows="mean+std",
        unit=unit,
        samples=samples,
        epsilon=0.5,
        raw=2.0,
        advantage=0.3,
        accuracy=0.9,
        ties=0.1,
    )
    for swept, unit, samples in (
        ("samples", None, 1),
        ("samples", None, 50),
        ("unit", None, 50),
        ("unit", 0.1, 50),
    )
)
DIFFERENCES = (
    FormDifference(
        first="samples", second="label", difference=0.4, low=0.2, high=0.6, confidence=0.95
    ),
)
THEORY = (TheoryEpsilon(method="RDP", epsilon=25.63, note="by Poisson sampling"),)


def posterior_runs(**changed: Any) -> PosteriorRuns:
    plain: dict[str, Any] = {
        "delta": 1e-5,
        "samples": 50,
        "runs": 100,
        "diverged_inside": 1,
        "diverged_outside": 2,
        "tested": 1000,
    }
    return PosteriorRuns(**{**plain, **changed})


def a_plan(forms: tuple[FormFinding, ...] = FORMS, **changed: Any) -> FormPlan:
    names = tuple(form.form for form in forms)
    plain: dict[str, Any] = {
        "epsilon": 1.0,
        "advantage": 0.46,
        "forms": names,
        "chosen": "label" if "label" in names else None,
        "pareto": ("label",),
        "advice": ("Publish the label alone.",),
    }
    return FormPlan(**{**plain, **changed})


def a_posterior(
    *,
    forms: tuple[FormFinding, ...] = FORMS,
    plan: FormPlan | None = None,
    runs: PosteriorRuns | None = None,
    sweeps: tuple[SweepPoint, ...] = SWEEPS,
    differences: tuple[FormDifference, ...] = DIFFERENCES,
    theory: tuple[TheoryEpsilon, ...] = THEORY,
    **changed: Any,
) -> Audit:
    """An audit of published predictions, with a finding of every kind that it may have."""
    plain: dict[str, Any] = {
        "subject": "a network with dropout",
        "claim": a_claim(),
        "caveats": ("Mind the gap.",),
        "cites": ("gal2016", "shibahara2021"),
        "provenance": a_provenance(subject="Posterior"),
    }
    findings = (
        posterior_runs() if runs is None else runs,
        a_plan(forms) if plan is None else plan,
        *forms,
        *differences,
        *sweeps,
        *theory,
    )
    return Audit(**{**plain, "findings": findings, **changed})


def a_shuffling(claim: Claim | None = Claim(3.0, delta=1e-5), **view: Any) -> Audit:  # noqa: B008
    """An audit of shuffled DP-SGD: ε was computed, from below and from above."""
    sampler = SamplerFinding(
        sampler="shuffle",
        accounted_epsilon=3.0,
        needed_noise=None if claim is None else 1.25,
        sufficient_noise=None if claim is None else 1.5,
        remedies=() if claim is None else (SamplerNoise(sampler="BallsInBins", noise=0.75),),
        balls_in_bins=computed(3.5),
        published=2.75,
    )
    estimates = (
        computed(4.0625, 4.0625),
        computed(6.0, 6.5, role="upper", method="composition"),
        computed(3.0, role="reference", method="PLD of Poisson sampling"),
    )
    return an_audit(
        subject="DP-SGD, shuffled",
        claim=claim,
        provenance=a_provenance(
            subject="ShuffledSGD", settings={"noise_multiplier": 1.0, "steps": 100}, shapes=()
        ),
        **{"estimates": estimates, "more": (sampler,), **view},
    )


# By name: an audit of every kind, with every verdict that an audit can reach today.
AUDITS: dict[str, Audit] = {
    "refuted": an_audit(),
    "not refuted": an_audit(claim=a_claim(3.0), power=4.0),
    "beyond reach": an_audit(claim=a_claim(9.0), power=INF),
    "not valid": an_audit(bound=a_bound(valid=False, caveats=("unpaid",))),
    "no claim": an_audit(claim=None),
    "supplied": an_audit(
        provenance=a_provenance(settings={"inside": {"supplied": "ndarray"}, "runs": 3})
    ),
    "series": a_series(),
    "computed": a_shuffling(),
    "proved": a_shuffling(a_claim(8.0)),
    "do not release": a_release(),
    "release": a_release(rules=(a_rule(outcome="pass"),)),
    "cannot tell": a_release(rules=(a_rule(outcome="unclear"),)),
    "regressor": a_regression(),
    "language model": a_language_model(),
    "posterior": a_posterior(),
    "posterior without a claim": a_posterior(claim=None),
    "violated": an_audit(claim=a_claim(3.0), more=(a_violation(),)),
    "conforms": an_audit(claim=a_claim(9.0), power=INF, more=(a_conformance(),)),
    "conformance alone": Audit(
        subject="a step", claim=None, findings=(a_conformance(),), provenance=a_provenance()
    ),
    "violation alone": Audit(
        subject="a step", claim=None, findings=(a_violation(),), provenance=a_provenance()
    ),
}
EVERY_KIND = tuple(AUDITS.values())
