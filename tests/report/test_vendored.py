"""What others wrote is kept as they released it."""

import hashlib
import json
from importlib import resources

FOLDER = resources.files("epsilometer.report").joinpath("vendor/uplot")


def test_files_are_those_that_were_released() -> None:
    known = json.loads(FOLDER.joinpath("VENDORED.json").read_text("utf-8"))
    kept = {file.name for file in FOLDER.iterdir()} - {"VENDORED.json"}
    assert set(known["sha256"]) == kept
    for name, digest in known["sha256"].items():
        assert hashlib.sha256(FOLDER.joinpath(name).read_bytes()).hexdigest() == digest
    assert f"v{known['version']}" in FOLDER.joinpath("uPlot.iife.min.js").read_text("utf-8")[:100]
    assert known["licence"] in FOLDER.joinpath("LICENSE").read_text("utf-8")
