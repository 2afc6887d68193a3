"""epsilometer measures how private machine learning really is.

The public names. Each is loaded when it is first used, so that ``import epsilometer`` stays light.

PYTEST_DONT_REWRITE, or pytest, which loads our fixture, would warn whoever imported this before it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "1.0.0rc1"

if TYPE_CHECKING:  # "as" says that a name is for others too, to their type checkers
    from epsilometer.accounting.shuffle import (
        shuffle_delta as shuffle_delta,
        shuffle_epsilon as shuffle_epsilon,
        shuffle_noise as shuffle_noise,
    )
    from epsilometer.attacks.disclosure import ReleaseForm as ReleaseForm
    from epsilometer.audits.classifier import audit_classifier as audit_classifier
    from epsilometer.audits.dpsgd import audit_dpsgd as audit_dpsgd
    from epsilometer.audits.federated import audit_federated as audit_federated
    from epsilometer.audits.gaussian_mechanism import (
        audit_gaussian_mechanism as audit_gaussian_mechanism,
    )
    from epsilometer.audits.one_shot import audit_cosines as audit_cosines
    from epsilometer.audits.posterior import audit_posterior as audit_posterior
    from epsilometer.audits.release import (
        AdvantageAtMost as AdvantageAtMost,
        CaughtAtMost as CaughtAtMost,
        PdtpAtMost as PdtpAtMost,
    )
    from epsilometer.audits.runs import (
        UntilNarrow as UntilNarrow,
        UntilRefuted as UntilRefuted,
        audit_runs as audit_runs,
    )
    from epsilometer.audits.scores import audit_scores as audit_scores
    from epsilometer.audits.shuffling import audit_shuffling as audit_shuffling
    from epsilometer.audits.training import audit_training as audit_training
    from epsilometer.canaries.hadamard import HadamardCanaries as HadamardCanaries
    from epsilometer.canaries.sphere import SphereCanaries as SphereCanaries
    from epsilometer.claims import PrivacyClaim as PrivacyClaim
    from epsilometer.engine.engines import Dask as Dask, InProcess as InProcess, Local as Local
    from epsilometer.history.index import History as History
    from epsilometer.leave_one_out.bounds import dtp_upper_bound as dtp_upper_bound
    from epsilometer.leave_one_out.dtp import dtp_exact as dtp_exact
    from epsilometer.leave_one_out.pdtp import dtp_over as dtp_over, pdtp as pdtp
    from epsilometer.mechanisms.loaders import watch_loader as watch_loader
    from epsilometer.observations import ScoreCounts as ScoreCounts, Scores as Scores
    from epsilometer.posterior import PosteriorAudit as PosteriorAudit
    from epsilometer.readers import read_scores as read_scores
    from epsilometer.records import read_records as read_records
    from epsilometer.release import ReleaseAudit as ReleaseAudit
    from epsilometer.report.explaining import Explanation as Explanation, explain as explain
    from epsilometer.results import (
        AttackSummary as AttackSummary,
        AuditGroup as AuditGroup,
        AuditResult as AuditResult,
        EpsilonEstimate as EpsilonEstimate,
        EpsilonLowerBound as EpsilonLowerBound,
        RecordRisk as RecordRisk,
        from_json as from_json,
        json_schema as json_schema,
        to_json as to_json,
    )
    from epsilometer.stats.estimators import epsilon_lower_bound as epsilon_lower_bound
    from epsilometer.stats.gaussians import (
        gaussian_delta as gaussian_delta,
        gaussian_epsilon as gaussian_epsilon,
        gaussian_sigma as gaussian_sigma,
        two_gaussians_epsilon as two_gaussians_epsilon,
    )
    from epsilometer.stats.sequential import ConfidenceSequence as ConfidenceSequence
    from epsilometer.stats.sphere import (
        cosine_cdf as cosine_cdf,
        cosine_quantile as cosine_quantile,
    )
    from epsilometer.stats.thresholds import (
        Best as Best,
        Bonferroni as Bonferroni,
        Fixed as Fixed,
        HoldOut as HoldOut,
        RankGrid as RankGrid,
    )
    from epsilometer.stats.tradeoff import (
        TradeoffCurve as TradeoffCurve,
        dp_curve as dp_curve,
        gdp_curve as gdp_curve,
        tradeoff_curve as tradeoff_curve,
    )

_HOME = {
    "accounting.shuffle": ("shuffle_delta", "shuffle_epsilon", "shuffle_noise"),
    "attacks.disclosure": ("ReleaseForm",),
    "audits.classifier": ("audit_classifier",),
    "audits.dpsgd": ("audit_dpsgd",),
    "audits.federated": ("audit_federated",),
    "audits.gaussian_mechanism": ("audit_gaussian_mechanism",),
    "audits.one_shot": ("audit_cosines",),
    "audits.posterior": ("audit_posterior",),
    "audits.release": ("AdvantageAtMost", "CaughtAtMost", "PdtpAtMost"),
    "audits.runs": ("UntilNarrow", "UntilRefuted", "audit_runs"),
    "audits.scores": ("audit_scores",),
    "audits.shuffling": ("audit_shuffling",),
    "audits.training": ("audit_training",),
    "canaries.hadamard": ("HadamardCanaries",),
    "canaries.sphere": ("SphereCanaries",),
    "claims": ("PrivacyClaim",),
    "engine.engines": ("Dask", "InProcess", "Local"),
    "history.index": ("History",),
    "leave_one_out.bounds": ("dtp_upper_bound",),
    "leave_one_out.dtp": ("dtp_exact",),
    "leave_one_out.pdtp": ("dtp_over", "pdtp"),
    "mechanisms.loaders": ("watch_loader",),
    "observations": ("ScoreCounts", "Scores"),
    "posterior": ("PosteriorAudit",),
    "readers": ("read_scores",),
    "records": ("read_records",),
    "release": ("ReleaseAudit",),
    "report.explaining": ("Explanation", "explain"),
    "results": (
        "AttackSummary",
        "AuditGroup",
        "AuditResult",
        "EpsilonEstimate",
        "EpsilonLowerBound",
        "RecordRisk",
        "from_json",
        "json_schema",
        "to_json",
    ),
    "stats.estimators": ("epsilon_lower_bound",),
    "stats.gaussians": (
        "gaussian_delta",
        "gaussian_epsilon",
        "gaussian_sigma",
        "two_gaussians_epsilon",
    ),
    "stats.sequential": ("ConfidenceSequence",),
    "stats.sphere": ("cosine_cdf", "cosine_quantile"),
    "stats.thresholds": ("Best", "Bonferroni", "Fixed", "HoldOut", "RankGrid"),
    "stats.tradeoff": ("TradeoffCurve", "dp_curve", "gdp_curve", "tradeoff_curve"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = ["__version__", *_MODULE]  # noqa: PLE0604 - a test compares it with the imports above


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'epsilometer' has no attribute {name!r}")
    return getattr(import_module(f"epsilometer.{_MODULE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
