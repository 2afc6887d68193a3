"""Set up training on a dataset and on its neighbours: does one record change public values?

Opacus divides the noisy sum by ⌊n·q⌋ and draws with q = 1/⌈n/batch⌉. Both may change with n, the
number of records, and noise does not hide them.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset

from epsilometer import _validate
from epsilometer.conformance.batches import take_records
from epsilometer.conformance.neighbours import describe_norms
from epsilometer.conformance.noise_checks import LEVEL
from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.core.claim import Claim, as_claim
from epsilometer.core.findings import Check, CheckOutcome, ConformanceFinding
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.opacus.objects import (
    check_optimizer,
    count_batches,
    find_sampler,
    make_audit,
)
from epsilometer.integrations.opacus.rewinding import RandomStreams
from epsilometer.integrations.opacus.step_replayer import Loss, as_step, read_scale
from epsilometer.sampling.samplers import Poisson

NORMALISATION = "normalisation"
RATE = "sampling rate"
SETTINGS = "noise and clipping norm"
_ROUNDING = 1e-5  # relative, of a divisor measured in float32
_CAVEAT = (
    "Only the set-up was compared, on datasets of one record more and one less. If neighbours "
    "have equally many records (zeroing out, replacing), n is public: no leak."
)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Hold the settings of training on n records, as measured in one step.

    Attributes:
        records: n.
        divisor: Measured divisor of the noisy sum.
        rate: Rate at which batches are drawn.
        noise_multiplier: σ.
        clip_norm: C.
        parameters: Number of trainable parameters.
    """

    records: int
    divisor: float
    rate: float
    noise_multiplier: float
    clip_norm: float
    parameters: int


def replay_setup(
    make: Callable[[Any], Sequence[Any]],
    dataset: Any,
    loss: Loss | None = None,
    *,
    claim: Claim | float | None = None,
    delta: float | None = None,
    seed: int = 0,
) -> Audit:
    """Set up training on n, n − 1 and n + 1 records, and compare the divisors of their steps.

    ``make_private`` divides by ⌊n·q⌋. If one record changes this number, it changes the
    contributions of all others, and the scale of the noise: by more than C. If it does not for this
    n, the nearest smaller size at which it does is searched, and becomes a remark.

    Guarantee: a set-up with a fixed divisor, rate, noise and clipping norm is never violated.
        Random streams are restored.
    Assumption: neighbours differ by adding or removing a record, as the accountants of Opacus
        assume. A claim with adjacency ``"zero_out"`` or ``"replace"`` makes n public: then
        violations become remarks.

    Args:
        make: Your set-up, a function of a dataset. It returns the result of ``make_private``:
            (model, optimizer, loader), with the criterion before the loader for ghost clipping.
        dataset: A torch ``Dataset`` with indices, or a tuple of tensors.
        loss: See :func:`replay`; by default the criterion from ``make``, or ``CrossEntropyLoss``.
        claim: The claim to show in the report, if any.
        delta: δ of a claim that is a number.
        seed: Seed of all randomness in the set-up and its step.

    Example:
        >>> import torch, warnings
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> from opacus import PrivacyEngine
        >>> def make(data):
        ...     model = torch.nn.Linear(5, 2)
        ...     with warnings.catch_warnings(action="ignore"):
        ...         return PrivacyEngine().make_private(
        ...             module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        ...             data_loader=DataLoader(data, batch_size=10), noise_multiplier=1.0,
        ...             max_grad_norm=1.0)
        >>> data = TensorDataset(torch.randn(100, 5), torch.randint(2, (100,)))
        >>> audit = replay_setup(make, data)
        >>> audit.conformance.check("normalisation").outcome, audit.conformance.checks[0].value
        ('violated', 2.0)
    """
    _validate.whole(0, seed=seed)
    given = as_claim(claim, delta=delta)
    count = _count(dataset)
    with RandomStreams() as streams:

        def set_up(size: int) -> Setup:
            streams.seed(seed)
            places = [place % count for place in range(size)]  # the additional record is a copy
            return measure_setup(make(take_dataset(dataset, places)), loss, records=size)

        setups = [set_up(size) for size in (count, count - 1, count + 1) if size > 0]
        elsewhere = _search_change(set_up, setups[0]) if _agree(setups) else None
    public = given is not None and given.adjacency in ("zero_out", "replace")
    checks = compare_setups(setups, elsewhere, public=public)
    return make_audit(
        "replay_setup",
        subject=f"the set-up of a training with Opacus on {count:,} records",
        claim=given,
        findings=(ConformanceFinding(checks=checks, steps=len(setups), level=LEVEL),),
        caveats=(_CAVEAT,),
        supplied={"make": make, "dataset": dataset, "loss": loss},
        settings={},
        delta=None if given is None else given.delta,
        confidence=1 - LEVEL,
        seed=seed,
    )


