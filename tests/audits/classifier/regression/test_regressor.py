"""Regressors: exact changes agree with refits, leaks are found, models that forget are spared."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from click.testing import CliRunner

import epsilometer as em
from epsilometer.audits.classifier.attacks.shadow_attacks import ATTACKS
from epsilometer.audits.classifier.regression.leaving import _Refits, leave_out
from epsilometer.audits.classifier.regression.residuals import make_pool
from epsilometer.audits.classifier.regression.targets import FitRegressor, read_targets
from epsilometer.audits.classifier.release import Attacked, measure_attack
from epsilometer.cli.main import main
from epsilometer.core import judge
from epsilometer.errors import InvalidArgument
from epsilometer.findings import GroupRisk, MembershipFinding, PredictionChange, RuleFinding
from epsilometer.stats import clusters

pytest.importorskip("sklearn")
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import IsolationForest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Lasso, LinearRegression, LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import RobustScaler, StandardScaler
from sklearn.tree import DecisionTreeRegressor

FLAKE = 1e-6
HERE = em.InProcess()


def people(n: int = 200, d: int = 4, outputs: int = 1, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))  # noqa: N806
    y = X @ rng.normal(size=(d, outputs)) + rng.normal(size=(n, outputs))
    return X, y[:, 0] if outputs == 1 else y


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(
    "estimator",
    [
        LinearRegression(),
        LinearRegression(fit_intercept=False),
        Ridge(3.0),
        Ridge(0.5, fit_intercept=False),
        KNeighborsRegressor(3),
        KNeighborsRegressor(5, weights="distance"),
    ],
    ids=str,
)
@pytest.mark.in_turn(2)
def test_exact_changes_are_those_of_refits(estimator: Any, outputs: int) -> None:
    X, y = people(60, outputs=outputs)  # noqa: N806
    targets = read_targets(y)
    left = leave_out(estimator, X, targets)
    assert left.path.startswith("exact")
    refits = _Refits(FitRegressor(estimator, X, targets), 0)
    every = np.arange(60)
    np.testing.assert_allclose(left.without, refits.without(every, None), atol=1e-9)
    np.testing.assert_allclose(left.full, refits.whole(every, seed=None), atol=1e-9)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(
    "steps",
    [(StandardScaler(),), (SimpleImputer(), RobustScaler()), (SimpleImputer(), PCA(2))],
    ids=str,
)
@pytest.mark.parametrize(
    "last", [Ridge(3.0), LinearRegression(), KNeighborsRegressor(4, weights="distance")], ids=str
)
def test_records_leave_preprocessing_as_in_refits(last: Any, steps: Any, outputs: int) -> None:
    X, y = people(50, outputs=outputs)  # noqa: N806
    rng = np.random.default_rng(0)
    if len(steps) > 1:
        X = np.where(rng.random(X.shape) < 0.1, np.nan, X)  # noqa: N806
    X[8] *= 1e7  # too far out for differences of sums
    targets, estimator = read_targets(y), make_pipeline(*steps, last)
    left = leave_out(estimator, X, targets, engine=HERE)
    assert left.path.startswith("exact")
    refits = _Refits(FitRegressor(estimator, X, targets), 0)
    every = np.arange(50)
    expected = refits.without(every, None)
    np.testing.assert_allclose(left.without, expected, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(left.full, refits.whole(every, seed=None), atol=1e-7)


@pytest.mark.parametrize(
    "estimator",
    [
        LinearRegression(positive=True),
        make_pipeline(StandardScaler(), Ridge(positive=True)),
        DecisionTreeRegressor(random_state=0),
    ],
    ids=str,
)
def test_what_has_no_exact_way_is_refitted(estimator: Any) -> None:
    X, y = people(40)  # noqa: N806
    left = leave_out(estimator, X, read_targets(y), engine=HERE)
    assert left.path == "refits"
    record = 7
    others = np.delete(np.arange(40), record)
    from sklearn.base import clone

    model = clone(estimator).fit(X[others], y[others])
    np.testing.assert_allclose(left.without[record], model.predict(X[[record]]), atol=1e-9)


@pytest.mark.parametrize(("n", "left"), [(2_500, 500), (10_000, 200), (60_000, 40)])
def test_of_large_tables_so_many_are_refitted_as_take_minutes(n: int, left: int) -> None:
    X, y = people(n)  # noqa: N806
    found = leave_out(DummyRegressor(strategy="median"), X, read_targets(y), engine=HERE)
    assert (found.path, found.records.size, found.drawn) == ("refits", left, True)
    assert f"{left} of {n:,} records were drawn" in found.caveats[-1]


def audit(estimator: Any, n: int = 300, **settings: Any) -> em.Audit:
    return em.audit(em.Regressor(estimator, *people(n), **settings), engine=HERE)


def outcomes(found: em.Audit) -> dict[str, str]:
    return {rule.rule.split(" at most")[0]: rule.outcome for rule in found.find(RuleFinding)}


def test_a_model_that_remembers_is_held_back_for_every_reason() -> None:
    found = audit(DecisionTreeRegressor(random_state=0), n=150, shadows=8)
    assert found.verdict == judge.DO_NOT_RELEASE
    fails = {rule for rule, outcome in outcomes(found).items() if outcome == "fail"}
    assert "change of prediction" in fails
    assert "no record in the model's file" in fails
    assert any("TPR − FPR" in rule for rule in fails)


def test_a_file_of_neighbours_holds_rows_and_numbers() -> None:
    found = audit(KNeighborsRegressor(100), attacks=())
    (worst, *_) = found.find(RuleFinding)
    assert worst.outcome == "fail"
    assert "holds the records of 300 of 300 people" in worst.finding


def test_the_last_record_is_computed_from_coefficients() -> None:
    found = audit(LinearRegression(), attacks=())
    (worst, *_) = found.find(RuleFinding)
    assert "computes the records of 300 of 300 people" in worst.finding


TOLD: dict[str, tuple[Any, int]] = {
    "least squares": (LinearRegression(), 1),
    "scaled": (make_pipeline(StandardScaler(), Ridge()), 1),
    "several": (Ridge(), 3),
    "absolute": (Lasso(0.05, tol=1e-10), 1),
    "logarithms": (TransformedTargetRegressor(Ridge(), func=np.sinh, inverse_func=np.arcsinh), 1),
}


@pytest.mark.parametrize("name", TOLD)
def test_answers_of_linear_models_tell_what_their_files_do(name: str) -> None:
    estimator, outputs = TOLD[name]
    X, y = people(300, outputs=outputs)  # noqa: N806
    for published_as, rule in (
        ("file", "no record in the model's file"),
        ("api", "no record computed from answers"),
    ):
        subject = em.Regressor(estimator, X, y, published_as=published_as, attacks=())
        assert outcomes(em.audit(subject, engine=HERE))[rule] == "fail"


def test_rounded_answers_are_not_passed_untried() -> None:
    how: Any = {"published_as": "api", "attacks": (), "rounding": 5.0}
    found = audit(LinearRegression(), **how)
    assert outcomes(found)["no record computed from answers"] == "unclear"
    tree = outcomes(audit(DecisionTreeRegressor(max_leaf_nodes=3), **how))
    assert tree["no record computed from answers"] == "pass"


def test_a_bad_model_is_no_unit_of_its_own_changes() -> None:
    """It always says the greatest number, which is one person's, and errs by as much."""
    X, y = people()  # noqa: N806
    numbers = np.where(np.arange(200) == 7, 500.0, y)
    greatest = DummyRegressor(strategy="quantile", quantile=1.0)
    found = em.audit(
        em.Regressor(greatest, X, numbers, published_as="api", attacks=()), engine=em.InProcess()
    )
    assert found.verdict == "do not release"
    unit = found.one(PredictionChange).unit
    assert unit == "the usual error of the model or of a constant prediction"
    right = audit(LinearRegression(), published_as="api", attacks=()).one(PredictionChange)
    assert right.unit == "the model's median error on records outside training"


