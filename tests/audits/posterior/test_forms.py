"""Samplers of predictions: their laws, what they leave alone, and what they refuse."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.spatial
import scipy.stats
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from epsilometer.audits.posterior.forms import (
    DeepEnsemble,
    FromCallable,
    GaussianWeights,
    McDropout,
    PosteriorSampler,
    check_probabilities,
    laplace_last_layer,
    predict_vector,
)
from epsilometer.errors import InvalidArgument
from epsilometer.networks.ensemble import Trained
from epsilometer.networks.many import ManyModels
from tests.oracles import FLAKE

X = np.array([0.3, -1.0, 0.7, 0.2])


def net(seed: int = 0, dropout: float = 0.5) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3)
    )


class Functional(nn.Module):
    def __init__(self, *, obeys: bool = True) -> None:
        super().__init__()
        self.first, self.second, self.obeys = nn.Linear(4, 8), nn.Linear(8, 3), obeys

    def forward(self, x: Any) -> Any:
        hidden = self.first(x).tanh()
        return self.second(F.dropout(hidden, 0.5, training=self.training and self.obeys))


class Generous(nn.Module):
    """Writes over what it is given."""

    def forward(self, x: Any) -> Any:
        return F.dropout(x, 0.5, self.training, inplace=True).add_(1.0)


def no_further(found: np.ndarray, truth: float, sigma: float) -> bool:
    return bool(abs(found - truth) < scipy.stats.norm.isf(FLAKE / 2) * sigma)


# MC dropout


def by_hand(module: nn.Sequential, x: np.ndarray) -> np.ndarray:
    """The law of MC dropout with p = 1/2: all masks of the 8 hidden units, each as likely."""
    masks = (np.arange(256)[:, None] >> np.arange(8)) & 1
    module.eval()
    with torch.no_grad():
        hidden = module[:3](torch.tensor(x[None], dtype=torch.float32))
        return module[4](hidden * torch.tensor(masks) * 2).softmax(1).double().numpy()


@pytest.mark.parametrize("training", [True, False])
def test_samples_have_the_law_of_independent_masks(
    training: bool, rng: np.random.Generator
) -> None:
    module = net()
    law = by_hand(module, X)
    module.train(training)
    drawn = McDropout(module).predict(X, 5000, rng)
    apart = np.abs(drawn[:, None] - law).max(2)
    assert apart.min(1).max() < 1e-6  # single precision: every sample is that of some mask
    counts = np.bincount(apart.argmin(1), minlength=256)
    assert scipy.stats.chisquare(counts).pvalue > FLAKE


def test_the_variance_of_means_falls_as_one_over_the_number_of_samples(
    rng: np.random.Generator,
) -> None:
    sampler, repeats = McDropout(net()), 400
    truth = by_hand(sampler.module, X)[:, 0].var()
    for samples in (1, 8, 64):
        means = [sampler.predict(X, samples, rng)[:, 0].mean() for _ in range(repeats)]
        # A variance of so many near-normal means: kurtosis ≤ 3 here, so chi-square is generous.
        low, high = scipy.stats.chi2.ppf([FLAKE / 2, 1 - FLAKE / 2], repeats - 1) / (repeats - 1)
        assert low < np.var(means, ddof=1) / (truth / samples) < high


def test_samples_across_forward_passes_are_independent(rng: np.random.Generator) -> None:
    drawn = McDropout(net()).predict(X, 2048, rng)  # two passes of 1024
    assert not np.array_equal(drawn[:1024], drawn[1024:])
    correlation = np.corrcoef(drawn[:1024, 0], drawn[1024:, 0])[0, 1]
    assert no_further(correlation, 0, 1024**-0.5)


def test_same_rng_same_samples_and_torch_goes_on_as_before() -> None:
    sampler = McDropout(net())
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first, again, other = (sampler.predict(X, 9, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    assert first.tobytes() == again.tobytes()
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("training", [True, False])
def test_the_module_is_left_as_it_was(training: bool, rng: np.random.Generator) -> None:
    module = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), *net())
    module.train(training)
    module[1].train(not training)  # a part that its user froze, or not
    modes = [part.training for part in module.modules()]
    before = {name: value.clone() for name, value in module.state_dict().items()}
    sampler = McDropout(module)
    sampler.predict(X, 5, rng)
    predict_vector(sampler, X)
    assert [part.training for part in module.modules()] == modes
    after = module.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_the_module_is_left_as_it_was_after_an_error(rng: np.random.Generator) -> None:
    module = net().eval()
    with pytest.raises(RuntimeError):
        McDropout(module).predict(np.ones(3), 5, rng)
    assert not any(part.training for part in module.modules())


def test_dropout_may_be_a_function_of_the_forward_pass(rng: np.random.Generator) -> None:
    module = Functional().eval()
    drawn = McDropout(module).predict(X, 50, rng)
    assert len(np.unique(drawn, axis=0)) > 10
    with torch.no_grad():
        plain = module(torch.tensor(X[None], dtype=torch.float32)).softmax(1).numpy()[0]
    np.testing.assert_allclose(predict_vector(McDropout(module), X), plain, rtol=1e-5)


def test_a_module_may_write_over_its_input(rng: np.random.Generator) -> None:
    x = np.array([1.0, 2.0])
    drawn = McDropout(Generous()).predict(x, 2000, rng)
    assert len(np.unique(drawn.round(6), axis=0)) == 4  # of two features, each there or not
    assert x.tolist() == [1.0, 2.0]


def test_few_units_that_happen_to_be_dropped_alike_are_no_error() -> None:
    module = nn.Sequential(nn.Linear(4, 1), nn.Dropout(0.5), nn.Linear(1, 2))
    for seed in range(20):  # two samples are equal half of the time
        assert McDropout(module).predict(X, 2, np.random.default_rng(seed)).shape == (2, 2)


@pytest.mark.parametrize("samples", [1, 2, 50])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(4, 3)),
        lambda: net(dropout=0.0),
        lambda: net(dropout=1.0),
        lambda: Functional(obeys=False),
    ],
)
def test_a_module_without_dropout_at_work_is_refused(
    make: Callable[[], nn.Module], samples: int, rng: np.random.Generator
) -> None:
    with pytest.raises(InvalidArgument, match=r"a module with dropout.*training=self.training"):
        McDropout(make()).predict(X, samples, rng)


def test_logits_that_are_none_are_told(rng: np.random.Generator) -> None:
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3), nn.Unflatten(1, (3, 1)))
    with pytest.raises(InvalidArgument, match=r"logits of shape \(n, classes\), got \(2, 3, 1\)"):
        McDropout(module).predict(X, 2, rng)
    broken = net()
    with torch.no_grad():
        broken[0].weight.fill_(np.nan)
    with pytest.raises(InvalidArgument, match=r"finite logits.*diverge"):
        McDropout(broken).predict(X, 2, rng)


@pytest.mark.parametrize("samples", [0, -1, 1.5, True])
def test_a_number_of_samples_is_whole(samples: Any, rng: np.random.Generator) -> None:
    for sampler in every_kind():
        with pytest.raises(InvalidArgument, match="samples"):
            sampler.predict(X, samples, rng)


def every_kind() -> list[PosteriorSampler]:
    return [
        McDropout(net()),
        DeepEnsemble([net(0), net(1)]),
        GaussianWeights(net(), {"4.bias": 0.5}),
        FromCallable(lambda x, samples, rng: np.full((samples, 2), 0.5)),
    ]


def test_every_sampler_answers_alike(rng: np.random.Generator) -> None:
    for sampler in every_kind():
        drawn = sampler.predict(X, 2, rng)
        assert drawn.ndim == 2
        assert len(drawn) == 2
        np.testing.assert_allclose(drawn.sum(1), 1, rtol=1e-9)
    assert predict_vector(DeepEnsemble([net(0), net(1)]), X) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_samples_on_a_gpu_have_the_law_of_independent_masks(rng: np.random.Generator) -> None:
    module = net()
    law = by_hand(module, X)
    drawn = McDropout(module.cuda()).predict(X, 5000, rng)
    counts = np.bincount(np.abs(drawn[:, None] - law).max(2).argmin(1), minlength=256)
    assert scipy.stats.chisquare(counts).pvalue > FLAKE
    with pytest.raises(InvalidArgument, match="a module with dropout"):
        McDropout(net(dropout=0.0).cuda()).predict(X, 5, rng)


# Ensembles


def test_samples_of_an_ensemble_are_its_members_none_twice(rng: np.random.Generator) -> None:
    members = [net(seed) for seed in range(5)]
    members[2].eval()
    modes = [[part.training for part in module.modules()] for module in members]
    alone = np.array([McDropout(module).vector(X) for module in members])
    firsts = set()
    for _ in range(60):  # a member is never the first with chance 5 · 0.8^60 = 8e-6
        drawn = DeepEnsemble(members).predict(X, 3, rng)
        which = [int(np.flatnonzero((row == alone).all(1))[0]) for row in drawn]
        assert len(set(which)) == 3
        firsts.add(which[0])
    assert firsts == set(range(5))
    assert [[part.training for part in module.modules()] for module in members] == modes


def test_an_ensemble_of_one_and_more_samples_than_members_are_refused(
    rng: np.random.Generator,
) -> None:
    with pytest.raises(InvalidArgument, match=r"at least two modules.*got 1"):
        DeepEnsemble([net()])
    with pytest.raises(InvalidArgument, match="at most 2 samples of as many members, got 3"):
        DeepEnsemble([net(0), net(1)]).predict(X, 3, rng)


# Laws of weights


def logits_of(drawn: np.ndarray) -> np.ndarray:
    """Differences of logits, which probabilities tell exactly."""
    return np.log(drawn[:, 1:] / drawn[:, :1])


def test_weights_of_their_own_spread_give_logits_of_a_normal_law(rng: np.random.Generator) -> None:
    linear = nn.Linear(4, 3).double()
    std = np.abs(rng.normal(size=(3, 4)))
    samples = 4000
    drawn = logits_of(
        GaussianWeights(linear, {"weight": std, "bias": 0.3}).predict(X, samples, rng)
    )
    variances = (std**2 @ X**2) + 0.3**2  # of each logit
    truth = np.diag(variances[1:]) + variances[0]
    with torch.no_grad():
        mean = linear(torch.tensor(X)).numpy()
    for k in range(2):
        sigma = (truth[k, k] / samples) ** 0.5
        assert no_further(drawn[:, k].mean(), mean[k + 1] - mean[0], sigma)
    assert_covariance(drawn, truth)


def assert_covariance(drawn: np.ndarray, truth: np.ndarray) -> None:
    """Entries of a normal sample's covariance have variance (Σ_ii Σ_jj + Σ_ij²)/n."""
    found = np.cov(drawn.T, ddof=1)
    sizes = np.outer(np.diag(truth), np.diag(truth))
    for at in np.ndindex(truth.shape):
        assert no_further(found[at], truth[at], ((sizes[at] + truth[at] ** 2) / len(drawn)) ** 0.5)


