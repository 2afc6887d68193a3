"""Check that only gradients with noise move the parameters."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from epsilometer.conformance.summary import choose_sketch
from epsilometer.core import judge
from epsilometer.core.findings import Check
from epsilometer.integrations.opacus.objects import call_weakly, find_precision
from epsilometer.types import FloatArray

NAME = "updates"
_EXPECTED = "every update is made by a gradient with noise"
_KEPT = 256  # coordinates of gradients and parameters that are compared
_LARGEST = 16  # tensors with compared coordinates; of the others, norms are compared
_RELATIVE = 1e-3  # of the gradient, for rounding of float32


class UpdateWatch:
    """Watch every step of every torch optimiser that holds one of the parameters.

    A step is explained if its gradient is a multiple of the last gradient with noise. A gradient
    that was changed after its noise (by clipping, for example) moves parameters in a private step,
    and is reported separately.

    Args:
        parameters: Trainable parameters.
        inner: The optimiser inside the private one.
        due: Called just before it applies a gradient of a private step.
    """

    def __init__(
        self, parameters: Sequence[Any], inner: Any, *, due: Callable[[], None] = lambda: None
    ) -> None:
        self._parameters, self._inner = list(parameters), inner
        self._relative = max(_RELATIVE, 4 * find_precision(self._parameters))
        self._owned = {id(each) for each in self._parameters}
        sizes = np.array([each.numel() for each in self._parameters])
        self._looked = np.sort(np.argsort(-sizes, kind="stable")[:_LARGEST])
        places = choose_sketch(sizes[self._looked].tolist(), total=_KEPT)
        self._places = [torch.from_numpy(place).to(self._parameters[0].device) for place in places]
        self._released: FloatArray | None = None  # the last gradient with noise
        self._applied: FloatArray | None = None  # the same, after the private step
        self._left: FloatArray | None = None  # parameters after the last step
        self._call, self._due = due, False
        self._private = self._changed = self._moved = 0
        self._bare: list[str] = []
        self._hooks = [
            register_optimizer_step_pre_hook(call_weakly(self._before)),
            register_optimizer_step_post_hook(call_weakly(self._after)),
        ]
        for hook in self._hooks:  # torch keeps them for all optimisers, but an audit may be dropped
            weakref.finalize(self, hook.remove)

    def close(self) -> None:
        """Stop watching steps and parameters."""
        self.look_for_moves()
        self._left = None
        for hook in self._hooks:
            hook.remove()

    @property
    def bare(self) -> int:
        """Number of updates by gradients without noise."""
        return len(self._bare)

    def look_for_moves(self) -> None:
        """Record whether parameters changed since the last step."""
        if self._left is not None and not np.array_equal(
            self._left, self._sketch(self._parameters), equal_nan=True
        ):
            self._moved += 1
            self._left = None

    def release(self) -> None:
        """Record gradients that have just received their noise."""
        self._released = self._sketch([each.grad for each in self._parameters])
        self._due = True

    def expect(self) -> None:
        """Record that noise was added, possibly by another process: the next step is due."""
        self._released, self._due = None, True

    def check(self) -> Check:
        """Return the observations so far."""
        self.look_for_moves()
        value: float | None = None
        if self._bare:
            kinds = ", ".join(dict.fromkeys(self._bare))
            seen = f"{len(self._bare):,} updates by gradients without noise, by {kinds}"
            value = float(len(self._bare))
        elif self._moved:
            seen = (
                f"parameters changed {self._moved:,} times outside of steps, by no optimiser: "
                "harmless if it is a projection or a checkpoint"
            )
        elif self._changed:
            seen = (
                f"{self._changed:,} of {self._private:,} gradients were changed after their noise: "
                "harmless if no record was used again, which replay tests"
            )
        elif not self._private:
            seen = "no update was observed"
        else:
            seen, value = f"all of {self._private:,} updates explained", 0.0
        return Check(
            name=NAME,
            outcome=judge.judge_limit(value, limit=0.0),
            expected=_EXPECTED,
            seen=seen,
            value=value,
            detail="start the audit after a warm-up on public records" if self._bare else "",
            steps=self._private,
        )

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._holds(optimizer):
            return
        gradient = self._sketch([each.grad for each in self._parameters])
        if optimizer is self._inner and self._due:
            self._due = False
            self._private += 1
            if self._released is not None:
                self._changed += not self._is_multiple(gradient, self._released)
            self._call()
            self._applied = gradient
            return
        if not self._is_explained(gradient):
            self._bare.append(type(optimizer).__name__)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._holds(optimizer):
            return
        self._left = self._sketch(self._parameters)
        if (args[0] if args else kwargs.get("closure")) is None:
            return
        # A closure computes gradients, after which those with noise are gone.
        gradient = self._sketch([each.grad for each in self._parameters])
        if not self._is_explained(gradient):
            self._bare.append(f"a closure given to {type(optimizer).__name__}")

    def _holds(self, optimizer: Any) -> bool:
        return any(
            id(each) in self._owned for group in optimizer.param_groups for each in group["params"]
        )

    def _sketch(self, tensors: Sequence[Any]) -> FloatArray:
        """Return some coordinates of the largest tensors, and the norms of all."""
        known = [
            torch.zeros_like(own) if tensor is None else tensor.detach()
            for tensor, own in zip(tensors, self._parameters, strict=True)
        ]
        parts = [
            known[at].reshape(-1)[place.to(known[at].device)].float()
            for at, place in zip(self._looked, self._places, strict=True)
        ]
        norms = torch.stack(torch._foreach_norm(known)).float()
        return np.asarray(torch.cat([*parts, norms]).cpu().numpy(), np.float64)

    def _is_explained(self, gradient: FloatArray) -> bool:
        return any(self._is_multiple(gradient, each) for each in (self._released, self._applied))

    def _is_multiple(self, vector: FloatArray, of: FloatArray | None) -> bool:
        """Tell whether one sketch is a multiple of another, or 0, to rounding."""
        if of is None or not (np.isfinite(vector).all() and np.isfinite(of).all()):
            return of is not None
        size = float(of @ of)
        if size == 0:
            return not vector.any()
        factor = float(vector @ of) / size
        rest = float(np.linalg.norm(vector - factor * of))
        return rest <= self._relative * float(np.linalg.norm(vector))
