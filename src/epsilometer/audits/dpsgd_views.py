"""Who sees what of DP-SGD: all updates, single steps, the final model, its loss on a record."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Literal, TypeAlias, get_args

import numpy as np

from epsilometer.accounting import family, pld
from epsilometer.audits.runs import Play, Program, View
from epsilometer.canaries.gradient import IN_WORDS, Adversary
from epsilometer.core.claim import Adjacency, Claim
from epsilometer.errors import InvalidArgument
from epsilometer.mechanisms.samplers import Poisson, Sampler
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.findings import Curve

Look: TypeAlias = Literal["updates", "model", "loss", "steps"]
_LEAST = 0.2  # noise with a curve; below it takes minutes and allows nearly everything
_DRAWN = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, 120)])


def known_views(views: Sequence[Look], adversary: Adversary, adjacency: Adjacency) -> None:
    """Refuses views that are none, and those the adversary or the adjacency have no bound for."""
    unknown = [view for view in views if view not in get_args(Look)]
    if not views or unknown or len(set(views)) < len(views):
        raise InvalidArgument(
            f"Expected views of {', '.join(get_args(Look))}, each once, got {tuple(views)}."
        )
    if "steps" not in views:
        return
    if adversary != "target_canary":
        raise InvalidArgument(
            "Expected adversary='target_canary' with the view 'steps', where steps without the "
            f"target show nothing but noise, got {adversary!r}."
        )
    if adjacency == "replace":
        raise InvalidArgument(
            "Expected adjacency='zero_out' or 'add_remove' with the view 'steps', got 'replace': "
            "its bound is that of a target which is there or not."
        )


def views_that_stop(views: Sequence[Look], canaries: int) -> None:
    """Refuses what an audit that stops early could not tell."""
    if canaries or ("loss" in views and len(views) > 1):
        raise InvalidArgument(
            "Expected no canaries and no view 'loss' beside others with until=…, got them: they "
            "are runs of their own, which an audit that stops early might never reach."
        )
    if "steps" in views:
        raise InvalidArgument(
            "Expected no view 'steps' with until=…, got it: its bound does not hold for runs that "
            "were stopped by looking at them."
        )


def gradient_program(
    play: Play,
    looks: Sequence[Look],
    *,
    subject: str,
    claim: Claim | None,
    adversary: Adversary,
    adjacency: Adjacency,
    sampler: Sampler,
    noise_multiplier: float,
    rate: float,
    steps: int,
    delta: float,
    confidence: float,
    seed: int,
) -> Program:
    """Runs with a gradient canary, and all that is seen of each."""
    bound = partial(
        family.poisson_bound,
        sampling_rate=rate,
        steps=steps,
        delta=delta,
        confidence=confidence,
        seed=seed,
    )
    return Program(
        play=play,
        subject=subject,
        claim=claim,
        adversary=IN_WORDS[adversary],
        curves=_curves(noise_multiplier, rate, steps, adjacency),
        views=tuple(_view(look, subject, adversary, sampler, bound, steps) for look in looks),
    )


def loss_program(play: Play, subject: str, claim: Claim | None) -> Program:
    """Runs with a record of its own, of which the final model's loss is seen."""
    subject = f"{subject}, final model only: loss on a data canary"
    who = "sees the final model, chooses one record"
    view = View(name="loss", subject=subject, adversary=who)
    return Program(play=play, subject=subject, claim=claim, adversary=who, views=(view,))


def _view(
    look: Look,
    subject: str,
    adversary: Adversary,
    sampler: Sampler,
    bound: Callable[..., EpsilonLowerBound],
    steps: int,
) -> View:
    """What is looked at, and by whom; ``bound`` is for single steps."""
    who = IN_WORDS[adversary]
    if look == "updates":
        return View(name=look, subject=f"{subject}, all updates seen", adversary=who)
    if look == "model":
        return View(
            name=look,
            subject=f"{subject}, final model only: along the canary gradient",
            adversary=who.replace("every noisy sum", "the final model"),
        )
    if not isinstance(sampler, Poisson):
        raise InvalidArgument(
            f"Expected sampler=Poisson() with the view 'steps', got {sampler!r}: its bound is that "
            "of Poisson sampling."
        )
    who = f"{who}; knows all other records and the batches"
    return View(
        name=look,
        subject=f"{subject}, single steps, as Poisson-sampled training of unknown noise",
        adversary=who,
        bound=partial(bound, per="step", adversary=who),
        each=2 * steps,  # the target may be in all runs
    )


@lru_cache(maxsize=8)
def _curves(noise: float, rate: float, steps: int, adjacency: Adjacency) -> tuple[Curve, ...]:
    """What accounting by Poisson sampling allows, where it has such a curve."""
    if adjacency == "replace" or noise < _LEAST:
        return ()
    fnr = pld.poisson_curve(
        _DRAWN, noise_multiplier=noise, sampling_rate=rate, steps=steps, adjacency=adjacency
    )
    return (
        Curve(
            name="PLD of Poisson sampling",
            fpr=tuple(float(f"{rate:.6g}") for rate in _DRAWN),
            fnr=tuple(float(f"{rate:.6g}") for rate in np.clip(fnr, 0, 1)),
        ),
    )
