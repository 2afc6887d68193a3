"""Published settings that shuffle, the table of them, and the law of large batches."""

import importlib
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import scipy.stats

from epsilometer.accounting.pld import poisson_epsilon
from epsilometer.cli.reproduce import list_papers

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "reproductions" / "shuffling" / "README.md").read_text("utf-8")
SHUFFLING = (ROOT / "docs" / "shuffling.md").read_text("utf-8")


def load_script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "reproductions" / "shuffling")
    return importlib.import_module(name)


def test_every_setting_has_a_source_and_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels of the page follow from the numbers beside them."""
    script = load_script("published_settings", monkeypatch)
    table = PAGE.split(script.BEGIN)[1].split(script.END)[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    settings = script.read_rows()
    assert len(rows) == len(settings) >= 79
    counted = {script.STANDS: 0, script.FALLS: 0, script.OPEN: 0}
    for setting, row in zip(settings, rows, strict=True):
        assert setting["source"]
        assert setting["shuffles"] in ("stated", "code")
        assert row[0] == f"| {setting['name']}"
        low, high = map(float, re.findall(r"[\d.]+", row[6]))
        margin = 1.0 if setting["noise_multiplier"] else script._CALIBRATED
        label = script.judge_reported(
            float(setting["reported"]), script.Ends(low, high, ""), margin=margin
        )
        assert row[7] == label
        counted[label] += 1
    for label, count in counted.items():
        assert f"{count} {label}" in table
    assert f"For {counted[script.FALLS]} of [{len(rows)} published settings]" in SHUFFLING
    assert f"cannot be true; {counted[script.OPEN]} are open." in SHUFFLING
    audited = [row[7] for row in rows if row[8].startswith(script.AUDITED)]
    fall = audited.count(script.FALLS)
    assert f"Of the {len(audited)} of De et al. and Li et al., {fall} {script.FALLS}" in table
    paper = (ROOT / "docs" / "papers" / "annamalai2025.md").read_text("utf-8")
    assert f"gives {len(audited)}, of which\n  [{fall} cannot stand]" in paper
    missing = dict(list_papers()["shuffling"].missing)
    why = missing["The 101 settings of which two thirds show a gap"]
    assert f"gives {len(audited) - 6} more; {fall} of these {len(audited)} cannot stand" in why


def test_epsilons_of_poisson_sampling_are_computed_again() -> None:
    """Those of docs/shuffling.md and of Table I here; another accountant changes their digits."""
    table = next(item for item in list_papers()["shuffling"].items if item.name == "table-1")
    ours = {row.name: row.ours.value for row in table.rows}
    number = r"([\d.]+) \| "
    rows = re.findall(rf"^\| ([\w-]+) \| {number * 4}", SHUFFLING, re.MULTILINE)
    assert len(rows) == 6
    for name, noise, steps, epochs, printed in rows:
        epsilon = poisson_epsilon(
            noise_multiplier=float(noise),
            sampling_rate=1 / int(steps),
            steps=int(steps) * int(epochs),
            delta=1e-5,
            adjacency="zero_out",
        )
        assert printed == ours[f"{name}: Poisson ε"] == f"{epsilon:.3f}"


def test_both_ends_of_a_row_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script("published_settings", monkeypatch)
    row = script.make_setting(
        {
            "name": "x", "shuffles": "code", "records": "", "batch_size": "", "steps": "117",
            "epochs": "10", "updates": "", "noise_multiplier": "0.79", "reported": "3",
            "delta": "1e-5", "source": "here",
        }
    )  # fmt: skip
    ends = script.compute_ends(row)
    assert ends.low == pytest.approx(17.75, abs=0.01)
    assert ends.high == pytest.approx(24.41, abs=0.01)
    assert script.judge_reported(row.reported, ends) == script.FALLS
    assert script.judge_reported(25.0, ends) == script.STANDS


def test_noise_that_no_accountant_reports_is_not_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ε = 0.1 no order suffices, and the search once ended at the end of its interval."""
    script = load_script("published_settings", monkeypatch)
    with pytest.raises(ValueError, match=r"got 0\.1"):
        script.calibrate_noise(0.1, 1e-5, 1024 / 42_061, 410)


def test_the_debiased_ratio_is_that_of_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside densities of SciPy, with a bias that steps share."""
    script = load_script("large_batches", monkeypatch)
    sigma, shared, own, steps = 1.3, 0.4, 0.2, 4
    seen = np.random.default_rng(0).normal(-1, 1, (5, steps))
    covariance = (sigma**2 + own) * np.eye(steps) + shared
    present, absent = (
        np.log(
            np.mean(
                [
                    scipy.stats.multivariate_normal.pdf(
                        seen + 1, mean * np.eye(steps)[k], covariance
                    )
                    for k in range(steps)
                ],
                axis=0,
            )
        )
        for mean in (2.0, 1.0)
    )
    found = script.score_debiased(seen, sigma, shared, own)
    np.testing.assert_allclose(found, present - absent, rtol=1e-9)
    np.testing.assert_allclose(
        script.score_debiased(seen, sigma, 0.0, 0.0), script.score_plain(seen, sigma), rtol=1e-9
    )


def test_variances_of_a_bias_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script("large_batches", monkeypatch)
    rng = np.random.default_rng(0)
    bias = rng.normal(0, 0.5, (20_000, 1)) + rng.normal(0, 0.3, (20_000, 10))
    shared, own = script.split_variance(bias)
    assert shared == pytest.approx(0.25, rel=0.05)
    assert own == pytest.approx(0.09, rel=0.05)
