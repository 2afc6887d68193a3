"""Hold every kind of audit to one contract, so that no two places can disagree about it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import epsilometer as em
from epsilometer import _dispatch
from epsilometer.cli.main import main
from epsilometer.core import judge, serialisation, settings
from epsilometer.core.scores import Scores
from epsilometer.errors import InvalidArgument, UnreadableFile
from tests.contract.cases import CASES, DELTA, Case, audited

_EVERY = [(case, claim, verdict) for case in CASES for claim, verdict in case.claims]
_IDS = [f"{case}, claim {claim}" for case, claim, _ in _EVERY]
_FIRST = [(case, case.claims[0][0]) for case in CASES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contract")


@pytest.fixture
def at_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Files are named relative to the folder in which a command is called."""
    monkeypatch.chdir(folder)
    return folder


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(main, list(arguments))


def check_one_verdict(audit: em.Audit, folder: Path) -> None:
    """Ask every place that shows a verdict, and compare."""
    folder.mkdir(exist_ok=True)
    path = audit.save(folder / "audit.json")
    assert json.loads(path.read_text("utf-8"))["verdict"] == audit.verdict
    assert em.load(path).verdict == audit.verdict
    checked = invoke("check", str(path), "--format", "json")
    assert json.loads(checked.stdout)["verdict"] == audit.verdict, checked.output
    assert checked.exit_code == judge.exit_code(audit.verdict) == audit.exit_code
    listed = json.loads(invoke("runs", "list", str(folder), "--json").stdout)["entries"]
    assert {entry["verdict"] for entry in listed} == {audit.verdict}
    word = re.compile(rf"(?<!not ){re.escape(audit.verdict)}", re.IGNORECASE)
    page = audit.save(folder / "page.html").read_text("utf-8")
    shown = re.search(r'data-verdict="([^"]+)"', page)
    assert shown is not None
    assert shown[1] == audit.verdict
    markdown = audit.save(folder / "page.md").read_text("utf-8")
    assert word.search(markdown.splitlines()[0] + markdown.splitlines()[2])
    assert word.match(str(audit))


def check_replay(path: Path) -> None:
    """Run a saved audit again: the same bytes."""
    before = path.read_text("utf-8")
    again = _dispatch.read_call(path, trust=True).run(engine=em.InProcess())
    assert again.to_json() + "\n" == before


@pytest.mark.parametrize(("case", "claim", "verdict"), _EVERY, ids=_IDS)
def test_verdict_is_the_expected_one_everywhere(
    case: Case, claim: float | None, verdict: str, folder: Path, tmp_path: Path
) -> None:
    audit = audited(case, claim, folder)
    assert audit.verdict == verdict
    check_one_verdict(audit, tmp_path / "all")


@pytest.mark.parametrize(("case", "claim", "verdict"), _EVERY, ids=_IDS)
def test_not_refuted_names_reach_and_power(
    case: Case, claim: float | None, verdict: str, folder: Path
) -> None:
    audit = audited(case, claim, folder)
    if claim is None:
        assert audit.reach is None
        assert audit.power is None
        return
    assert audit.reach is not None
    assert audit.reach >= min(audit.epsilon, audit.reach)
    if verdict == judge.NOT_REFUTED:
        assert claim < audit.reach
        assert audit.power is not None
        assert audit.power >= claim
        assert "This audit" in str(audit) or "was computed" in str(audit)
    if verdict == judge.CANNOT_JUDGE:
        assert claim >= audit.reach


@pytest.mark.parametrize(("case", "claim"), _FIRST, ids=str)
def test_claim_is_a_number_or_a_claim_and_the_same_seed_gives_the_same_bytes(
    case: Case, claim: float | None, folder: Path
) -> None:
    audit = audited(case, claim, folder)
    subject = case.make(folder)
    given = None if claim is None else em.Claim(claim, delta=DELTA)
    again = em.audit(subject, given, delta=DELTA if claim is None else None, **case.options)
    assert again.to_json() == audit.to_json()
    with pytest.raises(InvalidArgument, match="Expected claim to be a number") as refused:
        em.audit(subject, "3", delta=DELTA, **case.options)
    assert str(refused.value).count(". ") == 0


