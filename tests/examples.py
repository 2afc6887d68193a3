"""Results made by hand, for tests that only need one."""

from typing import Any

from epsilometer import AttackSummary, AuditGroup, AuditResult, EpsilonLowerBound, PrivacyClaim
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
