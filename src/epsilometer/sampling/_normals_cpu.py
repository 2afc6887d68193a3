"""The batched Gaussian mechanism for numba: normals and their exponential sums, fused.

The stream is the one that ``stream`` defines. Thirty-two runs are computed side by side, one per
lane, so that the compiler vectorises every loop over lanes, and a run's numbers do not depend on
its neighbours. Bulk normals are computed in float32 (cephes' polynomials, about
one unit in the last place), those beyond 4.7σ again in float64 from 64 bits. numba has no vector
logarithm, cosine or exponential of its own, so they are here.

Loops write to one flat array at a time where possible: with several, the compiler does not
vectorise because they might overlap.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

LANES = 32  # runs side by side
_F, _I, _U, _U64 = np.float32, np.int32, np.uint32, np.uint64
_LOW, _HALVES = _U64(0xFFFFFFFF), _U64(32)
_MULTIPLIER_0, _MULTIPLIER_1 = _U64(0xD2511F53), _U64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = _U64(0x9E3779B9), _U64(0xBB67AE85)
_RARE = _U(1 << 16)  # a radius word below this is a tail: 64 bits and float64 for it
_TAILS = _U64(2 << 29)  # purposes, in the top bits of the counter's second word
_ZERO, _HALF, _ONE, _TWO = _F(0), _F(0.5), _F(1), _F(2)
_TO_UNIT, _TO_ANGLE = _F(2.0**-32), _F(2 * math.pi / 2**32)
_LN2, _LN2_HIGH, _LN2_LOW = _F(math.log(2)), _F(0.693359375), _F(-2.12194440e-4)
_LOG2_E, _ROUNDER, _LEAST = _F(1 / math.log(2)), _F(12582912.0), _F(-87.0)
_ROOT_HALF, _ROOT_HALF_BITS = _U(0xB504F334), _I(0x3F3504F3)  # √½·2³², and √½ as a float's bits
_L0, _L1, _L2 = _F(7.0376836292e-2), _F(-1.1514610310e-1), _F(1.1676998740e-1)
_L3, _L4, _L5 = _F(-1.2420140846e-1), _F(1.4249322787e-1), _F(-1.6668057665e-1)
_L6, _L7, _L8 = _F(2.0000714765e-1), _F(-2.4999993993e-1), _F(3.3333331174e-1)
_S1, _S2, _S3 = _F(-1.6666654611e-1), _F(8.3321608736e-3), _F(-1.9515295891e-4)
_C1, _C2, _C3 = _F(4.166664568298827e-2), _F(-1.388731625493765e-3), _F(2.443315711809948e-5)
_E0, _E1, _E2 = _F(1.9875691500e-4), _F(1.3981999507e-3), _F(8.3334519073e-3)
_E3, _E4, _E5 = _F(4.1665795894e-2), _F(1.6666665459e-1), _F(5.0000001201e-1)

Kernel = Callable[..., Any]
# Only contraction to fused multiply-adds is allowed: reordering would break log(1 + x) below.
_OPTIONS: dict[str, Any] = {"fastmath": {"contract"}, "error_model": "numpy"}
_inlined = njit(inline="always", **_OPTIONS)


def _compile(function: Kernel) -> Kernel:
    """Compile when first called, without the interpreter's lock; keep on disk if possible."""
    try:
        return njit(nogil=True, cache=True, **_OPTIONS)(function)
    except RuntimeError:  # nowhere to keep it: neither next to this file nor in the user's cache
        return njit(nogil=True, **_OPTIONS)(function)


@_inlined
def philox(c0, c1, c2, c3, k0, k1):
    """Philox4x32-10; words in 64 bits each, as the wide multiplication needs."""
    for _ in range(10):
        p0 = _MULTIPLIER_0 * c0
        p1 = _MULTIPLIER_1 * c2
        c0 = (p1 >> _HALVES) ^ c1 ^ k0
        c1 = p1 & _LOW
        c2 = (p0 >> _HALVES) ^ c3 ^ k1
        c3 = p0 & _LOW
        k0 = (k0 + _WEYL_0) & _LOW
        k1 = (k1 + _WEYL_1) & _LOW
    return c0, c1, c2, c3


