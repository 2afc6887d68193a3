"""Logistic model trees by Weka, which the paper trains where it says logistic regression.

Needs Java 11 or later and Weka's jar: ``apt-get install weka default-jdk-headless`` of Debian, or
WEKA_JAR, which names it.
"""

import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from records import Records

from epsilometer.types import BoolArray, FloatArray, IntArray

JAR = Path(os.environ.get("WEKA_JAR", "/usr/share/java/weka.jar"))
_PROGRAM = Path(__file__).with_name("ModelTrees.java")
Fit = tuple[IntArray, IntArray]
"""Rows to train on, and rows to predict."""


@dataclass(frozen=True)
class ModelTrees:
    """Weka's LMT with its default options; a tree without a record is trained again."""

    random: bool = False  # Weka's own folds are of a fixed seed

    def everywhere(self, records: Records, member: BoolArray, sets: IntArray) -> FloatArray:
        """As of :class:`models.Classifier`."""
        everybody = np.arange(records.labels.size)
        found = _train(records, [(np.flatnonzero(member[place]), everybody) for place in sets])
        return found.reshape(sets.size, everybody.size, records.classes)

    def without(
        self, records: Records, member: BoolArray, twins: IntArray, *, fresh: bool = False
    ) -> FloatArray:
        """As of :class:`models.Classifier`."""
        fits = []
        for place, record in twins:
            rows = np.flatnonzero(member[place])
            fits.append((rows[rows != record], np.array([record])))
        return _train(records, fits)


def _train(records: Records, fits: Iterable[Fit]) -> FloatArray:
    """Return ln p of each predicted row, fit by fit."""
    if not JAR.exists():
        raise FileNotFoundError(f"Expected Weka's jar at {JAR}. Install it, or set WEKA_JAR.")
    asked = "".join(
        f"{' '.join(map(str, rows))};{' '.join(map(str, predicted))}\n" for rows, predicted in fits
    )
    with TemporaryDirectory() as folder:
        table = Path(folder) / "records.arff"
        table.write_text(_write_arff(records), encoding="utf-8")
        command = ["java", "-Djava.awt.headless=true", "-XX:+UseSerialGC", "-cp", str(JAR)]
        done = subprocess.run(
            [*command, str(_PROGRAM), str(table)],
            input=asked,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found = np.array([line.split() for line in done.stdout.splitlines()], np.float64)
    with np.errstate(divide="ignore"):
        return np.log(found).astype(np.float32)


def _write_arff(records: Records) -> str:
    """Return the records as Weka reads them: numbers as they are, categories by their codes."""
    lines = ["@relation records"]
    lines += [f"@attribute n{place} numeric" for place in range(records.numbers.shape[1])]
    for place, codes in enumerate(records.categories.T):
        lines.append(f"@attribute c{place} {_write_values(codes.max() + 1)}")
    lines += [f"@attribute label {_write_values(records.classes)}", "@data"]
    for numbers, codes, label in zip(
        records.numbers.tolist(), records.categories, records.labels, strict=True
    ):
        lines.append(",".join(map(str, (*numbers, *codes, label))))
    return "\n".join(lines) + "\n"


def _write_values(count: int) -> str:
    return f"{{{','.join(map(str, range(count)))}}}"
