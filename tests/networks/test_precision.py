"""Products of rounded numbers: the same audit in distribution, and the same exact noise."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

import epsilometer as em
from epsilometer.audits.dpsgd.canaries import TargetCanary, random_direction
from epsilometer.audits.dpsgd.game import GradientGame, RecordGame
from epsilometer.audits.dpsgd.subject import make_job
from epsilometer.core.record import Record
from epsilometer.core.scores import Sides
from epsilometer.engine.request import Request
from epsilometer.errors import InvalidArgument
from epsilometer.networks import many as many_module
from epsilometer.networks.ensemble import EnsembleDPSGD, Trained, cross_entropy
from epsilometer.networks.many import ManyModels
from epsilometer.networks.models import lenet5, mlp
from epsilometer.networks.trainer import Precision
from tests.networks.nets import Attention, Through, off
from tests.oracles import FLAKE

_LARGEST = 2**-7  # relative error of a rounded number, twice: of both factors
# Smooth ones: rounding that crosses a kink switches a whole gradient on or off.
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 3)), (20,)),
    "lenet5": (lambda: lenet5(1, 12, 12, 3), (1, 12, 12)),
    "attention": (
        lambda: nn.Sequential(nn.Linear(4, 8), Attention(8), nn.LayerNorm(8), nn.Flatten(),
                              nn.Linear(40, 3)),
        (5, 4),
    ),
    "norm and unknown": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, groups=2),
                              nn.Flatten(), nn.Linear(16, 3)),
        (1, 6, 6),
    ),
}  # fmt: skip


def _sum(models: ManyModels, x: Tensor, keep: Tensor) -> Tensor:
    y = torch.arange(x.shape[1]).expand(x.shape[:2]) % 3
    return models.sum_clipped(x, y, loss=cross_entropy, clip=0.01, keep=keep).clone()


@pytest.mark.parametrize(("build", "shape"), NETS.values(), ids=NETS.keys())
def test_sums_differ_by_rounding_alone(
    build: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    module = build()
    x, keep = torch.randn(2, 12, *shape), torch.ones(2, 12)
    exact = _sum(ManyModels(module, 2), x, keep)
    rounded = _sum(ManyModels(module, 2, precision="bfloat16"), x, keep)
    assert rounded.dtype == torch.float32
    assert 0 < off(rounded, exact.double()) < 10 * _LARGEST  # rounded in each layer, both ways


@pytest.mark.parametrize(("build", "shape"), NETS.values(), ids=NETS.keys())
def test_clipped_gradients_are_hardly_longer_than_the_clipping_norm(
    build: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    models = ManyModels(build(), 2, precision="bfloat16")
    for seen in range(8):
        keep = torch.zeros(2, 8)
        keep[:, seen] = 1
        norms = _sum(models, torch.randn(2, 8, *shape), keep).norm(dim=1)
        assert bool((norms <= 0.01 * (1 + _LARGEST)).all())
        assert bool((norms >= 0.01 * (1 - 2 * _LARGEST)).all())  # all are clipped


def _make_training(precision: Precision, *, runs: int) -> EnsembleDPSGD:
    """Small networks, noise and steps with which an audit proves something."""
    return EnsembleDPSGD(
        mlp(4, 3, 8), cross_entropy, runs=runs, noise_multiplier=0.6, learning_rate=0.5,
        batch_size=4, epochs=2, precision=precision,
    )  # fmt: skip


def _make_records() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(12, 4)).astype(np.float32), np.arange(12) % 3


def _make_canary(training: EnsembleDPSGD) -> TargetCanary:
    direction = random_direction(training.size, rng=np.random.default_rng(1))
    return TargetCanary(adversary="target_canary", direction=direction, batch_size=4)


def _train(precision: Precision) -> Trained:
    training = _make_training(precision, runs=3)
    rng = np.random.default_rng(5)
    return training.train(*_make_records(), rng=rng, canaries=_make_canary(training))


def test_noise_along_the_canary_stays_exact() -> None:
    """The noise and the canary are the same doubles in every precision."""
    seen = [_train(precision) for precision in ("float32", "bfloat16")]
    exact, rounded = (each.observations - each.others for each in seen)
    assert exact.dtype == np.float64
    np.testing.assert_allclose(rounded, exact, rtol=0, atol=1e-14)
    assert not np.array_equal(seen[0].others, seen[1].others)  # gradients of records are rounded


def test_same_seed_same_bytes() -> None:
    one, two = (_train("bfloat16") for _ in range(2))
    assert torch.equal(one.models.parameters, two.models.parameters)


def _play(precision: Precision, runs: int, *, seed: int) -> dict[str, Sides]:
    """Scores of an audit by all updates, by the final model, and by its loss on a record."""
    training, (features, labels) = _make_training(precision, runs=2000), _make_records()
    rng = np.random.default_rng(seed)
    by_gradient = GradientGame(
        training=training,
        features=features,
        labels=labels,
        canary=_make_canary(training),
        views=("updates", "model"),
    )
    by_loss = RecordGame(
        training=training,
        features=features,
        labels=labels,
        record=Record(features=3 * features[0], label=1),
        adjacency="zero_out",
    )
    return {**by_gradient.play(runs, rng), **by_loss.play(runs, rng)}


def _find_gap(one: Sides, other: Sides) -> float:
    """Largest difference of the curves' error rates at the same threshold."""
    return max(
        float(scipy.stats.ks_2samp(a, b, method="asymp").statistic)
        for a, b in zip(one, other, strict=True)
    )


