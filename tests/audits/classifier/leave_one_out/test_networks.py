"""Networks without one record: as if trained alone, and apart from what re-training itself does."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import scipy.stats
import torch
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from epsilometer.audits.classifier.leave_one_out.networks import NetworkClassifier
from epsilometer.audits.classifier.leave_one_out.pdtp import pdtp
from epsilometer.audits.classifier.leave_one_out.refits import refit
from epsilometer.engine.engines import InProcess, Local
from epsilometer.errors import InvalidArgument
from epsilometer.networks.models import lenet5
from epsilometer.networks.optimizers import SGD

X, Y = load_iris(return_X_y=True)
FEW = np.array([0, 56, 70, 106, 133])
HERE = InProcess()


def network(**changed: Any) -> NetworkClassifier:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    how: dict[str, Any] = {"epochs": 5, "learning_rate": 0.01, "at_once": 2, **changed}
    return NetworkClassifier(module, **how)


def test_has_the_manners_of_scikit_learn() -> None:
    names = np.array(["setosa", "versicolor", "virginica"])[Y]
    model = network(epochs=40)
    copy = clone(model)
    assert copy.module is not model.module
    assert copy.get_params().keys() == model.get_params().keys()
    assert is_classifier(model)
    assert model.fit(X, names) is model
    assert (model.predict(X) == names).mean() > 0.9
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)
    np.testing.assert_array_equal(copy.fit(X, names).predict_proba(X), model.predict_proba(X))
    other = clone(model).set_params(random_state=1).fit(X, names)
    assert not np.array_equal(other.predict_proba(X), model.predict_proba(X))


def test_the_module_itself_is_never_trained() -> None:
    model = network()
    before = [part.clone() for part in model.module.parameters()]
    model.fit(X, Y)
    pdtp(model, X, Y, records=FEW, engine=HERE)
    for part, was in zip(model.module.parameters(), before, strict=True):
        assert torch.equal(part, was)


def test_given_weights_are_where_training_begins() -> None:
    model = network(initial="given", learning_rate=1e-12)
    model.fit(X, Y)
    with torch.no_grad():
        wanted = model.module(torch.from_numpy(X).float()).softmax(-1)
    np.testing.assert_allclose(model.predict_proba(X), wanted, rtol=1e-5)
    result = pdtp(network(initial="given"), X, Y, records=FEW, engine=HERE)
    assert any("All models start from the module's weights" in caveat for caveat in result.caveats)


def test_all_at_once_is_as_one_by_one() -> None:
    """Five models in blocks of two, and each alone; the full one is what ``fit`` gives."""
    together = refit(network(), X, Y, FEW, engine=HERE)
    alone = refit(network(at_once=1), X, Y, FEW, engine=HERE)
    np.testing.assert_allclose(together.without, alone.without, rtol=1e-4, atol=1e-5)
    fitted = network().fit(X, Y).predict_log_proba(X[FEW])
    np.testing.assert_allclose(together.full, fitted, rtol=1e-6)
    assert together.path == "many models at once"


def test_queries_are_asked_of_each_model() -> None:
    found = refit(network(), X, Y, FEW, queries=X, engine=HERE)
    assert found.without.shape == (5, 150, 3)
    own = refit(network(), X, Y, FEW, engine=HERE)
    np.testing.assert_allclose(found.without[np.arange(5), FEW], own.without, rtol=1e-5, atol=1e-6)


def test_the_same_bytes_on_every_engine_and_after_a_kill(tmp_path: Path) -> None:
    here = refit(network(at_once=1), X, Y, FEW, engine=HERE)
    for engine, directory in ((Local(count=1), None), (HERE, tmp_path), (HERE, tmp_path)):
        model = network(at_once=1)  # with other weights than before, which are redrawn
        found = refit(model, X, Y, FEW, engine=engine, directory=directory)
        assert found.without.tobytes() == here.without.tobytes()
        assert found.full.tobytes() == here.full.tobytes()
        for shard in sorted((tmp_path / "shards").glob("*"))[1::2]:
            shard.unlink()
    for changed in ({"initial": "given"}, {"epochs": 6}):
        other = network(at_once=1, **changed)
        with pytest.raises(InvalidArgument, match="no other run"):
            refit(other, X, Y, FEW, engine=HERE, directory=tmp_path)


def test_features_of_other_kinds() -> None:
    model = network().fit(X.astype(int), Y)  # whole numbers are numbers
    assert model.predict(scipy.sparse.csr_array(X.astype(int))).shape == (150,)
    words = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(16, 3))
    numbers = np.clip(X, 0, 9).astype(int)
    result = pdtp(NetworkClassifier(words, epochs=2), numbers, Y, records=FEW, engine=HERE)
    assert np.isfinite(result.values).all()


def test_behind_a_scaler_held_fixed_all_are_trained_at_once() -> None:
    pipeline = make_pipeline(StandardScaler(), network())
    result = pdtp(pipeline, X, Y, records=FEW, preprocessing="fixed", engine=HERE)
    assert result.path == "many models at once, preprocessing held fixed"
    assert pdtp(pipeline, X, Y, records=FEW[:1], engine=HERE).path == "refits"


def test_how_many_at_once_depends_on_shapes_alone() -> None:
    small, images = network(at_once=None), np.zeros((9, 1, 28, 28))
    assert small.leave_one_out(X, Y, seed=0).block == small.leave_one_out(X + 1, Y, seed=1).block
    large = NetworkClassifier(lenet5(classes=3))
    assert large.leave_one_out(images, Y[::17], seed=0).block == 8


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"optimizer": "adagrad"}, "'adam' or 'sgd'"),
        ({"optimizer": 3}, "'adam', 'sgd'"),
        ({"epochs": 0}, "epochs"),
        ({"at_once": 0}, "at_once"),
        ({"initial": "zero"}, "'fresh' or 'given'"),
        ({"learning_rate": 1e30, "optimizer": "sgd"}, "smaller learning_rate"),
        ({"random_state": -1}, "random_state"),
    ],
)
def test_what_cannot_be_trained_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        pdtp(network(**changed), X, Y, records=FEW, engine=HERE)


def test_bad_features_and_modules_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="finite features"):
        network().fit(np.where(X > 7, np.nan, X), Y)
    with pytest.raises(InvalidArgument, match="are numbers"):
        network().fit(X.astype(str), Y)
    with pytest.raises(InvalidArgument, match=r"torch\.nn\.Module"):
        NetworkClassifier("mlp").fit(X, Y)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="Call fit first"):
        network().predict(X)
    with pytest.raises(InvalidArgument, match="parameters of NetworkClassifier"):
        network().set_params(depth=3)
    if not torch.cuda.is_available():
        with pytest.raises(InvalidArgument, match="torch sees none"):
            network(device="cuda").fit(X, Y)
    with pytest.raises(InvalidArgument, match="NetworkClassifier"):
        pdtp(nn.Linear(4, 3), X, Y, records=FEW, engine=HERE)


def trained_on_measurements() -> tuple[NetworkClassifier, Any, Any, Any]:
    features, places = load_breast_cancer(return_X_y=True)
    module = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))
    model = NetworkClassifier(
        module, epochs=5, batch_size=64, optimizer=SGD(momentum=0.9), learning_rate=0.1
    )
    return model, StandardScaler().fit_transform(features), places, np.arange(0, 500, 25)


def test_values_are_of_the_record_and_not_of_training_again() -> None:
    """With common random numbers values differ from the null floor."""
    model, features, places, records = trained_on_measurements()
    found = pdtp(model, features, places, records=records, engine=HERE)
    assert found.floor is not None
    assert scipy.stats.mannwhitneyu(found.values, found.floor).pvalue < 1e-3
    assert np.median(found.values) < np.median(found.floor) / 3


@pytest.mark.slow
def test_fresh_seeds_measure_training_again() -> None:
    """As other tools have it: removing a record, or nothing, then gives values of one law."""
    model, features, places, records = trained_on_measurements()

    def fresh(shift: int, *, removed: bool) -> Any:
        """|Δ ln p| at each record between two fits with seeds of their own."""
        moved = []
        for place, record in enumerate(records):
            kept = np.arange(569) != record if removed else slice(None)
            fits = [
                replace(model, random_state=100 * shift + 2 * place + side).fit(
                    features[rows], places[rows]
                )
                for side, rows in enumerate((slice(None), kept))
            ]
            full, other = (fit.predict_log_proba(features[[record]]) for fit in fits)
            moved.append(np.abs(full - other).max())
        return np.array(moved)

    assert scipy.stats.mannwhitneyu(fresh(1, removed=True), fresh(2, removed=False)).pvalue > 1e-3
