"""Build every subject on data that cannot be mistaken, and compute what must not be published.

A secret is a text: a name, a label, a cell, digits of a number, or a digest of any of them.
"""

import base64
import hashlib
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import epsilometer as em
from epsilometer.engine.fingerprints import fingerprint

DELTA = 1e-5
NAMES = [f"Zebulon{i:03d}Quarterstaff" for i in range(120)]
RARE = "rareWombatosis"  # a label of 4 people
FEW = "fewWombatville"  # a group of 4 people
SAID = "ssn=123-45-6789"  # what a unit raises
_HASHES = ("md5", "sha1", "sha224", "sha256", "sha384", "sha512", "blake2b", "blake2s")
_DIGITS = 8  # of a number, that nobody writes by chance


@dataclass(frozen=True)
class Planted:
    """A subject on planted data.

    Attributes:
        subject: What is audited.
        texts: Texts of single people.
        values: Arrays, texts and files: their contents are secrets, and so are their digests.
        claim: The claimed ε.
        shows: Whether row numbers were asked for.
    """

    subject: Any
    texts: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()
    claim: float | None = 0.5
    options: dict[str, Any] = field(default_factory=dict)

    def list_secrets(self) -> dict[str, str]:
        """Return secrets with what each of them is."""
        found = dict.fromkeys(self.texts, "a text")
        for value in self.values:
            for digest, name in _list_digests(value):
                found[digest] = name
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                every = (digits for number in value.ravel() for digits in _list_digits(number))
                found |= dict.fromkeys(every, "digits of a number")
        for text in self.texts:
            found |= {digest: f"{name} of {text}" for digest, name in _hash(text.encode())}
        return found


def _list_digits(number: Any) -> Iterator[str]:
    """The first significant digits of a number, as any notation has them."""
    for text in (repr(float(number)), str(number)):  # of float32 they differ
        digits = text.partition("e")[0].replace(".", "").lstrip("-0")[:_DIGITS]
        if len(digits) == _DIGITS:
            yield digits


def _list_digests(value: Any) -> Iterator[tuple[str, str]]:
    yield fingerprint(value)[:12], f"our fingerprint of a {type(value).__name__}"
    if isinstance(value, Path):
        yield from _hash(value.read_bytes())
    elif isinstance(value, np.ndarray):
        flat = value.astype(np.str_) if value.dtype.hasobject else value
        yield from _hash(np.ascontiguousarray(flat).tobytes())
        yield from _hash(np.asfortranarray(flat).tobytes("F"))
        yield from _hash(repr(value.tolist()).encode())
    else:
        yield from _hash(repr(value).encode())


def _hash(data: bytes) -> Iterator[tuple[str, str]]:
    for name in _HASHES:
        digest = hashlib.new(name, data).digest()
        yield digest.hex()[:12], name
        yield base64.b64encode(digest).decode()[:12], f"{name} in base 64"
    yield f"{zlib.crc32(data):08x}", "crc32"


def _numbers(*shape: int, seed: int = 0) -> Any:
    """Numbers whose digits nobody writes by chance."""
    return np.random.default_rng(seed).normal(size=shape) + 0.1


class Raising:
    """A program of data that it keeps, and tells of when it fails."""

    def __init__(self, secret: Any) -> None:
        self.secret = secret

    def __call__(self, runs: int, rng: np.random.Generator) -> em.Scores:
        if rng.random() < 0.05:
            raise ValueError(f"cannot read {SAID} of {self.secret}")
        return em.Scores(inside=rng.normal(4, 1, runs), outside=rng.normal(0, 1, runs))


def release_noisy_sum(people: Any, seed: int) -> float:
    """Release how many there are, with too little noise; fail now and then."""
    if seed % 17 == 0:
        raise KeyError(f"{SAID}: {people!r}")
    return len(people) + np.random.default_rng(seed).normal(0, 0.2)


def sample_posterior(features: Any, labels: Any, rng: np.random.Generator) -> Any:
    """A model that remembers how many records there are."""
    from epsilometer.audits.posterior.forms import FromCallable

    p = (0.9 if len(labels) > 10 else 0.2) + rng.uniform(-0.05, 0.05)
    return FromCallable(lambda x, samples, rng: np.tile([1 - p, p], (samples, 1)))


def take_step(batch: Any, rng: np.random.Generator) -> Any:
    """One step of DP-SGD that cannot do without a record, and says which."""
    if len(batch) < 8:
        raise ValueError(f"{SAID} is missing among {batch[0]!r}")
    norms = np.linalg.norm(batch, axis=1, keepdims=True)
    return (batch / np.maximum(norms, 1)).sum(axis=0) + rng.normal(size=batch.shape[1])


