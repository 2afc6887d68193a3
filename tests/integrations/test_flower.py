"""Audits of Flower apps through the grid whose nodes are function calls."""

import shutil
from pathlib import Path
from typing import Any

import flwr.serverapp
import numpy as np
import pytest
import scipy.stats
from flwr.app import (
    Array,
    ArrayRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    fixedclipping_mod,
    message_size_mod,
)
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedMedian,
    FedTrimmedAvg,
    Krum,
    MultiKrum,
    Strategy,
)

import epsilometer as em
from epsilometer._dispatch import read_call
from epsilometer.audits.federated.iterates import Layout
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.flower import (
    AccountedMean,
    InProcessGrid,
    audit_server_app,
    canary_mod,
    run_in_process,
)
from epsilometer.integrations.flower.replies import RegeneratedArray, ReplyMaker
from epsilometer.integrations.flower.settings import Settings, draw_directions
from tests.integrations.flower_apps import (
    CLAIM,
    DELTA,
    EPSILON,
    NOISE,
    Replies,
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


def test_a_right_mechanism_is_spared_and_its_epsilon_is_estimated(tmp_path: Path) -> None:
    nodes, canaries, weights = 350, 300, 20_000
    found = audit(
        server(private(nodes), weights=weights),
        client(),
        tmp_path,
        nodes=50,
        canaries=canaries,
        claim=CLAIM,
    )
    (result,) = found.audit.views
    assert found.audit.verdict == "not refuted"
    assert 2 < result.bound.epsilon < EPSILON
    # What a canary should show: its own part of the update over the length of all of it.
    others = canaries + 50 * 0.5**2
    mean = 1 / np.sqrt(NOISE**2 * weights + others)
    tolerance = scipy.stats.norm.isf(FLAKE / 2) / np.sqrt(canaries * weights)
    np.testing.assert_allclose(found.final[:canaries].mean(), mean, atol=tolerance)
    np.testing.assert_allclose(found.final[canaries:].mean(), 0, atol=tolerance)
    tied = result.estimates[1]
    assert tied.low < EPSILON < tied.high + 1  # others blur it a little


@pytest.mark.parametrize("family", ["hadamard", "sphere"])
def test_the_weights_after_the_last_round_are_seen_though_nothing_is_evaluated(
    tmp_path: Path, family: Any
) -> None:
    last: list[ArrayRecord] = []
    app = server(private(30), rounds=3, done=last.append)
    found = audit(app, client(), tmp_path, nodes=20, canaries=10, family=family, seed=5)
    moved = flat(last[0]) - flat(model(2000))
    expected = draw_directions(family, 10, 2000, 5).cosines(moved)
    np.testing.assert_allclose(found.final, expected, atol=1e-6)  # float32
    assert found.took.tolist() == [3] * 10
    assert len(found.audit.views) == 2
    assert "every round" in found.audit.view("all rounds").bound.adversary
    shared = [bound.confidence for bound in found.audit.bounds]
    # A little is for the noise; where everybody takes part, mean and ranks share a view's part.
    assert shared == pytest.approx([0.975, 0.9875], abs=1e-4)


def test_replaced_nodes_are_no_others_and_their_clients_never_train(tmp_path: Path) -> None:
    called: list[tuple[int, str]] = []
    seen: list[list[int]] = []
    strategy = private(20, averaging(fraction_evaluate=1.0))
    inner = server(strategy, rounds=2)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        seen.append(list(grid.get_node_ids()))
        if hasattr(Grid, "get_nodes"):  # not in older versions
            seen.append([node.node_id for node in grid.get_nodes()])
        inner(grid, context)

    found = audit(app, client(called=called), tmp_path, nodes=20, canaries=5, mode="replace")
    every = list(InProcessGrid(client(), nodes=20).get_node_ids())
    assert all(nodes == every for nodes in seen)
    trained = {node for node, what in called if what == "train"}
    evaluated = {node for node, what in called if what == "evaluate"}
    assert len(trained) == 15  # the others, and always the same
    assert evaluated == set(every)
    assert found.took.tolist() == [2] * 5


def test_nodes_are_designated_at_random(tmp_path: Path) -> None:
    """As nobody foresees who: the first ones to connect are not like the others."""
    chosen = []
    for seed in range(5):
        called: list[tuple[int, str]] = []
        app = server(private(20))
        folder = tmp_path / str(seed)
        audit(app, client(called=called), folder, nodes=20, canaries=5, mode="replace", seed=seed)
        trained = {node for node, _ in called}
        chosen.append(frozenset(InProcessGrid(client(), nodes=20).get_node_ids()) - trained)
    assert len(set(chosen)) == 5  # of 15,504 choices


def test_nodes_may_be_designated_by_name(tmp_path: Path) -> None:
    called: list[tuple[int, str]] = []
    chosen = [4, 9, 7]
    app = audit_server_app(
        server(private(20)),
        delta=DELTA,
        canaries=3,
        mode="replace",
        nodes=chosen,
        out=tmp_path / "run",
    )
    run_in_process(app, client(called=called), nodes=20)
    assert {node for node, _ in called}.isdisjoint(chosen)
    assert len(called) == 17


def test_virtual_nodes_are_beside_the_real_ones_and_evaluate_nothing(tmp_path: Path) -> None:
    called: list[tuple[int, str]] = []
    strategy = private(12, averaging(fraction_evaluate=1.0))
    found = audit(server(strategy), client(called=called), tmp_path, nodes=8, canaries=4)
    assert sorted(what for _, what in called) == ["evaluate"] * 8 + ["train"] * 8
    assert found.took.tolist() == [1] * 4


def test_canaries_reply_as_clients_do(tmp_path: Path) -> None:
    strategy = Replies()
    audit(server(strategy), client(norm=0.25), tmp_path, nodes=6, canaries=4, weight=10)
    ours, theirs = strategy.kept[0][6:], strategy.kept[0][:6]
    assert len(ours) == 4
    for reply in ours:
        assert list(reply.content) == list(theirs[0].content)
        assert reply.content["metrics"]["num-examples"] == 1000
        assert reply.content["metrics"]["loss"] == 0.5
        moved = flat(reply.content["arrays"]) - flat(model(2000))
        np.testing.assert_allclose(np.linalg.norm(moved), 0.25, rtol=1e-3)  # as clients' median
        assert reply.content["arrays"]["w"].dtype == "float32"


def test_a_weight_that_has_no_key_is_told(tmp_path: Path) -> None:
    asked: Any = {"nodes": 6, "canaries": 4, "weight": 10}
    for key, told in (("num-examples", False), ("examples", True)):
        folder = tmp_path / key
        found = audit(server(averaging()), client(), folder, weighted_by_key=key, **asked)
        assert ("canaries weighed as clients do" in found.told) == told


def test_where_clients_clip_canaries_have_the_norm_they_are_sent(tmp_path: Path) -> None:
    inner = Replies()
    strategy = DifferentialPrivacyClientSideFixedClipping(inner, 0.1, 0.3, 10)
    clients = client(mods=[fixedclipping_mod])
    found = audit(server(strategy), clients, tmp_path, nodes=6, canaries=4, clip_norm=7.0)
    for reply in inner.kept[0]:
        moved = flat(reply.content["arrays"]) - flat(model(2000))
        np.testing.assert_allclose(np.linalg.norm(moved), 0.3, rtol=1e-3)
    assert "not clip_norm" in found.told


def test_where_clients_clip_adaptively_canaries_say_that_they_did_not(tmp_path: Path) -> None:
    inner = Replies()
    strategy = DifferentialPrivacyClientSideAdaptiveClipping(inner, 0.1, 10, 0.3)
    clients = client(mods=[adaptiveclipping_mod])
    audit(server(strategy), clients, tmp_path, nodes=6, canaries=4)
    bits = [reply.content["metrics"]["norm_bit"] for reply in inner.kept[0]]
    assert bits == [1] * 6 + [0] * 4


def test_where_the_server_clips_adaptively_canaries_do_not_count_as_clipped(tmp_path: Path) -> None:
    strategy = DifferentialPrivacyServerSideAdaptiveClipping(Replies(), 0.0, 10, 0.3, 0.5, 1.0)
    audit(server(strategy), client(), tmp_path, nodes=6, canaries=4)
    np.testing.assert_allclose(strategy.clipping_norm, 0.3 * np.exp(0.5 - 6 / 10))


def test_integer_arrays_come_back_untouched(tmp_path: Path) -> None:
    arrays = model(2000)
    arrays["batches"] = Array(np.array([7, 2**53 + 1]))
    strategy = Replies()
    found = audit(
        server(strategy, arrays=arrays, rounds=3), client(), tmp_path, nodes=6, canaries=4
    )
    for reply in strategy.kept[0][6:]:
        got = reply.content["arrays"]["batches"].numpy()
        assert got.dtype == np.int64
        assert got.tolist() == [7, 2**53 + 1]
    # Averaging makes them floating-point numbers: they still do not count.
    assert strategy.kept[2][0].content["arrays"]["batches"].dtype == "float64"
    assert found.judged


def test_statistics_of_normalisation_are_not_weights(tmp_path: Path) -> None:
    arrays = model(2000)
    arrays["norm.running_var"] = Array(np.full(5, 1e-9, np.float32))
    strategy = Replies()
    audit(server(strategy, arrays=arrays), client(), tmp_path, nodes=6, canaries=4)
    for reply in strategy.kept[0][6:]:
        assert (reply.content["arrays"]["norm.running_var"].numpy() == np.float32(1e-9)).all()


def test_apps_that_push_and_pull_by_themselves_are_audited_too(tmp_path: Path) -> None:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        arrays = model(2000)
        for _ in range(3):
            content = RecordDict({"arrays": arrays})
            every = [Message(content, node, MessageType.TRAIN) for node in grid.get_node_ids()]
            replies = list(grid.pull_messages(grid.push_messages(every)))
            assert len(replies) == 10
            assert {r.metadata.reply_to_message_id for r in replies} == {
                m.metadata.message_id for m in every
            }
            mean = {
                name: np.mean([r.content["arrays"][name].numpy() for r in replies], axis=0)
                for name in arrays
            }
            arrays = ArrayRecord({name: Array(value) for name, value in mean.items()})

    found = audit(app, client(), tmp_path, nodes=6, canaries=4)
    assert found.took.tolist() == [2] * 4  # the third round's weights never crossed
    assert "Strategy.start was not called" in found.told


@pytest.mark.skipif(
    not hasattr(flwr.serverapp, "RdpAccountant"), reason="this version of Flower has no accountant"
)
def test_flowers_own_accountant_keeps_its_books(tmp_path: Path) -> None:
    accountant = flwr.serverapp.RdpAccountant(
        flwr.serverapp.PrivacyConfig(
            target_delta=DELTA,
            population_size=12,
            neighboring_relation=flwr.serverapp.NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=flwr.serverapp.SamplingMethod.NO_AMPLIFICATION,
        )
    )
    strategy = DifferentialPrivacyServerSideFixedClipping(
        averaging(), 2.0, 1.0, 12, accountant=accountant
    )
    found = audit(
        server(strategy, rounds=2), client(), tmp_path, nodes=12, canaries=4, mode="replace"
    )
    spent = strategy.privacy_spent()
    assert spent.num_releases == 2
    claim = found.audit.claim
    assert claim is not None
    assert (claim.epsilon, claim.adjacency, claim.unit) == (spent.epsilon, "add_remove", "client")
    assert found.took.tolist() == [2] * 4


def test_who_took_part_is_counted_and_may_be_known_to_the_adversary(tmp_path: Path) -> None:
    app = server(private(20, averaging(fraction_train=0.5)), rounds=3)
    for participation, name in (("hidden", "a"), ("known", "b")):
        (tmp_path / name).mkdir()
        found = audit(
            app, client(), tmp_path / name, nodes=20, canaries=20, participation=participation
        )
        assert 0 < found.took.sum() <= 3 * 20
        result = found.audit.views[0]
        counted = 20 if participation == "hidden" else int(np.sum(found.took > 0))
        assert result.bound.n_in == counted
        assert ("knows who took part" in result.bound.adversary) == (participation == "known")


def test_canaries_may_plant_themselves_where_the_server_must_not(tmp_path: Path) -> None:
    strategy = DifferentialPrivacyClientSideFixedClipping(Replies(), NOISE, 1.0, 60)
    clients = client(mods=[fixedclipping_mod, canary_mod(50, seed=3)])
    found = audit(server(strategy), clients, tmp_path, nodes=60, canaries=50, seed=3, mode="mod")
    mean = 1 / np.sqrt(NOISE**2 * 2000 + 50 + 10 * 0.5**2)
    tolerance = scipy.stats.norm.isf(FLAKE / 2) / np.sqrt(50 * 2000)
    np.testing.assert_allclose(found.final[:50].mean(), mean, atol=tolerance)
    np.testing.assert_allclose(found.final[50:].mean(), 0, atol=tolerance)
    assert "Participation was not observed" in " ".join(found.audit.bounds[0].caveats)


def test_the_strategy_is_as_it_was_after_the_audit(tmp_path: Path) -> None:
    start, strategy = Strategy.start, private(12)
    audit(server(strategy), client(), tmp_path, nodes=8, canaries=4)
    assert Strategy.start is start
    assert "aggregate_train" not in vars(strategy)


def test_runs_do_not_overwrite_each_other(tmp_path: Path) -> None:
    for _ in range(3):
        audit(server(private(12)), client(), tmp_path, nodes=8, canaries=4)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "run-2", "run-3"}


