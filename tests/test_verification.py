"""Results that can be verified: by their chain, by their units, by a signature."""

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import epsilometer as em
from epsilometer.cli.main import main
from epsilometer.core import chain
from epsilometer.core.chain import BrokenChain, check_chain
from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.verification import NotVerified, check_signature, verify

UNITS = 8


def play(runs: int, rng: np.random.Generator) -> em.Scores:
    return em.Scores(inside=rng.normal(3, 1, runs), outside=rng.normal(0, 1, runs))


GAME = """
import epsilometer as em

def play(runs, rng):
    return em.Scores(inside=rng.normal(3, 1, runs), outside=rng.normal(0, 1, runs))
"""
SUBJECT = em.Runs(play, runs=400, block=50)


def audited(out: Path, **how: Any) -> em.Audit:
    return em.audit(SUBJECT, 1.0, delta=1e-5, out=out, engine=em.InProcess(), **how)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    assert audited(tmp_path / "run").verdict == "refuted"
    return tmp_path / "run"


def call(*arguments: Any) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def lower_epsilon(run: Path) -> None:
    """As measured: ε of 2.09 became 0.01, and everybody believed it."""
    plain = json.loads((run / "result.json").read_text())
    plain["findings"][0]["bound"]["epsilon"] = 0.01
    (run / "result.json").write_text(json.dumps(plain, indent=2) + "\n")


def forge_chain(run: Path) -> None:
    """As somebody does who may read and write the whole directory."""
    from epsilometer._files import Folder

    with Folder.hold(run) as home:
        chain.write_chain(home, (run / "result.json").read_bytes())


def test_an_edited_result_is_believed_by_nobody(run: Path) -> None:
    before = (run / "result.json").read_bytes()
    lower_epsilon(run)
    with pytest.raises(UnreadableFile, match=r"result\.json was changed since"):
        em.load(run)
    with pytest.raises(UnreadableFile, match=r"result\.json was changed since"):
        em.load(run / "result.json")
    for path in (run, run / "result.json"):
        done = call("check", path)
        assert done.exit_code == 2
        assert "was changed since" in done.output
    history = em.History(run.parent)
    assert not history.entries
    assert "was changed since" in dict(history.unreadable)["run/result.json"]
    state = json.loads(call("runs", "status", run, "--json").stdout)
    assert (state["verdict"], state["changed"]) == (None, "result.json was changed since")
    assert "result.json was changed since" in call("runs", "status", run).stdout
    assert audited(run).verdict == "refuted"  # made again from the units
    assert (run / "result.json").read_bytes() == before
    assert call("check", run).exit_code == 1


def change_plan(run: Path) -> None:
    text = (run / "plan.json").read_text()
    (run / "plan.json").write_text(text.replace('"seed": 0', '"seed": 1'))


def change_shard(run: Path) -> None:
    shard = sorted((run / "shards").iterdir())[0]
    shard.write_bytes(b"0" * 64 + shard.read_bytes()[64:])


def lose_shard(run: Path) -> None:
    sorted((run / "shards").iterdir())[0].unlink()


def add_shard(run: Path) -> None:
    (run / "shards" / "00009999.shard").write_bytes(b"more")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (change_plan, r"plan\.json was changed"),
        (change_shard, r"shards/\d+\.shard was changed"),
        (lose_shard, r"shards/\d+\.shard is lost"),
        (add_shard, r"shards/00009999\.shard is new"),
        (lambda run: (run / "chain.json").unlink(), r"chain\.json is lost"),
        (lambda run: (run / "chain.json").write_text("[]"), r"chain\.json was changed"),
        (lambda run: (run / "chain.json").write_text("{"), r"chain\.json was changed"),
        (lambda run: (run / "secret").write_text("0" * 64), r"chain\.json was changed"),
        (lambda run: (run / "secret").unlink(), r"Expected a secret"),
    ],
)
def test_a_link_that_breaks_is_named(harm: Any, said: str, run: Path) -> None:
    check_chain(run)
    harm(run)
    with pytest.raises(BrokenChain, match=said):
        check_chain(run)
    with pytest.raises(UnreadableFile, match=said):
        em.load(run)


