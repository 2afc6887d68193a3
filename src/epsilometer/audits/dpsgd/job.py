"""Execute an audit of DP-SGD: blocks of runs, optionally one run with many canaries."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import Literal, TypeAlias

import numpy as np
from msgspec.structs import replace

from epsilometer.accounting import family, pld
from epsilometer.audits.dpsgd.canaries import IN_WORDS, Adversary, TargetCanary
from epsilometer.audits.dpsgd.game import OneRun
from epsilometer.core.audit import Audit
from epsilometer.core.claim import Adjacency, Claim, warn_of_delta
from epsilometer.core.findings import Curve, EpsilonFinding
from epsilometer.core.scores import Scores
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import Done, Watch
from epsilometer.engine.runs import (
    Play,
    Program,
    RunsJob,
    View,
    add_lost_caveat,
    count_lost_scores,
)
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import Sampler, is_poisson
from epsilometer.types import IntArray

Look: TypeAlias = Literal["updates", "model", "loss", "steps"]
_LEAST = 0.2  # smallest noise with a curve; below, it takes minutes and allows nearly everything
_DRAWN = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, 120)])


@dataclass(frozen=True, kw_only=True)
class DPSGDJob:
    """Execute blocks of runs with one canary and, as the last unit, one run with many.

    Attributes:
        runs: The many runs.
        one: The one run; None if there is none.
        adjacency: What training without the target is.
        records: Number of records.
        unproven: Why a gradient canary's bounds are not valid; empty where they are.
    """

    runs: RunsJob
    one: OneRun | None
    adjacency: Adjacency
    records: int
    unproven: str = ""

    @property
    def plan(self) -> Plan:
        """Everything that determines the result."""
        return self.runs.plan

    def unit(self, index: int) -> Arrays:
        """Train one block."""
        if index < self._many:
            return self.runs.unit(index)
        assert self.one is not None
        return self.one.play(self.plan.stream(index))

    def missing(self, index: int) -> Arrays:
        """Return failed runs, scored against the attack."""
        if index < self._many:
            return self.runs.missing(index)
        assert self.one is not None
        return self.one.missing()

    def watch(self) -> Watch:
        """Return a watch of the many runs, without the single run with canaries."""
        return _Watching(self.runs.watch(), self._many)

    def result(self, units: Iterable[Arrays], done: Done) -> Audit:
        """Return the audit: one finding per view of the runs, and one of the single run."""
        every = iter(units)
        programs, blocks = self.runs.programs, self.runs.blocks
        lost = {(n, view.name): np.zeros(2, np.int64) for n, view in self._looks}

        def counted() -> Iterator[Arrays]:
            for index, arrays in enumerate(islice(every, self._many)):
                if index not in done.failed:
                    for view in programs[index // blocks].looks:
                        lost[index // blocks, view.name] += count_lost_scores(arrays, view.name)
                yield arrays

        found = [
            self._finish(view, finding, lost[n, view.name])
            for finding, (n, view) in zip(
                self.runs.findings(counted(), done), self._looks, strict=True
            )
        ]
        if self.one is not None:
            found.append(self.one.find(next(every), done, range(self._many, self.plan.units)))
        return Audit(
            subject=self.runs.subject,
            claim=self.runs.claim,
            findings=tuple(found),
            caveats=warn_of_delta(self.runs.claim, self.records, "records"),
            provenance=done.provenance,
        )

    def _finish(self, view: View, finding: EpsilonFinding, lost: IntArray) -> EpsilonFinding:
        """Add the caveats of a view: its adjacency, failed runs, and whether it is proved."""
        finding = add_lost_caveat(finding, lost, "runs" if view.bound is None else "steps")
        bound = replace(finding.bound, adjacency=self.adjacency)
        if not self.unproven or view.name == "loss":
            return replace(finding, bound=bound)
        return replace(
            finding,
            bound=replace(bound, valid=False, caveats=(*bound.caveats, self.unproven)),
            power=None if self.runs.claim is None else float("inf"),  # it refutes nothing
        )

    @property
    def _looks(self) -> list[tuple[int, View]]:
        """All views, each with the number of its program."""
        return [(n, view) for n, each in enumerate(self.runs.programs) for view in each.looks]

    @property
    def _many(self) -> int:
        return len(self.runs.programs) * self.runs.blocks


class _Watching:
    """Pass only the many runs to their watch."""

    def __init__(self, watch: Watch, units: int) -> None:
        self._watch, self._left = watch, units

    def see(self, arrays: Arrays) -> None:
        if self._left:
            self._left -= 1
            self._watch.see(arrays)

    def epsilon(self) -> float | None:
        return self._watch.epsilon()

    def enough(self) -> str:
        return self._watch.enough()


def explain_unproven(target: TargetCanary) -> str:
    """Explain why no two neighbours may allow these insertions; empty if some do."""
    by_place = target.adversary in ("partially_informed", "worst_case")
    if target.adjacency != "add_remove" or not target.displaces or not by_place:
        return ""
    return (
        "Not a valid bound: removing a record moves others between batches, and no pair of "
        f"datasets is known with exactly the effect of {target.adversary}. Use "
        "adjacency='zero_out' or adversary='target_canary'."
    )


def describe_gradient_runs(
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
    """Describe runs with a gradient canary, and the views of each.

    Args:
        play: See :class:`~epsilometer.engine.runs.Program`.
        looks: Names of the views.
        subject: What was audited, in words.
        adversary: What the adversary may insert.
        adjacency: What training without the target is.
        sampler: How batches are drawn.
        noise_multiplier: Noise multiplier of the training.
        rate: Probability that a batch has a given record.
        steps: Steps of the whole training.
        delta: δ of the bounds.
        confidence: Confidence of each bound.
        seed: Seed of the bounds' own randomness.
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
    power = partial(_find_power, sampling_rate=rate, steps=steps, confidence=confidence)
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
                    subject=f"{subject}, single steps, as Poisson-sampled with unknown noise",
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
        curves=_draw_curves(noise_multiplier, rate, steps, adjacency),
        views=tuple(views),
    )


def describe_loss_runs(play: Play, subject: str) -> Program:
    """Describe runs with a data canary, scored by the final model's loss on it."""
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


def _find_power(
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
def _draw_curves(noise: float, rate: float, steps: int, adjacency: Adjacency) -> tuple[Curve, ...]:
    """Return the trade-off curve of Poisson accounting, if it has one."""
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
