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
    """Variables seem to be on GPU 0, whose kernels are emulated and whose cuBLASLt is the fake."""
    from emulated_cublas import Fake, loader

    from cowclip_merlin.models.hidden import engine
    from cowclip_merlin.optimizer.row_updates import gpu_ops

    made = Fake(mlp_folder)
    monkeypatch.setattr(engine, "load_kernels", loader(mlp_folder))
    monkeypatch.setattr(engine, "cublas_file", lambda: str(made.file))
    monkeypatch.setattr(engine, "gpu_of", lambda variable: 0)
    monkeypatch.setattr(gpu_ops, "require_cupy", lambda: None)
    for function in (engine.engine_for, engine._engine):
        function.cache_clear()
    yield made
    for function in (engine.engine_for, engine._engine):
        function.cache_clear()
