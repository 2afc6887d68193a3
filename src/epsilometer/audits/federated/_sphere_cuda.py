"""Draw and multiply directions in registers, by Triton kernels that never write them to memory."""

from typing import Any

import torch
import triton
import triton.language as tl

from epsilometer.sampling._normals_cuda import normals

_RUNS, _WARPS = 128, 1  # of the stream in a program: 512 coordinates; one warp votes on tails
_CANARIES = 128  # that a program draws, for one load of its part of the vector
_SUMS = 2**25  # parts of sums that are kept at a time


@triton.jit
def _dots(
    dots, squares, key, vector, first, count, dimension, size: tl.constexpr, each: tl.constexpr
):
    """Compute inner products and norms² over a program's coordinates, for ``each`` canaries."""
    part = tl.program_id(0).to(tl.int64)
    run = part * size + tl.arange(0, size)
    low, high = (run & 0xFFFFFFFF).to(tl.uint32), (run >> 32).to(tl.uint32)
    k0, k1 = tl.load(key).to(tl.uint32), tl.load(key + 1).to(tl.uint32)
    at = (run // 32) * 128 + run % 32
    in0, in1, in2, in3 = (
        at < dimension,
        at + 32 < dimension,
        at + 64 < dimension,
        at + 96 < dimension,
    )
    v0, v1 = tl.load(vector + at, in0, 0.0), tl.load(vector + at + 32, in1, 0.0)
    v2, v3 = tl.load(vector + at + 64, in2, 0.0), tl.load(vector + at + 96, in3, 0.0)
    start = tl.program_id(1) * each
    for number in range(start, tl.minimum(start + each, count)):
        canary = tl.cast(first, tl.int64) + number
        z0, z1, z2, z3 = normals(canary, tl.cast(0, tl.int64), low, high, k0, k1)
        z0, z1 = tl.where(in0, z0, 0.0), tl.where(in1, z1, 0.0)
        z2, z3 = tl.where(in2, z2, 0.0), tl.where(in3, z3, 0.0)
        tl.store(dots + part * count + number, tl.sum(z0 * v0 + z1 * v1 + z2 * v2 + z3 * v3, 0))
        tl.store(squares + part * count + number, tl.sum(z0 * z0 + z1 * z1 + z2 * z2 + z3 * z3, 0))


@triton.jit
def _weighted_sum(out, key, canaries, weights, count, dimension, size: tl.constexpr):
    """Compute a program's coordinates of Σ weight · normals."""
    run = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    low, high = (run & 0xFFFFFFFF).to(tl.uint32), (run >> 32).to(tl.uint32)
    k0, k1 = tl.load(key).to(tl.uint32), tl.load(key + 1).to(tl.uint32)
    s0 = tl.zeros([size], tl.float32)
    s1, s2, s3 = s0, s0, s0
    for number in range(count):
        weight = tl.load(weights + number)
        canary = tl.load(canaries + number)
        z0, z1, z2, z3 = normals(canary, tl.cast(0, tl.int64), low, high, k0, k1)
        s0 += weight * z0
        s1 += weight * z1
        s2 += weight * z2
        s3 += weight * z3
    at = (run // 32) * 128 + run % 32
    tl.store(out + at, s0, at < dimension)
    tl.store(out + at + 32, s1, at + 32 < dimension)
    tl.store(out + at + 64, s2, at + 64 < dimension)
    tl.store(out + at + 96, s3, at + 96 < dimension)


def dots(key: int, count: int, vector: Any) -> tuple[Any, Any]:
    """Return each canary's inner product with a vector, and its norm before scaling."""
    vector = vector.contiguous()
    parts = triton.cdiv(vector.numel(), 4 * _RUNS)
    at_once = max(1, min(count, _SUMS // parts))
    halves = _halves(key, vector.device)
    found = torch.empty(2, count, dtype=torch.float64, device=vector.device)
    with torch.cuda.device(vector.device):
        for first in range(0, count, at_once):
            some = min(at_once, count - first)
            sums = torch.empty(2, parts, some, device=vector.device)
            _dots[(parts, triton.cdiv(some, _CANARIES))](
                sums[0], sums[1], halves, vector, first, some, vector.numel(),
                size=_RUNS, each=_CANARIES, num_warps=_WARPS,
            )  # fmt: skip
            found[:, first : first + some] = sums.sum(1, dtype=torch.float64)
    return found[0], found[1].sqrt()


def weighted_sum(key: int, canaries: Any, weights: Any, dimension: int) -> Any:
    """Return Σ weight · canary, before normalisation, over the canaries of these numbers."""
    out = torch.empty(dimension, device=canaries.device)
    with torch.cuda.device(canaries.device):
        _weighted_sum[(triton.cdiv(dimension, 4 * _RUNS),)](
            out, _halves(key, canaries.device), canaries, weights.float(), canaries.numel(),
            dimension, size=_RUNS, num_warps=_WARPS,
        )  # fmt: skip
    return out


def _halves(key: int, device: Any) -> Any:
    """Return both halves as a tensor, since Triton makes constants of some integers."""
    return torch.tensor([key & 0xFFFFFFFF, key >> 32], dtype=torch.int64, device=device)