def test_a_constant_is_spared() -> None:
    found = em.audit(em.Regressor(DummyRegressor(), *people(3000), attacks=()), engine=HERE)
    assert found.one(PredictionChange).exposed == 0
    assert outcomes(found)["no record in the model's file"] == "pass"


def test_attacks_on_what_forgets_are_no_better_than_chance() -> None:
    """Of models that learned nothing, limits on the advantage cover 0 (95 %)."""
    alarms, audits = 0, 60
    for seed in range(audits):
        rng = np.random.default_rng(seed)
        coins = rng.random((2, 80)) < 0.5
        member = np.concatenate([coins, ~coins])
        pool = make_pool(rng.normal(size=(4, 80, 1)), member, rng.normal(size=(80, 1)))
        scores = np.stack([ATTACKS["rmia"](pool, target, rng).values for target in range(4)])
        observed = clusters.ScoresByRecord.from_models(scores, member)
        alarms += measure_attack(Attacked(name="rmia", scores=observed)).advantage_low > 0
    assert alarms <= scipy.stats.binom.isf(FLAKE, audits, 0.05)


def test_noise_hides_what_residuals_show() -> None:
    tree, few = DecisionTreeRegressor(random_state=0), "sample:50"
    loud = audit(tree, published_as="api", shadows=8, records=few)
    quiet = audit(tree, published_as="api", shadows=8, noise=50.0, records=few)
    first, second = (max(a.advantage for a in f.find(MembershipFinding)) for f in (loud, quiet))
    assert first > 0.9
    assert second < 0.2
    assert quiet.one(PredictionChange).exposed == 0
    assert quiet.one(PredictionChange).unit == "the standard deviation of the API's noise"
    assert any("averaging k answers" in caveat for caveat in quiet.caveats)


