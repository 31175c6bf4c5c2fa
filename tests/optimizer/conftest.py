import sys
from pathlib import Path

import pytest

from cowclip_merlin import compat

HERE, TESTS = Path(__file__).parent, Path(__file__).parents[1]
sys.path[:0] = [str(HERE), str(TESTS / "kernels"), str(TESTS / "contract")]


@pytest.fixture(scope="session")
def tf():
    return compat.tensorflow()


@pytest.fixture(scope="session")
def kernels(tf):
    """The backend that has kernels for where the tables are."""
    return "cupy" if tf.config.list_logical_devices("GPU") else "numba"


@pytest.fixture(scope="session")
def reference():
    from rows_one_by_one import RowsOneByOne

    return RowsOneByOne


@pytest.fixture(scope="session")
def row_ops_folder(make_once):
    from cowclip_merlin.optimizer.row_updates import gpu_ops

    make_once("gpu_ops", lambda folder: gpu_ops.build())  # workers wait for the one that builds
    return make_once("emulated", lambda folder: None)  # filled by what needs a kernel


@pytest.fixture
def emulated(tf, monkeypatch, row_ops_folder):
    """`backend="cupy"` with the operations' own code and the emulated kernels."""
    from emulated_cupy import operation_kernels

    from cowclip_merlin.optimizer.row_updates import gpu_ops
    from cowclip_merlin.tables import variable_memory

    monkeypatch.setattr(gpu_ops, "load_kernels", operation_kernels(row_ops_folder))
    monkeypatch.setattr(gpu_ops, "require_cupy", lambda: None)
    monkeypatch.setattr(variable_memory, "refuse_elsewhere", lambda *_: None)
    with tf.device("CPU"):
        yield


@pytest.fixture
def fake_cublas(emulated, monkeypatch, row_ops_folder):
    """The same, and hidden layers as on a GPU with a fake of cuBLASLt."""
    from emulated_cublas import installed

    with installed(monkeypatch, row_ops_folder) as made:
        yield made


EMULATED = pytest.param("emulated", marks=pytest.mark.system)
GPU = pytest.param("gpu", marks=pytest.mark.gpu)


@pytest.fixture(params=[EMULATED, GPU])
def where(request):
    """Where `backend="cupy"` runs in this test: "emulated" or "gpu"."""
    if request.param == "emulated":
        from emulated_cupy import COMPILER

        if COMPILER is None:
            pytest.skip("no g++ on PATH")
        request.getfixturevalue("emulated")
        yield request.param
        return
    tf = request.getfixturevalue("tf")
    if not tf.config.list_logical_devices("GPU"):
        pytest.skip("TensorFlow finds no GPU")
    with tf.device("GPU:0"):
        yield request.param
