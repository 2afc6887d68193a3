"""Many CNNs at once in half precision train as one by one by autograd."""

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

FOLDER = Path(__file__).parents[2] / "reproductions" / "bayesian"


@pytest.fixture
def half(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "half", raising=False)
    import half

    return half


def _module(networks, which):
    """The same network of torch's own layers."""
    from epsilometer.networks.models import dropout_cnn

    module = dropout_cnn()
    real = [part for part in module if hasattr(part, "weight")]
    for place, part in enumerate(real):
        weight = networks.layers[place][which].clone()
        if place < 2:
            inputs = part.weight.shape[1]
            kernel = weight[:, : 25 * inputs].reshape(64, 5, 5, inputs).permute(0, 3, 1, 2)
        elif place == 2:  # channels last there, first here
            kernel = weight[:, :1600].reshape(512, 5, 5, 64).permute(0, 3, 1, 2).reshape(512, 1600)
        else:
            kernel = weight[:, :512]
        part.weight.data.copy_(kernel)
        part.bias.data.copy_(weight[:, {0: 75, 1: 1600, 2: 1600, 3: 512}[place]])
    return module


def _networks(half, models=2):
    return half.Networks(models, device="cpu", generator=torch.Generator().manual_seed(0))


def test_says_what_the_network_of_the_paper_says(half):
    networks = _networks(half)
    x = np.random.default_rng(0).random((3, 3, 32, 32), np.float32)
    places = torch.arange(3).repeat(2, 1)
    with torch.no_grad():
        found = networks.predict(half.patches_of(x, device="cpu"), places, dropout=False)
        for which in range(2):
            said = _module(networks, which).eval()(torch.from_numpy(x))
            assert torch.allclose(found[which], said, atol=1e-5)


def test_clipped_sums_are_those_of_autograd(half, monkeypatch):
    networks = _networks(half)
    rng = np.random.default_rng(0)
    x, y = rng.random((2, 4, 3, 32, 32), np.float32) * 9, rng.integers(10, size=(2, 4))
    dropped = {}

    def bytes_of(shape):
        made = torch.from_numpy(rng.integers(256, size=tuple(shape)).astype(np.uint8))
        dropped[tuple(shape)] = made.clone()
        return made

    monkeypatch.setattr(networks, "_bytes", bytes_of)
    table = half.patches_of(x.reshape(8, 3, 32, 32), device="cpu")
    there = torch.tensor([[1.0, 1, 0, 1], [1, 1, 1, 1]])
    with torch.no_grad():
        places = torch.arange(8).view(2, 4)
        found = networks.sum_clipped(table, places, torch.from_numpy(y), there)
    for which in range(2):
        module = _module(networks, which)
        expected, norms = [0.0] * 8, []
        for example in range(4):
            at = 4 * which + example
            masks = [
                _spread(dropped[8, 14, 14, 64][at]),
                _spread(dropped[8, 5, 5, 64][at]),
                2.0 * (dropped[2, 4, 512][which, example] & 1),
            ]
            logits = _forward(module, torch.from_numpy(x[which, example])[None], masks)
            loss = torch.nn.functional.cross_entropy(logits, torch.tensor([y[which, example]]))
            gradients = torch.autograd.grad(loss, list(module.parameters()))
            norm = sum(float(part.square().sum()) for part in gradients) ** 0.5
            norms.append(norm)
            weight = there[which, example] * min(1, 1 / norm)
            expected = [
                total + weight * part for total, part in zip(expected, gradients, strict=True)
            ]
        assert max(norms) > 1  # or nothing is clipped
        twin = _networks(half)
        twin.layers = [part.clone() for part in found]
        summed = list(_module(twin, which).parameters())
        for one, other in zip(summed, expected, strict=True):
            assert torch.allclose(one.data, other, atol=2e-5)


