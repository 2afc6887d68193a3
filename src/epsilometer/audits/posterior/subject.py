"""Audit predictions with uncertainty: what each form of publishing them leaks about a record.

Many models are trained with the record and without it, and their predictions for it are kept. All
release forms, sample counts and rounding units are judged on these same predictions, so no form
needs further training.
"""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.accounting import pld, rdp
from epsilometer.audits.posterior.disclosure import ReleaseForm, as_form, measure_utility
from epsilometer.audits.posterior.finding import judge_forms
from epsilometer.audits.posterior.runs import (
    AllFailed,
    Collected,
    DropoutRuns,
    OneByOne,
    Predicted,
    Question,
    Shown,
    Trainings,
)
from epsilometer.core.audit import Audit
from epsilometer.core.findings import Swept, TheoryEpsilon
from epsilometer.core.record import Record, check_records
from epsilometer.core.settings import DATA, NAMED_DATA
from epsilometer.engine.engines import InProcess, Local
from epsilometer.engine.fingerprints import fingerprint, name_of
from epsilometer.engine.plan import Plan
from epsilometer.engine.request import Request
from epsilometer.engine.run import Done, Unwatched, Watch
from epsilometer.engine.runs import Failures
from epsilometer.engine.shards import Arrays
from epsilometer.engine.store import Store
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import expected_rate, is_poisson, pin_sampler
from epsilometer.types import FloatArray, IntArray

FORMS = (
    ReleaseForm("samples"),
    ReleaseForm("quantiles"),
    ReleaseForm("mean+std"),
    ReleaseForm("mean+std", unit=0.01),
    ReleaseForm("mean"),
    ReleaseForm("vector"),
    ReleaseForm("label"),
)
SWEPT = (ReleaseForm("samples"), ReleaseForm("mean+std"), ReleaseForm("mean"))
COUNTS = (1, 2, 5, 10, 50, 100, 1000)
UNITS = (1e-4, 1e-3, 1e-2, 1e-1)
_FEWEST = 8  # runs: the attack is learned on half of them
_CELLS = 2**23  # probabilities of test records that a unit holds
_LEAST = 0.2  # smallest noise multiplier that PLD accounts for in seconds


