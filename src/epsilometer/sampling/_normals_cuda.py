"""The batched Gaussian mechanism as one Triton kernel: words, normals, sums and scores, fused.

The stream is the one that ``stream`` defines, and the arithmetic that of the CPU: float32
polynomials for the bulk, float64 for tails beyond 4.7σ and for operations once per epoch. Only the
scores are written to memory.
"""

import math
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from epsilometer.sampling.samplers import Law
    from epsilometer.sampling.stream import Draw

_BLOCK, _WARPS = 128, 1  # runs of a program; one warp, so that asking for tails is a vote


@triton.jit
def _philox(c0, c1, c2, c3, k0, k1):
    """Compute Philox4x32-10."""
    for _ in tl.static_range(10):
        high_0 = tl.umulhi(c0, 0xD2511F53)
        low_0 = c0 * 0xD2511F53
        high_1 = tl.umulhi(c2, 0xCD9E8D57)
        low_1 = c2 * 0xCD9E8D57
        c0 = high_1 ^ c1 ^ k0
        c1 = low_1
        c2 = high_0 ^ c3 ^ k1
        c3 = low_0
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def _log_near_one(f):
    """Compute ln(1 + f) for 1 + f in [√½, √2]."""
    z = f * f
    y = 7.0376836292e-2 * f - 1.1514610310e-1
    y = y * f + 1.1676998740e-1
    y = y * f - 1.2420140846e-1
    y = y * f + 1.4249322787e-1
    y = y * f - 1.6668057665e-1
    y = y * f + 2.0000714765e-1
    y = y * f - 2.4999993993e-1
    y = y * f + 3.3333331174e-1
    return f + (y * f * z - 0.5 * z)


