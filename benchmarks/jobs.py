"""The jobs of ``performance.py``: what is timed at which sizes, beside which peer and limit."""

import ast
import dataclasses
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import torch
from federated_scale import BASE, make_training
from federation import ragged_records
from measurement import measure
from msgspec.structs import replace
from sizes import TINY, choose_size
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from training import BATCH, MODELS, make_canary, make_ensemble, make_records, time_opacus

import epsilometer as em
from conformance import WARM_UP, Case, train
from epsilometer.accounting.pld import poisson_epsilon
from epsilometer.audits.classifier.attacks.shadow_attacks import lira, rmia
from epsilometer.audits.classifier.attacks.shadows import ShadowPool
from epsilometer.audits.classifier.leave_one_out.pdtp import pdtp
from epsilometer.audits.federated.directions import HadamardCanaries
from epsilometer.core.findings import RecordRisk
from epsilometer.engine.plan import Plan
from epsilometer.engine.store import Store, Writer
from epsilometer.files.tables import read_table
from epsilometer.lint import lint_source
from epsilometer.networks.devices import use_precision
from epsilometer.sampling.batched_gaussian import BatchedGaussian
from epsilometer.sampling.samplers import Shuffle

Call = Callable[[], object]
_DELTA = 1e-5
_HOME = Path(tempfile.gettempdir())


@dataclass(frozen=True, kw_only=True)
class Job:
    """Work that is timed as it grows.

    Attributes:
        name: Its name in the history.
        title: In words, with the largest size.
        unit: What sizes count.
        sizes: Ascending.
        ours: Prepares the work of a size; what it returns is timed.
        note: What peer and limit are.
        peer: CPU seconds of the peer at a size; nan where it is not asked.
        limit: Prepares what no program can leave out.
        target: Times as fast as the peer, or seconds; None for none.
        beside: Whether the target is a ratio to the peer.
    """

    name: str
    title: str
    unit: str
    sizes: tuple[int, ...]
    ours: Callable[[int], Call]
    note: str
    peer: Callable[[int], float] | None = None
    limit: Callable[[int], Call] | None = None
    target: float | None = None
    beside: bool = False


def _ask_jax(question: str, size: int) -> float:
    return math.nan if TINY else measure("jax_privacy", question, str(size)).cpu_seconds