def compare_setups(
    setups: Sequence[Setup], elsewhere: tuple[Setup, Setup] | None = None, *, public: bool = False
) -> tuple[Check, ...]:
    """Judge whether set-ups of neighbouring datasets agree.

    Args:
        setups: The set-up with all records first, then those of its neighbours.
        elsewhere: Set-ups of two other neighbours that do not agree, if these all do.
        public: Whether the number of records is public.
    """
    own, *others = setups
    size, worst = max((_bound_change(own, other), other.divisor) for other in others)
    moved = abs(1 - own.divisor / worst) * own.noise_multiplier * own.parameters**0.5
    checks = [
        Check(
            name=NORMALISATION,
            outcome=_judge(size, limit=1.0 + 1e-9, public=public),
            expected="division by a number that no record changes",
            seen=_list_values(setups, "divisor", "division by"),
            value=size,
            detail=(
                f"a record can change the sum by {describe_norms(size)} where as many are drawn as "
                f"expected; the noise alone moves by {moved:.3g}"
            ),
            steps=1,
        )
    ]
    for name, fields in ((RATE, ("rate",)), (SETTINGS, ("noise_multiplier", "clip_norm"))):
        value = max(
            abs(getattr(other, each) / getattr(own, each) - 1)
            for other in others
            for each in fields
        )
        checks.append(
            Check(
                name=name,
                outcome=_judge(value, limit=1e-9, public=public),
                expected="the same, whatever the number of records",
                seen="; ".join(
                    _list_values(setups, each, each.replace("_", " ")) for each in fields
                ),
                value=value,
                steps=1,
            )
        )
    if elsewhere is not None:
        checks.append(_remark_elsewhere(*elsewhere))
    return tuple(checks)


def measure_setup(made: Sequence[Any], loss: Loss | None, *, records: int) -> Setup:
    """Take one step with the result of ``make_private``, and measure its divisor."""
    if not isinstance(made, Sequence) or len(made) not in (3, 4):
        raise InvalidArgument(
            "Expected make(dataset) to return what make_private returned, (model, optimizer, "
            f"loader), got {type(made).__name__}."
        )
    model, optimizer, loader = made[0], made[1], made[-1]
    check_optimizer(optimizer)
    batches = count_batches(loader)
    criterion = loss or (made[2] if len(made) == 4 else torch.nn.CrossEntropyLoss())
    sampler = find_sampler(loader)
    drawn = sampler.rate if isinstance(sampler, Poisson) else None
    return Setup(
        records=records,
        divisor=_measure_divisor(model, optimizer, as_step(criterion), _draw_batch(loader)),
        rate=1 / batches if drawn is None else drawn,
        noise_multiplier=float(optimizer.noise_multiplier),
        clip_norm=float(optimizer.max_grad_norm),
        parameters=sum(each.numel() for each in optimizer.params),
    )


def take_dataset(dataset: Any, places: Sequence[int]) -> Any:
    """Return the dataset of the records at the given indices, which may repeat."""
    if type(dataset) is TensorDataset:
        return TensorDataset(*take_records(tuple(dataset.tensors), places))
    if isinstance(dataset, tuple):
        return take_records(dataset, places)
    return Subset(dataset, list(places))


