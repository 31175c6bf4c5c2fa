"""The benchmarks are scripts: their folder is on the path when they run, and so it is here."""

import importlib
import sys
import types
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BENCHMARKS = HERE.parents[1] / "benchmarks"


@pytest.fixture(scope="session")
def load():
    """Imports a module of the folder by its name."""

    def imported(name):
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(BENCHMARKS))
            return importlib.import_module(name)

    return imported


@pytest.fixture
def fake_of(monkeypatch):
    """Puts the stand-in of a version in the place of `hugectr`, and one in that of mpi4py."""
    monkeypatch.syspath_prepend(str(HERE))
    from hugectr_fake import Fake

    def place(version):
        fake = Fake(version)
        mpi4py = types.ModuleType("mpi4py")
        mpi4py.MPI = object()
        monkeypatch.setitem(sys.modules, "hugectr", fake)
        monkeypatch.setitem(sys.modules, "mpi4py", mpi4py)
        for name in ("contestants.hugectr", "contestants.hugectr_layers"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        return fake

    yield place
    for name in ("contestants.hugectr", "contestants.hugectr_layers"):
        sys.modules.pop(name, None)


@pytest.fixture
def generated_log(load):
    return load("contestants.rows").generate(rows=1000, held_out=137, ids=400, seed=3)


@pytest.fixture
def hugectr_folder(load, generated_log, tmp_path):
    load("contestants.rows").write_hugectr_folder(generated_log, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def hugectr_job(load, hugectr_folder, tmp_path):
    return load("contestants.job").Job(
        rows_file=hugectr_folder, predictions=tmp_path / "p.npy", batch=64, epochs=2, lr=0.002,
        embedding_lr=0.0, l2=0.0, r=0.0, zeta=0.0, warmup_epochs=0.0, init_std=0.0,
        embedding_dim=10, mlp="400,400,400", seed=7,
    )  # fmt: skip


@pytest.fixture
def peer(load, fake_of, hugectr_job, monkeypatch):
    """Imports the module of `peers.py` for a version, and builds models of its folder."""

    def imported(version):
        fake = fake_of(version)
        module = load("contestants.hugectr")
        monkeypatch.chdir(hugectr_job.rows_file)
        data = module.read_folder(hugectr_job.rows_file)

        def build(name="deepfm", update="Local"):
            fake.calls.clear()
            return module.build(data, hugectr_job, name=name, update=update)

        return types.SimpleNamespace(
            fake=fake, module=module, data=data, build=build, job=hugectr_job
        )

    return imported
