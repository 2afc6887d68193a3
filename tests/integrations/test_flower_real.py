"""Real Flower: `flwr run` on Ray, and a SuperLink with SuperNodes, all on the loopback device."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integrations.flower_apps import Written

BIN = Path(sys.executable).parent
PATIENCE = 240.0  # seconds until a run counts as lost; it takes some ten
PROJECT = """
[project]
name = "canaryapp"
version = "1.0.0"
description = "An app whose server is audited"
license = "Apache-2.0"
dependencies = []

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.flwr.app]
publisher = "somebody"

[tool.flwr.app.components]
serverapp = "canaryapp.audited:app"
clientapp = "canaryapp.client:app"

[tool.flwr.app.config]
rounds = 2
"""
CLIENT = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    weights = message.content["arrays"]["model"].numpy()
    step = np.random.default_rng(context.node_id).standard_normal(weights.size, dtype="f")
    new = Array(weights + step / np.linalg.norm(step))
    arrays, metrics = ArrayRecord({"model": new}), MetricRecord({"num-examples": 10})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    metrics = MetricRecord({"num-examples": 10, "loss": 1.0})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
"""
SERVER = """
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    inner = FedAvg(min_available_nodes=NODES, min_train_nodes=NODES, min_evaluate_nodes=NODES)
    strategy = DifferentialPrivacyServerSideFixedClipping(inner, 0.6, 1.0, NODES)
    start = ArrayRecord({"model": Array(np.zeros(1000, np.float32))})
    strategy.start(grid=grid, initial_arrays=start, num_rounds=context.run_config.get("rounds", 2))
"""
AUDITED = """
from canaryapp.server import app as server_app
from epsilometer.integrations.flower import AccountedMean, audit_server_app

more = {{}}
app = audit_server_app(server_app, delta=1e-5, canaries={canaries}, mode={mode!r},
                       out={out!r}, **more)
"""
WRAPPED = "DifferentialPrivacyServerSideFixedClipping"
PLANTS = "canary_mod(1, seed=9, clip_norm=1.0)"
SECURE_SERVER = """
import numpy as np
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerConfig
from flwr.server.compat import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=NODES,
        min_available_clients=NODES,
        initial_parameters=ndarrays_to_parameters([np.zeros(1000, np.float32)]),
    )
    legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=2), strategy=strategy)
    secure = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, clipping_range=3.0)
    DefaultWorkflow(fit_workflow=secure)(grid, legacy)
"""
SECURE_CLIENT = """
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from epsilometer.integrations.flower import canary_mod


class Still(NumPyClient):
    def fit(self, parameters, config):
        return parameters, 10, {}


app = ClientApp(client_fn=lambda context: Still().to_client(), mods=[secaggplus_mod, PLANTS])
"""
TREE_SERVER = """
import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from epsilometer.federation import TreeNoise
import torch

app = ServerApp()


class Tree(FedAvg):
    noise = None

    def configure_train(self, server_round, arrays, config, grid):
        self.sent = arrays["model"].numpy()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        updates = [reply.content["arrays"]["model"].numpy() - self.sent for reply in replies]
        clipped = [update / max(1.0, np.linalg.norm(update)) for update in updates]
        if self.noise is None:
            self.noise = TreeNoise().start(1000, rounds=2, generator=torch.Generator())
        new = self.sent + np.mean(clipped, axis=0) + self.noise.next(0.6 / len(clipped)).numpy()
        return ArrayRecord({"model": Array(new.astype(np.float32))}), MetricRecord({})


@app.main()
def main(grid, context):
    strategy = Tree(min_available_nodes=NODES, min_train_nodes=NODES, fraction_evaluate=0.0)
    start = ArrayRecord({"model": Array(np.zeros(1000, np.float32))})
    strategy.start(grid=grid, initial_arrays=start, num_rounds=2)
"""
# Writes down its process and, after every round, its weights, from which it goes on.
LASTING_SERVER = """
import os, time
from pathlib import Path
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

app, folder = ServerApp(), Path("FOLDER")


@app.main()
def main(grid, context):
    (folder / "pid").write_text(str(os.getpid()))
    while len(list(grid.get_node_ids())) < NODES:
        time.sleep(0.2)
    saved = folder / "weights.npy"
    inner = FedAvg(min_available_nodes=2, min_train_nodes=2, fraction_evaluate=0.0)
    strategy = DifferentialPrivacyServerSideFixedClipping(inner, 0.6, 1.0, NODES)
    weights = np.load(saved) if saved.exists() else np.zeros(1000, np.float32)

    def keep(server_round, arrays):
        if server_round:
            np.save(saved, arrays["model"].numpy())

    start = ArrayRecord({"model": Array(weights)})
    strategy.start(
        grid=grid, initial_arrays=start, num_rounds=ROUNDS, timeout=TIMEOUT, evaluate_fn=keep
    )
"""
SLOW_CLIENT = CLIENT.replace("    weights =", "    time.sleep(1.0)\n    weights =").replace(
    "import numpy", "import time\nimport numpy", 1
)
# Client, server, mode, settings of the audit, and words of the result, of each kind of privacy.
KINDS = {
    "server clips": (CLIENT, SERVER, "replace", "", "designated nodes"),
    "clients clip": (
        CLIENT.replace("ClientApp()", "ClientApp(mods=[fixedclipping_mod])").replace(
            "import ClientApp", "import ClientApp\nfrom flwr.clientapp.mod import fixedclipping_mod"
        ),
        SERVER.replace(WRAPPED, "DifferentialPrivacyClientSideFixedClipping"),
        "replace",
        "",
        "designated nodes",
    ),
    "adaptive": (
        CLIENT,
        SERVER.replace(
            f"{WRAPPED}(inner, 0.6, 1.0, NODES)",
            "DifferentialPrivacyServerSideAdaptiveClipping(\n"
            "        inner, 0.6, NODES, clipped_count_stddev=0.4,\n"
            "        initial_clipping_norm=0.5, clip_norm_lr=1.0)",
        ).replace(WRAPPED, "DifferentialPrivacyServerSideAdaptiveClipping"),
        "replace",
        "",
        "designated nodes",
    ),
    "local": (
        CLIENT.replace(
            "ClientApp()", f"ClientApp(mods=[LocalDpMod(1.0, 1.0, 8.0, 1e-5), {PLANTS}])"
        ).replace(
            "import ClientApp",
            "import ClientApp\nfrom flwr.clientapp.mod import LocalDpMod\n"
            "from epsilometer.integrations.flower import canary_mod",
        ),
        SERVER.replace(f"strategy = {WRAPPED}(inner, 0.6, 1.0, NODES)", "strategy = inner").replace(
            "min_evaluate_nodes=NODES",
            "fraction_evaluate=0.0",  # LocalDpMod fails on evaluation
        ),
        "mod",
        "more = {'seed': 9, 'local': True}\n",
        "canary_mod",
    ),
    "secure aggregation": (
        SECURE_CLIENT.replace("PLANTS", PLANTS),
        SECURE_SERVER,
        "mod",
        "more = {'seed': 9}\n",
        "canary_mod",
    ),
    "tree": (
        CLIENT,
        TREE_SERVER,
        "replace",
        "from epsilometer.conformance.whitening import Whitening\n"
        "more = {'accounted': AccountedMean(noise_multiplier=0.6, clip_norm=1.0,\n"
        "                                   noise=Whitening.by_tree())}\n",
        "designated nodes",
    ),
}


