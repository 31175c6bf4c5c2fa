"""`cowclip train --workers` and `train(workers=...)`, with workers that are short scripts."""

import csv
import subprocess
import sys
from functools import partial

import pytest

import cowclip_merlin.train
from cowclip_merlin.cli import main
from cowclip_merlin.launcher import LaunchSettings, launch
from cowclip_merlin.training import RunSettings
from cowclip_merlin.training.run_logs import METRICS

pytestmark = [pytest.mark.quick, pytest.mark.system]

SETTINGS = RunSettings(model="deepfm", batch_size=256, epochs=2)
TRAIN = """
if rank == 0:
    print("training", call["settings"]["batch_size"])
    out.mkdir(exist_ok=True)
    lines = [%r, "1,10,0.6,0.70,0.5" + ",1" * 7, "2,20,0.5,0.75,0.4" + ",1" * 7]
    (out / "metrics.csv").write_text("\\n".join(lines) + "\\n")
""" % ",".join(METRICS[:12])  # noqa: UP031


@pytest.fixture
def workers(fake, monkeypatch, quick):
    """Makes the script the worker of every launch from here on."""

    def use(body):
        command = fake.command(body)
        faked = partial(launch, command=command, patience=quick)
        monkeypatch.setattr(cowclip_merlin.train, "launch", faked)

    return use


def command(fake, *more):
    run, sizes = str(fake.folder / "run"), ["--model", "deepfm", "--batch-size", "256"]
    return ["train", str(fake.folder), "--out", run, *sizes, "--epochs", "2", *more]


def test_the_last_line_is_printed_once(fake, workers, capfd):
    workers(TRAIN)
    assert main(command(fake, "--workers", "2")) == 0
    shown = capfd.readouterr()
    last = f"test AUC 0.75000, log loss 0.40000 after 2 epochs; run folder {fake.folder / 'run'}"
    assert shown.out.splitlines() == ["training 256", last]
    assert shown.err == ""


def test_the_records_are_those_of_the_file(fake, workers):
    workers(TRAIN)
    out = fake.folder / "run"
    records = cowclip_merlin.train.train(fake.folder, SETTINGS, out=out, workers=3)
    assert [record["test_auc"] for record in records] == [0.70, 0.75]
    assert [record["epoch"] for record in records] == [1, 2]
    with (out / "metrics.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(records)


@pytest.mark.parametrize(
    ("body", "code", "line"),
    [
        ("print('cowclip: error: a.txt: bad', file=sys.stderr); sys.exit(2)", 2, "a.txt: bad"),
        ("os.kill(os.getpid(), 9) if rank else sys.exit(75)", 75, "worker 1 of 2 on "),
    ],
)
def test_errors_are_one_line_and_an_exit_code(fake, workers, capfd, body, code, line):
    workers(body)
    assert main(command(fake, "--workers", "2")) == code
    (shown,) = capfd.readouterr().err.splitlines()
    assert shown.startswith(f"cowclip: error: {line}")


def test_a_stop_names_the_run_folder(fake, workers, capfd):
    workers("checkpoint(); sys.exit(143)")
    assert main(command(fake, "--workers", "2")) == 143
    line = f"cowclip: stopped with a checkpoint in {fake.folder / 'run'}; resume with --resume\n"
    assert capfd.readouterr().err == line


def test_restarts_are_counted(fake, workers, capfd):
    workers("if attempt < 2: sys.exit(1)\n" + TRAIN)
    assert main(command(fake, "--workers", "2", "--restarts", "2")) == 0
    assert len(capfd.readouterr().err.splitlines()) == 2


def test_one_worker_trains_in_this_process(fake, monkeypatch):
    called = []
    monkeypatch.setattr(cowclip_merlin.train, "run_training", lambda *a, **k: called.append(k))
    monkeypatch.setattr(cowclip_merlin.train, "launch", None)
    for given in (None, 1):
        cowclip_merlin.train.train(fake.folder, SETTINGS, out=fake.folder / "run", workers=given)
    assert len(called) == 2


def test_a_scheduler_alone_uses_all_its_workers(fake, monkeypatch):
    called = []
    monkeypatch.setattr(cowclip_merlin.train, "launch", lambda call, how: called.append(how))
    cowclip_merlin.train.train(
        fake.folder, SETTINGS, out=fake.folder / "run", scheduler="tcp://host:8786"
    )
    assert called == [LaunchSettings(scheduler="tcp://host:8786")]


def test_without_a_command_the_worker_is_our_module(tmp_path):
    """Both find that the folder holds no prepared data; the launcher loads no TensorFlow.

    Checked in a new process, since this one has trained.
    """
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
