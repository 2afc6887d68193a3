"""Audit a loop built from a JAX-Privacy execution plan."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax_privacy.matrix_factorization import toeplitz

from epsilometer.errors import InvalidArgument
from epsilometer.integrations.jax_privacy.audited_run import Audited, audited
from epsilometer.integrations.jax_privacy.books import read_books


@dataclass(frozen=True, eq=False)
class _WatchedStrategy:
    """Wrap a batch selection strategy to watch its batches."""

    own: Any
    run: Audited

    def batch_iterator(self, num_examples: int, rng: Any = None) -> Iterator[Any]:
        """Iterate over the batches of the strategy."""
        return self.run.watch_batches(self.own.batch_iterator(num_examples, rng))


@dataclass(frozen=True, eq=False, kw_only=True)
class AuditedPlan:
    """Hold the watched parts of a ``DPExecutionPlan``, and the audit.

    Attributes:
        clipped_grad: That of the plan.
        batch_selection_strategy: That of the plan, watched.
        noise_addition_transform: That of the plan, watched.
        dp_event: That of the plan.
        run: The audit: ``run.result(delta=…)`` after the loop.
    """

    clipped_grad: Any
    batch_selection_strategy: Any
    noise_addition_transform: Any
    dp_event: Any
    run: Audited


def audited_plan(config: Any, *, records: int, canaries: int = 500, seed: int = 0) -> AuditedPlan:
    """Audit the loop of a plan: use the returned object instead of the plan.

    Noise that the plan correlates over steps is whitened, and then checked like any other.

    Guarantee: that of :func:`audited`.
    Assumption: that of :func:`audited`.

    Args:
        config: A ``BandMFExecutionPlanConfig``.
        records: Records of the training set.
        canaries: See :func:`audited`.
        seed: Likewise.
    """
    if not hasattr(config, "plan") or not hasattr(config, "strategy"):
        raise InvalidArgument(
            f"Expected a BandMFExecutionPlanConfig, got {type(config).__name__}. A plan alone does "
            "not say how its noise is correlated: take audited(privatizer, noise=…)."
        )
    plan, strategy = config.plan, np.asarray(config.strategy, np.float64)
    noise = None
    if strategy.size > 1:
        many = config.iterations if config.column_normalize else None
        noise = toeplitz.inverse_as_streaming_matrix(strategy, many)
    bound = plan.clipped_grad(lambda: None).sensitivity(config.accountant.neighboring_relation)
    run = audited(
        plan.noise_addition_transform,
        noise_multiplier=read_books(plan)[0][0],
        clip_norm=float(bound),
        books=plan,
        records=records,
        batches=plan.batch_selection_strategy,
        steps=config.iterations,
        noise=noise,
        canaries=canaries,
        seed=seed,
    )
    return AuditedPlan(
        clipped_grad=plan.clipped_grad,
        batch_selection_strategy=_WatchedStrategy(plan.batch_selection_strategy, run),
        noise_addition_transform=run.privatizer,
        dp_event=plan.dp_event,
        run=run,
    )
