"""Models that were fitted elsewhere: loaded, attacked, searched, and never run unasked."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import epsilometer as em
from epsilometer.cli.main import main
from epsilometer.core.settings import from_settings
from epsilometer.errors import InvalidArgument
from epsilometer.findings import LeaveOneOut, MembershipFinding, RuleFinding
from epsilometer.integrations.sklearn.model_files import FittedTable, load_safely, load_trusted

pytest.importorskip("sklearn")
pd = pytest.importorskip("pandas")
skops = pytest.importorskip("skops.io")
from sklearn.base import clone  # noqa: E402
from sklearn.compose import make_column_transformer  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.neighbors import KNeighborsClassifier  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import OneHotEncoder, StandardScaler  # noqa: E402

N = 240
QUICK = ["--engine", "in-process", "--label", "income"]


def draw_people(seed: int = 0) -> Any:
    """People of two numbers and a job, whose labels are mostly noise; a third was never in."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.normal(size=(N, 2)), columns=["age", "rent"])
    table["job"] = rng.choice(["baker", "clerk", "smith"], N)
    table["income"] = np.where(table["age"] + 2 * rng.normal(size=N) > 0, "high", "low")
    table["was"] = np.where(np.arange(N) % 3 > 0, "train", "test")
    return table


def fit_model(table: Any, last: Any) -> Any:
    """Train on those who are in, by the names of columns."""
    inside = table[table["was"] == "train"]
    encode = make_column_transformer(
        (StandardScaler(), ["age", "rent"]), (OneHotEncoder(), ["job"])
    )
    return make_pipeline(encode, last).fit(inside[["age", "rent", "job"]], inside["income"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    table = draw_people()
    table.to_csv(tmp_path / "people.csv", index=False)
    skops.dump(fit_model(table, LogisticRegression()), tmp_path / "model.skops")
    nearest = fit_model(table, KNeighborsClassifier(1))
    (tmp_path / "nearest.pkl").write_bytes(pickle.dumps(nearest))
    return tmp_path


def call(folder: Path, model: str, *options: str, published_as: str = "api") -> Result:
    words = ["classifier", "--model", str(folder / model), "--data", str(folder / "people.csv")]
    words += [*QUICK, "--published-as", published_as, "--out", str(folder / "run"), *options]
    return CliRunner().invoke(main, words)


def outcomes(audit: em.Audit) -> dict[str, str]:
    return {rule.rule.partition(" above")[0]: rule.outcome for rule in audit.find(RuleFinding)}


def test_without_a_recipe_losses_are_attacked_and_nothing_is_cleared(folder: Path) -> None:
    done = call(folder, "model.skops", "--member", "was", published_as="labels")
    found = em.load(folder / "run")
    assert done.exit_code == 4, done.output
    (attack,) = found.find(MembershipFinding)
    assert (attack.attack, attack.n_in, attack.n_out) == ("loss", 160, 80)
    assert set(outcomes(found).values()) == {"unclear"}
    assert "attacked by its losses only" in " ".join(found.caveats)
    assert "reference models" in found.find(RuleFinding)[1].finding + " ".join(found.caveats)
    assert "--recipe own" in found.advice[0]


def test_records_are_computed_from_the_answers_of_a_fitted_model(folder: Path) -> None:
    done = call(folder, "model.skops", "--member", "was")
    assert done.exit_code == 1, done.output
    assert outcomes(em.load(folder / "run"))["no record computed from answers"] == "fail"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--member", "was"], "attacked by its losses only"),
        (["--member", "was", "--recipe", "own"], "attacked with reference models"),
        (["--drop", "was", "--recipe", "own"], "attacked through models of its recipe"),
        (["--drop", "was", "--recipe", "own", "--attacks", "none"], "not attacked"),
    ],
)
def test_the_answer_says_how_a_model_was_attacked(
    folder: Path, options: list[str], said: str
) -> None:
    if "--recipe" in options:
        options = [*options, "--shadows", "4", "--remedies", "0", "--records", "sample:5"]
    done = call(folder, "model.skops", *options)
    assert f"Pipeline of model.skops on people.csv, {said}\n" in done.output


def test_with_a_recipe_reference_models_are_trained_and_the_model_itself_is_attacked(
    folder: Path,
) -> None:
    options = ["--member", "was", "--recipe", "own", "--shadows", "8", "--remedies", "0"]
    done = call(folder, "model.skops", *options, "--records", "sample:5", "--group", "job")
    found = em.load(folder / "run")
    assert done.exit_code in (1, 4), done.output
    attacks = found.find(MembershipFinding)
    assert [attack.attack for attack in attacks] == [
        "loss threshold",
        "LiRA, online",
        "RMIA, online",
    ]
    assert {(attack.n_in, attack.n_out) for attack in attacks} == {(160, 80)}
    assert found.one(LeaveOneOut).measured == 5
    said = " ".join(found.caveats)
    assert "on the target" in said
    assert "all 240 records, of which the fitted one saw 160" in said


