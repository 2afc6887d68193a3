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

    def measure(self, canaries: Sequence[Canary]) -> Measured:
        """Return ln p and rank of all tokens of secrets, and completions of prompts."""
        log_probs: list[NDArray[Any]] = []
        ranks: list[NDArray[Any]] = []
        for rows in self._batches([self._split(canary) for canary in canaries]):
            found, rank = self._read(self._predict([one + two for one, two in rows]), rows)
            ends = np.cumsum([len(secret) for _, secret in rows])[:-1]
            log_probs += np.split(found, ends)
            ranks += np.split(rank, ends)
        completions = self._complete(canaries) if self._completions else ()
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

    def _batches(self, rows: list[Any]) -> Iterator[list[Any]]:
        for start in range(0, len(rows), self._batch_size):
            yield rows[start : start + self._batch_size]

    def _read(
        self, logits: Any, rows: Sequence[tuple[list[int], list[int]]]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return ln p and rank of the tokens of all secrets, one after the other."""
        torch = self._torch
        at = [
            (place, len(prompt) - 1 + step, token)
            for place, (prompt, secret) in enumerate(rows)
            for step, token in enumerate(secret)
        ]
        row, place, token = torch.tensor(at, device=logits.device).reshape(-1, 3).T
        values = logits[row, place].float()
        own = values.gather(1, token[:, None])
        found = (own - values.logsumexp(1, keepdim=True))[:, 0]
        rank = (values > own).sum(1)
        return found.double().cpu().numpy(), rank.double().cpu().numpy()

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

    def _complete(self, canaries: Sequence[Canary]) -> tuple[str, ...]:
        """Return what greedily follows each prompt, as long as its secret."""
        said: list[str] = []
        for rows in self._batches([self._split(canary) for canary in canaries]):
            prompts = [prompt for prompt, _ in rows]
            wanted = [min(_MOST_TOKENS, len(secret)) for _, secret in rows]
            follow = self._generate if callable(self._generator) else self._grow
            said += [
                self.tokenizer.decode(ids[:many])
                for ids, many in zip(follow(prompts, max(wanted)), wanted, strict=True)
            ]
        return tuple(said)

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


def _takes_mask(module: Any) -> bool:
    """Tell whether a module, or what it wraps, is one of transformers, with named arguments."""
    return getattr(module, "config", None) is not None
