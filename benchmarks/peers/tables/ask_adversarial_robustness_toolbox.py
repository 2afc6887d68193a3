"""Black-box attacks of IBM's Adversarial Robustness Toolbox; it gives no verdict."""

from typing import Any

import numpy as np
from art.attacks.inference.membership_inference import MembershipInferenceBlackBox
from art.estimators.classification import SklearnClassifier
from target import Question, answer, score


def black_box(question: Question) -> dict[str, Any]:
    """It learns from half of the records who was in, and is asked about the others."""
    model = SklearnClassifier(question.target())
    attack = MembershipInferenceBlackBox(model, attack_model_type="rf")
    learn = np.arange(question.y.size) % 2 == 0
    inside, outside = learn & question.member, learn & ~question.member
    x, y = question.x, question.y
    attack.fit(x[inside], y[inside], x[outside], y[outside])
    said = attack.infer(x[~learn], y[~learn], probabilities=True).ravel()
    return {**score(said, question.member[~learn]), "verdict": ""}


if __name__ == "__main__":
    answer({"black box (rf)": black_box})
