"""DP-FedAvg: against a plain loop, and by the laws that it promises."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

from epsilometer import gaussian_epsilon
from epsilometer.audits.federated.directions import HadamardCanaries, SphereCanaries
from epsilometer.audits.federated.rounds import (
    AdaptiveClip,
    EveryEpoch,
    FixedClip,
    OnceIn,
    PoissonCohorts,
    Schedule,
    UniformCohorts,
)
from epsilometer.audits.federated.server import FederatedRun
from epsilometer.audits.federated.simulation import FederatedTraining
from epsilometer.errors import InvalidArgument
from epsilometer.networks.ensemble import cross_entropy
from epsilometer.networks.local import local_batches
from epsilometer.networks.optimizers import SGD, Adam
from epsilometer.sampling.noise import IndependentNoise, MatrixNoise, SquareRoot, TreeNoise
from tests.oracles import FLAKE

FEATURES, CLASSES, HIDDEN = 4, 3, 5
SIZES = [1, 7, 3, 4, 9, 2, 5]
_DATA = np.random.default_rng(5)
CLIENTS = [
    (_DATA.normal(size=(n, FEATURES)).astype(np.float32), _DATA.integers(CLASSES, size=n))
    for n in SIZES
]


def module() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))


def training(**options: Any) -> FederatedTraining:
    usual: dict[str, Any] = {
        "clients": CLIENTS,
        "rounds": 5,
        "cohort": 4,
        "noise_multiplier": 0.0,
        "learning_rate": 0.3,
        "batch_size": 2,
        "epochs": 2,
        "at_once": 3,
    }
    return FederatedTraining(
        options.pop("module", None) or module(), cross_entropy, **{**usual, **options}
    )


def weights(net: nn.Module) -> torch.Tensor:
    return torch.cat([part.detach().flatten().double() for part in net.parameters()])


def canaries_of(how: FederatedTraining, count: int) -> SphereCanaries:
    return SphereCanaries(count=count, dimension=how.size, key=3)


# By definition.


def by_hand(
    how: FederatedTraining, client: Any, server: Any, seed: int, *, clip: AdaptiveClip | None = None
) -> tuple[torch.Tensor, list[float]]:
    """One training without noise, as its paper has it: client by client, in double precision."""
    rng = np.random.default_rng(seed)
    cohorts = how.participation.cohorts(len(CLIENTS), how.cohort, rounds=how.rounds, rng=rng)
    rng.integers(2**63)  # of dropout
    rng.integers(2**63)  # of noise
    net = copy.deepcopy(how.module).double()
    outer = server(net.parameters())
    norm, norms = how.clip.first, []
    for cohort in cohorts:
        batches = [
            local_batches(SIZES[who], how.batch_size, epochs=how.epochs, rng=rng) for who in cohort
        ]
        total, unclipped = torch.zeros_like(weights(net)), 0
        for who, own in zip(cohort, batches, strict=True):
            local = copy.deepcopy(net)
            inner = client(local.parameters())
            x, y = torch.from_numpy(CLIENTS[who][0]).double(), torch.from_numpy(CLIENTS[who][1])
            for batch in own:
                inner.zero_grad()
                nn.functional.cross_entropy(local(x[batch]), y[batch]).backward()
                inner.step()
            update = weights(local) - weights(net)
            length = float(update.norm())
            unclipped += length <= norm
            total += update * min(1.0, norm / length)
        start = 0
        for part in net.parameters():
            part.grad = -total[start : start + part.numel()].view_as(part) / how.cohort
            start += part.numel()
        outer.step()
        norms.append(norm)
        normal = rng.standard_normal()
        if clip is not None:
            shifted = unclipped - len(cohort) / 2 + clip.count_noise * normal
            share = min(max(shifted / how.cohort + 0.5, 0.0), 1.0)
            norm *= np.exp(-clip.learning_rate * (share - clip.quantile))
    return weights(net), norms


OPTIMIZERS = {
    "sgd": (SGD(), SGD(), torch.optim.SGD, {}, torch.optim.SGD, {}),
    "momentum": (
        SGD(),
        SGD(momentum=0.9),
        torch.optim.SGD,
        {},
        torch.optim.SGD,
        {"momentum": 0.9},
    ),
    "adam": (
        SGD(momentum=0.5),
        Adam(),
        torch.optim.SGD,
        {"momentum": 0.5},
        torch.optim.Adam,
        {},
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("clip", [FixedClip(0.4), FixedClip(1e6)], ids=["clipped", "free"])
def test_a_run_is_a_plain_loop_over_rounds_and_clients(name: str, clip: FixedClip) -> None:
    ours, servers, inner, inner_knobs, outer, outer_knobs = OPTIMIZERS[name]
    how = training(clip=clip, client_optimizer=ours, server_optimizer=servers, server_rate=0.1)
    truth, _ = by_hand(
        how,
        lambda own: inner(own, 0.3, **inner_knobs),
        lambda own: outer(own, 0.1, **outer_knobs),
        7,
    )
    run = how.train(rng=np.random.default_rng(7))
    torch.testing.assert_close(weights(run.module), truth, rtol=1e-4, atol=1e-5)


def test_an_adaptive_norm_is_followed_as_the_paper_says() -> None:
    clip = AdaptiveClip(initial=0.3, quantile=0.6, learning_rate=0.7, count_noise=1.3)
    how = training(clip=clip)
    sgd = torch.optim.SGD
    truth, norms = by_hand(how, lambda own: sgd(own, 0.3), lambda own: sgd(own, 1.0), 2, clip=clip)
    run = how.train(rng=np.random.default_rng(2))
    np.testing.assert_allclose(run.clips, norms, rtol=1e-6)
    torch.testing.assert_close(weights(run.module), truth, rtol=1e-4, atol=1e-5)


def test_one_record_and_one_step_a_client_is_a_step_of_gradient_descent() -> None:
    x, y = CLIENTS[4]
    each = [(x[i : i + 1], y[i : i + 1]) for i in range(len(y))]
    how = training(
        clients=each, rounds=1, cohort=len(y), epochs=1, learning_rate=1.0, clip=FixedClip(1e6)
    )
    run = how.train(rng=np.random.default_rng(0))
    net = copy.deepcopy(how.module).double()
    steps = torch.optim.SGD(net.parameters(), 1.0)
    outputs = net(torch.from_numpy(x).double())
    nn.functional.cross_entropy(outputs, torch.from_numpy(y)).backward()
    steps.step()
    torch.testing.assert_close(weights(run.module), weights(net), rtol=1e-4, atol=1e-5)


# Noise.


def still(**options: Any) -> FederatedTraining:
    """Clients that do not move the model: what is left is canaries and noise."""
    return training(learning_rate=1e-30, **options)


@pytest.mark.parametrize("clip", [FixedClip(2.0), AdaptiveClip(initial=2.0, count_noise=0.3)])
def test_noise_has_the_norm_of_the_round(clip: Any, rng: np.random.Generator) -> None:
    how = still(
        module=nn.Linear(FEATURES, 2000),
        clients=[(x, y) for x, y in CLIENTS],
        rounds=1,
        noise_multiplier=0.5,
        clip=clip,
        divisor=10.0,
    )
    moved = weights(how.train(rng=rng).module) - weights(how.module)
    spread = clip.value_noise(0.5) * 2.0 / 10.0
    low, high = scipy.stats.chi2.ppf([FLAKE / 2, 1 - FLAKE / 2], moved.numel())
    assert low < float((moved**2).sum()) / spread**2 < high


def test_noise_of_a_tree_goes_through_the_server(rng: np.random.Generator) -> None:
    """After 8 rounds one node is left of it, where independent noise has 8."""
    how = still(module=nn.Linear(FEATURES, 2000), rounds=8, noise_multiplier=0.5, noise=TreeNoise())
    size = how.size
    left = {}
    for noise in (TreeNoise(), IndependentNoise()):
        run = replace(how, noise=noise).train(rng=rng)
        moved = weights(run.module) - weights(how.module)
        left[type(noise)] = float((moved**2).sum()) / (0.5 / how.cohort) ** 2
    low, high = scipy.stats.chi2.ppf([FLAKE / 2, 1 - FLAKE / 2], size)
    assert low < left[TreeNoise] < high
    assert low < left[IndependentNoise] / 8 < high


# Canaries.


def test_a_canary_adds_exactly_the_clipping_norm() -> None:
    clip = AdaptiveClip(initial=0.7, quantile=0.5, learning_rate=0.5, count_noise=2.0)
    rounds = [[0, 7], [7, 8], [9]]
    how = still(rounds=3, clip=clip, participation=Schedule(rounds), divisor=4.0)
    canaries = canaries_of(how, 3)
    run = how.train(canaries=canaries, rng=np.random.default_rng(0))
    first, second, third = run.clips
    assert first != second != third
    wanted = (
        canaries.inject([0], first + second)
        + canaries.inject([1], second)
        + canaries.inject([2], third)
    )
    moved = weights(run.module) - weights(how.module)
    np.testing.assert_allclose(moved.numpy(), wanted / 4.0, rtol=1e-4, atol=1e-6)
    assert run.participations.tolist() == [2, 1, 1]
    assert run.members.tolist() == [2, 2, 1]
    assert run.unclipped.tolist() == [2, 2, 1]  # a canary is as long as allowed, and no longer


def test_what_is_seen_are_cosines_with_the_model_and_with_every_round() -> None:
    how = training(rounds=3, noise_multiplier=0.3, server_optimizer=SGD(momentum=0.9))
    canaries = canaries_of(how, 8)
    run, steps = (
        how.train(
            canaries=canaries,
            planted=5,
            repetitions=2,
            iterates=iterates,  # type: ignore[arg-type]
            rng=np.random.default_rng(0),
        )
        for iterates in ("updates", "steps")
    )
    start, end = weights(how.module), weights(run.module)
    np.testing.assert_allclose(run.moved, canaries.cosines(end - start)[:5], atol=1e-6)
    np.testing.assert_allclose(run.model, canaries.cosines(end)[:5], atol=1e-6)
    assert torch.equal(end, weights(steps.module))  # looking changes nothing
    assert (run.participations == 2).all()
    assert run.observed.shape == steps.observed.shape == (5,)
    assert run.unobserved.shape == (3,)
    assert not np.allclose(run.observed, steps.observed)  # the server's momentum is between


def test_the_first_step_is_seen_alike_in_updates_and_steps() -> None:
    how = training(rounds=1, noise_multiplier=0.3, server_optimizer=SGD(momentum=0.9))
    canaries = canaries_of(how, 4)
    runs = [
        how.train(
            canaries=canaries,
            planted=2,
            repetitions=1,
            iterates=look,  # type: ignore[arg-type]
            rng=np.random.default_rng(0),
        )
        for look in ("updates", "steps")
    ]
    np.testing.assert_allclose(runs[0].observed, runs[1].observed, atol=1e-6)
    np.testing.assert_allclose(runs[0].unobserved, runs[1].unobserved, atol=1e-6)
    np.testing.assert_allclose(runs[0].observed, runs[0].moved, atol=1e-6)


def test_canaries_among_clients_share_their_pattern() -> None:
    how = training(rounds=6, cohort=2)  # 7 clients and 5 canaries: an epoch
    run = how.train(canaries=canaries_of(how, 5), rng=np.random.default_rng(0))
    assert (run.participations == 1).all()
    assert (run.members == 2).all()


def test_the_divisor_is_the_mean_number_of_members_not_that_of_a_round() -> None:
    how = still(rounds=4, cohort=4)
    canaries = canaries_of(how, 6)
    run = how.train(canaries=canaries, repetitions=2, rng=np.random.default_rng(0))
    moved = weights(run.module) - weights(how.module)
    wanted = canaries.inject(np.arange(6), 2.0) / (4 + 6 * 2 / 4)
    np.testing.assert_allclose(moved.numpy(), wanted, rtol=1e-4, atol=1e-6)


def test_canaries_that_stay_away_have_the_null_law(rng: np.random.Generator) -> None:
    how = training(
        module=nn.Linear(FEATURES, 400),
        rounds=1,
        noise_multiplier=0.3,
    )
    run = how.train(canaries=canaries_of(how, 1000), planted=20, repetitions=1, rng=rng)
    spread = how.size**0.5 * run.unobserved
    assert scipy.stats.kstest(spread, "norm").pvalue > FLAKE


# Same seed, same run.


def test_the_same_seed_gives_the_same_run_whatever_is_looked_at() -> None:
    how = training(noise_multiplier=0.4, participation=PoissonCohorts())
    runs: list[FederatedRun] = [
        how.train(canaries=canaries_of(how, 6), rng=np.random.default_rng(4)) for _ in range(2)
    ]
    assert torch.equal(weights(runs[0].module), weights(runs[1].module))
    np.testing.assert_array_equal(runs[0].observed, runs[1].observed)
    other = how.train(canaries=canaries_of(how, 6), rng=np.random.default_rng(5))
    assert not torch.equal(weights(runs[0].module), weights(other.module))


def test_how_many_are_trained_at_once_changes_rounding_alone() -> None:
    runs = [training(at_once=at_once).train(rng=np.random.default_rng(0)) for at_once in (1, 2, 4)]
    for run in runs[1:]:
        torch.testing.assert_close(
            weights(run.module), weights(runs[0].module), rtol=1e-4, atol=1e-6
        )


# On a GPU.

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


class Recurrent(nn.Module):
    """What cannot be trained in one batch dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.lstm(x[..., None])[0][:, -1])
        return found


