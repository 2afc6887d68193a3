"""Audits of users' own training functions: real frameworks, known truths, every wrong call."""

import functools
import math
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

import epsilometer as em
from epsilometer import Claim, Dask, InProcess, Local, Scores, UntilRefuted
from epsilometer._dispatch import read_call
from epsilometer.audits.training.subject import run_seed
from epsilometer.core.record import Record, mislabel
from epsilometer.errors import EpsilometerWarning, InvalidArgument
from epsilometer.networks.loss import negative_loss
from tests import oracles
from tests.audits.training import trainings
from tests.audits.training.trainings import (
    CANARY,
    DATA,
    DELTA,
    audit,
    audit_train,
    network,
    noisy_sum,
    perturbed_regression,
)
from tests.engine.test_dask import cluster
from tests.faults.processes import started, until

HERE = InProcess()
EXACT = em.gaussian_epsilon(1.0, DELTA)  # of ``noisy_sum``
SURE = 1 - oracles.FLAKE  # audits that may be wrong once in a million, so that no test flakes


def audited(train: Any, **changed: Any) -> em.Audit:
    plain = {"data": DATA, "canary": CANARY, "runs": 100, "delta": DELTA}
    return audit_train(train, **{**plain, **changed})


# Real frameworks


def regression_data(rng: np.random.Generator) -> tuple[Any, Record]:
    labels = np.repeat([0, 1], 20)
    features = rng.normal(0, 0.2, (40, 3)) + 0.3 * (2 * labels[:, None] - 1)
    far = Record(rng.choice([-1.0, 1.0], 3), int(rng.integers(2)))  # of norm 1 once it is clipped
    return (features, labels), far


@pytest.mark.parametrize(("noise", "verdict"), [(True, "not refuted"), (False, "refuted")])
def test_output_perturbation_is_spared_and_refuted_when_its_noise_is_forgotten(
    noise: bool, verdict: str, rng: np.random.Generator
) -> None:
    """scikit-learn's logistic regression, whose sensitivity is C for records of norm 1."""
    claim = Claim(epsilon=1.0, delta=1e-5, adjacency="add_remove")
    sigma = em.gaussian_sigma(claim.epsilon, claim.delta) if noise else 0.0
    data, canary = regression_data(rng)
    result = audit_train(
        functools.partial(perturbed_regression, noise=sigma),
        data=data,
        canary=canary,
        score=negative_loss,
        runs=150,
        block=10,
        claim=claim,
        confidence=SURE,
    )
    assert result.verdict == verdict
    assert result.bounds[0].adversary == "sees the trained model, by negative_loss"
    assert result.subject == "training by perturbed_regression"


def test_a_network_that_learns_by_heart_is_refuted_by_its_loss(rng: np.random.Generator) -> None:
    labels = np.arange(12) % 2
    features = rng.normal(0, 0.3, (12, 4)) + labels[:, None]
    canary = mislabel(Record(features[0] * 1.5, int(labels[0])), classes=2, rng=rng)
    result = audit_train(
        network,
        data=(features, labels),
        canary=canary,
        score=negative_loss,
        runs=80,
        claim=Claim(epsilon=1.0, delta=1e-5),
    )
    assert result.verdict == "refuted"
    assert result.views[0].attack.auc > 0.9


def test_datasets_of_any_kind_are_handed_on_as_they_are() -> None:
    """A pair of torch datasets, and a score that is a tensor."""
    pair = [torch.utils.data.TensorDataset(torch.ones(n, 1)) for n in (4, 3)]
    seen = []

    def train(dataset: Any, seed: int) -> torch.Tensor:
        seen.append(dataset)
        torch.manual_seed(seed)
        return sum(x.sum() for (x,) in dataset) + torch.randn(())

    result = audited(train, data=None, canary=None, with_record=pair[0], without_record=pair[1])
    assert {id(dataset) for dataset in seen} == {id(dataset) for dataset in pair}
    assert result.bounds[0].adjacency == "unstated"
    assert result.views[0].attack.auc > 0.5


# What train is given


def worlds_of(**changed: Any) -> dict[bool, tuple[np.ndarray, np.ndarray]]:
    """The datasets with and without the record, as train got them."""
    seen = []

    def train(data: Any, seed: int) -> float:
        seen.append(tuple(part.copy() for part in data))
        return 0.0

    audited(train, runs=2, **changed)
    inside, outside = seen[0], seen[1]  # a unit trains with the record first
    return {True: inside, False: outside}


