"""People read the words of the field: docs/terms.toml has those to avoid, and these find them."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("terms", ROOT / "docs" / "terms.py")
assert SPEC is not None
assert SPEC.loader is not None
terms = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(terms)


@pytest.mark.slow  # make check does it too
def test_no_private_word_is_left() -> None:
    assert terms.check_words() == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It was mended.", ["mended"]),
        ("Oftener than one file a question.", ["Oftener", "one file a question"]),
        ("The lister is told what happens", ["is told what"]),
        ("20 steps an epoch", ["20 steps an epoch"]),
        ("A process a core", ["A process a core"]),
        ("It draws once an epoch, 20 runs a side.", ["once an epoch", "runs a side"]),
        ("a play's score and the promise", ["a play's", "the promise"]),
        ("seed: Of the split", ["seed: Of the"]),
        ("A coin of its own, drawn by chance.", ["A coin of its own", "drawn by chance"]),
        ("the split: of the data, a list of their names", []),
        ("recommended, 20 steps per epoch, told apart, unless told otherwise", []),
        ("of a side, what was promised, replays and displays", []),
        ("ε = 6 with a record", []),
        ("An estimate is no bound by so few data sets.", ["data sets", "is no bound", "by so few"]),
        ("It goes on with what is no number.", ["goes on with", "is no number"]),
        ("There is no limit; it depends on words, is not text.", []),
        ("What was released less the sum; unless the sum is 0", ["less the sum"]),
    ],
)
def test_words_are_found_and_others_spared(text: str, found: list[str]) -> None:
    assert sorted(word for _, word, _ in terms.find_terms(text)) == sorted(found)


def test_texts_of_the_package_are_held_to_more_words() -> None:
    for text in ("The null law is known.", "Nobody paid for it.", "It is taken to be normal."):
        assert list(terms.find_terms(text, shown=True))
        assert not list(terms.find_terms(text))
    assert not list(terms.find_terms("by law, placed, mistaken for one", shown=True))


def test_everything_that_people_read_is_read() -> None:
    read = {name for name, _, _ in terms.list_texts()}
    assert {"README.md", "CHANGELOG.md", "docs/index.md", "docs/faq.md"} <= read
    assert {"src/epsilometer/report/texts.toml", "src/epsilometer/cli/options.py"} <= read
    assert {"src/epsilometer/stats/derivations.toml", "src/epsilometer/zoo/catalogue.csv"} <= read
    assert sum(name.startswith("src/") for name in read) > 200
    assert not any(name.startswith("src/epsilometer/zoo/sources") for name in read)


def test_code_is_not_read_and_lines_stay() -> None:
    page = "`anew`\n\n```python\nanew\n```\n\nanew\n    anew\n"
    assert [line for line, _, _ in terms.find_terms(terms._blank_code(page))] == [7]


def test_patterns_are_patterns_and_say_something_instead() -> None:
    for pattern, instead in terms.read_terms(shown=True).items():
        re.compile(pattern)
        assert instead.strip()
