"""Make docs/gallery.md: real reports and their pictures, of which the README shows the first.

Every report is made by the command that stands beside it, in a folder of its own. A page that is
small enough is kept whole, of the others there is a picture. `make gallery` makes all of them
(four minutes of CPU), ``python docs/gallery.py demo shuffle`` these alone.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, sync_playwright
from sklearn.datasets import load_breast_cancer

DOCS = Path(__file__).parent
GALLERY = DOCS / "gallery"
KEPT = 400_000  # bytes of a page that is kept whole
PICTURED = 150_000  # bytes of a picture
VIEW = {"width": 1160, "height": 620}
HEAD = """# Gallery

Real reports, each with its command; a picture that is a link opens the report. `make gallery` makes
all of them again, with the two input files.
"""


def gaussian_scores(folder: Path) -> None:
    """Write scores of an attack on a Gaussian mechanism, whose ε is known."""
    rng = np.random.default_rng(0)
    rows = [f"{score},1" for score in rng.normal(1, 1, 10_000)]
    rows += [f"{score},0" for score in rng.normal(0, 1, 10_000)]
    (folder / "scores.csv").write_text("\n".join(["score,member", *rows]) + "\n", "utf-8")


def tumours(folder: Path) -> None:
    """Write the table of tumours that comes with scikit-learn."""
    table = load_breast_cancer()
    names = [*(name.replace(" ", "_") for name in table.feature_names), "diagnosis"]
    rows = [
        ",".join([*map(str, features), table.target_names[label]])
        for features, label in zip(table.data.tolist(), table.target, strict=True)
    ]
    (folder / "tumours.csv").write_text("\n".join([",".join(names), *rows]) + "\n", "utf-8")


def nothing(folder: Path) -> None:
    """Write nothing: the command needs no file."""


@dataclass(frozen=True)
class Report:
    """One of the gallery.

    Attributes:
        name: Of its files.
        title: What is asked.
        words: What is to be seen, in a sentence.
        command: That makes it; ``--html`` is added.
        more: The page that says more.
        needs: Writes the file that the command reads.
    """

    name: str
    title: str
    words: str
    command: str
    more: str
    needs: Callable[[Path], None] = nothing


REPORTS = (
    Report(
        "demo",
        "Two training programs, one claim",
        "Softmax regression on handwritten digits, trained thousands of times: as claimed, and "
        "with √σ where σ was meant. The second is refuted.",
        "epsilometer demo",
        "tutorial.md",
    ),
    Report(
        "estimate",
        "Attack scores",
        "10,000 scores with the record and 10,000 without it, of a Gaussian mechanism whose true ε "
        "is 4.38; ε = 2 was claimed.",
        "epsilometer estimate scores.csv --delta 1e-5 --claim 2",
        "howto.md",
        gaussian_scores,
    ),
    Report(
        "shuffle",
        "DP-SGD that shuffles",
        "A published setting that reports ε = 3 by the accountant of Poisson sampling; by "
        "computation its ε is at least 35.3.",
        "epsilometer shuffle --noise-multiplier 0.73 --steps 781 --epochs 50 --claim 3",
        "shuffling.md",
    ),
    Report(
        "dpsgd",
        "DP-SGD, trained and attacked",
        "An MLP trained 2,000 times with a canary and 2,000 times without it: an adversary "
        "who sees all updates refutes ε = 1, one who sees the final model does not.",
        "epsilometer dpsgd",
        "dpsgd.md",
    ),
    Report(
        "federated",
        "Federated training",
        "One simulated run of DP-FedAvg with 300 canaries among the clients: the estimated and the "
        "proved ε of a client.",
        "epsilometer federated --rounds 10 --canaries 300 --repetitions 1",
        "federated.md",
    ),
    Report(
        "classifier",
        "May this classifier be published?",
        "Naive Bayes on 569 tumours: attacks fail, but 16 records change the model's answer about "
        "them too much, so it should not be published; class labels alone may be.",
        "epsilometer classifier tumours.csv --label diagnosis --published-as file",
        "classifier.md",
        tumours,
    ),
    Report(
        "posterior",
        "Predictions with uncertainty",
        "A network with dropout, queried about a mislabelled record: each output format with its "
        "leakage and utility.",
        "epsilometer posterior",
        "posterior.md",
    ),
)


def make_page(report: Report, folder: Path) -> Path:
    """Call the command; return the page that it wrote into the folder."""
    report.needs(folder)
    call = [*report.command.split(), "--html", "report.html"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(call, cwd=folder, env={**os.environ, "PATH": path}, check=False)
    if done.returncode not in (0, 1, 4):  # 1: something was refuted; 4: it cannot be judged
        raise SystemExit(f"{report.command}: exit code {done.returncode}")
    return folder / "report.html"


def take_picture(browser: Browser, page: Path, picture: Path) -> None:
    """Save the head of a page, as a browser shows it."""
    view = browser.new_page(viewport=VIEW)
    view.goto(page.as_uri())
    for figure in view.locator("canvas").all():  # drawn when they come into view
        figure.scroll_into_view_if_needed()
    view.evaluate("scrollTo(0, 0)")
    view.screenshot(path=picture)
    view.close()
    if picture.stat().st_size > PICTURED:
        raise SystemExit(f"{picture.name}: {picture.stat().st_size:,} bytes, too large.")


def render_entry(report: Report) -> str:
    """Return how a report stands in the gallery."""
    picture = f"![The report: {report.title}](gallery/{report.name}.png)"
    whole = (GALLERY / f"{report.name}.html").exists()
    return "\n\n".join(
        [
            f"## {report.title}",
            f"{report.words} [More]({report.more})",
            f"    {report.command} --html report.html",
            f"[{picture}](gallery/{report.name}.html)" if whole else picture,
        ]
    )


def main(names: list[str]) -> None:
    """Make the reports of these names, or all; then the page of all."""
    GALLERY.mkdir(exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for report in REPORTS:
            if names and report.name not in names:
                continue
            with tempfile.TemporaryDirectory() as folder:
                page = make_page(report, Path(folder))
                take_picture(browser, page, GALLERY / f"{report.name}.png")
                kept = GALLERY / f"{report.name}.html"
                kept.unlink(missing_ok=True)
                if page.stat().st_size <= KEPT:
                    shutil.copyfile(page, kept)
        browser.close()
    text = "\n\n".join([HEAD.strip(), *map(render_entry, REPORTS)]) + "\n"
    (DOCS / "gallery.md").write_text(text, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
