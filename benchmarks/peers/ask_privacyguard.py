"""Questions to PrivacyGuard: ``stopwatch.answer``."""

import numpy as np
import pandas as pd
import stopwatch
from privacy_guard.analysis.base_analysis_input import BaseAnalysisInput
from privacy_guard.analysis.mia.analysis_node import AnalysisNode
from stopwatch import BoolArray, FloatArray


def scores_default(scores: FloatArray, member: BoolArray) -> dict[str, float]:
    """All that one analysis says of ε: its headline, its lower limit, and Clopper–Pearson's."""
    np.random.seed(0)  # of its bootstrap
    given = BaseAnalysisInput(
        df_train_user=pd.DataFrame({"score": scores[member]}),
        df_test_user=pd.DataFrame({"score": scores[~member]}),
    )
    found = AnalysisNode(given, delta=1e-5, n_users_for_eval=member.size).run_analysis()
    return {"eps": float(found.eps), "eps_lb": float(found.eps_lb), "eps_cp": float(found.eps_cp)}


if __name__ == "__main__":
    stopwatch.answer({"scores_default": scores_default}, tool="privacyguard-platform")