def _allow_gap(runs: int) -> float:
    """What equal laws exceed in a share FLAKE of tests (Dvoretzky, Kiefer and Wolfowitz)."""
    return float(np.sqrt(np.log(2 * 2 * 3 / FLAKE) / runs))  # two sides of three views


@pytest.mark.parametrize("runs", [2000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_audits_agree_in_distribution(runs: int) -> None:
    exact, rounded = (
        _play(precision, runs, seed=seed) for seed, precision in enumerate(("float32", "bfloat16"))
    )
    for view, sides in exact.items():
        assert _find_gap(sides, rounded[view]) < _allow_gap(runs), view
        auc = scipy.stats.mannwhitneyu(*sides).statistic / runs**2
        assert auc > 0.55, view  # or there would be nothing to compare


def test_a_precision_that_clips_to_another_norm_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = _play("float32", 2000, seed=0)
    monkeypatch.setattr(many_module, "round_down", lambda weights, dtype: 2 * weights)
    wrong = _play("bfloat16", 2000, seed=1)
    assert max(_find_gap(exact[view], wrong[view]) for view in exact) > _allow_gap(2000)


def test_the_precision_is_part_of_the_plan() -> None:
    plans = []
    for precision in ("float32", "bfloat16"):
        subject = em.DPSGD(
            mlp(4, 3, 8), _make_records(), runs=4, learning_rate=0.1, batch_size=4, at_once=2,
            noise_multiplier=1.0, precision=precision,
        )  # fmt: skip
        job = make_job(subject, Request(claim=em.Claim(1.0, delta=1e-5), delta=1e-5))
        plans.append(job.plan)
    assert plans[0].hash != plans[1].hash
    assert [plan.parameters["settings"]["precision"] for plan in plans] == ["float32", "bfloat16"]


@pytest.mark.parametrize(("precision", "said"), [("half", "a precision of"), ("tf32", "on a CPU")])
def test_a_precision_that_cannot_be_had_is_refused(precision: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        _make_training(precision, runs=1)


def test_a_module_that_multiplies_by_itself_is_refused_with_the_way_out() -> None:
    fixed = torch.eye(8)
    module = Through(lambda x, a, b: b(a(x) @ fixed), nn.Linear(4, 8), nn.Linear(8, 3))
    training = dataclasses.replace(_make_training("bfloat16", runs=1), module=module)
    with pytest.raises(InvalidArgument, match="Give precision='float32'"):
        training.check(*_make_records())
    dataclasses.replace(training, precision="float32").check(*_make_records())
