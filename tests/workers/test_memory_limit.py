"""A table that is too large for the memory of one process trains with two."""

import json
import resource
import shutil

import pytest
from processes import FOLDER, failures, run_workers

from cowclip_merlin.training.run_logs import parse_metrics_row, read_metrics

pytestmark = pytest.mark.system

ROWS, DIM = 100_000, 480
TABLE = 3 * 4 * DIM * 3 * ROWS * 0.9  # bytes with Adam's moments: each value occurs once
OPTIONS = "--model deepfm --batch-size 4096 --mlp 8 --update exact --epochs 1 --device cpu"


@pytest.fixture(scope="module")
def unique_ids(tmp_path_factory):
    """A prepared folder of three columns in which no value occurs twice."""
    from cowclip_merlin.cli import main

    folder = tmp_path_factory.mktemp("unique")
    lines = (f"{i % 2},a{i},b{i},c{i}" for i in range(ROWS))
    (folder / "log.csv").write_text("\n".join(["click,a,b,c", *lines]))
    columns = ["--label", "click", "--categorical", "a,b,c"]
    words = ["prepare", "table", str(folder / "log.csv"), "--out", str(folder / "data"), *columns]
    assert main(words) == 0
    return folder / "data"


def small_stacks():
    """Let a worker's hundred threads of gRPC reserve 2 MB each instead of 8."""
    resource.setrlimit(resource.RLIMIT_STACK, (2 << 20, resource.RLIM_INFINITY))


@pytest.fixture
def train(unique_ids, tmp_path):
    """`train(workers, limit, *more)`: how the workers ended, and what each wrote, or None."""

    def run(workers, limit, *more):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        words = ["train", str(unique_ids), "--out", str(tmp_path / "run"), *OPTIONS.split(), *more]
        script = [str(FOLDER / "limited_memory.py"), str(limit), str(tmp_path), json.dumps(words)]
        for old in tmp_path.glob("*.json"):
            old.unlink()
        ended = run_workers(workers, script, preexec_fn=small_stacks)
        files = [tmp_path / f"{rank}.json" for rank in range(workers)]
        return ended, [json.loads(x.read_text()) if x.exists() else None for x in files]

    yield run
    shutil.rmtree(tmp_path / "run", ignore_errors=True)  # a checkpoint of more than 1 GB


def test_two_processes_train_what_one_may_not_hold(train, tmp_path):
    """Beyond a small table, two processes need 0.76 of this one each, and one more than 0.92."""
    sharded = ("--tables", "sharded")
    ended, small = train(2, 0, *sharded, "--embedding-dim", "1")
    assert not any(each.code for each in ended), failures(ended)
    limit = int(max(each["memory"] for each in small) + 0.82 * TABLE)
    large = ("--embedding-dim", str(DIM))
    ended, _ = train(1, limit, *large)
    assert ended[0].code
    ended, found = train(2, limit, *large, *sharded)
    assert not any(each.code for each in ended), failures(ended)
    assert all(0.4 * TABLE < each["memory"] <= limit for each in found)
    (row,) = read_metrics(tmp_path / "run/metrics.csv", epochs=1)
    assert 0.6 < parse_metrics_row(row)["train_loss"] < 0.8