def test_weights_of_a_joint_law_give_logits_of_its_covariance(rng: np.random.Generator) -> None:
    linear = nn.Linear(4, 3).double()
    factor = np.tril(rng.normal(size=(15, 15))) / 4
    sampler = GaussianWeights(linear, factor, ("weight", "bias"))
    drawn = logits_of(sampler.predict(X, 4000, rng))
    # A logit is Σ w_ij x_j + b_i; weights are numbered row by row, then biases.
    to_logits = np.hstack([np.kron(np.eye(3), X), np.eye(3)])
    differences = np.array([[-1, 1, 0], [-1, 0, 1]])
    root = differences @ to_logits @ factor
    assert_covariance(drawn, root @ root.T)


@pytest.mark.parametrize(
    ("spread", "joint", "said"),
    [
        ({}, (), "Expected spreads by name"),
        ({"wieght": 1.0}, (), r"\['wieght'\], it has weight, bias"),
        ({"weight": 1.0}, ("bias",), "or a matrix and the names in joint"),
        ({"weight": -1.0}, (), "of weight, finite and not negative"),
        ({"weight": np.nan}, (), "of weight, finite"),
        ({"bias": np.ones((3, 1))}, (), r"of shape \(3,\), got shape \(3, 1\)"),
        (np.eye(3), (), "the names in joint"),
        (np.eye(4), ("bias",), r"3 weights, shape \(3, any\), got shape \(4, 4\)"),
        (np.full((3, 3), np.inf), ("bias",), "finite factor"),
    ],
)
def test_laws_of_weights_that_fit_no_parameters_are_told(
    spread: Any, joint: tuple[str, ...], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        GaussianWeights(nn.Linear(4, 3), spread, joint)


@pytest.mark.parametrize("bias", [True, False])
def test_laplace_is_the_inverse_of_the_hessian(bias: bool, rng: np.random.Generator) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3, bias=bias)).double()
    features, precision = rng.normal(size=(20, 4)), 0.7
    law = laplace_last_layer(module, features, precision=precision)
    hidden = module[:2](torch.tensor(features)).detach()
    labels = torch.tensor(rng.integers(0, 3, 20))  # of which the Hessian does not know

    def loss(flat: Any) -> Any:
        logits = hidden @ flat[:15].view(3, 5).T
        logits = logits + flat[15:] if bias else logits
        prior = precision / 2 * (flat**2).sum()
        return F.cross_entropy(logits, labels, reduction="sum") + prior

    flat = torch.cat([parameter.detach().flatten() for parameter in module[2].parameters()])
    hessian = torch.autograd.functional.hessian(loss, flat).numpy()
    assert law.joint == (("2.weight", "2.bias") if bias else ("2.weight",))
    factor = np.asarray(law.spread)
    np.testing.assert_allclose(factor @ factor.T @ hessian, np.eye(len(flat)), atol=1e-9)
    np.testing.assert_allclose(law.vector(X), McDropout(module).vector(X))
    assert law.predict(X, 4, rng).shape == (4, 3)


class LastIsNotLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.logits, self.hidden = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.logits(self.hidden(x))


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.Tanh()), "last layer is nn.Linear, got Tanh"),
        (LastIsNotLast(), "'hidden'.*to give its logits, it does not"),
        (nn.Linear(2000, 11), "at most 20000 weights.*got 22011"),
    ],
)
def test_laplace_of_no_last_layer_is_told(module: nn.Module, said: str) -> None:
    features = np.zeros((2, 4))
    with pytest.raises(InvalidArgument, match=said):
        laplace_last_layer(module, features)


# Anybody's function


@pytest.mark.parametrize(
    ("given", "classes", "said"),
    [
        ([[0.5, 0.5]], None, r"shape \(2, classes\), got \(1, 2\)"),
        ([0.5, 0.5], None, r"got \(2,\)"),
        ([[0.5, 0.5]] * 2, 3, r"shape \(2, 3\), got \(2, 2\)"),
        ([[0.5, 0.5], [0.5, np.nan]], None, "nan or infinity"),
        ([[0.5, 0.5], [0.6, 0.5]], None, "miss it by 0.1"),
        ([[1.2, -0.2], [0.5, 0.5]], None, "values from -0.2.*softmax"),
        ([[2.0, -1.0], [0.5, 3.0]], None, "Are these logits"),
        ([[0.5, 0.5], [1.0]], None, "as many in each"),
        ([["a", "b"]] * 2, None, "rows of numbers"),
        (None, None, "got"),
        (np.zeros((2, 0)), None, "miss it by 1"),
    ],
)
def test_what_a_function_returns_is_checked(
    given: Any, classes: int | None, said: str, rng: np.random.Generator
) -> None:
    sampler = FromCallable(lambda x, samples, rng: given, classes)
    with pytest.raises(InvalidArgument, match=said):
        sampler.predict(X, 2, rng)


