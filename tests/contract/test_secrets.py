"""No output tells of a single record: no value, label or name, and no digest of any of them.

Outputs are all that leaves the directory of a run: files of ``save``, pages, Markdown, MLflow,
notebooks, and whatever a command prints.
"""

import io
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.pretty import pretty_repr

# Before MLflow is loaded: it reports who uses it, unless told not to.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["DO_NOT_TRACK"] = "true"
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"

import epsilometer as em
from epsilometer import _dispatch
from epsilometer.cli.main import main
from epsilometer.cli.progress import listener
from epsilometer.core.findings import GroupRisk, RecordRisk
from epsilometer.core.settings import describe_shapes
from epsilometer.report.terminal import summary
from tests.conftest import run_often
from tests.contract.planted import DELTA, FEW, NAMES, RARE, SAID, SUBJECTS, Planted, write_table

_COMMANDS = (
    ("report", "{}"),
    ("report", "{}", "--markdown", "--explain"),
    ("report", "{}", "--json"),
    *(("check", "{}", "--format", form) for form in ("text", "json", "github", "junit")),
    ("runs", "status", "{}"),
    ("runs", "status", "{}", "--json"),
    ("runs", "list", "{}"),
    ("runs", "list", "{}", "--json"),
    ("runs", "trend", "{}"),
    ("runs", "trend", "{}", "--json"),
    ("runs", "compare", "{}", "{}"),
    ("runs", "verify", "{}"),
    ("runs", "trend", "{}", "--html", "{}/trend.html"),
    ("audit", "{}/result.json"),
)


def find_secrets(outputs: dict[str, str], secrets: dict[str, str]) -> list[tuple[str, str, str]]:
    """Return where a secret stands, what it is, and the secret; numbers in any notation."""
    found = []
    for where, text in outputs.items():
        plain = text.replace(".", "")
        found += [
            (where, what, secret)
            for secret, what in secrets.items()
            if secret in text or (secret.isdecimal() and secret in plain)
        ]
    return found


def run(planted: Planted, out: Path, outputs: dict[str, str]) -> em.Audit:
    """Audit in a directory, and keep all that is said meanwhile."""
    said: list[str] = []
    with (
        warnings.catch_warnings(record=True) as warned,
        pytest.MonkeyPatch.context() as patch,
    ):
        warnings.simplefilter("always")
        patch.setattr("epsilometer.cli.progress.say", lambda text, err: said.append(text))
        audit = em.audit(
            planted.subject,
            planted.claim,
            delta=DELTA,
            out=out,
            engine=em.InProcess(),
            listen=(listener(as_json=False), listener(as_json=True)),
            **planted.options,
        )
    outputs["warnings"] = "\n".join(str(each.message) for each in warned)
    outputs["progress"] = "\n".join(said)
    return audit


def save_all(audit: em.Audit, folder: Path) -> Iterator[tuple[str, str]]:
    for suffix in ("json", "html", "md"):
        yield suffix, audit.save(folder / f"audit.{suffix}").read_text("utf-8")
    yield "print", f"{audit}\n{audit!r}\n{audit._repr_html_()}\n{pretty_repr(audit)}"
    console = Console(width=200, file=io.StringIO(), force_terminal=True)
    console.print(summary(audit))
    yield "terminal", console.file.getvalue()  # type: ignore[attr-defined]


def call_commands(run: Path) -> Iterator[tuple[str, str]]:
    for command in _COMMANDS:
        done = CliRunner().invoke(main, [part.format(run) for part in command])
        assert done.exit_code in (0, 1, 2, 4), done.output  # 2: no run, or data are missing
        yield " ".join(command), done.output
    for name in ("result.json", "report.html", "trend.html"):
        yield name, (run / name).read_text("utf-8")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each subject is audited once, with all that is said of it."""
    kept: dict[str, tuple[Planted, em.Audit, dict[str, str], Path]] = {}

    def make(name: str) -> tuple[Planted, em.Audit, dict[str, str], Path]:
        if name not in kept:
            folder = tmp_path_factory.mktemp("secrets")
            outputs: dict[str, str] = {}
            planted = SUBJECTS[name](folder)
            audit = run(planted, folder / "run", outputs)
            kept[name] = planted, audit, outputs, folder
        return kept[name]

    return make


def test_every_subject_is_planted(tmp_path: Path) -> None:
    """But those that see no data: of a mechanism, of settings, and the demo's own."""
    planted = {type(make(tmp_path).subject).__name__ for make in SUBJECTS.values()}
    assert set(_dispatch.SUBJECTS) == planted | {"ShuffledSGD", "GaussianMechanism", "Demo"}


@pytest.mark.parametrize("name", SUBJECTS)
def test_no_output_has_a_secret(name: str, made: Any, tmp_path: Path) -> None:
    planted, audit, outputs, folder = made(name)
    outputs |= dict(save_all(audit, tmp_path))
    outputs |= dict(call_commands(folder / "run"))
    assert find_secrets(outputs, planted.list_secrets()) == []


