"""Files of one project: what imports mean, what runs together, what is kept for later."""

import json
import os
import sys
from pathlib import Path

import pytest

from epsilometer._files import CACHE_FOLDER
from epsilometer.lint import RULES, lint, rules
from epsilometer.lint import run as running
from epsilometer.lint.components import split_components
from epsilometer.lint.run import lint_sources
from epsilometer.lint.sources import Source

LOADER = """from torch.utils.data import DataLoader


def make(d):
    return DataLoader(d, shuffle=True)
"""
USER = """from opacus.accountants import RDPAccountant
{}


def main(d):
    return RDPAccountant(), {}(d)
"""


def name(path: str) -> str:
    return path.replace("__", "/").replace("/init/", "/__init__") + ".py"


def found(**files: str) -> list[tuple[str, str]]:
    sources = [Source(name(path), text) for path, text in files.items()]
    return [(each.path, each.rule_id) for each in lint_sources(sources).findings]


@pytest.mark.parametrize(
    ("path", "imported", "called"),
    [
        ("data", "from data import make", "make"),
        ("data", "import data", "data.make"),
        ("data", "import data as loading", "loading.make"),
        ("data", "from data import *", "make"),
        ("pkg__data", "import pkg.data", "pkg.data.make"),
        ("pkg__data", "from pkg import data", "data.make"),
        ("pkg__data", "from pkg.data import make as build", "build"),
        ("src__pkg__data", "from pkg.data import make", "make"),
    ],
)
def test_a_loader_is_found_through_every_import(path: str, imported: str, called: str) -> None:
    files = {path: LOADER, "train": USER.format(imported, called)}
    assert found(**files) == [(name(path), "SHUF002")]


@pytest.mark.parametrize("level", [".", ".."])
def test_relative_imports_are_followed(level: str) -> None:
    place = "a__data" if level == ".." else "a__b__data"
    user = USER.format(f"from {level}data import make", "make")
    assert len(found(**{place: LOADER, "a__b__train": user})) == 1


def test_a_name_that_is_exported_again_is_followed() -> None:
    files = {
        "pkg__inner": LOADER,
        "pkg__init__": "from .inner import make\n",
        "train": USER.format("from pkg import make", "make"),
    }
    assert found(**files) == [("pkg/inner.py", "SHUF002")]


def test_files_that_do_not_know_each_other_are_not_joined() -> None:
    user = USER.format("from elsewhere import make", "make")
    assert found(data=LOADER, train=user) == []
    parts = split_components([Source("data.py", LOADER), Source("train.py", user)])
    assert [len(part) for part in parts] == [1, 1]


def test_circles_of_imports_and_bases_end() -> None:
    files = {
        "a": "from b import B\nfrom opacus.accountants import RDPAccountant\n\n\nclass A(B):\n"
        "    x = RDPAccountant()\n",
        "b": "from a import A\nfrom c import *\n\n\nclass B(A):\n    y = A.x\n",
        "c": "from b import *\nfrom a import *\nz = z\nq = r\nr = q\n",
    }
    assert found(**files) == []


def test_work_is_linear_in_the_number_of_files() -> None:
    def work(times: int) -> int:
        sources = []
        for number in range(times):
            sources.append(Source(f"data{number}.py", LOADER))
            imported = f"from data{number} import make\nimport train{max(number - 1, 0)}"
            sources.append(Source(f"train{number}.py", USER.format(imported, "make")))
        calls, before = 0, sys.getprofile()

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        try:
            report = lint_sources(sources)
        finally:
            sys.setprofile(before)
        assert len(report.findings) == times
        return calls

    lint_sources([])
    assert work(40) < 2.2 * work(20)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "cache"))
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "data.py").write_text(LOADER)
    (folder / "train.py").write_text(USER.format("from data import make", "make"))
    (folder / "alone.py").write_text("engine.make_private(poisson_sampling=False)\n")
    return folder