@_inlined
def _log_near_one(f):
    """ln(1 + f) for 1 + f in [√½, √2]."""
    z = f * f
    y = ((((_L0 * f + _L1) * f + _L2) * f + _L3) * f + _L4) * f + _L5
    y = ((y * f + _L6) * f + _L7) * f + _L8
    return f + (y * f * z - _HALF * z)


@_inlined
def _minus_log(word):
    """−ln((word + ½)/2³²), precise at both ends: near 1 the distance from it is converted."""
    bits = _F((_F(word) + _HALF) * _TO_UNIT).view(_I)
    exponent = _I((bits - _ROOT_HALF_BITS) >> _I(23))
    f = _I(bits - (exponent << _I(23))).view(_F) - _ONE
    near = word >= _ROOT_HALF
    f = -(_F(_U(~word)) + _HALF) * _TO_UNIT if near else f
    halvings = _ZERO if near else _F(exponent)
    return -(halvings * _LN2 + _log_near_one(f))


@_inlined
def tail_radius(word, more):
    """Box–Muller's radius from 64 bits, in float64."""
    unit = (float(word) + (float(more) + 0.5) * 2.0**-32) * 2.0**-32
    return math.sqrt(-2 * math.log(unit))


@_inlined
def _cosine_sine(word):
    """Of the angle 2π·word/2³², reduced to an eighth of a turn in whole numbers."""
    quarter = _U((word + _U(0x20000000)) >> _U(30))
    t = _F(_I(_U(word - (quarter << _U(30))))) * _TO_ANGLE
    z = t * t
    s = ((_S3 * z + _S2) * z + _S1) * z * t + t
    c = ((_C3 * z + _C2) * z + _C1) * z * z - _HALF * z + _ONE
    odd = (quarter & _U(1)) != 0
    cosine = s if odd else c
    sine = c if odd else s
    cosine = -cosine if ((quarter + _U(1)) & _U(2)) != 0 else cosine
    sine = -sine if (quarter & _U(2)) != 0 else sine
    return cosine, sine


@_inlined
def _exp(x):
    """e^x for x ≤ 0, at least e^−87."""
    x = max(x, _LEAST)
    shifted = x * _LOG2_E + _ROUNDER  # the nearest whole number, in the low bits
    n = shifted - _ROUNDER
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = ((((_E0 * r + _E1) * r + _E2) * r + _E3) * r + _E4) * r + _E5
    p = p * r * r + r + _ONE
    return p * _I((_F(shifted).view(_I) + _I(127)) << _I(23)).view(_F)


@_compile
def _fill_words(k0, k1, domain, run, block, blocks, words):
    """Philox of ``blocks`` counters for a lane of runs; rows of a block: two radii, two angles."""
    for b in range(blocks):
        at = block + _U64(b)
        c0, c1 = at & _LOW, (at >> _HALVES) | domain
        rows = words[4 * LANES * b : 4 * LANES * (b + 1)]
        for lane in range(LANES):
            index = run + _U64(lane)
            a0, a1, a2, a3 = philox(c0, c1, index & _LOW, index >> _HALVES, k0, k1)
            rows[lane] = _U(a0)
            rows[LANES + lane] = _U(a1)
            rows[2 * LANES + lane] = _U(a2)
            rows[3 * LANES + lane] = _U(a3)


@_compile
def fill_normals(k0, k1, domain, run, block, blocks, words, normals):
    """Box–Muller: rows of a block are r₀ cos, r₁ cos, r₀ sin, r₁ sin."""
    _fill_words(k0, k1, domain, run, block, blocks, words)
    two = 2 * LANES
    least = _U(0xFFFFFFFF)
    for b in range(blocks):
        rows = words[2 * two * b : 2 * two * (b + 1)]
        out = normals[2 * two * b : 2 * two * (b + 1)]
        for i in range(two):
            least = min(least, rows[i])
        for i in range(two):
            out[i] = np.sqrt(_TWO * _minus_log(rows[i]))
        for i in range(two):
            cosine, sine = _cosine_sine(rows[two + i])
            radius = out[i]
            out[i] = radius * cosine
            out[two + i] = radius * sine
    if least >= _RARE:
        return
    for b in range(blocks):
        at = block + _U64(b)
        for i in range(two):
            place = 2 * two * b + i
            if words[place] >= _RARE:
                continue
            index = run + _U64(i % LANES)
            more = philox(
                at & _LOW, (at >> _HALVES) | domain | _TAILS, index & _LOW, index >> _HALVES, k0, k1
            )
            word = more[0] if i < LANES else more[1]
            radius = tail_radius(words[place], word)
            angle = float(words[place + two]) * (2 * math.pi * 2.0**-32)
            normals[place] = _F(radius * math.cos(angle))
            normals[place + two] = _F(radius * math.sin(angle))


