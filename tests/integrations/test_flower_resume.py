"""A server that was killed: its audit goes on where it was."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from epsilometer.errors import InvalidArgument
from epsilometer.integrations.flower.checkpoints import hold_folder
from epsilometer.integrations.flower.messages import PLANTED
from epsilometer.integrations.flower.run_directory import record_run
from epsilometer.integrations.flower.settings import Settings, draw_directions
from tests.integrations.flower_apps import Written

REPOSITORY = Path(__file__).parents[2]
# Six rounds with a checkpoint after each; the first process is killed in its fourth round.
PROGRAM = """
import os, signal, sys
from pathlib import Path
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from epsilometer.integrations.flower import audit_server_app, run_in_process
from tests.integrations.flower_apps import averaging, client, model, server

folder, killed, half = Path(sys.argv[1]), sys.argv[2] == "kill", float(sys.argv[3])
saved = folder / "weights.npz"

class Own(DifferentialPrivacyServerSideFixedClipping):
    def _add_noise_to_aggregated_arrays(self, arrays):
        self.noise_multiplier *= half
        arrays = super()._add_noise_to_aggregated_arrays(arrays)
        self.noise_multiplier /= half
        self.rounds = getattr(self, "rounds", 0) + 1
        if killed and self.rounds == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        np.savez(saved, **{name: part.numpy() for name, part in arrays.items()})
        return arrays

arrays, rounds = model(2000), 6
if saved.exists():
    arrays = ArrayRecord({name: Array(part) for name, part in np.load(saved).items()})
    rounds = 3
np.random.seed(rounds)
app = audit_server_app(
    server(Own(averaging(), 1.0, 1.0, 24), arrays=arrays, rounds=rounds),
    delta=1e-5, mode="virtual", canaries=8, out=folder / "run",
)
run_in_process(app, client(), nodes=16)
"""


def run_program(folder: Path, what: str, half: float = 1.0) -> int:
    paths = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    command = [sys.executable, "-c", PROGRAM, str(folder), what, str(half)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, check=False
    )
    return done.returncode


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_killed_server_resumes(tmp_path: Path) -> None:
    assert run_program(tmp_path, "kill", half=0.5) == -signal.SIGKILL
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"start.npy", "watch.npz", "checks.json"} <= left
    assert "notes.txt" not in left
    assert (tmp_path / "run" / "watch.npz").stat().st_mode & 0o077 == 0  # it holds the seed
    assert run_program(tmp_path, "go on") == 0
    assert not (tmp_path / "run-2").exists()
    found = Written(tmp_path / "run")
    assert "started 2 times" in found.told
    assert found.took.tolist() == [6] * 8  # three rounds before, three since
    weights = np.load(tmp_path / "weights.npz")
    start = np.linspace(-0.5, 0.5, 2000, dtype=np.float32)
    moved = np.concatenate([weights["w"].ravel() - start[10:], weights["b"] - start[:10]])
    planted = draw_directions("hadamard", 8, 2000, found.audit.provenance.seed)
    np.testing.assert_allclose(found.final, planted.cosines(moved), atol=1e-6)
    # What the first process did wrong is not forgotten, though the second does it right.
    assert found.audit.verdict == "violated"
    assert found.audit.conformance.check("noise scale").value == pytest.approx(0.5, abs=0.02)


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    call = {"function": "audit_server_app"}
    with hold_folder(tmp_path / "run", call) as (first, _):
        (first / "watch.npz").write_bytes(b"half written")
        with hold_folder(tmp_path / "run", call) as (second, kept):
            assert second == tmp_path / "run-2"
            assert kept is None
    with hold_folder(tmp_path / "run", call) as (third, kept):  # damaged: left as it is
        assert third == tmp_path / "run-3"
        assert kept is None
    assert (tmp_path / "run" / "watch.npz").read_bytes() == b"half written"


def test_a_directory_of_an_older_version_is_left_alone(tmp_path: Path) -> None:
    settings = Settings(seed=9, canaries=4, delta=1e-5, out=tmp_path / "run")
    call = settings.describe("audit_server_app")
    with record_run(settings, call) as planting:
        for weights in (np.zeros(40), np.ones(40)):
            planting.see({"w": weights.astype(np.float32)})
        planting.save_round()
    (tmp_path / "run" / "notes.txt").unlink()
    with np.load(tmp_path / "run" / "watch.npz") as packed:
        state = dict(packed)
    meta = json.loads(str(state["meta"]))
    del meta["said"]
    np.savez(tmp_path / "run" / "watch.npz", **{**state, "meta": np.array(json.dumps(meta))})
    with hold_folder(tmp_path / "run", call) as (folder, kept):
        assert (folder, kept) == (tmp_path / "run-2", None)


def test_what_clients_said_before_the_server_was_killed_is_not_forgotten(tmp_path: Path) -> None:
    """Clients plant other canaries, the server is killed, and its clients plant none since."""
    settings = Settings(mode="mod", seed=9, canaries=4, delta=1e-5, out=tmp_path / "run")
    call = settings.describe("audit_server_app")
    with record_run(settings, call) as planting:
        for weights in (np.zeros(40), np.ones(40)):
            planting.see({"w": weights.astype(np.float32)})
            planting.begin_round(lambda: range(10), asked=5)
            planting.take_commitment({PLANTED: "another 2"})
        planting.see({"w": np.full(40, 2, np.float32)})
        planting.save_round()
    (tmp_path / "run" / "notes.txt").unlink()  # as if it had been killed
    with record_run(settings, call) as planting:
        planting.see({"w": np.full(40, 2, np.float32)})
        assert planting.participation == "unseen"
        with pytest.raises(InvalidArgument, match="2 of 2 replies were about others"):
            planting.refuse_mismatch()