def recurrent() -> nn.Module:
    torch.manual_seed(1)
    return Recurrent()


@on_gpu
@pytest.mark.parametrize("family", [SphereCanaries, HadamardCanaries])
@pytest.mark.parametrize("net", [module, recurrent])
@pytest.mark.parametrize(
    "options",
    [
        {"client_optimizer": SGD(momentum=0.5), "server_optimizer": SGD(momentum=0.9)},
        {"client_optimizer": Adam(), "server_optimizer": Adam(), "server_rate": 0.01},
        {"clip": AdaptiveClip(initial=0.3, count_noise=1.0), "participation": PoissonCohorts()},
    ],
    ids=["momentum", "adam", "adaptive"],
)
def test_a_gpu_trains_what_the_cpu_does(net: Any, family: Any, options: dict[str, Any]) -> None:
    bad = list(CLIENTS)
    bad[2] = (np.full((2, FEATURES), np.nan, np.float32), np.zeros(2, np.int64))
    how = training(module=net(), clients=bad, learning_rate=0.05, **options)
    canaries = family(count=8, dimension=how.size, key=3)
    here, there = (
        replace(how, device=device).train(
            canaries=canaries,
            planted=5,
            repetitions=2,
            iterates="steps",
            rng=np.random.default_rng(7),
        )
        for device in ("cpu", "cuda")
    )
    assert next(there.module.parameters()).is_cuda
    ended = weights(here.module), weights(there.module).cpu()
    torch.testing.assert_close(*ended, rtol=1e-3, atol=1e-4)
    for name in ("clips", "members", "unclipped", "lost", "participations"):
        np.testing.assert_allclose(getattr(here, name), getattr(there, name), rtol=1e-5)
    for name in ("moved", "model", "observed", "unobserved"):
        np.testing.assert_allclose(getattr(here, name), getattr(there, name), atol=1e-3)


