"""Measure canaries on a model behind a URL that returns log-probabilities, or text alone."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from epsilometer import _validate
from epsilometer.audits.text.canaries import Canary
from epsilometer.audits.text.measuring import Measured
from epsilometer.engine.service import JsonService, ServiceFailed


def ask_for_tokens(prompt: str, tokens: int) -> Any:
    """Return a completion server's usual request for the log-probabilities of a text.

    ``echo`` makes it repeat the text with a log-probability for each of its tokens.
    """
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 1, "echo": True}


def ask_for_text(prompt: str, tokens: int) -> Any:
    """Return the usual request for a completion of a prompt."""
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0}


def take_tokens(answer: Any) -> list[tuple[str, float | None]]:
    """Take (token, log-probability) pairs from the usual answer; the first token has none."""
    found = answer["choices"][0]["logprobs"]
    return list(zip(found["tokens"], found["token_logprobs"], strict=True))


def take_text(answer: Any) -> str:
    """Take the completion from the usual answer."""
    return str(answer["choices"][0]["text"])


@dataclass(frozen=True, eq=False, kw_only=True)
class TextService(JsonService):
    """Query a language model behind a URL, one canary at a time.

    Guarantees: those of :class:`~epsilometer.engine.service.JsonService`: no answered request is
        repeated, and texts are sent only to this URL.
    Assumes: the service does not learn from requests. It sees all canaries, planted or not, but no
        coin toss.

    Attributes:
        log_probs: Whether it returns log-probabilities of given texts; otherwise only completions
            are scored, which proves far less.
        completions: Whether prompts are completed, to measure memorisation.
        tokens: Largest number of tokens in a completion.
        token_request: ``token_request(text, tokens)`` returns the request for log-probabilities.
        text_request: ``text_request(prompt, tokens)`` returns the request for a completion.
        token_answer: ``token_answer(JSON)`` returns (token, log-probability) pairs of the text.
        text_answer: ``text_answer(JSON)`` returns the completion.
    """

    log_probs: bool = True
    completions: bool = True
    tokens: int = 32
    token_request: Callable[[str, int], Any] = ask_for_tokens
    text_request: Callable[[str, int], Any] = ask_for_text
    token_answer: Callable[[Any], Sequence[tuple[str, float | None]]] = take_tokens
    text_answer: Callable[[Any], str] = take_text

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.whole(1, tokens=self.tokens)

    def check_kept(self, answer: Any) -> None:
        """Refuse an answer in the journal that is neither a text nor numbers."""
        if not isinstance(answer, (str, list)):
            raise TypeError

    def measure(self, canaries: Sequence[Canary]) -> Measured:
        """Query log-probabilities of every secret's tokens, and completions of prompts."""
        numbers, said = [], []
        with self.ask_in_order() as ask:
            for canary in canaries:
                if self.log_probs:
                    body = self.write_body(self.token_request(canary.text, 0))
                    found = ask(body, functools.partial(self._read_tokens, canary=canary))
                    numbers.append(np.array([-math.inf if x is None else x for x in found]))
                if self.completions or not self.log_probs:
                    body = self.write_body(self.text_request(canary.prompt, self.tokens))
                    said.append(str(ask(body, self._read_text)))
        return Measured(log_probs=tuple(numbers), completions=tuple(said))

    def _read_tokens(self, answer: Any, canary: Canary) -> list[float | None]:
        """Return the log-probabilities of the tokens that extend beyond the prompt."""
        with self._explain():
            pairs = [(str(token), value) for token, value in self.token_answer(answer)]
            found, position = [], 0
            for token, value in pairs:
                position += len(token)
                if position > len(canary.prompt):
                    found.append(None if value is None or not math.isfinite(value) else value)
            if position < len(canary.text):
                raise ValueError("fewer letters than were sent")
        return found

    def _read_text(self, answer: Any) -> str:
        with self._explain():
            return str(self.text_answer(answer))

    @contextmanager
    def _explain(self) -> Iterator[None]:
        """Explain which form of answer was expected."""
        try:
            yield
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise ServiceFailed(
                f"Expected tokens or text in the answer of {self.where}, found none "
                f"({type(error).__name__}) {self.so_far}. Give token_answer= and text_answer=, "
                "functions that find them; log_probs=False where it gives text alone."
            ) from error
