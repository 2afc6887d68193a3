"""``epsilometer shuffle``: its example, its samplers and sweeps, and calls that are wrong."""

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from epsilometer import Audit
from epsilometer.accounting.shuffle import shuffle_epsilon
from epsilometer.audits.shuffling import subject as shuffling
from epsilometer.cli.main import main
from epsilometer.core import judge
from epsilometer.core.serialisation import from_json
from tests.cli.calls import call
from tests.cli.described import check_replay

HEADER = "name,noise_multiplier,steps,epochs,delta"
QUICK = ("--noise-multiplier", 1, "--observations", 400)
PLAYED = ("--noise-multiplier", 1, "--delta", "1e-5", "--observations", 2000)


def shuffle(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["shuffle", *(str(argument) for argument in arguments)])


@pytest.fixture
def unsearched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise that is needed takes half of the time, and most tests do not look at it."""
    monkeypatch.setattr(shuffling, "shuffle_noise", lambda **_: 2.0)
    monkeypatch.setattr(shuffling, "sufficient_noise", lambda **_: 3.0)


def refused(done: Result) -> str:
    """Exit code 2 and one line that says why; returns it."""
    assert done.exit_code == 2, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert "Traceback" not in done.output
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    said = [i for i, line in enumerate(lines) if line.startswith("Error: ")]
    assert said == [len(lines) - 1]
    return lines[-1]


def audited(done: Result) -> Audit:
    return from_json(done.stdout)


@pytest.mark.slow
def test_the_example() -> None:
    done = shuffle(
        "--noise-multiplier", 1, "--steps", 100, "--delta", "1e-5", "--observations", 4000, "-v"
    )
    assert done.exit_code == 1, done.output
    text = " ".join(done.stdout.split())
    assert "You report ε = 0.718 (Poisson: 0.72)" in text
    assert "between 4.06 (exact for one pair of datasets) and 4.38 (proved" in text
    assert "Published lower bound: 4.06" in text


def test_the_answer_is_in_words(tmp_path: Path, unsearched: None) -> None:
    page = tmp_path / "page.html"
    done = shuffle(*PLAYED, "--dataset-size", 1050, "--batch-size", 50, "--html", page, "-v")
    assert done.exit_code == 1, done.output
    text = " ".join(done.stdout.split())
    for part in (
        "You report ε = ",
        "the mechanism's ε is between",
        "(proved: known batches)",
        "2,000 simulated trials prove ε ≥",
        "noise of 2.000 is necessary and 3.000 is sufficient",
        "use a noise multiplier of at least",
        "BallsInBins",
        "Published lower bound",
    ):
        assert part in text
    assert "21 steps" in text
    assert "at least" in page.read_text("utf-8")


def test_check_judges_as_the_command_did(tmp_path: Path, unsearched: None) -> None:
    """``check`` once looked at the attack's bound alone, and passed what was computed to fall."""
    file = tmp_path / "sh.json"
    done = shuffle(*PLAYED, "--steps", 100, "--claim", 3.5, "--json")
    file.write_text(done.stdout, "utf-8")
    found = audited(done)
    assert found.bounds[0].epsilon < 3.5 < found.epsilon  # the computation alone refutes it
    assert done.exit_code == 1
    for claim in ([], ["--claim", 3.5, "--delta", 1e-5]):
        checked = call("check", file, *claim)
        assert checked.exit_code == 1
        assert checked.stdout.startswith("REFUTED: ")
    check_replay(file)


def test_without_a_claim_the_accounted_one_is_judged(unsearched: None) -> None:
    found = audited(shuffle(*PLAYED, "--steps", 10, "--json"))
    assert found.claim is not None
    assert (found.claim.sampler, found.claim.accountant) == ("Poisson", "PLD")
    assert found.verdict == judge.REFUTED


