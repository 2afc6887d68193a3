"""Many models at once: as Opacus and plain modules have it, and what is refused."""

import copy
from typing import Any

import numpy as np
import opacus
import pytest
import scipy.stats
import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn

from epsilometer.errors import InvalidArgument
from epsilometer.networks import many as many_module
from epsilometer.networks.ensemble import cross_entropy
from epsilometer.networks.many import ManyModels, per_example
from epsilometer.networks.models import lenet5, mlp
from epsilometer.networks.optimizers import SGD, Adam, Optimizer
from tests.networks.nets import (
    RELATIVE,
    Attention,
    Scaled,
    Through,
    in_order,
    off,
    shaken,
    summed_by_definition,
)
from tests.oracles import FLAKE


def flat(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


# Opacus.


@pytest.mark.filterwarnings("ignore:Full backward hook:UserWarning")
@pytest.mark.filterwarnings("ignore:Using a non-full backward hook:FutureWarning")
@pytest.mark.parametrize(
    ("optimizer", "theirs"),
    [
        (SGD(), lambda own: torch.optim.SGD(own, lr=0.5)),
        (SGD(momentum=0.9), lambda own: torch.optim.SGD(own, lr=0.5, momentum=0.9)),
        (Adam(), lambda own: torch.optim.Adam(own, lr=0.01)),
    ],
    ids=["sgd", "momentum", "adam"],
)
@pytest.mark.parametrize("noise", [0.0, 1.3])
@pytest.mark.parametrize(
    ("module", "shape"),
    [(mlp(12, 3, 5), (12,)), (lenet5(1, 12, 12, 3), (1, 12, 12))],
    ids=["mlp", "lenet5"],
)
def test_steps_are_those_of_opacus(
    module: nn.Module, shape: tuple[int, ...], optimizer: Optimizer, theirs: Any, noise: float
) -> None:
    """Same batches, first weights, clipping and noise; every model against a run of its own."""
    runs, batch, steps, clip = 2, 6, 4, 0.7
    torch.manual_seed(3)
    models = ManyModels(module, runs)
    shaken(models)
    peers = [opacus.GradSampleModule(models.model(run)) for run in range(runs)]
    wrapped = [
        DPOptimizer(
            theirs(peer.parameters()),
            noise_multiplier=noise,
            max_grad_norm=clip,
            expected_batch_size=batch,
            generator=torch.Generator().manual_seed(run),
        )
        for run, peer in enumerate(peers)
    ]
    noises = [torch.Generator().manual_seed(run) for run in range(runs)]
    state, rate = optimizer.start(models.parameters), 0.01 if isinstance(optimizer, Adam) else 0.5
    for _ in range(steps):
        x, y = torch.randn(runs, batch, *shape), torch.randint(3, (runs, batch))
        for run, (peer, dp) in enumerate(zip(peers, wrapped, strict=True)):
            dp.zero_grad()
            nn.functional.cross_entropy(peer(x[run]), y[run]).backward()
            dp.step()
        sums = models.sum_clipped(x, y, loss=cross_entropy, clip=clip, keep=torch.ones(runs, batch))
        for run, generator in enumerate(noises):
            for _, own in models.model(run).named_parameters():
                # As Opacus draws: parameter by parameter, in their order.
                drawn = torch.normal(0.0, noise * clip, own.shape, generator=generator)
                _add(models, sums, run, own, drawn)
        optimizer.step(models.parameters, sums.div_(batch), state, rate=rate)
    expected = torch.stack([flat(peer) for peer in peers])
    # Adam divides by the root of its squares: where a gradient is nearly 0, rounding shows.
    assert off(in_order(models, models.parameters), expected.double()) < RELATIVE


def _add(models: ManyModels, sums: Tensor, run: int, own: Tensor, noise: Tensor) -> None:
    """Where the parameter of this value lies: all weights differ."""
    for *_, start, stop in models._columns_of:
        if torch.equal(models.parameters[run, start:stop], own.detach().flatten()):
            sums[run, start:stop] += noise.flatten()


# Against plain modules.


@pytest.mark.parametrize("whole", [False, True])
def test_outputs_are_those_of_plain_modules(whole: bool) -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5),
        nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip
    models = ManyModels(module, 3, whole=whole)
    shaken(models)
    x = torch.randn(3, 5, 1, 6, 6)
    with torch.no_grad(), models.settled():
        outputs = models(x)
    assert outputs.shape == (3, 5, 3)
    for run in range(3):
        with torch.no_grad():
            plain = models.model(run).eval()(x[run])
        torch.testing.assert_close(outputs[run], plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("whole", [False, True])
def test_mean_gradients_are_those_of_a_mean_loss(whole: bool) -> None:
    torch.manual_seed(5)
    models = ManyModels(lenet5(1, 12, 12, 3), 3, whole=whole)
    shaken(models)
    x, y = torch.randn(3, 4, 1, 12, 12), torch.randint(3, (3, 4))
    keep = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]], dtype=torch.bool)
    found = in_order(models, models.mean_gradients(x, y, loss=cross_entropy, keep=keep))
    for run in range(2):
        module = models.model(run).double()
        kept = keep[run]
        loss = nn.functional.cross_entropy(module(x[run][kept].double()), y[run][kept])
        truth = torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*module.parameters()])])
        assert off(found[run], truth) < RELATIVE
    assert not found[2].any()


