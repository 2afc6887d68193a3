"""The canaries of one Flower run: who they are, what they answer, and what is seen of them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer._extras import needs
from epsilometer.audits.federated.iterates import IterateWatch, Layout
from epsilometer.integrations.flower.records import (
    JUST_BELOW,
    NORM_BIT,
    Arrays,
    record,
    sent_norm,
    typical,
    weights_in,
)
from epsilometer.integrations.flower.settings import Canaries, Settings, directions

with needs("flwr", extra="flower"):
    from flwr.app import ArrayRecord, MetricRecord, RecordDict

_ROWS = 2**24  # floats of canaries that are made at a time: 64 MiB
_NO_CLIPPING = (
    "No clipping norm was found, neither in messages nor in the strategy: canaries had the median "
    "norm of the clients' updates. Without clipping no ε is finite."
)
_CLIENTS_CLIP = "Clients clip: canaries had the norm that clients were sent, not clip_norm."
_SHORT = "Canaries were shorter than the clipping norm: clients that are clipped leak more."
_LONG = "Canaries were longer than the clipping norm: whether the server clips was under test."
_ZERO = "The updates of clients were zero, or there were none: canaries had norm 1."
_UNWEIGHTED = "Replies of clients have no weighted_by_key: canaries weighed as clients do."
_ROBUST = {"FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan"}


class Planting:
    """What the proxy of the grid and the wrapper of older strategies have in common.

    Attributes:
        settings: What was asked for.
        canary_of: Which canary a node is, by its id.
        layout: Which arrays count; None before any weights were seen.
        watch: What was seen of the canaries; None before that.
        strategy: The strategy that was started, where one was.
        failed: Replies of clients that were errors.
        example: What a client's reply looks like, where that is known.
        weighted_by_key: By which number replies are weighted.
    """

    def __init__(self, settings: Settings) -> None:
        virtual = settings.virtual() if settings.mode == "virtual" else []
        self.settings = settings
        self.canary_of = {node: number for number, node in enumerate(virtual)}
        self.layout: Layout | None = None
        self.watch: IterateWatch | None = None
        self.strategy: Any = None
        self.failed = 0
        self.example: RecordDict | None = None
        self.weighted_by_key = settings.weighted_by_key
        self._canaries: Canaries | None = None
        self._odd: dict[str, None] = {}

    @property
    def parts(self) -> Iterator[Any]:
        """The strategy, the one it wraps, and so on."""
        part = self.strategy
        while part is not None:
            yield part
            part = getattr(part, "strategy", None)

    @property
    def told(self) -> Iterator[str]:
        """What a reader must know about strategy, replies and norms."""
        for part in self.parts:
            if _ROBUST & {kind.__name__ for kind in type(part).__mro__}:
                yield (
                    f"{type(part).__name__} drops outliers, which canaries are: that little was "
                    "found says little about clients that are none."
                )
        if self.failed:
            yield f"{self.failed} replies of clients were errors."
        yield from self._odd

    def see(self, arrays: Arrays) -> None:
        """Takes note of weights; the first ones fix what is watched."""
        asked = self.settings
        if self.layout is None or self.watch is None:
            self.layout = Layout(arrays, without=asked.without)
            self._canaries = directions(asked.family, asked.canaries, self.layout.size, asked.seed)
            self.watch = IterateWatch(self._canaries, self.layout.flatten(arrays))
        else:
            self.watch.see(self.layout.flatten(arrays))

    def begin_round(self, nodes: Callable[[], Iterable[int]]) -> None:
        """A round of training begins; who is a canary among real nodes is drawn in the first."""
        if self.watch is not None:
            self.watch.next_round()
        if self.settings.mode == "replace" and not self.canary_of:
            chosen = self.settings.chosen(list(nodes()))
            self.canary_of = {node: number for number, node in enumerate(chosen)}

    def answers(
        self, nodes: list[int], asked: RecordDict | None, replies: list[RecordDict]
    ) -> Iterator[RecordDict]:
        """What canary nodes reply to what they were asked, after the example of clients."""
        if replies and self.canary_of:
            self.example = typical(replies)
            known = any(self.weighted_by_key in part for part in self.example.values())
            if self.settings.weight != 1 and not known:
                self._odd[_UNWEIGHTED] = None
        if not nodes or asked is None:
            return
        sent = weights_in(asked)
        assert self._canaries is not None
        assert self.watch is not None
        norm = np.float32(self._norm(asked, sent, replies))
        numbers = [self.canary_of[node] for node in nodes]
        self.watch.take_part(numbers)
        step = max(1, _ROWS // self._canaries.dimension)
        for start in range(0, len(nodes), step):
            for row in self._canaries.rows(numbers[start : start + step]):
                yield self._content(asked, sent, row * norm)

    def _content(
        self, asked: RecordDict, sent: Arrays, direction: NDArray[np.float32]
    ) -> RecordDict:
        assert self.layout is not None
        key, weight = self.weighted_by_key, self.settings.weight
        planted = record(self.layout.move(sent, direction))
        if self.example is None:
            name = next(iter(asked.array_records))
            return RecordDict({name: planted, "metrics": MetricRecord({key: weight})})
        content = RecordDict()
        for name, part in self.example.items():
            if isinstance(part, ArrayRecord):
                content[name] = planted
                continue
            numbers: dict[str, Any] = dict(part)
            usual = numbers.get(key)
            if weight != 1 and isinstance(usual, int | float):
                numbers[key] = type(usual)(usual * weight)
            if NORM_BIT in numbers:
                numbers[NORM_BIT] = 0  # a canary is just as long as clipping allows
            content[name] = type(part)(numbers)
        return content

    def _norm(self, asked: RecordDict, sent: Arrays, replies: list[RecordDict]) -> float:
        """The norm of the canaries of this round; what is odd about it is noted."""
        wanted, clients = self.settings.clip_norm, sent_norm(asked)
        servers = [part.clipping_norm for part in self.parts if hasattr(part, "clipping_norm")]
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
        self._odd[_NO_CLIPPING] = None
        return self._usual_norm(sent, replies)

    def _usual_norm(self, sent: Arrays, replies: list[RecordDict]) -> float:
        """The median norm of the clients' updates; 1 where none moved."""
        assert self.layout is not None
        start = self.layout.flatten(sent)
        norms = [
            np.linalg.norm(self.layout.flatten(weights_in(reply)) - start) for reply in replies
        ]
        usual = float(np.median(norms)) if norms else 0.0
        if not usual > 0:  # nan too: a client that diverged
            self._odd[_ZERO] = None
        return usual if usual > 0 else 1.0
