"""Measure canaries on a causal language model of torch, whoever wrote it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.audits.text.canaries import Canary, TokenizerVocabulary, read_tokenizer
from epsilometer.audits.text.measuring import Measured
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

_MOST_TOKENS = 64  # of a completion


class CausalModel:
    """A language model in this process, with its tokenizer.

    Guarantees: weights, modes and random streams stay as they are. Probabilities are computed in
        single precision, also of models in half precision.
    Assumes: the module takes token ids ``(batch, length)`` and returns logits, or an object with
        ``logits``; position t sees no later token.

    Args:
        module: A torch module: from transformers, PEFT, wrapped by Opacus, or your own. One with
            ``generate``, as those of transformers have it, completes prompts by it.
        tokenizer: With ``encode`` and ``decode``.
        batch_size: Canaries that are measured at once.
        completions: Whether prompts are completed too, by which memorisation is measured.

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
        self, module: Any, tokenizer: Any, *, batch_size: int = 32, completions: bool = True
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
        self._generator: Any = getattr(module, "generate", None)
        self._ends = _list_ends(module)

    def measure(self, canaries: Sequence[Canary]) -> Measured:
        """Return ln p and rank of all tokens of secrets, and completions of prompts.

        Canaries of about the same length are measured together, so that little is filled up.
        """
        rows = [self._split(canary) for canary in canaries]
        log_probs: list[FloatArray] = [np.zeros(0)] * len(rows)
        ranks: list[FloatArray] = [np.zeros(0)] * len(rows)
        likeliest: list[list[int]] = [[]] * len(rows)
        lengths = [len(prompt) + len(secret) for prompt, secret in rows]
        for places in self._batches(np.argsort(lengths, kind="stable")):
            part = [rows[at] for at in places]
            read = self._read(self._predict([one + two for one, two in part]), part)
            ends = np.cumsum([len(secret) for _, secret in part])[:-1]
            for at, *found in zip(places, *(np.split(each, ends) for each in read), strict=True):
                log_probs[at], ranks[at], likeliest[at] = found[0], found[1], found[2].tolist()
        completions = self._complete(rows, likeliest) if self._completions else ()
        return Measured(log_probs=tuple(log_probs), ranks=tuple(ranks), completions=completions)

    def find_unlikely(self, prompts: Sequence[str], count: int) -> list[list[str]]:
        """Return this many of the least likely next tokens of each prompt, least likely first."""
        texts = self.tokenizer.texts_by_id()
        known = np.array(sorted(texts))
        found = []
        for rows in self._batches([self._encode(prompt) for prompt in prompts]):
            for row, ids in zip(self._predict(rows), rows, strict=True):
                last = row[len(ids) - 1].float().cpu().numpy()
                order = known[np.argsort(last[known], kind="stable")[:count]]
                found.append([texts[int(at)] for at in order])
        return found

    def _encode(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text)
        start = self.tokenizer.start
        if not ids and start is None:
            raise InvalidArgument("Expected a prompt of one token or more, got none.")
        return ids or [start]  # type: ignore[list-item]

    def _split(self, canary: Canary) -> tuple[list[int], list[int]]:
        """Return the tokens that prompt and text share, and those of the secret."""
        prompt, whole = self._encode(canary.prompt), self.tokenizer.encode(canary.text)
        shared = 0
        for one, other in zip(prompt, whole, strict=False):
            if one != other:
                break
            shared += 1
        if shared == 0:
            return prompt, self.tokenizer.encode(canary.secret)
        return whole[:shared], whole[shared:]

    def _batches(self, rows: Any) -> Iterator[Any]:
        for start in range(0, len(rows), self._batch_size):
            yield rows[start : start + self._batch_size]

    def _read(
        self, logits: Any, rows: Sequence[tuple[list[int], list[int]]]
    ) -> tuple[NDArray[Any], ...]:
        """Return ln p and rank of the tokens of all secrets, and the likeliest tokens there."""
        torch = self._torch
        at = [
            (place, len(prompt) - 1 + step, token)
            for place, (prompt, secret) in enumerate(rows)
            for step, token in enumerate(secret)
        ]
        row, place, token = torch.tensor(at, device=logits.device, dtype=torch.long).view(-1, 3).T
        values = logits[row, place].float()
        own = values.gather(1, token[:, None])
        found = (own - values.logsumexp(1, keepdim=True))[:, 0].double()
        rank = (values > own).sum(1).double()
        values[:, [each for each in self._ends if each < values.shape[1]]] = -torch.inf
        return tuple(each.cpu().numpy() for each in (found, rank, values.argmax(1)))

    def _predict(self, rows: Sequence[list[int]]) -> Any:
        """Return logits of rows that are filled up on the right, where nothing sees it."""
        torch, longest = self._torch, max(map(len, rows))
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = torch.tensor(row)
            mask[place, : len(row)] = 1
        device = next(self._module.parameters()).device
        with self._evaluating(), torch.no_grad():
            if self._named:
                found = self._module(input_ids=ids.to(device), attention_mask=mask.to(device))
            else:
                found = self._module(ids.to(device))
        return getattr(found, "logits", found)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        modes = [(each, each.training) for each in self._module.modules()]
        self._module.eval()
        try:
            yield
        finally:
            for each, mode in modes:
                each.training = mode

    def _complete(
        self, rows: Sequence[tuple[list[int], list[int]]], likeliest: Sequence[list[int]]
    ) -> tuple[str, ...]:
        """Return what greedily follows each prompt, as long as its secret.

        Where a completion begins as the secret does, measuring the secret has shown its tokens, up
        to the first that differs: only what follows that one is computed here.
        """
        said, missing = [], []
        for (_, secret), whole in zip(rows, likeliest, strict=True):
            best = whole[:_MOST_TOKENS]
            differs = (at for at, token in enumerate(best) if token != secret[at])
            said.append(best[: next(differs, len(best)) + 1])
            missing.append(len(best) - len(said[-1]))
        follow = self._generate if callable(self._generator) else self._grow
        order = [int(at) for at in np.argsort(missing, kind="stable") if missing[at]]
        for places in self._batches(order):
            prompts = [rows[at][0] + said[at] for at in places]
            found = follow(prompts, missing[places[-1]])
            for at, ids in zip(places, found, strict=True):
                said[at] = said[at] + ids[: missing[at]]
        return tuple(self.tokenizer.decode(ids) for ids in said)

    def _generate(self, prompts: Sequence[list[int]], count: int) -> list[list[int]]:
        """Return this many likeliest tokens after each prompt, by the module's own ``generate``.

        It keeps what was computed of earlier tokens, so that a token costs one place, not all.
        """
        torch, longest = self._torch, max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for place, row in enumerate(prompts):  # filled up on the left: tokens follow on the right
            ids[place, longest - len(row) :] = torch.tensor(row)
            mask[place, longest - len(row) :] = 1
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
        return [[int(token) for token in row] for row in found[:, longest:].tolist()]

    def _grow(self, prompts: Sequence[list[int]], count: int) -> list[list[int]]:
        """Return so many likeliest tokens after each prompt, of a module that only predicts."""
        so_far = [list(prompt) for prompt in prompts]
        for _ in range(count):
            logits = self._predict(so_far)
            last = self._torch.tensor([len(ids) - 1 for ids in so_far], device=logits.device)
            places = self._torch.arange(len(so_far), device=logits.device)
            for ids, token in zip(so_far, logits[places, last].argmax(1).tolist(), strict=True):
                ids.append(token)
        return [ids[len(prompt) :] for ids, prompt in zip(so_far, prompts, strict=True)]


def _list_ends(module: Any) -> list[int]:
    """Return the tokens that end a text for ``generate``, which no completion has."""
    found = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
    return [] if found is None or not hasattr(module, "generate") else np.atleast_1d(found).tolist()


def _takes_mask(module: Any) -> bool:
    """Tell whether a module, or what it wraps, is one of transformers, with named arguments."""
    return getattr(module, "config", None) is not None
