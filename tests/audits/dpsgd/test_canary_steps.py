import numpy as np
import pytest
import scipy.stats

from epsilometer.audits.dpsgd.canary_run import CanarySteps, blind_views, known_views
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray


def played(
    rng: np.random.Generator,
    *,
    steps: int = 12,
    chance: float = 0.25,
    noise: float = 1.0,
    canaries: int = 400,
    epoch: IntArray | None = None,
    same: bool = False,
    lingering: float = 0.0,
) -> tuple[CanarySteps, FloatArray]:
    planted = rng.random(canaries) < 0.5
    took = rng.random((steps, canaries)) < chance
    if epoch is not None:
        took[:] = False
        for e in np.unique(epoch):
            at = np.flatnonzero(epoch == e)
            took[rng.choice(at, canaries), np.arange(canaries)] = True
    signal = (took & planted).astype(float)
    for t in range(1, steps):
        signal[t] += lingering * signal[t - 1]
    hiding = rng.normal(0, noise, (1 if same else steps, canaries))
    seen = CanarySteps(
        seen=signal + hiding,
        took=took,
        noise=np.full(steps, noise),
        chance=np.full(steps, chance),
        blur=np.zeros(steps),
        epoch=epoch,
    )
    return seen, planted


def auc(scores: FloatArray, planted: FloatArray) -> float:
    inside, outside = scores[planted], scores[~planted]
    return float(scipy.stats.mannwhitneyu(inside, outside).statistic / inside.size / outside.size)


def test_who_does_not_know_the_batches_does_not_look_at_them(rng: np.random.Generator) -> None:
    steps, _ = played(rng)
    other = CanarySteps(**{**vars(steps), "took": ~steps.took})
    for name, scores in blind_views(steps).items():
        np.testing.assert_array_equal(scores, blind_views(other)[name])
    assert any(
        not np.array_equal(scores, known_views(other)[name])
        for name, scores in known_views(steps).items()
    )


def test_likelihood_ratio_is_that_of_the_densities(rng: np.random.Generator) -> None:
    steps, _ = played(rng, canaries=5, noise=0.7)
    with_, without = (scipy.stats.norm.pdf(steps.seen, mean, 0.7) for mean in (1, 0))
    expected = np.log(0.75 + 0.25 * with_ / without).sum(axis=0)
    np.testing.assert_allclose(blind_views(steps)["likelihood ratio"], expected, rtol=1e-9)


def test_likelihood_ratio_of_an_epoch_is_the_mean_over_its_steps(rng: np.random.Generator) -> None:
    epoch = np.repeat([0, 1, 2], 4)
    steps, _ = played(rng, canaries=5, epoch=epoch)
    ratios = np.exp(steps.seen - 0.5)
    expected = sum(np.log(ratios[epoch == e].mean(axis=0)) for e in range(3))
    np.testing.assert_allclose(blind_views(steps)["likelihood ratio"], expected, rtol=1e-9)


def test_an_epoch_broken_off_may_have_missed_the_canary(rng: np.random.Generator) -> None:
    steps, _ = played(rng, canaries=5, steps=2, epoch=np.zeros(2, int))
    expected = np.log(0.5 + 0.25 * np.exp(steps.seen - 0.5).sum(axis=0))
    np.testing.assert_allclose(blind_views(steps)["likelihood ratio"], expected, rtol=1e-9)


def test_the_likelihood_ratio_tells_most_of_what_is_right(rng: np.random.Generator) -> None:
    steps, planted = played(rng, canaries=20_000, noise=0.5)
    found = {name: auc(scores, planted) for name, scores in blind_views(steps).items()}
    assert found["likelihood ratio"] == max(found.values())
    assert auc(known_views(steps)["own steps"], planted) > found["likelihood ratio"] + 0.01


def test_noise_that_repeats_is_seen_through(rng: np.random.Generator) -> None:
    steps, planted = played(rng, same=True, noise=10.0, steps=40)
    assert auc(blind_views(steps)["differences"], planted) > 0.99
    assert auc(blind_views(steps)["likelihood ratio"], planted) < 0.7
    assert auc(known_views(steps)["own steps minus the others"], planted) > 0.99


def test_what_lingers_is_found_in_later_steps(rng: np.random.Generator) -> None:
    steps, planted = played(rng, lingering=0.9, noise=3.0, canaries=5000, steps=30, chance=0.1)
    views = known_views(steps)
    assert auc(views["own steps and later ones"], planted) > auc(views["own steps"], planted) + 0.05


def test_where_all_take_part_in_all_steps_one_view_is_enough(rng: np.random.Generator) -> None:
    steps, planted = played(rng, chance=1.0, noise=3.0, canaries=4000)
    assert list(blind_views(steps)) == ["sum"]
    assert list(known_views(steps)) == ["own steps", "own steps and later ones"]
    # 12 steps of noise 3 are a shift of √12/3 in a normal law
    truth = scipy.stats.norm.cdf(np.sqrt(12) / 3 / np.sqrt(2))
    assert auc(blind_views(steps)["sum"], planted) == pytest.approx(truth, abs=0.05)


def test_exposure_adds_up_over_own_steps() -> None:
    took = np.array([[True, False], [True, True]])
    steps = CanarySteps(
        seen=np.zeros((2, 2)),
        took=took,
        noise=np.array([1.0, 2.0]),
        chance=np.ones(2),
        blur=np.ones(2),
    )
    np.testing.assert_allclose(steps.exposure, [1.25, 0.25])


def test_no_noise_and_huge_scores_stay_finite() -> None:
    steps = CanarySteps(
        seen=np.array([[1e6, 0.0], [0.0, -1e6], [0.0, 0.0]]),
        took=np.eye(3, 2, dtype=bool),
        noise=np.zeros(3),
        chance=np.full(3, 0.5),
        blur=np.zeros(3),
    )
    for views in (blind_views(steps), known_views(steps)):
        assert all(np.isfinite(scores).all() for scores in views.values())


def test_parts_that_do_not_fit_are_refused() -> None:
    good = {"noise": np.ones(2), "chance": np.ones(2), "blur": np.ones(2)}
    for bad in (
        {"seen": np.zeros(2), "took": np.zeros(2, bool)},
        {"seen": np.zeros((2, 0)), "took": np.zeros((2, 0), bool)},
        {"seen": np.zeros((2, 3)), "took": np.zeros((3, 2), bool)},
        {"seen": np.zeros((3, 3)), "took": np.zeros((3, 3), bool)},
    ):
        with pytest.raises(InvalidArgument, match="Expected"):
            CanarySteps(**good, **bad)