FEATURES = np.arange(8, dtype=np.float32).reshape(4, 2)
LABELS = np.array([0, 1, 1, 0])


def test_a_record_is_added_at_the_end_or_left_out() -> None:
    worlds = worlds_of(data=(FEATURES, LABELS), canary=Record([7.5, 1.0], 1))
    np.testing.assert_array_equal(worlds[False][0], FEATURES)
    np.testing.assert_array_equal(worlds[False][1], LABELS)
    np.testing.assert_array_equal(worlds[True][0], [*FEATURES, [7.5, 1.0]])
    np.testing.assert_array_equal(worlds[True][1], [*LABELS, 1])
    assert {world[0].dtype for world in worlds.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(("replaced", "place"), [(None, 3), (1, 1)])
def test_a_record_is_replaced_where_that_is_the_adjacency(replaced: Any, place: int) -> None:
    worlds = worlds_of(
        data=(FEATURES, LABELS),
        canary=Record([7.5, 1.0], 1),
        adjacency="replace",
        replaced=replaced,
    )
    np.testing.assert_array_equal(worlds[False][0], FEATURES)
    expected = FEATURES.copy()
    expected[place] = 7.5, 1.0
    np.testing.assert_array_equal(worlds[True][0], expected)
    labels = LABELS.copy()
    labels[place] = 1
    np.testing.assert_array_equal(worlds[True][1], labels)


def test_the_adjacency_of_the_claim_decides_and_is_that_of_the_bound() -> None:
    for given in ("add_remove", "replace"):
        claim = Claim(epsilon=1.0, delta=DELTA, adjacency=given)  # type: ignore[arg-type]
        assert audited(noisy_sum, claim=claim, also=["gdp"]).bounds[0].adjacency == given
        assert audited(noisy_sum, claim=claim, also=["gdp"]).views[0].also[0].adjacency == given
    assert audited(noisy_sum).bounds[0].adjacency == "add_remove"
    unstated = Claim(epsilon=1.0, delta=DELTA)
    assert audited(noisy_sum, claim=unstated).bounds[0].adjacency == "add_remove"


def test_a_train_that_writes_into_its_data_spoils_no_other_run() -> None:
    def spoiling(data: Any, seed: int) -> float:
        features, labels = data
        found = noisy_sum(data, seed)
        features += 1e9
        labels[:] = 0
        return found

    plain, spoilt = audited(noisy_sum), audited(spoiling)
    assert plain.evidence == spoilt.evidence
    assert DATA[0].sum() == 0


@pytest.mark.parametrize("block", [1, 7])
def test_no_two_runs_have_the_same_seed(block: int) -> None:
    seeds = []

    def train(data: Any, seed: int) -> float:
        seeds.append(seed)
        return 0.0

    audited(train, runs=50, block=block, seed=3)
    assert len(set(seeds)) == len(seeds) == 100
    assert all(type(seed) is int and 0 <= seed < 2**32 for seed in seeds)
    assert set(seeds) == {run_seed(number, of=3) for number in range(100)}


def test_seeds_are_a_permutation_and_look_like_noise() -> None:
    seeds = np.array([run_seed(number, of=0) for number in range(2**15)], np.uint64)
    assert np.unique(seeds).size == seeds.size
    for bit in range(32):
        ones = int(np.count_nonzero(seeds >> np.uint64(bit) & np.uint64(1)))
        tail = scipy.stats.binom.sf(abs(ones - seeds.size / 2) + seeds.size / 2, seeds.size, 0.5)
        assert tail > oracles.FLAKE / 64
    others = np.array([run_seed(number, of=1) for number in range(2**15)], np.uint64)
    assert np.intersect1d(seeds, others).size < 5  # of 2^30 pairs one in 2^32 is alike


def test_blocks_change_what_is_a_unit_and_no_score() -> None:
    one, many = audited(noisy_sum, block=1), audited(noisy_sum, block=30)
    assert (one.provenance.units, many.provenance.units) == (100, 4)
    assert one.bounds == many.bounds
    assert one.evidence == many.evidence


# Known truths


@pytest.mark.slow
@pytest.mark.parametrize("until_", [None, UntilRefuted()], ids=["whole", "stopped"])
def test_a_true_claim_is_rarely_refuted(until_: Any, rng: np.random.Generator) -> None:
    """ε of the noisy sum is exactly what is claimed."""
    audits = 30
    claim = Claim(epsilon=EXACT, delta=DELTA)
    wrong = sum(
        audited(noisy_sum, claim=claim, runs=300, block=50, until=until_, seed=seed).verdict
        == "refuted"
        for seed in rng.integers(2**32, size=audits).tolist()
    )
    assert not oracles.too_often(wrong, audits)


def test_a_false_claim_falls_early() -> None:
    def leaky(data: Any, seed: int) -> float:
        return 3 * data[0][:, 0].sum() + np.random.default_rng(seed).normal()

    claim = Claim(epsilon=EXACT, delta=DELTA)
    early = audited(leaky, claim=claim, runs=3000, until=UntilRefuted())
    assert early.verdict == "refuted"
    assert early.provenance.used < early.provenance.units / 2


# Runs that scored nan, and runs that failed


def hiding(data: Any, seed: int) -> float:
    """nan wherever the score would speak for the mechanism: the worst that nan can do."""
    found = noisy_sum(data, seed)
    inside = len(data[0]) == 7
    private = found < 1 if inside else found > 0
    return math.nan if private else found


def test_nan_hides_nothing_that_would_have_spared_the_claim(rng: np.random.Generator) -> None:
    """Were such runs dropped, every one of these audits would refute a true claim."""
    claim = Claim(epsilon=EXACT, delta=DELTA)
    with pytest.warns(EpsilometerWarning, match="Scored nan"):
        found = [
            audited(hiding, claim=claim, runs=300, block=50, seed=seed)
            for seed in rng.integers(2**32, size=20).tolist()
        ]
    assert not oracles.too_often(sum(r.verdict == "refuted" for r in found), len(found))
    pairs = [
        [hiding(world, seed) for seed in range(300)]
        for world in ((np.eye(7, 2), None), (np.zeros((6, 2)), None))
    ]
    inside, outside = (np.array(part)[~np.isnan(part)] for part in pairs)
    assert em.audit(Scores(inside, outside), claim).verdict == "refuted"


def test_nan_counts_as_minus_infinity_inside_and_infinity_outside_and_is_told(
    tmp_path: Path,
) -> None:
    seen: dict[bool, list[float]] = {True: [], False: []}

    def sometimes(data: Any, seed: int) -> float:
        inside = len(data[0]) == 7
        score = noisy_sum(data, seed)
        lost = seed % (5 if inside else 9) == 0
        seen[inside].append((-math.inf if inside else math.inf) if lost else score)
        return math.nan if lost else score

    claim = Claim(epsilon=2.0, delta=DELTA)
    plain = {"claim": claim, "runs": 200, "out": tmp_path / "run", "also": ["gdp"]}
    with pytest.warns(EpsilometerWarning, match="Scored nan") as told:
        result = audited(sometimes, **plain)
    lost = {world: int(np.isinf(scores).sum()) for world, scores in seen.items()}
    assert lost[True] != lost[False]
    words = (
        f"Scored nan: {lost[True]} of 200 runs with the record, {lost[False]} of 200 without it."
    )
    assert [str(warning.message)[: len(words)] for warning in told] == [words]
    assert told[0].filename == trainings.__file__  # points at the call of ours
    (view,) = result.views
    for bound in (view.bound, *view.also):
        assert any(caveat.startswith(words) for caveat in bound.caveats)
    scores = Scores(inside=seen[True], outside=seen[False])
    expected = em.audit(scores, claim)
    assert result.epsilon == expected.epsilon
    assert view.attack == expected.views[0].attack
    # It is written where the run lives, and said again by whoever reads it.
    assert em.load(tmp_path / "run") == result
    with pytest.warns(EpsilometerWarning, match="Scored nan"):
        assert audited(sometimes, **plain) == result


def test_an_audit_that_scored_nan_throughout_proves_nothing() -> None:
    with pytest.warns(EpsilometerWarning, match="100 of 100 runs with"):
        result = audited(lambda data, seed: math.nan, claim=Claim(epsilon=0, delta=DELTA))
    assert result.epsilon == 0


def test_infinite_scores_are_scores() -> None:
    def sure(data: Any, seed: int) -> float:
        return math.inf if len(data[0]) == 7 else -math.inf

    result = audited(sure, claim=Claim(epsilon=1.0, delta=DELTA))
    assert (result.verdict, result.bounds[0].caveats) == ("refuted", ())


def test_a_train_that_raises_fails_its_pair_and_says_why(tmp_path: Path) -> None:
    def fragile(data: Any, seed: int) -> float:
        if seed % 10 == 0:
            raise ZeroDivisionError("a batch was empty")
        return noisy_sum(data, seed)

    claim = Claim(epsilon=2.0, delta=DELTA)
    with pytest.warns(EpsilometerWarning, match="of 100 units failed.*ZeroDivision") as told:
        result = audited(fragile, claim=claim, out=tmp_path)
    assert "a batch was empty" not in str(told[0].message)  # what was raised may hold data
    assert 0 < result.provenance.failed < 50
    assert result.provenance.used + result.provenance.failed == 100
    assert result.verdict == "cannot judge"
    assert "units failed" in result.judgement.reason
    assert audited(noisy_sum, claim=claim).verdict == "not refuted"
    failures = list((tmp_path / "failures").iterdir())
    assert len(failures) == result.provenance.failed
    assert "a batch was empty" in failures[0].read_text("utf-8")


def test_a_train_that_always_raises_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPSILOMETER_SHOW_ERRORS", "1")
    with pytest.warns(EpsilometerWarning, match="100 of 100 units failed.*takes 0 positional"):
        result = audited(lambda: 0.0)
    assert (result.epsilon, result.provenance.used) == (0.0, 0)


# Same bytes


@pytest.mark.slow
def test_every_engine_gives_the_same_bytes(tmp_path: Path) -> None:
    with cluster(tmp_path) as found:
        engines = {
            "here": HERE,
            "threads": Local(count=2, kind="threads"),
            "processes": Local(count=2),
            "dask": Dask(address=found.address),
        }
        made = {
            audit(tmp_path / name, engine, claim=None, runs=40).epsilon
            for name, engine in engines.items()
        }
        assert len(made) == 1
        data, canary = regression_data(np.random.default_rng(0))
        sent = [
            audit_train(
                functools.partial(perturbed_regression, noise=1.0),
                data=data,
                canary=canary,
                score=negative_loss,
                runs=12,
                delta=DELTA,
                engine=engine,
            )
            for engine in (HERE, engines["dask"])
        ]
    texts = {(tmp_path / name / "result.json").read_bytes() for name in engines}
    assert len(texts) == 1
    assert sent[0].to_json() == sent[1].to_json()


def test_functions_of_a_session_are_sent_to_processes() -> None:
    shift = 2.0
    result = audited(lambda data, seed: shift * noisy_sum(data, seed), engine=Local(count=2))
    assert result.provenance.used == 100


def test_a_killed_audit_is_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    audit(tmp_path / "whole")
    run = tmp_path / "run"
    program = f"from tests.audits.training.trainings import audit; audit({str(run)!r})"
    with started("-c", program) as family:
        until(lambda: list((run / "shards").glob("*.shard")), "units were finished")
        time.sleep(0.1)
        os.kill(family.process.pid, signal.SIGKILL)
        assert family.process.wait() == -signal.SIGKILL
    assert not (run / "result.json").exists()
    audit(run)
    assert (run / "result.json").read_bytes() == (tmp_path / "whole" / "result.json").read_bytes()


OTHER = (np.full((6, 2), 0.5), DATA[1])


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 1},
        {"runs": 61},
        {"block": 2},
        {"delta": 0.01, "claim": None},
        {"confidence": 0.9},
        {"data": OTHER},
        {"data": (DATA[0].astype(np.float32), DATA[1])},
        {"data": (DATA[0], DATA[1][::-1])},
        {"canary": Record([1.0, 0.5], label=1)},
        {"canary": Record([1.0, 0.0], label=0)},
        {"adjacency": "replace"},
        {"adjacency": "replace", "replaced": 2},
        {"score": negative_loss},
        {"data": None, "with_record": OTHER, "without_record": DATA},
        {"until": UntilRefuted()},
        {"also": ["gdp"]},
        {"parameters": {"epochs": 3}},
        {"title": "another"},
        {"adversary": "another"},
    ],
    ids=",".join,
)
def test_a_directory_is_never_continued_with_another_audit(
    changed: dict[str, Any], tmp_path: Path
) -> None:
    plain: dict[str, Any] = {
        "runs": 4,
        "delta": DELTA,
        "claim": Claim(epsilon=3.0, delta=DELTA),
        "out": tmp_path,
    }
    audited(noisy_sum, **plain)
    with pytest.raises(InvalidArgument, match="Expected no other run"):
        audited(noisy_sum, **{**plain, **changed})