def test_same_seeds_same_result(tmp_path: Path) -> None:
    texts = []
    for name in "ab":
        (tmp_path / name).mkdir()
        found = audit(server(private(12)), client(), tmp_path / name, nodes=8, canaries=4)
        texts.append((found.folder / "result.json").read_text("utf-8"))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("claim", [EPSILON, CLAIM, em.Claim(EPSILON, delta=DELTA)])
def test_a_claim_may_be_a_number(tmp_path: Path, claim: Any) -> None:
    asked: Any = {"claim": claim, "delta": DELTA if claim == EPSILON else None}
    found = audit(server(private(12)), client(), tmp_path, nodes=8, canaries=4, **asked)
    assert found.audit.claim == CLAIM


def test_doing_it_again_needs_what_was_supplied(tmp_path: Path) -> None:
    found = audit(server(private(12)), client(), tmp_path, nodes=8, canaries=4, family="sphere")
    source = found.audit.provenance
    assert (source.subject, source.supplied) == ("flower", ("server_app",))
    assert source.settings["function"] == "epsilometer.integrations.flower:audit_server_app"
    assert (source.settings["canaries"], source.settings["family"]) == (4, "sphere")
    with pytest.raises(InvalidArgument, match="server_app of flower: supplied from Python"):
        read_call(found.folder / "result.json")
    assert found.audit.to_json() + "\n" == (found.folder / "result.json").read_text("utf-8")
    assert "NOT REFUTED" in str(found.audit)  # the claim is computed
    assert found.audit.save(tmp_path / "report.md").stat().st_size > 100


