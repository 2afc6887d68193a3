"""Ask a prediction service over HTTP for samples of its predictions."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.audits.posterior.forms import check_probabilities
from epsilometer.engine.service import JsonService, ServiceFailed
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray


def ask_for_samples(x: FloatArray, samples: int) -> Any:
    """Return the usual request: ``{"features": …, "samples": …}``."""
    return {"features": x.tolist(), "samples": samples}


def take_probabilities(answer: Any) -> ArrayLike:
    """Read probabilities from an answer ``{"probabilities": [[…], …]}``, one row per sample."""
    found: ArrayLike = answer["probabilities"]
    return found


@dataclass(frozen=True, eq=False, kw_only=True)
class HttpService(JsonService):
    """A prediction service that answers a POST of JSON with probabilities.

    Guarantees: those of :class:`~epsilometer.engine.service.JsonService`. An answer without valid
        probabilities, or with another number of classes, raises an error and is not kept.
    Assumes: the service draws every answer independently. It has its own randomness: ``rng`` is
        not used.

    Attributes:
        classes: Number of classes; None: taken from the first answer.
        unit: Unit to which the service rounds, if it does: sums may miss 1 by that much.
        at_once: Samples per request; None: all in one.
        request: ``request(x, samples)`` returns what is sent as JSON.
        answer: ``answer(JSON)`` returns the probabilities in a response, ``(samples, classes)``.
    """

    classes: int | None = None
    unit: float | None = None
    at_once: int | None = None
    request: Callable[[FloatArray, int], Any] = ask_for_samples
    answer: Callable[[Any], ArrayLike] = take_probabilities

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("classes", self.classes), ("at_once", self.at_once)):
            if value is not None:
                _validate.whole(1, **{name: value})

    def check_kept(self, answer: Any) -> None:
        """Refuse an answer in the journal that has no row of probabilities."""
        len(answer[0])

    def predict(self, x: ArrayLike, samples: int, rng: np.random.Generator) -> FloatArray:
        """Predict from answers in the journal first, then ask the service.

        Raises:
            ServiceFailed: All tries failed, or the service refused or changed its classes. Call
                again, in this process or another, to resume.
        """
        _validate.whole(1, samples=samples)
        features = np.asarray(x)
        drawn = []
        with self.ask_in_order() as ask:
            left = samples
            while left:
                some = min(left, self.at_once or left)
                body = self.write_body(self.request(features, some))
                answered = ask(body, functools.partial(self._read, samples=some))
                drawn.append(self._check(answered, some))
                left -= some
        return np.concatenate(drawn)

    def _read(self, said: Any, samples: int) -> Any:
        try:
            given = self.answer(said)
        except (KeyError, TypeError, IndexError) as error:
            raise ServiceFailed(
                f"Expected probabilities in the answer of {self.where}, found none "
                f"({type(error).__name__}: {self.shorten(str(error))}) {self.so_far}. Give "
                "answer=, a function that finds them."
            ) from error
        return self._check(given, samples).tolist()

    def _check(self, given: Any, samples: int) -> FloatArray:
        kept = next(iter(self._journal.answers.values()), None)
        classes = self.classes or (None if kept is None else len(kept[0]))
        try:
            return check_probabilities(given, samples, classes, unit=self.unit)
        except InvalidArgument as error:
            raise ServiceFailed(
                f"{error} So {self.where} answered {self.so_far}. Was another model put in its "
                "place? Each model needs its own journal."
            ) from error
