"""Writers of any maker take an audit; what is no writer is refused."""

from pathlib import Path

import pytest

from epsilometer.core.serialisation import from_json
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.tensorboard import log_audit
from tests.examples import a_series, an_audit


class Writer:
    """The three members of a SummaryWriter that are used, as another package may have them."""

    def __init__(self, folder: Path) -> None:
        self.log_dir = str(folder)
        self.numbers: dict[str, tuple[float, int | None]] = {}
        self.words: dict[str, str] = {}

    def add_scalar(self, tag: str, value: float, step: int | None) -> None:
        self.numbers[tag] = (value, step)

    def add_text(self, tag: str, text: str, step: int | None) -> None:
        self.words[tag] = text


def test_numbers_words_and_files_are_written(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    log_audit(an_audit(), writer, step=3)
    assert writer.numbers["privacy.epsilon_bound"] == (2.0, 3)
    assert writer.words["privacy.verdict"] == "refuted"
    assert writer.words["privacy.delta"] == "1e-05"
    assert from_json((tmp_path / "privacy.result.json").read_text("utf-8")) == an_audit()
    assert "<!doctype html>" in (tmp_path / "privacy.report.html").read_text("utf-8")


def test_views_have_tags_of_their_own(tmp_path: Path) -> None:
    writer, audit = Writer(tmp_path), a_series()
    log_audit(audit, writer, prefix="p.")
    bounds = [writer.numbers[f"view-{n}/p.epsilon_bound"][0] for n in range(1, 7)]
    assert bounds == [view.bound.epsilon for view in audit.views]
    assert writer.words["p.views"] == "6"


def test_what_is_no_writer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no add_scalar"):
        log_audit(an_audit(), str(tmp_path))
