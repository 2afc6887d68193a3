"""The clients and canaries of the federated questions; needs NumPy only."""

from typing import Any

import numpy as np

FEATURES, HIDDEN, CLASSES, BATCH, RATE, CLIP = 64, 66, 10, 20, 0.05, 1.0
SIZE = FEATURES * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES
_NOISE = {"null": 100.0, "known": 0.5}  # 100: ε = 0.03 of both rounds, as good as none


def settings(situation: str) -> dict[str, Any]:
    """Of an audit: who takes part, how often, with how much noise."""
    return {"clients": 30, "canaries": 100, "rounds": 2, "noise": _NOISE[situation]}


def records(count: int) -> list[tuple[Any, Any]]:
    """The records of so many clients: 20 to 60 each."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(20, 60, size=count)
    return [
        (rng.normal(size=(n, FEATURES)).astype(np.float32), rng.integers(CLASSES, size=n))
        for n in sizes
    ]


def ragged_records(count: int) -> list[tuple[Any, Any]]:
    """The records of so many clients of very different sizes: 1 to 150 each, 27 on average."""
    rng = np.random.default_rng(0)
    sizes = np.clip(rng.lognormal(3.0, 0.8, count).astype(np.int64), 1, 150)
    x = rng.standard_normal((int(sizes.sum()), FEATURES), np.float32)
    y, ends = rng.integers(CLASSES, size=len(x)), np.cumsum(sizes)
    return [(x[end - n : end], y[end - n : end]) for n, end in zip(sizes, ends, strict=True)]


def direction(seed: int, canary: int) -> Any:
    """Of a canary, unit norm."""
    drawn = np.random.default_rng([seed, canary]).normal(size=SIZE)
    return drawn / np.linalg.norm(drawn)


def cosines(moved: Any, seed: int) -> list[float]:
    """Of all canaries of an audit with how far the model moved."""
    planted = [direction(seed, canary) for canary in range(settings("known")["canaries"])]
    return (np.stack(planted) @ moved / np.linalg.norm(moved)).tolist()
