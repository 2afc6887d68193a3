"""Strategies that are audited by themselves, of both kinds, and apps of the older kind."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from flwr.app import ConfigRecord, Context
from flwr.client import NumPyClient
from flwr.client.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import Server, ServerAppComponents, ServerConfig, SimpleClientManager
from flwr.server.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Krum,
    Strategy,
)
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg as NewFedAvg

from epsilometer.core.serialisation import load
from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.integrations.flower import (
    audit_server_app,
    audited_strategy,
    canary_mod,
    run_in_process,
)
from epsilometer.integrations.flower.settings import draw_directions
from tests.integrations.flower_apps import (
    CLAIM,
    DELTA,
    EPSILON,
    NOISE,
    Written,
    audit,
    averaging,
    client,
    flat,
    model,
    private,
    server,
)

FLAKE = 1e-6  # chance that a right audit fails a test
WEIGHTS = 2000


# Strategies of flwr.serverapp.


def run_audited(strategy: Any, folder: Path, *, nodes: int, rounds: int = 1, **asked: Any) -> Any:
    """The app stays as it is; only its strategy is another."""
    np.random.seed(0)
    random.seed(0)
    usual = {"delta": DELTA, "mode": "virtual", "seed": 0}
    settings = {**usual, "out": folder / "run", **asked}
    last: list[Any] = []
    app = server(audited_strategy(strategy, **settings), rounds=rounds, done=last.append)
    run_in_process(app, client(), nodes=nodes)
    return Written(folder / "run"), last[0]


@pytest.mark.parametrize("mode", ["virtual", "replace"])
def test_strategy_and_app_show_the_same(tmp_path: Path, mode: str) -> None:
    ours, last = run_audited(
        private(20), tmp_path / "strategy", nodes=20, rounds=2, canaries=8, mode=mode
    )
    theirs = audit(
        server(private(20), rounds=2), client(), tmp_path / "app", nodes=20, canaries=8, mode=mode
    )
    for name in ("final", "largest", "took"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    moved = flat(last) - flat(model(WEIGHTS))
    expected = draw_directions("hadamard", 8, WEIGHTS, 0).cosines(moved)
    np.testing.assert_allclose(ours.final, expected, atol=1e-6)  # float32
    assert ours.told == theirs.told


def test_the_strategy_that_was_given_is_as_before(tmp_path: Path) -> None:
    strategy = private(12)
    before = dict(vars(strategy))
    audited = audited_strategy(strategy, delta=DELTA, out=tmp_path / "run")
    assert type(audited) is type(strategy)
    assert vars(strategy) == before


def test_a_start_of_ones_own_is_kept(tmp_path: Path) -> None:
    class Own(NewFedAvg):
        """Does not ask Flower's own start."""

        def start(self, grid: Any, initial_arrays: Any, **more: Any) -> Any:
            arrays = initial_arrays
            for number in (1, 2):
                asked = self.configure_train(number, arrays, more["config"], grid)
                arrays, _ = self.aggregate_train(number, grid.send_and_receive(asked))
            return arrays

    app = ServerApp()
    strategy = audited_strategy(
        Own(), delta=DELTA, canaries=4, mode="virtual", out=tmp_path / "run"
    )

    @app.main()
    def main(grid: Any, context: Context) -> None:
        strategy.start(grid, model(WEIGHTS), config=ConfigRecord())

    run_in_process(app, client(), nodes=6)
    found = Written(tmp_path / "run")
    assert found.took.tolist() == [2] * 4  # the second round's weights never crossed the grid
    assert "not called" not in found.told


def test_a_strategy_that_fails_leaves_what_it_has_seen(tmp_path: Path) -> None:
    class Failing(NewFedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            if server_round == 2:
                raise ConnectionError("the link went down")
            return super().aggregate_train(server_round, replies)

    with pytest.raises(ConnectionError):
        run_audited(Failing(fraction_evaluate=0.0), tmp_path, nodes=8, rounds=3, canaries=4, seed=1)
    found = Written(tmp_path / "run")
    assert "ended with an error" in found.told
    assert found.took.tolist() == [1] * 4
    assert found.judged


def test_what_is_no_strategy_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="Expected a Strategy of flwr, got str"):
        audited_strategy("FedAvg", delta=DELTA)  # type: ignore[type-var]
    with pytest.raises(InvalidArgument, match="canaries"):
        audited_strategy(averaging(), delta=DELTA, canaries=0)


