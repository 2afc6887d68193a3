"""Audit federated rounds of any framework, given the weights of every round."""

import dataclasses
import secrets
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer.audits.federated.directions import Family, make_directions
from epsilometer.audits.federated.iterates import (
    KEPT,
    Arrays,
    CanaryCost,
    CosineWatch,
    Layout,
    OtherUpdates,
)
from epsilometer.audits.federated.subject import measure_iterates
from epsilometer.audits.federated.whitened import make_whitened
from epsilometer.conformance.round_sums import AccountedMean
from epsilometer.conformance.server_rounds import RoundWatch, has_gaussian_noise
from epsilometer.core.audit import Audit, Provenance
from epsilometer.core.claim import DEFAULT_CONFIDENCE, Claim, as_claim
from epsilometer.engine.environment import versions
from epsilometer.engine.request import Request
from epsilometer.errors import InvalidArgument

__all__ = ["AccountedMean", "IterateWatch"]


class IterateWatch:
    """Make canaries for the rounds of one federated run, and measure them.

    A canary is a client that sends a random direction, as long as clipping allows. Your server
    averages it with the others; after every round, pass the new weights to :meth:`see`.

    Guarantee: that of ``epsilometer.Cosines`` for all views together, and with ``accounted`` that
        of ``RoundWatch``.
    Assumption: canaries are treated like clients, and no one who trains knows the seed.

    Args:
        model: The weights before training, arrays by name. Only floating-point arrays count.
        clip_norm: Norm to which the server clips a client's update, over all arrays together.
        canaries: Number of canaries. More than a tenth of a round's clients harm the model; the
            result says which part of the change of the weights was theirs.
        seed: Secret seed of the directions; drawn from the operating system by default.
        family: ``hadamard`` (exactly orthogonal, fast) or ``sphere`` (independent).
        sampled: Whether each round has an unknown sample of the clients, so that a claim may use
            amplification. Otherwise participants are known, and updates of clients are subtracted
            from the release.
        accounted: Accounted release of the server, checked in each round; needs the updates of all
            clients.
        without: Patterns of names of arrays that are not trained.

    Example:
        >>> rng, model = np.random.default_rng(0), {"w": np.zeros(4000)}
        >>> watch = IterateWatch(model, clip_norm=1.0, canaries=100, seed=1)
        >>> for _ in range(3):
        ...     total = sum(watch.make_update(number)["w"] for number in range(100))
        ...     model = {"w": model["w"] + (total + 0.5 * rng.normal(size=4000)) / 100}
        ...     watch.see(model, canaries=range(100))
        >>> watch.audit(1.0, delta=1e-5).verdict
        'refuted'
    """

    def __init__(
        self,
        model: Arrays,
        *,
        clip_norm: float,
        canaries: int,
        seed: int | None = None,
        family: Family = "hadamard",
        sampled: bool = False,
        accounted: AccountedMean | None = None,
        without: Iterable[str] = (),
    ) -> None:
        _validate.positive(clip_norm=clip_norm)
        _validate.whole(1, canaries=canaries)
        self.seed = secrets.randbits(53) if seed is None else seed
        _validate.whole(0, seed=self.seed)
        self._layout = Layout(model, without=tuple(without))
        if 2 * canaries > self._layout.size:
            raise InvalidArgument(
                f"Expected at most {self._layout.size // 2} canaries for {self._layout.size} "
                f"weights, got {canaries}."
            )
        self._directions = make_directions(
            family, count=2 * canaries, dimension=self._layout.size, key=self.seed
        )
        self._watch = CosineWatch(
            self._directions,
            self._layout.flatten(model),
            sizes=self._layout.sizes,
            memory=0 if sampled else KEPT,
            whitened=None
            if sampled
            else make_whitened(canaries, getattr(accounted, "noise", None)),
        )
        self._canaries, self._clip_norm, self._sampled = canaries, float(clip_norm), sampled
        self._accounted, self._rounds = accounted, RoundWatch()
        self._model = {name: np.array(value) for name, value in model.items()}
        self._witness: int | None = None  # the canary whose rounds show what a client loses
        self._cost = CanaryCost()

    def make_update(self, number: int) -> dict[str, NDArray[Any]]:
        """Return what a canary adds to the received weights, generated at every call."""
        if not 0 <= number < self._canaries:
            raise InvalidArgument(f"Expected a canary below {self._canaries}, got {number}.")
        row = self._directions.rows([number])[0] * np.float32(self._clip_norm)
        zeros = {name: np.zeros_like(value) for name, value in self._model.items()}
        return self._layout.move(zeros, row)

    def see(
        self,
        model: Arrays,
        *,
        canaries: ArrayLike,
        updates: Iterable[Arrays] | None = None,
        examples: Iterable[float] | None = None,
        clients: Iterable[Hashable] | None = None,
    ) -> None:
        """Add the weights after a round.

        Args:
            model: The new weights.
            canaries: Numbers of the canaries that took part.
            updates: Updates of the real clients of the round, before clipping, if known: they are
                subtracted from the release, and checked. Not with ``sampled``.
            examples: Their numbers of examples, if the server weights by them.
            clients: Identifiers of their senders, in the same order: a client that counts more than
                others is detected over several rounds. Results do not contain them.
        """
        members = np.unique(np.atleast_1d(np.asarray(canaries, np.int64)))
        if members.size and not 0 <= members[0] <= members[-1] < self._canaries:
            raise InvalidArgument(f"Expected canaries below {self._canaries}, got {members[-1]}.")
        if updates is not None and self._sampled:
            raise InvalidArgument(
                "Expected no updates with sampled=True: who replied may tell who was sampled."
            )
        if updates is None and self._accounted is not None:
            raise InvalidArgument("Expected updates of all clients with accounted, got none.")
        others = OtherUpdates(clip_norm=self._clip_norm)
        if updates is not None:
            self._add_updates(updates, examples, clients, others, members.tolist(), model)
        self._watch.next_round()
        self._watch.take_part(members)
        own = members.tolist()
        if self._watch.see(self._layout.flatten(model), known=others.list_sums(), measured=own):
            if own:
                self._cost.effects.append(self._watch.share)
            if updates is not None:
                self._cost.count(len(own), of=len(own) + others.count)
        self._model = {name: np.array(value) for name, value in model.items()}

    def _add_updates(
        self,
        updates: Iterable[Arrays],
        examples: Iterable[float] | None,
        clients: Iterable[Hashable] | None,
        others: OtherUpdates,
        members: list[int],
        released: Arrays,
    ) -> None:
        """Sum the updates of clients; check the release if it is accounted for."""
        known = [] if examples is None else list(examples)
        if self._accounted is not None:
            usual = sum(known) / len(known) if known else None
            self._rounds.begin(self._model, self._accounted, usual_examples=usual)
        weights, names = iter(known), iter(() if clients is None else clients)
        for update in updates:
            weight, name = next(weights, None), next(names, None)
            others.add(self._layout.flatten(update), examples=weight or 1.0)
            client = None if name is None else ("client", name)
            self._rounds.add(self._join(update), examples=weight, client=client)
        if self._accounted is not None:
            for number in members:
                self._rounds.add(
                    self._join(self.make_update(number)), canary=True, client=("canary", number)
                )
            if self._witness is None and members:
                self._witness = members[0]
            self._rounds.end(released, same_client=self._witness in members)

    def _join(self, update: Arrays) -> Mapping[str, NDArray[Any]]:
        return {name: value + update[name] for name, value in self._model.items()}

    def audit(
        self,
        claim: Claim | float | None = None,
        *,
        delta: float | None = None,
        confidence: float = DEFAULT_CONFIDENCE,
    ) -> Audit:
        """Return the audit so far.

        Args:
            claim: The claimed ε of a client, or a ``Claim``.
            delta: δ; not needed with a ``Claim``.
            confidence: Confidence of all bounds together.
        """
        promised = as_claim(claim, delta=delta)
        request = Request(
            claim=promised,
            delta=delta if promised is None else promised.delta,
            confidence=confidence,
            seed=self.seed,
        )
        at = request.known_delta
        _validate.open_unit(delta=at, confidence=confidence)
        filled = request.fill_claim(adjacency="zero_out", unit="client")
        knowledge: Literal["hidden", "known"] = "hidden" if self._sampled else "known"
        title = f"federated rounds, {self._canaries:,} canaries"
        bound, left = self._rounds.share_confidence(confidence, delta=at)
        found = None if self._accounted is None else self._rounds.finding(bound=bound)
        views = measure_iterates(
            self._watch.summarise(),
            dataclasses.replace(request, claim=filled, confidence=left),
            dimension=self._layout.size,
            participation=knowledge,
            noise="gaussian" if found and has_gaussian_noise(found) else "unknown",
            subject=title,
            caveats=tuple(self._cost.describe()),
        )
        return Audit(
            subject=title,
            claim=filled,
            findings=views if found is None else (*views, found),
            provenance=Provenance(
                subject="rounds",
                settings={
                    "function": "epsilometer.integrations.rounds:IterateWatch",
                    "model": {"supplied": "arrays"},
                    "canaries": self._canaries,
                    "clip_norm": self._clip_norm,
                    "sampled": self._sampled,
                },
                delta=at,
                confidence=confidence,
                seed=self.seed,
                versions=tuple(versions()),
            ),
        )