@dataclass(frozen=True, eq=False)
class Posterior:
    """A model with sampled predictions, and the forms in which these might be published.

    Guarantee: the bounds of all forms hold together: in at most ``1 - confidence`` of audits does
        any exceed the true ε; likewise limits on advantages. A run that diverged or failed counts
        against a refutation and is reported. The same settings give the same audit, byte for byte
        on the same kind of device, however the work was split, killed or resumed.
    Assumption: runs are independent; the record was not chosen by their outcome. A form below the
        limit withstood these attacks on this record, which proves no privacy.

    Attributes:
        factory: ``factory(features, labels, rng)`` trains once and returns a ``PosteriorSampler``.
            It is called once per run, and must be picklable if processes are used. Or an
            ``epsilometer.models.EnsembleDPSGD`` of a module with dropout: its runs are trained
            many at once and sampled by MC dropout. Without noise, and with a ``clip_norm`` that
            no gradient reaches, that is plain SGD.
        data: Features ``(n, …)`` and classes ``(n,)``.
        record: The ``Record`` that is added to the data or not; or the number of a row, which is
            left out or not.
        runs: Number of runs with the record, and as many without it; 8 or more.
        samples: Number of predictions per model, T.
        forms: Forms that might be published, finest first; each a ``ReleaseForm`` or a text such
            as ``"mean+std:0.01"`` or ``"set:0.9"``.
        swept: Forms that are also measured with other ``counts`` of samples and ``units``.
        counts: Numbers of samples for swept forms.
        units: Units to which swept forms are rounded.
        test: Features and classes of records that utility is measured on.
        line: Limit on ε: a form proved to exceed it is not published. Default: the claim's ε, or 1.
        advantage: Largest TPR − FPR of the attack on a form that may be published; by default what
            (line, δ)-DP allows any attack.
        at_once: Models trained at once, or calls of the factory per unit of work.
        title: What is audited, in words.
        source: Where the data were read from, if known.

    Example:
        >>> import numpy as np, epsilometer as em
        >>> from epsilometer.audits.posterior.forms import FromCallable
        >>> def factory(features, labels, rng):  # remembers whether there are eleven records
        ...     p = (0.9 if len(labels) > 10 else 0.2) + rng.uniform(-0.05, 0.05)
        ...     return FromCallable(lambda x, samples, rng: np.tile([1 - p, p], (samples, 1)))
        >>> subject = em.Posterior(
        ...     factory, (np.zeros((10, 1)), np.arange(10) % 2), record=em.Record([1.0], label=1),
        ...     runs=60, samples=2,
        ... )
        >>> audit = em.audit(subject, em.Claim(0.1, delta=1e-5), engine=em.InProcess())
        >>> audit.verdict, audit.one(em.findings.FormPlan).chosen
        ('refuted', None)
    """

    factory: Any = field(metadata=DATA)
    data: tuple[ArrayLike, ArrayLike] = field(metadata=DATA)
    _: KW_ONLY
    record: Record | int = field(metadata=NAMED_DATA)
    runs: int
    samples: int = 100
    forms: tuple[ReleaseForm, ...] = FORMS
    swept: tuple[ReleaseForm, ...] = SWEPT
    counts: tuple[int, ...] = COUNTS
    units: tuple[float, ...] = UNITS
    test: tuple[ArrayLike, ArrayLike] | None = field(default=None, metadata=DATA)
    line: float | None = None
    advantage: float | None = None
    at_once: int | None = None
    title: str = "predictions with uncertainty"
    source: Any = field(default=None, metadata=DATA)

    def __post_init__(self) -> None:
        _check_factory(self.factory)
        _check_pair("data", self.data)
        if self.test is not None:
            _check_pair("test", self.test)
        if not isinstance(self.record, Record):
            _validate.whole(0, record=self.record)
        _validate.whole(_FEWEST, runs=self.runs)
        _validate.whole(
            1, samples=self.samples, at_once=1 if self.at_once is None else self.at_once
        )
        for name in ("forms", "swept"):
            object.__setattr__(self, name, _read_forms(name, getattr(self, name)))
        if not self.forms or len(set(self.forms)) < len(self.forms):
            raise InvalidArgument(
                "Expected forms of publishing, each once, got "
                f"{', '.join(map(str, self.forms)) or 'none'}."
            )
        for name in ("counts", "units"):
            object.__setattr__(self, name, _read_tuple(name, getattr(self, name)))
        for count in self.counts:
            _validate.whole(1, counts=count)
        for unit in self.units:
            _validate.positive(units=unit)
            _validate.probability(units=unit)
        _validate.at_least(0, line=1.0 if self.line is None else self.line)
        _validate.probability(advantage=1.0 if self.advantage is None else self.advantage)

    def list_sweeps(self) -> tuple[tuple[Swept, Shown], ...]:
        """Return what is varied, and the forms that result: fewer samples, and coarser units."""
        fewer = sorted({count for count in self.counts if count < self.samples} | {self.samples})
        coarser: list[float | None] = [None, *sorted(set(self.units))]
        sweeps: list[tuple[Swept, Shown]] = []
        for form in self.swept:
            if form.kind not in ("vector", "label") and len(fewer) > 1:
                sweeps += [("samples", Shown(form, count)) for count in fewer]
            if form.kind not in ("label", "set") and len(coarser) > 1:
                sweeps += [
                    ("unit", Shown(dataclasses.replace(form, unit=unit), self.samples))
                    for unit in coarser
                ]
        return tuple(sweeps)


SUBJECTS = (Posterior,)


def run_audit(subject: Posterior, request: Request) -> Audit:
    """Train models with and without the record, and judge every output format."""
    device = getattr(subject.factory, "device", "cpu")
    usual = Local() if device == "cpu" else InProcess()
    failures = Failures(InvalidArgument)
    try:
        job = make_job(subject, request)
        return request.execute(job, usual=usual, listen=[*request.listen, failures])
    except AllFailed as error:
        raise AllFailed(error.shareable, withheld=f"One said: {failures.reason}") from error


