"""Replay one step of a JAX program with the same key on neighbouring batches."""

from collections.abc import Callable
from typing import Any

from epsilometer._dispatch import audit
from epsilometer.audits.step.subject import Step
from epsilometer.core.audit import Audit
from epsilometer.integrations.jax_privacy.trees import make_key, name_leaves, to_numpy


def replay(
    step: Callable[[Any, Any], Any],
    batch: Any,
    *,
    clip_norm: float,
    noise_multiplier: float,
    steps: int = 64,
    records: int = 8,
    seed: int = 0,
) -> Audit:
    """Check one step, a function of a batch and a key: its noise, and its sensitivity to a record.

    Calls with fresh keys show the noise. Calls with the same key on batches that differ in one
    record show what the record adds, as the noise cancels. The checks are those of ``em.Step``.

    Guarantee: at most 1 correct program in 1,000 is found violated.
    Assumption: all randomness of the step comes from its key. Make the privatizer inside the step,
        with ``prng_key=key``.

    Args:
        step: Called as ``step(batch, key)``; returns the noisy sum as a tree of arrays, before any
            update. It may be compiled.
        batch: Tree of arrays with records on axis 0.
        clip_norm: Largest norm that one record may add to what is returned: ``l2_norm_bound`` of
            the clipped gradient function.
        noise_multiplier: σ, in units of ``clip_norm``.
        steps: Number of calls with fresh keys.
        records: Number of records to replace and remove.
        seed: Seed of keys and chosen records.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def step(batch, key):  # forgets to clip
        ...     return batch.sum(0) + jax.random.normal(key, batch.shape[1:])
        >>> import numpy as np
        >>> found = replay(step, np.ones((6, 20), np.float32), clip_norm=1.0, noise_multiplier=1.0)
        >>> found.verdict
        'violated'
    """

    def call(given: Any, rng: Any) -> dict[str, Any]:
        return dict(name_leaves(step(given, make_key(rng))))

    call.__name__ = getattr(step, "__name__", "step")
    subject = Step(
        call,
        to_numpy(batch),
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        steps=steps,
        records=records,
        title=f"one step of {call.__name__} with JAX, σ = {noise_multiplier:g}",
    )
    return audit(subject, seed=seed)
