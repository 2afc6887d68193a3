"""Set-ups of neighbouring datasets are compared: Opacus divides by ⌊n·q⌋, which n changes."""

from typing import Any

import pytest
import torch
from opacus.optimizers import DPOptimizer
from torch.utils.data import Dataset, TensorDataset

import epsilometer as em
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.opacus import replay_setup
from tests.integrations.opacus_models import features, make, mlp, sum_of_losses


def setting_up(model: Any = mlp, **options: Any) -> Any:
    def set_up(data: Any) -> Any:
        run = make(model(), data.tensors if isinstance(data, TensorDataset) else data, **options)
        if options.get("mode") == "ghost":
            return run.model, run.optimizer, run.criterion, run.loader
        return run.model, run.optimizer, run.loader

    return set_up


def with_a_fixed_divisor(data: Any) -> Any:
    model, optimizer, loader = setting_up()(data)
    optimizer.expected_batch_size = 8
    return model, optimizer, loader


@pytest.mark.parametrize("options", [{}, {"mode": "ghost"}, {"inner": torch.optim.Adam}])
def test_division_that_one_record_changes_is_found(options: dict[str, Any]) -> None:
    state = torch.get_rng_state()
    audit = replay_setup(setting_up(**options), TensorDataset(*features(64)))
    assert torch.equal(torch.get_rng_state(), state)
    assert audit.verdict == "violated"
    found = audit.conformance.check("normalisation")  # ⌊64/8⌋ and ⌊63/8⌋
    assert found.outcome == "violated"
    assert found.value == 2
    assert found.seen == "division by 8 (64 records), 7 (63 records), 7 (65 records)"
    rate = audit.conformance.check("sampling rate")  # one batch more with 65 records
    assert rate.outcome == "violated"
    assert rate.value == pytest.approx(1 / 9)
    assert audit.conformance.check("noise and clipping norm").outcome == "conforms"


def test_a_divisor_that_is_fixed_is_spared() -> None:
    finding = replay_setup(with_a_fixed_divisor, TensorDataset(*features(60))).conformance
    assert [check.outcome for check in finding.checks] == 3 * ["conforms"] + ["remark"]
    sums = replay_setup(
        setting_up(loss_reduction="sum"), TensorDataset(*features(60)), sum_of_losses
    ).conformance
    assert sums.check("normalisation").outcome == "conforms"


def test_sizes_that_change_elsewhere_are_remarked() -> None:
    finding = replay_setup(setting_up(), TensorDataset(*features(60))).conformance
    assert finding.verdict == "conforms"
    remark = finding.find("remark")[0]
    assert remark.seen == ("57 records: division by 7 at rate 0.125; 56 records: by 8 at 0.1429")


def test_where_the_number_of_records_is_public_it_is_a_remark() -> None:
    claim = em.Claim(3.0, delta=1e-5, adjacency="zero_out")
    audit = replay_setup(setting_up(), TensorDataset(*features(64)), claim=claim)
    assert audit.verdict == "cannot judge"
    assert audit.conformance.check("normalisation").outcome == "remark"


def test_noise_computed_from_the_number_of_records_is_found() -> None:
    def set_up(data: Any) -> Any:
        return setting_up(noise=1 + 10 / len(data))(data)

    finding = replay_setup(set_up, TensorDataset(*features(60))).conformance
    assert finding.check("noise and clipping norm").outcome == "violated"


def test_what_the_step_divides_by_is_measured_and_not_read() -> None:
    class DividesByRecords(DPOptimizer):
        def scale_grad(self) -> None:
            for p in self.params:
                p.grad /= self.records / 8

    def set_up(data: Any) -> Any:
        model, optimizer, loader = with_a_fixed_divisor(data)
        optimizer.__class__, optimizer.records = DividesByRecords, len(data)
        return model, optimizer, loader

    found = replay_setup(set_up, TensorDataset(*features(60))).conformance.check("normalisation")
    assert found.outcome == "violated"
    assert found.value == pytest.approx(1.125, abs=1e-3)


class Records(Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, place: int) -> Any:
        return features(20)[0][place], int(features(20)[1][place])


def test_data_sets_of_every_kind_are_set_up() -> None:
    def set_up(data: Any) -> Any:
        rows = [data[place] for place in range(len(data))]
        x, y = torch.stack([row[0] for row in rows]), torch.tensor([row[1] for row in rows])
        return setting_up()(TensorDataset(x, y))

    assert replay_setup(set_up, Records()).conformance.check("normalisation").steps == 1
    both = replay_setup(lambda data: setting_up()(TensorDataset(*data)), features(16))
    assert both.conformance.check("normalisation").outcome == "violated"


def test_wrong_set_ups_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="what make_private returned"):
        replay_setup(lambda data: None, TensorDataset(*features(8)))  # type: ignore[arg-type,return-value]
    with pytest.raises(InvalidArgument, match="two records or more"):
        replay_setup(setting_up(), TensorDataset(*features(1)))
    with pytest.raises(InvalidArgument, match="without a length"):
        replay_setup(setting_up(), iter([]))

    def silent(data: Any) -> Any:
        model, optimizer, loader = setting_up()(data)
        optimizer.add_noise = lambda: None
        optimizer.step = lambda: None
        return model, optimizer, loader

    with pytest.raises(InvalidArgument, match="adds noise"):
        replay_setup(silent, TensorDataset(*features(8)))
