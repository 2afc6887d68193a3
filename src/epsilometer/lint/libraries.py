"""Names of the libraries the checks know.

A name is known by its top package and its last part, because the libraries export the same thing
from several places: ``opacus.PrivacyEngine`` is ``opacus.privacy_engine.PrivacyEngine``.
"""

from dataclasses import dataclass

Known = tuple[str, str]

# What computes, or calibrates noise to, an ε that holds for Poisson sampling only. Accountants of
# events (RdpAccountant, PLDAccountant) are not here: the event says how batches were drawn.
POISSON_ACCOUNTANTS: frozenset[Known] = frozenset(
    {("opacus", name) for name in (
        "RDPAccountant", "PRVAccountant", "GaussianAccountant", "create_accountant",
        "get_noise_multiplier", "compute_rdp", "compute_eps_poisson", "compute_mu_poisson",
    )}
    | {("tensorflow_privacy", name) for name in (
        "compute_dp_sgd_privacy", "compute_dp_sgd_privacy_statement", "compute_noise",
        "compute_rdp", "compute_eps_poisson",
    )}
    | {("dp_accounting", name) for name in (
        "PoissonSampledDpEvent", "TruncatedSubsampledGaussianDpEvent",
        "get_smallest_subsampled_gaussian_noise",
    )}
    | {("jax_privacy", name) for name in (
        "dpsgd_event", "truncated_dpsgd_event", "amplified_bandmf_event",
        "truncated_amplified_bandmf_event", "DpsgdTrainingAccountant",
        "DpsgdTrainingUserLevelAccountant", "calibrate_noise_multiplier", "calibrate_num_updates",
        "calibrate_batch_size", "DPKerasConfig", "DpsgdConfig",
    )}
)  # fmt: skip

# Prints the ε of shuffled or ordered batches beside that of Poisson sampling: only one is wrong.
HEDGED: frozenset[Known] = frozenset({("tensorflow_privacy", "compute_dp_sgd_privacy_statement")})

# DP training without an ε of its own. DP-FTRL is not here: it needs no sampling.
DP_TRAINING: frozenset[Known] = frozenset(
    ("tensorflow_privacy", name) for name in (
        "DPKerasSGDOptimizer", "DPKerasAdamOptimizer", "DPKerasAdagradOptimizer",
        "VectorizedDPKerasSGDOptimizer", "VectorizedDPKerasAdamOptimizer",
        "VectorizedDPKerasAdagradOptimizer", "GenericDPSGDOptimizer", "GenericDPAdamOptimizer",
        "GenericDPAdagradOptimizer", "DPGradientDescentGaussianOptimizer",
        "DPAdamGaussianOptimizer", "DPAdagradGaussianOptimizer", "DPModel", "DPSequential",
        "make_dp_model_class", "make_keras_optimizer_class", "make_keras_generic_optimizer_class",
        "make_vectorized_keras_optimizer_class", "make_gaussian_query_optimizer_class",
    )
)  # fmt: skip

# What draws batches by coins. Where one is used, shuffled loaders are taken to serve other ends.
POISSON_SAMPLERS: frozenset[Known] = frozenset(
    {
        ("opacus", "DPDataLoader"),
        ("opacus", "UniformWithReplacementSampler"),
        ("opacus", "DistributedUniformWithReplacementSampler"),
        ("opacus", "DPLightningDataModule"),
        ("jax_privacy", "CyclicPoissonSampling"),
    }
)


@dataclass(frozen=True)
class Loader:
    """A call that shuffles if its argument ``name`` is ``when``.

    Attributes:
        name: The argument that decides.
        position: Where it stands without its name; None if it needs it.
        default: What it is when left out.
        when: The value that shuffles.
    """

    name: str
    position: int | None
    default: bool
    when: bool = True


LOADERS: dict[Known, Loader] = {
    ("torch", "DataLoader"): Loader("shuffle", 2, default=False),
    ("torch_geometric", "DataLoader"): Loader("shuffle", 2, default=False),
    ("torch", "RandomSampler"): Loader("replacement", 1, default=False, when=False),
    ("torch", "SubsetRandomSampler"): Loader("shuffle", None, default=True),
    ("torch", "DistributedSampler"): Loader("shuffle", 3, default=True),
    ("tensorflow", "numpy_input_fn"): Loader("shuffle", None, default=True),
}

# Packages whose datasets have shuffle() and batch() with the meaning of tf.data.
PIPELINES = frozenset({"tensorflow", "tensorflow_datasets", "grain", "seqio"})

# Positions of arguments that are often given without their names: what is read off the call.
SIGNATURES: dict[Known, tuple[str, ...]] = {
    ("torch", "DataLoader"): ("dataset", "batch_size", "shuffle"),
    ("tensorflow_privacy", "compute_dp_sgd_privacy"): (
        "n", "batch_size", "noise_multiplier", "epochs", "delta",
    ),
    ("tensorflow_privacy", "compute_dp_sgd_privacy_statement"): (
        "number_of_examples", "batch_size", "num_epochs", "noise_multiplier", "delta",
    ),
    ("tensorflow_privacy", "compute_noise"): (
        "n", "batch_size", "target_epsilon", "epochs", "delta",
    ),
    ("tensorflow_privacy", "compute_rdp"): ("q", "noise_multiplier", "steps"),
    ("dp_accounting", "PoissonSampledDpEvent"): ("sampling_probability", "event"),
    ("dp_accounting", "GaussianDpEvent"): ("noise_multiplier",),
    ("dp_accounting", "SelfComposedDpEvent"): ("event", "count"),
    ("jax_privacy", "dpsgd_event"): ("noise_multiplier", "iterations"),
    ("tensorflow_privacy", "DPKerasSGDOptimizer"): ("l2_norm_clip", "noise_multiplier"),
    ("tensorflow_privacy", "DPKerasAdamOptimizer"): ("l2_norm_clip", "noise_multiplier"),
}  # fmt: skip

# A file that has none of these words cannot have a finding.
MARKERS = ("opacus", "tensorflow_privacy", "dp_accounting", "jax_privacy", "make_private")