def test_a_recipe_alone_attacks_models_trained_by_it_and_says_so(folder: Path) -> None:
    options = ["--recipe", "own", "--shadows", "4", "--remedies", "0", "--records", "sample:5"]
    done = call(folder, "model.skops", *options, "--drop", "was")
    assert done.exit_code in (1, 4), done.output
    found = em.load(folder / "run")
    assert found.find(MembershipFinding)[0].n_in == 4 * 120
    assert "not the fitted one: no record is known to be outside" in " ".join(found.caveats)


def test_records_in_the_file_are_found_in_the_model_that_is_given(folder: Path) -> None:
    """The search is of the loaded model, and of those who were in it."""
    for recipe in ([], ["--recipe", "own", "--shadows", "4", "--remedies", "0"]):
        out = ["--member", "was", "--trust", *recipe, "--out", str(folder / f"run{len(recipe)}")]
        done = call(folder, "nearest.pkl", *out, published_as="file")
        assert done.exit_code == 1, done.output
        found = em.load(folder / f"run{len(recipe)}")
        rule = next(rule for rule in found.find(RuleFinding) if "file" in rule.rule)
        assert (rule.outcome, rule.value) == ("fail", 160.0), rule.finding


def test_a_pickle_runs_nothing_unless_it_is_trusted(folder: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(folder / "exploded"),)

    (folder / "bomb.pkl").write_bytes(pickle.dumps(Bomb()))
    (folder / "bomb.joblib").write_bytes(pickle.dumps(Bomb()))
    for name in ("bomb.pkl", "bomb.joblib"):
        done = call(folder, name)
        assert done.exit_code == 2
        assert "Expected --trust to load" in done.output
    # Nor does a file of settings that names what loads it.
    done = call(folder, "nearest.pkl", "--member", "was", "--trust")
    assert done.exit_code in (1, 4), done.output
    (folder / "nearest.pkl").write_bytes(pickle.dumps(Bomb()))
    settings = json.loads((folder / "run" / "result.json").read_text())["provenance"]["settings"]
    assert settings["source"]["reader"] == {
        "function": "epsilometer.integrations.sklearn.model_files:load_trusted"
    }
    settings["source"] |= {"file": str(folder / "people.csv"), "model": str(folder / "nearest.pkl")}
    with pytest.raises(InvalidArgument, match="Expected --trust"):
        from_settings(em.FittedClassifier, settings)
    assert not (folder / "exploded").exists()


def test_a_run_of_a_trusted_file_is_repeated_to_the_same_result(folder: Path) -> None:
    table = {"file": folder / "people.csv", "label": "income", "member": "was"}
    source = FittedTable(**table, model=str(folder / "nearest.pkl"), reader=load_trusted)
    subject = em.FittedClassifier(**source.load(), source=source)
    first, second = (em.audit(subject).to_json() for _ in range(2))
    assert first == second


def test_types_that_skops_does_not_know_need_trust(folder: Path) -> None:
    from sklearn.tree import DecisionTreeClassifier

    skops.dump(fit_model(draw_people(), DecisionTreeClassifier()), folder / "tree.skops")
    with pytest.raises(InvalidArgument, match=r"Tree\. Pass --trust"):
        load_safely(folder / "tree.skops")
    assert hasattr(load_trusted(folder / "tree.skops"), "predict_proba")


@pytest.mark.parametrize("zipmap", [True, False])
@pytest.mark.parametrize("names", [True, False])
def test_onnx_answers_as_the_model_that_was_converted(
    folder: Path, zipmap: bool, names: bool
) -> None:
    to_onnx = pytest.importorskip("skl2onnx").to_onnx
    table = draw_people()[["age", "rent", "income", "was"]]
    table["income"] = (table["income"] == "high").astype(int)
    table.to_csv(folder / "people.csv", index=False)
    inside = (table["was"] == "train").to_numpy()
    last = LogisticRegression()
    if names:  # each column is an input of its own
        last = make_pipeline(make_column_transformer((StandardScaler(), ["age", "rent"])), last)
    asked = table[["age", "rent"]].astype(np.float32)
    asked = asked if names else asked.to_numpy()
    model = last.fit(asked[inside], table["income"][inside])
    converted = to_onnx(model, asked[:1], options={"zipmap": zipmap})
    (folder / "model.onnx").write_bytes(converted.SerializeToString())
    how = {"file": folder / "people.csv", "label": "income", "member": "was"}
    read = FittedTable(model=str(folder / "model.onnx"), **how).load()
    said = read["model"].predict_proba(read["X"])
    assert said == pytest.approx(model.predict_proba(asked), abs=1e-5)
    assert (read["model"].predict(read["X"]) == (said[:, 1] > 0.5)).all()
    found = em.audit(em.FittedClassifier(**read))
    assert found.verdict == "cannot tell"  # what can be computed from its coefficients, say
    assert outcomes(found)["no record in the model's file"] == "unclear"


