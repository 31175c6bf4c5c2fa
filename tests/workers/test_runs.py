"""Whole runs by two workers: their files, failures, signals, and resumption."""

import csv
import json
import re
import signal

import numpy as np
import pytest
from processes import FOLDER, failures, run_workers

from cowclip_merlin import compat
from cowclip_merlin.cli import main

pytestmark = pytest.mark.system

ARGUMENTS = (
    "--model", "deepfm", "--mlp", "16,8", "--embedding-dim", "4", "--update", "exact",
    "--batch-size", "202",  # of 17,979 rows: one is left for the last batch
    "--r", "0.003", "--embedding-lr", "0.001", "--epochs", "3", "--seed", "5", "--device", "cpu",
    "--checkpoint-every", "40", "--diagnostics-every", "30",
)  # fmt: skip
LITTLE_MEMORY = ("--data-memory", "1.3")  # MB, so that rows are streamed
LOST = 75  # exit code of a worker that has lost another one
REFUSED = {  # arguments that only the last worker has, and what all say of them
    ("--mlp", "8"): "has setting mlp [8], worker 0 ",
    ("--seed", "6"): "has setting seed 6, worker 0 ",
    ("--checkpoint-every", "9"): "has --checkpoint-every 9, worker 0 ",
    ("--diagnostics-every", "3"): "has --diagnostics-every 3, worker 0 ",
    ("--batch-size", "99999"): "batch size 99999 is larger than ",
}


def train(rows, out, *more):
    return ["train", str(rows), "--out", str(out), *ARGUMENTS, *more]


@pytest.fixture(scope="session")
def one(rows, make_once):
    """The folder of a run by one process."""

    def make(folder):
        assert main(train(rows, folder / "run")) == 0

    return make_once("run_of_one", make) / "run"


def commands_of(rows, data, folder):
    """What two workers do, one after the other."""
    refused = train(rows, folder / "refused")
    yield "whole", {"arguments": train(rows, folder / "whole")}
    yield "streamed", {"arguments": train(rows, folder / "streamed", *LITTLE_MEMORY)}
    yield (
        "partly_streamed",
        {"arguments": train(rows, folder / "partly")} | {"of_last": LITTLE_MEMORY},
    )
    yield "stopped", {"arguments": train(rows, folder / "stopped"), "signal": signal.SIGTERM}
    yield "resumed", {"arguments": train(rows, folder / "stopped", "--resume")}
    for given in REFUSED:
        yield " ".join(given), {"arguments": refused, "of_last": given}
    yield "versions", {"arguments": refused, "versions": {"numpy": "0.1"}}
    yield "data", {"arguments": refused, "data_of_last": str(data)}
    yield "no data", {"arguments": refused, "data_of_last": str(folder / "none")}


@pytest.fixture(scope="session")
def by_two(rows, data, make_once):
    """The folder of runs by two workers, and how each command ended in each of them."""

    def make(folder):
        commands = dict(commands_of(rows, data, folder))
        arguments = [str(folder), json.dumps(list(commands.values()))]
        ended = run_workers(2, [str(FOLDER / "whole_runs.py"), *arguments])
        assert all((folder / f"{rank}.json").exists() for rank in (0, 1)), failures(ended)
        (folder / "names.json").write_text(json.dumps(list(commands)))

    folder = make_once("runs_of_two", make)
    names = json.loads((folder / "names.json").read_text())
    results = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    return folder, dict(zip(names, zip(*results, strict=True), strict=True))


@pytest.fixture(scope="session")
def killed(rows, make_once):
    """A run of which one worker was killed, how both ended, and its resumption."""

    def make(folder):
        command = {"arguments": train(rows, folder / "run"), "signal": signal.SIGKILL}
        script = [str(FOLDER / "whole_runs.py"), str(folder), json.dumps([command])]
        ended = run_workers(2, script)
        again = run_workers(2, ["-m", "cowclip_merlin", *train(rows, folder / "run", "--resume")])
        (folder / "ended.json").write_text(json.dumps([vars(each) for each in (*ended, *again)]))

    folder = make_once("killed_run_of_two", make)
    return folder / "run", json.loads((folder / "ended.json").read_text())


def metrics(run, file="metrics.csv"):
    with (run / file).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def without_times(rows):
    return [{k: v for k, v in row.items() if "second" not in k} for row in rows]


def last_checkpoint(run):
    """All values of the last checkpoint, by name."""
    train_module = compat.tensorflow().train
    reader = train_module.load_checkpoint(str(run / "checkpoints"))
    names = [n for n in reader.get_variable_to_shape_map() if not n.startswith("_")]
    return {name: np.asarray(reader.get_tensor(name)) for name in names}


