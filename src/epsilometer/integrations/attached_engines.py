"""Audit one step of fastDP or private-transformers.

Both attach a ``PrivacyEngine`` to an optimiser, whose ``step`` then clips, adds noise and divides.
"""

from collections.abc import Callable
from typing import Any

from epsilometer._extras import needs
from epsilometer.audits.step.subject import Step
from epsilometer.errors import InvalidArgument

_NEEDED = ("named_params", "batch_size", "noise_multiplier", "max_grad_norm")


def attached_step(
    optimizer: Any, compute_loss: Callable[..., Any], batch: Any, **settings: Any
) -> Step:
    """Return one step of an optimiser with an attached engine, as the subject of an audit.

    Guarantee: that of :class:`epsilometer.Step`. Weights, gradients and random streams of training
        are unchanged: the gradient is intercepted where the optimiser would apply it.
    Assumption: noise is drawn from torch's global random stream, as both libraries do.

    Args:
        optimizer: Optimiser after ``engine.attach(optimizer)``.
        compute_loss: ``compute_loss(*batch)``. With fastDP, the loss on which you call
            ``backward``; with private-transformers, one loss per record, as for
            ``optimizer.step(loss=…)``.
        batch: Tuple of arrays with records on axis 0, as many as the engine's ``batch_size``.
        settings: Arguments of ``Step``: ``steps``, ``records``, ``title``.

    Example:
        ``em.audit(attached_step(optimizer, compute_loss, (features, labels)))``
    """
    with needs("torch", extra="torch"):
        import torch
    engine: Any = getattr(optimizer, "privacy_engine", None)
    missing = [name for name in _NEEDED if not hasattr(engine, name)]
    if missing or not hasattr(optimizer, "original_step"):
        raise InvalidArgument(
            "Expected an optimizer with an engine of fastDP or private-transformers, got "
            f"{type(optimizer).__name__} without one. Call engine.attach(optimizer) first."
        )
    # private-transformers has none: it takes losses of single records, and always divides.
    reduction = getattr(engine, "loss_reduction", None)
    divisor = 1 if reduction == "sum" else engine.batch_size

    def take_step(records: Any, rng: Any) -> dict[str, Any]:
        taken = {}

        def take_gradient(closure: Any = None) -> None:
            for name, parameter in engine.named_params:
                taken[name] = parameter.grad.detach() * divisor

        kept = [(each, each.grad) for _, each in engine.named_params]
        apply, steps = optimizer.original_step, engine.steps
        optimizer.original_step = take_gradient
        try:
            with torch.random.fork_rng():
                torch.manual_seed(int(rng.integers(2**63)))
                loss = compute_loss(*(torch.as_tensor(part) for part in records))
                if reduction is None:
                    optimizer.step(loss=loss)
                else:
                    loss.backward()
                    optimizer.step()
        finally:
            optimizer.original_step, engine.steps = apply, steps
            optimizer.zero_grad()
            for parameter, gradient in kept:
                parameter.grad = gradient
        return taken

    return Step(
        take_step,
        batch,
        clip_norm=float(engine.max_grad_norm),
        noise_multiplier=float(engine.noise_multiplier),
        **settings,
    )
