"""Results of other tools: recognised, read as they mean them, and never given a design unasked.

``tool_results/`` holds what the tools really wrote, of records that were drawn at random: SACRO-ML
2.0.1, tensorflow-empirical-privacy 0.1.0, Privacy Meter at commit e384af8 (its RMIA; the file
``_average_dp`` of two models), LiRA of privacyguard-platform 0.0.2, saved by ``to_csv``, and what
two attacks of the Adversarial Robustness Toolbox 1.20.1 inferred, saved by ``numpy.savez``.
"""

import io
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import epsilometer as em
from epsilometer.core.serialisation import from_json
from epsilometer.errors import EpsilometerError, InvalidArgument
from epsilometer.files.inert_pickle import Reader
from epsilometer.files.score_files import ScoreFile
from epsilometer.files.tool_results.reading import TOOLS
from tests.cli.calls import call
from tests.sample_files import Columns, Planted, table

HERE = Path(__file__).parent / "tool_results"
SACRO, TF = HERE / "sacro_ml" / "report.json", HERE / "tf_privacy.pickle"


def auc(scores: em.Scores) -> float:
    """The chance that one inside exceeds one outside, by every pair."""
    above = scores.inside[:, None] - scores.outside[None, :]
    return float(np.mean((above > 0) + 0.5 * (above == 0)))


def read(path: Path, **asked: Any) -> em.Scores:
    return em.read_scores(path, design="fixed", **asked)


def same(scores: em.Scores, inside: list[float], outside: list[float]) -> bool:
    return scores.inside.tolist() == inside and scores.outside.tolist() == outside


def test_scores_of_sacro_ml_have_the_auc_that_it_reports() -> None:
    for name, attack in (("LiRA", "lira"), ("WorstCase", "instance_1")):
        (report,) = (r for key, r in json.loads(SACRO.read_text()).items() if key.startswith(name))
        logged = report["attack_experiment_logger"]["attack_instance_logger"]
        reported = list(logged.values())[-1]
        scores = read(SACRO, attack=attack)
        assert scores.n_in == reported["n_pos_test_examples"]
        assert auc(scores) == pytest.approx(reported["AUC"], abs=1e-7)


def test_arrays_of_sacro_ml_are_read_alone_and_inside_the_report(tmp_path: Path) -> None:
    whole = read(SACRO, attack="lira")
    arrays = SACRO.parent / "report_arrays_e07f9234_instance_0.npz"
    assert same(read(arrays), whole.inside.tolist(), whole.outside.tolist())
    report = json.loads(SACRO.read_text())
    (lira,) = (key for key in report if key.startswith("LiRA"))
    instance = report[lira]["attack_experiment_logger"]["attack_instance_logger"]["instance_0"]
    del instance["arrays_file"]
    with np.load(arrays) as kept:
        names = ("member_prob", "member")
        instance["individual"] = {n: kept[f"individual.{n}"].tolist() for n in names}
    older = tmp_path / "report.json"
    older.write_text(json.dumps({lira: report[lira]}))
    assert same(read(older), whole.inside.tolist(), whole.outside.tolist())


def test_a_roc_curve_alone_gives_the_errors_of_the_scores(tmp_path: Path) -> None:
    shutil.copytree(SACRO.parent, tmp_path / "copy")
    arrays = tmp_path / "copy" / "report_arrays_e07f9234_instance_0.npz"
    with np.load(SACRO.parent / arrays.name) as kept:
        np.savez(arrays, fpr=kept["fpr"], tpr=kept["tpr"])
        points = list(zip(kept["fpr"].tolist(), kept["tpr"].tolist(), strict=True))
    ranked = read(tmp_path / "copy" / "report.json", attack="lira")
    assert auc(ranked) == pytest.approx(auc(read(SACRO, attack="lira")), abs=1e-12)
    for fpr, tpr in points[1:]:
        errors = {ranked.errors_at(t) for t in np.unique(ranked.inside)}
        errors |= {ranked.errors_at(t) for t in np.unique(ranked.outside)}
        assert (round(fpr * 60), 60 - round(tpr * 60)) in errors
    np.savez(arrays, fpr=[0.0, 0.51, 1.0], tpr=[0.0, 0.5, 1.0])  # of no 60 records
    with pytest.raises(InvalidArgument, match="whole ROC curve"):
        read(tmp_path / "copy" / "report.json", attack="lira")


