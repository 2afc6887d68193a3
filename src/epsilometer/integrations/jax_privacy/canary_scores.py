"""Score canaries of a JAX loop, each included by a coin toss."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from epsilometer.core.scores import Scores
from epsilometer.errors import InvalidArgument

_AT_ONCE = 256  # canaries whose losses are computed at once


def score_canaries(
    loss: Callable[[Any, Any], Any],
    params: Any,
    canaries: Any,
    included: ArrayLike,
    *,
    before: Any = None,
) -> Scores:
    """Score canaries by the loss of a trained model: low where a record was trained on.

    Before training, draw ``included`` with a fair coin per canary, and add the included canaries to
    the training set. The scores then bound ε with one run: ``em.audit(scores, claim)``.

    Guarantee: higher means "was in". A nan loss counts against the attack.
    Assumption: each canary was included by its own fair coin, and then in every epoch.

    Args:
        loss: Called as ``loss(params, record)`` on a tree of one canary, without a batch axis;
            returns a number.
        params: Parameters of the trained model.
        canaries: Tree of arrays with one canary per row.
        included: Which canaries were included, shape ``(m,)``.
        before: Parameters before training; if given, scores are decreases of the loss, which
            corrects for records that are hard in themselves.

    Example:
        >>> import jax.numpy as jnp
        >>> records = np.eye(8, dtype=np.float32)
        >>> included = np.arange(8) < 4
        >>> trained = records[included].sum(0)  # remembers all of them
        >>> scores = score_canaries(lambda w, x: -jnp.dot(w, x), trained, records, included)
        >>> scores.inside, scores.outside
        (array([1., 1., 1., 1.]), array([0., 0., 0., 0.]))
    """
    took = np.asarray(included, np.bool_)
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(canaries)}
    if sizes != {took.shape} or took.ndim != 1:
        raise InvalidArgument(
            f"Expected one canary per entry of included, which has shape {took.shape}, got arrays "
            f"with {sorted(sizes)} rows."
        )
    measure = jax.jit(jax.vmap(loss, (None, 0)))
    scores = -_measure(measure, params, canaries, took.size)
    if before is not None:
        scores = scores + _measure(measure, before, canaries, took.size)
    scores = np.where(np.isnan(scores), np.where(took, -np.inf, np.inf), scores)
    return Scores(
        inside=scores[took],
        outside=scores[~took],
        design="coins",
    )


def _measure(measure: Any, params: Any, canaries: Any, count: int) -> Any:
    parts = []
    for start in range(0, count, _AT_ONCE):
        some = jax.tree.map(lambda leaf, at=start: np.asarray(leaf)[at : at + _AT_ONCE], canaries)
        values = np.asarray(measure(params, some), np.float64)
        if values.ndim != 1:
            raise InvalidArgument(
                f"Expected loss(params, record) to return one number, got shape {values.shape[1:]}."
            )
        parts.append(values)
    return np.concatenate(parts)