def test_a_directory_is_not_continued_with_another_function(tmp_path: Path) -> None:
    first, second = (functools.partial(perturbed_regression, noise=x) for x in (1.0, 2.0))
    data, canary = regression_data(np.random.default_rng(0))
    plain = {"data": data, "canary": canary, "score": negative_loss, "out": tmp_path}
    audited(first, runs=2, **plain)
    for other in (second, network):
        with pytest.raises(InvalidArgument, match="Expected no other run"):
            audited(other, runs=2, **plain)


def test_what_cannot_be_compared_is_told_only_where_it_would_have_to_be(tmp_path: Path) -> None:
    pair = {"data": None, "with_record": threading.Lock(), "without_record": threading.Lock()}

    def train(data: Any, seed: int) -> float:
        return 1.0

    assert audited(train, **pair).provenance.used == 100
    with pytest.raises(InvalidArgument, match=r"continued with the same data.*lock"):
        audited(train, out=tmp_path, **pair)


# Settings


def test_a_result_names_functions_and_holds_no_data(rng: np.random.Generator) -> None:
    data, canary = regression_data(rng)
    found = audited(noisy_sum, data=data, canary=canary, score=negative_loss_of_sum)
    settings = found.provenance.settings
    assert settings["train"] == {"function": "tests.audits.training.trainings:noisy_sum"}
    assert settings["score"] == {"function": f"{__name__}:negative_loss_of_sum"}
    assert settings["data"] == {"supplied": "tuple"}
    assert settings["canary"] == {"supplied": "Record"}
    assert set(found.provenance.supplied) == {"data", "canary"}
    assert dict(found.provenance.shapes) == {"data": "40 × 3, 40"}
    assert audited(lambda data, seed: 0.0).provenance.settings["train"] == {"supplied": "function"}