@pytest.mark.parametrize("count", ["1e300", "1e11", "-3", "0", "NaN", "2.5", '"many"', "null"])
def test_a_curve_of_no_possible_number_of_records_is_refused(tmp_path: Path, count: str) -> None:
    sizes = f'"n_pos_test_examples": {count}, "n_neg_test_examples": 5'
    instance = f'{{"fpr": [0, 1], "tpr": [0, 1], {sizes}}}'
    logged = f'{{"attack_instance_logger": {{"instance_0": {instance}}}}}'
    path = tmp_path / "report.json"
    path.write_text(
        f'{{"a": {{"metadata": {{"attack_name": "LiRA"}}, "attack_experiment_logger": {logged}}}}}'
    )
    with pytest.raises(InvalidArgument):
        read(path)


def test_scores_in_two_columns_are_not_halved(tmp_path: Path) -> None:
    path = tmp_path / "attack_result_0.npz"
    np.savez(path, scores=[[1.0, 2.0], [3.0, 4.0]], memberships=[[1, 0], [0, 1]])
    with pytest.raises(InvalidArgument, match="row of scores"):
        read(path)


def test_an_attack_that_learnt_from_records_outside_is_refused(tmp_path: Path) -> None:
    report = {"QMIA Attack_1": {"metadata": {"attack_name": "QMIA Attack"}, "status": "failed"}}
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    with pytest.raises(InvalidArgument, match="thresholds from the records outside"):
        read(path)


def test_a_report_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    text = SACRO.read_text().replace("report_arrays_e07f9234", "../report_arrays_e07f9234")
    shutil.copy(SACRO.parent / "report_arrays_e07f9234_instance_0.npz", tmp_path)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "report.json").write_text(text)
    with pytest.raises(InvalidArgument, match="next to the report"):
        read(tmp_path / "inner" / "report.json", attack="lira")


def test_scores_of_tensorflow_privacy_have_its_roc_curve() -> None:
    tree: Any = Reader(io.BytesIO(TF.read_bytes())).load()
    threshold, learnt = tree.single_attack_results
    curve = threshold.roc_curve
    area = float(np.trapezoid(curve.tpr, curve.fpr))
    scores = read(TF)  # the other attack is learnt, and so there is one to choose
    assert (scores.n_in, scores.n_out) == (40, 30)
    assert auc(scores) == pytest.approx(area, abs=1e-12)
    assert learnt.membership_scores_train.size == 40  # it is there, and left alone
    with pytest.raises(InvalidArgument, match="Expected which attack"):
        read(TF, attack="lr")


def test_an_attack_that_was_trained_on_memberships_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "learnt.pickle"
    text = TF.read_bytes()
    assert text.count(b"\x8c\x09threshold\x94") == 1
    path.write_bytes(text.replace(b"\x8c\x09threshold", b"\x8c\x09logistic-"))
    with pytest.raises(InvalidArgument, match="learnt from who was in"):
        read(path)


@pytest.mark.parametrize("ending", ["pickle", "pkl"])
def test_nothing_in_a_pickle_is_run(tmp_path: Path, ending: str) -> None:
    made, path = tmp_path / "made", tmp_path / f"results.{ending}"
    path.write_bytes(pickle.dumps(Planted(made)))
    with pytest.raises(EpsilometerError):
        read(path)
    assert not made.exists()


