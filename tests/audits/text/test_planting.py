"""Canaries are planted by coins, texts and coins stay private, and records keep their order."""

import stat
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

import epsilometer as em
from epsilometer.audits.text.canaries import KINDS, TextCanaries, WordChain
from epsilometer.audits.text.measuring import Measured
from epsilometer.errors import InvalidArgument, UnreadableFile

FLAKE = 1e-6
TEXTS = ["the cat sees a stone", "a dog finds the river", "the bird wants a leaf"] * 5


class Letters:
    """A tokenizer of single letters, and of words in angle brackets."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))

    def get_vocab(self) -> dict[str, int]:
        return {chr(at): at for at in range(33, 127)}


class Contrary:
    """A model that finds the letters of the end of the alphabet unlikely."""

    def find_unlikely(self, prompts: Any, count: int) -> list[list[str]]:
        return [list("zyx")[:count] for _ in prompts]


def plant(count: int = 20, **more: Any) -> Any:
    return em.plant_texts(TEXTS, canaries=em.TextCanaries(count=count), **more)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_made_and_planted(kind: Any) -> None:
    wanted = em.TextCanaries(count=30, kind=kind, prompt=3)
    planted = em.plant_texts(TEXTS, canaries=wanted, tokenizer=Letters(), model=Contrary())
    texts = [canary.text for canary in planted.canaries]
    assert len(texts) == 30
    assert all(canary.prompt.strip() and canary.secret for canary in planted.canaries)
    chosen = Counter(text for text, coin in zip(texts, planted.included, strict=True) if coin)
    assert Counter(planted.dataset) == chosen + Counter(TEXTS)
    assert [text for text in planted.dataset if text not in chosen] == TEXTS
    assert bool(planted.new_tokens) == (kind == "new")


def test_rare_tokens_are_rarer_than_the_rest() -> None:
    wanted = em.TextCanaries(count=10, kind="rare")
    planted = em.plant_texts(TEXTS, canaries=wanted, tokenizer=Letters())
    assert not {canary.secret for canary in planted.canaries} & set("".join(TEXTS))


def test_coins_are_fair_and_depend_on_the_seed_alone() -> None:
    planted = plant(2_000)
    low, high = scipy.stats.binom.ppf([FLAKE, 1 - FLAKE], 2_000, 0.5)
    assert low <= planted.included.sum() <= high
    other = em.plant_texts(
        ["quite another text"], canaries=em.TextCanaries(count=2_000, kind="new")
    )
    assert np.array_equal(planted.included, other.included)
    assert not np.array_equal(planted.included, plant(2_000, seed=1).included)


def test_twins_have_one_in_and_one_held_out() -> None:
    planted = plant(200, design="paired")
    assert (planted.included[::2] ^ planted.included[1::2]).all()
    with pytest.raises(InvalidArgument, match="even"):
        plant(21, design="paired")


def test_copies_are_planted_as_often_as_asked() -> None:
    wanted = em.TextCanaries(count=40, repetitions=3)
    planted = em.plant_texts(TEXTS, canaries=wanted)
    counts = Counter(planted.dataset)
    for canary, coin in zip(planted.canaries, planted.included, strict=True):
        assert counts[canary.text] == 3 * coin


def test_texts_and_coins_are_for_their_owner_alone(tmp_path: Path) -> None:
    planted = plant(out=tmp_path / "private")
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o700
    for path in (tmp_path / "private").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = em.load_planted(tmp_path / "private")
    assert again.canaries == planted.canaries
    assert np.array_equal(again.included, planted.included)
    assert again.wanted == planted.wanted
    for canary in planted.canaries:
        assert canary.secret not in repr(planted) + str(again)


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2}', '{"format": 1, "canaries": 3}'])
def test_damaged_canaries_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "canaries.json").write_text(text, "utf-8")
    with pytest.raises(UnreadableFile, match="canaries"):
        em.load_planted(tmp_path)


def test_a_data_set_of_torch_gets_records_like_its_own() -> None:
    class Records:
        def __len__(self) -> int:
            return len(TEXTS)

        def __getitem__(self, place: int) -> dict[str, Any]:
            return {"text": TEXTS[place], "length": len(TEXTS[place])}

    wanted = em.TextCanaries(count=20)
    planted = em.plant_texts(
        Records(), canaries=wanted, make_row=lambda text: {"text": text, "length": len(text)}
    )
    rows = [planted.dataset[place] for place in range(len(planted.dataset))]
    assert len(rows) == len(TEXTS) + planted.included.sum()
    assert all(row["length"] == len(row["text"]) for row in rows)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"canaries": ()}, "canaries"),
        ({"canaries": 3}, "canaries"),
        ({"design": "none"}, "design"),
        ({"seed": -1}, "seed"),
        ({"like": []}, "like="),
        ({"canaries": TextCanaries(count=4, kind="rare")}, "tokenizer"),
        ({"canaries": TextCanaries(count=4, kind="unlikely")}, "model"),
        ({"canaries": TextCanaries(count=4, kind="rare"), "tokenizer": object()}, "tokenizer"),
    ],
)
def test_bad_calls_say_what_was_expected(more: dict[str, Any], said: str) -> None:
    with pytest.raises((InvalidArgument, TypeError), match=said):
        em.plant_texts(TEXTS, **{"canaries": TextCanaries(count=4), **more})


@pytest.mark.parametrize("data", ["a text", 7, iter(TEXTS), [1, 2], {"train": TEXTS}])
def test_bad_data_sets_are_refused(data: Any) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        em.plant_texts(data, canaries=TextCanaries(count=4))


@pytest.mark.parametrize(
    "more", [{"kind": "none"}, {"count": 1}, {"prompt": 0}, {"length": 0}, {"repetitions": 0}]
)
def test_bad_canaries_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(more))):
        TextCanaries(**more)


def test_a_chain_of_words_knows_pairs_of_words_alone() -> None:
    chain = WordChain(["a b c", "b d"])
    words = chain.draw(50, np.random.default_rng(0))
    assert set(pairwise(words)) <= {
        *(("a", "b"), ("b", "c"), ("b", "d")),
        *(("c", "a"), ("c", "b"), ("d", "a"), ("d", "b")),
    }


def test_forecast_says_reach_and_power_before_training() -> None:
    planted = plant(400)
    forecast = planted.forecast(1.0, delta=1e-5)
    assert forecast.reach > 4
    assert forecast.kinds[0].power is not None
    assert 1 < forecast.kinds[0].power < np.inf
    assert "beyond" in str(planted.forecast(9.0, delta=1e-5))
    with pytest.raises(InvalidArgument, match="delta"):
        planted.forecast()


@pytest.mark.parametrize("more", [{}, {"design": "paired"}, {"seed": 3}])
def test_forecast_is_what_the_audit_says_of_itself(more: dict[str, Any]) -> None:
    wanted = (TextCanaries(count=100), TextCanaries(count=60, kind="typical", repetitions=2))
    planted = em.plant_texts(TEXTS, canaries=wanted, **more)
    forecast = planted.forecast(0.5, delta=1e-5, views=2).kinds
    rng = np.random.default_rng(0)
    measured = Measured(
        log_probs=tuple(rng.normal(size=(160, 3))), ranks=tuple(rng.uniform(size=(160, 3)))
    )
    subject = em.LanguageModel(measured, planted, scores=("loss", "rank"), trained=True)
    views = em.audit(subject, 0.5, delta=1e-5).views  # gravest first
    said = [(each.reach, each.power) for each in forecast for _ in range(2)]
    assert sorted((view.reach, view.power) for view in views) == sorted(said)
