"""Make training private with a sampler whose ε is proved, and book this ε."""

import math
from collections.abc import Iterator, MutableMapping
from typing import Any, Literal, TypeAlias

from opacus import PrivacyEngine  # type: ignore[import-untyped]
from opacus.accountants import IAccountant  # type: ignore[import-untyped]
from opacus.data_loader import wrap_collate_with_empty  # type: ignore[import-untyped]
from torch import distributed
from torch.utils import data

from epsilometer import _validate
from epsilometer.accounting.pld import varied_poisson_epsilon
from epsilometer.accounting.shuffle_upper import shuffle_upper
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.opacus.objects import check_engine, count_batches
from epsilometer.sampling.batch_sampler import BatchSampler, FixedSize
from epsilometer.sampling.samplers import BallsInBins, Poisson, Sampler

SamplerName: TypeAlias = Literal["balls-in-bins", "poisson"]
_CALL = "make_private(engine, module=…, optimizer=…, data_loader=…, sampler='balls-in-bins')"
_SAME = 1e-6  # relative, for two rates that were computed differently


def make_private(
    engine: Any,
    *,
    module: Any,
    optimizer: Any,
    data_loader: Any,
    noise_multiplier: float,
    max_grad_norm: float | list[float],
    sampler: SamplerName = "balls-in-bins",
    physical_size: int | None = None,
    seed: int | None = None,
    **options: Any,
) -> tuple[Any, ...]:
    """Do what ``PrivacyEngine.make_private`` does, with a sampler whose ε is proved.

    With ``"balls-in-bins"``, an epoch has as many batches as before and uses every record exactly
    once, as with shuffling. Only batch sizes vary a little. ``engine.get_epsilon(delta)`` then
    returns a proved upper bound for what was trained.

    Guarantee: the booked ε is at least the true one (see ``epsilometer.shuffle_upper``), for
        neighbours with a record zeroed out, or removed without changing the number of batches. A
        started epoch counts as a whole one, and the smallest noise counts for all. With more steps
        than batches drawn, ε is infinite.
    Assumption: every batch of the returned loader is used for exactly one step; no batches are
        accumulated. Batches are drawn with NumPy, seeded by the operating system.

    Args:
        engine: A ``PrivacyEngine``; its accountant is replaced, so its books must be empty.
        module: See ``PrivacyEngine.make_private``, also for arguments not listed here.
        optimizer: Likewise.
        data_loader: Likewise; its data, batch size, workers and ``collate_fn`` are kept.
        noise_multiplier: Likewise.
        max_grad_norm: Likewise.
        sampler: ``"balls-in-bins"`` or ``"poisson"``.
        physical_size: Largest number of records in a batch; larger batches keep a random subset,
            and the cost in ε is booked. By default nothing is truncated.
        seed: Seed for reproducible batches; keep it secret.
        options: Further options of ``PrivacyEngine.make_private``.

    Returns:
        What ``PrivacyEngine.make_private`` returns.
    """
    check_engine(engine, _CALL)
    steps = count_batches(data_loader)
    if len(engine.accountant):
        raise InvalidArgument(
            f"Expected an engine that has booked nothing, got one with {len(engine.accountant)} "
            "steps: its accountant would have to be replaced. Make a new PrivacyEngine."
        )
    if "poisson_sampling" in options:
        raise InvalidArgument(
            "Expected no poisson_sampling, got one: sampler= says how batches are drawn."
        )
    records = len(data_loader.dataset)
    if len(data_loader.sampler) != records:
        raise InvalidArgument(
            f"Expected a loader over all {records} records of its dataset, got one over "
            f"{len(data_loader.sampler)}. Give it a torch.utils.data.Subset."
        )
    joined = distributed.is_available() and distributed.is_initialized()
    if joined and (processes := distributed.get_world_size()) > 1:
        raise InvalidArgument(
            f"Expected one process, got {processes}: each would draw batches of its own."
        )
    batch_size = -(-records // steps)
    drawn = _choose_sampler(sampler, steps, records, physical_size)
    batches = CountedBatches(drawn, records, batch_size, seed=seed)
    private = data.DataLoader(
        data_loader.dataset,
        batch_sampler=batches,
        num_workers=data_loader.num_workers,
        collate_fn=wrap_collate_with_empty(collate_fn=data_loader.collate_fn),
        pin_memory=data_loader.pin_memory,
        timeout=data_loader.timeout,
        worker_init_fn=data_loader.worker_init_fn,
        multiprocessing_context=data_loader.multiprocessing_context,
        generator=data_loader.generator,
        prefetch_factor=data_loader.prefetch_factor,
        persistent_workers=data_loader.persistent_workers,
    )
    engine.accountant = ProvedAccountant(batches)
    made = PrivacyEngine.make_private(
        engine,
        module=module,
        optimizer=optimizer,
        data_loader=private,
        noise_multiplier=noise_multiplier,
        max_grad_norm=max_grad_norm,
        poisson_sampling=False,  # epsilometer: ignore[SHUF001] booked by ProvedAccountant
        **options,
    )
    kept: tuple[Any, ...] = made
    return kept


def _choose_sampler(name: str, steps: int, records: int, physical_size: int | None) -> Sampler:
    known: dict[str, Sampler] = {
        "balls-in-bins": BallsInBins(steps=steps),
        "poisson": Poisson(rate=1 / steps, steps=steps),
    }
    if name not in known:
        raise InvalidArgument(f"Expected sampler among {', '.join(known)}, got {name!r}.")
    if physical_size is None:
        return known[name]
    _validate.whole(1, physical_size=physical_size)
    if physical_size < records / steps:
        raise InvalidArgument(
            f"Expected physical_size ≥ {math.ceil(records / steps)}, the records of an average "
            f"batch, got {physical_size}."
        )
    return FixedSize(known[name], physical_size)


class CountedBatches(BatchSampler):
    """Count the batches that were drawn, and the epochs that were started."""

    begun: int = 0
    drawn: int = 0

    def __iter__(self) -> Iterator[list[int]]:
        """Draw one epoch, and count it."""
        self.begun += 1
        for batch in super().__iter__():
            self.drawn += 1
            yield batch

    def skip(self, epochs: int) -> None:
        """Switch to randomness that no run of this many epochs with the same seed has used."""
        self.rng = self.rng.spawn(epochs + 1)[-1]


class ProvedAccountant(IAccountant):  # type: ignore[misc]
    """Book the steps of a sampler whose ε is proved.

    Guarantee: ``get_epsilon`` is at least the true ε, see :func:`make_private`.
    Assumption: all steps are taken on batches of ``batches``, one step per batch.

    Args:
        batches: Sampler that draws them.
    """

    def __init__(self, batches: CountedBatches) -> None:
        super().__init__()
        self.batches = batches
        self.epochs_before = self.drawn_before = 0  # of a resumed run

    @property
    def sampler(self) -> Sampler:
        """What the accountant assumes."""
        return self.batches.sampler

    @property
    def epochs(self) -> int:
        """Epochs that were started, or more if there are more steps on the books."""
        booked = -(-len(self) // len(self.batches))
        return max(self.epochs_before + self.batches.begun, booked)

    @property
    def drawn(self) -> int:
        """Batches that were drawn."""
        return self.drawn_before + self.batches.drawn

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Book one step.

        Raises:
            InvalidArgument: Batches were accumulated, which is another sampler.
        """
        expected = 1 / len(self.batches)
        if abs(sample_rate - expected) > _SAME * expected:
            raise InvalidArgument(
                f"Expected one batch per step, a rate of {expected:.4g}, got {sample_rate:.4g}: "
                "accumulated batches are another sampler. Use a larger batch_size, and Opacus's "
                "BatchMemoryManager for memory."
            )
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            noise, rate, steps = self.history.pop()
            self.history.append((noise, rate, steps + 1))
        else:
            self.history.append((noise_multiplier, sample_rate, 1))

    def get_epsilon(self, delta: float) -> float:
        """Return a proved upper bound on the ε of all steps on the books.

        It is infinite if there are more steps than batches: some used a batch again, or another
        loader, about which nothing is proved.
        """
        _validate.open_unit(delta=delta)
        if not self.history:
            return 0.0
        least = min(noise for noise, _, _ in self.history)
        if least <= 0 or len(self) > self.drawn:
            return math.inf
        if isinstance(self.sampler, Poisson):
            return varied_poisson_epsilon(
                [(noise, steps) for noise, _, steps in self.history],
                sampling_rate=1 / len(self.batches),
                delta=delta,
            )
        return shuffle_upper(
            noise_multiplier=least,
            steps=len(self.batches),
            epochs=self.epochs,
            delta=delta,
            sampler=self.sampler,
            batch_size=self.batches.batch_size,
        ).high

    def __len__(self) -> int:
        """Return the steps on the books."""
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """Return the name in reports."""
        return "proved bound"

    def state_dict(self, destination: MutableMapping[str, Any] | None = None) -> Any:
        """Return the books, the started epochs, and the drawn batches."""
        state = super().state_dict(destination)
        state["epochs"], state["drawn"] = self.epochs, self.drawn
        return state

    def load_state_dict(self, state_dict: Any) -> None:
        """Load the books of a resumed run; its last epoch counts as a whole one."""
        super().load_state_dict(state_dict)
        if "epochs" not in state_dict:
            raise InvalidArgument(
                "Expected a state with epochs, as this accountant writes it, got one without."
            )
        self.epochs_before = int(state_dict["epochs"])
        self.drawn_before = int(state_dict.get("drawn", len(self)))
        self.batches.skip(self.epochs_before)