def test_rounded_probabilities_are_taken_where_the_unit_is_said() -> None:
    thirds = [[0.33, 0.33, 0.33]]
    assert check_probabilities([[1 / 3, 1 / 3, 0.334]], 1).shape == (1, 3)  # by less than 1e-3
    with pytest.raises(InvalidArgument, match="Are they rounded"):
        check_probabilities(thirds, 1)
    assert check_probabilities(thirds, 1, unit=0.01).tolist() == thirds
    with pytest.raises(InvalidArgument, match=r"miss it by 0\.1"):
        check_probabilities([[0.3, 0.3, 0.3]], 1, unit=0.01)


def test_a_function_is_given_what_was_asked_for(rng: np.random.Generator) -> None:
    asked: list[Any] = []

    def function(x: Any, samples: int, given: np.random.Generator) -> Any:
        asked.append((x, samples, given))
        return given.dirichlet([1.0, 1.0], samples)

    assert FromCallable(function).predict(X, 3, rng).shape == (3, 2)
    assert asked == [(X, 3, rng)]


# Many models at once


def trained(module: nn.Module, runs: int, seed: int = 0) -> Trained:
    """Models with weights of their own, not trained."""
    models = ManyModels(module, runs)
    models.reset("fresh", torch.Generator().manual_seed(seed))
    none = np.zeros((runs, 1, 1, 0))
    return Trained(
        observations=none,
        others=none,
        moved=none[:, 0, 0],
        drawn=none > 0,
        diverged=none[:, 0, 0, :] > 0,
        models=models,
    )


