"""Measure how long a folder of audits takes to be listed, the first time and after.

See docs/history.md.

python benchmarks/history.py
"""

import tempfile
import time
from pathlib import Path

import numpy as np
from sizes import choose_size

import epsilometer as em

RESULTS = choose_size(10_000, 20)


def main() -> None:
    """Print both, and their ratio."""
    text = em.audit(em.Runs(_play, runs=2_000), delta=1e-5, engine=em.InProcess()).to_json()
    with tempfile.TemporaryDirectory() as home:
        for number in range(RESULTS):
            Path(home, f"{number}.json").write_text(text, "utf-8")
        first, after = listed(home), listed(home)
    print(
        f"{RESULTS:,} audits of {len(text) / 1000:.1f} KB: {first:.1f} s of CPU the first time, "
        f"{after:.1f} s after, {first / after:.1f} times as fast."
    )


def _play(runs: int, rng: np.random.Generator) -> em.Scores:
    return em.Scores(inside=rng.normal(1, 1, runs), outside=rng.normal(0, 1, runs))


def listed(folder: str) -> float:
    start = time.process_time()
    found = em.History(folder)
    assert len(found.entries) == RESULTS
    return time.process_time() - start


if __name__ == "__main__":
    main()
