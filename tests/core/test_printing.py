"""Text from outside cannot control a terminal, a line, a table or a spreadsheet."""

import csv
import io
import json
import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsilometer.core.printing import one_line, printable, to_csv_text, to_json_text

COMMANDS = re.compile(r"::\w|##\[|##vso\[", re.IGNORECASE)
_CONTROLLING = ("Cc", "Cf", "Cs", "Zl", "Zp")


def is_unsafe(letter: str) -> bool:
    return unicodedata.category(letter) in _CONTROLLING and letter not in "\t\n"


def test_every_controlling_character_is_replaced_and_no_other() -> None:
    letters = [chr(i) for i in range(sys.maxunicode + 1)]
    for letter, shown in zip(letters, printable("".join(letters)), strict=True):
        if is_unsafe(letter):
            assert shown == "\ufffd", hex(ord(letter))
        elif unicodedata.category(letter) != "Cn":  # not assigned yet: a later Unicode may
            assert shown == letter, hex(ord(letter))


@pytest.mark.parametrize(
    "text",
    [
        "\x1b]52;c;bWFsaWNl\x07",  # writes the clipboard
        "\x1b[2J\x1b[HNOT REFUTED\x1b[8m",  # clears the screen, forges a verdict, hides the rest
        "\x9b2J\x9d0;title\x9c",  # the same by C1
        "a\rNOT REFUTED",
        "a\nNOT REFUTED",
        "a\u2028NOT REFUTED",
        "a\x85NOT REFUTED",
        "\u202etxt.exe",
        "\u2066\u2069\u200b\ufeff\U000e0041",
        "\ud800",
        "::add-mask::x ::stop-commands::y",
        "a##[add-path]/tmp ##VSO[task.setvariable]b",
    ],
)
def test_what_controls_a_terminal_becomes_one_harmless_line(text: str) -> None:
    line = one_line(text)
    assert len(line.splitlines()) <= 1
    assert not any(map(is_unsafe, line))
    assert not COMMANDS.search(line)


@given(st.text(), st.integers(1, 50))
def test_a_line_is_short_safe_and_stays_as_it_is(text: str, longest: int) -> None:
    line = one_line(text, longest)
    assert len(line) <= longest
    assert not any(map(is_unsafe, line))
    assert "\n" not in line
    assert "\t" not in line
    assert one_line(line, longest) == line


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_is_safe_to_show_and_read_back_as_it_was(plain: object) -> None:
    text = to_json_text(plain)
    assert not any(map(is_unsafe, text))
    assert json.loads(text) == plain


def test_json_of_a_name_in_no_encoding_is_laid_out_as_any_other() -> None:
    plain = {"path": "t\udcff.py", "none": [], "some": [1, {"a": None, "##[b]": {}}]}
    text = to_json_text(plain)
    assert text == to_json_text({**plain, "path": "t.py"}).replace("t.py", "t\\udcff.py")
    assert json.loads(text) == plain


def test_json_in_a_log_is_no_command() -> None:
    text = to_json_text({"a": "##[add-path]x", "b": "##vso[x]"})
    assert "##" not in text
    assert json.loads(text) == {"a": "##[add-path]x", "b": "##vso[x]"}


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "|", "%", " =", "\t=", "\r=", "\n@"])
def test_no_cell_begins_a_formula(start: str) -> None:
    text = to_csv_text(("name", "number"), [(f"{start}cmd()", -1.5), ("-1.5", 2)])
    _, hostile, plain = csv.reader(io.StringIO(text))
    assert hostile[0][0] in "'\ufffd"
    assert hostile[1] == "-1.5"
    assert plain == ["-1.5", "2"]


@given(st.lists(st.text(), min_size=1))
def test_a_cell_stays_one_cell(cells: list[str]) -> None:
    read = list(csv.reader(io.StringIO(to_csv_text(cells, [cells]))))
    assert [len(row) for row in read] == [len(cells)] * 2
