"""Define who sees what of DP-SGD: all updates, single steps, the final model, its loss."""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Literal, TypeAlias, get_args

import numpy as np

from epsilometer.accounting import family, pld
from epsilometer.audits.dpsgd.canaries import IN_WORDS, Adversary
from epsilometer.core.claim import Adjacency, Claim
from epsilometer.core.findings import Curve
from epsilometer.core.scores import Scores
from epsilometer.engine.runs import Play, Program, View
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import Sampler, is_poisson

Look: TypeAlias = Literal["updates", "model", "loss", "steps"]
_LEAST = 0.2  # noise with a curve; below it takes minutes and allows nearly everything
_DRAWN = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, 120)])


def check_views(views: Sequence[Look], adversary: Adversary, adjacency: Adjacency) -> None:
    """Refuse unknown views, and those the adversary or the adjacency have no bound for."""
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


def check_views_stop(views: Sequence[Look], canaries: int) -> None:
    """Refuse views that an audit could not reach, or not bound, if it stops early."""
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
    """Describe runs with a gradient canary, and all that is seen of each.

    Args:
        play: As of :class:`~epsilometer.engine.runs.Program`.
        looks: What is seen.
        subject: What was audited, in words.
        adversary: What she may insert.
        adjacency: What training without the target is.
        sampler: How batches are drawn.
        noise_multiplier: Of the training.
        rate: Probability that a batch has a given record.
        steps: Of the whole training.
        delta: δ of the bounds.
        confidence: Of each bound.
        seed: Of whatever a bound draws.
    """
    bound = partial(
        family.poisson_bound,
        sampling_rate=rate,
        steps=steps,
        delta=delta,
        confidence=confidence,
        per="step",
        seed=seed,
    )
    power = partial(_step_power, sampling_rate=rate, steps=steps, confidence=confidence)
    views = []
    for look in looks:
        who = IN_WORDS[adversary]
        if look == "updates":
            views.append(View(name=look, subject=f"{subject}, all updates seen", adversary=who))
        elif look == "model":
            views.append(
                View(
                    name=look,
                    subject=f"{subject}, final model only: along the canary gradient",
                    adversary=who.replace("every noisy sum", "the final model"),
                )
            )
        else:
            _check_poisson(sampler)
            who = f"{who}; knows all other records and the batches"
            views.append(
                View(
                    name=look,
                    subject=f"{subject}, single steps, as Poisson-sampled training of unknown "
                    "noise",
                    adversary=who,
                    bound=partial(bound, adversary=who),
                    power=power,
                    each=2 * steps,  # the target may be in all runs
                )
            )
    return Program(
        play=play,
        subject=subject,
        adversary=IN_WORDS[adversary],
        curves=_curves(noise_multiplier, rate, steps, adjacency),
        views=tuple(views),
    )


def loss_program(play: Play, subject: str) -> Program:
    """Describe runs with a record of its own, of which the final model's loss is seen."""
    subject = f"{subject}, final model only: loss on a data canary"
    who = "sees the final model, chooses one record"
    view = View(name="loss", subject=subject, adversary=who)
    return Program(play=play, subject=subject, adversary=who, views=(view,))


def _check_poisson(sampler: Sampler) -> None:
    if not is_poisson(sampler):
        raise InvalidArgument(
            f"Expected sampler=Poisson() with the view 'steps', got {sampler!r}: its bound is that "
            "of Poisson sampling."
        )


def _step_power(
    claim: Claim, scores: Scores, *, sampling_rate: float, steps: int, confidence: float
) -> float:
    return family.step_power(
        claim.epsilon,
        n_in=scores.n_in,
        n_out=scores.n_out,
        sampling_rate=sampling_rate,
        steps=steps,
        delta=claim.delta,
        confidence=confidence,
    )


@lru_cache(maxsize=8)
def _curves(noise: float, rate: float, steps: int, adjacency: Adjacency) -> tuple[Curve, ...]:
    """Return what accounting by Poisson sampling allows, where it has such a curve."""
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
