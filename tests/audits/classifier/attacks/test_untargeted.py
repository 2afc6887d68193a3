import numpy as np
import pytest
import torch

from epsilometer.audits.classifier.attacks import shadow_attacks as module
from epsilometer.audits.classifier.attacks.shadow_attacks import untargeted
from epsilometer.errors import InvalidArgument
from tests.audits.classifier.attacks.pools import a_pool


def test_the_gradient_is_that_of_the_likelihood(rng: np.random.Generator) -> None:
    seen, was_in = rng.normal(size=(50, 4)).astype(np.float32), rng.random(50) < 0.5
    net = module._train(seen, was_in, rng)
    scaled = (seen - net.centre) / net.scale
    weights = [torch.tensor(part, requires_grad=True) for part in net.weights]
    hidden = torch.relu(torch.tensor(scaled) @ weights[0] + weights[1])
    odds = hidden @ weights[2] + weights[3]
    target = torch.tensor(was_in, dtype=torch.float32)
    torch.nn.functional.binary_cross_entropy_with_logits(odds, target).backward()
    for part, slope in zip(weights, net.gradient(scaled, was_in), strict=True):
        assert part.grad is not None
        np.testing.assert_allclose(slope, part.grad, atol=1e-5)  # both in single precision
    np.testing.assert_allclose(net.log_odds(seen), odds.detach(), atol=1e-4)


def test_it_learns_what_no_threshold_tells(rng: np.random.Generator) -> None:
    """Insiders of class 0 are surer, those of class 1 less sure: the label has to be an input."""
    pool = a_pool(rng, models=12, n=300, classes=2)
    shift = np.where(pool.labels == 0, 3.0, -3.0) * pool.member
    p = 1 / (1 + np.exp(-(0.5 + shift)))
    every = np.where(pool.labels[None, :, None] == np.arange(2), p[..., None], 1 - p[..., None])
    leaking = module.ShadowPool.from_arrays(np.log(every), pool.member, pool.labels)
    found = untargeted(leaking, 0, rng=rng)
    assert ((found.values > 0) == leaking.member[0]).all()


def test_the_same_stream_gives_the_same_scores(rng: np.random.Generator) -> None:
    pool = a_pool(rng, models=6, n=60)
    first, again = (untargeted(pool, 0, rng=np.random.default_rng(5)).values for _ in range(2))
    assert first.tobytes() == again.tobytes()


def test_rows_are_drawn_where_there_are_too_many(rng: np.random.Generator) -> None:
    pool = a_pool(rng, models=6, n=100, effect=4.0)
    found = untargeted(pool, 0, rng=rng, rows=150)
    assert ((found.values > 0) == pool.member[0]).mean() > 0.5


def test_features_are_an_input(rng: np.random.Generator) -> None:
    pool = a_pool(rng, models=6, n=40)
    assert (
        "features" in untargeted(pool, 0, rng=rng, features=rng.normal(size=(40, 2, 2))).convention
    )
    for wrong in (np.zeros((39, 2)), np.full((40, 1), np.nan)):
        with pytest.raises(InvalidArgument, match="finite features of 40 records"):
            untargeted(pool, 0, rng=rng, features=wrong)
