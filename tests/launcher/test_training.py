"""A real training by the real worker module."""

import subprocess
import sys

import pytest
from distributed import LocalCluster

from cowclip_merlin.launcher import TrainCall, launch
from cowclip_merlin.training import RunSettings, train
from cowclip_merlin.training.run_logs import parse_metrics_row, read_metrics

pytestmark = pytest.mark.system

SETTINGS = RunSettings(model="deepfm", batch_size=256, mlp=(8,), epochs=2)
TIMES = {"seconds", "test_seconds", "rows_per_second"}


def without_times(records):
    return [{k: v for k, v in record.items() if k not in TIMES} for record in records]


@pytest.fixture(scope="module")
def here(data, tmp_path_factory):
    """The records of a training in this process."""
    out = tmp_path_factory.mktemp("here") / "run"
    return without_times(train(data, SETTINGS, out=out, device="cpu"))


def test_a_process_of_this_machine_trains_as_this_one(data, here, tmp_path, capfd):
    call = TrainCall(
        data=str(data), settings=SETTINGS.as_dict(), out=str(tmp_path / "run"), device="cpu"
    )
    launch(call, workers=1)
    rows = read_metrics(tmp_path / "run/metrics.csv", epochs=2)
    assert without_times(map(parse_metrics_row, rows)) == here
    assert "epoch 2" in capfd.readouterr().out


def test_a_dask_worker_trains_as_this_process(data, here, tmp_path):
    with LocalCluster(n_workers=1, processes=True, dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        records = train(data, SETTINGS, out=tmp_path / "run", device="cpu", scheduler=address)
    assert without_times(records) == here


def test_the_launcher_loads_no_tensorflow(tmp_path):
    """Checked in a new process, since this one has trained."""
    code = (
        "import sys\nfrom cowclip_merlin.errors import InputError\n"
        "from cowclip_merlin.training import RunSettings, train\n"
        "settings = RunSettings(model='dcn', batch_size=8)\n"
        f"try:\n    train({str(tmp_path)!r}, settings, out='{tmp_path}/run', workers=2)\n"
        "except InputError as error:\n    print(error)\n"
        "assert not {'tensorflow', 'keras', 'merlin'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout
