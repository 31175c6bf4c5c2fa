"""A server of S3 on this machine, with a bucket."""

import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from cowclip_merlin.system.processes import free_ports

BUCKET = "logs"


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory):
    """Address of a server of S3; a test is skipped where its packages are not installed."""
    for package in ("s3fs", "moto"):
        pytest.importorskip(package, reason=f"needs the package {package}")
    (port,) = free_ports(1)
    server = shutil.which("moto_server", path=Path(sys.executable).parent)
    log = tmp_path_factory.mktemp("moto") / "log"
    with log.open("w") as output:
        command = [server, "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield _when_it_answers(f"http://127.0.0.1:{port}", process, log)
    finally:
        process.terminate()
        process.wait()


def _when_it_answers(address, process, log):
    for _ in range(300):
        try:
            urllib.request.urlopen(address).close()
        except OSError:
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        else:
            return address
    raise AssertionError(log.read_text())


@pytest.fixture
def s3(s3_server, monkeypatch, tmp_path):
    """An empty bucket, as a file system of s3fs; and a folder of copies for this test alone."""
    import s3fs

    settings = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "ENDPOINT_URL": s3_server}
    for name, value in (settings | {"DEFAULT_REGION": "us-east-1"}).items():
        monkeypatch.setenv(f"AWS_{name}", value)
    _use_copies(monkeypatch, tmp_path)
    request = urllib.request.Request(f"{s3_server}/moto-api/reset", method="POST")
    urllib.request.urlopen(request).close()
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    files.mkdir(BUCKET)
    return files


@pytest.fixture
def memory(monkeypatch, tmp_path):
    """The file system of memory://, empty; and a folder of copies for this test alone."""
    import fsspec

    _use_copies(monkeypatch, tmp_path)
    files = fsspec.filesystem("memory")
    files.store.clear()
    return files


def _use_copies(monkeypatch, tmp_path):
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "copies"))
