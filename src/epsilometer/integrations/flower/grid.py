"""A proxy of Flower's grid: it answers for canary nodes, and sees the weights that cross."""

from collections.abc import Iterable, Iterator
from typing import Any
from uuid import uuid4

from epsilometer._extras import needs
from epsilometer.integrations.flower.planting import Planting
from epsilometer.integrations.flower.records import is_training, weights_in

with needs("flwr", extra="flower"):
    from flwr.app import Message
    from flwr.serverapp import Grid


class CanaryGrid(Grid):
    """A grid that answers for canary nodes and watches the weights that cross it."""

    def __init__(self, grid: Grid, planting: Planting) -> None:
        self._grid, self._planting = grid, planting
        virtual = planting.settings.mode == "virtual"
        self._virtual = list(planting.canary_of) if virtual else []
        self._waiting: dict[str, Message] = {}  # canaries' messages that were pushed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_grid"], name)

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

    def get_nodes(self) -> Iterable[Any]:
        """Real nodes, and virtual ones after them."""
        from flwr.proto.node_pb2 import NodeInfo  # not in older versions

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
        every, planting = list(messages), self._planting
        training = [message for message in every if is_training(message)]
        for message in (training or every)[:1]:  # all of a round carry the same weights
            seen_before = planting.watch is not None
            if len(message.content.array_records) == 1 and (training or seen_before):
                planting.see(weights_in(message.content))
        if training:
            planting.begin_round(self._grid.get_node_ids)
        ours, theirs = [], []
        for message in every:
            canary = message.metadata.dst_node_id in planting.canary_of
            if canary and is_training(message):
                ours.append(message)
            elif not canary or not self._virtual:
                theirs.append(message)  # virtual nodes have nothing to evaluate with
        return ours, theirs

    def _answers(self, ours: list[Message], replies: list[Message]) -> Iterator[Message]:
        """What canaries reply, after the example of the clients of their round."""
        self._planting.failed += sum(reply.has_error() for reply in replies)
        contents = self._planting.answers(
            [message.metadata.dst_node_id for message in ours],
            ours[0].content if ours else None,
            [reply.content for reply in replies if is_training(reply) and reply.has_content()],
        )
        for message, content in zip(ours, contents, strict=True):
            yield Message(content, reply_to=message)
