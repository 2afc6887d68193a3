"""The package does not grow unnoticed, and no module is too long to read."""

from tests.size import SOURCE, count_by_package

LIMIT = 67_200  # lines of code; a change may lower it. The aim is in docs/design.md.
LONGEST = 600  # lines of a module, docstrings included


def test_the_package_does_not_grow_unnoticed() -> None:
    assert LIMIT - 500 <= count_by_package().total() <= LIMIT


def test_no_module_is_longer_than_can_be_read() -> None:
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in SOURCE.rglob("*.py")}
    assert {path.name: length for path, length in lengths.items() if length > LONGEST} == {}