# Strategies of flwr.server, in apps with server_fn.


class Client(NumPyClient):
    """A client whose update has norm ½; integer arrays are counted on."""

    def __init__(self, context: Context, called: list[tuple[int, str]], broken: int | None) -> None:
        self.node, self.called = context.node_id, called
        self.broken = context.node_config["partition-id"] == broken

    def get_parameters(self, config: Any) -> Any:
        return old_model()

    def fit(self, parameters: Any, config: Any) -> Any:
        self.called.append((self.node, "fit"))
        if self.broken:
            raise RuntimeError("the disk of this phone is full")
        step = np.random.default_rng(self.node).standard_normal(WEIGHTS, dtype=np.float32)
        weights = parameters[0] + 0.5 * step / np.linalg.norm(step)
        return [weights, *(part + 1 for part in parameters[1:])], 100, {"loss": 0.5}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        self.called.append((self.node, "evaluate"))
        return 0.5, 100, {}


def old_client(
    *mods: Any, called: list[tuple[int, str]] | None = None, broken: int | None = None
) -> ClientApp:
    calls = [] if called is None else called
    return ClientApp(
        client_fn=lambda context: Client(context, calls, broken).to_client(), mods=list(mods)
    )


def old_model() -> list[Any]:
    return [np.linspace(-1, 1, WEIGHTS, dtype=np.float32)]


class Old(FedAvg):
    """Federated averaging that keeps what it was sent and what it made."""

    def __init__(self, start: Any = None, **more: Any) -> None:
        initial = ndarrays_to_parameters(old_model() if start is None else start)
        super().__init__(
            **{"fraction_evaluate": 0.0, "initial_parameters": initial, **more},
        )
        self.kept: list[Any] = []

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        self.kept.append([reply for _, reply in results])
        return super().aggregate_fit(server_round, results, failures)


def old_app(strategy: Strategy | None, rounds: int = 1) -> ServerApp:
    def server_fn(context: Context) -> ServerAppComponents:
        return ServerAppComponents(config=ServerConfig(num_rounds=rounds), strategy=strategy)

    return ServerApp(server_fn=server_fn)


def old_private(inner: Strategy, nodes: int) -> Strategy:
    return DifferentialPrivacyServerSideFixedClipping(inner, NOISE, 1.0, nodes)


def test_apps_with_server_fn_are_audited(tmp_path: Path) -> None:
    canaries, clients = 300, 40
    found = audit(
        old_app(old_private(Old(), canaries + clients)),
        old_client(),
        tmp_path,
        nodes=clients,
        canaries=canaries,
        claim=CLAIM,
    )
    assert len(found.audit.views) == 1
    assert found.audit.verdict == "not refuted"
    mean = 1 / np.sqrt(NOISE**2 * WEIGHTS + canaries + clients * 0.5**2)
    tolerance = scipy.stats.norm.isf(FLAKE / 2) / np.sqrt(canaries * WEIGHTS)
    np.testing.assert_allclose(found.final[:canaries].mean(), mean, atol=tolerance)
    np.testing.assert_allclose(found.final[canaries:].mean(), 0, atol=tolerance)
    assert "DifferentialPrivacyServerSideFixedClipping of Old" in found.audit.subject


def test_whoever_has_more_examples_is_exposed_in_older_apps_too(tmp_path: Path) -> None:
    canaries, clients = 300, 300
    strategy = Old()
    found = audit(
        old_app(old_private(strategy, canaries + clients)),
        old_client(),
        tmp_path,
        nodes=clients,
        canaries=canaries,
        claim=CLAIM,
        weight=10,
    )
    assert [reply.num_examples for reply in strategy.kept[0]] == [100] * 300 + [1000] * 300
    assert found.audit.views[0].estimates[1].low > EPSILON


