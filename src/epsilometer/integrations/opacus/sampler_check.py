"""Is the ε that Opacus reports the ε of this loader?"""

from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from epsilometer import _validate
from epsilometer.accounting.pld import poisson_epsilon
from epsilometer.audits.sampling import SamplerCheck, compare_sampling
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.opacus.objects import (
    batches_of,
    check_optimizer,
    in_words,
    is_engine,
    reported_epsilon,
    sampler_of,
)
from epsilometer.mechanisms.loaders import watch_loader
from epsilometer.mechanisms.samplers import Poisson, Sampler


def check(
    privacy_engine_or_loader: Any,
    optimizer: Any = None,
    *,
    loader: Any = None,
    delta: float,
    epochs: int | None = None,
    seed: int = 0,
) -> SamplerCheck:
    """Says what sampler a loader is, what the accountant assumes, and the ε of both.

    Opacus with ``poisson_sampling=False`` reports the ε of Poisson sampling and says nothing.

    Guarantees: no batch is loaded and nothing is trained; loaders of torch and Opacus are known by
        their samplers, and no random number of theirs is used up.
    Assumes: the whole loader is gone through every epoch. Other samplers are watched (indices
        only), which moves their randomness on. Where the noise changed from step to step, the real
        ε is that of the most noise, which it is at least.

    Args:
        privacy_engine_or_loader: The ``PrivacyEngine``, together with ``loader``; or the loader
            that ``make_private`` returned, together with ``optimizer``.
        optimizer: The ``DPOptimizer``; with an engine it is needed only before the first step.
        loader: The loader that ``make_private`` returned, where an engine comes first.
        delta: δ of both ε.
        epochs: How many to account for; by default what the engine has on its books, else 1.
        seed: For watching unknown samplers.
    """
    engine = privacy_engine_or_loader
    if not is_engine(engine):
        engine, loader = None, privacy_engine_or_loader
    batches = batches_of(loader)
    _validate.open_unit(delta=delta)
    if epochs is not None:
        _validate.whole(1, epochs=epochs)
    history = _history(engine, optimizer, batches)
    rate = float(history[-1][1])
    done, per_epoch = sum(steps for _, _, steps in history), max(1, round(1 / rate))
    span = epochs or max(1, done // per_epoch)
    noise = max(float(sigma) for sigma, _, _ in history)
    if engine is None:
        name = "PLD"
        reported = poisson_epsilon(
            noise_multiplier=noise, sampling_rate=rate, steps=per_epoch * span, delta=delta
        )
    else:
        name = engine.accountant.mechanism().upper()
        planned = copy(engine.accountant)
        planned.history = history if done == per_epoch * span else [(noise, rate, per_epoch * span)]
        reported = reported_epsilon(planned, delta)
    sampler, words, batch_size = _recognised(loader, seed)
    return compare_sampling(
        sampler,
        name=words,
        noise_multiplier=noise,
        rate=rate,
        epochs=span,
        delta=delta,
        reported=reported,
        accountant=name,
        batch_size=batch_size,
    )


def _history(engine: Any, optimizer: Any, batches: int) -> list[tuple[float, float, int]]:
    """(noise, rate, steps) as on the accountant's books, or as they will be."""
    booked = [] if engine is None else list(engine.accountant.history)
    if booked:
        return booked
    if optimizer is None:
        raise InvalidArgument(
            "Expected the DPOptimizer beside a loader, or an engine that has seen steps, got "
            "neither: how much noise there will be is not known. Give optimizer=."
        )
    check_optimizer(optimizer)
    return [(float(optimizer.noise_multiplier), 1 / batches, 0)]


def _recognised(loader: Any, seed: int) -> tuple[Sampler | None, str, int | None]:
    """The sampler of a loader, its name and batch size; watched where its type says nothing."""
    known = sampler_of(loader)
    if known is not None:
        return known, in_words(known), loader.batch_size
    report = watch_loader(loader, rng=np.random.default_rng(seed))
    found = report.sampler
    if isinstance(found, Poisson):
        found = replace(found, rate=report.batch_size / report.records)
    return found, f"{report.name} (as watched)", report.batch_size
