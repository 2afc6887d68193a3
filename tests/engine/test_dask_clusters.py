"""Clusters that grow, shrink, encrypt, differ or hang."""

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epsilometer.engine.engines import Dask
from epsilometer.engine.leases import EngineLost
from epsilometer.engine.pool import DEVICES
from epsilometer.engine.run import run
from epsilometer.engine.shards import Arrays
from epsilometer.engine.store import Store
from epsilometer.errors import InvalidArgument
from tests.engine.jobs import ROOT, Digest, a_plan, in_order, wobble
from tests.engine.test_dask import ENVIRONMENT, cluster
from tests.engine.test_leases import Sleeping
from tests.faults.counting import count
from tests.faults.processes import until

distributed = pytest.importorskip("distributed")


@dataclass(frozen=True)
class Crowd:
    """Waits until so many units are under way at once."""

    folder: Path
    many: int

    def __call__(self, unit: int) -> Arrays:
        (self.folder / str(unit)).touch()
        until(lambda: len(os.listdir(self.folder)) >= self.many, "a crowd was there")
        return {"unit": np.array(unit)}


@pytest.mark.slow
def test_units_ahead_follow_the_workers_that_join_later(tmp_path: Path) -> None:
    """As with every job array: one worker at the start, and many later."""
    (tmp_path / "marks").mkdir()
    call = Crowd(tmp_path / "marks", 150)
    with cluster(tmp_path, workers=1) as found:
        outcomes = Dask(found.address).outcomes(call, range(300))
        joined = found._dask("worker", found.address, "--nthreads", "200", "--no-nanny")
        found.workers.append(joined)
        assert sorted(outcome.unit for outcome in outcomes) == list(range(300))


@pytest.mark.slow
def test_a_unit_that_hangs_on_a_cluster_is_ended(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=2, nanny=True) as found:
        job = Digest(plan=a_plan(), act=Sleeping(5, 600))
        run(job, tmp_path / "run", engine=Dask(found.address, retries=1, timeout=2.0))
    failures = Store.open(tmp_path / "run").failures()
    assert list(failures) == [5]
    assert "took longer than 2 s" in failures[5]
    count("unit hangs on a Dask worker and is ended")


def device(unit: int) -> Arrays:
    time.sleep(0.1)
    return {"device": np.array(os.environ.get(DEVICES, "none"))}


@pytest.mark.slow
def test_units_run_one_per_gpu_where_workers_say_that_they_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers on one device, and one without, which must get nothing."""
    with cluster(tmp_path, workers=1) as found:
        for _ in range(2):
            monkeypatch.setitem(ENVIRONMENT, DEVICES, "7")
            given = ("--nthreads", "4", "--no-nanny", "--resources", "GPU=1")
            found.workers.append(found._dask("worker", found.address, *given))
        engine = Dask(found.address, resources={"GPU": 1})
        where = {str(o.arrays["device"]) for o in engine.outcomes(device, range(20)) if o.arrays}
    assert where == {"7"}


# TLS


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A certificate for everybody, signed by itself, and its key."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "key.pem").write_bytes(private)
    cert, secret = str(folder / "cert.pem"), str(folder / "key.pem")
    return {
        "DASK_DISTRIBUTED__COMM__TLS__CA_FILE": cert,
        "DASK_DISTRIBUTED__COMM__TLS__SCHEDULER__CERT": cert,
        "DASK_DISTRIBUTED__COMM__TLS__SCHEDULER__KEY": secret,
        "DASK_DISTRIBUTED__COMM__TLS__WORKER__CERT": cert,
        "DASK_DISTRIBUTED__COMM__TLS__WORKER__KEY": secret,
        "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True",
        "cert": cert,
        "key": secret,
    }


@pytest.mark.slow
def test_a_cluster_over_tls_gives_the_same_bytes(
    security: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = in_order(tmp_path / "expected")
    for name, value in security.items():
        if name.startswith("DASK"):
            monkeypatch.setitem(ENVIRONMENT, name, value)
    with cluster(tmp_path, protocol="tls") as found:
        assert found.address.startswith("tls://")
        with pytest.raises(InvalidArgument, match=r"reached none \(.*\). Its certificates are"):
            run(Digest(plan=a_plan()), tmp_path / "no", engine=Dask(found.address, patience=2.0))
        held = distributed.Security(
            tls_ca_file=security["cert"],
            tls_client_cert=security["cert"],
            tls_client_key=security["key"],
            require_encryption=True,
        )
        engine = Dask(found.address, security=held)
        run(Digest(plan=a_plan(), act=wobble), tmp_path / "run", engine=engine)
    assert (tmp_path / "run" / "result.json").read_bytes() == expected
    assert "key.pem" not in repr(engine)


# Clusters that differ


@pytest.mark.slow
def test_workers_of_another_version_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its results would be mixed with those of this process."""
    other = tmp_path / "other"
    (other / "numpy-0.0.1.dist-info").mkdir(parents=True)
    (other / "numpy-0.0.1.dist-info" / "METADATA").write_text("Name: numpy\nVersion: 0.0.1\n")
    monkeypatch.setitem(ENVIRONMENT, "PYTHONPATH", os.pathsep.join([str(other), str(ROOT)]))
    with (
        cluster(tmp_path, workers=1) as found,
        pytest.raises(EngineLost, match=r"numpy 0\.0\.1 there, .* here.*Install the same"),
    ):
        run(Digest(plan=a_plan()), tmp_path / "run", engine=Dask(found.address))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_adaptive_cluster_begins_with_nobody_and_gives_the_same_bytes(tmp_path: Path) -> None:
    expected = in_order(tmp_path / "expected", plan=a_plan(60))
    with distributed.LocalCluster(
        n_workers=0, threads_per_worker=1, dashboard_address=None
    ) as found:
        found.adapt(minimum=0, maximum=2, interval="200ms", wait_count=5)
        job: Any = Digest(plan=a_plan(60), act=wobble)
        run(job, tmp_path / "run", engine=Dask(found.scheduler_address))
    assert (tmp_path / "run" / "result.json").read_bytes() == expected
