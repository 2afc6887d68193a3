"""Settings are written exactly and read back; data travel by reference, code only if trusted."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epsilometer.core.settings import (
    CHOICES,
    DATA,
    NAMED_DATA,
    from_settings,
    parse_choice,
    section_name,
    to_settings,
)
from epsilometer.core.stopping import UntilNarrow, UntilRefuted
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import PartialShuffle, Shuffle
from epsilometer.stats.thresholds import Fixed, HoldOut, RankGrid, ThresholdRule


@dataclass(frozen=True, eq=False)
class Subject:
    """A subject as audits have them."""

    data: Any = field(default=None, metadata=DATA)
    row: Any = field(default=None, metadata=NAMED_DATA)
    runs: int = 10
    noise: float = 1.0
    name: str = "x"
    kind: Literal["a", "b"] = "a"
    fast: bool = False
    counts: tuple[int, ...] = ()
    limit: float | None = None
    file: Path | None = None
    rule: ThresholdRule | None = None
    act: Any = None


@dataclass(frozen=True)
class Needy:
    """A subject with a field that must be given."""

    runs: int


def round_trip(subject: Subject, *, trust: bool = False) -> Any:
    plain = json.loads(json.dumps(to_settings(subject), allow_nan=False))
    return from_settings(Subject, plain, trust=trust)


def double(x: float) -> float:
    return 2 * x


@settings(deadline=None)
@given(
    st.floats(allow_nan=False),
    st.integers(-(2**53), 2**53),
    st.text(),
    st.booleans(),
    st.lists(st.integers(0, 9)).map(tuple),
)
def test_plain_settings_come_back_exactly(
    noise: float, runs: int, name: str, fast: bool, counts: tuple[int, ...]
) -> None:
    subject = Subject(noise=noise, runs=runs, name=name, fast=fast, counts=counts)
    assert dataclasses.asdict(round_trip(subject)) == dataclasses.asdict(subject)


@pytest.mark.parametrize("value", [0.1 + 0.2, 3.195138, 1e-300, float("inf")])
def test_floats_are_not_rounded(value: float) -> None:
    assert round_trip(Subject(noise=value)).noise == value


@pytest.mark.parametrize(
    "rule", [HoldOut(0.25), Fixed(1.5), RankGrid(ratio=8), Fixed(float("-inf"))]
)
def test_choices_are_written_with_their_class_and_all_fields(rule: ThresholdRule) -> None:
    plain = to_settings(Subject(rule=rule))["rule"]
    assert plain["type"] == type(rule).__name__
    assert round_trip(Subject(rule=rule)).rule == rule


def test_numbers_of_numpy_are_written_as_those_of_python() -> None:
    plain = to_settings(Subject(noise=np.float64(0.5), runs=np.int64(3)))  # type: ignore[arg-type]
    assert json.dumps([plain["noise"], plain["runs"]]) == "[0.5, 3]"


def test_data_are_never_written_by_value() -> None:
    for data in (np.arange(9), [1.0, 2.0], (1, 2), object(), {"a": np.arange(3)}, "Ann", 7, True):
        plain = to_settings(Subject(data=data))
        assert plain["data"] == {"supplied": type(data).__name__}
        with pytest.raises(InvalidArgument, match=r"Expected data of Subject: supplied from Pyt"):
            from_settings(Subject, plain)
    assert to_settings(Subject())["data"] is None
    assert to_settings(Subject(row=7))["row"] == 7  # where a row is named by its number


def test_objects_that_settings_do_not_know_must_be_supplied() -> None:
    assert to_settings(Subject(act=object()))["act"] == {"supplied": "object"}
    assert to_settings(Subject(act=lambda x: x))["act"] == {"supplied": "function"}


def test_functions_are_named_and_imported_only_if_trusted() -> None:
    plain = to_settings(Subject(act=double))
    assert plain["act"] == {"function": f"{__name__}:double"}
    with pytest.raises(InvalidArgument, match="Expected --trust to import"):
        from_settings(Subject, plain)
    assert from_settings(Subject, plain, trust=True).act is double


@pytest.mark.parametrize(
    "named", ["nowhere:f", f"{__name__}:nothing", "no colon", "os:system:x", ":", 7]
)
def test_functions_that_are_not_there_are_refused(named: Any) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        from_settings(Subject, {"act": {"function": named}}, trust=True)


def test_other_peoples_choices_are_imported_only_if_trusted() -> None:
    plain = {"rule": {"type": "os:stat_result"}}
    with pytest.raises(InvalidArgument, match="Expected --trust to import"):
        from_settings(Subject, plain)
    with pytest.raises(InvalidArgument, match=r"Expected Subject\.rule\.type among"):
        from_settings(Subject, {"rule": {"type": "Unknown"}})


def test_paths_are_written_as_text_and_absolute_ones_by_their_name() -> None:
    assert to_settings(Subject(file=Path("data/a.csv")))["file"] == "data/a.csv"
    assert to_settings(Subject(file=Path("/home/somebody/a.csv")))["file"] == "a.csv"
    assert round_trip(Subject(file=Path("data/a.csv"))).file == Path("data/a.csv")


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        ({"runs": "many"}, r"Subject\.runs: "),
        ({"runs": 1.5}, r"Subject\.runs: Expected int"),
        ({"noise": [1]}, r"Subject\.noise: "),
        ({"kind": "c"}, r"Subject\.kind: "),
        ({"fast": 1}, r"Subject\.fast: "),
        ({"nosie": 1.0}, "Expected a setting of Subject among data, row, runs, noise"),
    ],
)
def test_bad_settings_name_the_field(plain: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        from_settings(Subject, plain)


@pytest.mark.parametrize("plain", [None, 3, "x", [1]])
def test_what_is_no_table_is_refused(plain: Any) -> None:
    with pytest.raises(InvalidArgument, match="Expected settings of Subject"):
        from_settings(Subject, plain)


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"Expected Needy\.runs, got none"):
        from_settings(Needy, {})


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("shuffle", Shuffle()),
        ("partial:1000", PartialShuffle(1000)),
        ("hold-out:0.25", HoldOut(0.25)),
        ("refuted", UntilRefuted()),
        ("narrow:0.5", UntilNarrow(0.5)),
    ],
)
def test_short_names_are_parsed(text: str, choice: Any) -> None:
    assert parse_choice(text) == choice


@pytest.mark.parametrize("text", ["", "unknown", "partial", "partial:x", "shuffle:4:5", "narrow:"])
def test_wrong_short_names_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        parse_choice(text)


def test_only_the_choices_that_fit_are_taken() -> None:
    with pytest.raises(InvalidArgument, match="Expected one of shuffle, partial, got 'poisson'"):
        parse_choice("poisson", among=("shuffle", "partial"))


@pytest.mark.parametrize("name", CHOICES)
def test_every_choice_can_be_loaded(name: str) -> None:
    assert dataclasses.is_dataclass(CHOICES[name])


@pytest.mark.parametrize(
    ("subject", "section"),
    [
        ("Scores", "scores"),
        ("ShuffledSGD", "shuffled_sgd"),
        ("DPSGD", "dpsgd"),
        ("TrainFunction", "train_function"),
        ("GaussianMechanism", "gaussian_mechanism"),
    ],
)
def test_sections_are_named_after_their_subjects(subject: str, section: str) -> None:
    assert section_name(subject) == section


def test_a_width_must_be_positive() -> None:
    with pytest.raises(InvalidArgument, match="width"):
        UntilNarrow(0.0)