@cache
def _draw_scores(size: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.normal(1, 1, size), rng.normal(0, 1, size)


def _bound(size: int) -> Call:
    inside, outside = _draw_scores(size)
    return lambda: em.epsilon_lower_bound(em.Scores(inside, outside), delta=_DELTA)


def _one_run(size: int) -> Call:
    inside, outside = _draw_scores(size)
    scores = em.Scores(inside, outside, design="coins")
    return lambda: em.epsilon_lower_bound(scores, delta=_DELTA, method="one_run")


def _read_scores(size: int) -> Call:
    inside, outside = _draw_scores(size)
    return lambda: ((inside > 0.5).sum(), (outside > 0.5).sum())


def _poisson(steps: int) -> Call:
    return lambda: poisson_epsilon(
        noise_multiplier=1.0, sampling_rate=256 / 60_000, steps=steps, delta=_DELTA
    )


def _ask_dp_accounting(steps: int) -> float:
    from dp_accounting.pld import privacy_loss_distribution as pld

    start = time.process_time()
    one = pld.from_gaussian_mechanism(1.0, sampling_prob=256 / 60_000)
    one.self_compose(steps).get_epsilon_for_delta(_DELTA)
    return time.process_time() - start


def _shuffle(steps: int) -> Call:
    asked = {"noise_multiplier": 1.0, "steps": steps, "epochs": 1, "delta": _DELTA}
    # Noise of its own each time: what was computed of an epoch is kept.
    asked["noise_multiplier"] += 1e-9 * time.perf_counter()
    return lambda: (em.shuffle_epsilon(**asked), em.shuffle_upper(**asked))


def _trials(runs: int) -> Call:
    plays = BatchedGaussian(sampler=Shuffle(), noise_multiplier=1.0, steps=100)
    plays.play(10, np.random.default_rng(0))  # compiles
    return lambda: plays.play(runs, np.random.default_rng(0))


def _draw_normals(runs: int) -> Call:
    rng = np.random.default_rng(0)
    return lambda: [
        rng.standard_normal((min(1000, runs), 100), np.float32)
        for _ in range(2 * max(1, runs // 1000))
    ]


_TRAIN_STEPS = choose_size(20, 1)


def _train(model: str, runs: int) -> Call:
    build, shape, classes = MODELS[model]
    features, labels = make_records(shape, classes, _TRAIN_STEPS * BATCH)
    training = make_ensemble(build(), runs, "cpu")
    canary = make_canary(training)
    rng = np.random.default_rng(0)
    training.train(features[:BATCH], labels[:BATCH], rng=rng, canaries=canary)  # takes its memory
    return lambda: training.train(features, labels, rng=rng, canaries=canary)


def _ask_opacus(model: str, runs: int) -> float:
    """Return the seconds of one model, the better of its two ways, times the number of models."""
    build, shape, classes = MODELS[model]
    features, labels = make_records(shape, classes, _TRAIN_STEPS * BATCH)
    ways = [time_opacus(build(), features, labels, mode) for mode in ("hooks", "ghost")]
    return runs * _TRAIN_STEPS / max(ways)


def _multiply(model: str, runs: int) -> Call:
    """Multiply as often as forward and backward do, in large matrices, by the quickest library."""
    build, shape, _ = MODELS[model]
    operations = 0

    def count(layer: Any, _: Any, output: Any) -> None:
        nonlocal operations
        inner = layer.weight[0].numel()
        operations += 2 * output.numel() * inner

    module = build()
    for layer in module.modules():
        if hasattr(layer, "weight"):
            layer.register_forward_hook(count)
    module(torch.zeros(BATCH, *shape))
    size = 256
    left, right = torch.randn(size, size), torch.randn(size, size)
    times = max(1, round(3 * operations * runs * _TRAIN_STEPS / (2 * size**3)))

    def multiply() -> None:
        with use_precision("float32", rows=size):
            for _ in range(times):
                left @ right

    return multiply


def _round(clients: int) -> Call:
    case = _make_case(clients)
    training = make_training(case, ragged_records(clients), 2)
    canaries = HadamardCanaries(count=2 * case.canaries, dimension=training.size, key=1)
    return lambda: training.train(
        rng=np.random.default_rng(0), canaries=canaries, planted=case.canaries, repetitions=1
    )


def _make_case(clients: int) -> Any:
    """Return a federation of so many clients, with a small network."""
    width, canaries = choose_size((170, 100), (8, 4))
    return dataclasses.replace(BASE, clients=clients, width=width, canaries=canaries)


def _take_steps(weights: int, *, audit: bool, canaries: int = choose_size(500, 10)) -> Call:
    case = Case(parameters=weights, canaries=canaries, batch=8)
    steps = train(case, audit=audit)
    for _ in range(WARM_UP):
        next(steps)
    return lambda: [next(steps) for _ in range(8)]


def _cosines(count: int) -> Call:
    dimension = choose_size(10**6, 2**14)
    canaries = HadamardCanaries(count=count, dimension=dimension, key=1)
    vector = np.random.default_rng(0).standard_normal(dimension, dtype=np.float32)
    return lambda: canaries.cosines(vector)


def _products(count: int) -> Call:
    dimension = choose_size(10**6, 2**14)
    one, other = np.random.default_rng(0).standard_normal((2, dimension), dtype=np.float32)
    return lambda: [one @ other for _ in range(count)]


@cache
def _people(rows: int, columns: int = 20) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, columns))
    return x, (x[:, 0] + rng.normal(size=rows) > 0).astype(int)


def _leave_out(estimator: Any, rows: int, columns: int = 20) -> Call:
    x, y = _people(rows, columns)
    return lambda: pdtp(estimator, x, y)


def _read_moments(rows: int) -> Call:
    x, y = _people(rows)
    return lambda: [(x[y == label].mean(axis=0), x[y == label].var(axis=0)) for label in (0, 1)]


def _read_products(rows: int) -> Call:
    x, _ = _people(rows)
    return lambda: x.T @ x


def _refit(estimator: Any, rows: int) -> float:
    """Return the seconds of a loop over all records, from five of them."""
    x, y = _people(rows)
    start = time.process_time()
    for record in range(5):
        kept = np.arange(rows) != record
        clone(estimator).fit(x[kept], y[kept]).predict_proba(x[[record]])
    return (time.process_time() - start) * rows / 5


@cache
def make_pool(rows: int) -> tuple[ShadowPool, Any]:
    """Return predictions of shadow models, and those of a target."""
    models, rng = choose_size(256, 8), np.random.default_rng(0)
    coins = rng.random((models // 2, rows)) < 0.5
    member = np.concatenate([coins, ~coins])
    own = -(0.01 + rng.exponential(size=(models + 1, rows))).astype(np.float32)
    both = np.stack([own, np.log1p(-np.exp(own))], axis=2)
    pool = ShadowPool(
        log_proba=both[:-1],
        member=member,
        labels=np.zeros(rows, np.int64),
        classes=np.arange(2),
        train_accuracy=np.ones(models),
        test_accuracy=np.ones(models),
        kept="own",
    )
    return pool, both[-1].astype(np.float64)


def _attack(attack: Callable[..., object], rows: int) -> Call:
    pool, target = make_pool(rows)
    pool = dataclasses.replace(pool)  # a new one, so that nothing of a call before is kept
    return lambda: attack(pool, target)


def _average(rows: int) -> Call:
    pool, _ = make_pool(rows)
    own = pool.log_proba[:, :, 0]
    return lambda: (own.mean(axis=0), own.std(axis=0))


def _write_table(rows: int) -> Path:
    path = _HOME / f"epsilometer-performance-{rows}.csv"
    if not path.exists():
        x, y = _people(min(rows, 10**4))
        lines = [
            ",".join(f"{v:.4f}" for v in row) + f",{label}" for row, label in zip(x, y, strict=True)
        ]
        head = ",".join(f"c{i}" for i in range(20)) + ",label\n"
        path.write_text(head + "\n".join((lines * math.ceil(rows / len(lines)))[:rows]) + "\n")
    return path


def _report(count: int) -> Call:
    scores = em.Scores(np.repeat(2.0, 100), np.repeat(0.0, 100))
    audit = em.audit(scores, em.Claim(3.0, delta=_DELTA))
    risks = np.linspace(2, 0, count).tolist()
    records = tuple(
        RecordRisk(rank=i + 1, risk=risk, measure="PDTP", note="rare", shown=risk, unbinned=risk)
        for i, risk in enumerate(risks)
    )
    many = replace(audit, findings=(*audit.findings, *records))
    return lambda: many.save(_HOME / "epsilometer-performance.html")


_PROGRAM = """
import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

def train_{i}(model, data, epochs):
    loader = DataLoader(TensorDataset(*data), batch_size=64, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader,
        noise_multiplier=1.0, max_grad_norm=1.0, poisson_sampling=False)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return engine.get_epsilon(1e-5)
"""


def _write_program(functions: int) -> str:
    return "".join(_PROGRAM.format(i=i) for i in range(functions))


def _lint(functions: int) -> Call:
    text = _write_program(functions)
    return lambda: lint_source(text)


def _parse(functions: int) -> Call:
    text = _write_program(functions)
    return lambda: ast.parse(text)


def _store(units: int) -> Call:
    asked = {"settings": {}, "delta": _DELTA, "confidence": 0.95, "until": None}
    arrays = {"inside": np.zeros(10), "outside": np.zeros(10)}

    def write() -> None:
        with tempfile.TemporaryDirectory() as folder:
            store = Store.create(
                Path(folder), Plan(audit="idle", parameters=asked, units=units, seed=0)
            )
            store.prepare()
            with Writer(store) as writer:
                for unit in range(units):
                    writer.add(unit, arrays)

    return write


_SCORES = choose_size((10**3, 10**4, 10**5, 10**6), (50, 100))
_LOGISTIC = LogisticRegression(tol=1e-8, max_iter=1000)
JOBS = (
    Job(
        name="bound",
        title="default bound of {size} scores per side",
        unit="scores per side",
        sizes=_SCORES,
        ours=_bound,
        peer=partial(_ask_jax, "clopper_pearson"),
        limit=_read_scores,
        target=10,
        beside=True,
        note="peer: jax-privacy's Clopper–Pearson bound. Limit: comparing every score once.",
    ),
    Job(
        name="one-run",
        title="one-run bound of {size} canaries per side",
        unit="canaries per side",
        sizes=choose_size((10**2, 10**3, 10**4, 10**5), (50, 100)),
        ours=_one_run,
        peer=partial(_ask_jax, "one_run"),
        limit=_read_scores,
        note="peer: jax-privacy's one-run bound. Limit: comparing every score once.",
    ),
    Job(
        name="poisson",
        title="ε of {size} steps with Poisson sampling",
        unit="steps",
        sizes=choose_size((10**3, 10**4, 10**5, 10**6), (10, 20)),
        ours=_poisson,
        peer=_ask_dp_accounting,
        note="σ = 1, batches of 256 of 60,000 records. Peer: dp-accounting's loss distributions.",
    ),
    Job(
        name="shuffle",
        title="both ends of ε of {size} shuffled steps",
        unit="steps per epoch",
        sizes=choose_size((10**3, 10**4, 10**5, 10**6), (20, 40)),
        ours=_shuffle,
        target=5,
        note="σ = 1, one epoch.",
    ),
    Job(
        name="trials",
        title="{size} trials of the batched Gaussian mechanism per side",
        unit="trials per side",
        sizes=choose_size((10**3, 10**4, 10**5, 10**6), (10, 20)),
        ours=_trials,
        peer=lambda runs: _time_once(_draw_normals(runs)),
        note="100 steps. Peer: NumPy's normals in single precision alone, as many as are drawn.",
    ),
    Job(
        name="mlp",
        title="DP-SGD of {size} MLPs 600–32–100, 20 steps",
        unit="models at once",
        sizes=choose_size((2, 4, 8, 16), (1, 2)),
        ours=partial(_train, "MLP 600–32–100"),
        peer=partial(_ask_opacus, "MLP 600–32–100"),
        limit=partial(_multiply, "MLP 600–32–100"),
        target=12,
        beside=True,
        note="peer: Opacus, one model after the other, hooks or ghost clipping, whichever is "
        "faster. Limit: products of large matrices of as many operations.",
    ),
    Job(
        name="lenet",
        title="DP-SGD of {size} LeNet-5, 20 steps",
        unit="models at once",
        sizes=choose_size((1, 2, 4, 8), (1, 2)),
        ours=partial(_train, "LeNet-5, 28×28"),
        peer=partial(_ask_opacus, "LeNet-5, 28×28"),
        limit=partial(_multiply, "LeNet-5, 28×28"),
        target=4,
        beside=True,
        note="as for the MLP.",
    ),
    Job(
        name="federated",
        title="two federated rounds, {size} clients, 20 in each round",
        unit="clients",
        sizes=choose_size((10**2, 10**3, 10**4, 10**5), (8, 16)),
        ours=_round,
        note="41,000 weights, 100 canaries; clients have 1 to 150 records. Beside Flower: "
        "[at scale](../benchmarks/federated_scale.md).",
    ),
    Job(
        name="audited-step",
        title="8 audited steps of Opacus, {size} weights",
        unit="weights",
        sizes=choose_size((10**5, 10**6, 3 * 10**6, 10**7), (2000, 4000)),
        ours=partial(_take_steps, audit=True),
        limit=partial(_take_steps, audit=False),
        note="500 canaries, 8 records per batch. Limit: the same steps without the audit.",
    ),
    Job(
        name="audited-canaries",
        title="8 audited steps of Opacus, a million weights, {size} canaries",
        unit="canaries",
        sizes=choose_size((10**2, 10**3, 3 * 10**3, 10**4), (8, 16)),
        ours=lambda count: _take_steps(choose_size(10**6, 2000), audit=True, canaries=count),
        limit=lambda count: _take_steps(choose_size(10**6, 2000), audit=False, canaries=count),
        note="as above.",
    ),
    Job(
        name="cosines",
        title="cosines of {size} canaries of a million weights",
        unit="canaries",
        sizes=choose_size((10**2, 10**3, 10**4), (8, 16)) + choose_size((3 * 10**4,), ()),
        ours=_cosines,
        note="first calls, with signs and places. Peer: one product per canary, from 100 of them.",
        peer=lambda count: _time_once(_products(min(count, 100))) * count / min(count, 100),
    ),
    Job(
        name="leave-one-out",
        title="naive Bayes without each of {size} records",
        unit="records",
        sizes=choose_size((10**3, 10**4, 10**5, 10**6), (50, 100)),
        ours=partial(_leave_out, GaussianNB()),
        peer=partial(_refit, GaussianNB()),
        limit=_read_moments,
        note="20 columns. Peer: a loop of refits, from five of them. Limit: means and variances.",
    ),
    Job(
        name="leave-one-out-columns",
        title="naive Bayes without each of 10,000 records of {size} columns",
        unit="columns",
        sizes=choose_size((5, 20, 80, 320), (2, 4)),
        ours=partial(_leave_out, GaussianNB(), choose_size(10**4, 50)),
        note="as above, over columns.",
    ),
    Job(
        name="leave-one-out-logistic",
        title="logistic regression without each of {size} records",
        unit="records",
        sizes=choose_size((10**3, 10**4, 3 * 10**4, 10**5), (50, 100)),
        ours=partial(_leave_out, _LOGISTIC),
        peer=partial(_refit, _LOGISTIC),
        limit=_read_products,
        note="peer as for naive Bayes. Limit: one matrix of products of columns.",
    ),
    Job(
        name="lira",
        title="LiRA on {size} records with 256 shadow models",
        unit="records",
        sizes=choose_size((10**3, 10**4, 3 * 10**4, 10**5), (50, 100)),
        ours=partial(_attack, lira),
        limit=_average,
        note="limit: means and standard deviations of the same predictions.",
    ),
    Job(
        name="rmia",
        title="RMIA on {size} records with 256 shadow models",
        unit="records",
        sizes=choose_size((10**3, 10**4, 3 * 10**4, 10**5), (50, 100)),
        ours=partial(_attack, rmia),
        limit=_average,
        note="as for LiRA.",
    ),
    Job(
        name="csv",
        title="read a table of {size} rows",
        unit="rows of 21 columns",
        sizes=choose_size((10**3, 10**4, 10**5, 4 * 10**5), (50, 100)),
        ours=lambda rows: partial(read_table, _write_table(rows)),
        limit=lambda rows: partial(pyarrow.csv.read_csv, _write_table(rows)),
        note="limit: `pyarrow.csv.read_csv`, which knows the encoding and looks for no errors.",
    ),
    Job(
        name="report",
        title="page of {size} findings",
        unit="findings",
        sizes=choose_size((10**2, 10**3, 10**4, 10**5), (10, 20)),
        ours=_report,
        target=0.5,
        note="as HTML.",
    ),
    Job(
        name="lint",
        title="lint {size} training functions",
        unit="functions of 18 lines",
        sizes=choose_size((10, 30, 100, 300), (1, 2)),
        ours=_lint,
        limit=_parse,
        note="in one file. Limit: `ast.parse` of it.",
    ),
    Job(
        name="store",
        title="store {size} units",
        unit="units of 20 numbers",
        sizes=choose_size((10**2, 10**3, 10**4, 10**5), (10, 20)),
        ours=_store,
        note="fsynced; CPU seconds, not those of the disk.",
    ),
)


def _time_once(call: Call) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start
