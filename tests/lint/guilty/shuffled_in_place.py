import random

from dp_accounting import PoissonSampledDpEvent

indices = list(range(50_000))
for epoch in range(10):
    random.shuffle(indices)  # expect: SHUF007
    batches = [indices[i : i + 100] for i in range(0, 50_000, 100)]
    for batch in batches:
        update(batch)
event = PoissonSampledDpEvent(100 / 50_000, gaussian)
