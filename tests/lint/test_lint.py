"""What a finding says, what is left out, and what cannot be read."""

import codecs
import json
import os
import re
from pathlib import Path

import pytest

from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.lint import RULES, Finding, lint, lint_source, sources

BESIDE = "from torch.utils.data import DataLoader\nfrom opacus.accountants import RDPAccountant\n"
OFF = "engine.make_private(noise_multiplier=1.0, poisson_sampling=False)"
ENGINE = "from opacus import PrivacyEngine\nengine = PrivacyEngine()\n"


def found(text: str) -> list[tuple[str, int]]:
    report = lint_source(text)
    assert report.problems == ()
    return [(finding.rule_id, finding.line) for finding in report.findings]


def only(text: str) -> Finding:
    (finding,) = lint_source(text).findings
    return finding


def test_the_command_has_every_number_of_the_source() -> None:
    finding = only(
        """
import tensorflow as tf
import tensorflow_privacy as tfp
N, EPOCHS = 60_000, 15
BATCH = 2 ** 8 if False else 256
ds = ds.shuffle(N).batch(256)
eps = tfp.compute_dp_sgd_privacy(N, 256, noise_multiplier=1.1, epochs=EPOCHS, delta=1e-5)
"""
    )
    assert finding.command == (
        "epsilometer shuffle --noise-multiplier 1.1 --dataset-size 60000 --batch-size 256"
        " --epochs 15 --delta 1e-5"
    )
    assert finding.unknown == ()


def test_the_command_has_placeholders_for_what_is_unknown() -> None:
    finding = only(ENGINE + "engine.make_private(noise_multiplier=s, poisson_sampling=False)")
    assert finding.command == (
        "epsilometer shuffle --noise-multiplier SIGMA --dataset-size N --batch-size B"
        " --epochs EPOCHS --delta DELTA"
    )
    assert finding.unknown == ("SIGMA", "N", "B", "EPOCHS", "DELTA")


@pytest.mark.parametrize(
    ("lines", "numbers"),
    [
        ("e = PrivacyEngine(m, batch_size=1000, epochs=5)\nl = DataLoader(d, 50, shuffle=True)",
         "--batch-size 1000 --epochs 5"),
        ("e = PrivacyEngine(m, sample_rate=1 / len(d))\nl = DataLoader(d, shuffle=True)",
         "--batch-size B --epochs EPOCHS"),
        ("e = PrivacyEngine(m, batch_size=9)\na = TrainingArguments('o', num_train_epochs=4)\n"
         "Trainer(train_dataset=d)", "--batch-size 9 --epochs 4"),
        ("e = PrivacyEngine(m, batch_size=9)\nTrainer(train_dataset=d)\nb.compose(e, 700)",
         "--batch-size 9 --steps 700"),
    ],
)  # fmt: skip
def test_the_command_has_the_numbers_of_a_step(lines: str, numbers: str) -> None:
    head = (
        "from fastDP import PrivacyEngine\nfrom torch.utils.data import DataLoader\n"
        "from transformers import Trainer, TrainingArguments\n"
    )
    (found, *_) = lint_source(head + lines).findings
    assert numbers in found.command


def test_two_values_in_a_place_are_none() -> None:
    text = ENGINE + OFF + "\nengine.get_epsilon(1e-5)\nengine.get_epsilon(1e-6)\n"
    assert "--delta DELTA" in only(text).command
    assert "--delta 1e-5" in only(text.replace("1e-6", "0.00001")).command


def test_the_nearest_number_wins() -> None:
    text = f"""
BATCH_SIZE = 7
{BESIDE}
def other():
    return DataLoader(test_set, batch_size=1000)
def train():
    accountant = RDPAccountant()
    for epoch in range(3):
        for x in DataLoader(records, batch_size=32, shuffle=True):
            accountant.step(noise_multiplier=0.5, sample_rate=0.1)
"""
    assert (
        "--noise-multiplier 0.5 --dataset-size N --batch-size 32 --epochs 3" in only(text).command
    )


