"""Bad input that once got through, or came out as something other than a clear error."""

import contextlib
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import epsilometer as em
from epsilometer import ScoreCounts, Scores
from epsilometer.cli.main import main
from epsilometer.errors import EpsilometerError, InvalidArgument
from tests.audits.training.test_gradient_descent import TRAINING
from tests.examples import a_bound, an_audit
from tests.files.test_score_files import csv_text, written
from tests.report.test_terminal import shown


# --- validation
@pytest.mark.parametrize(
    "knobs",
    [{"seed": math.inf}, {"seed": 10**400}, {"seed": 1.0}, {"delta": 10**400}],
    ids=lambda k: str(k)[:20],
)
def test_odd_numbers_are_told(knobs):
    with contextlib.suppress(EpsilometerError):
        em.epsilon_lower_bound(Scores([1.0], [0.0]), **{"delta": 0.1, **knobs})


# --- observations
def test_mixed_scores_are_read_only():
    assert not Scores(np.ones(2, np.float32), np.ones(2)).inside.flags.writeable


def test_thresholds_are_read_only():
    assert not ScoreCounts.at([0.0, 1.0]).thresholds.flags.writeable


def test_twin_infinite_thresholds_are_told():
    with pytest.raises(InvalidArgument):
        ScoreCounts.at([math.inf, math.inf])


def test_masked_scores_are_not_silently_dropped():
    masked = np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])
    try:
        scores = Scores([0.0], masked)
    except InvalidArgument:
        return
    assert scores.errors_at(-9.0)[0] == scores.n_out


def test_tensors_as_thresholds_and_empty_blocks():
    torch = pytest.importorskip("torch")
    ScoreCounts.at(torch.tensor([0.0, 1.0])).add(inside=torch.tensor([]))


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t.tensor([1.0]).to(t.float8_e4m3fn),
        lambda t: t.empty(3, device="meta"),
        lambda t: t.tensor([1.0, 0]).to_sparse(),
    ],
    ids=["float8", "meta", "sparse"],
)
def test_odd_tensors_are_told(make):
    torch = pytest.importorskip("torch")
    with contextlib.suppress(EpsilometerError):
        Scores(make(torch), [0.0])


# --- readers
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_gap_in_the_middle_of_a_column_is_not_dropped(kind, tmp_path):
    """pandas writes nan as a blank or null: these are runs that diverged."""
    path = tmp_path / f"scores.{kind}"
    if kind == "csv":
        path.write_text("inside,outside\n1,0\n,0\n3,0\n")
    else:
        written(tmp_path, kind, {"inside": [1.0, None, 3.0], "outside": [0.0, 0.0, 0.0]})
    with pytest.raises(InvalidArgument):
        em.read_scores(path)


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_no_rows_are_not_called_outside_ones(kind, tmp_path):
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / f"scores.{kind}"
    if kind == "csv":
        path.write_text("score,member\n")
    elif kind == "npz":
        np.savez(path, score=[], member=[])
    else:
        pyarrow.parquet.write_table(
            pyarrow.table({"score": pyarrow.array([], "f8"), "member": pyarrow.array([], "i8")}),
            path,
        )
    with pytest.raises(InvalidArgument) as caught:
        em.read_scores(path)
    assert "only outside" not in str(caught.value)


def test_parquet_names_all_columns_found(tmp_path):
    with pytest.raises(InvalidArgument, match="'score', 'label'"):
        em.read_scores(written(tmp_path, "parquet", {"score": [1.0], "label": [1]}))


def test_unused_object_arrays_do_not_matter(tmp_path):
    np.savez(tmp_path / "x.npz", inside=[1.0], outside=[0.0], names=np.array(["a", None], object))
    em.read_scores(tmp_path / "x.npz")


def test_columns_of_two_dimensions_are_told(tmp_path):
    with pytest.raises(InvalidArgument):
        em.read_scores(written(tmp_path, "npz", {"score": [[1.0, 2.0]], "member": [[1, 0]]}))