# What goes wrong is told, and what was measured is kept.


def test_no_canary_took_part(tmp_path: Path) -> None:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        for step in range(3):
            arrays = model(2000)
            arrays["b"] = Array(arrays["b"].numpy() + step)
            first = next(iter(grid.get_node_ids()))
            grid.send_and_receive([Message(RecordDict({"arrays": arrays}), first, "train")])

    found = audit(app, client(), tmp_path, nodes=6, canaries=4)
    assert not found.judged
    assert "none was sampled" in found.told
    assert found.largest.max() > 0


@pytest.mark.parametrize(("norm", "words"), [(0.2, "shorter than"), (5.0, "longer than")])
def test_norms_beside_the_clipping_norm(tmp_path: Path, norm: float, words: str) -> None:
    app = server(private(12))
    found = audit(app, client(), tmp_path, nodes=8, canaries=4, clip_norm=norm)
    assert words in found.told
    assert any(words in caveat for caveat in found.audit.bounds[0].caveats)


def test_no_clipping_at_all(tmp_path: Path) -> None:
    found = audit(server(averaging()), client(), tmp_path, nodes=8, canaries=4, claim=CLAIM)
    assert "No clipping norm was found" in found.told


def test_long_canaries_show_that_a_server_does_not_clip(tmp_path: Path) -> None:
    class Unclipped(DifferentialPrivacyServerSideFixedClipping):
        """The classic mistake: the update is clipped, and the model sent on as it was."""

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            self.clipping_norm, promised = 1e9, self.clipping_norm
            kept = list(replies)
            arrays, metrics = self.strategy.aggregate_train(server_round, kept)
            self.clipping_norm = promised
            return self._add_noise_to_aggregated_arrays(arrays), metrics

    for kind, refuted in ((Unclipped, True), (DifferentialPrivacyServerSideFixedClipping, False)):
        (tmp_path / kind.__name__).mkdir()
        strategy = kind(averaging(), NOISE, 1.0, 350)
        found = audit(
            server(strategy, weights=8000),
            client(),
            tmp_path / kind.__name__,
            nodes=50,
            canaries=300,
            clip_norm=10.0,
            claim=CLAIM,
        )
        assert (found.audit.verdict == "refuted") == refuted


