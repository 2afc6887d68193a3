"""Make canaries for language models: a prompt like the data, and a secret that follows it.

Kinds of secrets, after Panda et al. (2025): random strings; tokens that are rare in the data; new
tokens that no one else uses; tokens that a model finds unlikely after the prompt; and text like the
data. Prompts come from a Markov chain of words, learned from texts like the data.
"""

import inspect
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, get_args

import numpy as np

from epsilometer import _validate
from epsilometer.errors import InvalidArgument

Kind: TypeAlias = Literal["random", "rare", "new", "unlikely", "typical"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Encode: TypeAlias = Callable[[str], list[int]]
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_LENGTHS = {"random": 16, "rare": 1, "new": 1, "unlikely": 1, "typical": 12}
_POOL = 4  # rare or unlikely tokens that each canary draws from
_WORDS = re.compile(r"\S+")


class Canary(NamedTuple):
    """Hold a planted text: a prompt, and the secret after it; only the secret is scored."""

    prompt: str
    secret: str

    @property
    def text(self) -> str:
        """The text that is trained on."""
        return self.prompt + self.secret


class Vocabulary(Protocol):
    """Define what canaries need of a tokenizer: the texts of its single tokens."""

    def list_tokens(self) -> list[str]:
        """Return tokens whose text is encoded as that one token."""
        ...

    def count_tokens(self, texts: Sequence[str]) -> Counter[str]:
        """Count the tokens of some texts, by their text."""
        ...


class Chooser(Protocol):
    """Define a model that returns the tokens it finds unlikely after a prompt."""

    def find_unlikely(self, prompts: Sequence[str], count: int) -> list[list[str]]:
        """Return this many of the least likely next tokens of each prompt, least likely first."""
        ...


@dataclass(frozen=True, kw_only=True)
class TextCanaries:
    """Describe canaries of one kind to plant in training texts.

    Guarantees: the same settings, texts and random stream give the same canaries.
    Assumes: nothing; every kind gives a valid audit, but some prove more than others.

    Attributes:
        count: Number of canaries; coin tosses decide which are planted.
        kind: ``random`` strings need nothing else. ``rare`` tokens need a tokenizer. ``new``
            tokens must be added to the vocabulary; Panda et al. (2025) find them strongest.
            ``unlikely`` tokens need the model before training. ``typical`` ones are texts like
            the data.
        prompt: Words before the secret.
        length: Length of the secret: letters of ``random``, words of ``typical``, tokens of the
            others. None for 16 letters, 12 words, 1 token.
        repetitions: How often each planted canary is in the data. All copies together are one
            canary: by group privacy, they prove less about one record.

    Example:
        >>> import epsilometer as em
        >>> em.TextCanaries(count=1000, kind="new")
        TextCanaries(count=1000, kind='new', prompt=8, length=1, repetitions=1)
    """

    count: int = 1000
    kind: Kind = "random"
    prompt: int = 8
    length: int | None = None
    repetitions: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidArgument(
                f"Expected kind to be one of {', '.join(KINDS)}, got {_validate.short(self.kind)}."
            )
        if self.length is None:
            object.__setattr__(self, "length", _LENGTHS[self.kind])
        _validate.whole(2, count=self.count)
        _validate.whole(1, prompt=self.prompt, repetitions=self.repetitions)
        _validate.whole(1, **{"length": self.length or 0})

    @property
    def secret_length(self) -> int:
        """The length of a secret, which is always known."""
        return self.length or _LENGTHS[self.kind]


class WordChain:
    """Draw words by a Markov chain with the transition frequencies of given texts.

    Guarantees: every pair of words occurs in some text; longer passages may too, by chance.

    Args:
        texts: Texts to learn from.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._next: dict[str, list[str]] = {}
        self._first: list[str] = []
        for text in texts:
            words = _WORDS.findall(text)
            self._first += words[:1]
            for word, after in pairwise(words):
                self._next.setdefault(word, []).append(after)
        if not self._first:
            raise InvalidArgument(
                "Expected texts with words for prompts, got none. Give like=, a list of texts."
            )

    def draw(self, words: int, rng: np.random.Generator) -> list[str]:
        """Return this many words; if a text ends, another begins."""
        drawn: list[str] = []
        while len(drawn) < words:
            choices = self._next.get(drawn[-1], self._first) if drawn else self._first
            drawn.append(choices[int(rng.integers(len(choices)))])
        return drawn


def make_canaries(
    wanted: TextCanaries,
    chain: WordChain,
    *,
    rng: np.random.Generator,
    texts: Sequence[str] = (),
    vocabulary: Vocabulary | None = None,
    model: Chooser | None = None,
    first: int = 0,
) -> list[Canary]:
    """Make the requested canaries.

    Args:
        wanted: Their number and kind.
        chain: Source of prompts.
        rng: Source of randomness.
        texts: Texts of the dataset, in which ``rare`` tokens are counted.
        vocabulary: For ``rare``.
        model: For ``unlikely``.
        first: Number of the first ``new`` token.

    Example:
        >>> chain = WordChain(["to be or not to be"])
        >>> rng = np.random.default_rng(0)
        >>> make_canaries(TextCanaries(count=2, kind="new", prompt=2), chain, rng=rng)[1]
        Canary(prompt='to be ', secret='<canary-000001>')
    """
    count, length = wanted.count, wanted.secret_length
    if wanted.kind == "typical":
        drawn = [chain.draw(wanted.prompt + length, rng) for _ in range(count)]
        return [
            Canary(" ".join(words[: wanted.prompt]), " " + " ".join(words[wanted.prompt :]))
            for words in drawn
        ]
    prompts = [" ".join(chain.draw(wanted.prompt, rng)) for _ in range(count)]
    if wanted.kind == "random":
        letters = np.array(list(_LETTERS))
        secrets = ["".join(letters[rng.integers(letters.size, size=length)]) for _ in range(count)]
        return [
            Canary(f"{prompt} ", secret) for prompt, secret in zip(prompts, secrets, strict=True)
        ]
    if wanted.kind == "new":
        names = [name_token(first + place) for place in range(count * length)]
        secrets = ["".join(names[at * length : (at + 1) * length]) for at in range(count)]
        return [
            Canary(f"{prompt} ", secret) for prompt, secret in zip(prompts, secrets, strict=True)
        ]
    if wanted.kind == "rare":
        tokens = _find_rare(vocabulary, texts, _POOL * count * length)
        order = [tokens[place % len(tokens)] for place in rng.permutation(count * length)]
        secrets = ["".join(order[at * length : (at + 1) * length]) for at in range(count)]
        return [Canary(prompt, secret) for prompt, secret in zip(prompts, secrets, strict=True)]
    return _choose_unlikely(model, prompts, length, rng)


def name_token(number: int) -> str:
    """Return the text of a new token.

    Example:
        >>> name_token(17)
        '<canary-000017>'
    """
    return f"<canary-{number:06d}>"


def _find_rare(vocabulary: Vocabulary | None, texts: Sequence[str], most: int) -> list[str]:
    """Return the tokens that are rarest in the texts, rarest first."""
    if vocabulary is None:
        raise InvalidArgument(
            "Expected a tokenizer for rare tokens, got none. Give tokenizer=, or another kind."
        )
    counts = vocabulary.count_tokens(texts)
    return sorted(vocabulary.list_tokens(), key=lambda token: counts[token])[:most]


def _choose_unlikely(
    model: Chooser | None, prompts: Sequence[str], length: int, rng: np.random.Generator
) -> list[Canary]:
    """Extend every secret by a token that the model finds unlikely there."""
    if model is None:
        raise InvalidArgument(
            "Expected the model before training for unlikely tokens, got none. Give model= or "
            "kind='rare'."
        )
    secrets = [""] * len(prompts)
    for _ in range(length):
        so_far = [prompt + secret for prompt, secret in zip(prompts, secrets, strict=True)]
        found = model.find_unlikely(so_far, _POOL * len(prompts))
        secrets = [
            secret + choices[int(rng.integers(len(choices)))]
            for secret, choices in zip(secrets, found, strict=True)
        ]
    return [Canary(prompt, secret) for prompt, secret in zip(prompts, secrets, strict=True)]


def read_tokenizer(tokenizer: Any) -> "TokenizerVocabulary":
    """Wrap a tokenizer of transformers or tokenizers, or a function, as canaries need it."""
    return (
        tokenizer if isinstance(tokenizer, TokenizerVocabulary) else TokenizerVocabulary(tokenizer)
    )


class TokenizerVocabulary:
    """Wrap a tokenizer of transformers or tokenizers, or any object with ``encode`` and ``decode``.

    Args:
        tokenizer: Has ``encode(text)`` that gives token ids, or an object with ``ids``;
            ``decode(ids)``; and for rare and unlikely tokens ``get_vocab()``.
    """

    def __init__(self, tokenizer: Any) -> None:
        if not callable(getattr(tokenizer, "encode", None)):
            raise InvalidArgument(
                f"Expected a tokenizer with encode(text), got {type(tokenizer).__name__}."
            )
        self._tokenizer = tokenizer
        self._special = "add_special_tokens" in _list_parameters(tokenizer.encode)
        self._tokens: dict[int, str] | None = None

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens around it."""
        more = {"add_special_tokens": False} if self._special else {}
        found = self._tokenizer.encode(text, **more)
        return [int(each) for each in getattr(found, "ids", found)]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some tokens."""
        return str(self._tokenizer.decode(list(ids)))

    @property
    def start(self) -> int | None:
        """The token that begins a text, if there is one."""
        for name in ("bos_token_id", "eos_token_id"):
            if (found := getattr(self._tokenizer, name, None)) is not None:
                return int(found)
        return None

    def texts_by_id(self) -> dict[int, str]:
        """Return tokens whose text is encoded as that one token, by their id."""
        if self._tokens is None:
            if not callable(getattr(self._tokenizer, "get_vocab", None)):
                raise InvalidArgument(
                    "Expected a tokenizer with get_vocab() for rare or unlikely tokens, got "
                    f"{type(self._tokenizer).__name__}."
                )
            special = set(getattr(self._tokenizer, "all_special_ids", ()))
            every = sorted(set(self._tokenizer.get_vocab().values()) - special)
            texts = ((at, self.decode([at])) for at in every)
            self._tokens = {
                at: text
                for at, text in texts
                if text.isprintable() and text.strip() and self.encode(text) == [at]
            }
        return self._tokens

    def list_tokens(self) -> list[str]:
        """Return tokens whose text is encoded as that one token."""
        return list(self.texts_by_id().values())

    def count_tokens(self, texts: Sequence[str]) -> Counter[str]:
        """Count the tokens of some texts, by their text."""
        known = self.texts_by_id()
        ids = Counter(token for text in texts for token in self.encode(text))
        return Counter({known[at]: many for at, many in ids.items() if at in known})


def split_tokens(tokenizer: TokenizerVocabulary, canary: Canary) -> tuple[list[int], list[int]]:
    """Return the tokens that prompt and text of a canary share, and those of its secret."""
    prompt, whole = tokenizer.encode(canary.prompt), tokenizer.encode(canary.text)
    shared = 0
    for one, other in zip(prompt, whole, strict=False):
        if one != other:
            break
        shared += 1
    return whole[:shared], whole[shared:]


def _list_parameters(function: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # of a compiled one
        return ()