def test_nulls_in_an_unused_column_do_not_matter(tmp_path):
    em.read_scores(
        written(tmp_path, "parquet", {"score": [1.0, 2.0], "member": [1, 0], "inside": [None, 2.0]})
    )


def test_leading_blank_line(tmp_path):
    em.read_scores(csv_text(tmp_path, "\nscore,member\n1,1\n2,0\n"))


def test_numbers_in_python_spelling_are_not_numbers(tmp_path):
    with pytest.raises(InvalidArgument):
        em.read_scores(csv_text(tmp_path, "score,member\n1_000,1\n2,0\n"))


# --- accounting
def test_fpr_outside_its_domain_is_told():
    from epsilometer.accounting import pld

    with pytest.raises(InvalidArgument):
        pld.poisson_curve([-1.0, 2.0], noise_multiplier=1.0, sampling_rate=1, steps=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 2.0},
        {"noise_multiplier": math.inf},
        {"noise_multiplier": 1e-3, "sampling_rate": 1.0},
    ],
    ids=str,
)
def test_odd_training_is_told_or_accounted(wrong):
    from epsilometer.accounting import pld

    good = {"noise_multiplier": 1.0, "sampling_rate": 0.5, "steps": 2, "delta": 1e-5}
    with contextlib.suppress(EpsilometerError):
        pld.poisson_epsilon(**{**good, **wrong})


# --- mechanisms
@pytest.mark.parametrize(
    "wrong",
    [
        {"target": np.ones(3)},
        {"target": np.ones((1, 4))},
        {"target_label": -1},
        {"labels": np.zeros(6)},
        {"labels": np.array([0, -1, 0, 1, 2, 0])},
        {"features": np.ones((0, 4)), "labels": np.zeros(0, int)},
    ],
    ids=lambda w: str(w)[:40],
)
def test_bad_shapes_are_told(wrong):
    with pytest.raises(InvalidArgument):
        replace(TRAINING, **wrong).play(2, np.random.default_rng(0))


# --- report
def test_zero_out_is_not_zero_or_out():
    assert "zero or out" not in shown(an_audit(bound=a_bound(adjacency="zero_out")))


# --- cli
@pytest.mark.parametrize(
    "arguments", [["selfcheck", "--seed", "-1"], ["demo", "--runs", "2", "--seed", "-1"]], ids=str
)
def test_a_negative_seed_is_told(arguments):
    assert CliRunner().invoke(main, arguments).exit_code == 2


def test_a_seed_of_400_digits_is_told(tmp_path):
    path = csv_text(tmp_path, "score,member\n1,1\n2,0\n")
    done = CliRunner().invoke(
        main, ["estimate", str(path), "--delta", "0.1", "--seed", "1" + "0" * 400]
    )
    assert done.exit_code in (0, 2)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_terminal_without_unicode_spells_letters_out(encoding, tmp_path):
    """It said "REFUTED: ? = 3"."""
    path = csv_text(tmp_path, "score,member\n1,1\n2,0\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("epsilometer"), "estimate", path, "--delta", "0.1"],
        check=False,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert done.returncode == 0, done.stderr[-200:]
    shown = done.stdout.decode(encoding)
    assert "eps" in shown
    assert "?" not in shown


def test_a_warning_of_ours_is_shown_in_our_words(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", inside=rng.normal(3, 1, 200), outside=rng.normal(0, 1, 200))
    done = subprocess.run(
        [
            Path(sys.executable).with_name("epsilometer"),
            "estimate",
            tmp_path / "x.npz",
            "--delta",
            "0.01",
            "--method",
            "one_run",
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert "scores.py" not in done.stderr, done.stderr


def test_demo_asks_first_whether_it_can_write(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "epsilometer.cli.demo.run_call", lambda *a, **k: pytest.fail("worked in vain")
    )
    done = CliRunner().invoke(main, ["demo", "--html", str(tmp_path / "no" / "x.html")])
    assert done.exit_code == 2


def test_an_interrupt_is_no_refutation(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("epsilometer.cli.audit.make_call", interrupted)
    assert CliRunner().invoke(main, ["estimate", "x.csv", "--delta", "0.1"]).exit_code != 1
