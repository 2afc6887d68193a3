import numpy as np
import pytest

from epsilometer.audits.classifier.attacks.shadow_attacks import frequency
from epsilometer.errors import InvalidArgument
from tests.audits.classifier.attacks.pools import a_pool


def test_is_the_ratio_of_counts_in_the_same_bins(rng: np.random.Generator) -> None:
    pool = a_pool(rng, models=9, n=40, classes=2, effect=1.0)
    target = a_pool(rng, models=2, n=40, classes=2).log_proba[0]
    found = frequency(pool, target, pairs=None, smoothing=0.25).values
    places, wanted = (np.floor(100 * np.exp(p)).astype(int) for p in (pool.log_proba, target))
    for record in range(40):
        ratio = 1.0
        for label in (0, 1):
            hits = places[:, record, label] == wanted[record, label]
            at = pool.member[:, record]
            shares = [(hits[side].sum() + 0.25) / (side.sum() + 0.5) for side in (at, ~at)]
            ratio *= shares[0] / shares[1]
        assert found[record] == pytest.approx(np.log(ratio), abs=1e-9)


def test_it_can_be_smoothed_but_not_be_divided_by_nothing(rng: np.random.Generator) -> None:
    pool = a_pool(rng, models=4, n=10)
    assert np.isfinite(frequency(pool, pool.log_proba[0] * 0 - np.log(3)).values).all()
    with pytest.raises(InvalidArgument, match="smoothing > 0"):
        frequency(pool, 0, smoothing=0.0)
