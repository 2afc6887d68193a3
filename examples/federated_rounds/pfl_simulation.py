"""Audit a simulation of pfl-research: ten silos, one canary silo and five rounds.

pfl clips every user's update and adds noise to their sum by a postprocessor. Before it, a second
postprocessor keeps what users send and makes the canary send its direction. A callback shows the
weights after every round.

    pip install pfl 'epsilometer[torch]'  # in an environment of their own
    python examples/federated_rounds/pfl_simulation.py              # as claimed
    python examples/federated_rounds/pfl_simulation.py --share 0.5  # half of the noise
"""

import argparse
import itertools
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.context import UserContext
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.postprocessor.base import Postprocessor
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from pfl.stats import MappedVectorStatistics

import epsilometer as em
from epsilometer.integrations.rounds import AccountedMean, IterateWatch

EPSILON, DELTA, ROUNDS, SILOS = 8.0, 1e-5, 5, 10
CANARY = "canary"
NOISE = em.gaussian_sigma(EPSILON, DELTA) * ROUNDS**0.5  # everybody takes part in every round


class Linear(torch.nn.Linear):
    """Fit a linear regression, with the loss and metrics that pfl asks for."""

    def loss(self, x: torch.Tensor, y: torch.Tensor, is_eval: bool = False) -> torch.Tensor:
        """Return the mean squared error."""
        self.train(not is_eval)
        return torch.nn.functional.mse_loss(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor, is_eval: bool = True) -> dict[str, Any]:
        """Return the loss, weighted by records."""
        return {"loss": Weighted(float(self.loss(x, y, is_eval)) * len(x), len(x))}


class CanaryProcessor(Postprocessor[Any], TrainingProcessCallback[Any]):
    """Make one user send a canary; keep what the others send, and show the weights.

    Args:
        model: The model before training.
        accounted: What each round is accounted to release.
    """

    def __init__(self, model: PyTorchModel, accounted: AccountedMean) -> None:
        self._updates: list[dict[str, np.ndarray]] = []
        self.watch = IterateWatch(
            _read(model.get_parameters()), clip_norm=1.0, canaries=1, accounted=accounted
        )

    def postprocess_one_user(self, *, stats: Any, user_context: UserContext) -> Any:
        """Take a user's update before it is clipped; the canary's is its direction."""
        if user_context.user_id != CANARY:
            self._updates.append(_read(stats))
            return stats, Metrics()
        planted = self.watch.make_update(0)
        named = {name: torch.as_tensor(value) for name, value in planted.items()}
        return MappedVectorStatistics(named, weight=stats.weight), Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> Any:
        """Show the weights after a round."""
        self.watch.see(_read(model.get_parameters()), canaries=[0], updates=self._updates)
        self._updates = []
        return False, Metrics()


def _read(stats: Any) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy().copy() for name, value in stats.items()}


def run(*, share: float = 1.0, seed: int = 0) -> em.Audit:
    """Train once, with a canary, and return the audit.

    Args:
        share: Fraction of the claimed noise that is added; 1 is right.
        seed: Seed of data and noise.
    """
    np.random.seed(seed)  # pfl's own randomness comes from the global generators
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(100, 40))
    silos: dict[str, Dataset] = {}
    for name in [*(f"silo{number}" for number in range(SILOS)), CANARY]:
        x = rng.normal(size=(50, 100))
        silos[name] = Dataset((x.astype("f"), (x @ truth).astype("f")), user_id=name)
    data = FederatedDataset(silos.__getitem__, itertools.cycle(silos).__next__)

    module = Linear(100, 40)
    central = torch.optim.SGD(module.parameters(), lr=1.0)
    model = PyTorchModel(module, torch.optim.SGD, central)
    canaries = CanaryProcessor(model, AccountedMean(noise_multiplier=NOISE, clip_norm=1.0))
    private = CentrallyAppliedPrivacyMechanism(GaussianMechanism(1.0, share * NOISE))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ROUNDS,
            evaluation_frequency=ROUNDS + 1,
            train_cohort_size=len(silos),
            val_cohort_size=0,
        ),
        SimulatedBackend(data, data, postprocessors=[canaries, private]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=10),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[canaries],
        send_metrics_to_platform=False,
    )
    return canaries.watch.audit(em.Claim(EPSILON, delta=DELTA, unit="client"))


def main() -> None:
    """Print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0, help="Share of the noise to add.")
    print(f"Verdict: {run(share=parser.parse_args().share).verdict}.")


if __name__ == "__main__":
    main()
