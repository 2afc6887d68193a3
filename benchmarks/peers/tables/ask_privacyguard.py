"""PrivacyGuard's analysis of the target's losses; a lower limit of ε above 0 is its alarm."""

from typing import Any

import numpy as np
import pandas as pd
from privacy_guard.analysis.base_analysis_input import BaseAnalysisInput
from privacy_guard.analysis.mia.analysis_node import AnalysisNode
from target import Question, answer, score


def loss(question: Question) -> dict[str, Any]:
    """Its bootstrap over the target's own-label probabilities."""
    np.random.seed(0)
    scores, member = question.own(question.target()), question.member
    given = BaseAnalysisInput(
        df_train_user=pd.DataFrame({"score": scores[member]}),
        df_test_user=pd.DataFrame({"score": scores[~member]}),
    )
    said = AnalysisNode(given, delta=1e-5, n_users_for_eval=member.size).run_analysis()
    verdict = "fail" if float(said.eps_lb) > 0 else "pass"
    return {**score(scores, member), "verdict": verdict}


if __name__ == "__main__":
    answer({"loss": loss})
