"""Recognise texts of training records in a model: whole cells, their words and n-grams."""

import re
from collections import Counter, defaultdict
from typing import Any

import numpy as np

_SCANNED = 2000  # texts that are searched for everywhere
_LONG = 64  # characters from which a text is searched for others
_LETTERS = 3  # characters up to which a text may match by chance
_LISTED = 3  # texts from which a list may be a vocabulary
_KNOWN = 0.9  # share of a vocabulary that is from the records


class TextIndex:
    """Index of the texts of records, to find them in a model.

    Example:
        >>> index = TextIndex(np.array(["mild cough", "mild fever", "mild pain of ann"]))
        >>> index.count_parts({"mild", "cough", "fever", "pain", "ann"})
        4
    """

    def __init__(self, X: Any) -> None:  # noqa: N803
        rows = _list_texts(X)
        cells = Counter(cell for row in rows for cell in set(row))
        self._once = {cell for cell, count in cells.items() if count == 1}
        free = any(" " in cell.strip() for cell in cells)
        self._texts = [" " + " | ".join(row).lower() + " " for row in rows] if free else []
        self._plain = [" ".join(re.findall(r"\w+", text)) for text in self._texts]
        self._by_word: dict[str, set[int]] = defaultdict(set)
        for record, text in enumerate(self._plain):
            for word in text.split():
                self._by_word[word].add(record)

    def count_own(self, texts: set[str]) -> int:
        """Return how many cells of one record alone are among texts, or part of one."""
        whole = len(texts & self._once)
        long = [text for text in texts if len(text) > _LONG and text not in self._once]
        inside = sum(
            1
            for cell in ([*self._once][:_SCANNED] if long else ())
            if len(cell) > _LETTERS and any(cell in text for text in long)
        )
        return max(whole, inside)

    def count_in_bytes(self, content: bytes) -> int:
        """Return how many cells of one record alone a file contains."""
        cells = [cell for cell in self._once if len(cell) > _LETTERS]
        return sum(cell.encode() in content for cell in cells[:_SCANNED])

    def count_parts(self, texts: set[str]) -> int:
        """Return how many words or n-grams of a list occur in one record alone.

        A list counts only if nearly all of it comes from records, as in a vocabulary.
        """
        if not self._texts or len(texts) < _LISTED:
            return 0
        some = sorted(texts)[:_SCANNED]
        counts = [self._count_records(text.lower()) for text in some]
        if np.mean([count > 0 for count in counts]) < _KNOWN:
            return 0
        return round(len(texts) / len(some) * sum(count == 1 for count in counts))

    def _count_records(self, text: str) -> int:
        """Return in how many records a text occurs: 0, 1, or 2 for several."""
        words = re.findall(r"\w+", text)
        known = bool(words) and all(word in self._by_word for word in words)
        there = set.intersection(*(self._by_word[w] for w in words)) if known else None
        if there is not None and len(there) <= 1:
            return len(there)
        count = 0
        for record in range(len(self._texts)) if there is None else there:
            count += text in self._texts[record] or text in self._plain[record]
            if count == 2:
                return count
        return 2 if there and not count else count


def _list_texts(X: Any) -> list[list[str]]:  # noqa: N803
    """Return the texts of each record."""
    if hasattr(X, "tocsr"):
        return []
    table = X.to_numpy() if hasattr(X, "to_numpy") else np.asarray(X)
    if table.dtype.kind not in "OUS":
        return []
    rows = table if table.ndim > 1 else table[:, None]
    return [[str(cell) for cell in row if isinstance(cell, str)] for row in rows]