PLAIN: dict[str, tuple[str, Columns, list[float], list[float]]] = {
    "privacy meter": (
        "attack_result_0.npz",
        {
            "fpr": [0, 0, 1],
            "tpr": [0, 1, 1],
            "scores": [3, 1, 2],
            "memberships": [True, False, True],
        },
        [3.0, 2.0],
        [1.0],
    ),
    "privacy meter, dp": (
        "attack_result_average_dp.npz",
        {"eps": [0.5], "k_neg": [1], "scores": [[3], [1]], "memberships": [[1], [0]]},
        [3.0],
        [1.0],
    ),
    "toolbox": (
        "x.npz",
        {"inferred_train": [1, 0], "inferred_test": [0, 0, 1]},
        [1.0, 0.0],
        [0.0, 0.0, 1.0],
    ),
    "toolbox, probabilities": (
        "x.npz",
        {"inferred_train_bb": [[0.25, 0.75]], "inferred_test_bb": [[0.5, 0.5]]},
        [0.75],
        [0.5],
    ),
    "jax": ("x.csv", {"in_canary_scores": [3, 2], "out_canary_scores": [1, 0]}, [3, 2], [1, 0]),
    "jax, sides of unequal length": (
        "x.csv",
        {"in_canary_scores": [3, 2], "out_canary_scores": [1]},
        [3.0, 2.0],
        [1.0],
    ),
    "losses": ("x.npz", {"loss_train": [0.5], "loss_test": [2.0, 1.0]}, [-0.5], [-2.0, -1.0]),
}


@pytest.mark.parametrize("case", PLAIN)
def test_plain_arrays_are_recognised_by_their_names(tmp_path: Path, case: str) -> None:
    name, columns, inside, outside = PLAIN[case]
    assert same(read(table(tmp_path / name, columns)), inside, outside)


def test_lists_of_json_are_arrays(tmp_path: Path) -> None:
    path = tmp_path / "canaries.json"
    path.write_text('{"in_canary_scores": [2.5, Infinity], "out_canary_scores": [1]}')
    assert same(read(path), [2.5, np.inf], [1.0])
    path.write_text('{"in_canary_scores": [2.5, null], "out_canary_scores": [1]}')
    with pytest.raises(InvalidArgument, match="nan"):
        read(path)


def test_models_in_pairs_are_not_audited_as_one(tmp_path: Path) -> None:
    path = table(
        tmp_path / "attack_result_average.npz", {"scores": [1, 2, 3], "memberships": [1, 0, 1]}
    )
    with pytest.raises(InvalidArgument, match="those of several"):
        read(path)


def test_scores_of_privacy_meter_have_the_auc_that_it_reports() -> None:
    path = HERE / "privacy_meter" / "attack_result_0.npz"
    scores = read(path)
    with np.load(path) as kept:
        assert auc(scores) == pytest.approx(float(kept["auc"]), abs=1e-12)
    assert (scores.n_in, scores.n_out) == (60, 60)


def test_models_in_pairs_are_known_by_their_memberships(tmp_path: Path) -> None:
    """Two models in ``attack_result_average_dp.npz`` counted every record twice."""
    path = HERE / "privacy_meter" / "attack_result_average_dp.npz"
    with pytest.raises(InvalidArgument, match="those of several"):
        read(path)
    with np.load(path) as kept:
        score, member = kept["scores"], kept["memberships"]
    order = np.argsort(~member[:120], kind="stable")  # of one model, members first
    first = {"scores": score[:120][order], "memberships": member[:120][order]}
    assert read(table(tmp_path / "x.npz", first)).n_in == 60
    both = {name: np.concatenate([each, each[::-1]]) for name, each in first.items()}
    with pytest.raises(InvalidArgument, match="those of several"):
        read(table(tmp_path / "renamed.npz", both))


def test_what_attacks_of_the_toolbox_infer_is_read_of_each(tmp_path: Path) -> None:
    path = HERE / "robustness_toolbox.npz"
    with np.load(path) as kept:
        black_box, rule = kept["inferred_train_probabilities"], kept["inferred_test_rule"]
    assert black_box.shape == (60, 1)
    chosen = read(path, attack="inferred_probabilities")
    assert chosen.inside.tolist() == black_box[:, 0].tolist()
    assert read(path, attack="inferred_rule").outside.tolist() == rule.tolist()
    with pytest.raises(InvalidArgument, match="Expected which attack"):
        read(path)


