"""Results made by hand, for tests that only need one."""

from typing import Any

from epsilometer import AttackSummary, AuditGroup, AuditResult, EpsilonLowerBound, PrivacyClaim
from epsilometer.posterior import (
    FormDifference,
    FormFinding,
    FormPlan,
    PosteriorAudit,
    SweepPoint,
    TheoryEpsilon,
)
from epsilometer.release import (
    AttackFinding,
    ExposedRecord,
    GroupRisk,
    Leaving,
    Reason,
    ReleaseAudit,
    RemovalPlan,
    RoundingStep,
    Variation,
)
from epsilometer.results import Curve, EpsilonEstimate, Evidence, Provenance


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
        "command": "epsilometer estimate scores.csv --delta 1e-05",
        "versions": (("epsilometer", "0.1.0"),),
        "inputs": (("scores.csv", "ab" * 32),),
    }
    return Provenance(**{**plain, **changed})


def an_audit(**changed: Any) -> AuditResult:
    plain: dict[str, Any] = {
        "subject": "scores.csv",
        "claim": PrivacyClaim(epsilon=1.0, delta=1e-5),
        "bound": a_bound(),
        "attack": AttackSummary(auc=0.875, tpr_at_fpr=((0.01, 0.5),), n_in=1234, n_out=567),
        "evidence": some_evidence(),
        "provenance": a_provenance(),
    }
    return AuditResult(**{**plain, **changed})


def an_estimate(epsilon: float, **changed: Any) -> EpsilonEstimate:
    plain: dict[str, Any] = {
        "epsilon": epsilon,
        "low": epsilon / 2,
        "high": 2 * epsilon,
        "delta": 1e-5,
        "confidence": 0.95,
        "method": "two normal laws",
        "direction": "both",
        "subject": "a run",
    }
    return EpsilonEstimate(**{**plain, **changed})


def a_series(often: tuple[str, ...] = ("once", "2 times", "4 times")) -> AuditGroup:
    """Audits of two adversaries, that differ in how often."""
    return AuditGroup(
        subject="a series",
        results=tuple(
            an_audit(
                subject=f"training, each canary {name}, 9 rounds: {seen}",
                bound=a_bound(epsilon=1.0 + place, adversary=f"sees {seen}"),
                estimates=(an_estimate(2.0 + 3 * place), an_estimate(100.0)),
                claim=PrivacyClaim(epsilon=5.0 + place, delta=1e-5),
            )
            for place, name in enumerate(often)
            for seen in ("the final model", "all rounds")
        ),
    )


def a_reason(**changed: Any) -> Reason:
    plain: dict[str, Any] = {
        "rule": "PDTP at most 1",
        "decision": "do not release",
        "finding": "3 of 40 measured records are above 1; the largest has ∞.",
        "value": 0.075,
        "low": 0.075,
        "high": 0.075,
        "limit": 0.0,
        "confidence": 1.0,
    }
    return Reason(**{**plain, **changed})


def a_release(**changed: Any) -> ReleaseAudit:
    """One with something in every field."""
    plain: dict[str, Any] = {
        "subject": "naive-bayes on people.csv",
        "reasons": (a_reason(), a_reason(rule="attacks", decision="cannot tell", confidence=0.99)),
        "confidence": 0.95,
        "leaving": Leaving(
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
            largest=float("inf"),
            median_floor=0.02,
            largest_floor=0.5,
            separation=0.25,
            coverage="at most a tenth",
            edges=(1e-5, 1e-3, 0.1, 10.0),
            bins=(20, 15, 5),
            floor_bins=(25, 14, 1),
        ),
        "attacks": tuple(
            AttackFinding(
                attack=name,
                auc=0.6,
                advantage=0.2,
                advantage_low=0.1,
                advantage_high=0.3,
                tpr=0.05,
                tpr_low=0.01,
                tpr_high=0.1,
                fpr=0.01,
                confidence=0.99,
                n_in=500,
                n_out=500,
                roc_fpr=(0.0, 0.01, 0.5, 1.0),
                roc_tpr=(0.0, 0.05, 0.7, 1.0),
                bound=a_bound(),
                caveats=("mind the gap",),
            )
            for name in ("LiRA, online", "loss threshold")
        ),
        "groups": tuple(
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
        "records": tuple(
            ExposedRecord(
                record=f"row {i}",
                risk=float("inf") if i == 0 else 1 / i,
                measure="PDTP, 2 decimals",
                group="yes",
                note="one of 3 records of its class",
                shown=5.0,
                unbinned=float("inf") if i == 0 else 1 / i,
                floor=0.1,
                edge_only=i == 3,
                scores=(("LiRA, online", 0.5),),
            )
            for i in range(30)
        ),
        "removal": RemovalPlan(
            removed=(0, 1, 2, 3),
            largest=(float("inf"), 3.0, 1.5, 2.0),
            exposed=(3, 2, 1, 2),
            accuracy=(0.9, 0.9, 0.9, 0.8),
            records=("row 0", "row 1", "row 2"),
            best=2,
            ended="Dropping 2 brings 3 exposed records down to 1.",
        ),
        "rounding": tuple(
            RoundingStep(decimals=d, exposed=e, largest=2.0, accuracy=0.9, advantage=0.1)
            for d, e in ((None, 5), (2, 3), (1, 1), (-1, 0))
        ),
        "variation": (
            Variation(cause="initialisation", models=4, deciles=tuple(i / 100 for i in range(11))),
        ),
        "accuracy": 0.9,
        "advice": ("Look at the records.",),
        "caveats": ("Words are known.",),
        "seed": 7,
        "cites": ("long2017",),
        "provenance": a_provenance(),
    }
    return ReleaseAudit(**{**plain, **changed})


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
        "audit": an_audit(subject=f"a model, {form}", also=bounds),
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


def a_posterior(**changed: Any) -> PosteriorAudit:
    """One with something in every field."""
    worthless = {"accuracy": 0.8, "log_loss": 5.0, "advantage": 0.0, "standing": "below"}
    plain: dict[str, Any] = {
        "subject": "a network with dropout",
        "claim": PrivacyClaim(epsilon=1.0, delta=1e-5),
        "delta": 1e-5,
        "confidence": 0.95,
        "samples": 50,
        "runs": 100,
        "diverged_inside": 1,
        "diverged_outside": 2,
        "tested": 1000,
        "forms": (a_form("samples"), a_form(), a_form("label", **worthless)),
        "differences": (
            FormDifference(
                first="samples",
                second="label",
                difference=0.4,
                low=0.2,
                high=0.6,
                confidence=0.95,
            ),
        ),
        "sweeps": tuple(
            SweepPoint(
                swept=swept,
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
        ),
        "plan": FormPlan(
            epsilon=1.0,
            advantage=0.46,
            chosen="label",
            pareto=("label",),
            advice=("Publish the label alone.",),
        ),
        "theory": (TheoryEpsilon(method="RDP", epsilon=25.63, note="by Poisson sampling"),),
        "caveats": ("Mind the gap.",),
        "seed": 7,
        "cites": ("gal2016", "shibahara2021"),
        "provenance": a_provenance(),
    }
    return PosteriorAudit(**{**plain, **changed})


EVERY_KIND = [
    a_bound(),
    an_estimate(1.0),
    an_audit(),
    a_series(),
    a_release(),
    a_posterior(),
]
