"""Connect a Flower app and its nodes: grids that answer for canaries, or call clients."""

import copy
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias
from uuid import uuid4

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.flower.messages import is_training, list_evaluated, read_weights
from epsilometer.integrations.flower.planting import Planting

with needs("flwr", extra="flower"):
    from flwr.app import Context, Error, Message, RecordDict
    from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
    from flwr.serverapp import Grid, ServerApp

_FIRST = SUPERLINK_NODE_ID + 1
_Client: TypeAlias = Callable[[Message, Context], Message]


class CanaryGrid(Grid):
    """Wrap a grid to answer for canary nodes and watch the weights in messages."""

    def __init__(self, grid: Grid, planting: Planting) -> None:
        self._grid, self._planting = grid, planting
        self._never = frozenset(planting.virtual)  # nodes that do not exist, also after the audit
        self._waiting: dict[str, Message] = {}  # pushed messages of canaries

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_grid"], name)

    def set_run(self, run: Any) -> None:
        """Hand on."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """Hand on."""
        return self._grid.run

    def create_message(self, *args: Any, **named: Any) -> Message:
        """Hand on."""
        return self._grid.create_message(*args, **named)

    def get_node_ids(self) -> Iterable[int]:
        """Return real nodes, then virtual ones."""
        real = list(self._grid.get_node_ids())
        return [*real, *self._planting.list_virtual(len(real))]

    def get_nodes(self) -> Iterable[Any]:
        """Return real nodes, then virtual ones."""
        from flwr.proto.node_pb2 import NodeInfo  # not in older versions

        real = list(self._grid.get_nodes())
        virtual = self._planting.list_virtual(len(real))
        return [*real, *(NodeInfo(node_id=node) for node in virtual)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send what is for clients; keep the rest, to be answered when it is pulled."""
        ours, theirs = self._split_messages(messages)
        pushed = list(self._grid.push_messages(theirs)) if theirs else []
        for message in ours:
            name = str(uuid4())
            message.metadata.__dict__["_message_id"] = name  # as Flower's own grids do
            self._waiting[name] = message
            pushed.append(name)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return replies of clients that are there, and of canaries."""
        wanted = list(message_ids)
        theirs = [name for name in wanted if name not in self._waiting]
        replies = list(self._grid.pull_messages(theirs)) if theirs else []
        ours = [self._waiting.pop(name) for name in wanted if name in self._waiting]
        return [*replies, *self._answer(ours, replies)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return replies of clients, and of canaries after them."""
        ours, theirs = self._split_messages(messages)
        replies: list[Message] = []
        if theirs:
            replies = list(self._grid.send_and_receive(theirs, timeout=timeout))
            self._planting.missing += sum(map(is_training, theirs)) and len(theirs) - len(replies)
        return [*replies, *self._answer(ours, replies)]

    def _split_messages(self, messages: Iterable[Message]) -> tuple[list[Message], list[Message]]:
        """Return messages that canaries answer, and the others; look at weights that cross."""
        every, planting = list(messages), self._planting
        training = [message for message in every if is_training(message)]
        with planting.guard():
            for message in (training or every)[:1]:  # all of a round carry the same weights
                seen_before = planting.watch is not None
                if len(message.content.array_records) == 1 and (training or seen_before):
                    planting.see(read_weights(message.content))
            if training:
                planting.note_sent([message.content for message in training])
                planting.begin_round(self.get_node_ids, asked=len(training))
            else:
                planting.compare_sent(list_evaluated(every))
        ours, theirs = [], []
        for message in every:
            canary = message.metadata.dst_node_id in planting.canary_of
            if canary and is_training(message):
                ours.append(message)
            elif message.metadata.dst_node_id not in self._never:
                theirs.append(message)  # virtual nodes have nothing to evaluate with
        return ours, theirs

    def _answer(self, ours: list[Message], replies: list[Message]) -> Iterator[Message]:
        """Yield what canaries reply, after the example of the clients of their round."""
        self._planting.failed += sum(reply.has_error() for reply in replies)
        for reply in replies:
            if reply.has_content():
                with self._planting.guard():
                    self._planting.take_commitments(reply.content)
        contents = self._planting.answer(
            [message.metadata.dst_node_id for message in ours],
            ours[0].content if ours else None,
            [reply.content for reply in replies if is_training(reply) and reply.has_content()],
        )
        for message, content in zip(ours, contents, strict=False):  # none once the audit ended
            yield Message(content, reply_to=message)


class InProcessGrid(Grid):
    """``nodes`` nodes, each a call of the client with its own context.

    Guarantees: what a client raises becomes an error reply, as in a deployment; every client gets
        its own records; a node's context lasts from call to call, and has its ``partition-id`` and
        ``num-partitions``.
    """

    def __init__(self, client: _Client, *, nodes: int, run_config: Any = None) -> None:
        if not callable(client):
            raise InvalidArgument(
                f"Expected a ClientApp or a function of (message, context), got {client!r}."
            )
        _validate.whole(1, nodes=nodes)
        self._client, self._nodes, self._run_config = client, nodes, run_config or {}
        self._run = import_first("flwr.supercore.run", "flwr.common.typing").Run.create_empty(
            run_id=1
        )
        self._contexts: dict[int, Context] = {}
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        """Switch to another run."""
        self._run = run

    @property
    def run(self) -> Any:
        """Return what is run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return all nodes, in order of their ``partition-id``."""
        return range(_FIRST, _FIRST + self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Call the clients at once; their replies wait to be pulled."""
        names = []
        for message in messages:
            name = str(uuid4())
            message.metadata.__dict__["_message_id"] = name  # as Flower's own grids do
            self._replies[name] = self._call_client(message)
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return replies that were not pulled yet."""
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Call the clients; nothing is ever late."""
        return self.pull_messages(self.push_messages(messages))

    def _call_client(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if node not in self._contexts:
            self._contexts[node] = Context(
                run_id=self._run.run_id,
                node_id=node,
                node_config={"partition-id": node - _FIRST, "num-partitions": self._nodes},
                state=RecordDict(),
                run_config=dict(self._run_config),
            )
        own = copy.copy(message)
        records: dict[str, Any] = dict(message.content)
        # Records of its own; what is in arrays cannot be changed, and is shared.
        own.content = RecordDict({name: type(each)(dict(each)) for name, each in records.items()})
        try:
            return self._client(own, self._contexts[node])
        except Exception as error:  # whatever a client raises is its answer
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def run_in_process(
    server_app: ServerApp, client_app: _Client, *, nodes: int, run_config: Any = None
) -> None:
    """Run a Flower app in this process: for tests, and for clients that are cheap.

    Args:
        server_app: The app of the server, audited or not.
        client_app: The app of the clients, or any function of (message, context).
        nodes: How many clients there are.
        run_config: What ``pyproject.toml`` would have under ``tool.flwr.app.config``.
    """
    grid = InProcessGrid(client_app, nodes=nodes, run_config=run_config)
    if find_spec("flwr.supercore.task_identity") is not None:
        # Newer versions want to know who sends: messages of this process are the server's.
        identity = import_module("flwr.supercore.task_identity").TaskIdentity
        identity.task_id, identity.run_id, identity.node_id = 1, grid.run.run_id, SUPERLINK_NODE_ID
    context = Context(
        run_id=grid.run.run_id,
        node_id=SUPERLINK_NODE_ID,
        node_config={},
        state=RecordDict(),
        run_config=dict(run_config or {}),
    )
    server_app(grid, context)


def import_first(*names: str) -> Any:
    """Import the first of these modules that there is: Flower moves them between versions."""
    return import_module(next(name for name in names if find_spec(name) is not None))