def _spread(bits):
    """Bits 1, 2, 4, 8 of a byte say which of 2 × 2 are kept: channels first, twice as large."""
    high, wide, channels = bits.shape
    four = torch.stack([(bits >> place) & 1 for place in range(4)], -1)
    four = four.view(high, wide, channels, 2, 2).permute(2, 0, 3, 1, 4)
    return 2.0 * four.reshape(1, channels, 2 * high, 2 * wide)


def _forward(module, x, masks):
    masks = iter(masks)
    for part in module:
        x = x * next(masks).view(1, *x.shape[1:]) if isinstance(part, torch.nn.Dropout) else part(x)
    return x


def test_batches_are_poisson_and_nobody_is_drawn_twice(half):
    records = torch.arange(50).repeat(3, 1)
    records[1:, 7] = -1
    counts = np.zeros((3, 50))
    for batch in half.poisson_batches(
        records, sampling_rate=0.2, steps=2000, rng=np.random.default_rng(0), groups=2
    ):
        assert sorted(model for which, *_ in batch for model in which.tolist()) == [0, 1, 2]
        for which, places, there in batch:
            for model, own, here in zip(which.tolist(), places, there, strict=True):
                drawn = own[here > 0].numpy()
                assert len(set(drawn)) == len(drawn)
                counts[model, drawn] += 1
    assert counts[1:, 7].sum() == 0
    counts[1:, 7] = 400
    assert np.abs(counts - 400).max() < 5 * np.sqrt(2000 * 0.2 * 0.8)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_kernels_compute_what_torch_does(half):
    import half_cuda

    def draw(*shape):
        return torch.randn(shape, device="cuda").half()

    images = np.random.default_rng(0).random((16, 3, 32, 32), np.float32)
    table = half.patches_of(images, device="cuda")
    half.check_kernels(table, torch.arange(16, device="cuda") % 10)
    torch.manual_seed(0)
    x, back, weight = draw(6, 14, 14, 64), draw(6, 10, 10, 64), 0.02 * draw(2, 64, 1608)
    weight[..., 1601:] = 0
    table, first, own = draw(5, 784, 80), draw(6, 14, 14, 64), draw(2, 64, 80)
    places = torch.tensor([4, 0, 3, 3, 1, 2], device="cuda")
    bits = torch.randint(256, (6, 14, 14, 64), device="cuda", dtype=torch.uint8)
    taken = (1 << torch.randint(4, (6, 14, 14, 64), device="cuda")).byte()

    which, step, noise = torch.tensor([1, 0], device="cuda"), *torch.randn(2, 2, 64, 80).cuda()

    def compute(how):
        moved = own.float()
        how.move(moved, which, step.clone(), noise, noise=0.5, rate=0.1)
        return [
            moved,
            how.convolve(x, weight, kernel=5),
            how.square_gradients(back, x, weight, kernel=5),
            how.sum_gradients(back, x, weight, kernel=5)[..., :1601],
            how.unpool(first, taken),
            how.pool(x, None)[0],
            how.convolve_and_pool(table, places, own, bits)[0],
            *how.differentiate_first(first, taken, table, places),
        ]

    for found, expected in zip(compute(half_cuda), compute(half._PLAIN_STEPS), strict=True):
        assert (found.float() - expected.float()).norm() <= 1e-3 * expected.float().norm()


def test_kernels_that_compute_something_else_are_not_used(half, monkeypatch):
    """A layer that is read at the wrong places, as a kernel would read a view with gaps."""
    import types

    wrong = types.ModuleType("half_cuda")
    vars(wrong).update(vars(half._PLAIN_STEPS))
    table = half.patches_of(
        np.random.default_rng(0).random((16, 3, 32, 32), np.float32), device="cpu"
    )
    labels = torch.arange(16) % 10
    monkeypatch.setitem(sys.modules, "half_cuda", wrong)
    with torch.no_grad():
        half.check_kernels(table, labels)
        wrong.unpool = lambda back, taken: half._unpool(back.roll(1, 0), taken)
        with pytest.raises(ArithmeticError, match="differ"):
            half.check_kernels(table, labels)
