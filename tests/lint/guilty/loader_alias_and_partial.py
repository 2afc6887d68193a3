from functools import partial

import torch
from dp_accounting.dp_event import PoissonSampledDpEvent

Loader = torch.utils.data.DataLoader
make_loader = partial(Loader, batch_size=32, shuffle=True)  # expect: SHUF002


def run(dataset):
    loader = make_loader(dataset)
    event = PoissonSampledDpEvent(32 / len(dataset), noise)
    return loader, event
