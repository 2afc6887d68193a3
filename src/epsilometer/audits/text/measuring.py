"""Measure a model's predictions of canaries, and turn them into attack scores.

A score is higher for canaries that look trained on. Each is computed from the tokens of the secret
alone, given the prompt.
"""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import BadZipFile

import numpy as np

from epsilometer import _validate
from epsilometer._files import read_plain, write_whole
from epsilometer.audits.text.canaries import Canary
from epsilometer.core.registry import Registry
from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.types import FloatArray, IntArray

MEASUREMENTS = "measurements.npz"
NEAR = 0.8  # similarity of letters from which on a completion is near
_LARGEST = 1 << 30
_CUT = re.compile("\ufffd{1,3}$")  # bytes of an incomplete character
_LEAST_LIKELY = 0.2  # share of tokens that min-k takes (Shi et al. 2024)


@dataclass(frozen=True, eq=False, kw_only=True)
class Measured:
    """Hold a model's predictions for every canary: its tokens, and completions of prompts.

    Attributes:
        log_probs: Log-probabilities of the tokens of each canary's secret; empty if the model does
            not return them.
        ranks: For each of these tokens, how many tokens are likelier; may also be empty.
        completions: The text that follows each prompt; may also be empty.
    """

    log_probs: tuple[FloatArray, ...] = ()
    ranks: tuple[FloatArray, ...] = ()
    completions: tuple[str, ...] = ()

    def measure(self, canaries: Sequence[Canary]) -> "Measured":
        """Return itself: these canaries were measured before."""
        known = [len(part) for part in (self.log_probs, self.ranks, self.completions) if part]
        if not known or set(known) != {len(canaries)}:
            raise InvalidArgument(
                f"Expected measurements of {len(canaries):,} canaries, got "
                f"{known[0] if known else 0:,}."
            )
        return self


Score: TypeAlias = Callable[[Measured, Measured | None, Sequence[Canary]], FloatArray]


def score_loss(
    model: Measured, reference: Measured | None, canaries: Sequence[Canary]
) -> FloatArray:
    """Score by the mean log-probability of the secret: minus its loss (Yeom et al. 2018)."""
    return _average("loss", model.log_probs)


def score_against_reference(
    model: Measured, reference: Measured | None, canaries: Sequence[Canary]
) -> FloatArray:
    """Score by the mean log-likelihood ratio of the secret, to a reference model."""
    if reference is None:
        raise InvalidArgument(
            "Expected a reference model for the score 'reference', got none. Give reference=, the "
            "model before fine-tuning, or leave this score out."
        )
    after, before = (_average("reference", each.log_probs) for each in (model, reference))
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(after - before, nan=-np.inf, posinf=np.inf, neginf=-np.inf)


def score_rank(
    model: Measured, reference: Measured | None, canaries: Sequence[Canary]
) -> FloatArray:
    """Score by the ranks of the secret's tokens: minus the mean ln(1 + rank)."""
    return _average("rank", tuple(-np.log1p(ranks) for ranks in model.ranks))


def score_least_likely(
    model: Measured, reference: Measured | None, canaries: Sequence[Canary]
) -> FloatArray:
    """Score by the mean ln p of the least likely fifth of the tokens (min-k, Shi et al. 2024)."""
    lowest = tuple(
        np.sort(tokens)[: max(1, round(_LEAST_LIKELY * tokens.size))] for tokens in model.log_probs
    )
    return _average("min-k", lowest)


def score_completion(
    model: Measured, reference: Measured | None, canaries: Sequence[Canary]
) -> FloatArray:
    """Score by how much of the secret the prompt's completion repeats; needs only text."""
    if not model.completions:
        raise InvalidArgument("Expected completions for the score 'completion', got none.")
    return compare_texts([canary.secret for canary in canaries], model.completions)


SCORES: Registry[Score] = Registry(
    "text_scores",
    {
        "loss": f"{__name__}:score_loss",
        "reference": f"{__name__}:score_against_reference",
        "rank": f"{__name__}:score_rank",
        "min-k": f"{__name__}:score_least_likely",
        "completion": f"{__name__}:score_completion",
    },
)


def choose_scores(
    names: Sequence[str] | None, model: Measured, reference: Measured | None
) -> tuple[str, ...]:
    """Return the requested scores; by default the one that usually proves most."""
    if names is None:
        if not model.log_probs:
            return ("completion",)
        return ("loss",) if reference is None else ("reference",)
    unknown = [name for name in names if name not in SCORES]
    if unknown or not names or len(set(names)) < len(names):
        raise InvalidArgument(
            f"Expected scores among {', '.join(SCORES)}, each once, got {_validate.listed(names)}."
        )
    return tuple(names)


