"""epsilometer audits privacy claims about machine learning.

The public names. Each is loaded on first use, so that ``import epsilometer`` stays light.

PYTEST_DONT_REWRITE: otherwise pytest, which loads our fixture, warns if this was imported before.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "1.0.0rc1"

if TYPE_CHECKING:  # "as" marks a name as exported for type checkers of users
    from epsilometer import (
        federation as federation,
        findings as findings,
        models as models,
        optimizers as optimizers,
        rules as rules,
        samplers as samplers,
        sampling as sampling,
    )
    from epsilometer._dispatch import audit as audit
    from epsilometer.accounting.shuffle import (
        shuffle_delta as shuffle_delta,
        shuffle_epsilon as shuffle_epsilon,
        shuffle_noise as shuffle_noise,
    )
    from epsilometer.accounting.shuffle_upper import (
        shuffle_upper as shuffle_upper,
        sufficient_noise as sufficient_noise,
    )
    from epsilometer.audits.posterior.disclosure import ReleaseForm as ReleaseForm
    from epsilometer.audits.classifier.fitted.subject import FittedClassifier as FittedClassifier
    from epsilometer.audits.classifier.regression.subject import Regressor as Regressor
    from epsilometer.audits.classifier.subject import Classifier as Classifier
    from epsilometer.audits.dpsgd.subject import DPSGD as DPSGD
    from epsilometer.audits.federated.subject import Federated as Federated
    from epsilometer.audits.federated.cosine_audit import (
        Cosines as Cosines,
        GaussianMechanism as GaussianMechanism,
    )
    from epsilometer.audits.posterior.subject import Posterior as Posterior
    from epsilometer.audits.training.runs import Runs as Runs
    from epsilometer.audits.shuffling.subject import ShuffledSGD as ShuffledSGD
    from epsilometer.audits.step.subject import Step as Step
    from epsilometer.audits.text.canaries import TextCanaries as TextCanaries
    from epsilometer.audits.text.planting import (
        load_planted as load_planted,
        plant_texts as plant_texts,
    )
    from epsilometer.audits.text.causal_model import CausalModel as CausalModel
    from epsilometer.audits.text.subject import LanguageModel as LanguageModel
    from epsilometer.audits.training.subject import TrainFunction as TrainFunction
    from epsilometer.core.record import Record as Record
    from epsilometer.audits.federated.directions import (
        HadamardCanaries as HadamardCanaries,
        SphereCanaries as SphereCanaries,
    )
    from epsilometer.core.audit import Audit as Audit
    from epsilometer.core.bound import (
        EpsilonEstimate as EpsilonEstimate,
        EpsilonLowerBound as EpsilonLowerBound,
    )
    from epsilometer.core.claim import Claim as Claim
    from epsilometer.core.serialisation import json_schema as json_schema, load as load
    from epsilometer.core.stopping import UntilNarrow as UntilNarrow, UntilRefuted as UntilRefuted
    from epsilometer.engine.engines import Dask as Dask, InProcess as InProcess, Local as Local
    from epsilometer.files.history.index import History as History
    from epsilometer.audits.classifier.leave_one_out.bounds import (
        dtp_upper_bound as dtp_upper_bound,
    )
    from epsilometer.audits.classifier.leave_one_out.pdtp import (
        dtp_exact as dtp_exact,
        dtp_over as dtp_over,
        pdtp as pdtp,
    )
    from epsilometer.sampling.loaders import watch_loader as watch_loader
    from epsilometer.core.scores import ScoreCounts as ScoreCounts, Scores as Scores
    from epsilometer.files.score_files import read_scores as read_scores
    from epsilometer.files.records import read_records as read_records
    from epsilometer.report.explaining import Explanation as Explanation, explain as explain
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
    from epsilometer.stats.tradeoff import (
        TradeoffCurve as TradeoffCurve,
        dp_curve as dp_curve,
        gdp_curve as gdp_curve,
        tradeoff_curve as tradeoff_curve,
    )

_HOME = {
    "_dispatch": ("audit",),
    "core.audit": ("Audit",),
    "core.serialisation": (
        "json_schema",
        "load",
    ),
    "core.claim": ("Claim",),
    "core.bound": (
        "EpsilonEstimate",
        "EpsilonLowerBound",
    ),
    "core.stopping": (
        "UntilNarrow",
        "UntilRefuted",
    ),
    "core.scores": (
        "ScoreCounts",
        "Scores",
    ),
    "audits.shuffling.subject": ("ShuffledSGD",),
    "audits.training.subject": ("TrainFunction",),
    "audits.training.runs": ("Runs",),
    "audits.dpsgd.subject": ("DPSGD",),
    "audits.federated.subject": ("Federated",),
    "audits.federated.cosine_audit": ("Cosines", "GaussianMechanism"),
    "audits.classifier.subject": ("Classifier",),
    "audits.classifier.regression.subject": ("Regressor",),
    "audits.classifier.fitted.subject": ("FittedClassifier",),
    "audits.posterior.subject": ("Posterior",),
    "audits.step.subject": ("Step",),
    "audits.text.canaries": ("TextCanaries",),
    "audits.text.causal_model": ("CausalModel",),
    "audits.text.planting": ("load_planted", "plant_texts"),
    "audits.text.subject": ("LanguageModel",),
    "engine.engines": (
        "Dask",
        "InProcess",
        "Local",
    ),
    "accounting.shuffle": (
        "shuffle_delta",
        "shuffle_epsilon",
        "shuffle_noise",
    ),
    "accounting.shuffle_upper": (
        "shuffle_upper",
        "sufficient_noise",
    ),
    "audits.posterior.disclosure": ("ReleaseForm",),
    "core.record": ("Record",),
    "audits.federated.directions": ("HadamardCanaries", "SphereCanaries"),
    "files.history.index": ("History",),
    "audits.classifier.leave_one_out.bounds": ("dtp_upper_bound",),
    "audits.classifier.leave_one_out.pdtp": (
        "dtp_exact",
        "dtp_over",
        "pdtp",
    ),
    "sampling.loaders": ("watch_loader",),
    "files.score_files": ("read_scores",),
    "files.records": ("read_records",),
    "report.explaining": (
        "Explanation",
        "explain",
    ),
    "stats.estimators": ("epsilon_lower_bound",),
    "stats.gaussians": (
        "gaussian_delta",
        "gaussian_epsilon",
        "gaussian_sigma",
        "two_gaussians_epsilon",
    ),
    "stats.sequential": ("ConfidenceSequence",),
    "stats.sphere": (
        "cosine_cdf",
        "cosine_quantile",
    ),
    "stats.tradeoff": (
        "TradeoffCurve",
        "dp_curve",
        "gdp_curve",
        "tradeoff_curve",
    ),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}
# Namespaces of the components of subjects.
_SUBMODULES = ("federation", "findings", "models", "optimizers", "rules", "samplers", "sampling")

__all__ = ["__version__", *_MODULE, *_SUBMODULES]  # noqa: PLE0604 - a test compares it with the imports above


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"epsilometer.{name}")
    if name not in _MODULE:
        raise AttributeError(f"module 'epsilometer' has no attribute {name!r}")
    return getattr(import_module(f"epsilometer.{_MODULE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