def test_the_module_is_left_as_it_is() -> None:
    module = nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(0.5), Scaled(4), nn.Linear(4, 3)
    ).eval()
    before = copy.deepcopy(module.state_dict())
    for whole in (False, True):
        models = ManyModels(module, 2, whole=whole)
        models.reset("fresh", torch.Generator().manual_seed(0))
        assert models.agree(torch.randn(2, 4)) or whole
        x, y = torch.randn(2, 3, 4), torch.zeros(2, 3, dtype=torch.long)
        models.sum_clipped(x, y, loss=cross_entropy, clip=1.0, keep=torch.ones(2, 3))
        models.model(1)[0].weight.data.zero_()
    assert not module.training
    assert module[1].inplace
    assert all(parameter.grad is None for parameter in module.parameters())
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_modules_that_need_the_general_path_are_recognised() -> None:
    x = torch.randn(2, 5, 4)
    head = nn.Linear(4, 3)
    shared = nn.Linear(4, 4)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    assert ManyModels(nn.Sequential(shared, nn.Tanh(), shared), 2).general
    assert ManyModels(tied, 2).general
    for unfit in (
        Through(lambda x, a, b: b(a(a(x)).mean(1)), nn.Linear(4, 4), head),
        Through(lambda x, a, b: b(a(x.transpose(0, 1)).mean(0)), nn.Linear(4, 4), head),
        Through(lambda x, a, b: b(a(x.reshape(-1, 4)).view(len(x), 5, 4).mean(1)),
                nn.Linear(4, 4), head),
        Through(lambda x, a, b: b(a(x).mul_(2).relu_().mean(1)), nn.Linear(4, 4), head),
        Through(lambda x, a, b, c: c(b(a(x)).mul_(2).mean(1)), nn.Linear(4, 4), nn.Linear(4, 4),
                head),
    ):  # fmt: skip
        models = ManyModels(unfit, 2)
        assert not models.general
        assert not models.agree(x)
    for fit in (
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), Attention(4), nn.Flatten(),
                      nn.Linear(20, 3)),
        nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Flatten(),
                      nn.Linear(20, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(20, 4), Scaled(4), nn.RMSNorm(4), head),
    ):  # fmt: skip
        assert ManyModels(fit, 2).agree(x)