@pytest.mark.parametrize(
    "name", run_often(SUBJECTS, SUBJECTS.keys() - {"classifier", "classifier, rows shown"})
)
def test_a_directory_changes_no_byte(name: str, made: Any) -> None:
    """Whatever secret the run's directory has: the audit is that of no directory."""
    planted, audit, _, _ = made(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = em.audit(
            planted.subject, planted.claim, delta=DELTA, engine=em.InProcess(), **planted.options
        )
    assert again.to_json() == audit.to_json()


@pytest.mark.parametrize("name", ["runs", "train function"])
def test_what_a_unit_raised_stays_in_the_directory(name: str, made: Any) -> None:
    _, audit, outputs, folder = made(name)
    assert audit.provenance.failed > 0
    said = [file.read_text("utf-8") for file in (folder / "run" / "failures").iterdir()]
    assert all(SAID in text for text in said)
    assert "ValueError" in outputs["progress"] or "KeyError" in outputs["progress"]
    status = CliRunner().invoke(main, ["runs", "status", str(folder / "run")])
    assert "ValueError" in status.output or "KeyError" in status.output


def test_rows_are_shown_where_asked_and_nothing_else(made: Any) -> None:
    hidden, shown = (made(name)[1] for name in ("classifier", "classifier, rows shown"))
    assert {record.row for record in hidden.find(RecordRisk)} == {None}
    assert {record.row for record in shown.find(RecordRisk)} == set(range(120))
    without = json.loads(shown.to_json().replace('"show_records": true', '"show_records": false'))
    for finding in without["findings"]:
        if finding["kind"] == "RecordRisk":
            finding["row"] = None
    without["provenance"]["plan"] = hidden.provenance.plan
    assert without == json.loads(hidden.to_json())


@pytest.mark.parametrize("name", ["classifier", "table"])
def test_groups_of_many_people_are_named_and_those_of_few_are_not(name: str, made: Any) -> None:
    groups = made(name)[1].find(GroupRisk)
    named = {group.name for group in groups}
    assert {"yes", "no", "north", "south"} <= named
    assert not {RARE, FEW} & named
    assert all(group.records >= 10 for group in groups)


def test_only_the_directory_of_the_run_says_who_is_at_risk(made: Any) -> None:
    _, _, _, folder = made("classifier")
    file = folder / "run" / "records.csv"
    assert file.stat().st_mode & 0o077 == 0
    private = file.read_text("utf-8")
    assert all(name in private for name in NAMES)
    assert RARE in private


def test_a_command_on_a_table_tells_of_nobody(tmp_path: Path) -> None:
    """The measured finding: 150 of 150 people stood in the report with their status."""
    file = write_table(tmp_path)
    done = CliRunner().invoke(
        main,
        [
            *("classifier", str(file), "--label", "illness", "--drop", "id", "--group", "town"),
            *("--published-as", "file"),
            *("--attacks", "none", "--engine", "in-process", "--out", str(tmp_path / "run")),
            *("--html", str(tmp_path / "page.html"), "--explain"),
        ],
    )
    assert done.exit_code == 1, done.output
    secrets = SUBJECTS["table"](tmp_path).list_secrets()
    outputs = {"command": done.output, "page": (tmp_path / "page.html").read_text("utf-8")}
    outputs |= dict(call_commands(tmp_path / "run"))
    assert find_secrets(outputs, secrets) == []


def test_who_knows_all_but_one_label_learns_nothing_from_digests(tmp_path: Path) -> None:
    """The measured finding: SHA-256 of y in the result told the label of record 7."""
    from sklearn.naive_bayes import GaussianNB

    planted = SUBJECTS["classifier"](tmp_path)
    features, labels = planted.subject.X, planted.subject.y
    other = labels.copy()
    other[7] = "yes" if labels[7] == "no" else "no"
    sources = [
        em.audit(em.Classifier(GaussianNB(), features, y, attacks=()), engine=em.InProcess())
        for y in (labels, other)
    ]
    assert sources[0].provenance == sources[1].provenance


def make_play(secret: str) -> Any:
    """A program that closes over a secret, and has it as a default too."""

    def play(runs: int, rng: Any, held: str = secret) -> em.Scores:
        shift = 3 if secret == held else 0
        return em.Scores(inside=rng.normal(shift, 1, runs), outside=rng.normal(0, 1, runs))

    return play


def test_code_is_identified_without_what_it_closes_over() -> None:
    audits = [
        em.audit(em.Runs(make_play(name), runs=100), delta=DELTA, engine=em.InProcess())
        for name in NAMES[:2]
    ]
    assert audits[0].to_json() == audits[1].to_json()


def test_mlflow_is_told_no_secret(made: Any, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    from epsilometer.integrations.mlflow import log_audit

    before = mlflow.get_tracking_uri()
    secrets: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlflow.set_tracking_uri((tmp_path / "store").as_uri())
        mlflow.create_experiment("audits", artifact_location=(tmp_path / "artifacts").as_uri())
        mlflow.set_experiment("audits")
        try:
            for name in ("classifier", "train function", "score file"):
                planted, audit, *_ = made(name)
                secrets |= planted.list_secrets()
                log_audit(audit)
        finally:
            mlflow.set_tracking_uri(before)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    outputs = {file.name: file.read_text("utf-8") for file in files}
    assert len(outputs) > 10
    # Ids and times are drawn by MLflow: eight digits of a number may be among them.
    telling = {secret: what for secret, what in secrets.items() if not secret.isdecimal()}
    assert find_secrets(outputs, telling) == []


def test_shapes_tell_how_many_and_nothing_else() -> None:
    one = em.TrainFunction(len, with_record=(NAMES[0],), without_record=(), runs=2)
    other = em.TrainFunction(len, with_record=(RARE,), without_record=(), runs=2)
    assert describe_shapes(one) == describe_shapes(other)
    text = em.TrainFunction(len, "x", canary="a text", runs=2)
    assert describe_shapes(text) == ()


def list_figures(audit: em.Audit) -> dict[str, str]:
    """All that figures are drawn from: names, titles, and numbers with every digit."""
    from epsilometer.core.document import find_figures
    from epsilometer.report.build import build

    blocks = list(find_figures(build(audit)))
    named = {f"{block.stem}{figure.key}": figure for block in blocks for figure in block.figures}
    return {name: f"{name} {figure!r}" for name, figure in named.items()}


def read_picture(file: Path) -> str:
    """What a picture says beside its lines: its name, its texts, and all that describes it."""
    from PIL import Image

    if file.suffix == ".png":
        with Image.open(file) as picture:
            picture.load()  # texts may follow the pixels
            return f"{file.name} {picture.info}"
    root = ElementTree.fromstring(file.read_bytes())
    # Not the coordinates: among so many digits eight of a secret stand by chance.
    words = [part for each in root.iter() for part in (each.text, each.tail, *_attributes(each))]
    return " ".join([file.name, *(word for word in words if word)])


def _attributes(element: ElementTree.Element) -> Iterator[str]:
    places = {"d", "x", "y", "transform", "width", "height", "viewBox", "points"}
    yield from (value for name, value in element.items() if name not in places)


@pytest.mark.parametrize("name", SUBJECTS)
def test_figures_are_drawn_from_no_secret(name: str, made: Any) -> None:
    planted, audit, *_ = made(name)
    figures = list_figures(audit)
    assert len(figures) > 1 or name in ("step", "fitted")  # of checks only, and of one attack
    assert find_secrets(figures, planted.list_secrets()) == []


@pytest.mark.parametrize("name", run_often(["classifier", "train function"], ["train function"]))
def test_pictures_have_no_secret(name: str, made: Any, tmp_path: Path) -> None:
    planted, audit, _, folder = made(name)
    command = ["report", str(folder / "run"), "--figures", str(tmp_path / "figures")]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    files = list((tmp_path / "figures").iterdir())
    assert len(files) == 2 * len(list_figures(audit))
    outputs = {"command": done.output} | {file.name: read_picture(file) for file in files}
    assert find_secrets(outputs, planted.list_secrets()) == []


def test_secrets_in_pictures_are_found(tmp_path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    canvas = Figure()
    canvas.text(0, 0, f"of {RARE}")
    with mpl.rc_context({"svg.fonttype": "none"}):
        canvas.savefig(tmp_path / "text.svg")
    canvas.savefig(tmp_path / "described.svg", metadata={"Title": RARE})
    canvas.savefig(tmp_path / "described.png", metadata={"Comment": RARE})
    canvas.savefig(tmp_path / f"{RARE}.png")
    outputs = {file.name: read_picture(file) for file in tmp_path.iterdir()}
    found = find_secrets(outputs, {RARE: "a label"})
    assert {where for where, *_ in found} == set(outputs)


def test_audits_of_opacus_have_no_secret(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    from tests.contract.planted_integrations import People, audit_opacus

    people, outputs = People(), {}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for name, found in audit_opacus(people):
            outputs[name] = f"{found} {found!r} {pretty_repr(found)}"
            if isinstance(found, em.Audit):
                kept = {**dict(save_all(found, tmp_path)), **list_figures(found)}
                outputs |= {f"{name}, {where}": text for where, text in kept.items()}
    outputs["warnings"] = "\n".join(
        str(each.message) for each in warned if "Full backward hook" not in str(each.message)
    )
    assert "the step raised ValueError" in outputs["DPOptimizer, replay, json"]
    assert find_secrets(outputs, people.list_secrets()) == []


def test_audits_of_flower_have_no_secret(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from tests.contract.planted_integrations import Clients, audit_flower

    clients = Clients()
    audit, said = audit_flower(clients, tmp_path)
    assert "1 replies of clients were errors" in audit.to_json()
    assert "epsilometer: written to" in said
    outputs = {"log": said, **dict(save_all(audit, tmp_path)), **list_figures(audit)}
    outputs |= {
        name: (tmp_path / "run" / name).read_text("utf-8")
        for name in ("result.json", "report.html", "notes.txt")
    }
    assert find_secrets(outputs, clients.list_secrets()) == []
