"""Plant canaries in one Flower run: choose them, answer for them, and measure them."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from epsilometer._extras import needs
from epsilometer.audits.federated.directions import Directions
from epsilometer.audits.federated.iterates import (
    KEPT,
    CanaryCost,
    CosineWatch,
    IterateSummary,
    Layout,
    OtherUpdates,
)
from epsilometer.audits.federated.whitened import make_whitened
from epsilometer.conformance.noise_checks import LEVEL
from epsilometer.conformance.round_sums import AccountedMean
from epsilometer.conformance.server_rounds import RoundWatch
from epsilometer.core import judge
from epsilometer.core.findings import Check
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.flower.checkpoints import Kept
from epsilometer.integrations.flower.commitments import Commitments
from epsilometer.integrations.flower.messages import (
    JUST_BELOW,
    PLANTED,
    Arrays,
    are_equal,
    look_like_updates,
    make_typical,
    read_norm,
    read_number,
    read_weights,
    to_arrays,
)
from epsilometer.integrations.flower.replies import NORM_BIT, ReplyMaker
from epsilometer.integrations.flower.settings import ONE_IN, Settings, commit, draw_directions
from epsilometer.types import FloatArray

with needs("flwr", extra="flower"):
    from flwr.app import RecordDict

_log = logging.getLogger("flwr")  # so that it stands among Flower's own lines
_NO_CLIPPING = (
    "No clipping norm was found, neither in messages nor in the strategy: canaries had the median "
    "norm of the clients' updates, and nothing is judged. Without clipping no ε is finite. Where "
    "clients clip or add noise themselves, plant by canary_mod; else give clip_norm."
)
_CLIENTS_CLIP = "Clients clip: canaries had the norm that clients were sent, not clip_norm."
_SHORT = "Canaries were shorter than the clipping norm: clients that are clipped leak more."
_LONG = "Canaries were longer than the clipping norm, which tests whether the server clips."
_ZERO = "The updates of clients were zero, or there were none: canaries had norm 1."
_UNWEIGHTED = "Replies of clients have no weighted_by_key: canaries weighed as clients do."
_DELTAS = (
    "Expected replies that hold weights, got ones that are much shorter than the weights that were "
    "sent: they look like updates. Give replies='updates'."
)
_PERSONAL = (
    "Expected the same weights for all nodes of a round, got different ones: what a canary adds to "
    "the model of all is not known."
)
_MASKED = "mode 'mod': the server may see sums only"
_UNACCOUNTED = "no noise of the strategy is known: give accounted=AccountedMean(…)"
_LOUD = 10.0  # how much longer than the clipping norm, in units of it or of the noise
_LOUD_SHARE = 1000  # weights for each loud canary: unclipped, all of them are short beside noise
_CROWD = (
    "More than a tenth of the replies of a round are canaries: the model learns less from the "
    "clients. Take fewer canaries, unless this is a simulation for the audit alone."
)
_ROBUST = {"FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan"}


class Planting:
    """Manage the canaries of a run, for grids and strategies.

    Args:
        settings: What was asked for.
        kept: State of an earlier process of the same run that was killed.

    Attributes:
        settings: What was asked for.
        kept: See above.
        part: Number of starts of the run.
        after_round: Called after every round that moved the weights.
        canary_of: Number of the canary of a node, by its id.
        virtual: Ids of virtual nodes, of which the right number takes part.
        layout: Which arrays count; None before any weights were observed.
        watch: Measurements of the canaries; None before that.
        strategy: The started strategy, if any.
        failed: Number of client replies that were errors.
        missing: How often a node that was asked to train did not reply.
        example: Example of a client's reply, if known.
        weighted_by_key: Key of the number by which replies are weighted.
        rounds: Checks of the released weights.
        ended: Why the audit ended before the run; empty if it did not.
    """

    def __init__(self, settings: Settings, kept: Kept | None = None) -> None:
        self.virtual = settings.draw_virtual_nodes() if settings.mode == "virtual" else []
        self.kept, self.part = kept, 1 if kept is None else kept.part
        self.settings = settings
        self.canary_of: dict[int, int] = {}
        self._designated = settings.count if settings.mode == "mod" else 0
        self.layout: Layout | None = None
        self.watch: CosineWatch | None = None
        self.strategy: Any = None
        self.failed = self.missing = 0
        self.example: RecordDict | None = None
        self.weighted_by_key = settings.weighted_by_key
        # The parts of a killed run share the level: 1/2, 1/6, 1/12, … of it.
        self.rounds = RoundWatch(level=LEVEL / (self.part * (self.part + 1)))
        self.after_round: Callable[[], None] = lambda: None
        self._unsaved = False
        self._added, self._cost = 0.0, CanaryCost()
        self.ended = ""
        self._sent: Arrays | None = None
        self._nodes = 0
        self._everybody = True
        self._others: OtherUpdates | None = None
        self._members: list[int] = []  # canaries that answered in the current round
        self._witness: int | None = None  # the canary whose rounds show what a client loses
        self._norm_before: float | None = None
        self._single: dict[int, float] = {}
        self._said = Commitments(count=settings.count)
        self._rate, self._asked = 0.0, 0  # of the current round
        self._canaries: Directions | None = None
        self._replies: ReplyMaker | None = None
        self._odd: dict[str, None] = {}

    @property
    def parts(self) -> Iterator[Any]:
        """Yield the strategy, the one it wraps, and so on."""
        part = self.strategy
        while part is not None:
            yield part
            part = getattr(part, "strategy", None)

    @property
    def caveats(self) -> Iterator[str]:
        """Yield caveats about strategy, replies and norms."""
        for part in self.parts:
            if _find_robust(part):
                yield (
                    f"{type(part).__name__} drops outliers, which canaries are: little leakage "
                    "of canaries says little about other clients."
                )
        if self.kept is not None:
            yield f"The server was started {self.part} times; the audit was resumed."
        if self.ended:
            yield f"The audit ended before the run did: {self.ended}"
        yield from self._said.describe()
        yield from self._cost.describe()
        if self.failed:
            yield f"{self.failed} replies of clients were errors."
        if self.missing:
            yield f"{self.missing} times a node that was asked to train did not reply."
        yield from self._odd

    def see(self, arrays: Arrays) -> None:
        """Record weights; the first ones determine what is watched."""
        if self.ended:
            return
        with self.guard():
            if self.layout is None or self.watch is None:
                self._begin(arrays)
                return
            known = [] if self._others is None else self._others.list_sums()
            now, own = self.layout.flatten(arrays), sorted(self._said.recent)
            moved = self.watch.see(now, known=known, measured=own)
            self._unsaved |= moved
            if moved and self._added:  # directions are orthogonal, or nearly so
                self._cost.effects.append(min(1.0, self._added / self.watch.moved))
                self._added = 0.0
            if moved and own:  # nothing more is known if clients plant
                self._cost.effects.append(self.watch.share)
                self._note_share(len(own), self._asked - len(own))
            if moved:
                self._said.end_round(self._rate)

    def _begin(self, arrays: Arrays) -> None:
        """Draw canaries for a model, given its first weights."""
        asked, self.layout = self.settings, Layout(arrays, without=self.settings.without)
        self._canaries = draw_directions(
            asked.family, asked.count, self.layout.size, asked.known_seed
        )
        self._replies = ReplyMaker(self.layout, self._canaries)
        self.watch = CosineWatch(
            self._canaries,
            self.layout.flatten(arrays),
            sizes=self.layout.sizes,
            memory=0 if asked.mode == "mod" else KEPT,
            whitened=make_whitened(asked.count, getattr(asked.accounted, "noise", None)),
        )
        if self.kept is not None:
            self.watch.restore(self.kept.watch)
            self._designate(self.kept.nodes)
            self._odd.update(dict.fromkeys(self.kept.odd))
            self._everybody &= self.kept.everybody
            self._said.restore(self.kept.said)
            self._cost = CanaryCost(self.kept.most, [*self.kept.effects])

    @contextmanager
    def guard(self) -> Iterator[None]:
        """End the audit if something fails, but never the run."""
        try:
            yield
        except Exception as problem:
            self.end(problem)

    @property
    def norm_known(self) -> bool:
        """Whether the norm of canaries comes from a clipping norm: otherwise no claim is judged."""
        return _NO_CLIPPING not in self._odd

    @property
    def single(self) -> FloatArray | None:
        """Cosines of canaries with the first reply of their own client, if observed."""
        return np.array(list(self._single.values())) if self._single else None

    def take_commitments(self, content: RecordDict) -> None:
        """Remove from a reply what its client reports as planted, and compare it."""
        for name, record in list(content.config_records.items()):
            number = self.take_commitment(record)
            if name == PLANTED:
                del content[name]
            if self.settings.local and number is not None and number not in self._single:
                with self.guard():
                    self._look_for(number, content)

    def take_commitment(self, record: MutableMapping[str, Any]) -> int | None:
        """Remove it from one record; return the canary's number if it is one of the audit's."""
        own = None if self.layout is None else commit(self.settings, self.layout.names)
        return self._said.take(record, own)

    def _look_for(self, number: int, content: RecordDict) -> None:
        """Compare a canary with the reply of its own client, unless that is masked."""
        reply = next(iter(content.array_records.values()), None)
        if not reply or self._sent is None or self.layout is None or self._canaries is None:
            return
        moved = self.layout.flatten(to_arrays(reply))
        if self.settings.replies == "weights":
            moved -= self.layout.flatten(self._sent)
        row = self._canaries.rows([number])[0].astype(np.float64)
        if length := float(np.linalg.norm(moved) * np.linalg.norm(row)):
            self._single[number] = min(1.0, max(-1.0, float(row @ moved) / length))

    def refuse_mismatch(self) -> None:
        """Refuse to judge canaries that no one planted: finding nothing would mean nothing."""
        if self.settings.mode == "mod":
            self._said.refuse_mismatch(everybody=self._everybody)

    @property
    def participation(self) -> Literal["hidden", "known", "unseen"]:
        """What an adversary knows of participation: everything, if all took part in every round."""
        if self.settings.mode == "mod":
            return "unseen"
        return "known" if self._everybody else self.settings.participation

    def begin_round(self, nodes: Callable[[], Iterable[int]], *, asked: int) -> None:
        """Begin a round of training; the first one draws the canaries among real nodes.

        Args:
            nodes: Returns all nodes.
            asked: Number of nodes that train in this round.
        """
        if self.ended:
            return
        self.save_round()
        known = list(nodes())
        self._nodes = len(known)
        self._everybody &= asked == self._nodes
        self._rate, self._asked = asked / max(1, self._nodes), asked
        self._others, self._members = None, []
        if self.watch is not None:
            self.watch.next_round()
            if self.participation == "hidden":
                self.watch.forget_rounds()
        if self.settings.mode == "replace" and not self.canary_of:
            with self.guard():
                self._designate(self.settings.choose_nodes(known))

    def list_virtual(self, real: int) -> list[int]:
        """Return the virtual nodes that take part in addition to this many real ones."""
        many = self.settings.limit_canaries(real) if real else 0
        if not self.ended and many > len(self.canary_of):
            self._designate(self.virtual[:many])
        return list(self.canary_of) if self.virtual else []

    def _designate(self, nodes: Sequence[int]) -> None:
        self.canary_of = {node: number for number, node in enumerate(nodes)}
        self._designated = max(self._designated, len(nodes))

    def summarise(self) -> IterateSummary:
        """Return the measurements of canaries that were some node's; the others do not count."""
        assert self.watch is not None
        if self.settings.mode == "mod" and self._everybody and self._said.planted:
            return self.watch.summarise().restrict(sorted(self._said.planted))
        return self.watch.summarise().restrict(range(self._designated))

    def answer(
        self, nodes: list[int], asked: RecordDict | None, replies: list[RecordDict]
    ) -> Iterator[RecordDict]:
        """Yield the replies of canary nodes to requests, modelled on clients' replies.

        Without such a reply the audit ends, and the run continues without canaries.
        """
        with self.guard():
            yield from self._answer(nodes, asked, replies)

    def end(self, problem: Exception) -> None:
        """End the audit but not the run: canaries no longer take part."""
        self.ended = self.ended or _describe_problem(problem)
        self.canary_of = {}
        _log.warning("epsilometer: the audit ended. %s", self.ended)

    def _answer(
        self, nodes: list[int], asked: RecordDict | None, replies: list[RecordDict]
    ) -> Iterator[RecordDict]:
        if replies and self.canary_of:
            self.example = make_typical(replies)
            known = any(self.weighted_by_key in part for part in self.example.values())
            if self.settings.weight != 1 and not known:
                self._odd[_UNWEIGHTED] = None
        if not nodes or asked is None:
            return
        sent = read_weights(asked)
        if self.settings.replies == "updates":
            sent = {name: np.zeros_like(value) for name, value in sent.items()}
        if self.settings.replies == "weights" and look_like_updates(sent, replies):
            raise InvalidArgument(_DELTAS)
        if self.participation == "known":  # otherwise, knowing who replied may reveal canaries
            self._add_others(sent, replies)
        assert self._replies is not None
        assert self.watch is not None
        norm = self._choose_norm(asked, sent, replies)
        numbers = [self.canary_of[node] for node in nodes]
        self.watch.take_part(numbers)
        self._members = numbers
        if self._witness is None:
            self._witness = numbers[0]
        self._note_share(len(nodes), len(replies))
        self._added = norm * math.sqrt(len(nodes)) / (len(nodes) + len(replies))
        loud, many = self._choose_loud()
        for place, number in enumerate(numbers):
            yield self._replies.make(
                number,
                norm=norm * (loud if place < many else 1),
                asked=asked,
                sent=sent,
                example=self.example,
                weights={self.weighted_by_key: self.settings.weight},
            )

    def _add_others(self, sent: Arrays, replies: list[RecordDict]) -> None:
        """Sum the updates of real clients, to subtract them when canaries are measured."""
        assert self.layout is not None
        if self._others is None:
            accounted, norm = self.settings.accounted, next(iter(self._list_norms()), None)
            limits = norm if accounted is None else accounted.clip_norm
            if isinstance(limits, Mapping) and all(
                name in limits for name, *_ in self.layout.names
            ):
                by_array = [float(limits[name]) for name, *_ in self.layout.names]
                self._others = OtherUpdates(clip_norm=by_array, sizes=self.layout.sizes)
            else:
                self._others = OtherUpdates(
                    clip_norm=norm if isinstance(limits, Mapping) else limits
                )
        start = self.layout.flatten(sent)
        for reply in replies:
            update = self.layout.flatten(read_weights(reply)) - start
            self._others.add(update, examples=read_number(reply, self.weighted_by_key) or 1.0)

    def _choose_norm(self, asked: RecordDict, sent: Arrays, replies: list[RecordDict]) -> float:
        """Return the norm of the canaries of this round; note its caveats."""
        wanted, clients = self.settings.clip_norm, read_norm(asked)
        servers = self._list_norms()
        if clients is not None:
            if wanted is not None:
                self._odd[_CLIENTS_CLIP] = None
            return clients * JUST_BELOW
        if wanted is not None:
            if servers and wanted < servers[0] * JUST_BELOW:
                self._odd[_SHORT] = None
            if servers and wanted > servers[0]:
                self._odd[_LONG] = None
            return wanted
        if servers:
            return float(servers[0]) * JUST_BELOW
        if self.settings.accounted is not None:
            return self.settings.accounted.norm * JUST_BELOW
        self._odd[_NO_CLIPPING] = None
        return self._measure_norm(sent, replies)

    def _list_norms(self) -> list[float]:
        """Return the norms to which strategies clip; there is at most one."""
        return [float(part.clipping_norm) for part in self.parts if hasattr(part, "clipping_norm")]

    def _note_share(self, canaries: int, clients: int) -> None:
        """Record how many replies of a round are canaries."""
        replies = canaries + clients
        self._cost.count(canaries, of=replies)
        chosen = self.settings.canaries is not None or self._nodes < ONE_IN  # not by chance
        if chosen and ONE_IN * canaries > replies and _CROWD not in self._odd:
            self._odd[_CROWD] = None
            _log.warning("epsilometer: %s", _CROWD)

    def _choose_loud(self) -> tuple[float, int]:
        """Return how much longer than the clipping norm canaries are, and how many in a round.

        A server that clips shortens them like the others; without clipping they would stand out.
        """
        accounted = self.read_accounted()
        assert self._canaries is not None
        adapted = any(hasattr(part, "clip_norm_lr") for part in self.parts)
        if isinstance(accounted, str) or accounted.clipped_by == "clients" or adapted:
            return 1.0, 0
        many = 0 if self.settings.clip_norm else max(1, self._canaries.dimension // _LOUD_SHARE)
        return _LOUD * max(1.0, accounted.noise_multiplier), many

    def read_accounted(self) -> AccountedMean | str:
        """Return the accounted release of a round, or why it is unknown."""
        if self.settings.mode == "mod":
            return _MASKED
        if self.settings.accounted is not None:
            return self.settings.accounted
        part = self.strategy
        if not (hasattr(part, "noise_multiplier") and hasattr(part, "clipping_norm")):
            return _UNACCOUNTED
        kind = type(part)
        own = getattr(kind, "aggregate_fit", None) or getattr(kind, "aggregate_train", None)
        if not getattr(own, "__module__", "").startswith("flwr."):
            return f"{kind.__name__} aggregates in its own way: give accounted=AccountedMean(…)"
        clients = any("ClientSide" in each.__name__ for each in kind.__mro__)
        return AccountedMean(
            noise_multiplier=float(part.noise_multiplier),
            clip_norm=float(part.clipping_norm),
            clipped_by="clients" if clients else "server",
            server_rate=1.0,  # noise is the last thing that they add
        )

    def check_kind(self) -> Iterator[Check]:
        """Yield whether Flower's wrapper adds its noise to a mean, by the type of what it wraps."""
        robust = [part for part in self.parts if _find_robust(part)]
        if not robust or self.settings.accounted or isinstance(self.read_accounted(), str):
            return
        yield Check(
            name="noise for a mean",
            outcome=judge.judge_limit(len(robust), limit=0),
            expected="what is noised is a mean of clipped updates, for which noise is accounted",
            seen=f"{type(robust[0]).__name__}, of which one client may move more",
            steps=self.rounds.rounds,
        )

    def note_sent(self, contents: Sequence[RecordDict]) -> None:
        """Record what the nodes of a round received."""
        first = next(iter(contents[0].array_records.values()), None)
        self._sent = None if first is None else to_arrays(first)
        self.compare_sent([] if self._sent is None else [self._sent])
        if not self.ended and any(
            not are_equal(first, next(iter(each.array_records.values()), None))
            for each in contents[1:]
        ):
            self.end(InvalidArgument(_PERSONAL))

    def compare_sent(self, contents: Iterable[Arrays]) -> None:
        """Compare weights that clients receive with those that were released."""
        for arrays in [] if self.ended else contents:
            self.rounds.see_sent(arrays)

    def open_release(
        self, replies: Iterable[tuple[RecordDict, int]], examples: Iterable[float | None]
    ) -> None:
        """Add the replies of a round, before aggregation.

        Args:
            replies: Their contents, each with its node.
            examples: Their numbers of examples, if they have one.
        """
        accounted = self.read_accounted()
        if self.ended or self._sent is None or isinstance(accounted, str):
            self.rounds.skip(self.ended or str(accounted))
            return
        bits = 0
        try:
            said = [number for number in examples if number]
            usual = sum(said) / len(said) if said else None
            self.rounds.begin(self._sent, accounted, usual_examples=usual)
            for content, node in replies:
                arrays = read_weights(content)
                if self.settings.replies == "updates":
                    arrays = {name: self._sent[name] + part for name, part in arrays.items()}
                bits += bool(read_number(content, NORM_BIT))
                self.rounds.add(
                    arrays,
                    examples=read_number(content, self.weighted_by_key),
                    canary=node in self.canary_of,
                    client=node,
                )
        except Exception as problem:  # the run never ends because of its audit
            self.rounds.skip(_describe_problem(problem))
        clipped = bits if accounted.clipped_by == "clients" else self.rounds.clipped
        self._norm_before, self._clipped = getattr(self.strategy, "clipping_norm", None), clipped

    def close_release(self, released: Arrays, *, replies: int) -> None:
        """Add the aggregate of the replies.

        Args:
            released: The new weights.
            replies: Number of replies.
        """
        try:
            self._see_count(replies)
            known = self.participation == "known" and self._witness in self._members
            self.rounds.end(released, same_client=known)
        except Exception as problem:  # the run never ends because of its audit
            self.rounds.skip(_describe_problem(problem))
        self.save_round()

    def save_round(self) -> None:
        """Save observations after a round that moved the weights."""
        if self._unsaved:
            self._unsaved = False
            try:
                self.after_round()
            except Exception as problem:  # the run never ends because of its audit
                self._odd[f"A round could not be kept: {_describe_problem(problem)}"] = None

    def keep(self) -> Kept:
        """Return the state that another process needs to continue."""
        assert self.watch is not None
        return Kept(
            seed=self.settings.known_seed,
            nodes=tuple(self.canary_of),
            watch=self.watch.export(),
            part=self.part,
            odd=tuple(self._odd),
            everybody=self._everybody,
            said=self._said.export(),
            most=self._cost.most,
            effects=tuple(self._cost.effects),
            checks=None,
        )

    def _see_count(self, replies: int) -> None:
        """Compute the noise on the number of clipped updates, from how the norm was adapted."""
        part = self.strategy
        spread = getattr(part, "clipped_count_stddev", 0.0)
        if not spread or not self._norm_before or self.settings.accounted is not None:
            return
        change = float(np.log(part.clipping_norm / self._norm_before))
        noisy = (part.target_clipped_quantile - change / part.clip_norm_lr) * replies
        self.rounds.see_count((noisy - self._clipped) / spread)

    def _measure_norm(self, sent: Arrays, replies: list[RecordDict]) -> float:
        """Return the median norm of the clients' updates; 1 if none moved."""
        assert self.layout is not None
        start = self.layout.flatten(sent)
        norms = [
            np.linalg.norm(self.layout.flatten(read_weights(reply)) - start) for reply in replies
        ]
        usual = float(np.median(norms)) if norms else 0.0
        if not usual > 0:  # nan too: a client that diverged
            self._odd[_ZERO] = None
        return usual if usual > 0 else 1.0


def _find_robust(part: Any) -> set[str]:
    """Return the outlier-dropping strategies from which a strategy is derived."""
    return _ROBUST & {kind.__name__ for kind in type(part).__mro__}


def _describe_problem(problem: Exception) -> str:
    if isinstance(problem, InvalidArgument):
        return str(problem)
    return f"{type(problem).__name__}: {problem}"
