import re
import unicodedata
from pathlib import Path

import pytest

import epsilometer
from epsilometer.core.references import BIBLIOGRAPHY


@pytest.mark.parametrize("key", BIBLIOGRAPHY)
def test_a_key_is_first_author_and_year(key: str) -> None:
    found = re.fullmatch(r"([a-z]+)(\d{4})", key)
    assert found
    author, year = found.groups()
    text = BIBLIOGRAPHY[key]
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    assert re.sub(r"[^a-z]", "", plain).startswith(author)
    assert text.endswith(f"{year}.")


@pytest.mark.parametrize("key", BIBLIOGRAPHY)
def test_what_is_listed_is_cited_somewhere(key: str) -> None:
    root = Path(epsilometer.__file__).parents[2]
    every = (path for place in ("src", "reproductions") for path in (root / place).rglob("*.py"))
    sources = [path for path in every if path.name != "references.py"]
    assert any(f'"{key}"' in path.read_text("utf-8") for path in sources)


def test_the_bibliography_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        BIBLIOGRAPHY["me2030"] = "Me."  # type: ignore[index]
