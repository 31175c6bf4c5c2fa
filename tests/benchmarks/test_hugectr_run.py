"""HugeCTR's models of `peers.py`: a whole run with the stand-in, and the folder it reads."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from cowclip_merlin import roc_auc

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VERSIONS = ("23.12", "24.06")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_run_trains_on_all_rows_and_scores_the_held_out_rows_in_order(
    peer, generated_log, monkeypatch, capsys, version
):
    made = peer(version)
    monkeypatch.setattr(made.module, "SCORING_BATCH", 50)  # 137 rows are three batches
    monkeypatch.setattr(sys, "argv", ["hugectr", "--model=dcn", *made.job.arguments()])
    made.module.main()
    model = made.fake.models[-1]
    assert model.trained == [*[64] * 13, 31] * 2 and {*model.rates} == {0.002}
    assert model.solver.max_eval_batches == 3
    said = json.loads(capsys.readouterr().out)
    assert {*said} == {"rows_per_second", "versions"} and said["rows_per_second"] > 0
    assert said["versions"] == {"hugectr": {"23.12": "23.12.0", "24.06": "24.6.0"}[version]}
    wanted = 1 / (1 + np.exp(-generated_log.test.continuous[:, 0].astype(np.float64)))
    np.testing.assert_allclose(np.load(made.job.predictions), wanted, rtol=1e-6)


def test_a_prepared_folder_needs_only_the_options_of_the_docstring(peer, monkeypatch, tmp_path):
    """And a relative name of the predictions is one in the folder where the command was given."""
    made = peer("24.06")
    example = made.module.__doc__.partition("python3 -m contestants.hugectr")[2].partition("\n\n")[
        0
    ]
    words = example.replace("DATA", "data").split()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hugectr", *words, "--batch=64"])
    made.module.main()
    assert np.load(tmp_path / "FILE.npy").shape == (137,)


def test_rows_in_another_order_are_refused(peer):
    made = peer("24.06")
    model = made.build()
    made.module.train(model, made.data, made.job)
    reader = model.get_data_reader_eval()
    set_source = reader.set_source

    def reverse(name):
        set_source(name)
        reader.left = [table.take(list(range(len(table)))[::-1]) for table in reader.left]

    reader.set_source = reverse
    with pytest.raises(RuntimeError, match="another order"):
        made.module.score(model, made.data)


def test_logits_are_refused(peer, monkeypatch):
    made = peer("24.06")
    model = made.build()
    made.module.train(model, made.data, made.job)
    copy = model.check_out_tensor
    monkeypatch.setattr(
        model,
        "check_out_tensor",
        lambda **at: copy(**at) - (2 if at["tensor_name"] == "logit" else 0),
    )
    with pytest.raises(RuntimeError, match="logits, not probabilities"):
        made.module.score(model, made.data)


def test_dropped_rows_are_refused(peer):
    made = peer("24.06")
    model = made.build()
    model.get_data_reader_train().drop_incomplete = True
    with pytest.raises(RuntimeError, match="another number of rows"):
        made.module.train(model, made.data, made.job)


def test_a_folder_without_test_rows_or_numbers_is_refused(peer, tmp_path):
    made = peer("24.06")
    with pytest.raises(SystemExit, match=r"has no hugectr\.json; make it with cowclip prepare"):
        made.module.read_folder(tmp_path)
    file = made.job.rows_file / "hugectr.json"
    for changes, said in (({"eval_source": None}, "eval_source"), ({"dense_dim": 0}, "continuous")):
        file.write_text(json.dumps(made.data | changes))
        with pytest.raises(SystemExit, match=said):
            made.module.read_folder(made.job.rows_file)


def test_the_folder_is_what_prepare_would_write(hugectr_folder, generated_log, monkeypatch):
    """By the reader that checks the files of `prepare --hugectr`."""
    monkeypatch.syspath_prepend(str(HERE.parent / "workflows"))
    from hugectr_reader import open_source

    monkeypatch.chdir(hugectr_folder)
    known = json.loads(Path("hugectr.json").read_text(encoding="utf-8"))
    for source, rows in (
        ("train_source", generated_log.train),
        ("eval_source", generated_log.test),
    ):
        found = open_source(known[source], known["slot_size_array"])
        assert list(found.keys) == known["slot_names"] == list(generated_log.fields)
        assert list(found.dense) == known["dense_names"]
        np.testing.assert_array_equal(np.stack([*found.keys.values()], 1), rows.ids)
        np.testing.assert_array_equal(np.stack([*found.dense.values()], 1), rows.continuous)
        np.testing.assert_array_equal(found.labels["label"], rows.label)


@pytest.mark.system
def test_the_comparison_runs_it_in_a_process_of_its_own(load, tmp_path, monkeypatch):
    """With the stand-in as the environment's `hugectr`."""
    peers = load("peers")
    (tmp_path / "mpi4py.py").write_text("MPI = None\n")
    (tmp_path / "hugectr.py").write_text(
        f"import sys\nsys.path.append({str(HERE)!r})\n"
        "from hugectr_fake import Fake\nsys.modules['hugectr'] = Fake('23.12')\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    settings = peers.PeerSettings(
        work=tmp_path / "work", rows=600, ids=400, batches=(64,), rounds=1, mlp=(8,),
        contestants=("hugectr", "hugectr-dcn"), pythons={"hugectr": sys.executable},
    )  # fmt: skip
    result = peers.compare(settings)
    log = load("contestants.rows").generate(rows=600, held_out=60, ids=400, seed=settings.seed)
    auc = round(roc_auc(log.test.label, log.test.continuous[:, 0]), 5)
    for row, name in zip(result["results"], settings.contestants, strict=True):
        assert row["contestant"] == name and row["rows_per_second"] > 0, row
        assert (row["auc"], row["versions"]) == (auc, {"hugectr": "23.12.0"})
    assert "hugectr-dcn" in peers.table(result)


def test_another_model_is_not_compared_with_our_deepfm(load):
    peers = load("peers")
    turn = {"rows_per_second": 10.0, "auc": 0.5, "versions": {}}
    turns = {(64, name): [turn] for name in peers.PeerSettings.contestants}
    rows = {name: peers._result((64, name), turns) for _, name in turns}
    assert {*map(frozenset, rows.values())} == {frozenset(rows["deepctr"])}
    others = [name for name, row in rows.items() if row["ratio_to_cowclip"] is None]
    assert others == ["hugectr-wide-and-deep", "hugectr-dcn"]