@pytest.mark.parametrize("published_as", ["file", "api"])
@pytest.mark.parametrize("share", [1.0, 0.9])
def test_records_are_not_cleared_of_a_model_that_was_trained_on_others(
    published_as: Any, share: float
) -> None:
    """Its coefficients solve the equations of others: of these records none can be computed.

    The same records in another order are spared.
    """
    table = draw_people()
    rows, y = table[["age", "rent"]].to_numpy(), table["income"].to_numpy()
    recipe = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-2))  # hides single records
    order = np.random.default_rng(1).permutation(N)[: round(share * N)]
    fitted = clone(recipe).fit(rows[order], y[order])
    subject = em.Classifier(
        recipe, rows, y, fitted=fitted, published_as=published_as, attacks=(), remedies=0
    )
    found = em.audit(subject, engine=em.InProcess())
    rule = next(rule for rule in found.find(RuleFinding) if rule.rule.startswith("no record "))
    assert rule.outcome == ("pass" if share == 1 else "unclear"), rule.finding
    assert ("on other records" in rule.finding) is (share < 1)


def test_a_model_of_another_recipe_is_said_to_be_unlike_it() -> None:
    table = draw_people()
    rows, y = table[["age", "rent"]].to_numpy(), table["income"].to_numpy()
    how: dict[str, Any] = {"attacks": ("loss",), "shadows": 6, "records": [0], "remedies": 0}
    for k, unlike in ((25, False), (1, True)):
        subject = em.Classifier(
            KNeighborsClassifier(25), rows, y, fitted=KNeighborsClassifier(k).fit(rows, y), **how
        )
        found = em.audit(subject, engine=em.InProcess())
        assert ("trained differently" in " ".join(found.caveats)) is unlike


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--member", "job"], "Expected 1 or 0, yes or no, train or test in 'job'"),
        (["--label", "was"], "Expected labels among the 2 classes of the model"),
        (["--shadows", "8"], "Expected --recipe own or module:factory with --shadows"),
        (["--recipe", "mine"], "Expected recipe 'own' or module:factory"),
        ([], "Expected records that the model was not trained on, found none"),
        (["--group", "job", "--member", "was"], "Expected a recipe with groups"),
        (["--drop", "age", "--member", "was"], "1 are not in the table: age"),
        (["--model-file", "x"], "Expected no --model-file with --model FILE"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(folder: Path, options: list[str], said: str) -> None:
    done = call(folder, "model.skops", *options)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split()), done.output


def test_a_recipe_needs_a_fitted_model(folder: Path) -> None:
    words = ["classifier", str(folder / "people.csv"), *QUICK, "--published-as", "api"]
    done = CliRunner().invoke(main, [*words, "--recipe", "own"])
    assert done.exit_code == 2
    assert "Expected --recipe with --model FILE" in done.output


def test_a_source_of_another_subject_is_refused_in_words(folder: Path) -> None:
    source = {"type": "table-model", "file": str(folder / "people.csv"), "label": "income"}
    with pytest.raises(InvalidArgument, match="Expected a source of FittedClassifier"):
        from_settings(em.FittedClassifier, {"source": source})


def test_false_alarms_of_the_losses_are_no_more_than_promised() -> None:
    """Models that never saw the people who are said to be in: 5 % may be accused."""
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(40):
        rows, y = rng.normal(size=(400, 3)), rng.integers(2, size=400)
        model = KNeighborsClassifier(1).fit(rows[200:], y[200:])
        member = rng.random(200) < 0.5
        subject = em.FittedClassifier(model, rows[:200], y[:200], member=member, published_as="api")
        alarms += em.audit(subject).verdict == "do not release"
    assert alarms <= 5  # Bin(40, 0.05) is above in 1.4 % of cases


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("bad.skops", b"no archive", "that can be loaded, got BadZipFile"),
        ("bad.onnx", b"no model" * 9, "Expected a model in the file of ONNX"),
        ("empty.onnx", b"", "that takes records, got no input"),
        ("bad.pkl", b"\x80\x04no pickle", "that can be loaded"),
        ("list.pkl", pickle.dumps([1]), "Expected a fitted classifier in 'list.pkl', got list"),
    ],
)
def test_files_that_hold_no_model_are_refused_in_words(
    name: str, content: bytes, said: str, folder: Path
) -> None:
    (folder / name).write_bytes(content)
    done = call(folder, name, "--trust", "--member", "was")
    assert done.exit_code == 2
    assert said in " ".join(done.output.split()), done.output