class Noise(NamedTuple):
    """Training parameters that an accountant needs.

    Attributes:
        multiplier: Noise multiplier.
        rate: Share of records in a batch.
        steps: Number of steps in all epochs.
        poisson: Whether batches are drawn by Poisson sampling, as accountants assume.
    """

    multiplier: float
    rate: float
    steps: int
    poisson: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class PosteriorJob:
    """Train blocks of models, all with the record or all without it; a block is a unit.

    Attributes:
        plan: Everything that determines the result.
        trainings: Trains models with the record and without it.
        record: The audited record.
        runs: Number of runs with the record, and as many without it.
        block: Runs per unit.
        question: What to compute from the predictions.
        test: Features and labels that utility is measured on; None: it is not measured.
        noise: Parameters for an accountant; None if unknown.
        title: What is audited, in words.
    """

    plan: Plan
    trainings: Trainings
    record: Record
    runs: int
    block: int
    question: Question
    test: tuple[FloatArray, IntArray] | None
    noise: Noise | None
    title: str

    @property
    def blocks(self) -> int:
        """Return how many units train with the record; as many train without it."""
        return -(-self.runs // self.block)

    def unit(self, index: int) -> Arrays:
        """Train one block, and return its predictions for the record and for test records."""
        present, size = index < self.blocks, self._size(index)
        rng, chosen = self.plan.stream(index).spawn(2)
        records = [self.record.features[None]]
        tested = None if present or self.test is None else self._draw_tests(size, chosen)
        if tested is not None:
            records.append(tested[0].astype(self.record.features.dtype))
        said = self.trainings.predict(
            np.concatenate(records), self.question.samples, runs=size, present=present, rng=rng
        )
        classes = said.samples.shape[-1]
        alone = np.zeros((size, 0), np.float32) if said.vector is None else said.vector[:, 0]
        arrays: dict[str, NDArray[Any]] = {"samples": said.samples[:, 0], "vector": alone}
        if tested is not None:
            arrays["utility"], arrays["rows"] = self._measure_utility(said, tested[1], classes)
        return arrays

    def missing(self, index: int) -> Arrays:
        """Return the result of a failed unit: its runs count as diverged."""
        return {"lost": np.array(self._size(index))}

    def watch(self) -> Watch:
        """Return a watch that never reports: results need both kinds of runs."""
        return Unwatched()

    def result(self, units: Iterable[Arrays], done: Done) -> Audit:
        """Return all forms, judged on the same predictions."""
        return judge_forms(
            Collected.of(list(units), self.blocks),
            self.question,
            label=self.record.label,
            theory=_account(self.noise, self.question.delta),
            title=self.title,
            done=done,
        )

    def _size(self, index: int) -> int:
        start = index % self.blocks * self.block
        return min(self.block, self.runs - start)

    def _draw_tests(self, runs: int, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
        """Draw test records for these runs: as many as fit into memory."""
        assert self.test is not None
        features, labels = self.test
        each = runs * self.question.samples * (int(labels.max()) + 1)
        most = max(1, min(len(labels), _CELLS // each))
        chosen = np.sort(rng.choice(len(labels), most, replace=False))
        return features[chosen], labels[chosen]

    def _measure_utility(
        self, said: Predicted, labels: IntArray, classes: int
    ) -> tuple[FloatArray, IntArray]:
        """Return accuracy, ties, calibration error and log loss of every form."""
        drawn = said.samples[:, 1:].reshape(-1, self.question.samples, classes)
        alone = None if said.vector is None else said.vector[:, 1:].reshape(-1, classes)
        kept = np.isfinite(drawn).all((1, 2))
        truth = np.tile(labels, len(said.samples))[kept]
        rows = []
        for shown in self.question.shown:
            if not kept.any() or (alone is None and shown.form.kind == "vector"):
                rows.append((np.nan,) * 4)
                continue
            central = shown.form.central(
                drawn[kept, : shown.samples], None if alone is None else alone[kept]
            )
            rows.append(dataclasses.astuple(measure_utility(central, truth, unit=shown.form.unit)))
        return np.array(rows), np.array(int(kept.sum()))


def _account(noise: Noise | None, delta: float) -> tuple[TheoryEpsilon, ...]:
    """Return ε by Rényi moments, as papers report it, and by privacy loss distributions."""
    if noise is None or not noise.multiplier:
        return ()
    note = (
        f"Poisson sampling at rate {noise.rate:.4g}, {noise.steps:,} steps, "
        f"noise multiplier {noise.multiplier:g}"
    )
    if not noise.poisson:
        note = f"as if batches were drawn by {note}; they are not"
    known: dict[str, Any] = {
        "noise_multiplier": noise.multiplier,
        "sampling_rate": noise.rate,
        "steps": noise.steps,
        "delta": delta,
    }
    found = [TheoryEpsilon(method="RDP", epsilon=rdp.poisson_epsilon(**known), note=note)]
    if noise.multiplier >= _LEAST:
        found.append(TheoryEpsilon(method="PLD", epsilon=pld.poisson_epsilon(**known), note=note))
    return tuple(found)


def make_job(subject: Posterior, request: Request) -> PosteriorJob:
    """Return the job of a subject, with its plan."""
    if request.until is not None:
        raise InvalidArgument(
            f"Expected no until with Posterior, got {request.until!r}: forms are judged after all "
            "runs."
        )
    _validate.open_unit(delta=request.known_delta)
    request = _fill_claim(request)
    features, labels, record = _split_record(subject)
    tested = None if subject.test is None else check_records(*subject.test)
    if tested is not None and tested[0].shape[1:] != features.shape[1:]:
        raise InvalidArgument(
            f"Expected test records of shape {features.shape[1:]}, as those of data, got "
            f"{tested[0].shape[1:]}."
        )
    trainings: Trainings
    noise: Noise | None
    if callable(subject.factory):
        trainings = OneByOne(
            factory=subject.factory, features=features, labels=labels, record=record
        )
        block, noise = subject.at_once or 1, None
        further = {"factory": name_of(subject.factory)}
    else:
        ensemble, block, noise = _prepare_ensemble(
            subject, features, labels, record, at_once=subject.at_once or _find_at_once(request)
        )
        trainings, further = ensemble, {"sampler": repr(ensemble.training.sampler)}
    blocks = -(-subject.runs // block)
    plan = request.make_plan(
        subject,
        units=2 * blocks,
        inputs={
            **(dict(subject.source.fingerprints()) if subject.source is not None else {}),
            "data": fingerprint((features, labels)),
            "record": fingerprint((record.features, record.label)),
            **({} if tested is None else {"test": fingerprint(tested)}),
            **_fingerprint_factory(subject.factory),
        },
        at_once=block,
        **further,
    )
    return PosteriorJob(
        plan=plan,
        trainings=trainings,
        record=record,
        runs=subject.runs,
        block=block,
        question=_ask(subject, request),
        test=tested,
        noise=noise,
        title=subject.title,
    )


def _ask(subject: Posterior, request: Request) -> Question:
    """Return what to compute from predictions, with defaults filled in."""
    delta, line = request.known_delta, subject.line
    if line is None:
        line = 1.0 if request.claim is None else request.claim.epsilon
    allowed = _allow_advantage(line, delta) if subject.advantage is None else subject.advantage
    return Question(
        forms=tuple(Shown(form, subject.samples) for form in subject.forms),
        sweeps=subject.list_sweeps(),
        claim=request.claim,
        delta=delta,
        confidence=request.confidence,
        line=line,
        advantage=allowed,
    )


def _fill_claim(request: Request) -> Request:
    """Return the request with its claim for adjacency "add_remove"; refuse any other claim."""
    claim = request.fill_claim(adjacency="add_remove")
    if claim is not None and claim.adjacency != "add_remove":
        raise InvalidArgument(
            f"Expected a claim for adjacency 'add_remove', got one for {claim.adjacency!r}: an ε "
            "for one adjacency says nothing about another."
        )
    return dataclasses.replace(request, claim=claim)


def _split_record(subject: Posterior) -> tuple[FloatArray, IntArray, Record]:
    """Return the records that are always present, and the audited one."""
    features, labels = check_records(*subject.data)
    record = subject.record
    if isinstance(record, Record):
        if record.features.shape != features.shape[1:]:
            raise InvalidArgument(
                f"Expected a record of shape {features.shape[1:]}, as those of data, got "
                f"{record.features.shape}."
            )
        return features, labels, record
    if record >= len(labels):
        raise InvalidArgument(f"Expected record to be a row below {len(labels)}, got {record}.")
    left = np.delete(features, record, axis=0), np.delete(labels, record)
    return *left, Record(features=features[record], label=int(labels[record]))


def _prepare_ensemble(
    subject: Posterior,
    features: FloatArray,
    labels: IntArray,
    record: Record,
    *,
    at_once: int | None,
) -> tuple[DropoutRuns, int, Noise]:
    """Return the training of many models at once: the record comes first, to be left out."""
    with needs("torch", extra="torch"):
        from epsilometer.networks.devices import choose_at_once
        from epsilometer.sampling.samplers import check_same_steps
    training = subject.factory
    every = np.concatenate([record.features[None].astype(features.dtype), features])
    known = np.concatenate([[record.label], labels])
    sampler, rate = training.sampler, training.batch_size / len(known)
    batches = sampler.batches(len(known), training.batch_size, rng=np.random.default_rng(0))
    steps = sum(1 for _ in batches)
    poisson = is_poisson(sampler)
    if poisson:
        rate = expected_rate(sampler, len(known), training.batch_size)
    sampler = pin_sampler(sampler, len(known), training.batch_size)  # the same without the record
    one = dataclasses.replace(training, runs=1, sampler=sampler)
    DropoutRuns(training=one, features=every, labels=known).check()
    check_same_steps(one.sampler, batch_size=one.batch_size, records=len(known))
    block = min(subject.runs, at_once or choose_at_once(one, every, known))
    many = DropoutRuns(training=dataclasses.replace(one, runs=block), features=every, labels=known)
    noise = Noise(training.noise_multiplier, rate, steps * training.epochs, poisson)
    return many, block, noise


def _find_at_once(request: Request) -> int | None:
    """Return how many models an existing run in the directory trains at once; None: no run.

    Another number would be another run, and the number chosen depends on free memory.
    """
    if request.out is None or not (request.out / "plan.json").exists():
        return None
    found = Store.open(request.out).plan.parameters.get("follows", {}).get("at_once")
    return found if isinstance(found, int) else None


def _fingerprint_factory(factory: Any) -> dict[str, str]:
    """Return a hash of the module, or of a factory whose contents can be hashed."""
    module = getattr(factory, "module", None)
    if not callable(factory) and module is not None:
        return {"module": fingerprint((str(module), [*module.state_dict().values()]))}
    try:
        return {"factory": fingerprint(factory)}
    except InvalidArgument:
        return {}


def _allow_advantage(epsilon: float, delta: float) -> float:
    """Return the largest TPR − FPR of any attack under (ε, δ)-DP (Kairouz et al. 2015)."""
    return min(1.0, math.tanh(epsilon / 2) + 2 * delta / (1 + math.exp(min(epsilon, 700.0))))


def _check_factory(factory: Any) -> None:
    if hasattr(factory, "state_dict"):
        raise InvalidArgument(
            "Expected factory to train a module, got the module itself. Give "
            "EnsembleDPSGD(module, loss, …), or a function (features, labels, rng)."
        )
    if not callable(factory) and not hasattr(factory, "train"):
        raise InvalidArgument(
            "Expected factory to be a function (features, labels, rng) that returns a "
            f"PosteriorSampler, or an EnsembleDPSGD, got {type(factory).__name__}."
        )


def _check_pair(name: str, value: Any) -> None:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise InvalidArgument(f"Expected {name}=(features, labels), got {type(value).__name__}.")


def _read_forms(name: str, value: Any) -> tuple[ReleaseForm, ...]:
    try:
        return tuple(as_form(each) for each in _read_tuple(name, value))
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from error


def _read_tuple(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidArgument(f"Expected {name} as a list, got {_validate.short(value)}.")
    return tuple(value)
