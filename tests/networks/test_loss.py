"""Losses as scores, of real classifiers and real modules."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from epsilometer.core.record import Record
from epsilometer.errors import InvalidArgument
from epsilometer.networks.loss import negative_loss

FEATURES = np.array([[0.0, 10.0], [1.0, 30.0], [0.5, 20.0]])


def net(seed: int, classes: int = 3) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(2, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, classes)
    )


def test_the_score_of_a_classifier_is_the_log_of_its_probability() -> None:
    model = LogisticRegression().fit(FEATURES, [3, 7, 7])
    expected = np.log(model.predict_proba(FEATURES[:1])[0, 1])
    assert negative_loss(model, Record(FEATURES[0], 7)) == pytest.approx(expected)
    assert negative_loss(model, Record(FEATURES[0], 5)) == -np.inf  # a class it never saw


def test_the_score_of_a_module_is_its_cross_entropy() -> None:
    module = net(0).double()
    record = Record(FEATURES[0], 2)
    with torch.no_grad():
        logits = module.eval()(torch.tensor(FEATURES[:1]))
        expected = -torch.nn.functional.cross_entropy(logits, torch.tensor([2])).item()
    module.train()
    assert negative_loss(module, record) == pytest.approx(expected)
    assert module.training


class Odd:
    def __init__(self, returned: Any) -> None:
        self.returned = returned

    def predict_proba(self, features: np.ndarray) -> Any:
        return self.returned


def test_a_model_that_diverged_scores_nan_and_one_that_is_sure_infinity() -> None:
    record = Record([0.0, 1.0], 1)
    assert np.isnan(negative_loss(Odd([[np.nan, np.nan]]), record))
    assert negative_loss(Odd([[1.0, 0.0]]), record) == -np.inf
    module = net(0)
    with torch.no_grad():
        module[0].weight.fill_(np.nan)
    assert np.isnan(negative_loss(module, record))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Odd([0.5, 0.5]), "1 rows of probabilities, got shape"),
        (object(), "predict_proba, or a torch module"),
        (3.0, "predict_proba, or a torch module"),
        (net(0, classes=1), "labels from 0 to 0"),
        (torch.nn.Flatten(0), "logits of shape"),
    ],
)
def test_models_without_a_loss_are_told(model: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        negative_loss(model, Record([0.0, 1.0], 1))
