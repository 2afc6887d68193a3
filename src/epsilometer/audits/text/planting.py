"""Plant canaries in a dataset of texts by coin tosses, and keep tosses and texts private."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer._files import OWNER_FILE, make_private_folder, read_plain, write_whole
from epsilometer.audits.text.canaries import (
    Canary,
    Chooser,
    TextCanaries,
    WordChain,
    make_canaries,
    read_tokenizer,
)
from epsilometer.audits.text.canary_counts import COUNTS
from epsilometer.audits.text.forecast import Forecast, forecast_audit
from epsilometer.audits.text.measuring import MEASUREMENTS
from epsilometer.core.claim import DEFAULT_CONFIDENCE, Claim, as_claim
from epsilometer.errors import InvalidArgument, UnreadableFile

Design: TypeAlias = Literal["coins", "paired"]
DESIGNS: tuple[Design, ...] = ("coins", "paired")
CANARIES = "canaries.json"
_FORMAT = 1
_LARGEST = 1 << 28  # bytes of a file of canaries
_ENOUGH = 20_000  # texts that the Markov chain of words is learned from


@dataclass(frozen=True, eq=False, kw_only=True)
class PlantedTexts:
    """Hold canaries, and which of them are in the data: the secret of an audit.

    Guarantees: its ``repr`` shows no text and no coin toss. Training needs only ``dataset``.

    Attributes:
        dataset: The data with the planted canaries, in the form that was given; None if this was
            read from a folder.
        wanted: The requested canaries, one entry per kind.
        canaries: All of them, planted or not.
        included: Which are planted, shape ``(n,)``. With ``paired``, canary 2i + 1 is the held-out
            twin of 2i or the other way round.
        design: ``coins`` or ``paired``, see ``Scores``.
        folder: The private folder they are stored in; None if they are not stored.
    """

    dataset: Any = field(repr=False)
    wanted: tuple[TextCanaries, ...]
    canaries: tuple[Canary, ...] = field(repr=False)
    included: NDArray[np.bool_] = field(repr=False)
    design: Design = "coins"
    folder: Path | None = None

    @property
    def groups(self) -> tuple[tuple[TextCanaries, slice], ...]:
        """Each requested kind with the indices of its canaries."""
        starts = np.cumsum([0, *(each.count for each in self.wanted)]).tolist()
        return tuple(
            (each, slice(start, start + each.count))
            for each, start in zip(self.wanted, starts, strict=False)
        )

    @property
    def new_tokens(self) -> tuple[str, ...]:
        """Tokens that the tokenizer must get before training: ``tokenizer.add_tokens(…)``.

        They include all canaries, planted or not, in order, and so reveal nothing of the coin
        tosses.
        """
        return tuple(
            f"{part}>"
            for wanted, places in self.groups
            if wanted.kind == "new"
            for canary in self.canaries[places]
            for part in canary.secret.split(">")[:-1]
        )

    def forecast(
        self,
        claim: Claim | float | None = None,
        *,
        delta: float | None = None,
        confidence: float = DEFAULT_CONFIDENCE,
        views: int = 1,
    ) -> Forecast:
        """Forecast before training what the audit can refute.

        Reach and power are those of the audit itself, if planted texts are trained on as declared.

        Args:
            claim: The claimed ε, for which power is computed.
            delta: δ, if there is no ``Claim``.
            confidence: Confidence of the audit.
            views: Number of scores of each kind, which share the confidence.

        Example:
            >>> import epsilometer as em
            >>> texts = ["to be or not to be", "that is the question"]
            >>> planted = em.plant_texts(texts, canaries=em.TextCanaries(count=1000))
            >>> print(planted.forecast(delta=1e-5))
            1,000 canaries (random) can refute claims up to ε = 5.7 at δ = 1e-05.
        """
        stated = as_claim(claim, delta=delta)
        at = delta if stated is None else stated.delta
        if at is None:
            raise InvalidArgument("Expected delta, got none. Pass delta=1e-5 or a Claim.")
        return forecast_audit(
            self.wanted,
            [int(self.included[places].sum()) for _, places in self.groups],
            claim=stated,
            delta=at,
            confidence=confidence,
            views=views,
            paired=self.design == "paired",
        )

    def save(self, folder: str | Path) -> Path:
        """Write texts and coin tosses into a private folder: mode 0700, its file 0600."""
        home = Path(folder)
        make_private_folder(home)
        home.chmod(0o700)
        plain = {
            "format": _FORMAT,
            "design": self.design,
            "wanted": [
                {name: getattr(each, name) for name in TextCanaries.__dataclass_fields__}
                for each in self.wanted
            ],
            "canaries": [list(canary) for canary in self.canaries],
            "included": np.flatnonzero(self.included).tolist(),
        }
        content, path = json.dumps(plain).encode("ascii"), home / CANARIES
        with FileLock(home / "lock", mode=OWNER_FILE):  # all processes of a run plant alike
            if not path.exists() or read_plain(path, largest=_LARGEST) != content:
                for name in (MEASUREMENTS, COUNTS):  # if of other canaries, they clear any claim
                    (home / name).unlink(missing_ok=True)
            write_whole(path, content)
        return home


def plant_texts(
    dataset: Any,
    *,
    canaries: TextCanaries | Sequence[TextCanaries],
    design: Design = "coins",
    like: Sequence[str] | None = None,
    column: str = "text",
    make_row: Callable[[str], Any] | None = None,
    tokenizer: Any = None,
    model: Chooser | None = None,
    seed: int = 0,
    out: str | Path | None = None,
) -> PlantedTexts:
    """Plant canaries in training texts, each by a fair coin toss.

    Guarantees: coin tosses depend on ``seed`` alone. Canaries are inserted at random places among
        the records, which keep their order. Nothing is printed; only its owner can read ``out``.
    Assumes: training uses the returned dataset, and depends on the coin tosses in no other way.

    Args:
        dataset: A list of texts, a ``datasets.Dataset``, or a map-style dataset of torch.
        canaries: What to plant; several kinds at once to compare them.
        design: ``coins``: one coin toss per canary. ``paired``: of every pair of twins, one is
            planted and the other is held out.
        like: Texts that prompts imitate; those of the dataset by default.
        column: Column of a ``datasets.Dataset``, or of records that are dictionaries.
        make_row: Function from a text to a record of the dataset, if records are more than texts.
        tokenizer: For ``rare`` tokens: of transformers or tokenizers.
        model: For ``unlikely`` tokens: a ``CausalModel`` of the model before training.
        seed: Seed of coin tosses, texts and places.
        out: Private folder for texts and coin tosses, so that another process can audit.

    Example:
        >>> import epsilometer as em
        >>> texts = ["to be or not to be", "that is the question"]
        >>> planted = em.plant_texts(texts, canaries=em.TextCanaries(count=10))
        >>> len(planted.dataset) - 2 == int(planted.included.sum())
        True
    """
    wanted = tuple(canaries) if isinstance(canaries, (list, tuple)) else (canaries,)
    if not wanted or not all(isinstance(each, TextCanaries) for each in wanted):
        raise InvalidArgument("Expected canaries=TextCanaries(…), or several of them, got others.")
    if design not in DESIGNS:
        raise InvalidArgument(
            f"Expected design to be one of {', '.join(DESIGNS)}, got {_validate.short(design)}."
        )
    if design == "paired" and any(each.count % 2 for each in wanted):
        raise InvalidArgument("Expected an even count of canaries for design 'paired', got an odd.")
    _validate.whole(0, seed=seed)
    records = _Records(dataset, column, make_row)
    coins, texts, places = np.random.default_rng(seed).spawn(3)
    made = _make_all(wanted, records, like, tokenizer, model, texts)
    included = _toss_coins(len(made), design, coins)
    repeated = [
        canary.text
        for each, group in _list_groups(wanted)
        for place in range(group.start, group.stop)
        if included[place]
        for canary in [made[place]] * each.repetitions
    ]
    planted = PlantedTexts(
        dataset=records.insert([repeated[at] for at in places.permutation(len(repeated))], places),
        wanted=wanted,
        canaries=tuple(made),
        included=included,
        design=design,
        folder=None if out is None else Path(out),
    )
    if out is not None:
        planted.save(out)
    return planted


def load_planted(folder: str | Path) -> PlantedTexts:
    """Read the canaries and coin tosses that :func:`plant_texts` wrote.

    Raises:
        UnreadableFile: The folder has no canaries, or they are damaged.

    Example:
        >>> import tempfile
        >>> import epsilometer as em
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     canaries = em.TextCanaries(count=10)
        ...     planted = em.plant_texts(["to be or not to be"], canaries=canaries, out=folder)
        ...     em.load_planted(folder).canaries == planted.canaries
        True
    """
    path = Path(folder) / CANARIES
    try:
        plain = json.loads(read_plain(path, largest=_LARGEST))
        if plain["format"] != _FORMAT:
            raise UnreadableFile(
                f"Expected canaries of format {_FORMAT} in {str(path)!r}, got another."
            )
        made = tuple(Canary(prompt, secret) for prompt, secret in plain["canaries"])
        included = np.zeros(len(made), np.bool_)
        included[np.array(plain["included"], np.int64)] = True
        wanted = tuple(TextCanaries(**each) for each in plain["wanted"])
        if sum(each.count for each in wanted) != len(made) or plain["design"] not in DESIGNS:
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UnreadableFile(
            f"Expected canaries that plant_texts wrote in {str(path)!r}, found none that can be "
            "read. Plant again, and train again: without the coins nothing can be audited."
        ) from error
    return PlantedTexts(
        dataset=None,
        wanted=wanted,
        canaries=made,
        included=included,
        design=plain["design"],
        folder=Path(folder),
    )


def _list_groups(wanted: Sequence[TextCanaries]) -> Iterator[tuple[TextCanaries, slice]]:
    start = 0
    for each in wanted:
        yield each, slice(start, start + each.count)
        start += each.count


def _make_all(
    wanted: Sequence[TextCanaries],
    records: "_Records",
    like: Sequence[str] | None,
    tokenizer: Any,
    model: Chooser | None,
    rng: np.random.Generator,
) -> list[Canary]:
    texts = records.texts if like is None else list(like)
    chain = WordChain(texts[:_ENOUGH])
    vocabulary = None if tokenizer is None else read_tokenizer(tokenizer)
    made: list[Canary] = []
    new = 0
    for each, stream in zip(wanted, rng.spawn(len(wanted)), strict=True):
        made += make_canaries(
            each,
            chain,
            rng=stream,
            texts=texts[:_ENOUGH],
            vocabulary=vocabulary,
            model=model,
            first=new,
        )
        new += each.count * each.secret_length if each.kind == "new" else 0
    return made


def _toss_coins(count: int, design: Design, rng: np.random.Generator) -> NDArray[np.bool_]:
    if design == "coins":
        return np.asarray(rng.random(count) < 0.5)
    first = rng.random(count // 2) < 0.5
    return np.stack([first, ~first], axis=1).ravel()


class _Records:
    """Access the texts of a dataset of any form, and insert records."""

    def __init__(self, dataset: Any, column: str, make_row: Callable[[str], Any] | None) -> None:
        if hasattr(dataset, "__iter__") and not hasattr(dataset, "__len__"):
            raise InvalidArgument(
                f"Expected a dataset with a length, got {type(dataset).__name__}. Canaries need "
                "places among the records: take a map-style dataset."
            )
        if isinstance(dataset, (str, bytes, Mapping)) or not hasattr(dataset, "__getitem__"):
            raise InvalidArgument(
                "Expected a list of texts, a datasets.Dataset (one split) or a map-style dataset "
                f"of torch, got {type(dataset).__name__}."
            )
        self._dataset, self._column, self._make_row = dataset, column, make_row
        self._columns = getattr(dataset, "column_names", None)  # of datasets.Dataset
        if self._columns is not None and make_row is None and list(self._columns) != [column]:
            raise InvalidArgument(
                f"Expected the one column {column!r}, got {_validate.listed(self._columns)}. Give "
                "make_row=, a function from a text to a record, or select_columns before."
            )

    @property
    def texts(self) -> list[str]:
        """The texts of the first records, as many as the Markov chain needs."""
        if self._columns is not None and self._column in self._columns:
            return [str(text) for text in self._dataset[: len(self._dataset)][self._column]]
        found = []
        for place in range(min(len(self._dataset), _ENOUGH)):
            record = self._dataset[place]
            text = record.get(self._column) if isinstance(record, dict) else record
            if not isinstance(text, str):
                raise InvalidArgument(
                    f"Expected texts in the dataset, got {type(text).__name__}. Give like=, a "
                    "list of texts that prompts are made like."
                )
            found.append(text)
        return found

    def insert(self, texts: Sequence[str], rng: np.random.Generator) -> Any:
        """Return the dataset with texts at random places; records keep their order."""
        many = len(self._dataset)
        order = np.full(many + len(texts), -1)
        at = np.sort(rng.choice(order.size, size=len(texts), replace=False))
        order[at] = many + np.arange(len(texts))
        order[order < 0] = np.arange(many)
        rows = [self._write_row(text) for text in texts]
        if self._columns is not None:
            return self._insert_rows(rows, order)
        if isinstance(self._dataset, list):
            every = [*self._dataset, *rows]
            return [every[place] for place in order]
        return PlantedDataset(self._dataset, rows, order.tolist())

    def _write_row(self, text: str) -> Any:
        if self._make_row is not None:
            return self._make_row(text)
        dictionary = self._columns is not None or (
            len(self._dataset) and isinstance(self._dataset[0], dict)
        )
        return {self._column: text} if dictionary else text

    def _insert_rows(self, rows: list[Any], order: NDArray[np.int64]) -> Any:
        # from the dataset's own package, on which this one does not depend
        library = import_module(type(self._dataset).__module__.partition(".")[0])
        added = type(self._dataset).from_list(rows, features=self._dataset.features)
        return library.concatenate_datasets([self._dataset, added]).select(order)


class PlantedDataset:
    """Insert canaries at random places among the records of a map-style dataset.

    Args:
        dataset: The records.
        rows: The canaries, as records.
        order: For each place, the index of a record, or beyond those, of a canary.
    """

    def __init__(self, dataset: Any, rows: list[Any], order: list[int]) -> None:
        self._dataset, self._rows, self._order = dataset, rows, order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, place: int) -> Any:
        at = self._order[place]
        records = len(self._dataset)
        return self._rows[at - records] if at >= records else self._dataset[at]
