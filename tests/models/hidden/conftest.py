import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[2] / "kernels")]


@pytest.fixture(scope="session")
def mlp_folder(make_once):
    from cowclip_merlin.optimizer.row_updates import gpu_ops

    make_once("gpu_ops", lambda folder: gpu_ops.build())  # workers wait for the one that builds
    return make_once("emulated_mlp", lambda folder: None)  # filled by what needs it


@pytest.fixture
def fake(tf, monkeypatch, mlp_folder):
    """Hidden layers as on a GPU, with a fake of cuBLASLt."""
    from emulated_cublas import installed

    with installed(monkeypatch, mlp_folder) as made:
        yield made