def test_replaced_nodes_of_older_apps_never_train(tmp_path: Path) -> None:
    called: list[tuple[int, str]] = []
    strategy = old_private(Old(fraction_evaluate=1.0), 20)
    found = audit(
        old_app(strategy, rounds=2),
        old_client(called=called),
        tmp_path,
        nodes=20,
        canaries=5,
        mode="replace",
    )
    assert len({node for node, what in called if what == "fit"}) == 15
    assert len({node for node, what in called if what == "evaluate"}) == 20
    assert found.took.tolist() == [2] * 5
    assert len(found.audit.views) == 2


def test_virtual_nodes_of_older_apps_evaluate_nothing(tmp_path: Path) -> None:
    called: list[tuple[int, str]] = []
    strategy = Old(fraction_evaluate=1.0)
    found = audit(
        old_app(strategy), old_client(called=called), tmp_path, nodes=8, canaries=4, weight=2
    )
    assert sorted(what for _, what in called) == ["evaluate"] * 8 + ["fit"] * 8
    assert found.took.tolist() == [1] * 4
    ours = strategy.kept[0][8:]
    assert [(reply.num_examples, reply.metrics) for reply in ours] == [(200, {"loss": 0.5})] * 4
    for reply in ours:  # as long as clients' updates, where nobody clips
        moved = parameters_to_ndarrays(reply.parameters)[0] - old_model()[0]
        np.testing.assert_allclose(np.linalg.norm(moved), 0.5, rtol=1e-3)


def test_where_clients_of_older_apps_clip(tmp_path: Path) -> None:
    inner = Old()
    strategy = DifferentialPrivacyClientSideFixedClipping(inner, 0.1, 0.3, 10)
    audit(old_app(strategy), old_client(fixedclipping_mod), tmp_path, nodes=6, canaries=4)
    for reply in inner.kept[0]:
        moved = parameters_to_ndarrays(reply.parameters)[0] - old_model()[0]
        np.testing.assert_allclose(np.linalg.norm(moved), 0.3, rtol=1e-3)
    inner = Old()
    adaptive = DifferentialPrivacyClientSideAdaptiveClipping(inner, 0.1, 10, 0.3)
    folder = tmp_path / "adaptive"
    audit(old_app(adaptive), old_client(adaptiveclipping_mod), folder, nodes=6, canaries=4)
    assert [int(reply.metrics["norm_bit"]) for reply in inner.kept[0]] == [1] * 6 + [0] * 4


def test_integer_arrays_of_older_apps_come_back_untouched(tmp_path: Path) -> None:
    strategy = Old(start=[*old_model(), np.array([7, 8])])
    found = audit(old_app(strategy, rounds=2), old_client(), tmp_path, nodes=6, canaries=4)
    for reply in strategy.kept[0][6:]:
        assert parameters_to_ndarrays(reply.parameters)[1].tolist() == [7, 8]
    assert found.judged


def test_a_client_of_an_older_app_that_fails(tmp_path: Path) -> None:
    clients = old_client(broken=3)
    found = audit(old_app(Old()), clients, tmp_path / "plain", nodes=8, canaries=4)
    assert found.judged
    assert "1 replies of clients were errors" in found.told
    skipped = audit(
        old_app(old_private(Old(), 12)), clients, tmp_path / "private", nodes=8, canaries=4
    )
    assert not skipped.judged
    assert "at least one round that moved the weights" in skipped.told


def test_nobody_answers_but_canaries(tmp_path: Path) -> None:
    """Then there is no reply to go by."""

    class NoClients(Old):
        def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
            asked = super().configure_fit(server_round, parameters, client_manager)
            return [pair for pair in asked if int(pair[0].cid) > 2**60]

    strategy = NoClients()
    found = audit(old_app(strategy), old_client(), tmp_path, nodes=8, canaries=4, clip_norm=1.0)
    assert [reply.num_examples for reply in strategy.kept[0]] == [1] * 4
    np.testing.assert_allclose(found.final[:4], 0.5, atol=1e-3)  # four orthonormal ones