class OwnMedian(FedMedian):
    """What users derive drops outliers too."""


@pytest.mark.parametrize("kind", [OwnMedian, FedTrimmedAvg, Krum, MultiKrum, Bulyan])
def test_strategies_that_drop_outliers(tmp_path: Path, kind: Any) -> None:
    strategy = kind(fraction_evaluate=0.0)
    found = audit(server(strategy), client(), tmp_path, nodes=8, canaries=4)
    assert f"{kind.__name__} drops outliers" in found.told
    assert found.judged


def test_rounds_that_move_nothing(tmp_path: Path) -> None:
    """Flower's wrapper skips a round in which a client failed."""
    app = server(private(12), rounds=2)
    found = audit(app, client(broken=3), tmp_path, nodes=8, canaries=4)
    assert not found.judged
    assert "at least one round that moved the weights" in found.told
    assert "2 replies of clients were errors" in found.told


def test_a_client_that_fails_among_others(tmp_path: Path) -> None:
    found = audit(server(averaging()), client(broken=3), tmp_path, nodes=8, canaries=4)
    assert found.judged
    assert "1 replies of clients were errors" in found.told
    assert found.took.tolist() == [1] * 4


def test_zero_updates_of_clients(tmp_path: Path) -> None:
    """Flower 1.41 divides by their norm and fails; what was seen before that is kept."""
    with pytest.raises(ZeroDivisionError):
        audit(server(private(12)), client(norm=0.0), tmp_path, nodes=8, canaries=4)
    assert "ended with an error" in Written(tmp_path / "run").told
    found = audit(server(averaging()), client(norm=0.0), tmp_path / "without", nodes=8, canaries=4)
    assert found.judged
    assert "updates of clients were zero" in found.told
    np.testing.assert_allclose(found.final[:4], 0.5, atol=1e-3)  # four orthonormal ones, no more


