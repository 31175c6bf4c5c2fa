"""A small generated log, prepared once, for every test that trains; what workers share."""

import fcntl
import gc
import os
import shutil
import sys
from pathlib import Path

import hypothesis
import pytest

sys.path.append(str(Path(__file__).parent))
from tiers import Tiers
from two_devices import TwoDevices

from cowclip_merlin.system.machine import versions

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS",
           "OPENBLAS_NUM_THREADS", "DASK_NUM_WORKERS")  # fmt: skip
MOST_WORKERS = 8  # of `-n auto`: each may take 2 GB

if WORKERS > 1:  # before TensorFlow, NumPy and Arrow read them; child processes read them, too
    for name in THREADS:
        os.environ.setdefault(name, "1")

# On a GPU, products of float32 would be rounded to TF32, too coarse to compare with references.
os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")

# No deadline: other processes take the cores. `--hypothesis-profile=full` chooses the other one.
hypothesis.settings.register_profile("full", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=10)
hypothesis.settings.load_profile("quick")

ROWS = 3000
SHARED = Path(__file__).parents[2] / "shared" / "data"


def pytest_configure(config):
    """Add the tiers, and the fixtures that several folders use."""
    config.pluginmanager.register(Tiers(), "tiers")
    config.pluginmanager.import_plugin("drifting")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """`-n auto`: one worker for each core that this process may use."""
    return min(len(os.sched_getaffinity(0)), MOST_WORKERS)


def pytest_collection_finish():
    """What has been imported stays: the garbage collector need not look at it again and again.

    Models leave many short-lived objects: looking at them less often takes 27 s of `make test`, not
    45 s.
    """
    versions()  # asks git once, which a test of most tiers may not
    gc.collect()
    gc.freeze()
    gc.set_threshold(5000, 10, 10)


@pytest.fixture(scope="session")
def make_once(tmp_path_factory):
    """Makes a folder by `make(folder)`, once for all workers of a test run."""

    def get(name, make):
        base = tmp_path_factory.getbasetemp()
        shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
        folder, made = shared / name, shared / f".{name}.made"
        with open(shared / f".{name}.lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the process that holds it
            if not made.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed
                folder.mkdir()
                make(folder)
                made.touch()
        return folder

    return get


@pytest.fixture(scope="session")
def two_devices():
    """Runs scripts where TensorFlow has two devices and all cores: two replicas run at once."""
    made = TwoDevices({name: value for name, value in os.environ.items() if name not in THREADS})
    yield made
    made.stop()


@pytest.fixture(scope="session")
def log(make_once) -> Path:
    from cowclip_merlin.synthetic.criteo_log import generate

    folder = make_once("log", lambda folder: generate(folder / "log.txt", rows=ROWS, seed=3))
    return folder / "log.txt"


@pytest.fixture(scope="session")
def data(log, make_once) -> Path:
    from cowclip_merlin.cli import main
    from cowclip_merlin.loading import open_columns
    from cowclip_merlin.workflows import PreparedData

    def make(folder):
        assert main(["prepare", "criteo", str(log), "--out", str(folder / "data")]) == 0
        for split in ("train", "test"):  # the cache, so that no worker copies half of it
            open_columns(PreparedData.load(folder / "data"), split)

    return make_once("prepared", make) / "data"


@pytest.fixture(scope="session")
def real():
    """Folder with small real logs, beside the repository; absent on most machines."""
    if not SHARED.is_dir():
        pytest.skip("needs the real click logs in ../shared/data")
    return SHARED


@pytest.fixture
def prepared(tmp_path):
    """Prepares a table from CSV text: label y, categories a and b, numbers x."""
    from cowclip_merlin.workflows import PrepareSettings, prepare

    def make(text, name="t.csv", **settings):
        file = tmp_path / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        usual = {"kind": "table", "label": "y", "categorical": ("a", "b"), "continuous": ("x",)}
        return prepare(
            PrepareSettings(files=(file,), out=tmp_path / f"{name}.data", **(usual | settings))
        )

    return make