@pytest.mark.parametrize(("case", "claim"), _FIRST, ids=str)
def test_json_is_read_back_with_unknown_fields_and_refused_in_other_formats(
    case: Case, claim: float | None, folder: Path, tmp_path: Path
) -> None:
    audit = audited(case, claim, folder)
    text = audit.to_json()
    assert serialisation.from_json(text) == audit
    plain = json.loads(text)
    plain["later"] = {"a": [1]}
    plain["provenance"]["later"] = 1
    plain["findings"][0]["later"] = "x"
    assert serialisation.from_json(json.dumps(plain)) == audit
    plain["format"] = 3
    path = tmp_path / "later.json"
    path.write_text(json.dumps(plain), "utf-8")
    with pytest.raises(UnreadableFile, match="format 2, got one of format 3"):
        em.load(path)
    for command in (["check", str(path)], ["report", str(path)], ["audit", str(path)]):
        refused = invoke(*command)
        assert refused.exit_code == 2
        assert "format 2, got one of format 3" in " ".join(refused.output.split())
    listed = invoke("runs", "list", str(tmp_path), "--json")
    assert "format 3" in listed.stdout


@pytest.mark.parametrize(("case", "claim"), _FIRST, ids=str)
def test_a_verdict_that_was_edited_in_the_file_is_computed_again(
    case: Case, claim: float | None, folder: Path
) -> None:
    audit = audited(case, claim, folder)
    plain = json.loads(audit.to_json())
    plain["verdict"] = judge.PROVED
    assert serialisation.from_json(json.dumps(plain)).verdict == audit.verdict


@pytest.mark.parametrize(("case", "claim", "verdict"), _EVERY, ids=_IDS)
def test_print_is_short(case: Case, claim: float | None, verdict: str, folder: Path) -> None:
    audit = audited(case, claim, folder)
    assert len(str(audit).splitlines()) <= 25
    assert len(str(audit)) <= 2_000
    assert len(repr(audit)) <= 200
    assert "<table>" in audit._repr_html_()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_provenance_replays_to_the_same_bytes_or_says_what_to_supply(
    case: Case, at_folder: Path
) -> None:
    claim = None if case.claims[0][0] is None else 3.195138
    audit = audited(case, claim, at_folder)
    path = audit.save(at_folder / f"{case.name}.json")
    if case.from_file:
        assert not audit.provenance.supplied
        check_replay(path)
        if case.imports:
            with pytest.raises(InvalidArgument, match="--trust"):
                _dispatch.read_call(path)
        return
    assert audit.provenance.supplied
    with pytest.raises(InvalidArgument, match="supplied from Python"):
        _dispatch.read_call(path, trust=True)
    refused = invoke("audit", str(path))
    assert refused.exit_code == 2
    assert audit.provenance.supplied[0] in refused.output


@pytest.mark.parametrize(("case", "claim"), _FIRST, ids=str)
def test_data_are_never_in_provenance(case: Case, claim: float | None, folder: Path) -> None:
    plain = msgspec.to_builtins(audited(case, claim, folder).provenance.settings)
    lists = [value for value in plain.values() if isinstance(value, list)]
    assert all(len(value) <= 20 for value in lists)
    assert str(folder) not in json.dumps(plain)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bad_settings_name_the_field(case: Case, folder: Path) -> None:
    name, value = case.wrong
    subject = case.make(folder)
    fields = {
        field: getattr(subject, field)
        for field in type(subject).__dataclass_fields__
        if type(subject).__dataclass_fields__[field].init
    }
    with pytest.raises(InvalidArgument, match=name):
        em.audit(type(subject)(**{**fields, name: value}), delta=DELTA, **case.options)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bad_options_are_refused(case: Case, folder: Path) -> None:
    subject = case.make(folder)
    with pytest.raises(InvalidArgument, match="delta below 1"):
        em.audit(subject, delta=1.0, **case.options)
    with pytest.raises(InvalidArgument, match="confidence"):
        em.audit(subject, delta=DELTA, confidence=1.0, **case.options)
    with pytest.raises(InvalidArgument, match="seed"):
        em.audit(subject, delta=DELTA, seed=-1, **case.options)


