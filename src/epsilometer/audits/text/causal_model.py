"""Measure canaries on any causal language model of torch."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.audits.text.canaries import (
    Canary,
    TokenizerVocabulary,
    read_tokenizer,
    split_tokens,
)
from epsilometer.audits.text.measuring import NEAR, Measured, bound_similarity
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

_MOST_TOKENS = 64  # of a completion
_FIRST_TOKENS = 2  # of it before it is compared; twice as many each further time


class CausalModel:
    """Wrap a language model in this process and its tokenizer.

    Guarantees: weights, modes and random streams stay as they are. Probabilities are computed in
        single precision, even for models in half precision.
    Assumes: the module takes token ids ``(batch, length)`` and returns logits, or an object with
        ``logits``; position t sees no later token.

    Args:
        module: A torch module: from transformers, PEFT, wrapped by Opacus, or your own. Prompts are
            completed by its ``generate``, if it has one as in transformers. If it takes
            ``logits_to_keep``, only the logits needed are computed.
        tokenizer: With ``encode`` and ``decode``.
        batch_size: Largest number of canaries measured at once.
        completions: Whether prompts are completed too, to measure memorisation; each until it can
            no longer be near its secret.

    Example:
        >>> import torch
        >>> class Letters:
        ...     def encode(self, text): return [ord(letter) % 32 for letter in text]
        ...     def decode(self, ids): return "".join(chr(96 + at) for at in ids)
        >>> module = torch.nn.Sequential(torch.nn.Embedding(32, 4), torch.nn.Linear(4, 32))
        >>> model = CausalModel(module, Letters())
        >>> [tokens.size for tokens in model.measure([Canary("ab", "cde")]).log_probs]
        [3]
    """

    def __init__(
        self, module: Any, tokenizer: Any, *, batch_size: int = 128, completions: bool = True
    ) -> None:
        with needs("torch", extra="torch"):
            import torch
        if not isinstance(module, torch.nn.Module):
            raise InvalidArgument(f"Expected a torch module as model, got {type(module).__name__}.")
        _validate.whole(1, batch_size=batch_size)
        self._torch, self._module = torch, module
        self.tokenizer: TokenizerVocabulary = read_tokenizer(tokenizer)
        self._batch_size, self._completions = batch_size, completions
        self._named = _takes_mask(module)
        self._keeps = _takes(module, "logits_to_keep")
        self._generator: Any = getattr(module, "generate", None)
        self._ends = _list_ends(module)

    def measure(self, canaries: Sequence[Canary]) -> Measured:
        """Return log-probability and rank of all tokens of secrets, and completions of prompts.

        Canaries of similar length are measured together, so that there is little padding. Logits
        are computed only at the positions of secrets, if the module supports it.
        """
        rows = [self._split(canary) for canary in canaries]
        log_probs: list[FloatArray] = [np.zeros(0)] * len(rows)
        ranks: list[FloatArray] = [np.zeros(0)] * len(rows)
        likeliest: list[list[int]] = [[]] * len(rows)
        sizes = [(len(secret).bit_length(), len(prompt) + len(secret)) for prompt, secret in rows]

        def read(places: Sequence[int]) -> None:
            part = [rows[at] for at in places]
            every = self._read(part)
            ends = np.cumsum([len(secret) for _, secret in part])[:-1]
            for at, *found in zip(places, *(np.split(each, ends) for each in every), strict=True):
                log_probs[at], ranks[at], likeliest[at] = found[0], found[1], found[2].tolist()

        self._take_batches(sorted(range(len(rows)), key=sizes.__getitem__), read)
        completions = self._complete(canaries, rows, likeliest) if self._completions else ()
        return Measured(log_probs=tuple(log_probs), ranks=tuple(ranks), completions=completions)

    def find_unlikely(self, prompts: Sequence[str], count: int) -> list[list[str]]:
        """Return this many of the least likely next tokens of each prompt, least likely first."""
        texts = self.tokenizer.texts_by_id()
        known = np.array(sorted(texts))
        found: list[list[str]] = []

        def choose(places: Sequence[int]) -> None:
            for row in self._predict_next([self._encode(prompts[at]) for at in places]):
                last = row.float().cpu().numpy()
                order = known[np.argsort(last[known], kind="stable")[:count]]
                found.append([texts[int(at)] for at in order])

        self._take_batches(range(len(prompts)), choose)
        return found

    def _encode(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text)
        start = self.tokenizer.start
        if not ids and start is None:
            raise InvalidArgument("Expected a prompt of one token or more, got none.")
        return ids or [start]  # type: ignore[list-item]

    def _split(self, canary: Canary) -> tuple[list[int], list[int]]:
        """Return the tokens that prompt and text share, and those of the secret."""
        shared, secret = split_tokens(self.tokenizer, canary)
        if not shared:
            return self._encode(canary.prompt), self.tokenizer.encode(canary.secret)
        return shared, secret

    def _take_batches(self, places: Sequence[int], take: Callable[[Sequence[int]], None]) -> None:
        """Yield batches of all positions; make them smaller if GPU memory runs out."""
        begun = 0
        while begun < len(places):
            part = places[begun : begun + self._batch_size]
            try:
                take(part)
            except self._torch.cuda.OutOfMemoryError:  # it must not cost the trained model
                if len(part) == 1:
                    raise
                self._batch_size = len(part) // 2
            else:
                begun += len(part)

    def _read(self, rows: Sequence[tuple[list[int], list[int]]]) -> tuple[NDArray[Any], ...]:
        """Return log-probability and rank of all secrets' tokens, and the likeliest tokens."""
        torch = self._torch
        first = min(len(prompt) for prompt, _ in rows) - 1  # position that is read
        logits = self._predict([prompt + secret[:-1] for prompt, secret in rows], first)
        sizes = np.array([len(secret) for _, secret in rows])
        begins = np.array([len(prompt) for prompt, _ in rows]) - 1 - first
        row = np.repeat(np.arange(len(rows)), sizes)
        place = np.arange(row.size) + (begins - np.cumsum(sizes) + sizes)[row]
        token = np.concatenate([np.array(secret, np.int64) for _, secret in rows])
        row, place, token = torch.from_numpy(np.stack([row, place, token])).to(logits.device)
        values = logits[row, place].float()
        own = values.gather(1, token[:, None])
        found = (own - values.logsumexp(1, keepdim=True))[:, 0].double()
        rank = (values > own).sum(1).double()
        if self._completions:
            values[:, [each for each in self._ends if each < values.shape[1]]] = -torch.inf
            token = values.argmax(1)
        return tuple(each.cpu().numpy() for each in (found, rank, token))

    def _predict(self, rows: Sequence[list[int]], first: int) -> Any:
        """Return logits, from a position on, of rows padded on the right.

        No token attends to the padding.
        """
        torch, longest = self._torch, max(map(len, rows))
        ids, mask = (torch.from_numpy(each) for each in _pad(rows))
        device = next(self._module.parameters()).device
        more = {"logits_to_keep": longest - first} if self._keeps else {}
        with self._evaluating(), torch.no_grad():
            if self._named:
                ids, mask = ids.to(device), mask.to(device)
                found = self._module(input_ids=ids, attention_mask=mask, **more)
            else:
                found = self._module(ids.to(device), **more)
        logits = getattr(found, "logits", found)
        if logits.shape[1] < longest - first:
            raise InvalidArgument(
                f"Expected logits of {longest} tokens from the model, got {logits.shape[1]}."
            )
        return logits[:, first - longest :]  # prompt tuning prepends positions

    def _predict_next(self, rows: Sequence[list[int]]) -> Any:
        """Return logits of the token after each row."""
        first = min(map(len, rows)) - 1
        logits = self._predict(rows, first)
        places = self._torch.arange(len(rows), device=logits.device)
        last = self._torch.tensor([len(ids) - 1 - first for ids in rows], device=logits.device)
        return logits[places, last]

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        modes = [(each, each.training) for each in self._module.modules()]
        attention = self._torch.backends.cuda
        planned = attention.cudnn_sdp_enabled()
        attention.enable_cudnn_sdp(False)  # it would compile a kernel for every new length
        self._module.eval()
        try:
            yield
        finally:
            attention.enable_cudnn_sdp(planned)
            for each, mode in modes:
                each.training = mode

    def _complete(
        self,
        canaries: Sequence[Canary],
        rows: Sequence[tuple[list[int], list[int]]],
        likeliest: Sequence[list[int]],
    ) -> tuple[str, ...]:
        """Return the greedy completion of each prompt, as long as its secret.

        If a completion begins as the secret does, measuring the secret has yielded its tokens up to
        the first that differs; only those after it are computed here. A completion ends when it can
        no longer be near its secret.
        """
        said, wanted = [], []
        for (_, secret), whole in zip(rows, likeliest, strict=True):
            best = whole[:_MOST_TOKENS]
            differs = (at for at, token in enumerate(best) if token != secret[at])
            said.append(best[: next(differs, len(best)) + 1])
            wanted.append(len(best))
        follow = self._generate if callable(self._generator) else self._grow
        going, count = list(range(len(rows))), _FIRST_TOKENS

        def lengthen(places: Sequence[int]) -> None:
            steps = max(min(count, wanted[at] - len(said[at])) for at in places)
            found = follow([rows[at][0] + said[at] for at in places], steps)
            for at, ids in zip(places, found, strict=True):
                said[at] = (said[at] + ids)[: wanted[at]]

        while going := self._list_going(canaries, said, wanted, going):
            going.sort(key=lambda at: min(count, wanted[at] - len(said[at])))
            self._take_batches(going, lengthen)
            count *= 2
        return tuple(self.tokenizer.decode(ids) for ids in said)

    def _list_going(
        self,
        canaries: Sequence[Canary],
        said: Sequence[list[int]],
        wanted: Sequence[int],
        going: Sequence[int],
    ) -> list[int]:
        """Return the unfinished completions that may still be near their secrets."""
        left = [at for at in going if len(said[at]) < wanted[at]]
        most = bound_similarity(
            [canaries[at].secret for at in left], [self.tokenizer.decode(said[at]) for at in left]
        )
        return [at for at, near in zip(left, most, strict=True) if near >= NEAR]

    def _generate(self, prompts: Sequence[list[int]], count: int) -> list[list[int]]:
        """Return this many greedy tokens after each prompt, by the module's own ``generate``.

        It caches earlier tokens, so a token costs one position, not all.
        """
        torch = self._torch
        ids, mask = (torch.from_numpy(each) for each in _pad(prompts, left=True))
        device = next(self._module.parameters()).device
        with self._evaluating(), torch.no_grad():
            found = self._generator(
                input_ids=ids.to(device),
                attention_mask=mask.to(device),
                max_new_tokens=count,
                min_new_tokens=count,  # no text ends before its secret would
                do_sample=False,
                num_beams=1,
                repetition_penalty=1.0,
                pad_token_id=0,
            )
        return found[:, ids.shape[1] :].tolist()  # type: ignore[no-any-return]

    def _grow(self, prompts: Sequence[list[int]], count: int) -> list[list[int]]:
        """Return this many greedy tokens after each prompt, for a module without ``generate``."""
        so_far = [list(prompt) for prompt in prompts]
        for _ in range(count):
            found = self._predict_next(so_far).argmax(1).tolist()
            for ids, token in zip(so_far, found, strict=True):
                ids.append(token)
        return [ids[len(prompt) :] for ids, prompt in zip(so_far, prompts, strict=True)]


def _pad(rows: Sequence[list[int]], *, left: bool = False) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return rows of one length, padded on one side, and where they are not padded."""
    sizes = np.array([len(row) for row in rows])
    places = np.arange(sizes.max())
    there = places >= (sizes.max() - sizes)[:, None] if left else places < sizes[:, None]
    ids = np.zeros(there.shape, np.int64)
    ids[there] = np.concatenate([np.array(row, np.int64) for row in rows])
    return ids, there.astype(np.int64)


def _list_ends(module: Any) -> list[int]:
    """Return the end-of-text tokens of ``generate``, which completions must not have."""
    found = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
    return [] if found is None or not hasattr(module, "generate") else np.atleast_1d(found).tolist()


def _takes(module: Any, name: str) -> bool:
    """Tell whether a module, or the one that PEFT wraps, takes an argument of this name."""
    unwrap = getattr(module, "get_base_model", None)
    inner = unwrap() if callable(unwrap) else module
    return name in inspect.signature(inner.forward).parameters


def _takes_mask(module: Any) -> bool:
    """Tell whether a module, or the one it wraps, is from transformers, with named arguments."""
    return getattr(module, "config", None) is not None
