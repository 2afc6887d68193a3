import re
import unicodedata

import pytest

from epsilometer.references import BIBLIOGRAPHY


@pytest.mark.parametrize("key", BIBLIOGRAPHY)
def test_a_key_is_first_author_and_year(key: str) -> None:
    found = re.fullmatch(r"([a-z]+)(\d{4})", key)
    assert found
    author, year = found.groups()
    text = BIBLIOGRAPHY[key]
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    assert re.sub(r"[^a-z]", "", plain).startswith(author)
    assert text.endswith(f"{year}.")


def test_the_bibliography_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        BIBLIOGRAPHY["me2030"] = "Me."  # type: ignore[index]