def test_only_what_changed_is_checked_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[list[str]] = []
    real = running._check_part

    def watch(sources: list[Source]) -> object:
        checked.append(sorted(Path(source.path).name for source in sources))
        return real(sources)

    monkeypatch.setattr(running, "_check_part", watch)
    first = lint([project], cached=True)
    assert sorted(checked) == [["alone.py"], ["data.py", "train.py"]]
    assert lint([project], cached=True) == first
    assert len(checked) == 2
    (project / "data.py").write_text(LOADER.replace("shuffle=True", "shuffle=shuffle"))
    second = lint([project], cached=True)
    assert checked[2:] == [["data.py", "train.py"]]
    assert {each.rule_id for each in first.findings} == {"SHUF001", "SHUF002"}
    assert {each.rule_id for each in second.findings} == {"SHUF001"}
    assert second.understood != first.understood


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b'{"a": 3}', b"\xff"])
def test_a_damaged_cache_is_made_again(project: Path, content: bytes) -> None:
    first = lint([project], cached=True)
    (file,) = (project.parent / "cache").iterdir()
    file.write_bytes(content)
    assert lint([project], cached=True) == first
    assert file.read_bytes() != content


def test_a_cache_that_others_can_write_is_not_believed(project: Path) -> None:
    first = lint([project], cached=True)
    os.chmod(project.parent / "cache", 0o777)
    (file,) = (project.parent / "cache").iterdir()
    file.write_text("{}")
    assert lint([project], cached=True) == first
    assert file.read_text() == "{}"


def test_what_was_understood_is_said_with_its_place() -> None:
    report = lint_sources(
        [Source("data.py", LOADER), Source("train.py", USER.format("import data", "data.make"))]
    )
    assert report.understood == (
        rules.Understood(path="data.py", samplers=("DataLoader: shuffled (line 5)",)),
        rules.Understood(
            path="train.py", libraries=("opacus",), accountants=("RDPAccountant (line 6)",)
        ),
    )
    assert report.blind == ""
    assert lint_sources([Source("a.py", "x = 1")]).blind == "no known DP library: nothing checked"
    unjudged = [Source("a.py", "import opacus.validators\n" + LOADER)]
    assert lint_sources(unjudged).blind.startswith("no accountant understood")


BOOKS = """from opacus.accountants import RDPAccountant
accountant = RDPAccountant()
"""


@pytest.mark.parametrize(
    "loader",
    [
        "DataLoader(data, shuffle=settings.shuffle)",
        "DataLoader(data, batch_sampler=Drawn(data))",
        "DataLoader(data, **settings)",
        "DataLoader(data_test, shuffle=False)",
        "open_batches(data)",
    ],
)
def test_a_sampler_that_is_not_understood_is_no_all_clear(loader: str) -> None:
    program = f"{BOOKS}from torch.utils.data import DataLoader\nfor x in {loader}:\n    step(x)\n"
    fine = RULES["SHUF008"].right
    report = lint_sources([Source("a/fine.py", fine), Source("b/train.py", program)])
    assert report.findings == ()
    assert report.blind.startswith("no sampler understood in b/train.py: ")
    assert [each.path for each in report.understood if each.blind] == ["b/train.py"]
    drawn = program + "chosen = rng.random(1000) < 0.01\n"
    assert lint_sources([Source("b/train.py", drawn)]).blind == ""


def test_many_files_that_are_not_understood_are_counted() -> None:
    report = lint_sources(Source(f"{number}.py", BOOKS) for number in range(5))
    assert report.blind.startswith("no sampler understood in 0.py, 1.py, 2.py and 2 more: ")


def test_what_is_cut_by_hand_is_understood() -> None:
    text = """import torch
from opacus.accountants import RDPAccountant
accountant = RDPAccountant()
for epoch in range(9):
    for chosen in torch.randperm(99).{}:
        optimizer.step()
"""
    for part in ("split(9)", "chunk(11)", "reshape(11, 9)", "view(11, 9)"):
        report = lint_sources([Source("a.py", text.format(part))])
        assert [each.rule_id for each in report.findings] == ["SHUF007"]
        assert report.understood[0].samplers == ("permutation: shuffled (line 5)",)
        assert report.blind == ""


