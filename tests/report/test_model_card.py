"""A model card gets metadata and a section, once, and keeps everything else."""

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

import epsilometer as em
from epsilometer.cli.main import main
from epsilometer.errors import InvalidArgument
from epsilometer.report.markdown import plain
from epsilometer.report.model_card import BEGIN, KEY, TITLE, list_metadata, write_model_card
from tests.contract.cases import CASES, Case, audited

AUDIT = em.audit(em.Scores([1.0] * 900, [0.0] * 900), 3.0, delta=1e-5)


@pytest.mark.parametrize(
    "card",
    [
        "",
        "# Mine\n",
        "---\nlicense: mit\n---\n# Mine\n",
        "---\n---\ntext",
        "--- \na: b, which the Hub does not read\n---\n",
        "---\r\na: b\r\n---\r\nx",
        "---\na: b\n---",
        "\n---\na: b\n---\n# Mine\n---\nline\n",
    ],
)
def test_written_twice_it_is_there_once(card: str) -> None:
    once = write_model_card(card, AUDIT)
    assert write_model_card(once, AUDIT) == once
    assert once.count(f"\n{KEY}: ") == once.count(TITLE) == once.count(BEGIN) == 1
    assert once.lstrip().splitlines()[0].strip() == "---"
    own = [line for line in once.splitlines(keepends=True) if not line.startswith(f"{KEY}: ")]
    assert card in "".join(own)


def test_another_audit_replaces_the_first() -> None:
    other = em.audit(em.Scores([0.0, 1.0] * 100, [0.0, 1.0] * 100), 3.0, delta=1e-5)
    card = write_model_card(write_model_card("# Mine\n", AUDIT), other)
    assert card == write_model_card("# Mine\n", other)
    assert other.verdict in card
    assert f"**{AUDIT.verdict}**" not in card.replace(f"**{other.verdict}**", "")


def test_metadata_that_do_not_end_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="dashes"):
        write_model_card("---\nlicense: mit\n", AUDIT)


def test_numbers_are_never_better_than_they_are() -> None:
    meta = list_metadata(AUDIT)
    assert meta["proved_epsilon"] <= AUDIT.epsilon
    assert meta["reach"] <= AUDIT.reach
    assert meta["power"] >= AUDIT.power
    line = next(x for x in write_model_card("", AUDIT).splitlines() if x.startswith(KEY))
    assert '"delta": 1.0e-05' in line  # every YAML reads it as a number
    assert json.loads(line.partition(": ")[2])["verdict"] == AUDIT.verdict


def test_a_claim_that_is_never_refuted_is_not_refuted_at_any_epsilon() -> None:
    few = em.audit(em.Scores([1.0] * 4, [0.0] * 4), 50.0, delta=1e-5)
    assert math.isinf(few.power)
    assert "4 times in 5 | at none |" in write_model_card("", few)


def test_caveats_are_in_the_card() -> None:
    audit = audited(next(c for c in CASES if c.name == "language model"), 1.0, Path())
    assert audit.caveats
    assert all(plain(line) in write_model_card("", audit) for line in audit.caveats)


@pytest.mark.parametrize("case", [c for c in CASES if c.name in ("scores", "step")], ids=str)
def test_every_verdict_is_the_judges(case: Case, tmp_path: Path) -> None:
    audit = audited(case, case.claims[0][0], tmp_path)
    assert list_metadata(audit)["verdict"] == audit.verdict
    assert f"**{audit.verdict}**" in write_model_card("", audit)


def test_the_command_writes_a_card(tmp_path: Path) -> None:
    saved, card = AUDIT.save(tmp_path / "audit.json"), tmp_path / "README.md"
    card.write_text("# Mine\n", "utf-8")
    done = CliRunner().invoke(main, ["report", str(saved), "--model-card", str(card)])
    assert done.exit_code == 0, done.output
    assert card.read_text("utf-8") == write_model_card("# Mine\n", AUDIT)
    card.write_bytes(b"\xff\xfe")
    refused = CliRunner().invoke(main, ["report", str(saved), "--model-card", str(card)])
    assert refused.exit_code == 2
    assert "UTF-8" in refused.output
