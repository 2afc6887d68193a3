"""Aggregate models of NVIDIA FLARE with clipping, noise and canaries, and audit every round."""

from pathlib import Path

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator

import epsilometer as em
from epsilometer.integrations.rounds import AccountedMean, IterateWatch

DELTA, SHAPE = 1e-5, (100, 40)  # of a model that begins with zeros


class CanaryAggregator(ModelAggregator):
    """Run DP-FedAvg on the server; canaries are averaged among the clients.

    Args:
        out: Where the audit is written after every round.
        epsilon: Claimed ε, for all rounds together.
        rounds: How many rounds there are.
        canaries: How many canaries there are.
        share: Fraction of the claimed noise that is added; 1 is right.
    """

    def __init__(
        self, out: str, epsilon: float, rounds: int, canaries: int = 1, share: float = 1.0
    ) -> None:
        super().__init__()
        self.out, self.epsilon, self.rounds = out, epsilon, rounds
        self.canaries, self.share = canaries, share
        self._noise = em.gaussian_sigma(epsilon, DELTA) * rounds**0.5
        self._rng = np.random.default_rng()
        self._model = {"numpy_key": np.zeros(SHAPE)}  # as NumPy models are called
        self._updates: list[dict[str, np.ndarray]] = []
        accounted = AccountedMean(noise_multiplier=self._noise, clip_norm=1.0, server_rate=1.0)
        self._watch = IterateWatch(
            self._model, clip_norm=1.0, canaries=canaries, accounted=accounted
        )

    def accept_model(self, model: FLModel) -> None:
        """Take a client's weights."""
        self._updates.append({name: model.params[name] - self._model[name] for name in self._model})

    def aggregate_model(self) -> FLModel:
        """Return the noisy mean, and write what was found so far."""
        planted = [self._watch.make_update(number) for number in range(self.canaries)]
        clipped = [_clip(update) for update in (*self._updates, *planted)]
        scale = self.share * self._noise / len(clipped)
        self._model = {
            name: value
            + np.mean([update[name] for update in clipped], axis=0)
            + scale * self._rng.normal(size=value.shape)
            for name, value in self._model.items()
        }
        self._watch.see(self._model, canaries=range(self.canaries), updates=self._updates)
        audit = self._watch.audit(em.Claim(self.epsilon, delta=DELTA, unit="client"))
        audit.save(Path(self.out) / "result.json")
        audit.save(Path(self.out) / "report.html")
        return FLModel(params=self._model)

    def reset_stats(self) -> None:
        """Begin a round."""
        self._updates = []


def _clip(update: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    length = np.sqrt(sum(np.sum(part**2) for part in update.values()))
    return {name: part * min(1.0, 1.0 / length) for name, part in update.items()}