def _count(dataset: Any) -> int:
    count = len(dataset[0]) if isinstance(dataset, tuple) and dataset else None
    try:
        count = len(dataset) if count is None else count
    except TypeError as error:
        raise InvalidArgument(
            "Expected a dataset of records that have indices, got "
            f"{type(dataset).__name__} without a length."
        ) from error
    if count < 2:
        raise InvalidArgument(f"Expected a dataset of two records or more, got {count}.")
    return count


def _draw_batch(loader: Any) -> Any:
    """Return the first few records, collated like the loader's batches."""
    records = [loader.dataset[place] for place in range(min(4, len(loader.dataset)))]
    return loader.collate_fn(records)


def _measure_divisor(model: Any, optimizer: Any, compute: Any, batch: Any) -> float:
    """Return the divisor of the noisy sum: its norm before the step, over its norm after."""
    norms: dict[str, float] = {}
    own_noise, said = optimizer.add_noise, read_scale(optimizer)

    def measure() -> float:
        parts = [each.grad.double().norm() for each in optimizer.params if each.grad is not None]
        return float(torch.stack(parts).norm())

    def add_noise(*args: Any, **kwargs: Any) -> Any:
        done = own_noise(*args, **kwargs)
        norms["before"] = measure()
        return done

    optimizer.add_noise = add_noise  # epsilometer: ignore[NOIS001] measures, and is undone
    optimizer.original_optimizer.step = lambda *args: norms.update(after=measure())
    model.train()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook", UserWarning)
        optimizer.zero_grad()
        value = compute(model, batch)
        if value is not None:
            value.backward()
    if "after" not in norms:
        optimizer.step()
    if len(norms) < 2 or not norms["after"] > 0:
        raise InvalidArgument("Expected a step that adds noise and passes it on, saw none.")
    if said == 0:  # fewer records than batches: Opacus then divides by ⌊n·q⌋ = 0
        return 0.0
    found = norms["before"] / norms["after"]
    return said if abs(found / said - 1) < _ROUNDING else float(f"{found:.5g}")


def _bound_change(own: Setup, other: Setup) -> float:
    """Return the largest change by one record, in clipping norms.

    With divisors B with it and B' without it, sums S and S' with the same noise differ by S −
    S'·B/B'. If B' records, the expected number, point the other way, this is 1 + |B − B'|.
    """
    return 1 + abs(own.divisor - other.divisor)


def _agree(setups: Sequence[Setup]) -> bool:
    return len({(each.divisor, each.rate) for each in setups}) == 1


def _search_change(set_up: Callable[[int], Setup], own: Setup) -> tuple[Setup, Setup] | None:
    """Search for two smaller neighbouring sizes with different set-ups; None if there are none."""
    low, high = set_up(max(1, own.records // 2)), own
    if _agree([low, high]):
        return None
    while high.records - low.records > 1:
        middle = set_up((low.records + high.records) // 2)
        if _agree([middle, high]):
            high = middle
        else:
            low = middle
    return high, low


def _judge(value: float, *, limit: float, public: bool) -> CheckOutcome:
    outcome = judge.judge_limit(value, limit=limit)
    return judge.REMARK if public and outcome == judge.VIOLATED else outcome


def _remark_elsewhere(more: Setup, less: Setup) -> Check:
    return Check(
        name="set-up of other datasets",
        outcome=judge.REMARK,
        expected="the same divisor and rate, whatever the number of records",
        seen=(
            f"{more.records:,} records: division by {more.divisor:g} at rate {more.rate:.4g}; "
            f"{less.records:,} records: by {less.divisor:g} at {less.rate:.4g}"
        ),
        value=_bound_change(more, less),
        detail="these sizes are neighbours; those next to yours agree",
        steps=1,
    )


def _list_values(setups: Sequence[Setup], name: str, words: str) -> str:
    own, *others = setups
    if all(getattr(each, name) == getattr(own, name) for each in others):
        return f"{words} {getattr(own, name):.6g} with one record more or less"
    values = ", ".join(f"{getattr(each, name):.6g} ({each.records:,} records)" for each in setups)
    return f"{words} {values}"
