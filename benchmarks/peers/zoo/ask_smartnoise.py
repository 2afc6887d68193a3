"""SmartNoise's stochastic evaluator: histograms of both sides, and limits for every bin."""

from typing import Any

import zoo_answers
from opendp.smartnoise.evaluation.evaluator._dp_evaluator import DPEvaluator
from opendp.smartnoise.evaluation.params._eval_params import EvaluatorParams
from opendp.smartnoise.evaluation.params._privacy_params import PrivacyParams
from opendp.smartnoise.evaluation.privacyalgorithm._base import PrivacyAlgorithm
from opendp.smartnoise.evaluation.report._report import Report
from zoo_answers import FloatArray


class _Released(PrivacyAlgorithm):
    """An algorithm whose releases were drawn before: the data set is their array."""

    def prepare(self, algorithm: Any, privacy_params: Any, eval_params: Any) -> None:
        """Take nothing: all was drawn before."""

    def release(self, dataset: Any) -> Any:
        return Report({"sum": dataset})

    def actual_release(self, dataset: Any) -> Any:
        return Report({"sum": float(dataset.mean())})


def judge(
    inside: FloatArray, outside: FloatArray, epsilon: float, delta: float
) -> tuple[bool, float]:
    found = DPEvaluator().evaluate(
        inside,
        outside,
        _Released(),
        None,
        PrivacyParams(epsilon=epsilon, delta=delta),
        EvaluatorParams(repeat_count=len(inside)),
    )
    passed = bool(found["sum"].dp_res)
    return not passed, float(passed)


if __name__ == "__main__":
    zoo_answers.answer(judge, tool="opendp-smartnoise")