def test_a_generous_claim_is_proved(unsearched: None) -> None:
    done = shuffle(*PLAYED, "--steps", 10, "--claim", 60, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["verdict"] == judge.PROVED


@pytest.mark.parametrize(
    ("sampler", "named"),
    [
        ("partial:30", "PartialShuffle of 30"),
        ("batch-then-shuffle", "BatchThenShuffle"),
        ("balls-in-bins", "BallsInBins"),
        ("sequential", "Sequential"),
    ],
)
def test_every_sampler_has_an_answer(sampler: str, named: str, unsearched: None) -> None:
    done = shuffle(*PLAYED, "--steps", 10, "--batch-size", 10, "--sampler", sampler, "--claim", 99)
    assert "To prove ε = 99, use a noise multiplier of at least" in " ".join(done.stdout.split())
    done = shuffle(
        *PLAYED, "--steps", 10, "--batch-size", 10, "--sampler", sampler, "-v", "--claim", 99
    )
    assert done.exit_code == 0, done.output
    assert f"With {named}, the mechanism" in " ".join(done.stdout.split())


def test_json_is_the_result_and_nothing_else(tmp_path: Path, unsearched: None) -> None:
    done = shuffle(*QUICK, "--steps", "10", "--sampler", "balls-in-bins", "--json")
    found = audited(done)
    assert done.exit_code == found.exit_code
    assert found.provenance.subject == "ShuffledSGD"
    assert found.provenance.settings == {
        "noise_multiplier": 1.0,
        "steps": 10,
        "epochs": 1,
        "sampler": {"type": "BallsInBins", "steps": None},
        "batch_size": None,
        "observations": 400,
        "device": "cpu",
        "title": "",
    }
    file = tmp_path / "sh.json"
    file.write_text(done.stdout, "utf-8")
    check_replay(file)


def test_a_file_may_hold_all_settings(tmp_path: Path, unsearched: None) -> None:
    file = tmp_path / "audit.toml"
    file.write_text(
        "[shuffled_sgd]\nnoise_multiplier = 1\nsteps = 10\nobservations = 400\n"
        'sampler = "partial:30"\nbatch_size = 10\n[claim]\nepsilon = 3.195138\ndelta = 1e-5\n',
        "utf-8",
    )
    done = shuffle("--config", file, "--json")
    found = audited(done)
    assert found.claim is not None
    assert found.claim.epsilon == 3.195138
    assert found.provenance.settings["sampler"]["buffer"] == 30
    assert call("audit", file, "--json").stdout == done.stdout
    other = audited(shuffle("--config", file, "--json", "--claim", 2, "--epochs", 2))
    assert (other.claim.epsilon, other.claim.delta) == (2.0, 1e-5)  # type: ignore[union-attr]
    assert other.provenance.settings["epochs"] == 2


def test_the_sizes_make_the_steps(unsearched: None) -> None:
    """A ragged last batch is one more: what hides in 11 batches is not refuted as if in 10."""
    sizes = audited(shuffle(*QUICK, "--dataset-size", 901, "--batch-size", 100, "--json"))
    steps = audited(shuffle(*QUICK, "--steps", 10, "--json"))
    assert sizes.findings == steps.findings


def test_partial_shuffling_counts_the_batches_of_a_buffer(unsearched: None) -> None:
    done = shuffle(
        *QUICK, "--dataset-size", 10_000, "--batch-size", 100, "--sampler", "partial:1000", "--json"
    )
    found = audited(done).estimates[0].epsilon
    assert found == shuffle_epsilon(noise_multiplier=1.0, steps=10, delta=1e-5).epsilon


def test_until_refuted_stops_early(tmp_path: Path, unsearched: None) -> None:
    done = shuffle(
        "--noise-multiplier", 1, "--steps", 10, "--claim", 0.5, "--observations", 20_000,
        "--until", "refuted", "--json",
    )  # fmt: skip
    assert done.exit_code == 1, done.output
    (bound,) = audited(done).bounds
    assert bound.epsilon > 0.5
    assert bound.n_in + bound.n_out < 20_000
    assert "narrow" in refused(shuffle(*QUICK, "--steps", 10, "--until", "bored"))


def test_a_sweep_says_the_same_as_the_accountants(tmp_path: Path) -> None:
    settings, out = tmp_path / "settings.csv", tmp_path / "table.csv"
    settings.write_text(f"{HEADER}\none,1.0,10,2,1e-5", "utf-8-sig")  # as Excel writes it
    done = shuffle("--sweep", settings, "--table", out)
    assert done.exit_code == 0, done.output
    with out.open(encoding="utf-8", newline="") as file:
        (one,) = csv.DictReader(file)
    exact = shuffle_epsilon(noise_multiplier=1.0, steps=10, epochs=2, delta=1e-5)
    assert float(one["ε of shuffling ≥"]) == pytest.approx(exact.low, abs=1e-3)
    assert float(one["ε of shuffling ≥"]) <= exact.low  # a lower bound is rounded down
    assert float(one["times"]) > 1
    assert f"[{one['ε of shuffling ≥']}, {one['≤']}]" in done.stdout
    assert "…" not in done.stdout


@pytest.mark.slow
def test_a_sweep_names_no_ratio_to_an_epsilon_of_0(tmp_path: Path) -> None:
    settings, out = tmp_path / "settings.csv", tmp_path / "table.csv"
    settings.write_text(f"{HEADER}\nhidden,5.0,100,1,0.1", "utf-8")
    done = shuffle("--sweep", settings, "--table", out)
    assert done.exit_code == 0, done.output
    with out.open(encoding="utf-8", newline="") as file:
        (hidden,) = csv.DictReader(file)
    assert hidden["reported ε (Poisson)"] == "0.000"
    assert hidden["times"] == "–"


@pytest.mark.slow
def test_the_settings_of_the_paper_are_bundled() -> None:
    done = shuffle("--sweep", "paper")
    assert done.exit_code == 0, done.output
    for name in ("SST-2", "QNLI", "MNLI", "Persona-Chat", "CIFAR-10", "Places-365"):
        assert name in done.stdout
    assert "[17.753, 24.406]" in done.stdout
    assert "[35.307, 87.398]" in done.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["--noise-multiplier", 1],
        ["--noise-multiplier", 1, "--steps", 10, "--dataset-size", 100],
        ["--noise-multiplier", 1, "--dataset-size", 100],
        ["--noise-multiplier", 1, "--dataset-size", 100, "--batch-size", 200],
        ["--noise-multiplier", 1, "--steps", 10, "--sampler", "partial"],
        ["--noise-multiplier", 1, "--steps", 10, "--sampler", "partial:10"],
        ["--sweep", "nowhere.csv"],
    ],
    ids=str,
)
def test_calls_that_lack_something_or_have_too_much(wrong: list[object]) -> None:
    assert refused(shuffle(*wrong))


