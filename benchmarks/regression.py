"""Compare the speed of two trees: the same jobs, by public names only, in turns.

    python benchmarks/regression.py BEFORE            # src of an older checkout, against this one
    python benchmarks/regression.py BEFORE run_units  # some of the jobs
    python benchmarks/regression.py BEFORE --write    # writes regression.md

Each take is a fresh process of one thread. What is counted is the CPU time of a second call in it,
so that imports and compilation are not; the least of several takes stands for a tree, because other
work on the machine only ever adds. A ratio above 1.05 is marked.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from results import machine
from sizes import ARGUMENTS, TINY, choose_size

HERE = Path(__file__).resolve().parent
TAKES = choose_size(5, 1)
LIMIT = 1.05


def bound_scores() -> Callable[[], Any]:
    """Bound ε from 100,000 scores of either kind."""
    import epsilometer as em

    rng = np.random.default_rng(0)
    n = choose_size(100_000, 100)
    scores = em.Scores(rng.normal(1, 1, n), rng.normal(0, 1, n))
    return lambda: em.audit(scores, 1.0, delta=1e-5)


def account_poisson() -> Callable[[], Any]:
    """Compute ε of Poisson sampling, 10,000 steps, at other noise each time."""
    from epsilometer.accounting.pld import poisson_epsilon

    noise = iter(np.linspace(0.8, 1.2, 20))
    return lambda: poisson_epsilon(
        noise_multiplier=float(next(noise)), sampling_rate=0.01, steps=10_000, delta=1e-5
    )


def account_shuffle() -> Callable[[], Any]:
    """Compute ε of shuffling, at other noise each time."""
    import epsilometer as em

    noise = iter(np.linspace(0.7, 1.3, 20))
    return lambda: em.shuffle_epsilon(
        noise_multiplier=float(next(noise)), steps=100, epochs=10, delta=1e-5
    )


def play_shuffled() -> Callable[[], Any]:
    """Audit shuffled DP-SGD by 100,000 trials of its game."""
    import epsilometer as em

    subject = em.ShuffledSGD(
        noise_multiplier=1.0, steps=100, observations=choose_size(100_000, 100)
    )
    return lambda: em.audit(subject, 3.5, delta=1e-5, engine=em.InProcess())


def leave_one_out() -> Callable[[], Any]:
    """Leave every one of 1,000 digits out of four classifiers."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.tree import DecisionTreeClassifier

    import epsilometer as em

    x, y = load_digits(return_X_y=True)
    x, y = x[: choose_size(1000, 50)] / 16, y[: choose_size(1000, 50)]
    models = [GaussianNB(), KNeighborsClassifier(), LogisticRegression(max_iter=200)]
    few = np.arange(20)
    return lambda: [
        *(em.pdtp(model, x, y) for model in models),
        em.pdtp(DecisionTreeClassifier(random_state=0), x, y, records=few),
    ]


def run_units() -> Callable[[], Any]:
    """Run 2,000 short units in this process, stored in a directory."""
    import tempfile

    import epsilometer as em

    def play(runs: int, rng: np.random.Generator) -> Any:
        return em.Scores(rng.normal(1, 1, runs), rng.normal(0, 1, runs))

    def audit() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            subject = em.Runs(play, runs=choose_size(20_000, 20), block=10)
            return em.audit(subject, delta=1e-5, engine=em.InProcess(), out=Path(folder, "run"))

    return audit


def train_many() -> Callable[[], Any]:
    """Audit DP-SGD of an MLP on digits by 200 trainings of either kind."""
    from sklearn.datasets import load_digits

    import epsilometer as em

    x, y = load_digits(return_X_y=True)
    x = (x[:200] / 16).astype(np.float32)
    subject = em.DPSGD(
        em.models.mlp(64, 10),
        (x, y[:200]),
        runs=choose_size(200, 2),
        batch_size=20,
        learning_rate=0.5,
        noise_multiplier=1.0,
    )
    return lambda: em.audit(subject, 1.0, delta=1e-5, engine=em.InProcess())


def plant_canaries() -> Callable[[], Any]:
    """Take cosines of 1,000 canaries in a million dimensions, and bound ε by them."""
    import epsilometer as em

    size = choose_size(1_000_000, 1_000)
    canaries = em.HadamardCanaries(count=choose_size(1_000, 10), dimension=size, key=1)
    vector = np.random.default_rng(0).standard_normal(size).astype(np.float32)

    def audit() -> Any:
        return em.audit(em.Cosines(canaries.cosines(vector), dimension=size), delta=1e-5)

    return audit


def read_table() -> Callable[[], Any]:
    """Read 100,000 scores from CSV."""
    import tempfile

    import epsilometer as em

    rng = np.random.default_rng(0)
    rows = "\n".join(
        f"{float(value)!r},{i % 2}" for i, value in enumerate(rng.normal(size=100_000))
    )
    path = Path(tempfile.mkdtemp(), "scores.csv")
    path.write_text(f"score,member\n{rows}\n")
    return lambda: em.read_scores(path)


def render_page() -> Callable[[], Any]:
    """Render the page of an audit."""
    import tempfile

    import epsilometer as em

    rng = np.random.default_rng(0)
    audit = em.audit(em.Scores(rng.normal(1, 1, 999), rng.normal(0, 1, 999)), 1.0, delta=1e-5)
    path = Path(tempfile.mkdtemp(), "report.html")
    return lambda: audit.save(path)


JOBS: dict[str, Callable[[], Callable[[], Any]]] = {
    job.__name__: job
    for job in (
        bound_scores, account_poisson, account_shuffle, play_shuffled, leave_one_out, run_units,
        train_many, plant_canaries, read_table, render_page,
    )
}  # fmt: skip


def time_second_call(name: str) -> float:
    """Return CPU seconds of the second call of a job, in this process."""
    call = JOBS[name]()
    if not TINY:
        call()
    start = time.process_time()
    call()
    return time.process_time() - start


def time_job(source: str, name: str) -> float:
    """Return CPU seconds of a second call in a fresh process; at a tiny size, in this one."""
    if TINY:
        return time_second_call(name)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--job", name],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "OMP_NUM_THREADS": "1",
        },
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Time one job, or compare all jobs of both trees."""
    if ARGUMENTS[:1] == ["--job"]:
        print(json.dumps(time_second_call(ARGUMENTS[1])))
        return
    here = str(HERE.parent / "src")
    before = str(Path(ARGUMENTS[0]).resolve()) if ARGUMENTS else here
    lines = ["| job | before, ms | after, ms | ratio |", "|---|---|---|---|"]
    wanted = [word for word in ARGUMENTS[1:] if word in JOBS] or JOBS
    for name in wanted:
        job = JOBS[name]
        takes = [(time_job(before, name), time_job(here, name)) for _ in range(TAKES)]
        old, new = (min(times) for times in zip(*takes, strict=True))
        mark = " (slower)" if new > LIMIT * old else ""
        about = (job.__doc__ or "").rstrip(".")
        lines.append(f"| {about} | {1e3 * old:.1f} | {1e3 * new:.1f} | {new / old:.2f}{mark} |")
        print(lines[-1], file=sys.stderr, flush=True)
    text = "\n".join(
        [
            "# Before and after",
            "",
            "Written by `python benchmarks/regression.py BEFORE --write`. CPU milliseconds of a "
            f"second call, the least of {TAKES} takes in turns, one thread.",
            "",
            f"Measured on {machine()}.",
            "",
            *lines,
        ]
    )
    if "--write" in ARGUMENTS:
        (HERE / "regression.md").write_text(text + "\n", "utf-8")
    print(text)


if __name__ == "__main__":
    main()
