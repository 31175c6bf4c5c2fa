"""HugeCTR's DeepFM of `peers.py`, with a stand-in of its module that checks every call."""

import importlib
import json
import os
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cowclip_merlin import roc_auc
from cowclip_merlin.workflows import PrepareSettings, prepare

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture
def peer(load, monkeypatch, tmp_path):
    """The module of `peers.py` on the stand-in, a job and its rows."""
    monkeypatch.syspath_prepend(str(HERE))
    fake = importlib.import_module("hugectr_fake")
    monkeypatch.setitem(sys.modules, "hugectr", fake)
    monkeypatch.setitem(sys.modules, "mpi4py", types.SimpleNamespace(MPI=None))
    module, rows = load("contestants.hugectr"), load("contestants.rows")
    log = rows.generate(rows=1000, held_out=137, ids=400, seed=3)
    rows.write_hugectr_folder(log, tmp_path / "data")
    job = load("contestants.job").Job(
        rows_file=tmp_path / "data", predictions=tmp_path / "p.npy", batch=64, epochs=2, lr=0.002,
        embedding_dim=10, widths=(400, 400, 400), seed=7,
    )  # fmt: skip
    monkeypatch.setattr(module, "SCORING_BATCH", 50)  # 137 rows are three batches
    monkeypatch.chdir(tmp_path)
    data = module.read_folder(job.rows_file)

    def build(update="Local"):
        return module.build(data, job, update=update)

    return types.SimpleNamespace(fake=fake, module=module, data=data, job=job, log=log, build=build)


def test_every_call_fits_the_signatures_and_every_tensor_is_read(peer):
    for update in ("Local", "Global"):
        model = peer.build(update)
        assert model.given.opt_params == peer.fake.CreateOptimizer(
            optimizer_type=peer.fake.Optimizer_t.Adam, update_type=peer.fake.Update_t[update],
            beta1=0.9, beta2=0.999, epsilon=1e-7,
        )  # fmt: skip
    (embedding,) = (part for part in model.parts if part.made_by is peer.fake.SparseEmbedding)
    # With the first-order weight as the last column.
    assert embedding.embedding_vec_size == 11
    assert embedding.slot_size_array == list(peer.log.fields.values())
    assert model.tensors - model.read == {"loss"} and model.compiled
    for wrong in ({"misspelled": 1}, {"seed": 0.5}, {"vvgpu": [0]}):
        with pytest.raises(TypeError):
            peer.fake.CreateSolver(**wrong)


def test_rows_are_scored_in_order_and_others_or_logits_are_refused(peer, monkeypatch):
    def trained():
        model = peer.build()
        assert peer.module.train(model, peer.data, peer.job) > 0
        return model

    wanted = 1 / (1 + np.exp(-peer.log.test.continuous[:, 0].astype(np.float64)))
    found = peer.module.score(trained(), peer.data)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    for tensor, change, words in (
        ("label", np.flip, "another order"),
        ("logit", lambda copied: copied - 2, "logits, not probabilities"),
    ):
        model = trained()
        copy = model.check_out_tensor

        def changed(copy=copy, tensor=tensor, change=change, **at):
            return change(copy(**at)) if at["tensor_name"] == tensor else copy(**at)

        monkeypatch.setattr(model, "check_out_tensor", changed)
        with pytest.raises(RuntimeError, match=words):
            peer.module.score(model, peer.data)
    model = peer.build()
    model.get_data_reader_train().drop_incomplete = True
    with pytest.raises(RuntimeError, match="another number of rows"):
        peer.module.train(model, peer.data, peer.job)


def log_with_lists(file):
    rng = np.random.default_rng(1)
    columns = {
        "label": rng.integers(0, 2, 400),
        "I1": rng.random(400),
        "user": rng.integers(9, size=400),
    }
    columns["tags"] = [rng.integers(20, size=n).tolist() for n in rng.integers(0, 5, 400)]
    pq.write_table(pa.table(columns), file)
    return file


@pytest.fixture
def folder_with_lists(tmp_path):
    return prepare(
        PrepareSettings(
            files=(log_with_lists(tmp_path / "log.parquet"),), out=tmp_path / "DATA", kind="table",
            label="label", categorical=("user",), multi=("tags",), continuous=("I1",), hugectr=True,
        )
    ).path  # fmt: skip


def test_it_trains_on_lists(peer, folder_with_lists, monkeypatch):
    data = peer.module.read_folder(folder_with_lists)
    job = replace(peer.job, rows_file=folder_with_lists)
    model = peer.module.build(data, job, update="Local")
    assert peer.module.train(model, data, job) > 0
    assert len(peer.module.score(model, data)) == 42
    parts = {part.made_by.__name__: part for part in model.parts}
    (ids,) = parts["Input"].data_reader_sparse_param_array
    assert (ids.nnz_per_slot, ids.slot_num, ids.is_fixed_length) == ([1, 4], 2, False)
    assert parts["SparseEmbedding"].combiner == "mean"
    (one_key,) = (p for p in peer.build().parts if p.made_by is peer.fake.SparseEmbedding)
    assert one_key.combiner == "sum"
    monkeypatch.setitem(data, "nnz_per_slot", [1, 3])
    model = peer.module.build(data, job, update="Local")
    with pytest.raises(RuntimeError, match="a row has 4 keys, but the memory holds 3"):
        peer.module.train(model, data, job)


@pytest.mark.system
def test_the_comparison_runs_it_in_a_process_of_its_own(load, tmp_path, monkeypatch):
    """With the stand-in as the environment's `hugectr`."""
    peers = load("peers")
    (tmp_path / "mpi4py.py").write_text("MPI = None\n")
    (tmp_path / "hugectr.py").write_text(
        f"import sys\nsys.path.append({str(HERE)!r})\n"
        "import hugectr_fake\nsys.modules['hugectr'] = hugectr_fake\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    settings = peers.PeerSettings(
        work=tmp_path / "work", rows=600, ids=400, batches=(64,), rounds=1, mlp=(8,),
        contestants=("hugectr", "hugectr-global"), hugectr_python=sys.executable,
    )  # fmt: skip
    result = peers.compare(settings)
    log = load("contestants.rows").generate(rows=600, held_out=60, ids=400, seed=peers.SEED)
    auc = round(roc_auc(log.test.label, log.test.continuous[:, 0]), 5)
    for row, name in zip(result["results"], settings.contestants, strict=True):
        assert row["contestant"] == name and row["rows_per_second"] > 0, row
        assert (row["auc"], row["versions"]) == (auc, {"hugectr": "24.6.0"})
    assert "hugectr-global" in peers.text(result)


def test_the_folder_is_what_prepare_would_write(peer, monkeypatch):
    """By the reader that checks the files of `prepare --hugectr`."""
    monkeypatch.syspath_prepend(str(HERE.parent / "workflows"))
    from hugectr_reader import open_source

    monkeypatch.chdir(peer.job.rows_file)
    known = json.loads(Path("hugectr.json").read_text(encoding="utf-8"))
    for source, rows in (("train_source", peer.log.train), ("eval_source", peer.log.test)):
        found = open_source(known[source], known["slot_size_array"])
        assert list(found.keys) == known["slot_names"] == list(peer.log.fields)
        np.testing.assert_array_equal(np.stack([*found.keys.values()], 1), rows.ids)
        np.testing.assert_array_equal(np.stack([*found.dense.values()], 1), rows.continuous)
        np.testing.assert_array_equal(found.labels["label"], rows.label)
