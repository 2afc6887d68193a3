"""What is no optimiser with an attached engine is refused."""

import pytest
import torch

from epsilometer.errors import InvalidArgument
from epsilometer.integrations.attached_engines import attached_step


def test_an_optimiser_without_an_engine_is_refused() -> None:
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
    with pytest.raises(InvalidArgument, match="attach"):
        attached_step(optimizer, lambda x: x, (torch.zeros(2, 2),))
