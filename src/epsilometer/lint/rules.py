"""What is looked for: one row a mistake."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A mistake with its reason and its remedy.

    Attributes:
        id: How findings and suppression comments name it.
        name: The same in words, for tools that show names.
        title: What was found, in one line.
        why: Why ε does not hold.
        remedy: What to do about it.
    """

    id: str
    name: str
    title: str
    why: str
    remedy: str


_SHUFFLED = (
    "The accountant assumes that every record enters every batch by its own coin (Poisson "
    "sampling). A shuffle uses every record exactly once an epoch, and its ε is larger: with noise "
    "multiplier 1 and 100 batches, at least 4.07 where the accountant says 0.72 (one epoch, "
    "δ = 1e-5)."
)

_ROWS = (
    Rule(
        id="SHUF001",
        name="poisson-sampling-off",
        title="poisson_sampling=False, and the accountant of PrivacyEngine still assumes it",
        why="The engine keeps the loader it was given and reports the ε of Poisson sampling "
        "all the same. " + _SHUFFLED,
        remedy="Leave poisson_sampling at True (BatchMemoryManager bounds the memory), or report "
        "the ε of the shuffle.",
    ),
    Rule(
        id="SHUF002",
        name="shuffled-loader",
        title="shuffled loader beside an accountant that assumes Poisson sampling",
        why=_SHUFFLED,
        remedy="Draw batches with opacus.data_loader.DPDataLoader, or let PrivacyEngine."
        "make_private replace the loader; or report the ε of the shuffle.",
    ),
    Rule(
        id="SHUF003",
        name="shuffled-pipeline",
        title="shuffle().batch() beside an accountant that assumes Poisson sampling",
        why=_SHUFFLED,
        remedy="Draw batches by independent coins (jax_privacy.batch_selection."
        "CyclicPoissonSampling gives indices for any framework), or report the ε of the shuffle.",
    ),
    Rule(
        id="SHUF004",
        name="batch-then-shuffle",
        title="batch().shuffle(): batches are shuffled, records are not",
        why="The same records share a batch in every epoch, so an adversary who knows its company "
        "sees a record more clearly than after a shuffle of records: at ε = 0.1 by the accountant "
        "an audit measured 1.0.",
        remedy="Shuffle before batching, and then still report the ε of the shuffle; or sample by "
        "Poisson.",
    ),
    Rule(
        id="SHUF005",
        name="small-shuffle-buffer",
        title="the shuffle buffer is smaller than the dataset",
        why="Records are shuffled within the buffer only, so their place in the data tells which "
        "batches they can be in: at ε = 0.1 by the accountant an audit measured 0.29 with a buffer "
        "of a tenth of the data.",
        remedy="Give the buffer the size of the dataset (or shuffle indices), and then still "
        "report the ε of the shuffle; or sample by Poisson.",
    ),
    Rule(
        id="SHUF006",
        name="shuffled-fit",
        title="Keras shuffles in fit(), beside an accountant that assumes Poisson sampling",
        why="fit() shuffles arrays unless told otherwise. " + _SHUFFLED,
        remedy="Hand fit() batches drawn by Poisson sampling (poisson_sampling_in_fit=True in "
        "JAX-Privacy), or report the ε of the shuffle. shuffle=False is worse, not better.",
    ),
    Rule(
        id="SHUF007",
        name="permuted-epochs",
        title="a permutation cut into batches, beside an accountant that assumes Poisson sampling",
        why=_SHUFFLED,
        remedy="Draw every batch by coins, np.flatnonzero(rng.random(n) < batch_size / n), or "
        "report the ε of the shuffle.",
    ),
    Rule(
        id="SHUF008",
        name="private-loader-dropped",
        title="the loader that make_private returned is dropped, and the old one trained on",
        why="Only the returned loader draws Poisson batches; the one that was handed in still "
        "shuffles. " + _SHUFFLED,
        remedy="Train on the loader that make_private returns.",
    ),
)

RULES = {rule.id: rule for rule in _ROWS}