def test_an_output_written_over_is_found_out_even_where_it_makes_no_difference() -> None:
    """A rectifier that lets all of the examples that are tried through, but not all others."""
    module = Through(
        lambda x, a, b, c: c(b(a(x)).relu_()), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
    )
    for layer in module.layers[:2]:
        nn.init.eye_(layer.weight)
        nn.init.constant_(layer.bias, 5.0)
    assert not ManyModels(module, 2).agree(torch.ones(2, 4))


def test_a_layer_called_twice_is_right_on_the_general_path() -> None:
    torch.manual_seed(0)
    module = Through(lambda x, a, b: b(a(a(x)).tanh()), nn.Linear(4, 4), nn.Linear(4, 3))
    tied = Through(
        lambda x, a, b: b(a(x).mean(1).tanh()), nn.Embedding(3, 4), nn.Linear(4, 3, bias=False)
    )
    tied.layers[1].weight = tied.layers[0].weight
    for net, x in ((module, torch.randn(2, 3, 4)), (tied, torch.randint(3, (2, 3, 5)))):
        models = ManyModels(net, 2, whole=True)
        shaken(models)
        y, keep = torch.randint(3, (2, 3)), torch.ones(2, 3)
        sums = models.sum_clipped(x, y, loss=cross_entropy, clip=0.2, keep=keep)
        truth = summed_by_definition(models, x, y, loss=cross_entropy, clip=0.2, keep=keep)
        assert off(in_order(models, sums), truth) < RELATIVE


# First weights.


class Drawn(nn.Module):
    """With ``reset_parameters``, as torch's own layers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(50))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight.exponential_()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight[: x.shape[-1]]


class Zeroed(nn.Linear):
    """A known layer that begins otherwise."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


def test_fresh_weights_have_the_law_of_reset_parameters() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(30, 20), nn.Conv2d(3, 10, (2, 5)), nn.Embedding(20, 8, padding_idx=2),
        nn.LayerNorm(9), nn.GroupNorm(2, 6), Drawn(), nn.Conv2d(4, 6, 3, groups=2), Zeroed(3, 3),
    )  # fmt: skip
    before = copy.deepcopy(module.state_dict())
    models = ManyModels(module, 5)
    models.reset("fresh", torch.Generator().manual_seed(1))
    for run in range(5):
        own = models.model(run).state_dict()
        for name in ("0.weight", "0.bias", "1.weight", "2.weight", "5.weight", "6.weight"):
            again = copy.deepcopy(module)
            for layer in again:
                layer.reset_parameters()
            found, other = own[name], again.state_dict()[name]
            if name == "2.weight":
                assert (found[2] == 0).all()
                found, other = found[found[:, 0] != 0], other[other[:, 0] != 0]
            ks = scipy.stats.ks_2samp(found.flatten().numpy(), other.flatten().numpy())
            assert ks.pvalue > FLAKE, name
        assert own["0.weight"].abs().max() <= 30**-0.5
        assert own["1.bias"].abs().max() <= 30**-0.5
        assert own["6.weight"].abs().max() <= 18**-0.5
        for ones in ("3.weight", "4.weight"):
            assert (own[ones] == 1).all()
        for zeros in ("3.bias", "4.bias", "7.weight", "7.bias"):
            assert (own[zeros] == 0).all()
    rows = in_order(models, models.parameters)
    assert len({row.numpy().tobytes() for row in rows}) == 5
    # None of a run's weights are another run's.
    assert scipy.stats.pearsonr(rows[0, :600], rows[1, :600]).pvalue > FLAKE
    models.reset("given", torch.Generator())
    for run in range(5):
        for name, value in models.model(run).state_dict().items():
            assert torch.equal(value, before[name])


def test_redrawing_leaves_the_global_generator_alone() -> None:
    models = ManyModels(nn.Sequential(Drawn(), nn.Linear(3, 3)), 2)
    before = torch.get_rng_state()
    models.reset("fresh", torch.Generator().manual_seed(1))
    assert torch.equal(before, torch.get_rng_state())


# Losses.


