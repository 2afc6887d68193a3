"""A proxy of Flower's grid: it answers for canary nodes, and sees the weights that cross."""

from collections.abc import Iterable, Iterator
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from epsilometer._extras import needs
from epsilometer.attacks.iterates import IterateWatch
from epsilometer.canaries.layout import Layout
from epsilometer.integrations.flower.records import (
    JUST_BELOW,
    NORM_BIT,
    Arrays,
    is_training,
    record,
    sent_norm,
    typical,
    weights_in,
)
from epsilometer.integrations.flower.settings import Canaries, Settings, directions

with needs("flwr", extra="flower"):
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.proto.node_pb2 import NodeInfo
    from flwr.serverapp import Grid

_ROWS = 2**24  # floats of canaries that are made at a time: 64 MiB
_NO_CLIPPING = (
    "No clipping norm was found, neither in messages nor in the strategy: canaries had the median "
    "norm of the clients' updates. Without clipping no ε is finite."
)
_CLIENTS_CLIP = "Clients clip: canaries had the norm that clients were sent, not clip_norm."
_SHORT = "Canaries were shorter than the clipping norm: clients that are clipped leak more."
_LONG = "Canaries were longer than the clipping norm: whether the server clips was under test."


class CanaryGrid(Grid):
    """A grid that answers for canary nodes and watches the weights that cross it.

    Attributes:
        layout: Which arrays count; None before any weights were seen.
        watch: What was seen of the canaries; None before that.
        strategy: The strategy that was started, where one was.
        told: What a reader must know, each once.
    """

    def __init__(self, grid: Grid, settings: Settings) -> None:
        self._grid, self._settings = grid, settings
        virtual = settings.virtual() if settings.mode == "virtual" else []
        self._virtual = virtual
        self._canary_of = {node: number for number, node in enumerate(virtual)}
        self._canaries: Canaries | None = None
        self._example: RecordDict | None = None  # what a client's reply looks like
        self._waiting: dict[str, Message] = {}  # canaries' messages that were pushed
        self._failed = 0
        self._odd: dict[str, None] = {}
        self.layout: Layout | None = None
        self.watch: IterateWatch | None = None
        self.strategy: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_grid"], name)

    @property
    def told(self) -> list[str]:
        """What a reader must know about replies and norms."""
        failed = [f"{self._failed} replies of clients were errors."] if self._failed else []
        return [*failed, *self._odd]

    @property
    def parts(self) -> Iterator[Any]:
        """The strategy, the one it wraps, and so on."""
        part = self.strategy
        while part is not None:
            yield part
            part = getattr(part, "strategy", None)

    def see(self, arrays: Arrays) -> None:
        """Takes note of weights; the first ones fix what is watched."""
        asked = self._settings
        if self.layout is None or self.watch is None:
            self.layout = Layout(arrays, without=asked.without)
            self._canaries = directions(asked.family, asked.canaries, self.layout.size, asked.seed)
            self.watch = IterateWatch(self._canaries, self.layout.flat(arrays))
        else:
            self.watch.see(self.layout.flat(arrays))

    def set_run(self, run: Any) -> None:
        """Handed on."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """Handed on."""
        return self._grid.run

    def create_message(self, *args: Any, **named: Any) -> Message:
        """Handed on."""
        return self._grid.create_message(*args, **named)

    def get_node_ids(self) -> Iterable[int]:
        """Real nodes, and virtual ones after them."""
        return [*self._grid.get_node_ids(), *self._virtual]

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Real nodes, and virtual ones after them."""
        return [*self._grid.get_nodes(), *(NodeInfo(node_id=node) for node in self._virtual)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Sends what is for clients; keeps the rest, to be answered when it is pulled."""
        ours, theirs = self._sorted(messages)
        pushed = list(self._grid.push_messages(theirs)) if theirs else []
        for message in ours:
            name = str(uuid4())
            message.metadata.__dict__["_message_id"] = name  # as Flower's own grids do
            self._waiting[name] = message
            pushed.append(name)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies of clients that are there, and of canaries."""
        wanted = list(message_ids)
        theirs = [name for name in wanted if name not in self._waiting]
        replies = list(self._grid.pull_messages(theirs)) if theirs else []
        ours = [self._waiting.pop(name) for name in wanted if name in self._waiting]
        return [*replies, *self._answers(ours, replies)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Replies of clients, and of canaries after them."""
        ours, theirs = self._sorted(messages)
        replies: list[Message] = []
        if theirs:
            replies = list(self._grid.send_and_receive(theirs, timeout=timeout))
        return [*replies, *self._answers(ours, replies)]

    def _sorted(self, messages: Iterable[Message]) -> tuple[list[Message], list[Message]]:
        """Messages that canaries answer, and the others; weights that cross are seen."""
        every = list(messages)
        training = [message for message in every if is_training(message)]
        for message in (training or every)[:1]:  # all of a round carry the same weights
            if len(message.content.array_records) == 1 and (training or self.watch is not None):
                self.see(weights_in(message))
        if training and self.watch is not None:
            self.watch.next_round()
        if training and self._settings.mode == "replace" and not self._canary_of:
            chosen = self._settings.chosen(list(self._grid.get_node_ids()))
            self._canary_of = {node: number for number, node in enumerate(chosen)}
        ours, theirs = [], []
        for message in every:
            canary = message.metadata.dst_node_id in self._canary_of
            if canary and is_training(message):
                ours.append(message)
            elif not canary or self._settings.mode != "virtual":
                theirs.append(message)  # virtual nodes have nothing to evaluate with
        return ours, theirs

    def _answers(self, ours: list[Message], replies: list[Message]) -> Iterator[Message]:
        """What canaries reply, after the example of the clients of their round."""
        self._failed += sum(reply.has_error() for reply in replies)
        good = [reply for reply in replies if is_training(reply) and reply.has_content()]
        if good:
            self._example = typical([reply.content for reply in good])
        if not ours:
            return
        sent = weights_in(ours[0])
        assert self._canaries is not None
        assert self.watch is not None
        norm = np.float32(self._norm(ours[0], sent, good))
        numbers = [self._canary_of[message.metadata.dst_node_id] for message in ours]
        self.watch.take_part(numbers)
        step = max(1, _ROWS // self._canaries.dimension)
        for start in range(0, len(ours), step):
            part = slice(start, start + step)
            rows = self._canaries.rows(numbers[part])
            for message, row in zip(ours[part], rows, strict=True):
                yield Message(self._content(message, sent, row * norm), reply_to=message)

    def _content(
        self, message: Message, sent: Arrays, direction: NDArray[np.float32]
    ) -> RecordDict:
        assert self.layout is not None
        key, weight = self._settings.weighted_by_key, self._settings.weight
        planted = record(self.layout.moved(sent, direction))
        if self._example is None:
            name = next(iter(message.content.array_records))
            return RecordDict({name: planted, "metrics": MetricRecord({key: weight})})
        content = RecordDict()
        for name, part in self._example.items():
            if isinstance(part, ArrayRecord):
                content[name] = planted
            elif isinstance(part, MetricRecord):
                content[name] = metrics = MetricRecord(dict(part))
                usual = part.get(key)
                if weight != 1 and isinstance(usual, int | float):
                    metrics[key] = usual * weight
                if NORM_BIT in part:
                    metrics[NORM_BIT] = 0  # a canary is just as long as clipping allows
            else:
                content[name] = ConfigRecord(dict(part))
        return content

    def _norm(self, message: Message, sent: Arrays, good: list[Message]) -> float:
        """The norm of the canaries of this round; what is odd about it is noted."""
        asked, clients = self._settings.clip_norm, sent_norm(message)
        servers = [part.clipping_norm for part in self.parts if hasattr(part, "clipping_norm")]
        if clients is not None:
            if asked is not None:
                self._odd[_CLIENTS_CLIP] = None
            return clients * JUST_BELOW
        if asked is not None:
            if servers and asked < servers[0] * JUST_BELOW:
                self._odd[_SHORT] = None
            if servers and asked > servers[0]:
                self._odd[_LONG] = None
            return asked
        if servers:
            return float(servers[0]) * JUST_BELOW
        self._odd[_NO_CLIPPING] = None
        return self._usual_norm(sent, good)

    def _usual_norm(self, sent: Arrays, good: list[Message]) -> float:
        """The median norm of the clients' updates; 1 where none moved."""
        assert self.layout is not None
        start = self.layout.flat(sent)
        norms = [np.linalg.norm(self.layout.flat(weights_in(reply)) - start) for reply in good]
        return float(np.median(norms)) or 1.0 if norms else 1.0