def test_every_client_fails(tmp_path: Path) -> None:
    def broken(message: Message, context: Context) -> Message:
        raise RuntimeError("no phone is charged")

    found = audit(server(averaging()), broken, tmp_path, nodes=8, canaries=4, clip_norm=1.0)
    assert "8 replies of clients were errors" in found.told
    assert found.took.tolist() == [1] * 4  # Flower averages what it has


def test_canaries_that_plant_themselves_need_a_norm(tmp_path: Path) -> None:
    clients = client(mods=[canary_mod(4, seed=0)])
    found = audit(server(averaging()), clients, tmp_path, nodes=8, canaries=4, mode="mod")
    assert "4 replies of clients were errors" in found.told
    assert "none said that it did" in found.told
    assert not found.judged


@pytest.mark.parametrize("end", [ConnectionError, KeyboardInterrupt])
def test_a_run_that_ends_early(tmp_path: Path, end: type[BaseException]) -> None:
    class Interrupted(DifferentialPrivacyServerSideFixedClipping):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            if server_round == 3:
                raise end
            return super().aggregate_train(server_round, replies)

    strategy = Interrupted(averaging(), NOISE, 1.0, 12)
    with pytest.raises(end):
        audit(server(strategy, rounds=5), client(), tmp_path, nodes=8, canaries=4)
    found = Written(tmp_path / "run")
    assert "ended with an error" in found.told
    assert found.took.tolist() == [2] * 4
    subjects = [view.subject.rpartition(", ")[2] for view in found.audit.views]
    assert subjects == ["2 rounds: final model", "2 rounds: all rounds"]


def test_models_that_diverge(tmp_path: Path) -> None:
    class Diverging(Replies):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            if server_round == 2:
                arrays["b"] = Array(np.full(10, np.nan, np.float32))
            return arrays, metrics

    found = audit(server(Diverging(), rounds=2), client(), tmp_path, nodes=8, canaries=4)
    assert found.took.tolist() == [1] * 4
    assert "not finite" in " ".join(found.audit.bounds[0].caveats)


@pytest.mark.parametrize("mode", ["virtual", "replace"])
def test_more_canaries_than_the_model_has_room_for(tmp_path: Path, mode: str) -> None:
    done: list[ArrayRecord] = []
    app = server(averaging(), weights=100, done=done.append)
    out = tmp_path / "run"
    audited = audit_server_app(app, delta=DELTA, canaries=51, mode=mode, out=out)
    run_in_process(audited, client(), nodes=60)
    assert done  # the run went on to its end
    assert "at most 50 canaries for 100 weights" in (out / "notes.txt").read_text("utf-8")
    assert not (out / "result.json").exists()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"canaries": 20}, "Expected more nodes than canaries, got 20 and 20"),
        ({"canaries": 2, "nodes": [4, 99]}, "Expected nodes of this grid, got [99]"),
    ],
)
def test_nodes_that_are_not_there(tmp_path: Path, asked: Any, words: str) -> None:
    done: list[ArrayRecord] = []
    app = audit_server_app(
        server(averaging(), done=done.append),
        delta=DELTA,
        mode="replace",
        out=tmp_path / "run",
        **asked,
    )
    run_in_process(app, client(), nodes=20)
    assert done
    assert words in (tmp_path / "run" / "notes.txt").read_text("utf-8")
    assert not (tmp_path / "run" / "result.json").exists()


def test_models_without_anything_to_move(tmp_path: Path) -> None:
    done: list[ArrayRecord] = []
    whole = ArrayRecord({"trees": Array(np.arange(8))})
    app = server(averaging(), arrays=whole, done=done.append)
    audited = audit_server_app(app, delta=DELTA, out=tmp_path / "run")

    def keep(message: Message, context: Context) -> Message:
        (arrays,) = message.content.array_records.values()
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    run_in_process(audited, keep, nodes=8)
    assert done
    assert "Expected floating-point arrays" in (tmp_path / "run" / "notes.txt").read_text("utf-8")


def test_a_result_that_cannot_be_written_leaves_the_run_alone(tmp_path: Path) -> None:
    """Where the disk is full, or somebody took the directory away."""
    done: list[ArrayRecord] = []

    def lose(arrays: ArrayRecord) -> None:
        done.append(arrays)
        shutil.rmtree(tmp_path / "run")

    app = server(averaging(), done=lose)
    run_in_process(audit_server_app(app, delta=DELTA, out=tmp_path / "run"), client(), nodes=20)
    assert done


