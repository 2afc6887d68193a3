"""Check whether the ε that Opacus reports is that of this loader."""

from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from epsilometer import _validate
from epsilometer.accounting.pld import poisson_epsilon
from epsilometer.conformance.books import Booked, count_steps
from epsilometer.conformance.sampling import SamplerCheck, compare_sampling
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.opacus.objects import (
    check_optimizer,
    count_batches,
    count_logical_batches,
    count_taken,
    describe_sampler,
    find_sampler,
    is_engine,
    report_epsilon,
)
from epsilometer.sampling.loaders import watch_loader
from epsilometer.sampling.samplers import Poisson, Sampler


def check(
    privacy_engine_or_loader: Any,
    optimizer: Any = None,
    *,
    loader: Any = None,
    delta: float,
    epochs: int | None = None,
    seed: int = 0,
) -> SamplerCheck:
    """Compare a loader's sampler with the one that the accountant assumes, with the ε of both.

    With ``poisson_sampling=False``, Opacus reports the ε of Poisson sampling without a warning. The
    judged ε is the engine's, for exactly the steps on its books; with ``epochs`` it is a plan.
    Without booked steps, the result is *not tested*.

    Guarantee: no batch is loaded and nothing is trained. Loaders of torch and Opacus are recognised
        by their samplers, without using their random numbers.
    Assumption: every epoch uses the whole loader. Other samplers are watched (indices only), which
        advances their randomness. If the loader shuffles, the real ε is a lower bound: that of
        whole epochs and of the most noise.

    Args:
        privacy_engine_or_loader: The ``PrivacyEngine``, together with ``loader``; or the loader
            that ``make_private`` returned, together with ``optimizer``.
        optimizer: The ``DPOptimizer``. Before the first step it provides the noise multiplier.
            After training it shows whether steps are missing from the books, if it counts them like
            Adam.
        loader: The loader from ``make_private``, if the first argument is an engine.
        delta: δ of both ε.
        epochs: Number of planned epochs; by default the engine's books are checked, or a plan of
            one epoch without an engine.
        seed: Seed for watching unknown samplers.
    """
    engine = privacy_engine_or_loader
    if not is_engine(engine):
        engine, loader = None, privacy_engine_or_loader
    count_batches(loader)
    _validate.open_unit(delta=delta)
    if epochs is not None:
        _validate.whole(1, epochs=epochs)
    if optimizer is not None:
        check_optimizer(optimizer)
    booked = [] if engine is None else [*map(_as_booked, engine.accountant.history)]
    history, planned = _plan(booked, engine, optimizer, loader, epochs)
    name, reported = "PLD", 0.0
    if engine is not None:
        name = engine.accountant.mechanism().upper()
        accountant = copy(engine.accountant)
        accountant.history = history if count_steps(history) else []
        reported = report_epsilon(accountant, delta)
    else:
        noise, rate, steps = history[0]
        reported = poisson_epsilon(
            noise_multiplier=noise, sampling_rate=rate, steps=steps, delta=delta
        )
    sampler, words, batch_size = _recognise(loader, history[-1][1], seed)
    return compare_sampling(
        sampler,
        name=words,
        history=history,
        delta=delta,
        reported=reported,
        accountant=name,
        batch_size=batch_size,
        planned=planned,
        taken=None if optimizer is None or planned else count_taken(optimizer),
        assumed=None if engine is None else getattr(engine.accountant, "sampler", None),
    )


def _as_booked(entry: Any) -> Booked:
    noise, rate, steps = entry
    return float(noise), float(rate), int(steps)


def _plan(
    booked: list[Booked], engine: Any, optimizer: Any, loader: Any, epochs: int | None
) -> tuple[list[Booked], bool]:
    """Return the booked or planned history, and whether it is a plan."""
    if booked:
        noise, rate = max(noise for noise, _, _ in booked), booked[-1][1]
    elif optimizer is None:
        raise InvalidArgument(
            "Expected the DPOptimizer with a loader, or an engine that has seen steps, got "
            "neither: how much noise there will be is not known. Give optimizer=."
        )
    else:
        noise, rate = float(optimizer.noise_multiplier), 1 / count_logical_batches(loader)
    if epochs is None and engine is not None:
        return booked or [(noise, rate, 0)], False
    steps = max(1, round(1 / rate)) * (epochs or 1)
    if booked and steps == count_steps(booked):
        return booked, False
    return [(noise, rate, steps)], True


def _recognise(loader: Any, booked: float, seed: int) -> tuple[Sampler | None, str, int | None]:
    """Return a loader's sampler, its name and batch size; it is watched if its type is unknown."""
    known = find_sampler(loader)
    if known is not None:
        return known, describe_sampler(known), loader.batch_size
    report = watch_loader(loader, rng=np.random.default_rng(seed))
    found = report.sampler
    if isinstance(found, Poisson):  # its rate is known to half a record
        rate = report.batch_size / report.records
        close = abs(rate - booked) <= 0.5 / report.records
        found = replace(found, rate=booked if close else rate)
    return found, f"{report.name} (as watched)", report.batch_size