def compare_texts(secrets: Sequence[str], said: Sequence[str]) -> FloatArray:
    """Return the similarity of each text's beginning to its secret: 1 if they are equal.

    One minus the edit distance of letters over the length of the secret, at least 0.

    Example:
        >>> compare_texts(["abcd", "abcd"], ["abcd and more", "abxd"])
        array([1.  , 0.75])
    """
    lengths, distances = _measure_distances(secrets, said)
    last = distances[np.arange(lengths.size), lengths]
    return np.asarray(1 - np.minimum(last, lengths) / np.maximum(lengths, 1))


def bound_similarity(secrets: Sequence[str], said: Sequence[str]) -> FloatArray:
    """Return the largest similarity to its secret of any text with each of these beginnings.

    Example:
        >>> bound_similarity(["abcd", "abcd"], ["a", "xy"])
        array([1. , 0.5])
    """
    lengths, distances = _measure_distances(secrets, [_CUT.sub("", each) for each in said])
    beyond = np.arange(distances.shape[1]) > lengths[:, None]
    least = np.where(beyond, distances.max(initial=0) + 1, distances).min(1)
    return np.asarray(1 - np.minimum(least, lengths) / np.maximum(lengths, 1))


def _measure_distances(secrets: Sequence[str], said: Sequence[str]) -> tuple[IntArray, IntArray]:
    """Return lengths of secrets, and edit distances of each text to all prefixes of its secret.

    Columns of the second are lengths of prefixes. Texts are cut to the length of their secret.
    """
    wanted = [each.strip() for each in secrets]
    found = [text.lstrip()[: len(secret)] for secret, text in zip(wanted, said, strict=True)]
    letters, others = _list_letters(wanted), _list_letters(found)
    places = np.arange(letters.shape[1] + 1)
    distances = np.tile(places, (len(wanted), 1))
    sizes = np.array([len(each) for each in found], np.int64)
    for number in range(others.shape[1]):
        row = np.empty_like(distances)
        row[:, 0] = number + 1
        changed = distances[:, :-1] + (letters != others[:, number, None])
        np.minimum(distances[:, 1:] + 1, changed, out=row[:, 1:])
        row = np.minimum.accumulate(row - places, axis=1) + places  # letters that were inserted
        distances = np.where((number < sizes)[:, None], row, distances)
    return np.array([len(each) for each in wanted], np.int64), distances


def _list_letters(texts: Sequence[str]) -> IntArray:
    """Return the letters of texts as one table; -1 after the end of a text."""
    table = np.full((len(texts), max(map(len, texts), default=0)), -1, np.int64)
    for row, text in zip(table, texts, strict=True):
        row[: len(text)] = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.int32)
    return table


def _average(name: str, tokens: tuple[FloatArray, ...]) -> FloatArray:
    """Return the mean over tokens; a nan counts as not learned, and scores lowest."""
    if not tokens:
        raise InvalidArgument(
            f"Expected a model that gives log-probabilities for the score {name!r}, got text "
            "alone. Take the score 'completion'."
        )
    means = np.array([each.mean() if each.size else -np.inf for each in tokens], np.float64)
    return np.where(np.isnan(means), -np.inf, means)


def save_measured(folder: Path, **named: Measured | None) -> None:
    """Write measurements of models next to the canaries, readable by the owner only."""
    arrays: dict[str, Any] = {}
    for name, each in named.items():
        if each is None:
            continue
        for part in ("log_probs", "ranks"):
            rows = getattr(each, part)
            if rows:
                arrays[f"{name}_{part}"] = np.concatenate([*rows, np.zeros(0)])
                arrays[f"{name}_{part}_sizes"] = np.array([row.size for row in rows])
        if each.completions:
            arrays[f"{name}_completions"] = np.array(each.completions)
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    write_whole(folder / MEASUREMENTS, packed.getvalue())


def load_measured(folder: Path, name: str) -> Measured | None:
    """Read measurements of a model; None if there are none of this name."""
    parts: dict[str, Any] = {}
    with open_arrays(folder / MEASUREMENTS) as kept:
        for part in ("log_probs", "ranks"):
            if f"{name}_{part}" in kept:
                ends = np.cumsum(kept[f"{name}_{part}_sizes"])[:-1]
                parts[part] = tuple(np.split(kept[f"{name}_{part}"], ends))
        if f"{name}_completions" in kept:
            parts["completions"] = tuple(map(str, kept[f"{name}_completions"]))
    return Measured(**parts) if parts else None


@contextmanager
def open_arrays(path: Path) -> Iterator[Any]:
    """Open arrays that are stored next to canaries; explain missing or damaged files."""
    try:
        with np.load(io.BytesIO(read_plain(path, largest=_LARGEST)), allow_pickle=False) as kept:
            yield kept
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
        raise UnreadableFile(
            f"Expected measurements of canaries in {str(path)!r}, found none that can be read. "
            "Audit the model once from Python, with the folder of plant_texts."
        ) from error
