"""Tables and figures of the training-privacy paper one by one, as ``tables.py`` and others measure.

Where there are no data, sets of scikit-learn stand in: tumours (breast cancer, two classes) for
Adult, handwritten digits with pixels on or off for Shopping, and invented people for the survey.
Models of a row are kept in ``work``: what one table has trained the next one finds.
"""

import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import indirect
import numpy as np
import removal
import tables
import variation
from model_trees import JAR
from nets import Training
from records import Records, survey
from sklearn.datasets import load_breast_cancer, load_digits

from epsilometer.types import IntArray

KEPT = ("train", "test")
SHOWN = (1, 2, 5, 10, 20, 50, 100)


def table_1(**how: Any) -> dict[str, str]:
    """Three attacks on an overfitted network, and how well PDTP foretells each."""
    lines = {}
    for name, found in _measured(**how).items():
        for attack in tables.PAPERS:
            lines |= _of_attack(f"{name}, {attack}", found, attack)
        best = _correlation(found["best"]["correlation"], _targets(found))
        lines[f"{name}, best of three: correlation with PDTP"] = best
    return lines


def table_2(**how: Any) -> dict[str, str]:
    """The distance-based attack on all models."""
    lines = {}
    for name, found in _measured(**how).items():
        accuracies = ", ".join(f"{found[which]:.3f}" for which in KEPT)
        lines[f"{name}: accuracy in training, in test"] = accuracies
        lines |= _of_attack(name, found, "distance")
        risks = np.array(found["targets"]["pdtp"])
        error = risks.std(ddof=1) / np.sqrt(risks.size)  # over targets
        lines[f"{name}: mean PDTP"] = f"{found['pdtp']:.3f} ± {error:.3f}"
    return lines


def table_2_weka(**how: Any) -> dict[str, str]:
    """The same of Weka's model trees, which the paper trains; says so where there is no Weka."""
    return table_2(only="^LMT-", **how) or {"LMT-Adult": f"not measured: no Weka at {JAR.name}"}


def claims(**how: Any) -> dict[str, str]:
    """What figures 1, 2, 4 and 5 are said to show of the best attack on a target, by its PDTP."""
    words = {
        "above_1": "targets with PDTP above 1",
        "share_over_80_above_1": "share of them told in over 80 % of attacks",
        "share_over_60_above_1": "share of them told in over 60 %",
        "share_over_90_above_4": "PDTP above 4: share told in over 90 %",
        "highest_below_half": "PDTP below 0.5: highest accuracy on a target",
    }
    lines = {}
    for name, found in _measured(**how).items():
        for key, said in words.items():
            value = found["best"][key]
            shown = "none" if value is None else f"{value}" if key == "above_1" else f"{value:.3f}"
            lines[f"{name}: {said}"] = shown
        one, other = (np.array(found["targets"][attack]) for attack in ("untargeted", "distance"))
        most = int(np.argmax(one - other))  # the target that differs most
        lines[f"{name}: told by untargeted, not by distance"] = (
            f"{one[most]:.2f}, {other[most]:.2f}"
        )
    return lines


def figure_3(**how: Any) -> dict[str, str]:
    """Correlation of PDTP with the distance-based attack by measurements of PDTP."""
    lines = {}
    for name, found in _measured(**how).items():
        values = found["by_measurements"]
        for count in (count for count in SHOWN if count <= len(values)):
            shown = _correlation(values[count - 1], _targets(found))
            lines[f"{name}: {count} measurements"] = shown
    return lines


def figure_6(*, most: int, data: Path | None, **_: object) -> dict[str, str]:
    """The largest binned PDTP after records were dropped, without smoothing."""
    x, y = survey(data) if data is not None else _people()
    lines = {}
    for again in (False, True):
        found = removal.dropped(x, y, alpha=1e-10, most=most, again=again)["binned"]
        order = "riskiest of those left" if again else "by the first order"
        for count in (0, 1, 2, 3):
            lines[f"{order}: {count} dropped"] = f"{found[count]:.2f}"
        later = f"{max(found[2:]):.2f}, {min(found[2:]):.2f}"
        lines[f"{order}: highest and lowest of 2 to {most} dropped"] = later
    return lines