def test_losses_are_told_not_to_average() -> None:
    outputs, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    expected = nn.functional.cross_entropy(outputs, labels, reduction="none")
    module = nn.CrossEntropyLoss()
    for loss in (module, nn.functional.cross_entropy, cross_entropy):
        assert torch.equal(per_example(loss)(outputs, labels), expected)
    assert module.reduction == "mean"
    values = per_example(nn.MSELoss())(outputs, torch.zeros(4, 3))
    torch.testing.assert_close(values, outputs.square().mean(1))


@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, labels: nn.functional.cross_entropy(outputs, labels).clone(),
        lambda outputs, labels: 0.5,
        lambda outputs, labels: outputs[:2, 0],
    ],
)
def test_losses_that_average_are_refused(loss: Any) -> None:
    with pytest.raises(InvalidArgument, match="a loss for every example"):
        per_example(loss)(torch.randn(4, 3), torch.tensor([0, 1, 2, 0]))


# What is refused.


class Meta(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.here, self.there = nn.Linear(2, 2), nn.Linear(2, 2, device="meta")


def _frozen() -> nn.Module:
    return nn.Linear(2, 2).requires_grad_(False)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "BatchNorm1d at '1': it mixes"),
        (nn.Sequential(nn.Sequential(nn.SyncBatchNorm(2))), "SyncBatchNorm at '0.0'"),
        (nn.Sequential(nn.LazyLinear(2)), "LazyLinear at '0': call the module once"),
        (Meta(), "on one device, got cpu, meta"),
        (nn.Linear(2, 2, device="meta"), "with values, got a module on the meta device"),
        (nn.Linear(2, 2).double(), "float32, got torch.float64"),
        (nn.Linear(2, 2).bfloat16(), "float32, got torch.bfloat16"),
        (nn.ReLU(), "trainable parameters, got none"),
        (nn.Sequential(nn.Flatten(), nn.Tanh()), "trainable parameters, got none"),
        (_frozen(), "trainable parameters, got none"),
        (lambda x: x, "torch.nn.Module, got function"),
        (None, "torch.nn.Module, got NoneType"),
    ],
)
def test_modules_that_are_refused(module: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match="Expected") as caught:
        ManyModels(module, 2)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (nn.LSTM(4, 4, batch_first=True), "LSTM at 'layers.0' cannot"),
        (nn.InstanceNorm1d(5, affine=True, track_running_stats=True), "InstanceNorm1d at"),
        (nn.Linear(3, 4), "Linear at 'layers.0' cannot"),
    ],
)
def test_layers_that_nothing_can_run_are_named(layer: nn.Module, said: str) -> None:
    module = Through(
        lambda x, a, b: b((a(x)[0] if isinstance(a, nn.LSTM) else a(x)).mean(1)),
        layer,
        nn.Linear(4, 3),
    )
    models = ManyModels(module, 2, whole=True)
    with pytest.raises(InvalidArgument, match="many models at once") as caught:
        models.try_out(torch.randn(2, 5, 4))
    assert said in str(caught.value)
    assert not any(part._forward_hooks for part in models._plain.modules())


def test_modules_that_mix_examples_are_recognised() -> None:
    mixing = Through(lambda x, a: a(x - x.mean(0)), nn.Linear(4, 3))
    assert not ManyModels(mixing, 2).one_by_one(torch.randn(2, 4))
    assert ManyModels(nn.Linear(4, 3), 2).one_by_one(torch.randn(2, 4))
    alone = Through(lambda x, a: a(x).squeeze(), nn.Linear(4, 3))  # not for batches of one
    assert ManyModels(alone, 2).one_by_one(torch.randn(2, 4))


# Independence, and a mistake planted.


