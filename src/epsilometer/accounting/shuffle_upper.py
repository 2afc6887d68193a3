r"""Bound the ε of DP-SGD from above for any data, by the smallest of all proved bounds.

``accounting.shuffle`` bounds it from below. Where a record is in one batch of each epoch:

- **known batches**, for every sampler. Let b be the batches of all epochs, drawn alike with the
  record and with the record zeroed out. Given b, the record is in at most one batch per epoch: its
  sum moves by at most the clipping norm, whatever was observed before. So all steps together leak
  no more than a Gaussian mechanism with noise σ/√E (Dong et al. 2022, Corollary 3.3 on arXiv). The
  output has the distribution Σ p(b) P_b with the record and Σ p(b) Q_b without it. The hockey-stick
  divergence is jointly convex: D(Σ p P_b, Σ p Q_b) ≤ Σ p D(P_b, Q_b) ≤ δ at the Gaussian's ε.
- **random allocation**, for balls in bins: ``accounting.allocation``.
- **clones**, for shuffling: ``accounting.clones``.

Chua et al. (2024, and for several epochs) have lower bounds for shuffling and no upper one.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from epsilometer import _validate
from epsilometer.accounting.allocation import allocation_epsilon
from epsilometer.accounting.clones import clones_epsilon
from epsilometer.accounting.pld import poisson_epsilon
from epsilometer.accounting.shuffle import setting_in_words
from epsilometer.core.bound import EpsilonEstimate
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import Law, Sampler, Shuffle, find_law
from epsilometer.stats import search
from epsilometer.stats.gaussians import gaussian_epsilon, gaussian_sigma

_SHUFFLE = Shuffle()
_CLOSED_FORM = 1e-11  # relative error of closed forms, which is added
_LITTLE_NOISE = 0.25  # below, secrecy of batches hides almost nothing
_STEP = 1.3  # by which noise is raised or lowered until the wanted one is passed
_NEAR = 3e-4  # relative: how near the least noise is found
_EVERYWHERE = (
    "It holds where every record is in at most one batch per epoch, every batch gets Gaussian "
    "noise of the stated multiplier, and records are zeroed out."
)
CAVEATS = {
    "known batches": "The ε against an adversary who also knows which batch has the record, an "
    f"upper bound by joint convexity. {_EVERYWHERE}",
    "random allocation": "The ε of the pair that dominates balls in bins, rounded up. It holds "
    "where every record picks its batch uniformly and independently of all others, afresh in each "
    "epoch, and every batch gets Gaussian noise of the stated multiplier.",
    "clones": "An upper bound by records that look like the target. It holds where records are "
    "permuted uniformly and afresh in each epoch, every batch gets Gaussian noise of the stated "
    "multiplier, and records are zeroed out.",
    "PLD": "The ε of Poisson sampling, rounded up. It holds where every batch takes every record "
    "by its own coin and gets Gaussian noise of the stated multiplier.",
    "none": "Nothing is proved about this sampler.",
}
_CITES = {
    "known batches": ("balle2018", "dong2022"),
    "random allocation": ("chua2025", "feldman2025", "doroshenko2022"),
    "clones": ("feldman2021", "doroshenko2022"),
    "PLD": ("doroshenko2022",),
    "none": (),
}


def shuffle_upper(
    *,
    noise_multiplier: float,
    steps: int,
    epochs: int = 1,
    delta: float,
    sampler: Sampler = _SHUFFLE,
    batch_size: int | None = None,
) -> EpsilonEstimate:
    """Compute the smallest proved upper bound on the ε of DP-SGD with a given sampler.

    Guarantee: the ε of DP-SGD with this sampler is at most ``high``, for all data and all adaptive
        training. ``method`` names the bound, ``cites`` its sources. Infinite where nothing is
        proved.
    Assumption: epochs are drawn independently; neighbours are zeroed out.

    Args:
        noise_multiplier: Standard deviation of the noise in units of the clipping norm.
        steps: Batches per epoch.
        epochs: Number of passes over all records.
        delta: δ.
        sampler: ``Shuffle`` by default.
        batch_size: Needed by samplers whose distribution depends on it, and by ``FixedSize``. There
            are at most ``steps`` times as many records.

    Example:
        >>> from epsilometer.samplers import BallsInBins
        >>> training = dict(noise_multiplier=1.0, steps=100, delta=1e-5)
        >>> found = shuffle_upper(**training)
        >>> round(found.high, 2), found.method
        (4.38, 'known batches')
        >>> found = shuffle_upper(**training, sampler=BallsInBins())
        >>> round(found.high, 2), found.method
        (0.62, 'random allocation')
    """
    _validate.open_unit(delta=delta)
    _validate.positive(noise_multiplier=noise_multiplier)
    _validate.whole(1, steps=steps, epochs=epochs)
    bound = _find_bounds(sampler, steps, epochs, batch_size)
    epsilon, method = bound(noise_multiplier, delta)
    return EpsilonEstimate(
        epsilon=epsilon,
        low=epsilon,
        high=epsilon,
        delta=delta,
        confidence=1.0,
        method=method,
        direction="both",
        subject=f"{setting_in_words(sampler, noise_multiplier, steps, epochs)}, {method}",
        role="upper",
        adjacency="zero_out",
        cites=(*_CITES[method], *(("chua2024",) if hasattr(sampler, "inner") else ())),
        caveats=(CAVEATS[method],),
        basis=(
            ("noise multiplier", noise_multiplier),
            ("steps", steps),
            ("epochs", epochs),
            ("μ", math.sqrt(epochs) / noise_multiplier),
        ),
    )


def sufficient_noise(
    *,
    epsilon: float,
    delta: float,
    steps: int,
    epochs: int = 1,
    sampler: Sampler = _SHUFFLE,
    batch_size: int | None = None,
    near: float | None = None,
) -> float:
    """Compute nearly the smallest noise multiplier for which an (ε, δ) claim is proved.

    Guarantee: with at least this much noise the claim is true. Less may suffice: ``shuffle_noise``
        gives the necessary noise. Infinite where nothing is proved.
    Assumption: as for ``shuffle_upper``.

    Args:
        epsilon: The claimed ε.
        delta: δ.
        steps: Batches per epoch.
        epochs: Number of passes over all records.
        sampler: ``Shuffle`` by default.
        batch_size: As for ``shuffle_upper``.
        near: Start of the search; it affects its duration, and the result by 3e-4 of it.

    Example:
        >>> from epsilometer.samplers import BallsInBins
        >>> wanted = dict(epsilon=3.0, delta=1e-5, steps=781, epochs=50)
        >>> round(sufficient_noise(**wanted, sampler=BallsInBins()), 2)
        0.69
    """
    _validate.at_least(0, epsilon=epsilon)
    _validate.open_unit(delta=delta)
    _validate.whole(1, steps=steps, epochs=epochs)
    if epsilon == math.inf:
        return 0.0
    bound = _find_bounds(sampler, steps, epochs, batch_size)
    start = near or math.sqrt(epochs) * gaussian_sigma(max(epsilon, 1e-9), delta)

    @cache
    def keep(log_noise: float) -> float:
        """Return a number that rises with the noise, above 0 where the claim is true."""
        found = bound(math.exp(log_noise), delta)[0]
        if found <= epsilon:
            return max(math.log((epsilon + 1e-12) / (found + 1e-12)), 1e-12)
        short = math.log(epsilon / found) if epsilon > 0 and found < math.inf else -math.inf
        return min(max(short, -5.0), -1e-12)

    low = high = math.log(start)
    step = math.log(_STEP)
    for _ in range(200):
        if keep(high) > 0:
            break
        low, high = high, high + step
    else:
        return math.inf
    while keep(low) > 0 and low > -7:
        low, high = low - step, low
    # The ends of a bracket are wanted to _NEAR of the noise; counted from ``low`` that is less.
    near_end = _NEAR / (high - low)
    found = search.root(lambda more: keep(low + more), 0.0, high - low, relative=near_end)[1]
    return math.exp(low + found)


_Bound = Callable[[float, float], tuple[float, str]]


def _find_bounds(sampler: Sampler, steps: int, epochs: int, batch_size: int | None) -> _Bound:
    """Return a function of noise and δ that gives the smallest bound, and its name."""
    inner: Sampler | None = getattr(sampler, "inner", None)
    if inner is not None:
        return _truncate(
            sampler, _find_bounds(inner, steps, epochs, batch_size), steps, epochs, batch_size
        )
    law = find_law(sampler, steps, batch_size)
    if law.is_poisson and not getattr(sampler, "rate", None) and getattr(sampler, "steps", None):
        raise InvalidArgument(
            f"Expected a sampler with a rate, got {sampler!r}: its batches have batch_size / "
            "records, which its steps do not tell."
        )
    return lambda noise, delta: min(_list_bounds(law, noise, epochs, delta))


def _list_bounds(law: Law, noise: float, epochs: int, delta: float) -> list[tuple[float, str]]:
    if law.is_poisson:
        epsilon = poisson_epsilon(
            noise_multiplier=noise,
            sampling_rate=law.rate or 0.0,
            steps=law.steps * epochs,
            delta=delta,
            adjacency="zero_out",
        )
        return [(epsilon, "PLD")]
    if law.rate is not None:  # a record may be in several batches, in the place of others
        return [(math.inf, "none")]
    known = gaussian_epsilon(noise / math.sqrt(epochs), delta) * (1 + _CLOSED_FORM)
    found = [(known, "known batches")]
    setting: dict[str, Any] = {"noise_multiplier": noise, "epochs": epochs, "delta": delta}
    if law.secrecy == "allocation" and law.absent == 0 and noise >= _LITTLE_NOISE:
        found.append((allocation_epsilon(steps=law.steps, **setting), "random allocation"))
    if law.secrecy == "permutation" and law.steps > 1:
        # A ragged last batch may have no record in the slot of the target: one batch less.
        found.append((clones_epsilon(steps=law.steps - 1, **setting), "clones"))
    return found


def _truncate(
    sampler: Sampler, bound: _Bound, steps: int, epochs: int, batch_size: int | None
) -> _Bound:
    """Return the bound of a sampler that truncates batches to a fixed size.

    Let both draw the same batches. They differ only where some batch was cut, which has a
    probability of at most τ, with the record and without it. So P'(O) ≤ P(O) + τ and
    Q(O) ≤ Q'(O) + τ, and δ' = δ + (1 + e^ε) τ, as Chua et al. (2024) account for truncation.
    """
    if batch_size is None:
        raise InvalidArgument(f"Expected a batch_size with {sampler!r}, got none.")
    overflow = steps * epochs * sampler.overflow(steps, batch_size)  # type: ignore[attr-defined]

    def cut(noise: float, delta: float) -> tuple[float, str]:
        allowed = 0.0
        for _ in range(6):  # what is spent grows with ε: from below, until it is enough
            left = delta - (1 + math.exp(min(allowed, 700.0))) * overflow
            if left <= 0:
                break
            epsilon, method = bound(noise, left)
            if epsilon <= allowed:
                return epsilon, method
            allowed = epsilon * (1 + 1e-4) + 1e-9
        return math.inf, "none"

    return cut