def negative_loss_of_sum(model: float, record: Record) -> float:
    return model


def count_letters(record: object, seed: int) -> float:
    return len(str(record)) + float(np.random.default_rng(seed).normal())


@pytest.mark.parametrize(("present", "absent"), [(1, 0), ("Ann, 1970", "Bob, 1971")])
def test_records_are_never_written_into_the_result(
    present: object, absent: object, tmp_path: Path
) -> None:
    first = audit_train(
        count_letters, with_record=present, without_record=absent, runs=30, delta=DELTA, seed=4
    )
    assert first.provenance.supplied == ("with_record", "without_record")
    assert "Ann" not in first.to_json()
    with pytest.raises(InvalidArgument, match="with_record, without_record of TrainFunction: supp"):
        read_call(first.save(tmp_path / "first.json"), trust=True)


# Bad calls


@pytest.mark.parametrize(
    ("returned", "got"),
    [
        (None, "None"),
        ("0.5", "str"),
        ([1.0], "list"),
        (np.zeros(3), r"ndarray of shape \(3,\)"),
        (np.zeros(0), r"ndarray of shape \(0,\)"),
        (np.array(["a"]), r"ndarray of shape \(1,\)"),
        (torch.zeros(2, 2), r"Tensor of shape \(2, 2\)"),
        (1j, "complex"),
        (torch.nn.Sequential(torch.nn.Linear(2, 2)), "Sequential"),
        (Record([1.0], 0), "Record"),
    ],
    ids=lambda value: str(value)[:20],
)
@pytest.mark.parametrize("engine", [HERE, Local(count=2, kind="threads")], ids=["here", "threads"])
def test_what_is_no_score_ends_the_audit_with_a_word(
    returned: Any, got: str, engine: Any, tmp_path: Path
) -> None:
    calls = []

    def train(data: Any, seed: int) -> Any:
        calls.append(seed)
        return returned

    said = f"Expected train to return a score, one number .*got {got}.*score=negative_loss"
    with pytest.raises(InvalidArgument, match=said):
        audited(train, runs=5_000, engine=engine)
    assert len(calls) < 5_000  # not trained in vain to the end, though threads run on a little
    with pytest.raises(InvalidArgument, match=f"Expected score to return .* got {got}"):
        audited(noisy_sum, score=lambda model, record: returned, engine=engine)


