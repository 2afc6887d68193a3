"""Questions to opake-auditing: ``stopwatch.answer``."""

import numpy as np
import stopwatch
from opake import auditing
from opake.auditing.types import CoinFlip, OneRunEstimate
from stopwatch import BoolArray, FloatArray

THRESHOLD = 0.5  # where most guesses are right, if all are made; fixed before any score
_said: dict[tuple[int, int], float] = {}


def scores_default(scores: FloatArray, member: BoolArray) -> dict[str, float]:
    return {"default": _estimate(scores, member).eps_delta().epsilon_at(delta=1e-5)}


def scores_fixed(scores: FloatArray, member: BoolArray) -> dict[str, float]:
    method = _estimate(scores, member).eps_delta()
    return {"fixed": method.epsilon_at(delta=1e-5, threshold=THRESHOLD)}


def scores_gdp(scores: FloatArray, member: BoolArray) -> dict[str, float]:
    """It takes seconds and depends on two counts alone, so equal counts are asked of it once."""
    estimate = _estimate(scores, member)
    right = estimate.n_in - estimate.fn_counts + estimate.tn_counts
    counts = (member.size, int(right.max()))
    if counts not in _said:
        _said[counts] = estimate.epsilon_at(delta=1e-5)
    return {"gdp": _said[counts]}


def _estimate(scores: FloatArray, member: BoolArray) -> OneRunEstimate:
    """The coins were tossed by whoever made the scores, so they are put in as they fell."""
    places = np.arange(member.size)
    coins = CoinFlip(
        num_canaries=member.size,
        canary_indices=places,
        _in_mask=member,
        in_indices=places[member],
        out_indices=places[~member],
    )
    return auditing.one_run(auditing.canary_scores(scores, canary_indices=places), coin_flip=coins)


if __name__ == "__main__":
    stopwatch.answer(
        {
            "scores_default": scores_default,
            "scores_fixed": scores_fixed,
            "scores_gdp": scores_gdp,
        },
        tool="opake-auditing",
    )