def test_places_elsewhere_are_named_by_file_and_cell(tmp_path: Path) -> None:
    code = ["import opacus", "accountant = opacus.accountants.RDPAccountant()", LOADER]
    cells = [{"cell_type": "code", "source": each} for each in code]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}), "utf-8")
    report = lint([tmp_path])
    assert report.findings[0].detail.startswith("RDPAccountant (cell 2 line 1)")
    assert report.understood[0].accountants == ("RDPAccountant (cell 2 line 1)",)
    assert report.understood[0].samplers == ("DataLoader: shuffled (cell 3 line 5)",)
    net = "import torch\n\ndef make():\n    return torch.nn.BatchNorm1d(3)\n"
    train = "import fastDP\nfrom net import make\nfastDP.PrivacyEngine(make())\n"
    (found,) = lint_sources([Source("net.py", net), Source("train.py", train)]).findings
    assert "PrivacyEngine (train.py line 3)" in found.detail


OPTIONS = """from opacus.accountants import RDPAccountant
from torch.utils.data import DataLoader
{}
accountant = RDPAccountant()
"""


@pytest.mark.parametrize(
    ("lines", "shuffled"),
    [
        ("o = {}\no['shuffle'] = True\nl = DataLoader(d, **o)", True),
        ("o = dict(num_workers=2)\no.update(shuffle=True)\nl = DataLoader(d, **o)", True),
        ("o = {'shuffle': True}\no['shuffle'] = ask()\nl = DataLoader(d, **o)", False),
        ("o = {'shuffle': True}\no.pop('shuffle')\nl = DataLoader(d, **o)", False),
        ("o = {'shuffle': True}\no.update(ask())\nl = DataLoader(d, **o)", False),
        ("o = {'shuffle': True}\ndef f():\n  o[1] = 2\nl = DataLoader(d, **o)", False),
        ("o = {'a': 1}\nl = DataLoader(d, **o)\no['shuffle'] = True", False),
        ("l = DataLoader(d, shuffle=1)", True),
        ("l = DataLoader(d, shuffle='train' != 'test')", True),
        ("l = DataLoader(d, shuffle=mode in ('train', 'tune'))", False),
        ("mode = 'tune'\nl = DataLoader(d, shuffle=mode in ('train', 'tune'))", True),
        ("mode = 'tune'\nl = DataLoader(d, shuffle=True if mode == 'val' else False)", False),
        ("mode = 'tune'\nl = DataLoader(d, shuffle=mode not in ('val',))", True),
        ("l = [DataLoader(d, shuffle=f) for f in (False, True)]", True),
        ("for part in ('dev', 'test'):\n  l = DataLoader(d[part], shuffle=True)", False),
        ("class L(DataLoader):\n  def __iter__(self): pass\nl = L(d, shuffle=True)", False),
    ],
)
def test_values_are_followed_to_what_shuffles(lines: str, shuffled: bool) -> None:
    report = lint_sources([Source("a.py", OPTIONS.format(lines))])
    assert [each.rule_id for each in report.findings] == ["SHUF002"] * shuffled


STEPS = """import dp_accounting
event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
chosen = rng.random(9) < 0.01
{}
"""


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ("for i in range(500):\n  optimizer.step()\naccountant.compose(event, 400)", True),
        ("for i in range(500):\n  optimizer.step()\naccountant.compose(event, 500)", False),
        ("for i in range(500):\n  if i % 2:\n    optimizer.step()\nb.compose(event, 400)", False),
        ("for i in range(500):\n  optimizer.step()\nb.compose(e, 400)\nb.compose(e, 100)", False),
        ("for i in range(500):\n  optimizer.step()\nfor e in x:\n  b.compose(event, 50)", False),
        ("for i in range(500):\n  metric.update(i)\naccountant.compose(event, 400)", False),
        ("for client in range(500):\n  local_step()\naccountant.compose(event, 400)", False),
    ],
)
def test_steps_are_compared_where_one_number_is_booked(lines: str, wrong: bool) -> None:
    report = lint_sources([Source("a.py", STEPS.format(lines))])
    assert [each.rule_id for each in report.findings] == ["BOOK004"] * wrong