def test_a_directory_that_cannot_be_made_leaves_the_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the ServerApp runs in a directory that it cannot write to."""
    done: list[ArrayRecord] = []
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "file").write_text("no directory", "utf-8")
    app = server(averaging(), done=done.append)
    asked = {"delta": DELTA, "out": tmp_path / "file" / "run"}
    run_in_process(audit_server_app(app, **asked), client(), nodes=20)
    assert done
    (used,) = (tmp_path / "temporary").iterdir()
    assert Written(used).judged


def test_settings_are_known_again_in_another_process() -> None:
    class Noise:
        """Noise of one's own, described by where it lies in memory."""

    told = [
        Settings(delta=DELTA, accounted=AccountedMean(noise_multiplier=1, clip_norm=1, noise=own))
        for own in (Noise(), Noise())
    ]
    assert told[0].describe("f") == told[1].describe("f")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"canaries": 0}, "canaries"),
        ({"mode": "real"}, "Expected mode to be one of replace, virtual, mod"),
        ({"family": "random"}, "Expected family"),
        ({"participation": "equal"}, "Expected participation"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"weight": -1.0}, "weight"),
        ({"nodes": [1, 2, 2], "canaries": 3}, "Expected as many nodes as canaries, got 2"),
        ({"claim": em.Claim(1.0, delta=0.1)}, "Expected delta to be the claim's 0.1"),
        ({"delta": 0.0}, "delta"),
        ({"delta": None}, "Expected delta, got none"),
        ({"delta": None, "claim": 8.0}, "Expected delta with claim=8.0"),
        ({"claim": "8"}, "Expected claim to be a number, a Claim or None, got str"),
        ({"confidence": 1.0}, "confidence"),
        (
            {"claim": em.Claim(1.0, delta=DELTA, unit="record")},
            "a claim about a client, got unit='record'",
        ),
    ],
)
def test_arguments_are_checked_before_the_run(asked: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        audit_server_app(ServerApp(), **{"delta": DELTA, **asked})


def test_what_is_no_app_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="Expected a ServerApp of flwr, got str"):
        audit_server_app("server:app", delta=DELTA)  # type: ignore[arg-type]


def test_nodes_in_this_process_keep_their_context() -> None:
    def count(message: Message, context: Context) -> Message:
        context.node_config["calls"] = context.node_config.get("calls", 0) + 1
        if context.node_config["calls"] == 3:
            raise RuntimeError("tired")
        return Message(RecordDict(), reply_to=message)

    replies: list[Message] = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        for _ in range(3):
            node = next(iter(grid.get_node_ids()))
            replies.extend(grid.send_and_receive([Message(RecordDict(), node, "query")]))

    run_in_process(app, count, nodes=2)
    assert [reply.has_error() for reply in replies] == [False, False, True]
    assert replies[2].error.reason == "RuntimeError: tired"
    with pytest.raises(InvalidArgument, match="Expected a ClientApp or a function"):
        InProcessGrid("client:app", nodes=2)  # type: ignore[arg-type]


class Shapes(FedAvg):
    """Sends what canaries cannot answer: two models, or a model of its own to every node."""

    def __init__(self, odd: str) -> None:
        super().__init__(fraction_evaluate=0.0)
        self._odd = odd

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Grid) -> Any:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for number, message in enumerate(messages):
            if self._odd == "two models":
                message.content["control"] = ArrayRecord(dict(arrays))
            elif self._odd == "personal":
                own = {name: Array(part.numpy() + number) for name, part in arrays.items()}
                message.content = RecordDict({**message.content, "arrays": ArrayRecord(own)})
        return messages


