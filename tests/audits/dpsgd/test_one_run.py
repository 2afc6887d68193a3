"""One run of DP-SGD with many canaries is held to the truth as many runs are."""

from dataclasses import replace

import numpy as np

from epsilometer import epsilon_lower_bound
from epsilometer.audits.dpsgd.game import OneRun
from epsilometer.engine.runs import join_scores
from epsilometer.sampling.samplers import Poisson
from tests import oracles
from tests.audits.dpsgd.dpsgd_audits import DELTA, job_of, truth_of


def test_one_run_with_many_canaries_is_rarely_above_the_truth(rng: np.random.Generator) -> None:
    """Each canary is a record of its own that takes part in every step: three Gaussians."""
    audits, count = 30, 60
    truth = truth_of(Poisson(rate=1.0), 0.8, 3)
    job = job_of(
        records=20,
        hidden=4,
        runs=2,
        noise_multiplier=0.8,
        learning_rate=0.1,
        batch_size=5,
        sampler=Poisson(rate=1.0, steps=3),
        canaries=count,
    )
    assert job.one is not None
    found = [bound_of(job.one, stream) for stream in rng.spawn(audits)]
    assert not oracles.too_often(int(np.sum(np.array(found) > truth)), audits)
    assert np.median(found) > 0.3  # one run of 60 canaries proves something


def bound_of(alone: OneRun, rng: np.random.Generator) -> float:
    scores = replace(join_scores([alone.play(rng)]), design="coins")
    return epsilon_lower_bound(scores, delta=DELTA).epsilon