@_compile
def standard_normals(key, world, first, runs, epochs, steps):
    """Return the draws themselves, shape ``(runs, epochs, steps)``: for tests."""
    k0, k1, domain = key & _LOW, key >> _HALVES, _U64(world << 29)
    blocks = (steps + 3) // 4
    words = np.empty(4 * blocks * LANES, np.uint32)
    normals = np.empty(4 * blocks * LANES, np.float32)
    drawn = np.empty((runs, epochs, steps), np.float32)
    for group in range(0, runs, LANES):
        for epoch in range(epochs):
            run, block = _U64(first + group), _U64(epoch * blocks)
            fill_normals(k0, k1, domain, run, block, blocks, words, normals)
            for lane in range(min(LANES, runs - group)):
                for t in range(steps):
                    drawn[group + lane, epoch, t] = normals[t * LANES + lane]
    return drawn


@_compile
def fill_block(key, block, out):
    """Fill in one block of the runs from 0 on: 128 numbers of 32 runs after 128 of others."""
    k0, k1, domain = key & _LOW, key >> _HALVES, _U64(0)
    together = 4 * LANES
    words = np.empty(together, np.uint32)
    last = np.empty(together, np.float32)
    whole = out.size // together
    for group in range(whole):
        here = out[group * together : (group + 1) * together]
        fill_normals(k0, k1, domain, _U64(group * LANES), block, 1, words, here)
    fill_normals(k0, k1, domain, _U64(whole * LANES), block, 1, words, last)
    out[whole * together :] = last[: out.size - whole * together]


@_compile
def one_of_sums(key, world, first, epochs, steps, high, low, target, most, above, below):
    """Draw the first normal of each run and epoch, and sum up the others by their maximum.

    Here a = ``high``, b = ``low``. The last four arguments have shape ``(epochs, runs)`` and are
    written; ``runs`` is a multiple of the lanes. ``below`` is 0 where ``low`` is 0.
    """
    k0, k1, domain = key & _LOW, key >> _HALVES, _U64(world << 29)
    blocks = (steps + 3) // 4
    words = np.empty(4 * blocks * LANES, np.uint32)
    normals = np.empty(4 * blocks * LANES, np.float32)
    sums = np.empty(3 * LANES, np.float32)
    a, b = _F(high), _F(low)
    square = high == 2 * low
    for group in range(0, most.shape[1], LANES):
        for epoch in range(epochs):
            run, block = _U64(first + group), _U64(epoch * blocks)
            fill_normals(k0, k1, domain, run, block, blocks, words, normals)
            for lane in range(LANES):
                sums[lane] = _F(-np.inf)
                sums[LANES + lane] = _ZERO
                sums[2 * LANES + lane] = _ZERO
            for t in range(1, steps):
                row = normals[t * LANES : (t + 1) * LANES]
                for lane in range(LANES):
                    sums[lane] = max(sums[lane], row[lane])
            for t in range(1, steps):
                row = normals[t * LANES : (t + 1) * LANES]
                if square:
                    for lane in range(LANES):
                        grown = _exp(b * (row[lane] - sums[lane]))
                        sums[LANES + lane] += grown * grown
                        sums[2 * LANES + lane] += grown
                else:
                    for lane in range(LANES):
                        sums[LANES + lane] += _exp(a * (row[lane] - sums[lane]))
                    if low != 0:
                        for lane in range(LANES):
                            sums[2 * LANES + lane] += _exp(b * (row[lane] - sums[lane]))
            target[epoch, group : group + LANES] = normals[:LANES]
            most[epoch, group : group + LANES] = sums[:LANES]
            above[epoch, group : group + LANES] = sums[LANES : 2 * LANES]
            below[epoch, group : group + LANES] = sums[2 * LANES :]
