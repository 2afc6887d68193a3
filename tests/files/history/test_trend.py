"""One thing over releases."""

from pathlib import Path

from epsilometer.files.history.index import History
from epsilometer.files.history.trend import trends
from tests.examples import a_claim, a_release, a_series, an_audit
from tests.files.history.folders import NOON, digits, put


def test_results_of_one_subject_are_followed_by_date_or_by_name(tmp_path: Path) -> None:
    for at, (name, epsilon) in enumerate({"v10": 1.0, "v9": 2.0, "v8": 3.0}.items()):
        put(tmp_path / name / "result.json", digits(epsilon), written=NOON + at)
    entries = History(tmp_path).entries
    (by_date,), (by_name,) = trends(entries), trends(entries, by="name")
    assert by_date.values == (1.0, 2.0, 3.0)
    assert [entry.label for entry in by_name.entries] == ["v8", "v9", "v10"]
    assert (by_date.subject, by_date.delta, by_date.measure) == ("digits", 1e-5, "ε")


def test_what_cannot_be_compared_is_followed_apart(tmp_path: Path) -> None:
    put(tmp_path / "a.json", digits(1.0))
    put(tmp_path / "b.json", digits(1.0, adversary="sees all"))
    put(tmp_path / "c.json", a_series())
    put(tmp_path / "d.json", a_release())
    found = trends(History(tmp_path).entries)
    assert len(found) == 9
    assert found[-1].measure == "TPR − FPR"
    assert found[-1].values == (0.2,)
    assert {trend.delta for trend in found} == {1e-5, None}


def test_what_else_changed_is_noted(tmp_path: Path) -> None:
    put(tmp_path / "a.json", digits(1.0))
    put(tmp_path / "b.json", digits(2.0), written=NOON + 1)
    put(tmp_path / "c.json", digits(2.0, n_in=2234, method="gdp"), written=NOON + 2)
    put(tmp_path / "d.json", an_audit(subject="digits", claim=a_claim(3.0)), written=NOON + 3)
    (found,) = trends(History(tmp_path).entries)
    assert found.notes == (
        "",
        "",
        "observations 1,801 → 2,801; method clopper_pearson → gdp",
        "observations 2,801 → 1,801; method gdp → clopper_pearson; claimed ε 1.0 → 3.0",
    )
