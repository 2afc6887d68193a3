"""Numbers and dates that are spelled as words are read, or named; no word of them is."""

from datetime import date

import numpy as np
import pytest

from epsilometer.errors import InvalidArgument
from epsilometer.files.readers import Column
from epsilometer.files.spellings import read_spelled


def make(*words: str) -> Column:
    return Column.of_words("pay", words, np.arange(len(words)))


def days(*when: tuple[int, int, int]) -> list[float]:
    return [float((date(*each) - date(1970, 1, 1)).days) for each in when]


@pytest.mark.parametrize(
    ("words", "numbers", "said"),
    [
        (("1,169", "950", "2,000,000.5", ""), [1169, 950, 2000000.5, np.nan], "of thousands"),
        (("1 169", "-2 500"), [1169, -2500], "of thousands"),
        (("1'169", "1e3", "NA"), [1169, 1000, np.nan], "of thousands"),
        (("1\u202f169", "12"), [1169, 12], "of thousands"),
        (("1,5", "0,169", "12"), [1.5, 0.169, 12], "decimal commas"),
        (("1.234,5", "-7", "1.000"), [1234.5, -7, 1000], "decimal commas"),
        (("2001-12-31", "1999-01-02", "?"), [*days((2001, 12, 31), (1999, 1, 2)), np.nan], "days"),
        (("2001/2/3", "1999/11/30"), days((2001, 2, 3), (1999, 11, 30)), "days"),
        (("31.12.2001", "1.2.1999"), days((2001, 12, 31), (1999, 2, 1)), "days"),
        (("1.2.1999", "2.3.1999"), days((1999, 2, 1), (1999, 3, 2)), "days"),
        (("12/31/2001", "01/02/1999"), days((2001, 12, 31), (1999, 1, 2)), "days"),
        (("31/12/2001", "01/02/1999"), days((2001, 12, 31), (1999, 2, 1)), "days"),
        (("2001-12-31T12:00", "2001-12-31 18:00:00Z"), [11687.5, 11687.75], "days"),
    ],
)
def test_spelled_numbers_are_read(words: tuple[str, ...], numbers: list[float], said: str) -> None:
    found, note = read_spelled(make(*words))
    assert found.words is None
    np.testing.assert_allclose(found.values, numbers)
    assert note is not None
    assert "'pay'" in note
    assert said in note
    assert not any(word in note for word in words if word)


@pytest.mark.parametrize(
    "words",
    [
        ("low", "high"),
        ("1,5", "1.5"),  # neither spelling fits all
        ("0,169", "1,234,567"),
        ("1,16", "1,169.5"),
        ("12,34,567", "1"),
        ("31/12/2001", "12/31/2001"),
        ("2001-13-45", "2001-01-01"),
        ("1.2.3", "1.2.4"),  # versions
        ("31.12.01", "01.01.99"),  # of which century?
        ("555 12 34", "555 12 35"),
        ("", "NA"),
    ],
)
def test_other_words_stay_words(words: tuple[str, ...]) -> None:
    column = make(*words)
    assert read_spelled(column) == (column, None)


def test_dates_of_either_order_are_refused_by_the_name_of_their_column() -> None:
    with pytest.raises(InvalidArgument, match=r"column 'pay'.*2001-12-31, or drop it: --drop pay"):
        read_spelled(make("01/02/1999", "03/04/2001"))
    same, _ = read_spelled(make("01/01/1999", "02/02/2001"))  # whose orders agree
    assert same.values.tolist() == days((1999, 1, 1), (2001, 2, 2))


def test_columns_that_look_like_numbers_are_named() -> None:
    for words in (
        [f"{i}.{i % 12 + 1}.{i % 90 + 10}" for i in range(40)],
        [f"$ {i}0 each" for i in range(40)],
    ):
        column, note = read_spelled(make(*words))
        assert column.words is not None
        assert note is not None
        assert note.startswith("'pay' looks like numbers or dates, and was read as words.")
    towns = [f"town {i}" for i in range(40)]
    assert read_spelled(make(*towns))[1] is None