def test_a_result_alone_needs_no_chain(run: Path, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes((run / "result.json").read_bytes())
    assert em.load(tmp_path) == em.load(run)


def test_a_run_is_recomputed_from_its_units(run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert verify(run, SUBJECT) == em.load(run)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_forged_chain_does_not_fool_who_recomputes(run: Path) -> None:
    lower_epsilon(run)
    forge_chain(run)
    assert em.load(run).epsilon == 0.01
    with pytest.raises(NotVerified, match=r"result\.json has another: .*'refuted'"):
        verify(run, SUBJECT)


def test_a_forged_unit_is_named(run: Path) -> None:
    shard = sorted((run / "shards").iterdir())[0]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(bytes(data))  # its first line as it was
    check_chain(run)
    with pytest.raises(InvalidArgument, match=r"unit \d+ is missing; shards/.*checksum"):
        verify(run, SUBJECT)


def test_other_settings_are_not_verified(run: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"settings and data of the run .*runs"):
        verify(run, em.Runs(play, runs=200, block=50))


def test_a_run_that_stopped_early_or_failed_in_part_is_recomputed(tmp_path: Path) -> None:
    from epsilometer.engine.run import recompute
    from epsilometer.engine.run import run as run_job
    from tests.engine.jobs import Digest, a_plan

    for name, job in {
        "early": Digest(plan=a_plan(UNITS), limit=2.0),
        "failed": Digest(plan=a_plan(UNITS), act=_fail_third),
    }.items():
        found = run_job(job, tmp_path / name, engine=em.InProcess())
        assert recompute(job, tmp_path / name) == found


def _fail_third(unit: int) -> None:
    if unit == 3:
        raise ValueError("third")


def test_a_classifier_is_recomputed_and_nothing_is_written(tmp_path: Path) -> None:
    from sklearn.datasets import load_iris
    from sklearn.naive_bayes import GaussianNB

    quick: Any = {"skip_trend": True, "remedies": 0}
    subject = em.Classifier(GaussianNB(), *load_iris(return_X_y=True), shadows=8, **quick)
    found = em.audit(subject, out=tmp_path / "run", engine=em.InProcess())
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    assert verify(tmp_path / "run", subject) == found
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before
    other = em.Classifier(GaussianNB(), *load_iris(return_X_y=True), shadows=6, **quick)
    with pytest.raises(InvalidArgument, match="settings and data of the run"):
        verify(tmp_path / "run", other)


def test_what_is_no_run_cannot_be_recomputed(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match=r"found no plan\.json"):
        verify(tmp_path)
    saved = em.audit(em.Scores([2.0] * 90, [0.0] * 90), 1.0, delta=1e-5).save(tmp_path / "a.json")
    done = call("check", saved, "--verify")
    assert done.exit_code == 2
    assert "Expected the directory of a run" in done.output


def test_the_commands_verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "verified_game.py").write_text(GAME)
    (tmp_path / "game.toml").write_text(
        '[runs]\nplay = {function = "verified_game:play"}\nruns = 400\n'
        "[claim]\nepsilon = 1.0\ndelta = 1e-5\n"
    )
    start = ("audit", "game.toml", "--out", "run", "--quiet", "--engine", "in-process")
    done = call(*start, "--trust")
    assert done.exit_code == 1, done.output
    done = call("runs", "verify", "run", "--trust")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Verified: ")
    assert call("check", "run", "--verify", "--trust").exit_code == 1
    assert "--trust" in call("check", "run", "--verify").output
    lower_epsilon(tmp_path / "run")
    forge_chain(tmp_path / "run")
    for arguments in (("runs", "verify", "run"), ("check", "run", "--verify")):
        done = call(*arguments, "--trust")
        assert done.exit_code == 2, done.output
        assert "Expected the result that the units" in done.output


# A pair of minisign's own, made by its author: github.com/jedisct1/rust-minisign-verify.
PUBLIC = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3"
LEGACY = """untrusted comment: signature from minisign secret key
RWQf6LRCGA9i59SLOFxz6NxvASXDJeRtuZykwQepbDEGt87ig1BNpWaVWuNrm73YiIiJbq71Wi+dP9eKL8OC351vwIasSSbXxwA=
trusted comment: timestamp:1555779966\tfile:test
QtKMXWyYcwdpZAlPF7tE2ENJkRd1ujvKjlj1m9RtHTBnZPa5WKU5uWRs5GoP5M/VqE81QFuMKI5k/SfNQUaOAA==
"""


def test_a_signature_of_minisign_itself_is_verified(tmp_path: Path) -> None:
    (tmp_path / "test").write_bytes(b"test")
    (tmp_path / "test.minisig").write_text(LEGACY)
    assert check_signature(tmp_path / "test", PUBLIC) == "timestamp:1555779966\tfile:test"
    (tmp_path / "key.pub").write_text(f"untrusted comment: a key\n{PUBLIC}\n")
    check_signature(tmp_path / "test", tmp_path / "key.pub")
    (tmp_path / "test").write_bytes(b"Test")
    with pytest.raises(NotVerified, match="was changed since, or its signature is forged"):
        check_signature(tmp_path / "test", PUBLIC)


class Signer:
    """Signs as minisign does: BLAKE2b of the file, and then the signature with a comment."""

    def __init__(self, name: bytes = b"12345678") -> None:
        self.name, self.secret = name, Ed25519PrivateKey.generate()

    @property
    def public(self) -> str:
        value = self.secret.public_key().public_bytes_raw()
        return base64.b64encode(b"Ed" + self.name + value).decode()

    def sign(self, file: Path, comment: bytes = b"file:result.json") -> None:
        value = self.secret.sign(hashlib.blake2b(file.read_bytes()).digest())
        lines = [
            b"untrusted comment: by a test",
            base64.b64encode(b"ED" + self.name + value),
            b"trusted comment: " + comment,
            base64.b64encode(self.secret.sign(value + comment)),
        ]
        Path(f"{file}.minisig").write_bytes(b"\n".join(lines) + b"\n")


def test_check_asks_for_a_signature(run: Path) -> None:
    signer, other = Signer(), Signer()
    done = call("check", run, "--signed-by", signer.public)
    assert (done.exit_code, "Expected the signature in" in done.output) == (2, True)
    signer.sign(run / "result.json")
    assert call("check", run, "--signed-by", signer.public).exit_code == 1  # refuted
    assert call("check", run / "result.json", "--signed-by", signer.public).exit_code == 1
    done = call("check", run, "--signed-by", other.public)
    assert (done.exit_code, "signature is forged" in done.output) == (2, True)
    done = call("check", run, "--signed-by", Signer(b"87654321").public)
    assert (done.exit_code, "it is signed by" in done.output) == (2, True)
    lower_epsilon(run)
    forge_chain(run)  # which is no use without the key
    assert call("check", run, "--signed-by", signer.public).exit_code == 2


@pytest.mark.parametrize(
    "text", ["", "RW", "RWQ=", "RWtoo short", PUBLIC[:-4], "untrusted comment: none", "no/such"]
)
def test_what_is_no_key_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "test").write_bytes(b"test")
    (tmp_path / "test.minisig").write_text(LEGACY)
    with pytest.raises(UnreadableFile, match="public key"):
        check_signature(tmp_path / "test", text)


