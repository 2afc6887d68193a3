"""The tasks that come with the project: nothing lost, nobody mixed up."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from epsilometer.audits.federated.server import measure_accuracy
from epsilometer.audits.federated.simulation import FederatedTraining
from epsilometer.audits.federated.tasks import (
    FederatedTask,
    digits_by_chance,
    digits_by_writer,
    shakespeare_by_role,
)
from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.files.digits import read_digits

LINES = {
    "HAMLET": ["To be, or not to be, that is the question:", "Whether 'tis nobler in the mind"] * 4,
    "OPHELIA": ["Good my lord, how does your honour for this many a day?"],
    "GHOST": ["Mark me."],
}


def written(path: Path, **arrays: Any) -> Path:
    rng = np.random.default_rng(0)
    x = rng.integers(256, size=(60, 28, 28), dtype=np.uint8)
    usual = {"x": x, "y": np.arange(60) % 10, "writer": np.arange(60) % 4 + 7}
    np.savez(path, **(arrays or usual))
    return path


def spoken(path: Path, roles: Any = LINES) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump(roles, file)
    return path


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def weights(task: FederatedTask) -> torch.Tensor:
    return torch.cat([part.detach().flatten() for part in task.module.parameters()])


def test_digits_are_all_handed_out_once() -> None:
    features, labels = read_digits()
    task = digits_by_chance(features, labels, clients=50, rng=rng())
    given = [*task.clients, task.test]
    assert len(task.clients) == 50
    assert min(len(y) for _, y in task.clients) >= 1
    assert sum(len(y) for _, y in given) == len(labels)
    pixels = np.concatenate([x for x, _ in given]).sum() * 16
    assert pixels == pytest.approx(features.sum(), rel=1e-5)


def test_the_same_seed_makes_the_same_task() -> None:
    one, same = (digits_by_chance(*read_digits(), rng=rng()) for _ in range(2))
    other = digits_by_chance(*read_digits(), rng=np.random.default_rng(1))
    assert torch.equal(weights(one), weights(same))
    assert not torch.equal(weights(one), weights(other))


def test_more_clients_than_records_are_told() -> None:
    with pytest.raises(InvalidArgument, match="at most 9 clients"):
        digits_by_chance(np.zeros((10, 64)), np.zeros(10, np.int64), clients=10, rng=rng())


def test_every_writer_is_a_client(tmp_path: Path) -> None:
    task = digits_by_writer(written(tmp_path / "part.npz"), rng=rng())
    assert len(task.clients) == 4
    assert sum(len(y) for _, y in [*task.clients, task.test]) == 60
    assert task.clients[0][0].shape[1:] == (1, 28, 28)
    assert 0 <= task.clients[0][0].min() <= task.clients[0][0].max() <= 1


def test_the_whole_of_mnist_has_a_test_set_of_its_own(tmp_path: Path) -> None:
    x = np.zeros((20, 28, 28), np.uint8)
    y, writer = np.arange(20) % 10, np.arange(20) % 2
    arrays = {"x_train": x, "y_train": y, "writer_train": writer, "x_test": x[:5], "y_test": y[:5]}
    task = digits_by_writer(written(tmp_path / "mnist.npz", **arrays), rng=rng())
    assert [len(own) for _, own in task.clients] == [10, 10]
    assert len(task.test[1]) == 5


def test_roles_are_clients_and_foretell_their_own_lines(tmp_path: Path) -> None:
    task = shakespeare_by_role(spoken(tmp_path / "roles.json.gz"), rng=rng())
    assert len(task.clients) == 2  # the ghost says too little
    for x, y in task.clients:
        np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
    text = "\n".join(LINES["OPHELIA"])
    known = sorted(set("\n".join(LINES["HAMLET"]) + text))
    x, y = task.clients[1]
    assert "".join(known[place] for place in x[0]) == text[:40]
    assert "".join(known[place] for place in y[-1]) == text[-40:]  # to the last character


@pytest.mark.parametrize("kind", ["digits", "writers", "roles"])
def test_a_task_can_be_trained_and_tried(kind: str, tmp_path: Path) -> None:
    match kind:
        case "digits":
            task = digits_by_chance(*read_digits(), rng=rng())
        case "writers":
            task = digits_by_writer(written(tmp_path / "part.npz"), rng=rng())
        case _:
            # Without a tenth window nobody has test data: these lines are long enough.
            task = shakespeare_by_role(
                spoken(tmp_path / "roles.json.gz", {"HAMLET": LINES["HAMLET"] * 3}), rng=rng()
            )
    training = FederatedTraining(
        task.module,
        task.loss,
        clients=task.clients,
        rounds=1,
        cohort=min(2, len(task.clients)),
        noise_multiplier=0.1,
        learning_rate=task.learning_rate,
        batch_size=task.batch_size,
    )
    run = training.train(rng=rng())
    assert run.lost.sum() == 0
    assert 0 <= measure_accuracy(run.module, task.test) <= 1


@pytest.mark.parametrize("content", [b"", b"PK broken", None])
def test_bad_images_are_told(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "mnist.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnreadableFile, match=r"mnist\.npz"):
        digits_by_writer(path, rng=rng())


def test_images_without_writers_are_told(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="found 'x', 'y'"):
        digits_by_writer(
            written(tmp_path / "x.npz", x=np.zeros((2, 28, 28)), y=np.zeros(2)), rng=rng()
        )


@pytest.mark.parametrize("roles", [[], {"GHOST": ["Mark me."]}, {"A": 3}])
def test_bad_roles_are_told(roles: Any, tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match=r"roles\.json\.gz"):
        shakespeare_by_role(spoken(tmp_path / "roles.json.gz", roles), rng=rng())


def test_roles_that_are_not_gzipped_are_told(tmp_path: Path) -> None:
    (tmp_path / "roles.json.gz").write_text("{}", "utf-8")
    with pytest.raises(UnreadableFile, match=r"roles\.json\.gz"):
        shakespeare_by_role(tmp_path / "roles.json.gz", rng=rng())


def test_accuracy_takes_numbers_of_any_precision() -> None:
    """As clients' records are taken: in double precision too, and as plain lists."""
    net = torch.nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.copy_(torch.eye(2))
        net.bias.zero_()
    x, y = [[1.0, 0.0], [0.0, 1.0], [2.0, 1.0], [1.0, 2.0]], [0, 1, 0, 0]
    for features in (x, np.array(x), np.array(x, np.float32)):
        assert measure_accuracy(net, (features, y)) == 0.75