def test_units_are_the_rounding_where_it_is_stated() -> None:
    X, y = people(100)  # noqa: N806
    fine = em.Regressor(LinearRegression(), X, y, attacks=(), published_as="api", rounding=1e-3)
    rough = em.Regressor(LinearRegression(), X, y, attacks=(), published_as="api", rounding=10.0)
    changes = [em.audit(each, engine=HERE).one(PredictionChange) for each in (fine, rough)]
    assert changes[0].largest > 1 > changes[1].largest
    left = leave_out(LinearRegression(), X, read_targets(y))
    exact = np.abs(left.full - left.without).ravel() / 1e-3
    seen = np.abs(np.round(left.full / 1e-3) - np.round(left.without / 1e-3)).ravel()
    assert changes[0].largest == pytest.approx(np.minimum(exact, seen).max())


class Exponential:
    """Survival with one hazard for all, and a little more for those it was trained on."""

    def __init__(self, memory: float = 0.0) -> None:
        self.memory = memory

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {"memory": self.memory}

    def set_params(self, **given: Any) -> "Exponential":
        return self

    def fit(self, X: Any, y: Any) -> "Exponential":  # noqa: N803
        self.rate_ = y["event"].sum() / y["time"].sum()
        self.known_ = {tuple(row): event for row, event in zip(X, y["event"], strict=True)}
        return self

    def predict_cumulative_hazard_function(self, X: Any) -> Any:  # noqa: N803
        return [self._hazard(tuple(row)) for row in X]

    def _hazard(self, row: Any) -> Any:
        known = self.memory * self.known_.get(row, 0.5)
        return lambda time: (1 - self.memory) * self.rate_ * time + known


