"""Scripts of the training-privacy reproduction: what they train, and that they tell a leak."""

import importlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")
torch = pytest.importorskip("torch")
SCRIPTS = Path(__file__).parents[2] / "reproductions" / "training_privacy"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module


@pytest.fixture
def few(script):
    """Sixty records with numbers, categories and three classes."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    categories = (rng.random((60, 12)) < 0.2 + 0.2 * labels[:, None]).astype(np.int64)
    numbers = rng.normal(size=(60, 2)) + labels[:, None]
    return script("records").Records(
        features=np.hstack([numbers, categories]),
        numbers=numbers,
        categories=categories,
        labels=labels,
        classes=3,
    )


def halves(rng, n=60, sets=2):
    return np.stack([rng.permutation(n) < n // 2 for _ in range(sets)])


def autograd(first, orders, x, y, *, batch, rate):
    """An ordinary loop: weights of one network after plain SGD."""
    weights = [part.clone().requires_grad_() for part in first]
    for order in orders:
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            hidden = torch.tanh(x[rows] @ weights[0] + weights[1])
            loss = torch.nn.functional.cross_entropy(hidden @ weights[2] + weights[3], y[rows])
            gradients = torch.autograd.grad(loss, weights)
            weights = [
                (part - rate * slope).detach().requires_grad_()
                for part, slope in zip(weights, gradients, strict=True)
            ]
    return weights


@pytest.mark.parametrize("batch", [1, 7])
def test_networks_are_those_of_an_ordinary_loop(script, few, batch):
    nets = script("nets")
    member = halves(np.random.default_rng(1))
    lacking = int(np.flatnonzero(member[1])[3])
    those = nets.Nets(
        members=np.array([0, 1, 1]), seeds=np.array([5, 6, 6]), left_out=np.array([-1, -1, lacking])
    )
    how = nets.Training(epochs=3, batch=batch, rate=0.1)
    x, y = torch.from_numpy(few.features.astype(np.float32)), torch.from_numpy(few.labels)
    found = nets.trained(how, those, x, y, member, classes=3)
    none = nets.trained(nets.Training(epochs=0, batch=1), those, x, y, member, classes=3)
    orders = list(nets._epochs(3, np.array([6]), member[[1]]))
    if batch == 1:  # in longer ones the others of its batch stay together
        kept = [order[0][order[0] != lacking] for order in orders]
        plain = autograd([part[2] for part in none], kept, x, y, batch=1, rate=0.1)
        for part, expected in zip(found, plain, strict=True):
            torch.testing.assert_close(part[2], expected.detach(), rtol=1e-4, atol=1e-5)
    full = [order[0] for order in orders]
    plain = autograd([part[1] for part in none], full, x, y, batch=batch, rate=0.1)
    for part, expected in zip(found, plain, strict=True):
        torch.testing.assert_close(part[1], expected.detach(), rtol=1e-4, atol=1e-5)
    assert all((part[0] != part[1]).any() for part in found)


@pytest.mark.parametrize("batch", [1, 7])
def test_the_compiled_loop_trains_the_same(script, few, batch):
    pytest.importorskip("numba")
    nets = script("nets")
    member = halves(np.random.default_rng(2))
    those = nets.Nets(
        members=np.array([0, 0]),
        seeds=np.array([3, 3]),
        left_out=np.array([-1, np.flatnonzero(member[0])[0]]),
    )
    how = nets.Training(epochs=3, batch=batch, rate=0.1)
    x, y = torch.from_numpy(few.features.astype(np.float32)), torch.from_numpy(few.labels)
    together = nets.trained(how, those, x, y, member, classes=3)
    alone = nets.trained_one_by_one(how, those, x, y, member, classes=3)
    for left, right in zip(together, alone, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["NaiveBayes", "Logistic"])
def test_without_a_record_is_what_a_fit_without_it_says(script, few, kind):
    classifier = getattr(script("models"), kind)()
    member = halves(np.random.default_rng(3))
    twins = np.array([[place, record] for place in (0, 1) for record in range(60)])
    twins = twins[member[twins[:, 0], twins[:, 1]]][::7]
    found = classifier.without(few, member, twins)
    for (place, record), row in zip(twins, found, strict=True):
        less = member[[place]].copy()
        less[0, record] = False
        expected = classifier.everywhere(few, less, np.array([0]))[0, record]
        np.testing.assert_allclose(np.exp(row), np.exp(expected), atol=2e-6)


@dataclass(frozen=True)
class Known:
    """A classifier whose leak is known: how much surer it is of records that it was trained on."""

    leak: float
    random: bool = False

    def everywhere(self, records, member, sets):
        return np.stack([self._said(records, member[place], place) for place in sets])

    def without(self, records, member, twins, *, fresh=False):
        rows = [self._said(records, member[place] & False, place)[t] for place, t in twins]
        return np.stack(rows)

    def _said(self, records, inside, place):
        noise = np.random.default_rng(place).uniform(-0.05, 0.05, inside.size)
        own = 0.5 + self.leak * inside + noise
        p = np.repeat((1 - own)[:, None] / (records.classes - 1), records.classes, axis=1)
        p[np.arange(inside.size), records.labels] = own
        return np.log(p).astype(np.float32)


@pytest.mark.parametrize(("leak", "low", "high"), [(0.4, 0.99, 1.0), (0.0, 0.4, 0.6)])
def test_a_leak_is_found_and_none_is_not(script, few, tmp_path, leak, low, high):
    tables = script("tables")
    how = tables.Protocol(iterations=6, targets=30, pairs=3, measured=2)
    row = tables.Row("few", "known", Known(leak))
    found = tables.measured(row, tables.train(row, few, how, tmp_path), few)
    assert low <= found["attacks"]["distance"]["accuracy"] <= high
    assert low <= found["attacks"]["LiRA"]["accuracy"] <= high
    assert found["pdtp"] > 0.5 if leak else found["pdtp"] == 0
    again = tables.measured(row, tables.train(row, few, how, tmp_path), few)  # from what was kept
    assert again["targets"] == found["targets"]


def test_dropping_a_record_can_expose_another(script):
    """Two share a value and hide each other; who is left alone with it stands out."""
    x = np.array([[0]] * 40 + [[1]] * 4)
    y = np.array([0, 1] * 20 + [0, 0, 1, 1])
    found = script("removal").dropped(x, y, alpha=1e-10, most=1, again=True)
    assert found["above_1"] == [0, 1]
    assert found["binned"][0] < 1 < found["binned"][1]


def test_a_record_that_is_told_of_elsewhere_has_no_pdtp(script):
    found = script("indirect").measured()
    assert found["telling: PDTP"] == pytest.approx(found["honest: PDTP"], abs=1e-9)
    assert found["telling: DTP at the origin, binned"] == pytest.approx(np.log(199))


def test_weka_is_given_numbers_and_categories(script, few):
    lines = script("model_trees")._write_arff(few).splitlines()
    assert lines[1:3] == ["@attribute n0 numeric", "@attribute n1 numeric"]
    assert lines[3] == "@attribute c0 {0,1}"
    assert lines[15:17] == ["@attribute label {0,1,2}", "@data"]
    first = [float(cell) for cell in lines[17].split(",")]
    assert first == [*few.numbers[0], *few.categories[0], few.labels[0]]
    assert len(lines) == 17 + 60


def test_a_jar_that_is_not_there_is_named(script, few, monkeypatch):
    trees = script("model_trees")
    monkeypatch.setattr(trees, "JAR", Path("no-weka.jar"))
    with pytest.raises(FileNotFoundError, match="WEKA_JAR"):
        trees.ModelTrees().everywhere(few, halves(np.random.default_rng(1)), np.arange(2))


@pytest.mark.slow
def test_model_trees_predict_what_they_were_trained_on(script, few):
    trees = script("model_trees")
    if not trees.JAR.exists():
        pytest.skip("Weka is not installed.")
    member = halves(np.random.default_rng(1))
    found = trees.ModelTrees().everywhere(few, member, np.arange(2))
    assert found.shape == (2, 60, 3)
    np.testing.assert_allclose(np.exp(found).sum(axis=2), 1, atol=1e-5)
    right = found.argmax(axis=2) == few.labels
    assert right[member].mean() > 0.6
    inside = int(np.flatnonzero(member[0])[0])
    without = trees.ModelTrees().without(few, member, np.array([[0, inside]]))
    assert without.shape == (1, 3)
    assert not np.array_equal(without[0], found[0, inside])