@on_gpu
@pytest.mark.parametrize("noise", [IndependentNoise(), TreeNoise(), MatrixNoise()], ids=repr)
def test_same_seed_same_bytes_on_a_gpu_with_noise_of_any_law(noise: Any) -> None:
    how = training(
        module=nn.Linear(FEATURES, 400), noise_multiplier=0.5, noise=noise, device="cuda"
    )
    canaries = HadamardCanaries(count=20, dimension=how.size, key=3)
    runs = [
        how.train(canaries=canaries, planted=9, repetitions=2, rng=np.random.default_rng(4))
        for _ in range(2)
    ]
    assert torch.equal(weights(runs[0].module), weights(runs[1].module))
    np.testing.assert_array_equal(runs[0].observed, runs[1].observed)
    np.testing.assert_array_equal(runs[0].moved, runs[1].moved)


def test_no_gpu_is_told() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(InvalidArgument, match="CUDA device for 'cuda'"):
        training(device="cuda").check()


# What accounting says.


@pytest.mark.parametrize(
    ("options", "asked", "sigma"),
    [
        ({"rounds": 2}, {}, 0.8),
        ({"rounds": 5}, {}, 0.8 / 3**0.5),  # two epochs and a half
        ({"rounds": 8}, {"repetitions": 4}, 0.4),
        ({"rounds": 6, "cohort": 2, "participation": OnceIn(3)}, {}, 0.8 / 2**0.5),
        ({"rounds": 9, "participation": UniformCohorts()}, {}, 0.8 / 3),
        ({"rounds": 8, "noise": TreeNoise()}, {"repetitions": 1}, 0.4),  # four levels
        ({"rounds": 8, "noise": MatrixNoise(np.eye(8))}, {"repetitions": 4}, 0.4),
        (  # 1 and ½ in each column, and rounds of a client that do not overlap
            {
                "rounds": 6,
                "cohort": 2,
                "participation": OnceIn(3),
                "noise": MatrixNoise(SquareRoot(bands=2)),
            },
            {},
            0.8 / 2.5**0.5,
        ),
    ],
)
def test_accounting_is_that_of_as_many_gaussians(
    options: dict[str, Any], asked: dict[str, Any], sigma: float
) -> None:
    found, how = training(noise_multiplier=0.8, **options).epsilon(1e-5, **asked)
    assert found == pytest.approx(gaussian_epsilon(sigma, 1e-5))
    assert "Gaussian" in how


