"""Replay the user's Opacus step on neighbouring batches: noise cancels, records remain."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from epsilometer import _validate
from epsilometer.conformance.batches import count_records
from epsilometer.conformance.evidence_check import leave_untested
from epsilometer.conformance.neighbours import (
    LIMITS,
    REMOVED,
    REPLACED,
    TOLERANCE,
    Comparisons,
    Neighbour,
    choose_places,
    compare_neighbours,
    conclude,
)
from epsilometer.conformance.noise_checks import LEVEL
from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.core.claim import Claim, as_claim
from epsilometer.core.findings import Check, ConformanceFinding
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.opacus.objects import check_engine, check_optimizer, make_audit
from epsilometer.integrations.opacus.rewinding import Rewinder
from epsilometer.integrations.opacus.step_replayer import Loss, StepReplayer

_FINITE = "finite gradients of enlarged records"
_PROCESSING = "processing after noise"
_POST = "what follows the noise depends on no record"
_ADJUSTED = "noise of neighbouring batches"
# Factors for the weights, tried if no record reaches the clipping norm.
_LOUD = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_CAVEAT = (
    "One batch at these weights was replayed and nothing was trained: sampling, the scale of "
    "the noise and accounting were not checked."
)


def replay(
    engine: Any,
    model: Any,
    optimizer: Any,
    loss: Loss,
    batch: Any,
    records: int = 8,
    *,
    claim: Claim | float | None = None,
    delta: float | None = None,
    seed: int = 0,
) -> Audit:
    """Measure how much one record changes what your step passes to the wrapped optimiser.

    The step is ``zero_grad``, forward, loss, ``backward``, ``step``, with the same randomness on
    the batch and on neighbours in which one record is enlarged, replaced, relabelled or removed.
    Noise cancels. A replaced record may change the sum by 2C, a removed one by C. It works with all
    gradient modes and clipping methods, and together with ``audited``, which ignores it.

    Guarantee: training is restored bit by bit: parameters, buffers, gradients, optimisers, books,
        random streams. A correct program is never violated; nothing is sampled, and rounding is
        allowed for. What cannot be compared (for example, removal if random numbers are drawn for
        each record) is not tested.
    Assumption: one process; all randomness comes from torch, NumPy, Python, or generators held by
        the optimiser, modules or the loss.

    Args:
        engine: The ``PrivacyEngine``.
        model: The module from ``make_private``, in training mode.
        optimizer: The ``DPOptimizer`` from ``make_private``.
        loss: A function ``loss(model, batch)`` that returns the loss of a batch as your loop
            computes it (including augmentation), or None if it has called ``backward`` itself. A
            criterion (a module, a function of torch, what ``make_private`` returned for ghost
            clipping) is called as ``loss(model(inputs), targets)``.
        batch: A batch of your loader: tensors with records on axis 0, in tuples, lists or
            dictionaries; a criterion needs (inputs, targets). A few dozen records are enough.
        records: Number of records to change, each in about 15 steps.
        claim: The claim to show in the report, if any.
        delta: δ of a claim that is a number.
        seed: Seed of chosen records and randomness.

    Example:
        >>> import torch, warnings
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> from opacus import PrivacyEngine
        >>> data = TensorDataset(torch.randn(32, 5), torch.randint(2, (32,)))
        >>> model = torch.nn.Linear(5, 2)
        >>> with warnings.catch_warnings(action="ignore"):
        ...     engine = PrivacyEngine()
        ...     model, optimizer, loader = engine.make_private(
        ...         module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        ...         data_loader=DataLoader(data, batch_size=8), noise_multiplier=1.0,
        ...         max_grad_norm=1.0)
        >>> audit = replay(engine, model, optimizer, torch.nn.CrossEntropyLoss(), data[:8])
        >>> audit.conformance.verdict
        'conforms'
    """
    _check_arguments(engine, model, optimizer, loss)
    _validate.whole(1, records=records)
    _validate.whole(0, seed=seed)
    given = as_claim(claim, delta=delta)
    if count_records(batch) < 1:
        raise InvalidArgument("Expected a batch with one record or more, got none.")
    with Rewinder(engine, model, optimizer, loss) as rewinder:
        replayer = StepReplayer(rewinder, model, optimizer, loss, batch, seed=seed)
        checks = _check_sensitivity(replayer, records=records, seed=seed)
    return make_audit(
        "replay",
        subject=f"one step of Opacus {type(optimizer).__name__} on {replayer.count:,} records",
        claim=given,
        findings=(ConformanceFinding(checks=checks, steps=replayer.steps, level=LEVEL),),
        caveats=(_CAVEAT,),
        supplied={
            "engine": engine,
            "model": model,
            "optimizer": optimizer,
            "loss": loss,
            "batch": batch,
        },
        settings={"records": records},
        delta=None if given is None else given.delta,
        confidence=1 - LEVEL,
        seed=seed,
    )


def _check_arguments(engine: Any, model: Any, optimizer: Any, loss: Any) -> None:
    check_engine(engine, "replay(engine, model, optimizer, loss, batch)")
    check_optimizer(optimizer)
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgument(
            f"Expected the module that is trained, got {type(model).__name__}. With "
            "wrap_model=False that is your own module."
        )
    if not model.training:
        raise InvalidArgument("Expected a model in training mode, got one that is not: train().")
    if not callable(loss):
        raise InvalidArgument(
            f"Expected a function loss(model, batch) or a criterion, got {_validate.short(loss)}."
        )


def _check_sensitivity(replayer: StepReplayer, *, records: int, seed: int) -> tuple[Check, ...]:
    """Replay, or say why noise would not cancel."""
    rng = np.random.default_rng(seed)
    place, other = choose_places(replayer.count, 1, np.random.default_rng(seed))[0]
    own = Neighbour(place=place, other=other)
    first, again = replayer.run(own), replayer.run(own)
    if first.error or first.refused:
        raise InvalidArgument(
            f"Expected a step on this batch that ends: {first.error or first.refused}."
        )
    obstacle = replayer.find_obstacle(again, first)
    if not obstacle:
        replayer.jitter = replayer.measure(first, again).value
        if not replayer.jitter <= 0.05:
            obstacle = "two steps with the same batch and random state differ: some noise remains"
    if obstacle:
        found = Comparisons(skipped=[obstacle])
        return conclude(REPLACED, found), conclude(REMOVED, found), _skip_processing(obstacle)
    found = compare_neighbours(replayer, records=records, rng=rng, loud=_LOUD)
    tolerance = max(TOLERANCE, 4 * replayer.coarsest)
    checks = [conclude(name, found, tolerance=tolerance) for name in LIMITS]
    processing = _check_processing(replayer, own)
    if processing.outcome == judge.CONFORMS and {c.outcome for c in checks} == {judge.NOT_TESTED}:
        # On its own it would make the step conform although its sensitivity is unknown.
        processing = _skip_processing(
            "the same noisy gradient stays the same; nothing else is known"
        )
    checks.append(processing)
    return (*checks, *_remark_on_overflow(replayer), *_remark_on_noise(replayer))


def _check_processing(replayer: StepReplayer, own: Neighbour) -> Check:
    """Check that what follows the noise depends on the noisy gradient only.

    Then it is post-processing, and may scale, clip or repeat. Otherwise it uses records without
    noise, for example by dividing by the number of records drawn.
    """
    base = replayer.run(own, keep=True)
    noisy = base.released.noisy
    if not noisy:
        return _skip_processing(
            "noise is not added by add_noise: the gradient applied was compared"
        )
    found: list[tuple[float, str]] = []
    for neighbour in (
        replace(own, change="removed"),
        replace(own, factor=-10.0),
        replace(own, change="another record"),
    ):
        run = replayer.run(neighbour, noisy=noisy, keep=True)
        if not replayer.find_obstacle(run, base):
            found.append((replayer.measure_final(base, run), str(neighbour)))
    if not found:
        return _skip_processing("no neighbouring batch could be compared")
    value, what = max(found)
    return Check(
        name=_PROCESSING,
        outcome=judge.judge_limit(value, limit=max(1e-5, 4 * replayer.coarsest)),
        expected=_POST,
        seen=f"the same noisy gradient becomes another, by {value:.3g} of its norm"
        if value
        else "the same noisy gradient stays the same",
        value=value,
        detail=f"record {what}" if value else "",
        steps=1,
    )


def _skip_processing(reason: str) -> Check:
    return leave_untested(_PROCESSING, _POST, reason)


def _remark_on_overflow(replayer: StepReplayer) -> list[Check]:
    """Remark that a record can make gradients infinite or nan, which clipping cannot bound."""
    if not replayer.endless:
        return []
    return [
        Check(
            name=_FINITE,
            outcome=judge.REMARK,
            expected="finite gradients, however large a record is",
            seen=f"gradients are infinite or no numbers for a record {replayer.endless[0]}",
            detail="harmless if no record can be so large; clipping bounds no such gradient",
            steps=replayer.steps,
        )
    ]


def _remark_on_noise(replayer: StepReplayer) -> list[Check]:
    """Remark that Opacus' adaptive ghost clipping computes its noise from the records drawn."""
    if len(replayer.adjusted) < 2:
        return []
    least, most = min(replayer.adjusted), max(replayer.adjusted)
    return [
        Check(
            name=_ADJUSTED,
            outcome=judge.REMARK,
            expected="the same noise, however many records are drawn",
            seen=f"noise multipliers from {least:.4g} to {most:.4g} on neighbouring batches",
            value=most / least - 1,
            detail="Opacus computes it from the size of the batch, which Poisson sampling hides",
            steps=replayer.steps,
        )
    ]
