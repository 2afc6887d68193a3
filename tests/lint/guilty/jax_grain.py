import grain.python as grain
from jax_privacy import accounting

pipeline = grain.MapDataset.source(records).shuffle(seed=1).batch(512)  # expect: SHUF003
event = accounting.dpsgd_event(2.0, 1000, sampling_prob=512 / 50_000)
