"""Insert a loud record into every physical batch, measure it after clipping, and remove it.

This does not depend on how a program clips: it calls the optimiser's own method, on per-example
gradients in which one row is changed.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from epsilometer.conformance.clipping import ClippingWatch, LoudRecord
from epsilometer.integrations.opacus.objects import find_precision, list_gradients
from epsilometer.integrations.opacus.rewinding import RandomStreams, remember_attributes

Own: TypeAlias = Callable[[], Any]
LOUD = 1000.0  # norm of a loud record, in clipping norms
_LADDER = (10.0, 2.0, 1.2, 0.5)  # of other records, since a rule may fail at only one norm


class LoudRows:
    """Call an optimiser's own clipping, with a loud record instead of one in the batch.

    In most batches, the replaced record is clipped in a second call, together with the negative of
    the loud one. If records are clipped one by one, the sum is unchanged up to rounding. In batches
    1, 2, 4, 8, … clipping is called on copies of the batch with a loud row and with a zero row: the
    difference is exactly what the loud record adds.

    Args:
        optimizer: A ``DPOptimizer`` that holds per-example gradients.
        names: Names of its parameters.
        watch: Watch that receives the measurements.
        seed: Seed of directions.
    """

    def __init__(
        self, optimizer: Any, names: Callable[[], Sequence[str]], watch: ClippingWatch, seed: int
    ) -> None:
        self._optimizer, self._names, self._watch = optimizer, names, watch
        device = optimizer.params[0].device
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self._batches = 0

    def clip(self, own: Own) -> Any:
        """Clip and sum the optimiser's batch by its own method."""
        rows = self._find_writable_rows()
        if rows is None:
            return own()
        self._batches += 1
        if self._batches & (self._batches - 1) == 0:
            self._measure(own, rows)
            return own()
        return self._insert(own, rows)

    def _find_writable_rows(self) -> list[Any] | None:
        """Return the per-example gradients that hold the row; None for an empty batch."""
        found, storages = [], set()
        for p in self._optimizer.params:
            parts = list_gradients(p)
            at = next((k for k in reversed(range(len(parts))) if len(parts[k])), None)
            if at is None:
                return None
            part = parts[at]
            storage = part.untyped_storage().data_ptr()
            if storage in storages or 0 in part.stride():  # memory that others read too
                part = _like(part.clone(), part)
                if isinstance(p.grad_sample, list):
                    p.grad_sample[at] = part
                else:
                    p.grad_sample = part
            storages.add(part.untyped_storage().data_ptr())
            found.append(part)
        return found if len({len(part) for part in found}) == 1 else None

    def _draw(self) -> tuple[Any, list[Any]]:
        """Return a direction, uniform on the sphere over all parameters: whole, and in parts."""
        sizes = [p.numel() for p in self._optimizer.params]
        device = self._optimizer.params[0].device
        whole = torch.randn(sum(sizes), device=device, generator=self._generator)
        whole.div_(whole.norm())
        return whole, _split(whole, self._optimizer.params)

    def _insert(self, own: Own, rows: list[Any]) -> Any:
        """Clip the batch with a loud row, then the replaced record."""
        optimizer, params = self._optimizer, self._optimizer.params
        clip = float(optimizer.max_grad_norm)
        whole, directions = self._draw()
        records = [part[0] for part in rows]
        saved = _split(torch.cat([record.reshape(-1) for record in records]), params)
        before = [p.summed_grad for p in params]
        whole.mul_(LOUD * clip)
        torch._foreach_copy_(records, directions)
        for p in params:
            p.summed_grad = None
        try:
            done = own()
        except Exception:  # for example, gradients that were not cleared: nothing is changed
            torch._foreach_copy_(records, saved)
            for p, total in zip(params, before, strict=True):
                p.summed_grad = total
            raise
        self._look(directions, clip, find_precision(rows))
        # The replaced record, and the negative of the loud one.
        counted = getattr(optimizer, "sample_size", None)  # adaptive clipping counts its rows
        held = [p.grad_sample for p in params]
        whole.neg_()
        for p, record, loud in zip(params, saved, directions, strict=True):
            p.grad_sample = torch.stack([record, loud.to(record.dtype)])
        torch._foreach_copy_(records, saved)
        own()
        if counted is not None:
            optimizer.sample_size = counted
        for p, samples, total in zip(params, held, before, strict=True):
            p.grad_sample = samples
            if total is not None:
                p.summed_grad = total.add_(p.summed_grad)
        return done

    def _look(self, loud: list[Any], clip: float, rounding: float) -> None:
        """Pass the component of the sum in the loud record's direction to the watch."""
        params = self._optimizer.params
        sums = [p.summed_grad for p in params]
        if any(part is None for part in sums):
            return
        found = torch.stack(
            [
                torch.stack([_dot(part, u) for part, u in zip(sums, loud, strict=True)]),
                torch.stack(torch._foreach_norm(sums)).float(),
                torch.stack(torch._foreach_norm(loud)),
            ]
        )
        products, sizes, lengths = found.double().cpu().numpy()
        if not np.isfinite(found.sum().item()):
            return  # a diverged batch is not informative
        counts = [p.numel() for p in params]
        parts = [
            LoudRecord(
                part=name, size=count, along=product / length / clip, square=(size / clip) ** 2
            )
            for name, count, product, size, length in zip(
                self._names(), counts, products, sizes, lengths, strict=True
            )
            if length > 0
        ]
        whole = LoudRecord(
            part="all parameters",
            size=sum(counts),
            along=float(products.sum() / np.linalg.norm(lengths) / clip),
            square=float(np.sum(sizes**2) / clip**2),
        )
        self._watch.see([whole, *parts], rounding=rounding)

    def _measure(self, own: Own, rows: list[Any]) -> None:
        """Pass what loud records add, from sums with and without them, to the watch."""
        clip = float(self._optimizer.max_grad_norm)
        _, directions = self._draw()
        base = self._sum(own, rows, directions, 0.0)
        if base is None:
            return
        length = math.sqrt(sum(float(_dot(part, part)) for part in base))
        power = self._batches.bit_length() - 1
        rounding = find_precision(rows) * (1 + length / clip)  # autocast halves only theirs
        factors = (LOUD, *_LADDER) if power == 0 else (LOUD, _LADDER[power % len(_LADDER)])
        for factor in factors:
            sums = self._sum(own, rows, directions, factor * clip)
            if sums is None:
                return
            for part, without in zip(sums, base, strict=True):
                part.sub_(without)
            norm = math.sqrt(sum(float(_dot(part, part)) for part in sums)) / clip
            if math.isfinite(length):
                what = f"by a record of {factor:g} in physical batch {self._batches}"
                self._watch.see_difference(norm, what=what, rounding=rounding)

    def _sum(
        self, own: Own, rows: list[Any], directions: list[Any], norm: float
    ) -> list[Any] | None:
        """Return the optimiser's own sum with a row of this norm, without side effects."""
        optimizer, params = self._optimizer, self._optimizer.params
        saved = [part[0].clone() for part in rows]
        sums = [p.summed_grad for p in params]
        marked = [optimizer, *(part for p in params for part in list_gradients(p))]
        restores = [remember_attributes(each) for each in marked]
        with RandomStreams(optimizer):
            try:
                for p, part, direction in zip(params, rows, directions, strict=True):
                    part[0].copy_(direction).mul_(norm)
                    p.summed_grad = None
                own()
                found = [p.summed_grad for p in params]
            finally:
                for restore in restores:
                    restore()
                for p, part, record, total in zip(params, rows, saved, sums, strict=True):
                    part[0].copy_(record)
                    p.summed_grad = total
        return None if any(part is None for part in found) else found


def _dot(a: Any, b: Any) -> Any:
    """Return the inner product, on the device, without a copy of float32."""
    return torch.dot(a.reshape(-1).float(), b.reshape(-1).float())


def _split(whole: Any, like: Sequence[Any]) -> list[Any]:
    """Return a vector as views in the shapes of some tensors."""
    parts = whole.split([each.numel() for each in like])
    return [part.view(each.shape) for part, each in zip(parts, like, strict=True)]


def _like(copy: Any, original: Any) -> Any:
    """Return a copy with the attributes of the original."""
    copy.__dict__.update(original.__dict__)
    return copy
