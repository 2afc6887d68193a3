"""A grid whose nodes are function calls: Flower apps without Ray, without processes."""

import copy
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias
from uuid import uuid4

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.flower.versions import Run, say_who_sends

with needs("flwr", extra="flower"):
    from flwr.app import Context, Error, Message, RecordDict
    from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
    from flwr.serverapp import Grid, ServerApp

_FIRST = SUPERLINK_NODE_ID + 1
_Client: TypeAlias = Callable[[Message, Context], Message]


class InProcessGrid(Grid):
    """``nodes`` nodes, each a call of the client with a context of its own.

    Guarantees: what a client raises becomes an error reply, as in a deployment; every client gets
        records of its own; a node's context lasts from call to call, and has its ``partition-id``
        and ``num-partitions``.
    """

    def __init__(self, client: _Client, *, nodes: int, run_config: Any = None) -> None:
        if not callable(client):
            raise InvalidArgument(
                f"Expected a ClientApp or a function of (message, context), got {client!r}."
            )
        _validate.whole(1, nodes=nodes)
        self._client, self._nodes, self._run_config = client, nodes, run_config or {}
        self._run = Run.create_empty(run_id=1)
        self._contexts: dict[int, Context] = {}
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        """Takes another run's description."""
        self._run = run

    @property
    def run(self) -> Any:
        """What is run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """In order of their ``partition-id``."""
        return range(_FIRST, _FIRST + self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Calls the clients at once; their replies wait to be pulled."""
        names = []
        for message in messages:
            name = str(uuid4())
            message.metadata.__dict__["_message_id"] = name  # as Flower's own grids do
            self._replies[name] = self._called(message)
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies that were not pulled yet."""
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Calls the clients; nothing is ever late."""
        return self.pull_messages(self.push_messages(messages))

    def _called(self, message: Message) -> Message:
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
        own.content = _copied(message.content)
        try:
            return self._client(own, self._contexts[node])
        except Exception as error:  # whatever a client raises is an answer of his
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def _copied(content: RecordDict) -> RecordDict:
    """Records of one's own; what is in arrays cannot be changed, and is shared."""
    records: dict[str, Any] = dict(content)
    return RecordDict({name: type(record)(dict(record)) for name, record in records.items()})


def run_in_process(
    server_app: ServerApp, client_app: _Client, *, nodes: int, run_config: Any = None
) -> None:
    """Runs a Flower app in this process: for tests, and for clients that are cheap.

    Args:
        server_app: The app of the server, audited or not.
        client_app: The app of the clients, or any function of (message, context).
        nodes: How many clients there are.
        run_config: What ``pyproject.toml`` would have under ``tool.flwr.app.config``.
    """
    grid = InProcessGrid(client_app, nodes=nodes, run_config=run_config)
    say_who_sends(grid.run.run_id)
    context = Context(
        run_id=grid.run.run_id,
        node_id=SUPERLINK_NODE_ID,
        node_config={},
        state=RecordDict(),
        run_config=dict(run_config or {}),
    )
    server_app(grid, context)