def test_steps_stand_in_for_epochs() -> None:
    text = """
import dp_accounting as dpa
from torch.utils.data import DataLoader
event = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(64 / 6400, dpa.GaussianDpEvent(2)), 500)
loader = DataLoader(records, shuffle=True)
"""
    assert only(text).command == (
        "epsilometer shuffle --noise-multiplier 2 --dataset-size 6400 --batch-size 64"
        " --steps 500 --delta DELTA"
    )


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        (ENGINE + OFF, "warning"),
        (ENGINE + OFF + "\nprint(engine.get_epsilon(1e-5))", "error"),
        (ENGINE + OFF.replace("make_private", "make_private_with_epsilon"), "error"),
        (BESIDE + "RDPAccountant()\nDataLoader(d, shuffle=True)", "error"),
        (BESIDE + "def f():\n RDPAccountant()\n DataLoader(d, shuffle=True)", "error"),
        (BESIDE + "def f():\n RDPAccountant()\nDataLoader(d, shuffle=True)", "error"),
        (
            BESIDE + "def f():\n RDPAccountant()\ndef g():\n DataLoader(d, shuffle=True)",
            "warning",
        ),
        (
            BESIDE + "class F:\n def a(self): RDPAccountant()\n"
            " def b(self): DataLoader(d, shuffle=True)",
            "error",
        ),
        (  # noise was calibrated to an ε, which is as good as asking for it
            ENGINE + OFF + "\nfrom opacus.accountants.utils import get_noise_multiplier\n"
            "sigma = get_noise_multiplier(target_epsilon=8)",
            "error",
        ),
        (  # the optimizer is nearer than the ε, which is computed all the same
            """
import dp_accounting
import tensorflow as tf
from tensorflow_privacy import DPKerasSGDOptimizer
def spent(steps):
    return dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
def main(model, x, y):
    model.compile(optimizer=DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0))
    model.fit(x, y, batch_size=250)
    print(spent(1000))
""",
            "error",
        ),
        (  # new books in every epoch: where nobody asks for an ε, nothing is reported yet
            "from opacus import PrivacyEngine\nfor epoch in range(3):\n"
            " PrivacyEngine().make_private(module=net, noise_multiplier=1.0)",
            "warning",
        ),
    ],
)
def test_an_error_is_an_epsilon_that_is_reported_there(text: str, severity: str) -> None:
    assert only(text).severity == severity


def test_a_finding_says_what_it_stands_beside() -> None:
    assert (
        "RDPAccountant (line 3)" in only(BESIDE + "RDPAccountant()\nDataLoader(d, 1, True)").detail
    )


@pytest.mark.parametrize(
    ("comment", "rules"),
    [
        ("# epsilometer: ignore[SHUF001]", []),
        ("# epsilometer: ignore[SHUF002,SHUF001]", []),
        ("# epsilometer: ignore", []),
        ("#epsilometer:ignore[SHUF001] because", []),
        ("# noqa  # epsilometer: ignore[SHUF001]", []),
        ("# epsilometer: ignore[SHUF002]", ["SHUF001"]),
        ("# epsilometer: ignore[]", ["SHUF001"]),
        ("# ignore[SHUF001]", ["SHUF001"]),
        ("; s = '# epsilometer: ignore'", ["SHUF001"]),
        ("\n# epsilometer: ignore", ["SHUF001"]),
    ],
)
def test_a_comment_switches_a_rule_off_on_its_line(comment: str, rules: list[str]) -> None:
    text = f"{ENGINE}{OFF}  {comment}\n"
    assert [rule for rule, _ in found(text)] == rules


@pytest.mark.parametrize(
    "imports",
    [
        "from torch.utils.data import DataLoader as L",
        "import torch\nL = torch.utils.data.DataLoader",
        "import torch as t\nL = t.utils.data.DataLoader",
        "import torch.utils.data as d\nL = d.DataLoader",
        "from torch.utils import data\nL = data.dataloader.DataLoader",
        "from torch.utils.data import *\nL = DataLoader",
        "from functools import partial\nfrom torch.utils.data import DataLoader\n"
        "L = partial(DataLoader)",
    ],
)
def test_a_loader_is_known_by_every_name(imports: str) -> None:
    text = f"{imports}\nimport opacus\nopacus.accountants.RDPAccountant()\nL(d, shuffle=True)"
    assert [rule for rule, _ in found(text)] == ["SHUF002"]


@pytest.mark.parametrize(
    "imports",
    [
        "from mine import DataLoader as L",
        "from .torch.utils.data import DataLoader as L",
        "from mine import *\nL = DataLoader",
        "from torch.utils.data import DataLoader as L\nclass L: pass",
        "L = L",
        "L = M\nM = L",
    ],
)
def test_a_loader_of_somebody_else_is_not(imports: str) -> None:
    text = f"{imports}\nimport opacus\nopacus.accountants.RDPAccountant()\nL(d, shuffle=True)"
    assert found(text) == []


def test_columns_are_characters_from_one() -> None:
    finding = only(ENGINE + "ε = 'δδδ'; " + OFF)
    line = (ENGINE + "ε = 'δδδ'; " + OFF).splitlines()[2]
    assert line[finding.column - 1 :].startswith("False")


def test_rules_say_all_there_is_to_say() -> None:
    for key, rule in RULES.items():
        assert key == rule.id
        assert re.fullmatch(r"(SHUF|BOOK|NOIS|CLIP|MODL|DATA)\d{3}", key)
        assert re.fullmatch(r"[a-z]+(-[a-z]+)+", rule.name)
        assert rule.title
        assert rule.why.endswith(".")
        assert rule.remedy.endswith(".")


def test_the_table_of_the_documentation_is_that_of_the_rules() -> None:
    page = (Path(__file__).parents[2] / "docs" / "lint.md").read_text("utf-8")
    rows = re.findall(r"^\| `([A-Z]{4}\d+)` \| `([^`]+)` \| (.+?) \|$", page, re.M)
    assert rows == [(rule.id, rule.name, rule.title) for rule in RULES.values()]