def test_what_is_no_score_is_told_from_another_process_too() -> None:
    with pytest.raises(InvalidArgument, match=r"^Expected train to return a score"):
        audited(lambda data, seed: "high", engine=Local(count=2))


@pytest.mark.parametrize(
    "returned",
    [
        1,
        True,
        np.float32(1),
        np.int8(1),
        np.bool_(True),
        np.ones(1),
        np.ones((1, 1)),
        torch.ones(()),
        torch.ones(1, dtype=torch.bfloat16),
        torch.ones(1, requires_grad=True),
    ],
    ids=repr,
)
def test_single_numbers_of_any_kind_are_scores(returned: Any) -> None:
    result = audited(lambda data, seed: returned, runs=2)
    assert result.provenance.used == 2
    assert result.evidence[0].edges[0] < 1 < result.evidence[0].edges[-1]


def test_score_is_given_the_model_and_the_record() -> None:
    seen = []

    def score(model: Any, record: Any) -> float:
        seen.append((model, record))
        return 0.0

    audited(lambda data, seed: ("model", len(data[0])), score=score, runs=2)
    assert seen == [(("model", 7), CANARY), (("model", 6), CANARY)] * 2
    seen.clear()
    pair = {"data": None, "with_record": "a", "without_record": "b", "canary": "what I like"}
    audited(lambda data, seed: data, score=score, runs=2, **pair)
    assert seen == [("a", "what I like"), ("b", "what I like")] * 2


