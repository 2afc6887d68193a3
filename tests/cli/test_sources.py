"""References: what a result names in place of data, and how it is read again."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epsilometer import Classifier
from epsilometer.audits.dpsgd.source import ModelOnRecords
from epsilometer.audits.federated.source import FederatedTask
from epsilometer.cli.audit import import_function
from epsilometer.cli.sources import DropoutOnRecords
from epsilometer.core.settings import from_settings, to_settings
from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.integrations.sklearn import TableModel

pytest.importorskip("sklearn")
pytest.importorskip("torch")


def nearest() -> Any:
    from sklearn.neighbors import KNeighborsClassifier

    return KNeighborsClassifier(1)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [f"{i % 7},{'ab'[i % 2]},{'yes' if i % 3 else 'no'}" for i in range(30)]
    path = tmp_path / "people.csv"
    path.write_text("\n".join(["age,town,sick", *rows]) + "\n", "utf-8")
    return path


@pytest.mark.parametrize(
    "make",
    [
        lambda path: ModelOnRecords(path, label="sick", records=20),
        lambda path: DropoutOnRecords(path, label="sick", model="dropout_mlp"),
        lambda path: TableModel(path, "sick"),
    ],
)
def test_a_file_is_named_by_its_name_and_its_hash(make: Any, table: Path) -> None:
    source = make(table)
    assert source.fingerprints() == (
        ("people.csv", hashlib.sha256(table.read_bytes()).hexdigest()),
    )
    assert "people.csv" in source.load()["title"]
    assert to_settings(source)["file"] == "people.csv"  # where it lies is nobody's business
    table.unlink()
    with pytest.raises(UnreadableFile, match=r"people\.csv"):
        source.load()
    with pytest.raises(UnreadableFile, match=r"people\.csv"):
        source.fingerprints()


def test_a_source_is_read_again_from_its_settings(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(table.parent)
    for source in (
        ModelOnRecords("people.csv", label="sick", records=20, divide_by=2.0, hidden=5),
        DropoutOnRecords("people.csv", label="sick", test=3, shadows=4, record="mislabelled"),
        TableModel("people.csv", "sick", drop=("town",), group=("age",), seed=4),
        FederatedTask("mnist-writers", "there", seed=2),
    ):
        written = to_settings(source)
        again = from_settings(type(source), written)
        assert again == source
        assert to_settings(again) == written


def test_a_table_brings_all_that_a_classifier_needs(table: Path) -> None:
    source = TableModel(table, "sick", group=("town", "age"))
    subject = Classifier(**source.load(), source=source, attacks=())
    assert subject.feature_names == ("age", "town")
    assert set(subject.groups) == {"town", "age"}  # type: ignore[arg-type]
    settings = to_settings(subject)
    assert not {"estimator", "X", "y", "groups"} & set(settings)


def test_a_model_of_ones_own_is_written_by_its_name(table: Path) -> None:
    source = TableModel(table, "sick", nearest)
    assert source.load()["title"] == "tests.cli.test_sources:nearest on people.csv"
    written = to_settings(source)
    assert written["model"] == {"function": "tests.cli.test_sources:nearest"}
    with pytest.raises(InvalidArgument, match="--trust"):
        from_settings(TableModel, written)
    assert from_settings(TableModel, written, trust=True).model is nearest
    with pytest.raises(InvalidArgument, match="called without arguments"):
        TableModel(table, "sick", lambda wrong: wrong).load()  # type: ignore[arg-type,misc]


def test_functions_are_imported_by_module_and_name() -> None:
    assert import_function("tests.cli.test_sources:nearest") is nearest
    for wrong in (
        "nowhere:make",
        "tests.cli.test_sources:nothing",
        "tests.cli.test_sources:",
        ":make",
    ):
        with pytest.raises(InvalidArgument, match="module:factory"):
            import_function(wrong)
    with pytest.raises(InvalidArgument, match="Expected a function"):
        import_function("epsilometer.integrations.sklearn:MODELS")


def test_a_task_is_looked_for_in_its_folder_and_then_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EPSILOMETER_DATA", raising=False)
    with pytest.raises(InvalidArgument, match=r"the folder of mnist\.npz, or the variable"):
        FederatedTask("mnist-writers").load()
    with pytest.raises(UnreadableFile, match=r"mnist\.npz"):
        FederatedTask("mnist-writers", tmp_path / "nowhere").load()
    rng = np.random.default_rng(0)
    x = rng.integers(256, size=(40, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "mnist.npz", x=x, y=np.arange(40) % 10, writer=np.arange(40) % 4)
    named = FederatedTask("mnist-writers", tmp_path)
    monkeypatch.setenv("EPSILOMETER_DATA", str(tmp_path))
    known = FederatedTask("mnist-writers", "elsewhere")
    assert named.fingerprints() == known.fingerprints()
    assert len(named.load()["clients"]) == len(known.load()["clients"])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ModelOnRecords("digits", model="cnn", hidden=3), "hidden"),
        (lambda: ModelOnRecords("digits", label="x").load(), "no label"),
        (lambda: ModelOnRecords("digits", records=10**6).load(), "records from 1 to 1797"),
        (lambda: DropoutOnRecords("digits", test=-1), "test"),
        (lambda: DropoutOnRecords("digits", shadows=0), "shadows"),
        (lambda: DropoutOnRecords("digits", records=1).load(), "to fit into the 1797 records"),
        (lambda: TableModel("x.csv", "y", seed=-1), "seed"),
        (lambda: FederatedTask("chess"), "task of digits, mnist-writers, shakespeare"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_is_told(make: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        make()
