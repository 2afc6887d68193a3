import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from epsilometer.audits.classifier.sklearn_models import decision_logs
from epsilometer.errors import InvalidArgument


@pytest.mark.parametrize("classes", [2, 3])
def test_is_the_map_of_logistic_regression(classes: int) -> None:
    """Whose decision function really is log-odds."""
    features, species = load_iris(return_X_y=True)
    kept = species < classes
    model = LogisticRegression(max_iter=1000).fit(features[kept], species[kept])
    found = decision_logs(model.decision_function(features[kept]))
    np.testing.assert_allclose(np.exp(found), model.predict_proba(features[kept]), atol=1e-15)


def test_far_decisions_keep_their_digits() -> None:
    np.testing.assert_allclose(decision_logs([800.0])[0], [-800.0, -0.0])


@pytest.mark.parametrize("decision", [np.zeros((3, 1)), np.zeros((2, 2, 2))])
def test_other_shapes(decision: object) -> None:
    with pytest.raises(InvalidArgument, match="decision function of shape"):
        decision_logs(decision)
