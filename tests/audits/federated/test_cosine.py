import numpy as np
import pytest

from epsilometer.audits.federated.cosine import final_cosines, largest_cosines, trainable
from epsilometer.audits.federated.hadamard import HadamardCanaries
from epsilometer.audits.federated.sphere import SphereCanaries
from epsilometer.errors import InvalidArgument

CANARIES = SphereCanaries(count=4, dimension=600, key=1)


def _model(flat: np.ndarray) -> dict[str, np.ndarray]:
    """A model as deployments send it: two layers, and a counter that averaging leaves alone."""
    flat = flat.astype(np.float32)
    return {"a": flat[:400].reshape(20, 20), "seen": np.array([7]), "b": flat[400:]}


def test_update_shows_the_canaries_that_were_in(rng: np.random.Generator) -> None:
    start = rng.normal(size=600)
    end = start + CANARIES.inject([0, 2], norm=2.0)
    cosines = final_cosines(CANARIES, _model(end), initial=_model(start))
    np.testing.assert_allclose(cosines, CANARIES.cosines(end - start), atol=1e-5)
    assert np.all((cosines > 0.5) == [True, False, True, False])
    # The model itself shows them beside its initial weights, which are louder.
    model = final_cosines(CANARIES, _model(end), statistic="model")
    np.testing.assert_allclose(model, CANARIES.cosines(end), atol=1e-5)
    assert abs(model).max() < 0.3


def test_lists_vectors_and_modules_are_models_too(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    flat = rng.normal(size=600)
    named = _model(flat)
    expected = CANARIES.cosines(flat)
    for model in (named, list(named.values()), flat, torch.tensor(flat)):
        found = final_cosines(CANARIES, model, statistic="model")
        np.testing.assert_allclose(found, expected, atol=1e-6)
    module = torch.nn.Sequential(torch.nn.Linear(29, 20), torch.nn.BatchNorm1d(20))
    module[1].weight.requires_grad_(False)
    vector = trainable(module)
    # Weights and biases; neither the frozen scale nor running means nor the counter of batches.
    assert vector.size == 29 * 20 + 20 + 20
    np.testing.assert_array_equal(vector[:580], module[0].weight.detach().numpy().ravel())


def test_bfloat16_and_half_precision_count(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    whole = torch.tensor(rng.normal(size=10), dtype=torch.bfloat16)
    assert trainable(whole).tolist() == whole.float().tolist()
    assert trainable([np.ones(2, np.float16)]).size == 2


def test_largest_of_all_rounds(rng: np.random.Generator) -> None:
    canaries = HadamardCanaries(count=4, dimension=600, key=3)
    updates = [rng.normal(size=600), np.zeros(600), canaries.inject([1], 1.0)]
    found = largest_cosines(canaries, updates)
    expected = np.maximum(canaries.cosines(updates[0]), canaries.cosines(updates[2]))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found[1] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: final_cosines(CANARIES, np.ones(600)), "initial model"),
        (
            lambda: final_cosines(CANARIES, np.ones(600), initial=np.ones(600), statistic="model"),
            "initial model",
        ),
        (lambda: final_cosines(CANARIES, np.ones(600), statistic="all"), "'update' or 'model'"),
        (lambda: final_cosines(CANARIES, np.ones(600), initial=np.ones(600)), "update of zero"),
        (lambda: final_cosines(CANARIES, np.ones(600), initial=np.ones(5)), "600 trainable"),
        (lambda: final_cosines(CANARIES, np.ones(5), statistic="model"), "600 trainable"),
        (
            lambda: final_cosines(CANARIES, np.full(600, np.nan), statistic="model"),
            "training diverged",
        ),
        (lambda: largest_cosines(CANARIES, [np.zeros(600)] * 3), "3 of zero"),
        (lambda: largest_cosines(CANARIES, []), "0 of zero"),
        (lambda: trainable({"steps": np.array([3])}), "without any"),
        (lambda: trainable([]), "without any"),
    ],
)
def test_what_cannot_be_seen_is_told(call, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        call()