@triton.jit
def _minus_log(word):
    """−ln((word + ½)/2³²), precise at both ends."""
    bits = ((word.to(tl.float32) + 0.5) * 2.3283064365386963e-10).to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23
    f = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    near = word >= 0xB504F334
    f = tl.where(near, -((word ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10, f)
    halvings = tl.where(near, 0.0, exponent.to(tl.float32))
    return -(halvings * 0.6931471805599453 + _log_near_one(f))


@triton.jit
def _cosine_sine(word):
    """Compute cosine and sine of 2π·word/2³², reduced to an eighth of a turn in integers."""
    quarter = (word + 0x20000000) >> 30
    t = (word - (quarter << 30)).to(tl.int32, bitcast=True).to(tl.float32) * 1.4629180792671596e-9
    z = t * t
    s = ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1) * z * t + t
    c = (2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2
    c = c * z * z - 0.5 * z + 1.0
    odd = (quarter & 1) != 0
    cosine = tl.where(odd, s, c)
    sine = tl.where(odd, c, s)
    cosine = tl.where(((quarter + 1) & 2) != 0, -cosine, cosine)
    sine = tl.where((quarter & 2) != 0, -sine, sine)
    return cosine, sine


@triton.jit
def _tail(radius, word, extra):
    """Recompute the radius from 64 bits in float64, for small words."""
    unit = (word.to(tl.float64) + (extra.to(tl.float64) + 0.5) * 2.3283064365386963e-10) * (
        2.3283064365386963e-10
    )
    return tl.where(word < 65536, tl.sqrt(-2.0 * tl.log(unit)).to(tl.float32), radius)


@triton.jit
def normals(at, domain, low, high, k0, k1):
    """Draw four normals of each run from one counter."""
    c0 = tl.zeros_like(low) + (at & 0xFFFFFFFF).to(tl.uint32)
    c1 = tl.zeros_like(low) + ((at >> 32) | domain).to(tl.uint32)
    w0, w1, w2, w3 = _philox(c0, c1, low, high, k0, k1)
    r0 = tl.sqrt(2.0 * _minus_log(w0))
    r1 = tl.sqrt(2.0 * _minus_log(w1))
    if tl.max(((w0 < 65536) | (w1 < 65536)).to(tl.int32), 0) > 0:
        e0, e1, _e2, _e3 = _philox(c0, c1 | (2 << 29), low, high, k0, k1)
        r0 = _tail(r0, w0, e0)
        r1 = _tail(r1, w1, e1)
    x0, y0 = _cosine_sine(w2)
    x1, y1 = _cosine_sine(w3)
    return r0 * x0, r1 * x1, r0 * y0, r1 * y1


@triton.jit
def _log_add_64(x, y):
    return tl.maximum(x, y) + tl.log(1.0 + tl.exp(-tl.abs(x - y)))


@triton.jit
def _one_of(
    out, whole, real, runs, epochs, steps, square: tl.constexpr, zero: tl.constexpr,
    size: tl.constexpr,
):  # fmt: skip
    """Compute ln Λ where one batch of an epoch has the target, relative to the maximum."""
    lane = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    run = tl.load(whole + 3) + lane
    low, high = (run & 0xFFFFFFFF).to(tl.uint32), (run >> 32).to(tl.uint32)
    k0, k1 = tl.load(whole).to(tl.uint32), tl.load(whole + 1).to(tl.uint32)
    domain = tl.load(whole + 2)
    a, b, mean = tl.load(real), tl.load(real + 1), tl.load(real + 2)
    a32, b32 = a.to(tl.float32), b.to(tl.float32)
    blocks = (steps + 3) // 4
    score = tl.zeros([size], tl.float64)
    for epoch in range(epochs):
        most = tl.full([size], -1e30, tl.float32)
        sum_a = tl.zeros([size], tl.float32)
        sum_b = tl.zeros([size], tl.float32)
        target = tl.zeros([size], tl.float32)
        for i in range(blocks):
            at = tl.cast(epoch, tl.int64) * blocks + i
            z0, z1, z2, z3 = normals(at, domain, low, high, k0, k1)
            if i == 0:
                target = z0
                z0 = tl.full([size], float("-inf"), tl.float32)
            if i == blocks - 1:
                z1 = tl.where(4 * i + 1 < steps, z1, float("-inf"))
                z2 = tl.where(4 * i + 2 < steps, z2, float("-inf"))
                z3 = tl.where(4 * i + 3 < steps, z3, float("-inf"))
            peak = tl.maximum(tl.maximum(most, z0), tl.maximum(z1, tl.maximum(z2, z3)))
            if square:
                e0, e1 = tl.exp(b32 * (z0 - peak)), tl.exp(b32 * (z1 - peak))
                e2, e3 = tl.exp(b32 * (z2 - peak)), tl.exp(b32 * (z3 - peak))
                back = tl.exp(b32 * (most - peak))
                sum_b = sum_b * back + ((e0 + e1) + (e2 + e3))
                sum_a = sum_a * back * back + ((e0 * e0 + e1 * e1) + (e2 * e2 + e3 * e3))
            else:
                sum_a = sum_a * tl.exp(a32 * (most - peak)) + (
                    (tl.exp(a32 * (z0 - peak)) + tl.exp(a32 * (z1 - peak)))
                    + (tl.exp(a32 * (z2 - peak)) + tl.exp(a32 * (z3 - peak)))
                )
                if not zero:
                    sum_b = sum_b * tl.exp(b32 * (most - peak)) + (
                        (tl.exp(b32 * (z0 - peak)) + tl.exp(b32 * (z1 - peak)))
                        + (tl.exp(b32 * (z2 - peak)) + tl.exp(b32 * (z3 - peak)))
                    )
            most = peak
        x = target.to(tl.float64) + mean
        if steps == 1:
            ratio = (a - b) * x
        else:
            others = most.to(tl.float64)
            ratio = _log_add_64(a * x, a * others + tl.log(sum_a.to(tl.float64)))
            if zero:
                ratio -= tl.load(real + 3)
            else:
                ratio -= _log_add_64(b * x, b * others + tl.log(sum_b.to(tl.float64)))
        score += ratio - (a - b) * (a + b) / 2
    tl.store(out + lane, score, mask=lane < runs)


def scores(draw: "Draw", law: "Law", *, sigma: float, device: str) -> Any:
    """Return ln Λ of consecutive runs as a tensor on the device, where one batch has the record."""
    out = torch.empty(draw.runs, dtype=torch.float64, device=device)
    # As tensors, since Triton would make some integers constants and all floats float32.
    key = [draw.key & 0xFFFFFFFF, draw.key >> 32, draw.world << 29, draw.first]
    whole = torch.tensor(key, dtype=torch.int64, device=device)
    a, b = law.present / sigma, law.absent / sigma
    reals = [a, b, a if draw.world else b, math.log(law.steps)]
    real = torch.tensor(reals, dtype=torch.float64, device=device)
    with torch.cuda.device(torch.device(device)):
        _one_of[(triton.cdiv(draw.runs, _BLOCK),)](
            out, whole, real, draw.runs, draw.epochs, law.steps,
            square=law.present == 2 * law.absent, zero=law.absent == 0,
            size=_BLOCK, num_warps=_WARPS,
        )  # fmt: skip
    return out