ONE = np.ones((2, 2))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"train": 3}, "a function train"),
        ({"score": 3}, "a function score"),
        ({"runs": 1}, "runs"),
        ({"runs": 2.5}, "runs"),
        ({"block": 0}, "block"),
        ({"seed": -1}, "seed"),
        ({"delta": 2.0}, "delta"),
        ({"claim": Claim(epsilon=1.0, delta=0.01)}, "delta to be the claim's"),
        ({"until": UntilRefuted()}, "a claim with until"),
        ({"parameters": {"x": ONE}}, "JSON values"),
        ({"data": None}, "got no with_record"),
        ({"data": None, "with_record": ONE}, "got no without_record"),
        ({"data": None, "without_record": ONE}, "got no with_record"),
        ({"with_record": ONE, "without_record": ONE}, "got both"),
        ({"data": ONE[:1]}, r"data=\(features, labels\), got ndarray"),
        ({"data": (ONE, [0, 1], ONE)}, r"data=\(features, labels\)"),
        ({"data": (ONE, [0, -1])}, "whole numbers from 0"),
        ({"data": (ONE, [0])}, "one label for each of 2"),
        ({"data": (ONE[:0], [])}, "one record or more"),
        ({"data": (ONE * np.nan, [0, 1])}, "finite"),
        ({"canary": None}, "a canary Record.*got NoneType"),
        ({"canary": [1.0, 0.0]}, "a canary Record.*got list"),
        ({"canary": Record([1.0], 0)}, r"a canary of shape \(2,\).*got \(1,\)"),
        ({"canary": Record([1.0, 1.0], 2)}, "one of the classes 0 to 1, got 2"),
        ({"adjacency": "sideways"}, "adjacency to be one of"),
        ({"adjacency": "zero_out"}, "with_record and without_record"),
        ({"adjacency": "unstated"}, "'add_remove' or 'replace' with data"),
        ({"replaced": 1}, "adjacency='replace' with replaced=1"),
        ({"adjacency": "replace", "replaced": 6}, "replaced below 6"),
        ({"adjacency": "replace", "replaced": -1}, "replaced ≥ 0"),
        (
            {
                "adjacency": "replace",
                "claim": Claim(epsilon=1.0, delta=DELTA, adjacency="add_remove"),
            },
            "as the claim has it",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_calls_are_told_before_anything_is_trained(wrong: dict[str, Any], said: str) -> None:
    def train(data: Any, seed: int) -> float:
        raise AssertionError("it was trained")

    with pytest.raises(InvalidArgument, match=said):
        audited(wrong.get("train", train), **{k: v for k, v in wrong.items() if k != "train"})