def test_folders_are_searched_except_for_those_of_others(tmp_path: Path) -> None:
    folders = ("", "a/b", ".venv/lib", ".git", "build", "node_modules/x", "a/.hidden")
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "train.py").write_text(ENGINE + OFF, "utf-8")
    (tmp_path / "a" / "readme.txt").write_text(OFF, "utf-8")
    report = lint([tmp_path])
    paths = [Path(finding.path).relative_to(tmp_path).as_posix() for finding in report.findings]
    assert paths == ["train.py", "a/b/train.py"]
    assert len(lint([tmp_path / ".git", tmp_path / ".git" / "train.py"]).findings) == 1
    assert lint([tmp_path], exclude=("b",)).files == 1
    assert lint([tmp_path], exclude=("a/*.py", "nothing")).files == 1


def test_a_file_named_outright_is_read_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(ENGINE + OFF, "utf-8")
    assert len(lint([tmp_path / "script"]).findings) == 1


def test_paths_that_are_not_there_are_told(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="nothing"):
        lint([tmp_path / "nothing"])
    with pytest.raises(UnreadableFile, match="found none"):
        lint([tmp_path / ("x" * 5000)])
    with pytest.raises(InvalidArgument, match="Expected Python files"):
        lint([tmp_path])


def test_folders_that_cannot_be_read_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "train.py").write_text(ENGINE + OFF, "utf-8")
    real = os.scandir

    def scandir(path: str) -> object:  # root may read everything, so that modes prove nothing
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    report = lint([tmp_path])
    assert len(report.findings) == 1
    (problem,) = report.problems
    assert problem.path.endswith("closed")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"import opacus\nprint 'x'\n", "Missing parentheses"),
        (b"import opacus\0", "null bytes"),
        (b"import opacus\nx = '\xff'", "utf-8"),
        (b"# coding: no-such\nimport opacus", "no-such"),
        ("import opacus".encode("utf-16"), "null bytes"),
        (b"import opacus\nx = " + b"-" * 20_000 + b"1", "deeply"),
        (b"import opacus\nx = a" + b".b()" * 100_000, "deeply"),
        (b"import opacus\nx = " + b"(" * 300, "nested"),
        (b"#opacus" + b"\n" * sources.LARGEST, "5 MiB"),
    ],
)
def test_what_cannot_be_parsed_is_told_and_hides_nothing(
    content: bytes, part: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.py").write_bytes(content)
    (tmp_path / "train.py").write_text(ENGINE + OFF, "utf-8")
    report = lint([tmp_path])
    (problem,) = report.problems
    assert problem.path.endswith("bad.py")
    assert part in problem.message.replace("UTF", "utf")
    assert problem.line is None or problem.line > 0
    assert len(report.findings) == 1


@pytest.mark.parametrize(
    "content",
    [
        codecs.BOM_UTF8 + (ENGINE + OFF).encode(),
        ("# coding: latin-1\n# \xe9\n" + ENGINE + OFF).encode("latin-1"),
        (ENGINE + OFF).replace("\n", "\r\n").encode(),
        (ENGINE + OFF).replace("\n", "\r").encode(),
        (ENGINE + "\x0c\n" + OFF).encode(),
        (ENGINE + "x = '\\d'\n" + OFF).encode(),  # warns when compiled
    ],
)
def test_encodings_and_line_ends_do_not_matter(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(content)
    report = lint([tmp_path])
    assert [finding.rule_id for finding in report.findings] == ["SHUF001"]
    assert report.problems == ()


def test_links_pipes_and_loops_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENGINE + OFF, "utf-8")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "self.py").symlink_to("self.py")
    (tmp_path / "gone.py").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.py")
    report = lint([tmp_path])
    assert len(report.findings) == 1
    told = [Path(problem.path).name for problem in report.problems]
    assert told == ["gone.py", "pipe.py", "self.py"]


def test_deep_and_long_code_is_checked() -> None:
    chain = "tf" + ".map(f)" * 200 + ".shuffle(9).batch(3)"
    nested = "".join(" " * depth + "if x:\n" for depth in range(90)) + " " * 90 + OFF + "\n"
    loaders = "".join(f"l{n} = DataLoader(d, shuffle=True)\n" for n in range(500))
    head = BESIDE + "import tensorflow as tf\nRDPAccountant()\n"
    assert len(found(f"{head}x = {chain}\n{loaders}")) == 501
    assert [rule for rule, _ in found(ENGINE + nested)] == ["SHUF001"]


def notebook(*cells: str) -> str:
    rows = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": OFF}, *rows]})


def test_notebooks_are_read_cell_by_cell(tmp_path: Path) -> None:
    path = tmp_path / "train.ipynb"
    cells = ("%pip install x\n" + ENGINE, "%%bash\n" + OFF, "print 'x'", "!ls\n%time f()\n" + OFF)
    path.write_text(notebook(*cells), "utf-8")
    report = lint([tmp_path])
    (finding,) = report.findings
    assert (finding.cell, finding.line, finding.rule_id) == (4, 3, "SHUF001")
    (problem,) = report.problems
    assert problem.cell == 3


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"cells": [1]}', "[" * 100_000])
def test_notebooks_that_are_none_are_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.ipynb").write_text(text, "utf-8")
    (problem,) = lint([tmp_path]).problems
    assert "Not a notebook" in problem.message
