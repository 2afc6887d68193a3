"""Everything that can be added is added from outside: one line of metadata, used by commands."""

import json
from pathlib import Path

from tests.extension.conftest import Call

SCORES = "score,member\n" + "".join(f"{5 * (i % 2) + i / 100},{i % 2}\n" for i in range(100))

ESTIMATOR = """
from dataclasses import replace

from epsilometer.stats.estimators import clopper_pearson

def find_half(observed, **options):
    found = clopper_pearson.METHOD.find(observed, **options)
    return replace(found, epsilon=found.epsilon / 2)

HALF = replace(clopper_pearson.METHOD, find=find_half, guarantees="Half of what is proved.")
"""


def test_an_estimator(call_with: Call, tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_text(SCORES)
    estimate = ("estimate", "scores.csv", "--delta", "1e-5", "--json", "--method")
    entry = "estimators: half = theirs:HALF"
    done = call_with(ESTIMATOR, entry, *estimate, "half", "--also", "clopper_pearson")
    assert done.returncode == 0, done.stderr
    (view,) = json.loads(done.stdout)["findings"]
    assert view["bound"]["method"] == "half"
    (ours,) = view["also"]
    assert view["bound"]["epsilon"] == ours["epsilon"] / 2 > 0


READER = """
from pathlib import Path

import numpy as np

from epsilometer.files.readers import Column, Content

def open_lines(path):
    rows = np.array([line.split() for line in Path(path).read_text().splitlines()], float)
    def read(places=None):
        return [Column("score", rows[:, 0]), Column("member", rows[:, 1])]
    return Content(names=("score", "member"), read=read)
"""


def test_a_reader(call_with: Call, tmp_path: Path) -> None:
    lines = SCORES.replace(",", " ").splitlines()[1:]
    (tmp_path / "scores.txt").write_text("\n".join(lines))
    estimate = ("estimate", "scores.txt", "--delta", "1e-5", "--json")
    done = call_with(READER, "readers: txt = theirs:open_lines", *estimate)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["epsilon"] > 1


SUBJECT = """
from dataclasses import dataclass

import numpy as np

from epsilometer.core.audit import Audit
from epsilometer.core.scores import Scores
from epsilometer.stats.score_finding import measure_scores

@dataclass(frozen=True)
class Shift:
    by: float
    runs: int = 500

SUBJECTS = (Shift,)

def run_audit(subject, request):
    rng = np.random.default_rng(request.seed)
    scores = Scores(rng.normal(subject.by, 1, subject.runs), rng.normal(0, 1, subject.runs))
    finding = measure_scores(
        scores, delta=request.known_delta, claim=request.claim,
        confidence=request.confidence, seed=request.seed,
    )
    return Audit(
        subject="a shift", claim=request.claim, findings=(finding,),
        provenance=request.make_provenance(subject),
    )
"""


def test_an_audit_subject(call_with: Call, tmp_path: Path) -> None:
    settings = "[shift]\nby = 3.0\n\n[claim]\nepsilon = 0.5\ndelta = 1e-5\n"
    (tmp_path / "shift.toml").write_text(settings)
    done = call_with(SUBJECT, "subjects: Shift = theirs", "audit", "shift.toml", "--json")
    assert done.returncode == 1, done.stderr
    audit = json.loads(done.stdout)
    assert audit["verdict"] == "refuted"
    assert audit["provenance"]["settings"] == {"by": 3.0, "runs": 500}


ENGINE = """
from pathlib import Path

from epsilometer.engine.engines import InProcess

def make_engine(workers, address):
    Path("used.txt").write_text(str(workers))
    return InProcess()
"""


def test_an_engine(call_with: Call, tmp_path: Path) -> None:
    shuffle = ("shuffle", "--noise-multiplier", "1", "--steps", "20", "--observations", "2000")
    entry = "engines: theirs = theirs:make_engine"
    done = call_with(ENGINE, entry, *shuffle, "--engine", "theirs", "--workers", "3", "--json")
    assert done.returncode in (0, 1, 4), done.stderr
    assert json.loads(done.stdout)["epsilon"] >= 0
    assert (tmp_path / "used.txt").read_text() == "3"
