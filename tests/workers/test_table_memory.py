"""Tables that do not fit into the memory of a process are refused before they are made."""

from types import SimpleNamespace

import pytest

import cowclip_merlin as cc
from cowclip_merlin.training import build
from cowclip_merlin.training.run_settings import RunSettings

DATA = SimpleNamespace(path="DATA", tables={"user": 700, "item": 300})


def settings(**more):
    return RunSettings(model="deepfm", batch_size=8, embedding_dim=10, **more)


@pytest.mark.parametrize(
    ("more", "needed"),
    [
        ({}, 120_000),
        ({"update": "exact"}, 124_000),
        ({"optimizer": "adagrad", "rule": "none"}, 80_000),
        ({"optimizer": "rowwise_adagrad", "rule": "none"}, 44_000),
        ({"tables": "sharded"}, 120_000),
    ],
)
def test_too_large_tables_are_one_line(monkeypatch, more, needed):
    monkeypatch.setattr(build, "bytes_left", lambda: needed)
    build.check_table_memory(settings(**more), DATA, "cpu")
    monkeypatch.setattr(build, "bytes_left", lambda: needed - 1)
    with pytest.raises(cc.InputError, match=r"not enough memory: .* DATA"):
        build.check_table_memory(settings(**more), DATA, "cpu")
    build.check_table_memory(settings(**more), DATA, "gpu")


def test_each_worker_needs_its_part(monkeypatch):
    group = cc.workers.Workers(0, ("a:1", "b:1", "c:1"))
    monkeypatch.setattr(build.workers, "current", lambda: group)
    monkeypatch.setattr(build, "bytes_left", lambda: 334 * 120)
    build.check_table_memory(settings(tables="sharded"), DATA, "cpu")
    with pytest.raises(cc.InputError, match=r"`tables` sharded .*`workers`"):
        build.check_table_memory(settings(), DATA, "cpu")


@pytest.mark.system
def test_a_limit_of_the_process_counts():
    """100 MB more than the process has, in another process: a limit cannot be taken back."""
    import subprocess
    import sys

    code = (
        "import psutil, resource\n"
        "from cowclip_merlin.system.machine import bytes_left\n"
        "before = bytes_left()\n"
        "limit = psutil.Process().memory_info().vms + 100_000_000\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "print(before, bytes_left())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert 0 < after <= 100_000_000 < before