@pytest.mark.parametrize("whole", [False, True])
def test_a_model_that_diverged_leaves_the_others_alone(whole: bool) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Tanh(), nn.Flatten(), nn.Linear(18, 4),
        nn.LayerNorm(4), Scaled(4), nn.Linear(4, 3),
    )  # fmt: skip
    x, y, keep = torch.randn(3, 4, 1, 5, 5), torch.randint(3, (3, 4)), torch.ones(3, 4)
    models = ManyModels(module, 3, whole=whole)
    right = models.sum_clipped(x, y, loss=cross_entropy, clip=0.3, keep=keep).clone()
    models.parameters[1] = torch.nan
    found = models.sum_clipped(x, y, loss=cross_entropy, clip=0.3, keep=keep)
    assert torch.isnan(found[1, models.used]).all()
    for run in (0, 2):
        assert torch.equal(found[run], right[run])


def test_models_that_take_turns_sum_what_they_sum_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    models = ManyModels(lenet5(1, 12, 12, 2), 5)
    shaken(models)
    given = {"x": torch.randn(5, 3, 1, 12, 12), "y": torch.randint(2, (5, 3))}
    sums = {}
    for at_once in (1, 2, 5):
        outputs = 4 * 3 * (6 * 12 * 12 + 16 * 2 * 2 + 120 + 84 + 2)  # bytes of one model
        monkeypatch.setattr(many_module, "_CACHED", outputs * at_once)
        for _ in range(2):
            found = models.sum_clipped(**given, loss=cross_entropy, clip=0.3, keep=torch.ones(5, 3))
        assert models._at_once == at_once
        sums[at_once] = found.clone()
        assert models._tape.runs == 5
        assert all(len(own) == 5 for _, layer in models._layers for own in layer.own.values())
    torch.testing.assert_close(sums[1], sums[5])
    torch.testing.assert_close(sums[2], sums[5])


def test_what_does_not_count_adds_nothing() -> None:
    models = ManyModels(mlp(4, 3, 5), 2)
    x, y = torch.randn(2, 6, 4), torch.randint(3, (2, 6))
    keep = torch.tensor([[1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]).bool()
    all_of_it = models.sum_clipped(x, y, loss=cross_entropy, clip=1.0, keep=keep).clone()
    assert (all_of_it[1] == 0).all()
    two = models.sum_clipped(x[:, :2], y[:, :2], loss=cross_entropy, clip=1.0, keep=keep[:, :2])
    torch.testing.assert_close(all_of_it, two)


def test_no_example_weighs_more_than_the_clipping_norm() -> None:
    models = ManyModels(mlp(4, 3, 5), 2)
    for scale in (1e-3, 1.0, 1e6):
        x, y = scale * torch.randn(2, 1, 4), torch.randint(3, (2, 1))
        sums = models.sum_clipped(x, y, loss=cross_entropy, clip=0.01, keep=torch.ones(2, 1))
        assert (sums.double().norm(dim=1) <= 0.01 * (1 + 1e-6)).all()


def test_clipping_the_sum_instead_of_examples_is_seen() -> None:
    """What a careless implementation would give is far from what ours does."""
    torch.manual_seed(0)
    models = ManyModels(mlp(4, 3, 5), 1)
    x, y, keep = torch.randn(1, 6, 4), torch.randint(3, (1, 6)), torch.ones(1, 6)
    given = {"loss": cross_entropy, "keep": keep}
    whole = models.sum_clipped(x, y, clip=1e9, **given).clone()  # type: ignore[arg-type]
    wrong = whole * (0.5 / whole.norm()).clamp(max=1)
    truth = summed_by_definition(models, x, y, clip=0.5, **given)  # type: ignore[arg-type]
    assert off(in_order(models, wrong), truth) > 0.1


def test_the_same_norms_as_opacus_are_never_divided_by_zero() -> None:
    assert many_module._TINY == 1e-6
    models = ManyModels(nn.Linear(4, 3), 1)
    zero = models.sum_clipped(
        torch.randn(1, 2, 4),
        torch.zeros(1, 2, dtype=torch.long),
        loss=lambda outputs, _: 0 * outputs.sum(1),
        clip=1.0,
        keep=torch.ones(1, 2),
    )
    np.testing.assert_array_equal(zero.numpy(), 0)