def _plant_scores(_: Path) -> Planted:
    inside, outside = _numbers(300) + 3, _numbers(300, seed=1)
    return Planted(em.Scores(inside, outside), values=(inside, outside))


def _plant_score_file(folder: Path) -> Planted:
    file = folder / "scores.csv"
    inside, outside = _numbers(60) + 3, _numbers(60, seed=1)
    every = [(name, score, 1) for name, score in zip(NAMES, inside.tolist(), strict=False)]
    every += [(name, score, 0) for name, score in zip(NAMES[60:], outside.tolist(), strict=True)]
    lines = [f"{name},{score!r},{member}" for name, score, member in every]
    file.write_text("\n".join(["name,score,member", *lines]) + "\n")
    return Planted(em.read_scores(file), texts=tuple(NAMES), values=(inside, outside, file))


def _plant_counts(_: Path) -> Planted:
    thresholds = np.sort(_numbers(50))
    scores = em.Scores(_numbers(300) + 3, _numbers(300, seed=1))
    counts = em.ScoreCounts.at(thresholds).add(inside=scores.inside, outside=scores.outside)
    return Planted(counts, values=(scores.inside, scores.outside, thresholds))


def _plant_runs(_: Path) -> Planted:
    secret = NAMES[7]
    return Planted(em.Runs(Raising(secret), runs=200), texts=(secret, SAID), values=(secret,))


def _plant_training(_: Path) -> Planted:
    people = tuple(NAMES[:20])
    subject = em.TrainFunction(
        release_noisy_sum, with_record=people, without_record=people[1:], runs=100
    )
    return Planted(subject, texts=(*people, SAID), values=(people, people[1:]))


def _plant_record(_: Path) -> Planted:
    """The record itself is a text, as of a language model."""
    text = f"{NAMES[3]} was diagnosed with {RARE}"
    subject = em.TrainFunction(release_noisy_sum, with_record=text, without_record="", runs=100)
    return Planted(subject, texts=(NAMES[3], text, RARE, SAID), values=(text,))


def _plant_dpsgd(_: Path) -> Planted:
    import torch
    from torch import nn

    features, labels = _numbers(60, 4).astype(np.float32), np.arange(60) % 2
    torch.manual_seed(0)
    subject = em.DPSGD(
        nn.Linear(4, 2),
        (features, labels),
        runs=60,
        learning_rate=0.1,
        batch_size=1,
        noise_multiplier=0.5,
        adversary="worst_case",
    )
    return Planted(subject, values=(features, labels))


def _plant_federated(_: Path) -> Planted:
    import torch
    from torch import nn

    clients = [
        (_numbers(5, 49, seed=i).astype(np.float32), (np.arange(5) + i) % 20) for i in range(6)
    ]
    torch.manual_seed(0)
    subject = em.Federated(
        nn.Linear(49, 20),
        clients,
        rounds=2,
        cohort=3,
        noise_multiplier=0.05,
        learning_rate=0.1,
        canaries=100,
    )
    return Planted(subject, values=(*(part for client in clients for part in client), clients))


def _plant_cosines(_: Path) -> Planted:
    cosines = (_numbers(300) + 4) / 100
    return Planted(em.Cosines(cosines, dimension=10_000), values=(cosines,))


def _people() -> tuple[Any, Any, dict[str, Any]]:
    features = _numbers(120, 3)
    labels = np.where(features[:, 0] + features[:, 1] > 0, "yes", "no").astype(object)
    labels[[5, 40, 77, 101]] = RARE
    town = np.where(np.arange(120) % 2, "north", "south").astype(object)
    town[[3, 41, 78, 99]] = FEW
    return features, labels.astype(np.str_), {"town": town.astype(np.str_)}


def _plant_classifier(_: Path, **how: Any) -> Planted:
    from sklearn.neighbors import KNeighborsClassifier

    features, labels, groups = _people()
    subject = em.Classifier(
        KNeighborsClassifier(1),
        features,
        labels,
        groups=groups,
        record_names=NAMES,
        feature_names=("age", "weight", "height"),
        **{
            "attacks": ("loss", "lira"),
            "shadows": 6,
            "variation": 2,
            "removal": 3,
            "remedies": 2,
            **how,
        },
    )
    values = (features, labels, groups["town"], np.array(NAMES))
    return Planted(subject, texts=(*NAMES, RARE, FEW), values=values, claim=None)