class Nested(nn.Module):
    """Not a sequence: cannot be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = plain_net()

    def forward(self, x: Any) -> Any:
        return self.inner(x)


def plain_net(dropout: float = 0.5) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3))


def image_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)),
        nn.Conv2d(1, 3, 2, padding=1),
        nn.Dropout2d(0.5),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(27, 3),
    )


def overwriting_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), Generous(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    "make",
    [
        plain_net,
        Nested,
        image_net,
        Functional,
        overwriting_net,
        lambda: nn.Sequential(nn.Dropout(0.2), plain_net()),
    ],
)
def test_samples_of_many_models_have_the_law_of_each_alone(
    make: Callable[[], nn.Module], rng: np.random.Generator
) -> None:
    found, features, count = trained(make(), 3), np.stack([X, -X]), 3000
    drawn = found.samples(features, count, rng=rng)
    assert drawn.shape == (3, 2, count, 3)
    np.testing.assert_allclose(drawn.sum(-1), 1, rtol=1e-5)
    for run in range(3):
        alone = McDropout(found.models.model(run))
        for record, x in enumerate(features):
            here, there = drawn[run, record, :, 0], alone.predict(x, count, rng)[:, 0]
            error = ((here.var() + there.var()) / count) ** 0.5
            assert no_further(here.mean() - there.mean(), 0, error)
            rounded = (here.astype(np.float64).round(5), there.round(5))
            assert scipy.stats.ks_2samp(*rounded).pvalue > FLAKE


def test_same_rng_same_samples_of_many_models() -> None:
    found = trained(plain_net(), 4)
    first, again, other = (
        found.samples(X[None], 20, rng=np.random.default_rng(seed)) for seed in (0, 0, 1)
    )
    assert first.tobytes() == again.tobytes()
    assert first.tobytes() != other.tobytes()


def test_nothing_is_kept_for_gradients_that_nobody_asks_for(rng: np.random.Generator) -> None:
    found = trained(plain_net(), 2)
    for ask in (lambda: found.samples(X[None], 5, rng=rng), lambda: found.probabilities(X[None])):
        ask()
        assert not found.models._tape.calls


def test_samples_are_independent_between_runs_records_and_each_other(
    rng: np.random.Generator,
) -> None:
    models = ManyModels(plain_net(), 2)  # of equal weights: only masks can differ
    found = trained(plain_net(), 2)
    found.models.parameters.copy_(models.parameters)
    drawn = found.samples(np.stack([X, X]), 4000, rng=rng)[..., 0].astype(np.float64)
    rows = [*drawn.reshape(4, -1), drawn[0, 0, np.r_[1:4000, 0]]]
    correlations = np.corrcoef(rows)[np.triu_indices(5, 1)]
    assert all(no_further(each, 0, 4000**-0.5) for each in correlations)


def test_samples_do_not_depend_on_how_many_are_held_at_once(rng: np.random.Generator) -> None:
    count = 3000  # of each record; 2048 of both are held for each run, and end anywhere
    found, alone = trained(plain_net(), 2), McDropout(plain_net())
    drawn = found.samples(np.stack([X, -X]), count, rng=rng)
    assert drawn.shape == (2, 2, count, 3)
    for run in range(2):
        alone = McDropout(found.models.model(run))
        for record, x in enumerate((X, -X)):
            possible = alone.predict(x, 20_000, rng)  # each of 256 masks, but with chance 1e-31
            apart, _ = scipy.spatial.KDTree(possible).query(drawn[run, record], p=np.inf)
            assert apart.max() < 1e-6


def test_many_models_without_dropout_are_refused(rng: np.random.Generator) -> None:
    for module in (nn.Sequential(nn.Linear(4, 3)), plain_net(0.0), Functional(obeys=False)):
        with pytest.raises(InvalidArgument, match="a module with dropout"):
            trained(module, 2).samples(X[None], 5, rng=rng)
    with pytest.raises(InvalidArgument, match="count"):
        trained(plain_net(), 2).samples(X[None], 0, rng=rng)
