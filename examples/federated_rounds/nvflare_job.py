"""Audit a run of NVIDIA FLARE in its simulator: ten clients, three rounds, one canary.

Its aggregator receives the replies, averages canaries among them and adds noise.

    pip install nvflare epsilometer
    python examples/federated_rounds/nvflare_job.py              # as claimed
    python examples/federated_rounds/nvflare_job.py --share 0.5  # half of the noise
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe.sim_env import SimEnv

import epsilometer as em

HERE = Path(__file__).parent / "nvflare_app"
ROUNDS, CLIENTS = 3, 10


def main() -> None:
    """Run, and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0, help="Share of the noise to add.")
    parser.add_argument("--out", default="epsilometer-nvflare", help="Where to write the audit.")
    asked = parser.parse_args()
    out = Path(asked.out).absolute()
    out.mkdir(exist_ok=True)
    sys.path.insert(0, str(HERE))
    from aggregator import SHAPE, CanaryAggregator

    recipe = NumpyFedAvgRecipe(
        name="audited",
        model=np.zeros(SHAPE).tolist(),
        min_clients=CLIENTS,
        num_rounds=ROUNDS,
        train_script=str(HERE / "client.py"),
        aggregator=CanaryAggregator(str(out), 8.0, ROUNDS, share=asked.share),
    )
    recipe.execute(SimEnv(num_clients=CLIENTS, workspace_root=str(out / "workspace")))
    print(f"Verdict: {em.load(out / 'result.json').verdict}.")


if __name__ == "__main__":
    main()