GOOD = {"--noise-multiplier": 1, "--steps": 10, "--observations": 100}


@pytest.mark.parametrize(
    "changed",
    [
        {"--noise-multiplier": 0},
        {"--noise-multiplier": -1},
        {"--noise-multiplier": "nan"},
        {"--noise-multiplier": "inf"},
        {"--noise-multiplier": "much"},
        {"--steps": 0},
        {"--steps": -3},
        {"--steps": 2.5},
        {"--steps": 10**7},
        {"--epochs": 0},
        {"--epochs": -1},
        {"--delta": 0},
        {"--delta": 1},
        {"--delta": "nan"},
        {"--delta": -0.1},
        {"--delta": 1e-13},
        {"--observations": 0},
        {"--observations": -4},
        {"--observations": 1.5},
        {"--observations": "nan"},
        {"--observations": 1e18},
        {"--observations": 2**63},
        {"--observations": "inf"},
        {"--confidence": 1},
        {"--confidence": 0},
        {"--seed": -1},
        {"--claim": -1},
        {"--claim": "nan"},
        {"--sampler": ""},
        {"--sampler": "magic"},
        {"--sampler": "partial"},
        {"--sampler": "without-replacement"},
        {"--sampler": "partial:"},
        {"--sampler": "partial:²", "--batch-size": 1},
        {"--sampler": "partial:0", "--batch-size": 1},
        {"--sampler": "shuffle:3"},
        {"--sampler": "poisson"},
        {"--sampler": "batch-then-shuffle"},
        {"--batch-size": 0, "--sampler": "batch-then-shuffle"},
        {"--device": "magic"},
        {"--device": "cuda:x"},
    ],
    ids=str,
)
def test_bad_calls(changed: dict, unsearched: None) -> None:
    given = {**GOOD, **changed}
    assert refused(shuffle(*(word for pair in given.items() for word in pair)))


def test_no_card_is_said(unsearched: None) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert "cuda" in refused(shuffle(*QUICK, "--steps", 10, "--device", "cuda"))


@pytest.mark.parametrize(
    "row",
    [
        "x,0,10,1,1e-5",
        "x,1,0,1,1e-5",
        "x,1,10,0,1e-5",
        "x,1,10,1,2",
        "x,1,10.5,1,1e-5",
        "x,nan,10,1,1e-5",
        "x,1,10,1",
        "x,1,10,1,1e-5,7",
        "x" * 200_000 + ",1,10,1,1e-5",
    ],
    ids=lambda row: row[:20],
)
def test_bad_rows_of_a_sweep(row: str, tmp_path: Path) -> None:
    settings = tmp_path / "settings.csv"
    settings.write_text(f"{HEADER}\n{row}\n", "utf-8")
    assert refused(shuffle("--sweep", settings))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        HEADER.encode(),
        f"{HEADER}\na,b,c,d,e\n".encode(),
        b"name,noise\na,1\n",
        b"\xff\xfe\x00",
    ],
)
def test_bad_files_of_a_sweep(content: bytes, tmp_path: Path) -> None:
    settings = tmp_path / "settings.csv"
    settings.write_bytes(content)
    assert refused(shuffle("--sweep", settings))


def test_a_sweep_of_nothing_or_to_nowhere(tmp_path: Path) -> None:
    assert refused(shuffle("--sweep", tmp_path))
    assert refused(shuffle("--sweep", tmp_path / "missing.csv"))
    settings = tmp_path / "settings.csv"
    settings.write_text(f"{HEADER}\nx,1,2,1,1e-3\n", "utf-8")
    done = shuffle("--sweep", settings, "--table", tmp_path / "missing" / "table.csv")
    assert done.exit_code == 2
    assert "Could not write" in done.stderr
