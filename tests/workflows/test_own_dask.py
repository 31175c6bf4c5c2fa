"""A workflow in the user's own Dask cluster, with partitions smaller than usual."""

import signal
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pandas as pd
import pyarrow.parquet as pq
import pytest
from pandas_reference import raw_frame

import cowclip_merlin as cc
from cowclip_merlin.workflows.parallel import dask_cluster

ROWS, ROWS_OF_GROUP = 2000, 500


@contextmanager
def at_most(seconds):
    """The body, or an error after these seconds: a client without workers waits forever."""

    def late(signal_number, frame):
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.system
def test_a_part_below_the_row_group_is_written_by_two_workers(log, tmp_path):
    workflow = cc.workflows.criteo(out_path=tmp_path)
    import nvtabular as nvt
    from distributed import Client, LocalCluster

    raw, out = tmp_path / "raw.parquet", tmp_path / "out"
    raw_frame(log).head(ROWS).to_parquet(raw, row_group_size=ROWS_OF_GROUP)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as workers,
        Client(workers),
        at_most(900),
    ):
        with pytest.warns(UserWarning, match="bigger than requested part_size"):
            rows = nvt.Dataset(raw, engine="parquet", part_size="10KB", cpu=True)
        ready = workflow.fit(rows).transform(rows)
        ready.repartition(npartitions=3).to_parquet(out)
    files = sorted(out.glob("*.parquet"))
    assert len(files) == 3
    written = pd.concat([pq.ParquetFile(file).read().to_pandas() for file in files])
    alone = workflow.transform(nvt.Dataset(raw_frame(log).head(ROWS), cpu=True)).to_ddf().compute()
    pd.testing.assert_frame_equal(written.reset_index(drop=True), alone)


@pytest.mark.filterwarnings("ignore:Port 8787")
def test_the_page_of_our_own_cluster_is_for_this_machine(monkeypatch):
    """Dask's default is all networks."""
    from distributed import LocalCluster

    made = []

    def start(**options):
        made.append(LocalCluster(n_workers=0, **options))
        return made[0]

    monkeypatch.setitem(sys.modules, "dask_cuda", SimpleNamespace(LocalCUDACluster=start))
    with dask_cluster(None, gpu=True):
        server = made[0].scheduler.http_server
        assert {each.getsockname()[0] for each in server._sockets.values()} == {"127.0.0.1"}