def test_strategies_of_older_apps_that_drop_outliers(tmp_path: Path) -> None:
    strategy = Krum(fraction_evaluate=0.0, initial_parameters=ndarrays_to_parameters(old_model()))
    found = audit(old_app(strategy), old_client(), tmp_path, nodes=8, canaries=4)
    assert "Krum drops outliers" in found.told
    assert found.judged


def test_initial_weights_may_come_from_a_client(tmp_path: Path) -> None:
    """And the strategy may be Flower's own default, which asks two clients to evaluate."""
    found = audit(old_app(None, rounds=2), old_client(), tmp_path, nodes=8, canaries=4)
    assert found.took.tolist() == [2] * 4
    assert "Flower FedAvg" in found.audit.subject


def test_apps_that_bring_a_server_or_are_made_without_server_fn(tmp_path: Path) -> None:
    server = Server(client_manager=SimpleClientManager(), strategy=Old())
    app = ServerApp(server=server, config=ServerConfig(num_rounds=1))
    assert audit(app, old_client(), tmp_path / "a", nodes=8, canaries=4).took.sum() == 4
    assert type(server.strategy) is Old
    app = ServerApp(strategy=Old(), config=ServerConfig(num_rounds=1))
    assert audit(app, old_client(), tmp_path / "b", nodes=8, canaries=4).took.sum() == 4


def test_older_strategies_write_after_every_round(tmp_path: Path) -> None:
    class Failing(Old):
        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            if server_round == 3:
                raise ConnectionError("the link went down")
            return super().aggregate_fit(server_round, results, failures)

    strategy = audited_strategy(
        Failing(), delta=DELTA, canaries=4, mode="virtual", out=tmp_path / "run"
    )
    with pytest.raises(ConnectionError):
        run_in_process(old_app(strategy, rounds=5), old_client(), nodes=8)
    found = Written(tmp_path / "run")
    assert found.took.tolist() == [2] * 4
    assert "Written after every round" in found.told
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_earlier_rounds_showed_is_no_result_once_others_are_planted(tmp_path: Path) -> None:
    mods = [canary_mod(4, seed=seed, clip_norm=1.0) for seed in (9, 8)]
    rounds = list[int]()

    class Counting(Old):
        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            rounds.append((tmp_path / "run" / "result.json").exists())
            return super().aggregate_fit(server_round, results, failures)

    def plant(message: Any, context: Any, call: Any) -> Any:
        return mods[len(rounds) == 2](message, context, call)

    strategy = audited_strategy(
        Counting(), delta=DELTA, canaries=4, mode="mod", seed=9, out=tmp_path / "run"
    )
    run_in_process(old_app(strategy, rounds=3), old_client(plant), nodes=8)
    assert rounds == [False, True, True]
    with pytest.raises(UnreadableFile, match="4 of 12 replies were about others"):
        load(tmp_path / "run")


def test_older_strategies_whose_result_cannot_be_written_train_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory", "utf-8")
    called: list[tuple[int, str]] = []
    strategy = audited_strategy(
        Old(), delta=DELTA, canaries=4, mode="virtual", out=tmp_path / "file" / "run"
    )
    run_in_process(old_app(strategy, rounds=2), old_client(called=called), nodes=8)
    assert sum(what == "fit" for _, what in called) == 16


def test_older_apps_whose_canaries_have_no_room(tmp_path: Path) -> None:
    called: list[tuple[int, str]] = []
    app = audit_server_app(
        old_app(Old()), delta=DELTA, canaries=1001, mode="virtual", out=tmp_path / "run"
    )
    run_in_process(app, old_client(called=called), nodes=8)
    assert called  # the run went on without canaries
    told = (tmp_path / "run" / "notes.txt").read_text("utf-8")
    assert "at most 1000 canaries for 2000 weights" in told