def test_frames_of_privacy_guard_are_read_as_it_saves_them() -> None:
    folder = HERE / "privacy_guard"
    scores = read(folder / "df_test_user.csv")
    assert (scores.n_in, scores.n_out) == (60, 60)
    lines = (folder / "df_train_user.csv").read_text().splitlines()
    assert lines[0] == "user_id,score_orig,score_mean,score_std,score"
    assert scores.inside.tolist() == [float(line.split(",")[-1]) for line in lines[1:]]


@pytest.mark.parametrize("given", ["df_train_user.csv", "df_test_user.csv"])
def test_both_frames_of_privacy_guard_are_read_by_either(tmp_path: Path, given: str) -> None:
    table(tmp_path / "df_train_user.csv", {"user_id": ["a", "b"], "score": [3.0, 2.0]})
    table(tmp_path / "df_test_user.csv", {"user_id": ["c"], "score": [1.0]})
    assert same(read(tmp_path / given), [3.0, 2.0], [1.0])
    prints = dict(ScoreFile(tmp_path / given).fingerprints())
    assert set(prints) == {"df_train_user.csv", "df_test_user.csv"}


def test_frames_are_recognised_by_their_columns(tmp_path: Path) -> None:
    for side, scores in (("train", [3.0, 2.0]), ("test", [1.0, 0.0])):
        users = [f"{side}{number}" for number in range(2)]
        table(tmp_path / f"lira_{side}.csv", {"user_id": users, "score": scores})
        table(tmp_path / f"latest_{side}.csv", {"user_id": users, "score": scores})
        table(tmp_path / f"df_{side}.csv", {"income": [1.0, 2.0], "score": scores})  # of a bank
    assert same(read(tmp_path / "lira_train.csv"), [3.0, 2.0], [1.0, 0.0])
    with pytest.raises(InvalidArgument, match="which side it is"):
        read(tmp_path / "latest_train.csv")
    with pytest.raises(InvalidArgument, match="'score' and 'member'"):
        read(tmp_path / "df_train.csv")


def test_frames_with_their_index_are_read(tmp_path: Path) -> None:
    """As ``to_csv`` of pandas writes them."""
    (tmp_path / "df_train_user.csv").write_text(",user_id,score\n0,0,3.0\n1,1,2.0\n")
    (tmp_path / "df_test_user.csv").write_text(",user_id,score\n0,0,1.0\n")
    assert same(read(tmp_path / "df_train_user.csv"), [3.0, 2.0], [1.0])


def test_users_with_several_rows_are_refused_and_not_named(tmp_path: Path) -> None:
    table(tmp_path / "df_train_merge.csv", {"user_id": ["ann", "ann"], "score": [3.0, 2.0]})
    table(tmp_path / "df_test_merge.csv", {"user_id": ["bob"], "score": [1.0]})
    with pytest.raises(InvalidArgument, match="one score per user") as refused:
        read(tmp_path / "df_test_merge.csv")
    assert "ann" not in str(refused.value)


def test_a_result_without_scores_is_no_evidence(tmp_path: Path) -> None:
    path = tmp_path / "analysis.json"
    path.write_text(json.dumps({"eps": 3.1, "eps_lb": 2.0, "auc": 0.9, "data_size": {"train": 9}}))
    with pytest.raises(InvalidArgument, match="no bounds"):
        read(path)
    frame = {"slice feature": ["Entire dataset"], "attack type": ["lr"], "AUC": [0.9]}
    with pytest.raises(InvalidArgument, match="no scores"):
        read(table(tmp_path / "metrics.csv", frame))