@pytest.mark.parametrize("cut", range(0, len(LEGACY), 40))
def test_a_signature_cut_off_or_changed_anywhere_is_refused(cut: int, tmp_path: Path) -> None:
    (tmp_path / "test").write_bytes(b"test")
    other = "B" if LEGACY[cut] == "A" else "A"
    untrusted = cut < LEGACY.index("\n")
    for text in (LEGACY[:cut], LEGACY[:cut] + other + LEGACY[cut + 1 :]):
        (tmp_path / "test.minisig").write_text(text)
        if untrusted and len(text) == len(LEGACY):
            check_signature(tmp_path / "test", PUBLIC)  # that comment says nothing
            continue
        with pytest.raises((UnreadableFile, NotVerified)):
            check_signature(tmp_path / "test", PUBLIC)


def test_a_comment_is_signed_too(tmp_path: Path) -> None:
    (tmp_path / "test").write_bytes(b"test")
    (tmp_path / "test.minisig").write_text(LEGACY.replace("file:test", "file:best"))
    with pytest.raises(NotVerified):
        check_signature(tmp_path / "test", PUBLIC)


def test_without_the_package_its_extra_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    done = call("check", run, "--signed-by", PUBLIC)
    assert done.exit_code == 2
    assert "epsilometer[signing]" in done.output
    assert os.path.exists(run)
