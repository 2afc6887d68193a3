"""Results, canary scores, and what is refused."""

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import nbformat
import numpy as np
import pytest
from jax_privacy.experimental import execution_plan

import epsilometer as em
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.jax_privacy import audited, audited_plan, replay, score_canaries
from tests.integrations.jax_privacy.loops import book, gaussian, poisson
from tests.notebooks import executed, texts

ROOT = Path(__file__).parents[3]
EXAMPLE = runpy.run_path(str(ROOT / "examples" / "jax_privacy" / "train.py"))


@pytest.mark.parametrize(
    ("settings", "verdict", "check"),
    [({}, "cannot judge", ""), ({"noise": 0.5}, "violated", "noise scale"),
     ({"shuffle": True}, "violated", "batch sizes")],
)  # fmt: skip
def test_the_example_runs(settings: Any, verdict: str, check: str) -> None:
    audit = EXAMPLE["train"](**settings)
    assert audit.verdict == verdict
    names = [each.name for each in audit.conformance.find("violated")]
    assert (check in names) if check else names == []
    assert audit.provenance.subject == "jax_privacy"
    assert {"jax", "jax_privacy"} <= dict(audit.provenance.versions).keys()


def test_results_are_saved_and_read_back(tmp_path: Path) -> None:
    audit = EXAMPLE["train"](noise=0.5)
    audit.save(tmp_path / "audit.json")
    assert em.load(tmp_path / "audit.json").verdict == "violated"


def test_the_notebook_shows_what_is_committed(tmp_path: Path) -> None:
    path = ROOT / "docs" / "notebooks" / "jax.ipynb"
    today = texts(executed(path, tmp_path))
    assert today == texts(nbformat.read(path, as_version=4))


def test_canary_scores_refute_a_model_that_remembers(rng: np.random.Generator) -> None:
    canaries = rng.normal(size=(600, 50)).astype(np.float32)
    included = rng.random(600) < 0.5
    trained = canaries[included].sum(0) / 6

    def loss(params: Any, record: Any) -> Any:
        return -jnp.dot(params, record)

    scores = score_canaries(loss, trained, canaries, included, before=np.zeros(50, np.float32))
    assert scores.design == "coins"
    assert (scores.n_in, scores.n_out) == (included.sum(), 600 - included.sum())
    assert em.audit(scores, em.Claim(0.05, delta=1e-5)).verdict == "refuted"


def test_losses_that_are_not_numbers_speak_against_the_attack() -> None:
    scores = score_canaries(
        lambda w, x: x[0] / 0 * 0, np.zeros(2), np.ones((4, 2), np.float32), [1, 0, 1, 0]
    )
    assert (scores.inside == -np.inf).all()
    assert (scores.outside == np.inf).all()


def test_bad_calls_are_refused() -> None:
    usual: dict[str, Any] = {
        "noise_multiplier": 1.0, "clip_norm": 1.0, "books": book(), "records": 240
    }  # fmt: skip
    with pytest.raises(InvalidArgument, match="init and update"):
        audited("noise", **usual)
    with pytest.raises(InvalidArgument, match="at least one step"):
        audited(gaussian(1.0), **usual).result(delta=1e-5)
    with pytest.raises(InvalidArgument, match="BandMFExecutionPlanConfig"):
        audited_plan(book(), records=240)
    with pytest.raises(InvalidArgument, match="steps= or sensitivity="):
        audited(gaussian(1.0), **usual, noise=np.eye(3))
    with pytest.raises(InvalidArgument, match="one canary per entry"):
        score_canaries(lambda w, x: 0.0, 0.0, np.ones((4, 2)), [True])
    with pytest.raises(InvalidArgument, match="one number"):
        score_canaries(lambda w, x: x, 0.0, np.ones((2, 2)), [True, False])
    run = audited(gaussian(1.0), **usual, batches=poisson())
    with pytest.raises(InvalidArgument, match="one per record"):
        list(run.watch_batches([np.zeros((2, 2), int)]))


def test_a_plan_of_replaced_records_has_twice_the_sensitivity() -> None:
    config = execution_plan.BandMFExecutionPlanConfig(
        iterations=12, strategy=[1.0, 0.5], epsilon=None, delta=None, noise_multiplier=1.1
    )
    assert audited_plan(config, records=240).run.watch.words.startswith("Poisson sampling")


def test_a_step_that_keeps_its_key_secret_is_not_replayed() -> None:
    draws = iter(range(10**6))

    def step(batch: Any, key: Any) -> Any:
        return batch.sum(0) + np.random.default_rng(next(draws)).normal(size=batch.shape[1])

    found = replay(step, np.ones((4, 30)), clip_norm=6.0, noise_multiplier=1 / 6).conformance
    assert found is not None
    assert found.check("sensitivity to a removed record").outcome == "not tested"


def test_importing_the_package_loads_no_jax() -> None:
    program = "import epsilometer.audits.dpsgd.subject, epsilometer.networks.trainer, sys; "
    program += "sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