def test_what_nobody_knows_is_said_to_be_unknown(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text in ("{}", "[]", "3", '{"a": [1]}', "{", '{"a": ' * 9_000):
        path.write_text(text)
        with pytest.raises(EpsilometerError):
            read(path)


def test_no_design_is_taken_unasked() -> None:
    with pytest.raises(InvalidArgument, match="Expected a design with a result of SACRO-ML"):
        em.read_scores(SACRO, attack="lira")
    with pytest.raises(InvalidArgument, match="one of fixed, coins"):
        em.read_scores(SACRO, attack="lira", design="paired")
    asked = ("estimate", SACRO, "--delta", "1e-5", "--claim", "0.1")
    assert call(*asked, "--attack", "lira").exit_code == 2
    assert call(*asked, "--attack", "lira", "--design", "paired").exit_code == 2
    assert call(*asked, "--design", "fixed").exit_code == 2  # which attack?


def test_the_command_audits_what_python_does_and_repeats_it(tmp_path: Path) -> None:
    done = call(
        "estimate", SACRO, "--attack", "lira", "--design", "fixed", "--delta", "1e-5",
        "--claim", "1", "--json",
    )  # fmt: skip
    found = from_json(done.stdout)
    expected = em.audit(read(SACRO, attack="lira"), em.Claim(1.0, delta=1e-5))
    assert (found.epsilon, found.verdict) == (expected.epsilon, expected.verdict)
    assert "SACRO-ML" in found.subject
    path = tmp_path / "audit.json"
    path.write_text(done.stdout)
    again = call("audit", path, "--data", SACRO.parent, "--json")
    assert again.stdout == done.stdout


def test_columns_of_our_own_have_no_attack_to_choose(tmp_path: Path) -> None:
    path = table(tmp_path / "x.csv", {"score": [1.0, 2.0], "member": [0, 1]})
    with pytest.raises(InvalidArgument, match="Expected no attack"):
        em.read_scores(path, attack="lira")
    assert em.read_scores(path).design == "runs"
    stated = table(tmp_path / "y.csv", {"inside": [1.0], "outside": [2.0], "design": ["coins"]})
    with pytest.raises(InvalidArgument, match="that the file states"):
        em.read_scores(stated, design="fixed")


@pytest.mark.parametrize("changed", ["cut", "other", "sign"])
def test_scores_that_are_not_those_of_the_reported_curve_are_refused(
    tmp_path: Path, changed: str
) -> None:
    """They were "not refuted", or refuted a claim by the scores of another run."""
    rng = np.random.default_rng(0)
    score, member = rng.normal(size=40), np.arange(40) % 2
    score += 2 * member
    found = {"cut": score[:30], "other": rng.permutation(score), "sign": -score}[changed]
    fpr = [0.0, *np.cumsum(1 - member[np.argsort(-score)]) / 20]
    tpr = [0.0, *np.cumsum(member[np.argsort(-score)]) / 20]
    columns: Columns = {"fpr": fpr, "tpr": tpr, "memberships": member[: found.size]}
    path = tmp_path / "attack_result_0.npz"
    assert read(table(path, {**columns, "scores": score, "memberships": member})).n_in == 20
    with pytest.raises(InvalidArgument, match="reports with them"):
        read(table(path, {**columns, "scores": found}))


def test_arrays_of_another_report_are_refused(tmp_path: Path) -> None:
    shutil.copytree(SACRO.parent, tmp_path / "copy")
    arrays = tmp_path / "copy" / "report_arrays_e07f9234_instance_0.npz"
    with np.load(arrays) as kept:
        score, member = kept["individual.member_prob"], kept["individual.member"]
    np.savez(arrays, **{"individual.member_prob": score, "individual.member": 1 - member})
    with pytest.raises(InvalidArgument, match="reports with them"):
        read(tmp_path / "copy" / "report.json", attack="lira")


def test_a_curve_in_a_pickle_must_be_that_of_its_scores(tmp_path: Path) -> None:
    path, content = tmp_path / "x.pickle", TF.read_bytes()
    tree: Any = Reader(io.BytesIO(content)).load()
    side = np.asarray(tree.single_attack_results[0].membership_scores_train)
    assert content.count(side.tobytes()) == 1
    path.write_bytes(content.replace(side.tobytes(), (-side).tobytes()))
    with pytest.raises(InvalidArgument, match="reports with them"):
        read(path)


def test_scores_of_the_other_sign_leave_a_claim_unjudged(tmp_path: Path) -> None:
    """Losses in place of scores: the claim was "not refuted", whatever leaked."""
    rng = np.random.default_rng(0)
    sides = {"in_canary_scores": rng.normal(size=90), "out_canary_scores": 3 + rng.normal(size=90)}
    audit = em.audit(read(table(tmp_path / "x.npz", sides)), em.Claim(1.0, delta=1e-5))
    assert (audit.verdict, audit.exit_code) == ("cannot judge", 4)
    assert "negate losses" in str(audit)


def test_an_attack_that_answers_the_same_of_all_is_refused(tmp_path: Path) -> None:
    columns: Columns = {"inferred_train": np.ones(40), "inferred_test": np.ones(40)}
    with pytest.raises(InvalidArgument, match="answers nothing"):
        read(table(tmp_path / "x.npz", columns))


def test_users_on_both_sides_are_refused_but_row_numbers_are_not(tmp_path: Path) -> None:
    scores = np.random.default_rng(0).normal(size=(2, 20))
    for first, refused in ((5, True), (0, False)):  # LossAttack numbers both sides from 0
        for side, score in zip(("train", "test"), scores, strict=True):
            users = np.arange(first, first + 20)
            table(tmp_path / f"df_{side}_user.csv", {"user_id": users, "score": score})
        if refused:
            with pytest.raises(InvalidArgument, match="some in both"):
                read(tmp_path / "df_train_user.csv")
    assert read(tmp_path / "df_train_user.csv").n_in == 20


def test_scores_that_are_missing_at_the_end_are_not_dropped(tmp_path: Path) -> None:
    """Pandas writes nan as a blank: two runs that diverged were left out."""
    (tmp_path / "df_train_user.csv").write_text("user_id,score\n0,3.0\n1,\n2,\n")
    (tmp_path / "df_test_user.csv").write_text("user_id,score\n7,1.0\n")
    with pytest.raises(InvalidArgument, match="row 2 of the data has a blank"):
        read(tmp_path / "df_train_user.csv")


@pytest.mark.parametrize("names", ["score,score,member", "Score,score,member"])
def test_columns_of_one_name_are_refused(tmp_path: Path, names: str) -> None:
    """The last one was taken."""
    path = tmp_path / "x.csv"
    path.write_text(f"{names}\n2,0,1\n1,0,0\n")
    with pytest.raises(InvalidArgument, match="one column 'score', found 2"):
        em.read_scores(path)
    path.write_text("in_canary_scores,in_canary_scores,out_canary_scores\n2,0,1\n1,0,0\n")
    with pytest.raises(InvalidArgument, match="found 2"):
        read(path)


def test_losses_of_epochs_are_no_losses_of_records(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text('{"loss_train": [2.0, 1.0, 0.5], "loss_test": [2.1, 1.5, 1.4]}')
    with pytest.raises(InvalidArgument, match="found 'loss_train'"):
        read(path)


def test_complex_numbers_are_no_scores(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, in_canary_scores=np.ones(3) * 1j, out_canary_scores=np.ones(3))
    with pytest.raises(InvalidArgument, match="Expected numbers"):
        read(path)


def test_runs_are_a_design_of_canaries_alone(tmp_path: Path) -> None:
    """Runs of what one model scored proved 4.2 where its records prove 2.3."""
    sides = {"in_canary_scores": [3, 2], "out_canary_scores": [1, 0]}
    assert em.read_scores(table(tmp_path / "x.npz", sides), design="runs").n_in == 2
    with pytest.raises(InvalidArgument, match="one of fixed, coins"):
        em.read_scores(SACRO, attack="lira", design="runs")


def test_every_tool_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "other_tools.md").read_text()
    assert [name for name in TOOLS if f"`{name}`" not in page] == []
