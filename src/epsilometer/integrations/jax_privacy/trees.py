"""Read trees of arrays of JAX programs, and make keys from generators."""

from typing import Any

import jax
import numpy as np

from epsilometer.conformance.replay import Released
from epsilometer.errors import InvalidArgument


def name_leaves(tree: Any) -> Released:
    """Return the arrays of a tree with their paths, as ``[("['w']", array), …]``.

    Example:
        >>> [(name, leaf.shape) for name, leaf in name_leaves({"w": np.zeros((2, 3)), "b": 0.0})]
        [("['b']", (1,)), ("['w']", (2, 3))]
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    if not leaves:
        raise InvalidArgument("Expected a tree with arrays, got none in it.")
    return [
        (jax.tree_util.keystr(path) or "sum", np.atleast_1d(np.asarray(leaf, np.float64)))
        for path, leaf in leaves
    ]


def to_numpy(batch: Any) -> Any:
    """Return a batch as NumPy arrays, in which single records can be changed."""
    return jax.tree.map(np.array, batch)


def make_key(rng: np.random.Generator) -> Any:
    """Return a JAX key drawn from a generator."""
    return jax.random.wrap_key_data(rng.integers(2**32, size=2, dtype=np.uint32))