def part_of(message: Message, context: Context) -> Message:
    """Answers with one array of two, as clients do that train an adapter."""
    own = ArrayRecord({"b": message.content["arrays"]["b"]})  # type: ignore[dict-item]
    content = RecordDict({"arrays": own, "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=message)


def difference(message: Message, context: Context) -> Message:
    """Answers with an update."""
    (arrays,) = message.content.array_records.values()
    own = {name: Array(1e-3 * np.ones_like(part.numpy())) for name, part in arrays.items()}
    content = {"arrays": ArrayRecord(own), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)


@pytest.mark.parametrize("mode", ["virtual", "replace"])
@pytest.mark.parametrize(
    ("strategy", "clients", "reason"),
    [
        (Shapes("two models"), client(), "Expected one ArrayRecord in messages"),
        (Shapes("personal"), client(), "Expected the same weights for all nodes"),
        (Shapes(""), part_of, "'w' is gone or has another shape"),
        (Shapes(""), difference, "replies='updates'"),
    ],
)
def test_the_run_never_ends_because_of_the_audit(
    strategy: Strategy, clients: Any, reason: str, mode: str, tmp_path: Path
) -> None:
    done: list[ArrayRecord] = []
    settings = {"delta": DELTA, "mode": mode, "canaries": 4, "out": tmp_path / "run"}
    app = server(strategy, rounds=3, done=done.append)
    run_in_process(audit_server_app(app, **settings), clients, nodes=8)
    assert done  # the run went on to its end
    assert reason in (tmp_path / "run" / "notes.txt").read_text("utf-8")


def test_updates_in_place_of_weights(tmp_path: Path) -> None:
    """A strategy that adds the mean of updates to what it sent."""

    class Adding(FedAvg):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Grid) -> Any:
            self.sent = arrays
            return super().configure_train(server_round, arrays, config, grid)

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            mean, metrics = super().aggregate_train(server_round, replies)
            new = {name: Array(self.sent[name].numpy() + mean[name].numpy()) for name in mean}
            return ArrayRecord(new), metrics

    app = server(Adding(fraction_evaluate=0.0))
    found = audit(app, difference, tmp_path, nodes=8, canaries=4, clip_norm=1.0, replies="updates")
    np.testing.assert_allclose(found.final[:4], 0.5, atol=0.05)  # clients add little


def local(epsilon: float) -> LocalDpMod:
    """Noise in the clients, for updates of norm 1."""
    return LocalDpMod(1.0, 1.0, epsilon, DELTA)


def test_a_true_claim_of_local_noise_is_not_refuted(tmp_path: Path) -> None:
    """Canaries that pass the clients' own noise by say nothing; those that pass it do."""
    claim = em.Claim(EPSILON, delta=DELTA, adjacency="zero_out", unit="client")
    app, settings = server(averaging(), weights=4000), {"canaries": 60, "claim": claim}
    beside = audit(app, client(mods=[local(EPSILON)]), tmp_path, nodes=20, **settings)
    assert beside.audit.verdict == "cannot judge"  # it was "refuted"
    assert "plant by canary_mod" in beside.told
    mods = [local(EPSILON), canary_mod(60, seed=0, clip_norm=1.0)]
    inside = audit(
        app, client(mods=mods), tmp_path / "mod", nodes=80, mode="mod", local=True, **settings
    )
    view = inside.audit.view("single replies")
    assert view.bound.valid
    assert 1 < view.bound.epsilon < EPSILON
    assert inside.audit.verdict != "refuted"


def test_too_little_local_noise_is_found_in_single_replies(tmp_path: Path) -> None:
    claim = em.Claim(1.0, delta=DELTA, adjacency="zero_out", unit="client")
    mods = [local(EPSILON), canary_mod(60, seed=0, clip_norm=1.0)]
    found = audit(
        server(averaging(), weights=4000),
        client(mods=mods),
        tmp_path,
        nodes=80,
        mode="mod",
        local=True,
        canaries=60,
        claim=claim,
    )
    assert found.audit.verdict == "refuted"
    assert found.audit.view("single replies").bound.refutes(1.0)
    assert not found.audit.view("final model").bound.refutes(1.0)  # the mean hides clients


def test_clients_without_any_local_noise_are_refuted(tmp_path: Path) -> None:
    clients = client(mods=[canary_mod(60, seed=0, clip_norm=1.0)])
    settings = {"mode": "mod", "local": True, "canaries": 60, "claim": EPSILON}
    found = audit(server(averaging(), weights=4000), clients, tmp_path, nodes=80, **settings)
    assert found.audit.verdict == "refuted"  # equal cosines were refused: no result


def test_canaries_that_did_not_pass_later_mods_prove_nothing(tmp_path: Path) -> None:
    """Planted outside of the clients' noise, canaries would refute a true claim."""
    settings = {"mode": "mod", "local": True, "canaries": 60, "claim": EPSILON}
    app, planted = server(averaging(), weights=4000), canary_mod(60, seed=0, clip_norm=1.0)
    mods = [planted, message_size_mod, local(EPSILON)]
    before = audit(app, client(mods=mods), tmp_path, nodes=80, **settings)
    assert not before.judged
    assert "it came before LocalDpMod: canaries of 60 replies" in before.told
    mods = [local(EPSILON), planted, message_size_mod]  # which changes nothing
    last = audit(app, client(mods=mods), tmp_path / "last", nodes=80, **settings)
    assert last.audit.verdict == "not refuted"


def test_canaries_that_no_client_plants_do_not_count(tmp_path: Path) -> None:
    """400 canaries, but 40 clients: the others diluted what the 40 show, 1.7 were proved."""
    clients = client(mods=[canary_mod(400, seed=0, clip_norm=1.0)])
    settings = {"mode": "mod", "canaries": 400, "claim": EPSILON}
    app = server(private(40), weights=4000)
    found = audit(app, clients, tmp_path / "all", nodes=40, **settings)
    assert "40 of 400 canaries were planted by clients." in found.told
    assert found.took.size == 40
    assert 3 < found.audit.epsilon < EPSILON
    app = server(private(20, averaging(fraction_train=0.5)), weights=4000, rounds=3)
    sampled = audit(app, clients, tmp_path / "sampled", nodes=40, **settings)
    assert not sampled.judged
    assert "of them were ever planted, where 175 or more should have been" in sampled.told


def test_single_replies_say_nothing_of_a_server_that_adds_the_noise(tmp_path: Path) -> None:
    clients = client(mods=[canary_mod(20, seed=0, clip_norm=1.0)])
    found = audit(server(private(30)), clients, tmp_path, nodes=30, canaries=20, mode="mod")
    assert [view.subject.rpartition(": ")[2] for view in found.audit.views] == ["final model"]
    with pytest.raises(InvalidArgument, match="mode='mod' with local=True"):
        audit_server_app(server(averaging()), delta=DELTA, local=True)


def test_the_result_says_what_canaries_cost(tmp_path: Path) -> None:
    many = audit(server(averaging()), client(), tmp_path / "many", nodes=10, canaries=90)
    assert "Canaries were at most 90 of the 100 replies of a round." in many.told
    assert "More than a tenth of the replies" in many.told
    # Nine in ten directions of equal length, all of them orthogonal or nearly so.
    assert "added 95% of the norm" in many.told
    few = audit(server(averaging()), client(), tmp_path / "few", nodes=40, canaries=2)
    assert "Canaries were at most 2 of the 42 replies" in few.told
    assert "added 22% of the norm" in few.told
    assert "More than a tenth" not in few.told


def test_the_claim_is_computed_where_nobody_accounts(tmp_path: Path) -> None:
    """Four rounds with twice the noise are as one."""
    app = server(private(24, noise=2 * NOISE), rounds=4)
    found = audit(app, client(), tmp_path, nodes=16, canaries=8).audit
    assert found.claim is not None
    assert found.claim.epsilon == pytest.approx(EPSILON, rel=1e-3)
    assert "4 rounds, no amplification" in found.claim.accountant
    assert found.verdict == "not refuted"
    assert 0.8 * EPSILON < found.conformance.bound.epsilon < EPSILON


@pytest.mark.parametrize(
    ("mode", "nodes", "canaries", "of"),
    [
        ("virtual", 10, 1, 11),
        ("virtual", 90, 10, 100),
        ("virtual", 400, 20, 420),
        ("replace", 30, 3, 30),
        ("replace", 300, 20, 300),
    ],
)
def test_by_default_one_node_in_ten_is_a_canary_at_most(
    tmp_path: Path, mode: Any, nodes: int, canaries: int, of: int
) -> None:
    found = audit(
        server(averaging()), client(), tmp_path, nodes=nodes, mode=mode, canaries=None, claim=None
    )
    assert f"Canaries were at most {canaries} of the {of} replies of a round." in found.told
    assert found.audit.views[0].bound.n_in == canaries
    assert "More than a tenth" not in found.told


def test_replies_of_canaries_are_made_when_they_are_read() -> None:
    """However many there are, none is held."""
    made = []

    def make() -> Any:
        made.append(1)
        return np.arange(6, dtype=np.float32).reshape(2, 3)

    array = RegeneratedArray(np.zeros((2, 3), np.float32), make)
    record = ArrayRecord()
    record["w"] = array
    assert not made
    assert (array.dtype, array.shape, array.stype) == ("float32", (2, 3), "numpy.ndarray")
    np.testing.assert_array_equal(record["w"].numpy(), make())
    assert array.data == Array(make()).data
    np.testing.assert_array_equal(record.to_numpy_ndarrays()[0], make())


def test_clipped_replies_of_canaries_are_not_held_either() -> None:
    """Strategies that clip put other arrays into every reply."""
    start = model(2000)
    sent = {name: part.numpy() for name, part in start.items()}
    maker = ReplyMaker(Layout(sent), draw_directions("hadamard", 4, 2000, 1))
    asked = RecordDict({"arrays": start})
    reply = maker.make(2, norm=5.0, asked=asked, sent=sent, example=None, weights={"n": 1.0})
    before = reply["arrays"].to_numpy_ndarrays()
    clipped = [own + (part - own) / 5 for own, part in zip(sent.values(), before, strict=True)]
    reply["arrays"] = ArrayRecord(dict(zip(sent, map(Array, clipped), strict=True)))
    held = reply["arrays"]
    assert all(isinstance(part, RegeneratedArray) for part in held.values())
    for part, expected in zip(held.to_numpy_ndarrays(), clipped, strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-6, atol=1e-6)
    other = {name: Array(part + 1) for name, part in sent.items()}
    reply["arrays"] = ArrayRecord(other)  # what is no canary stays as it is
    assert not any(isinstance(part, RegeneratedArray) for part in reply["arrays"].values())


def test_what_clients_replied_is_known_only_where_nobody_was_sampled(tmp_path: Path) -> None:
    """Who replied may tell who was sampled, on which a claim may rest."""
    whole = audit(server(private(24)), client(), tmp_path / "all", nodes=16, canaries=8)
    half = averaging(fraction_train=0.5)
    some = audit(server(half, rounds=2), client(), tmp_path / "some", nodes=16, canaries=8)
    known = audit(
        server(half, rounds=2),
        client(),
        tmp_path / "known",
        nodes=16,
        canaries=8,
        participation="known",
    )
    words = "knows the clients' updates"
    assert words in whole.audit.views[0].bound.adversary
    assert not any(words in view.bound.adversary for view in some.audit.views)
    assert any(words in view.bound.adversary for view in known.audit.views)
