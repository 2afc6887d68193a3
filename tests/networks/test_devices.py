"""How many models at once: quick numbers for known models, and never more than fit."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from epsilometer.errors import InvalidArgument, OutOfMemory
from epsilometer.networks import devices
from epsilometer.networks.devices import choose_at_once
from epsilometer.networks.ensemble import EnsembleDPSGD, cross_entropy
from epsilometer.networks.models import cnn, lenet5, mlp


def training(module: nn.Module, **options: Any) -> EnsembleDPSGD:
    usual = {"runs": 1, "noise_multiplier": 1.0, "learning_rate": 0.1, "batch_size": 100}
    return EnsembleDPSGD(module, cross_entropy, **{**usual, **options})


def records(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((100, *shape), np.float32), np.zeros(100, int)


@pytest.mark.parametrize(
    ("module", "shape", "number"),
    [
        (mlp(600, 100), (600,), 16),
        (nn.Sequential(nn.Linear(600, 32), nn.ReLU(), nn.Linear(32, 100)), (600,), 16),
        (lenet5(1, 28, 28, 2), (1, 28, 28), 8),
        (cnn(3, 32, 32, 2), (3, 32, 32), 8),
        (mlp(4, 2, 4), (4,), 256),
    ],
    ids=["mlp", "mlp of one's own", "lenet5", "cnn", "tiny"],
)
def test_numbers_that_were_measured_to_be_quickest(
    module: nn.Module, shape: tuple[int, ...], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_free_on_cpu", lambda: 64 * 2.0**30)
    assert choose_at_once(training(module), *records(*shape)) == number


def test_no_more_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    how, data = training(mlp(600, 100)), records(600)
    each = devices._on_cpu(how, *data)
    for fit in (1, 3, 7):
        monkeypatch.setattr(devices, "_free_on_cpu", lambda fit=fit: (fit + 0.5) * each / 0.6)
        assert choose_at_once(how, *data) == fit


@pytest.mark.parametrize("free", [0.0, 1e6])
def test_it_is_told_if_not_even_one_fits(free: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_free_on_cpu", lambda: free)
    with pytest.raises(OutOfMemory, match=r"Expected one model to fit into .* smaller batch_size"):
        choose_at_once(training(mlp(600, 100)), *records(600))


def test_what_torch_func_keeps_for_every_example_counts() -> None:
    how, data = training(mlp(600, 100)), records(600)
    general = training(mlp(600, 100), path="general")
    more = devices._on_cpu(general, *data) - devices._on_cpu(how, *data)
    assert more == 2 * 4 * 100 * how.size  # bytes of a copy and its gradient, for each of a batch


def test_memory_of_this_machine_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices._free_on_cpu() > 2**20

    def missing(*_: Any, **__: Any) -> Any:
        raise OSError

    monkeypatch.setattr("builtins.open", missing)
    assert devices._free_on_cpu() > 2**20
    monkeypatch.setattr(devices.os, "sysconf", missing)
    assert devices._free_on_cpu() == np.inf


def test_the_module_and_the_global_generator_are_left_alone() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 2)).eval()
    before = torch.get_rng_state()
    choose_at_once(training(module), *records(6))
    assert torch.equal(before, torch.get_rng_state())
    assert not module.training
    assert not any(part._forward_hooks for part in module.modules())


def test_bad_input_is_refused_before_anything_is_measured() -> None:
    x, y = records(6)
    with pytest.raises(InvalidArgument, match="labels from 0 to 1"):
        choose_at_once(training(mlp(6, 2)), x, y + 2)


ASKED: Any = devices._rounds_nothing.__wrapped__  # anew


def multiply() -> float:
    """Return the largest relative error of a product whose factors need all their bits."""
    factor = 1 + torch.rand(200, 300, generator=torch.Generator().manual_seed(1))
    exact = factor.double() @ factor.double().T
    return float(((factor @ factor.T).double() / exact - 1).abs().max())


@pytest.mark.skipif(not hasattr(torch.backends.mkldnn, "matmul"), reason="torch cannot be asked")
@pytest.mark.parametrize("rounds", [True, False], ids=["AMX", "as it is"])
def test_products_on_a_cpu_keep_all_bits_whatever_was_allowed(
    rounds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    monkeypatch.setattr(devices, "_rounds_nothing", (lambda: False) if rounds else ASKED)
    before, allowed.fp32_precision = allowed.fp32_precision, "bf16"
    try:
        with devices.use_precision("float32", rows=devices.MANY_ROWS):
            assert multiply() < 1e-5
            assert not rounds or allowed.fp32_precision == "ieee"
        assert allowed.fp32_precision == "bf16"  # as it was
    finally:
        allowed.fp32_precision = before


def test_where_products_may_be_rounded_onednn_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.cpu, "get_capabilities", lambda: {"avx512_f": True, "amx_tile": True}, raising=False
    )
    assert not ASKED()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {}, raising=False)
    assert not ASKED()
    monkeypatch.setattr(
        torch.cpu, "get_capabilities", lambda: {"avx512_f": True, "amx_tile": False}, raising=False
    )
    monkeypatch.setattr(torch, "allclose", lambda *_, **__: False)  # it rounds nevertheless
    assert not ASKED()