def variations(
    *, nets: int, epochs: int, data: Path | None, device: str, work: Path
) -> dict[str, str]:
    """Figures 7 and 8: what other first weights, and other records, do to a prediction."""
    how = Training(epochs=epochs, batch=32, device=device)
    lines = {}
    for figure, sampling in ((7, False), (8, True)):
        path = work / f"variation-{figure}-{nets}-{epochs}.npy"
        p = tables.kept(path, lambda: _varied(how, data, nets, sampling))  # noqa: B023
        for person, line in zip(("low", "high"), variation.summary(p), strict=True):
            said = f"figure {figure}, person of {person} salary: mean, standard deviation"
            lines[said] = f"{line['mean']:.3f}, {line['sd']:.3f}"
    return lines


def counterexample(**_: object) -> dict[str, str]:
    """Section 6.1: a record that only an indirect query tells of."""
    return {name: f"{value:.3f}" for name, value in indirect.measured().items()}


def _varied(how: Training, data: Path | None, nets: int, sampling: bool) -> Any:
    if data is not None:
        return variation.varied(how, data, nets=nets, sampling=sampling)
    return variation.varied_on(_tumours(), how, trained_on=300, nets=nets, sampling=sampling)


def _measured(
    *, only: str, work: Path, data: Path | None, device: str, **protocol: int
) -> dict[str, dict[str, Any]]:
    """Rows of ``tables.py`` whose name matches, each measured once."""
    how = tables.Protocol(**protocol)
    found = {}
    for row in tables.rows(device):
        name = f"{row.kind}-{row.data}"
        if not re.search(only, name):
            continue
        where = work / "-".join(map(str, (name, *asdict(how).values())))
        if not (where / "found.json").exists():
            people = tables.DATA[row.data](data) if data is not None else _stand_in(row.data)
            line = tables.measured(row, tables.train(row, people, how, where), people)
            part = where / "found.part.json"
            part.write_text(json.dumps(line), encoding="utf-8")
            part.replace(where / "found.json")
        found[name] = json.loads((where / "found.json").read_text("utf-8"))
    return found


def _of_attack(name: str, found: dict[str, Any], attack: str) -> dict[str, str]:
    values = found["attacks"][attack]
    three = ", ".join(f"{values[which]:.3f}" for which in ("precision", "recall", "f1"))
    return {
        f"{name}: attack accuracy": f"{values['accuracy']:.3f} ± {values['error']:.3f}",
        f"{name}: precision, recall, F1": three,
        f"{name}: correlation with PDTP": _correlation(values["correlation"], _targets(found)),
    }


def _targets(found: dict[str, Any]) -> int:
    return len(found["targets"]["pdtp"])


def _correlation(found: float, targets: int) -> str:
    """With its standard error; none where an attack does as well on every target."""
    if not math.isfinite(found):
        return "none"
    return f"{found:.3f} ± {(1 - found**2) / math.sqrt(targets - 1):.3f}"


def _stand_in(name: str) -> Records:
    return _tumours() if name == "Adult" else _digits()


def _tumours() -> Records:
    x, y = load_breast_cancer(return_X_y=True)
    numbers, sizes = x[:, :5], x[:, 5:15]
    codes = (sizes > np.median(sizes, axis=0)).astype(np.int64)
    return Records(
        features=np.hstack([(numbers - numbers.mean(axis=0)) / numbers.std(axis=0), codes]),
        numbers=numbers,
        categories=codes,
        labels=y.astype(np.int64),
        classes=2,
    )


def _digits() -> Records:
    x, y = load_digits(return_X_y=True)
    on = (x[:400] > 7).astype(np.int64)
    return Records(
        features=on.astype(np.float64),
        numbers=np.empty((400, 0)),
        categories=on,
        labels=y[:400].astype(np.int64),
        classes=10,
    )


def _people() -> tuple[IntArray, IntArray]:
    """2,000 with an age, and three traits of which some values are rare."""
    rng = np.random.default_rng(0)
    age, traits = rng.integers(18, 80, 2000), rng.geometric(0.6, (2000, 3))
    above = rng.random(2000) < 0.1 + 0.006 * (age - 18)
    return np.column_stack([age - 18, np.minimum(traits, 7) - 1]), above.astype(np.int64)