def test_poisson_cohorts_are_accounted_as_such() -> None:
    how = training(noise_multiplier=1.0, rounds=10, participation=PoissonCohorts(), cohort=1)
    found, said = how.epsilon(1e-5, canaries=93)  # a chance of one in a hundred
    assert "PLD" in said
    assert 0 < found < gaussian_epsilon(1.0, 1e-5)
    assert training().epsilon(1e-5) == (np.inf, "no noise")


# What goes wrong.


def test_updates_that_are_not_finite_are_left_out_and_counted() -> None:
    bad = list(CLIENTS)
    bad[2] = (np.full((2, FEATURES), np.nan), np.zeros(2, np.int64))
    everyone = Schedule([range(7)] * 2)
    how = training(clients=bad, rounds=2, participation=everyone)
    run = how.train(rng=np.random.default_rng(0))
    assert run.lost.tolist() == [1, 1]
    assert torch.isfinite(weights(run.module)).all()
    assert run.members.tolist() == [7, 7]


def test_a_model_that_diverges_is_told() -> None:
    how = training(server_rate=1e38, noise_multiplier=100.0, rounds=3)
    with pytest.raises(InvalidArgument, match="smaller server_rate"):
        how.train(rng=np.random.default_rng(0))


def test_no_canary_in_any_round_is_told() -> None:
    how = training(rounds=1, participation=Schedule([[0, 1]]))
    with pytest.raises(InvalidArgument, match="none of 3 takes part"):
        how.train(canaries=canaries_of(how, 3), rng=np.random.default_rng(0))


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"clients": []}, "at least one client"),
        ({"cohort": 8}, "at most 7 clients"),
        ({"rounds": 0}, "rounds"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise_multiplier": np.inf}, "finite"),
        ({"noise_multiplier": 1.0, "clip": AdaptiveClip(count_noise=0.4)}, "count_noise above 0.5"),
        ({"noise": TreeNoise(), "clip": AdaptiveClip(count_noise=9.0)}, "FixedClip"),
        ({"noise": MatrixNoise(), "clip": AdaptiveClip(count_noise=9.0)}, "FixedClip"),
        ({"noise": MatrixNoise(np.eye(4)), "noise_multiplier": 1.0}, "at least 5 rounds"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"divisor": 0.0}, "divisor"),
    ],
)
def test_bad_trainings_are_told(options: dict[str, Any], part: str) -> None:
    with pytest.raises(InvalidArgument, match=part):
        training(**options).train(rng=np.random.default_rng(0))


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"canaries": SphereCanaries(count=3, dimension=5, key=0)}, "over 43 trainable parameters"),
        ({"canaries": SphereCanaries(count=44, dimension=43, key=0)}, "at most 43 canaries"),
        ({"canaries": SphereCanaries(count=3, dimension=43, key=0), "planted": 4}, "at most 3"),
        ({"canaries": SphereCanaries(count=3, dimension=43, key=0), "repetitions": 9}, "5 repet"),
        ({"repetitions": 2}, "canaries to plant"),
        ({"iterates": "all"}, "updates, steps, none"),
    ],
)
def test_bad_canaries_are_told(options: dict[str, Any], part: str) -> None:
    with pytest.raises(InvalidArgument, match=part):
        training().train(rng=np.random.default_rng(0), **options)


def test_every_epoch_is_the_default() -> None:
    assert training().participation == EveryEpoch()
