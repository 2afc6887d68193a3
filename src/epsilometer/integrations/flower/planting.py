"""Plant canaries in one Flower run: who they are, what they answer, what is seen of them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from epsilometer._extras import needs
from epsilometer.audits.federated.directions import Directions, Family
from epsilometer.audits.federated.iterates import KEPT, IterateWatch, Layout
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.flower.settings import STATISTICS, Settings, draw_directions

with needs("flwr", extra="flower"):
    from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

Arrays: TypeAlias = dict[str, NDArray[Any]]
_Handler: TypeAlias = Callable[[Message, Context], Message]
_CLIPPING_NORM = "clipping_norm"  # what Flower calls it in the config that it sends to clients
_NORM_BIT = "norm_bit"  # by which clients say that they had to clip
_JUST_BELOW = 1 - 1e-5  # rounding must not make a canary count as clipped
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
    """The canaries of a run, as grids and strategies use them.

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
        virtual = settings.draw_virtual_nodes() if settings.mode == "virtual" else []
        self.settings = settings
        self.canary_of = {node: number for number, node in enumerate(virtual)}
        self.layout: Layout | None = None
        self.watch: IterateWatch | None = None
        self.strategy: Any = None
        self.failed = 0
        self.example: RecordDict | None = None
        self.weighted_by_key = settings.weighted_by_key
        self._canaries: Directions | None = None
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
        """Yield what a reader must know about strategy, replies and norms."""
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
        """Take note of weights; the first ones fix what is watched."""
        asked = self.settings
        if self.layout is None or self.watch is None:
            self.layout = Layout(arrays, without=asked.without)
            self._canaries = draw_directions(
                asked.family, asked.canaries, self.layout.size, asked.seed
            )
            known = asked.mode != "mod" and asked.participation == "known"
            self.watch = IterateWatch(
                self._canaries, self.layout.flatten(arrays), memory=KEPT if known else 0
            )
        else:
            self.watch.see(self.layout.flatten(arrays))

    def begin_round(self, nodes: Callable[[], Iterable[int]]) -> None:
        """Begin a round of training; the first draws who is a canary among real nodes."""
        if self.watch is not None:
            self.watch.next_round()
        if self.settings.mode == "replace" and not self.canary_of:
            chosen = self.settings.choose_nodes(list(nodes()))
            self.canary_of = {node: number for number, node in enumerate(chosen)}

    def answer(
        self, nodes: list[int], asked: RecordDict | None, replies: list[RecordDict]
    ) -> Iterator[RecordDict]:
        """Yield what canary nodes reply to what they were asked, after the example of clients."""
        if replies and self.canary_of:
            self.example = make_typical(replies)
            known = any(self.weighted_by_key in part for part in self.example.values())
            if self.settings.weight != 1 and not known:
                self._odd[_UNWEIGHTED] = None
        if not nodes or asked is None:
            return
        sent = read_weights(asked)
        assert self._canaries is not None
        assert self.watch is not None
        norm = np.float32(self._choose_norm(asked, sent, replies))
        numbers = [self.canary_of[node] for node in nodes]
        self.watch.take_part(numbers)
        step = max(1, _ROWS // self._canaries.dimension)
        for start in range(0, len(nodes), step):
            for row in self._canaries.rows(numbers[start : start + step]):
                yield self._make_content(asked, sent, row * norm)

    def _make_content(
        self, asked: RecordDict, sent: Arrays, direction: NDArray[np.float32]
    ) -> RecordDict:
        assert self.layout is not None
        key, weight = self.weighted_by_key, self.settings.weight
        planted = to_record(self.layout.move(sent, direction))
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
            if _NORM_BIT in numbers:
                numbers[_NORM_BIT] = 0  # a canary is just as long as clipping allows
            content[name] = type(part)(numbers)
        return content

    def _choose_norm(self, asked: RecordDict, sent: Arrays, replies: list[RecordDict]) -> float:
        """Return the norm of the canaries of this round; note what is odd about it."""
        wanted, clients = self.settings.clip_norm, read_norm(asked)
        servers = [part.clipping_norm for part in self.parts if hasattr(part, "clipping_norm")]
        if clients is not None:
            if wanted is not None:
                self._odd[_CLIENTS_CLIP] = None
            return clients * _JUST_BELOW
        if wanted is not None:
            if servers and wanted < servers[0] * _JUST_BELOW:
                self._odd[_SHORT] = None
            if servers and wanted > servers[0]:
                self._odd[_LONG] = None
            return wanted
        if servers:
            return float(servers[0]) * _JUST_BELOW
        self._odd[_NO_CLIPPING] = None
        return self._measure_norm(sent, replies)

    def _measure_norm(self, sent: Arrays, replies: list[RecordDict]) -> float:
        """Return the median norm of the clients' updates; 1 where none moved."""
        assert self.layout is not None
        start = self.layout.flatten(sent)
        norms = [
            np.linalg.norm(self.layout.flatten(read_weights(reply)) - start) for reply in replies
        ]
        usual = float(np.median(norms)) if norms else 0.0
        if not usual > 0:  # nan too: a client that diverged
            self._odd[_ZERO] = None
        return usual if usual > 0 else 1.0


def canary_mod(
    canaries: int,
    *,
    seed: int = 0,
    family: Family = "hadamard",
    clip_norm: float | None = None,
    without: Sequence[str] = STATISTICS,
    index: Callable[[Context], int | None] | None = None,
) -> Callable[[Message, Context, _Handler], Message]:
    """Return a mod for the ``ClientApp``: designated clients answer with canaries themselves.

    For secure aggregation, where the server cannot answer for a client whose masks it does not
    know. Put it *last* in the list of mods, so that clipping and masking are done to what it made;
    audit the server's app with ``mode="mod"`` and the same ``canaries``, ``seed`` and ``family``.
    The designated clients train as the others do, and what they trained is thrown away.

    Args:
        canaries: How many there are in all.
        seed: That of ``audit_server_app``. Whoever has it knows all canaries.
        family: That of ``audit_server_app``.
        clip_norm: Norm of a canary, where the message's config has no clipping norm.
        without: That of ``audit_server_app``.
        index: Which canary a client is, or None if it is none; by default its ``partition-id``
            where that is below ``canaries``.
    """

    def choose_canary(context: Context) -> int | None:
        if index is not None:
            return index(context)
        partition = int(context.node_config.get("partition-id", canaries))
        return partition if partition < canaries else None

    def mod(message: Message, context: Context, call_next: _Handler) -> Message:
        number = choose_canary(context) if is_training(message) else None
        if number is None:
            return call_next(message, context)
        sent, norm = read_weights(message.content), read_norm(message.content) or clip_norm
        if norm is None:
            raise InvalidArgument(
                "Expected a clipping norm in the message's config, or clip_norm, got neither."
            )
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        layout = Layout(sent, without=without)
        row = draw_directions(family, canaries, layout.size, seed).rows([number])[0]
        name = next(iter(reply.content.array_records))
        reply.content[name] = to_record(layout.move(sent, row * np.float32(norm * _JUST_BELOW)))
        return reply

    return mod


def is_training(message: Message) -> bool:
    """Tell whether a message asks for training, or answers that."""
    return message.metadata.message_type.partition(".")[0] == "train"


def read_weights(content: RecordDict) -> Arrays:
    """Return the model in a message."""
    records = list(content.array_records.values())
    if len(records) != 1:
        raise InvalidArgument(
            f"Expected one ArrayRecord in messages of training, got {len(records)}: what a canary "
            "should answer is not known. Under secure aggregation use canary_mod."
        )
    return to_arrays(records[0])


def to_arrays(arrays: ArrayRecord) -> Arrays:
    """Return arrays as NumPy has them."""
    return {name: array.numpy() for name, array in arrays.items()}


def to_record(arrays: Arrays) -> ArrayRecord:
    """Return arrays as Flower has them."""
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


def read_norm(content: RecordDict) -> float | None:
    """Return the clipping norm that clients were sent, where they clip."""
    for config in content.config_records.values():
        if _CLIPPING_NORM in config:
            return float(config[_CLIPPING_NORM])  # type: ignore[arg-type]
    return None


def make_typical(replies: list[RecordDict]) -> RecordDict:
    """Return a reply as clients make them: the median of every number, and no arrays."""
    found = RecordDict()
    for name, part in replies[0].items():
        if isinstance(part, ArrayRecord):
            found[name] = ArrayRecord()
        else:
            found[name] = type(part)(
                {key: _median(replies, name, key, value) for key, value in part.items()}
            )
    return found


def _median(replies: list[RecordDict], name: str, key: str, value: Any) -> Any:
    if not isinstance(value, int | float):
        return value  # a list, or words: as the first client has it
    every: list[Any] = [reply[name].get(key, value) for reply in replies if name in reply]
    return type(value)(np.median(every))