@pytest.mark.parametrize(("case", "claim"), _FIRST, ids=str)
def test_out_keeps_the_audit_and_its_page(
    case: Case, claim: float | None, folder: Path, tmp_path: Path
) -> None:
    audit = em.audit(case.make(folder), claim, delta=DELTA, out=tmp_path / "run", **case.options)
    assert em.load(tmp_path / "run").to_json() == audit.to_json()
    assert (tmp_path / "run" / "report.html").stat().st_size > 1_000


def test_every_registered_subject_has_a_case(folder: Path) -> None:
    covered = {type(case.make(folder)).__name__ for case in CASES}
    assert set(_dispatch.SUBJECTS) - covered == {"Demo"}  # tests/audits/training/test_demo.py


def test_what_is_no_subject_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"Expected a subject \(Scores, .*got list"):
        em.audit([1.0], 3.0, delta=DELTA)


def test_another_claim_is_judged_with_its_own_reach_and_power(folder: Path) -> None:
    (case,) = [case for case in CASES if case.name == "scores"]
    without, direct = audited(case, None, folder), audited(case, 3.5, folder)
    later = _dispatch.rejudge(without, 3.5, delta=DELTA)
    assert (later.verdict, later.reach) == (direct.verdict, direct.reach)
    assert later.power == pytest.approx(direct.power, rel=1e-12)


# Mistakes of the past, planted: the checks above must notice them.


def test_a_second_verdict_is_noticed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``check`` once looked at bounds alone, and forgot what was computed."""
    (case,) = [case for case in CASES if case.name == "shuffled SGD"]
    audit = audited(case, 3.5, folder)

    def forget_computed(found: em.Audit) -> em.Audit:
        views = [msgspec.structs.replace(view, estimates=()) for view in found.views]
        return msgspec.structs.replace(found, findings=tuple(views))

    monkeypatch.setattr("epsilometer.cli.check.load", lambda path: forget_computed(em.load(path)))
    with pytest.raises(AssertionError):
        check_one_verdict(audit, tmp_path / "all")


def test_a_rounded_claim_is_noticed(at_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``estimate`` once stored its claim with ``:g``."""
    (case,) = [case for case in CASES if case.name == "score file"]
    real = serialisation.to_plain
    monkeypatch.setattr(
        serialisation,
        "to_plain",
        lambda value: json.loads(
            json.dumps(real(value)), parse_float=lambda text: float(f"{float(text):g}")
        ),
    )
    path = audited(case, 3.195138, at_folder).save(at_folder / "rounded.json")
    monkeypatch.undo()
    monkeypatch.chdir(at_folder)
    with pytest.raises(AssertionError):
        check_replay(path)


def test_settings_that_are_dropped_are_noticed(
    at_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stored call once lacked its required arguments."""
    real = settings.to_settings

    def forget(subject: Any) -> dict[str, Any]:
        return {name: value for name, value in real(subject).items() if name != "steps"}

    monkeypatch.setattr("epsilometer.engine.request.to_settings", forget)
    audit = em.audit(
        em.ShuffledSGD(noise_multiplier=1.0, steps=100, observations=2_000), 3.5, delta=DELTA
    )
    path = audit.save(at_folder / "dropped.json")
    with pytest.raises(InvalidArgument, match="steps"):
        check_replay(path)


def test_scores_copied_from_elsewhere_keep_their_options() -> None:
    scores = Scores([2.0] * 90, [0.0] * 90, method="joint_beta", title="mine")
    assert settings.to_settings(scores)["method"] == "joint_beta"
    assert em.audit(scores, delta=DELTA).bounds[0].method == "joint_beta"