def _plant_regressor(_: Path) -> Planted:
    from sklearn.neighbors import KNeighborsRegressor

    features, _labels, groups = _people()
    subject = em.Regressor(
        KNeighborsRegressor(1),
        features[:, :2],
        features[:, 2],
        groups=groups,
        record_names=NAMES,
        feature_names=("age", "weight"),
        attacks=("loss", "lira"),
        shadows=6,
    )
    values = (features, groups["town"], np.array(NAMES))
    return Planted(subject, texts=(*NAMES, RARE, FEW), values=values, claim=None)


def _plant_fitted(_: Path) -> Planted:
    from sklearn.neighbors import KNeighborsClassifier

    features, labels, _groups = _people()
    member = np.arange(len(labels)) % 3 > 0
    model = KNeighborsClassifier(1).fit(features[member], labels[member])
    subject = em.FittedClassifier(model, features, labels, member=member)
    return Planted(subject, texts=(RARE,), values=(features, labels), claim=None)


def _plant_refits(_: Path) -> Planted:
    """An estimator that is refitted without each record, and warns of what it sees."""
    from sklearn.tree import DecisionTreeClassifier

    class Talkative(DecisionTreeClassifier):
        def fit(self, X: Any, y: Any) -> Any:  # noqa: N803
            warnings.warn(f"{SAID}: {y[0]} {X[0]}", stacklevel=2)
            return super().fit(X, y)

    features, labels, _groups = _people()
    features, labels = features[:60], labels[:60]
    subject = em.Classifier(Talkative(max_depth=2), features, labels, attacks=())
    return Planted(subject, texts=(RARE, SAID), values=(features, labels), claim=None)


def write_table(folder: Path) -> Path:
    """Write the table of people, with their names and their rare disease."""
    features, labels, groups = _people()
    rows = [
        f"{name},{a!r},{b!r},{town},{label}"
        for name, (a, b, _), town, label in zip(
            NAMES, features.tolist(), groups["town"], labels, strict=True
        )
    ]
    file = folder / "people.csv"
    file.write_text("\n".join(["id,age,weight,town,illness", *rows]) + "\n")
    return file


def _plant_table(folder: Path, **how: Any) -> Planted:
    from epsilometer.core.settings import from_settings

    file = write_table(folder)
    source = {"type": "TableModel", "file": str(file), "label": "illness", "group": ["town", "age"]}
    source |= {"drop": ["id"], "model": "naive-bayes"}
    subject = from_settings(em.Classifier, {"source": source, "attacks": ["loss"], "shadows": 6})
    features, labels, groups = _people()
    values = (features[:, :2], labels, groups["town"], file)
    return Planted(subject, texts=(*NAMES, RARE, FEW), values=values, claim=None)


def _plant_posterior(_: Path) -> Planted:
    features, labels, record = _numbers(10, 3), np.arange(10) % 2, _numbers(3, seed=9)
    subject = em.Posterior(
        sample_posterior,
        (features, labels),
        record=em.Record(record, label=1),
        runs=12,
        samples=2,
    )
    return Planted(subject, values=(features, labels, record))


def _plant_step(_: Path) -> Planted:
    batch = _numbers(8, 40)
    subject = em.Step(take_step, batch, clip_norm=1.0, noise_multiplier=1.0, steps=16, records=2)
    return Planted(subject, texts=(SAID,), values=(batch,), claim=None)


def _plant_language_model(folder: Path) -> Planted:
    from epsilometer.audits.text.measuring import Measured

    texts = [f"{name} was diagnosed with {RARE}" for name in NAMES]
    planted = em.plant_texts(
        texts, canaries=em.TextCanaries(count=200, prompt=5), out=folder / "private"
    )
    rng = np.random.default_rng(0)
    measured = Measured(
        log_probs=tuple(rng.normal(3 * coin, 1, 2) for coin in planted.included),
        completions=tuple(canary.secret for canary in planted.canaries),
    )
    secrets = tuple(canary.secret for canary in planted.canaries)
    return Planted(em.LanguageModel(measured, planted), texts=(*NAMES, RARE, *secrets))


SUBJECTS: Mapping[str, Callable[[Path], Planted]] = {
    "scores": _plant_scores,
    "score file": _plant_score_file,
    "counts": _plant_counts,
    "runs": _plant_runs,
    "train function": _plant_training,
    "a text as the record": _plant_record,
    "DP-SGD": _plant_dpsgd,
    "federated": _plant_federated,
    "cosines": _plant_cosines,
    "classifier": _plant_classifier,
    "classifier, rows shown": lambda folder: _plant_classifier(folder, show_records=True),
    "classifier, refitted": _plant_refits,
    "table": _plant_table,
    "regressor": _plant_regressor,
    "fitted": _plant_fitted,
    "posterior": _plant_posterior,
    "step": _plant_step,
    "language model": _plant_language_model,
}
