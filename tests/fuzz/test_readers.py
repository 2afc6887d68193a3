"""Readers, each with fifty damaged files, and with all that ever were too much for one.

``make fuzz`` tries many more. What it finds is mended, and its input kept in ``found/``.
"""

from pathlib import Path

import pytest

from tests.fuzz.readers import READERS
from tests.fuzz.trying import Tally, input_of, one, tried

FOUND = Path(__file__).parent / "found"
KEPT = sorted(path for path in FOUND.glob("*/*") if path.parent.name in READERS)
SEED = 20_000_000  # other inputs than those of ``make fuzz``


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.in_turn(3)
def test_damaged_files_are_read_or_refused_in_words(reader: str) -> None:
    tally = tried(reader, seed=SEED, inputs=50)
    assert not tally.found, tally
    assert tally.read
    # A linter and a history tell what is wrong, and go on.
    assert tally.refused or reader.startswith(("lint-", "history-"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_once_too_much_is_not_any_more(path: Path, tmp_path: Path) -> None:
    tally = Tally(path.parent.name)
    READERS[tally.reader].read(READERS[tally.reader].valid()[0], tmp_path)
    one(READERS[tally.reader], path.read_bytes(), tmp_path, tally, 0)
    assert not tally.found, tally


def test_inputs_follow_from_their_number() -> None:
    for reader in ("scores-csv", "scores-npz", "results", "run-directory"):
        assert input_of(reader, 50, seed=0) == input_of(reader, 50, seed=0)
        assert input_of(reader, 50, seed=0) != input_of(reader, 50, seed=1)