def assert_same_bits(run, other):
    ours, theirs = last_checkpoint(run), last_checkpoint(other)
    assert set(ours) == set(theirs) and any("optimizer" in name for name in ours)
    for name in set(ours) - {"save_counter/.ATTRIBUTES/VARIABLE_VALUE"}:
        assert ours[name].tobytes() == theirs[name].tobytes(), name
    assert without_times(metrics(run)) == without_times(metrics(other))


def test_metrics_equal_those_of_one_process(one, by_two):
    folder, ended = by_two
    assert [code for code, _ in ended["whole"]] == [0, 0], ended["whole"]
    expected, found = metrics(one), metrics(folder / "whole")
    assert len(expected) == len(found) == 3
    for a, b in zip(expected, found, strict=True):
        assert a["step"] == b["step"]
        assert abs(float(a["test_auc"]) - float(b["test_auc"])) < 1e-5
        for name in ("train_loss", "test_log_loss", "clipped_share", "mean_clip_factor"):
            np.testing.assert_allclose(float(a[name]), float(b[name]), rtol=1e-3)


def test_records_equal_those_of_one_process(one, by_two):
    expected, found = (metrics(run, "diagnostics.csv") for run in (one, by_two[0] / "whole"))
    assert len(expected) == len(found) > 100
    for a, b in zip(expected, found, strict=True):
        for name in ("step", "epoch", "scope", "group", "rows", "occurrences"):
            assert a[name] == b[name]
        np.testing.assert_allclose(float(a["w_norm"]), float(b["w_norm"]), rtol=1e-3)
        if a["scope"] == "all":
            assert min(float(a["clipped_share"]), float(b["clipped_share"])) > 0.5


def test_the_first_worker_writes_the_files(one, by_two):
    run = by_two[0] / "whole"
    files = {path.name for path in run.iterdir()}
    assert files == {path.name for path in one.iterdir()} | {"workers"}
    assert len(metrics(run)) == 3
    assert [path.name for path in (run / "workers").iterdir()] == ["1.log"]
    for log in (run / "train.log", run / "workers" / "1.log"):
        assert "epoch 3: train loss" in log.read_text()


def test_the_log_tells_what_a_step_sends(by_two):
    """Also after a resumption, and if this process has trained before."""
    sent = [
        float(found)
        for run in ("whole", "streamed", "stopped")
        for found in re.findall(
            r"sent ([\d.]+) MB a step to", (by_two[0] / run / "train.log").read_text()
        )
    ]
    assert len(sent) == 9 and max(sent) < 1.05 * min(sent)


@pytest.mark.parametrize("name", ["streamed", "partly_streamed"])
def test_streamed_rows_give_the_same_bits(by_two, name):
    folder, ended = by_two
    assert [code for code, _ in ended[name]] == [0, 0], ended[name]
    run = folder / name.partition("_")[0]
    log = (run / "workers" / "1.log").read_text()
    assert "train rows streamed" in log
    assert_same_bits(folder / "whole", run)


def test_a_signal_to_one_stops_all(by_two):
    folder, ended = by_two
    assert [code for code, _ in ended["stopped"]] == [143, 143], ended["stopped"]
    assert [code for code, _ in ended["resumed"]] == [0, 0], ended["resumed"]
    logs = (folder / "stopped" / "train.log", folder / "stopped" / "workers" / "1.log")
    first, second = (re.search(r"resumed from .*", log.read_text())[0] for log in logs)
    assert first == second and re.search(r": epoch 0, step [1-9]", first)
    assert_same_bits(folder / "whole", folder / "stopped")


@pytest.mark.parametrize("given", REFUSED, ids=" ".join)
def test_workers_with_other_arguments_are_refused(by_two, given):
    folder, ended = by_two
    for code, error in ended[" ".join(given)]:
        assert code == 2 and REFUSED[given] in error and error.count("\n") == 1, error
        assert "worker 1 (127.0.0.1:" in error or "larger than" in error
    assert not (folder / "refused").exists()


def test_workers_with_other_versions_or_data_are_refused(by_two):
    _, ended = by_two
    for name, words in (
        ("versions", "has version of numpy 0.1, worker 0 (127.0.0.1:"),
        ("data", "has the data "),
        ("no data", "none"),
    ):
        assert all(code == 2 and words in error for code, error in ended[name]), ended[name]
        assert "worker 1 (127.0.0.1:" in ended[name][0][1]


def test_a_killed_worker_ends_the_other(killed):
    _, (first, last, *_) = killed
    assert last["code"] == -signal.SIGKILL
    assert first["code"] == LOST and first["seconds"] < 30, first
    assert "lost worker 1 (127.0.0.1:" in first["output"], first["output"][-3000:]


def test_a_killed_run_resumes_with_the_same_bits(by_two, killed):
    run, (*_, first, other) = killed
    assert [first["code"], other["code"]] == [0, 0], first["output"] + other["output"]
    assert "test AUC" in first["output"]
    assert_same_bits(by_two[0] / "whole", run)