ENGINE = """from opacus import PrivacyEngine
from torch.utils.data import DataLoader
engine = PrivacyEngine()
loader = DataLoader(data)
{}:
    model, optimizer, loader = engine.make_private({})
{}
    loader = DataLoader(data)
for x in loader:
    optimizer.step()
print(engine.get_epsilon(1e-5))
"""


def test_a_loader_replaces_the_private_one_unless_it_is_its_alternative() -> None:
    given = "module=model, data_loader=loader"
    for start, then, rules_found in (
        ("if private", "else:", []),
        ("with lock", "if True:", ["SHUF008"]),
    ):
        report = lint_sources([Source("a.py", ENGINE.format(start, given, then))])
        assert [each.rule_id for each in report.findings] == rules_found


@pytest.mark.parametrize("given", ["poisson_sampling=ask()", "**ask()"])
def test_an_engine_of_which_nothing_is_known_is_no_all_clear(given: str) -> None:
    report = lint_sources([Source("a.py", ENGINE.format("if private", given, "else:"))])
    assert "make_private: unknown (line 6)" in report.understood[0].samplers
    assert report.findings == ()


RESTORED = """from fastDP import PrivacyEngine


def {}(model, saved):
    engine = PrivacyEngine(model, batch_size=9, sample_size=99)
    engine.{}(saved)
    return engine
"""


@pytest.mark.parametrize(
    ("name", "method", "rules_found"),
    [
        ("load", "load_state_dict", []),
        ("load", "attach", ["SHUF002"]),
        ("train", "load_state_dict", ["SHUF002"]),
    ],
)
def test_books_that_are_loaded_are_not_those_of_all_who_load(
    name: str, method: str, rules_found: list[str]
) -> None:
    user = f"from books import {name}\n{LOADER}\n\ndef show(d):\n    return {name}(make(d), d)\n"
    sources = [Source("books.py", RESTORED.format(name, method)), Source("use.py", user)]
    assert [each.rule_id for each in lint_sources(sources).findings] == rules_found


def test_what_is_read_once_is_no_batch() -> None:
    loader = "DataLoader(data, batch_size=10_000, shuffle=True)"
    for text, rules_found in (
        (f"x, y = next(iter({loader}))", []),
        (f"for i in s:\n    x, y = next(iter({loader}))\n    optimizer.step()", ["SHUF002"]),
    ):
        report = lint_sources([Source("a.py", OPTIONS.format(text))])
        assert [each.rule_id for each in report.findings] == rules_found


@pytest.mark.parametrize("steps", [3, 9])
def test_programs_far_above_say_nothing_of_a_checkpoint(steps: int) -> None:
    calls = "".join(f"def f{i + 1}(o, s):\n    f{i}(o, s)\n\n\n" for i in range(steps))
    text = (
        "from opacus import PrivacyEngine\n\n\n"
        f"def f0(optimizer, saved):\n    optimizer.load_state_dict(saved)\n\n\n{calls}"
        f"def main(o, s):\n    PrivacyEngine().make_private(optimizer=o)\n    f{steps}(o, s)\n"
    )
    near, far = text.split("\n\n\ndef main")
    sources = [
        Source("near.py", near.replace("from opacus import PrivacyEngine", "x = 1")),
        Source(
            "main.py", "from opacus import PrivacyEngine\nfrom near import *\n\n\ndef main" + far
        ),
    ]
    found = [each.rule_id for each in lint_sources(sources).findings]
    assert found == (["BOOK001"] if steps < 4 else [])


def test_keras_that_batches_by_itself_is_understood() -> None:
    text = "import tensorflow as tf\nimport tensorflow_privacy\nmodel.fit(x, y, batch_size=9{})\n"
    for option, how in (
        ("", "shuffled"),
        (", shuffle=False", "in order"),
        (", shuffle=s", "unknown"),
    ):
        (file,) = lint_sources([Source("a.py", text.format(option))]).understood
        assert file.samplers == (f"fit(): {how} (line 3)",)