def test_survival_models_are_audited_by_martingale_residuals() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 2))  # noqa: N806
    y = np.array(
        [*zip(rng.random(120) < 0.7, rng.exponential(size=120), strict=True)],
        [("event", "?"), ("time", "f8")],
    )
    found = {}
    for memory in (0.0, 1.0):
        subject = em.Regressor(Exponential(memory), X, y, published_as="api", shadows=8)
        found[memory] = em.audit(subject, engine=HERE)
    assert found[0.0].one(PredictionChange).exposed == 0
    assert max(a.advantage_low for a in found[0.0].find(MembershipFinding)) < 0.1
    assert max(a.advantage_low for a in found[1.0].find(MembershipFinding)) > 0.8
    assert any("martingale" in caveat for caveat in found[0.0].caveats)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: em.Regressor(KMeans(), *people()), "groups records and predicts nothing"),
        (lambda: em.Regressor(IsolationForest(), *people()), "how unusual a record is"),
        (lambda: em.Regressor(LogisticRegression(), *people()), "em.Classifier"),
        (lambda: em.Regressor(StandardScaler(), *people()), "changes records"),
        (lambda: em.Regressor(ColumnTransformer([]), *people()), "changes records"),
        (lambda: em.Classifier(KMeans(), *people()), "take the groups as labels"),
        (lambda: em.Classifier(IsolationForest(), *people()), "how unusual a record is"),
        (lambda: em.Classifier(Ridge(), *people()), "em.Regressor"),
        (lambda: em.Regressor(Ridge(), *people(), attacks="distance"), "attacks among loss"),
        (lambda: em.Regressor(Ridge(), *people(), noise=1.0), "published_as='api'"),
        (lambda: em.Regressor(Ridge(), *people(), rules=em.rules.PdtpAtMost()), "ChangeAtMost"),
    ],
)
def test_what_is_not_judged_is_refused_in_words_that_fit(make: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        make()


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (["a", "b"] * 20, "Classes are audited"),
        ([np.nan, 1.0] * 20, "finite"),
        ([1.0] * 40, "differ"),
        (np.zeros((2, 2, 2)), "shape"),
        (np.arange(30.0), "as many rows"),
        (np.zeros(40, [("time", "f8"), ("event", "?")]), "event, time"),
    ],
)
def test_what_are_no_numbers_is_refused(y: Any, said: str) -> None:
    X, _ = people(40)  # noqa: N806
    with pytest.raises(InvalidArgument, match=said):
        em.audit(em.Regressor(Ridge(), X, y), engine=HERE)


def test_the_pool_ranks_by_residuals() -> None:
    rng = np.random.default_rng(0)
    member = rng.random((6, 50)) < 0.5
    said, values = rng.normal(size=(6, 50, 1)), rng.normal(size=(50, 1))
    pool = make_pool(said, member, values)
    residual = np.abs(said - values)[:, :, 0]
    order = np.argsort(residual, axis=None)
    assert (np.diff(pool.own.ravel()[order]) <= 0).all()
    assert (np.diff(pool.margins().ravel()[order]) <= 1e-5).all()


def write(path: Path, n: int = 90) -> Path:
    rng = np.random.default_rng(0)
    age, job = rng.integers(18, 80, n), rng.integers(3, size=n)
    pay = 1000 + 20 * age + 300 * job + rng.normal(0, 100, n)
    rows = (f"{age[i]};{'abc'[job[i]]};{pay[i]:.2f}".replace(".", ",") for i in range(n))
    path.write_text("age;job;pay\n" + "\n".join(rows))
    return path


def test_the_command_judges_a_table(tmp_path: Path) -> None:
    table = write(tmp_path / "people.csv")
    call = ["regressor", str(table), "--label", "pay", "--attacks", "none", "--group", "job"]
    call += ["--engine", "in-process", "--quiet", "--out", str(tmp_path / "run")]
    kept = CliRunner().invoke(main, [*call, "--published-as", "api", "--noise", "100"])
    assert kept.exit_code == 0, kept.output
    found = em.load(tmp_path / "run" / "result.json")
    assert found.verdict == judge.RELEASE
    assert {group.name for group in found.find(GroupRisk)} == {"a", "b", "c"}
    assert "PDTP" not in (tmp_path / "run" / "report.html").read_text()
    call[-1] = str(tmp_path / "other")
    held = CliRunner().invoke(main, [*call, "--published-as", "file"])
    assert held.exit_code == 1, held.output
    wrong = CliRunner().invoke(main, ["regressor", str(table), "--label", "job"])
    assert wrong.exit_code == 2