def project(
    folder: Path,
    *,
    nodes: int,
    canaries: int,
    mode: str,
    client: str = CLIENT,
    server: str = SERVER,
    more: str = "",
) -> Path:
    app = folder / "app"
    package = app / "canaryapp"
    package.mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT, "utf-8")
    (package / "__init__.py").write_text('"""An app."""\n', "utf-8")
    (package / "client.py").write_text(client, "utf-8")
    (package / "server.py").write_text(server.replace("NODES", str(nodes)), "utf-8")
    audited = AUDITED.format(canaries=canaries, mode=mode, out=str(folder / "run"))
    (package / "audited.py").write_text(audited.replace("app = audit", f"{more}app = audit"))
    return app


def environment(folder: Path, port: int) -> dict[str, str]:
    """Nothing is sent to anybody, nothing is installed, nothing of the user's is touched."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
        "insecure = true\n",
        "utf-8",
    )
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


@contextmanager
def running(name: str, *args: str, env: dict[str, str], log: Path) -> Iterator[None]:
    """One of Flower's programs, with all that it starts, until the end of the block."""
    with (
        log.open("wb") as file,
        subprocess.Popen(
            [str(BIN / name), *args], env=env, stdout=file, stderr=file, start_new_session=True
        ) as process,
    ):
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, number)
                except ProcessLookupError:
                    break
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    continue


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def wait_for(what: str, ready: object, logs: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():  # type: ignore[operator]
        if time.monotonic() > deadline:
            said = "\n".join(path.read_text("utf-8")[-3000:] for path in logs.glob("*.log"))
            pytest.fail(f"No {what} after {PATIENCE:g} s.\n{said}")
        time.sleep(0.2)


def submit(app: Path, env: dict[str, str], *more: str) -> None:
    done([str(BIN / "flwr"), "run", str(app), "here", *more], env)


def done(command: list[str], env: dict[str, str]) -> None:
    """Runs a command that must not fail."""
    ended = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def write_lasting_server(folder: Path, *, rounds: int, timeout: float) -> str:
    """The server that goes on; a node that is only slow must not count as one without a reply."""
    values = {"FOLDER": str(folder), "ROUNDS": str(rounds), "TIMEOUT": str(timeout)}
    server = LASTING_SERVER
    for name, value in values.items():
        server = server.replace(name, value)
    return server


def superlink(port: int, *more: str) -> list[str]:
    switches = ["--insecure", "--disable-runtime-dependency-installation"]
    return [*switches, "--host", "127.0.0.1", "--port", str(port), *more]


@pytest.mark.slow
def test_flwr_run_on_ray(tmp_path: Path) -> None:
    port = free_port()
    app = project(tmp_path, nodes=22, canaries=20, mode="virtual")
    env = environment(tmp_path, port)
    log = tmp_path / "superlink.log"
    with running("flower-superlink", *superlink(port, "--simulation"), env=env, log=log):
        wait_for("SuperLink", lambda: healthy(port), tmp_path)
        submit(app, env, "--federation-config", "num-supernodes=2 client-resources-num-cpus=1")
        wait_for("result", (tmp_path / "run" / "notes.txt").exists, tmp_path)
    found = Written(tmp_path / "run")
    assert found.took.tolist() == [2] * 20
    assert found.final[:20].mean() > found.final[20:].mean()
    assert len(found.audit.views) == 2
    assert found.audit.verdict == "not refuted"  # of the claim that follows from the noise


@pytest.mark.slow
def test_run_simulation_from_python(tmp_path: Path) -> None:
    """Without flwr run: the same in all versions of Flower, as its command line is not."""
    app = project(tmp_path, nodes=22, canaries=20, mode="virtual")
    script = (
        "from canaryapp.audited import app\n"
        "from canaryapp.client import app as clients\n"
        "from flwr.simulation import run_simulation\n"
        "run_simulation(app, clients, num_supernodes=2)\n"
    )
    env = {**environment(tmp_path, free_port()), "PYTHONPATH": str(app)}
    done([sys.executable, "-c", script], env)
    assert Written(tmp_path / "run").took.tolist() == [2] * 20


@pytest.mark.slow
def test_superlink_with_supernodes(tmp_path: Path) -> None:
    port = free_port()
    app = project(tmp_path, nodes=2, canaries=1, mode="replace")
    env = environment(tmp_path, port)
    with running("flower-superlink", *superlink(port), env=env, log=tmp_path / "superlink.log"):
        wait_for("SuperLink", lambda: healthy(port), tmp_path)
        with contextmanager(supernodes)(2, port, env, tmp_path):
            submit(app, env)
            wait_for("result", (tmp_path / "run" / "notes.txt").exists, tmp_path)
    found = Written(tmp_path / "run")
    assert found.took.tolist() == [2]
    assert found.final[0] > found.final[1]  # one canary that took part, and one that did not
    assert "designated nodes" in found.told


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_privacy_on_a_deployment(kind: str, tmp_path: Path) -> None:
    """A SuperLink and four SuperNodes; all apps are right but Flower's own adaptive clipping."""
    port, nodes = free_port(), 4
    client, server, mode, more, words = KINDS[kind]
    app = project(
        tmp_path, nodes=nodes, canaries=1, mode=mode, client=client, server=server, more=more
    )
    env = environment(tmp_path, port)
    with running("flower-superlink", *superlink(port), env=env, log=tmp_path / "superlink.log"):
        wait_for("SuperLink", lambda: healthy(port), tmp_path)
        with contextmanager(supernodes)(nodes, port, env, tmp_path):
            submit(app, env)
            wait_for("result", (tmp_path / "run" / "notes.txt").exists, tmp_path)
    found = Written(tmp_path / "run")
    assert words in found.told
    assert found.judged, found.told
    right = ("violated",) if kind == "adaptive" else ("no claim", "not refuted")
    assert found.audit.verdict in right, found.told


@pytest.mark.slow
def test_a_server_app_that_is_killed_on_a_deployment_resumes(tmp_path: Path) -> None:
    port, nodes, out = free_port(), 3, tmp_path / "run"
    server = write_lasting_server(tmp_path, rounds=5, timeout=PATIENCE)
    app = project(
        tmp_path, nodes=nodes, canaries=1, mode="replace", client=SLOW_CLIENT, server=server
    )
    env = environment(tmp_path, port)
    with running("flower-superlink", *superlink(port), env=env, log=tmp_path / "superlink.log"):
        wait_for("SuperLink", lambda: healthy(port), tmp_path)
        with contextmanager(supernodes)(nodes, port, env, tmp_path):
            submit(app, env)
            wait_for("round", (out / "watch.npz").exists, tmp_path)
            os.kill(int((tmp_path / "pid").read_text("utf-8")), signal.SIGKILL)
            assert not (out / "notes.txt").exists()
            submit(app, env)
            wait_for("result", (out / "result.json").exists, tmp_path)
            wait_for("end", (out / "notes.txt").exists, tmp_path)
    found = Written(out)
    assert "started 2 times" in found.told
    assert found.took.tolist()[0] >= 6  # one round at least before, and five since
    assert not (tmp_path / "run-2").exists()
    assert found.audit.verdict == "not refuted"


@pytest.mark.slow
def test_a_supernode_that_dies_is_a_remark(tmp_path: Path) -> None:
    port, nodes, out = free_port(), 4, tmp_path / "run"
    server = write_lasting_server(tmp_path, rounds=4, timeout=20)
    app = project(
        tmp_path, nodes=nodes, canaries=1, mode="replace", client=SLOW_CLIENT, server=server
    )
    env = environment(tmp_path, port)
    with running("flower-superlink", *superlink(port), env=env, log=tmp_path / "superlink.log"):
        wait_for("SuperLink", lambda: healthy(port), tmp_path)
        with contextmanager(supernodes)(3, port, env, tmp_path):
            with contextmanager(supernodes)(1, port, env, tmp_path / "mortal"):
                submit(app, env)
                wait_for("round", (out / "watch.npz").exists, tmp_path)
            wait_for("result", (out / "notes.txt").exists, tmp_path)  # one of them is dead
    found = Written(out)
    assert "were errors" in found.told or "did not reply" in found.told
    # Flower's noise is for four replies, whoever is dead.
    assert found.audit.verdict == "violated"
    assert found.audit.conformance.check("noise scale").outcome == "violated"


def supernodes(count: int, port: int, env: dict[str, str], folder: Path) -> Iterator[None]:
    if count == 0:
        yield
        return
    args = ["--insecure", "--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1"]
    number = ["--port", str(free_port()), "--node-config", f"partition-id={count - 1}"]
    folder.mkdir(exist_ok=True)
    log = folder / f"supernode{count}.log"
    with running("flower-supernode", *args, *number, env=env, log=log):
        yield from supernodes(count - 1, port, env, folder)
