"""Runs with diagnostics: the same weights, bit by bit, and what is written."""

import os
import signal

import numpy as np
import pandas as pd
import pytest
from run_weights import assert_same_bits

from cowclip_merlin import compat, training
from cowclip_merlin.contrib.diagnostics.record import COLUMNS, FILE, append_records, start_file
from cowclip_merlin.diagnostics import read_diagnostics
from cowclip_merlin.errors import InputError
from cowclip_merlin.training import RunSettings, Stopped, trainer
from cowclip_merlin.training.trainer import Trainer

STEPS = 11  # of an epoch of about 2700 rows
SMALL = {"model": "deepfm", "mlp": (8,), "batch_size": 256, "base_batch_size": 64, "seed": 5}
CLIPPING = {"r": 1e-3, "zeta": 0.0, "bound": 1e-3}


def settings(**given):
    return RunSettings(**({"epochs": 1, "overrides": CLIPPING} | SMALL | given))


def train(*arguments, **given):
    """As in a process of its own: Keras numbers its layers from 1, and checkpoints name them."""
    compat.tensorflow().keras.backend.clear_session()
    return training.train(*arguments, **given)


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("given", "memory"),
    [
        ({"update": "exact", "clip": "cowclip"}, None),
        ({"update": "exact", "clip": "none", "tables": "per_field"}, 0.2),
        ({"update": "dense", "clip": "field", "model": "dcnv2"}, None),
    ],
)
def test_no_weight_changes_and_the_clip_is_as_recorded(data, tmp_path, given, memory):
    for every in (0, 2):
        rows = train(
            data, settings(**given), out=tmp_path / str(every), data_memory=memory,
            diagnostics_every=every,
        )  # fmt: skip
    assert_same_bits(tmp_path / "0", tmp_path / "2", history=True)
    assert not (tmp_path / "0" / FILE).exists()
    table = read_diagnostics(tmp_path / "2")
    last = table[(table.scope == "all") & (table.step == STEPS - 1)].iloc[0]
    # The last step of the epoch was probed: the optimizer has recorded the same of it.
    assert last.clipped_share == pytest.approx(rows[-1]["clipped_share"], abs=1e-6)
    assert last.mean_clip_factor == pytest.approx(rows[-1]["mean_clip_factor"], rel=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_no_weight_changes_in_mixed_precision(data, tmp_path, policy):
    mixed = compat.tensorflow().keras.mixed_precision
    mixed.set_global_policy(policy)
    try:
        for every in (0, 1):
            train(data, settings(), out=tmp_path / str(every), diagnostics_every=every)
    finally:
        mixed.set_global_policy("float32")
    assert_same_bits(tmp_path / "0", tmp_path / "1", history=True)
    assert read_diagnostics(tmp_path / "1").g_norm.gt(0).all()


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    train(data, settings(epochs=2, update="exact"), out=out, diagnostics_every=4)
    return out


def test_what_the_table_holds(whole, data):
    table = read_diagnostics(whole)
    assert tuple(table.columns) == COLUMNS
    assert table.step.unique().tolist() == [0, 4, 8, 12, 16, 20]
    assert table.groupby("step").epoch.first().tolist() == [1, 1, 1, 2, 2, 2]
    for _, probe in table.groupby("step"):
        (every,) = (probe[probe.scope == "all"].iloc[i] for i in range(1))
        assert probe.scope.iloc[0] == "all" and every.occurrences == 26 * 256
        for scope in ("field", "decile"):
            part = probe[probe.scope == scope]
            assert part.rows.sum() == every.rows and part.occurrences.sum() == every.occurrences
            for name in ("clipped_share", "mean_clip_factor", "w_norm", "g_norm"):
                mean = np.average(part[name], weights=part.rows)
                assert mean == pytest.approx(every[name], rel=1e-5)
        assert probe[probe.scope == "field"].group.tolist() == [f"C{i + 1}" for i in range(26)]
        deciles = probe[probe.scope == "decile"]
        assert (deciles.least_count <= deciles.most_count).all()
        assert deciles.least_count.is_monotonic_increasing
        assert (deciles.occurrences / deciles.rows).iloc[-1] > 2  # the most frequent come often
    every = table[table.scope == "all"]
    assert np.isnan(every.rows_per_second.iloc[0]) and (every.rows_per_second.iloc[1:] > 0).all()
    np.testing.assert_allclose(every.dense_lr, 8e-4 * 2 * np.minimum(every.step / STEPS, 1), 1e-5)
    assert (every.embedding_lr == 1e-4).all()
    assert table[table.scope != "all"][["embedding_lr", "rows_per_second"]].isna().all(None)
    table = read_diagnostics(whole)
    fields = table[table.scope == "field"]
    wide = fields.pivot(index="step", columns="group", values="clipped_share")
    assert wide.shape == (6, 26) and wide.to_numpy().min() >= 0 and wide.to_numpy().max() <= 1


def scalars(run):
    """Name -> {step: value} of everything TensorBoard reads."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    tf, found = compat.tensorflow(), {}
    for file in sorted((run / "events").iterdir()):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                number = float(tf.make_ndarray(value.tensor))
                found.setdefault(value.tag, {})[event.step] = number
    return found


def test_tensorboard_gets_the_same_by_name(whole):
    found, table = scalars(whole), read_diagnostics(whole)
    shares = table[(table.scope == "field") & (table.group == "C3")]
    assert found["clip/share/C3"] == pytest.approx(dict(zip(shares.step, shares.clipped_share)))
    norms = table[(table.scope == "decile") & (table.group == "10")]
    assert found["norm/g/decile_10"] == pytest.approx(dict(zip(norms.step, norms.g_norm)), rel=1e-5)
    every = table[table.scope == "all"]
    rates = dict(zip(every.step, every.dense_lr))
    assert found["learning_rate/dense"] == pytest.approx(rates, rel=1e-5)
    assert found["speed/rows_per_second"].keys() == {4, 8, 12, 16, 20}
    assert "test_auc" in found  # what the board had before is still there


@pytest.mark.thorough
def test_stopped_and_resumed_it_is_the_same_table(data, whole, tmp_path, monkeypatch):
    """Stopped after step 16; a line that was cut short, and probes of later steps, are dropped."""
    observe = Trainer._observe

    def stop_at_12(self, batch, epoch, done):
        if epoch * self.steps + done == 12:
            os.kill(os.getpid(), signal.SIGTERM)
        observe(self, batch, epoch, done)

    monkeypatch.setattr(Trainer, "_observe", stop_at_12)
    out, given = tmp_path / "run", settings(epochs=2, update="exact")
    with pytest.raises(Stopped):
        train(data, given, out=out, diagnostics_every=4)
    monkeypatch.undo()
    assert read_diagnostics(out).step.max() == 12
    with (out / FILE).open("a") as file:
        file.write("16,2,all,all,9,9,0,1,1,1,1,1,,,,1,1\n16,2,field,C1,9")
    assert read_diagnostics(out).step.max() == 12  # the last probe is not whole
    train(data, given, out=out, resume=True, diagnostics_every=4)
    assert_same_bits(out, whole)
    drop = {"columns": "rows_per_second"}
    pd.testing.assert_frame_equal(
        read_diagnostics(out).drop(**drop), read_diagnostics(whole).drop(**drop)
    )


@pytest.mark.thorough
def test_steps_that_are_made_in_one_call_are_probed_as_single_ones(
    data, whole, tmp_path, monkeypatch
):
    monkeypatch.setattr(trainer, "steps_per_execution", lambda batch_size: 1)
    train(data, settings(epochs=2, update="exact"), out=tmp_path / "run", diagnostics_every=4)
    assert_same_bits(tmp_path / "run", whole, history=True)
    drop = {"columns": "rows_per_second"}
    pd.testing.assert_frame_equal(
        read_diagnostics(tmp_path / "run").drop(**drop), read_diagnostics(whole).drop(**drop)
    )


def test_a_new_run_starts_a_new_file(tmp_path):
    append_records(tmp_path, one_probe(step=1))
    assert len(read_diagnostics(tmp_path)) == 3
    start_file(tmp_path)
    with pytest.raises(InputError, match="the file has no probes"):
        read_diagnostics(tmp_path)


def one_probe(*, step):
    groups = (("all", "all"), ("field", "C1"), ("decile", "1"))
    return [
        dict.fromkeys(COLUMNS, 1) | {"step": step, "scope": scope, "group": group}
        for scope, group in groups
    ]


HEAD = ",".join(COLUMNS) + "\n"
ROW = "8,1,all,all" + 13 * ",1" + "\n"


@pytest.mark.parametrize(
    "text",
    ["", "step,what\n1,2\n", f"{HEAD}x{ROW}", f"{HEAD}1,1,all,all\n", f"{HEAD}{ROW}{ROW[:-1]},1\n",
     f"{HEAD}\udcff{ROW}", HEAD + ROW.replace("8", '"8')],
)  # fmt: skip
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / FILE).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=r"diagnostics.csv: damaged .*delete it"):
        read_diagnostics(tmp_path)
    with pytest.raises(InputError, match=r"diagnostics.csv: damaged .*delete it"):
        start_file(tmp_path, before=100)


@pytest.mark.parametrize("cell", [ROW + ROW, ROW.replace(",1\n", ",x\n")])
def test_damaged_values_are_named(tmp_path, cell):
    (tmp_path / FILE).write_text(HEAD + cell)
    with pytest.raises(InputError, match=r"diagnostics.csv: damaged .*delete it"):
        read_diagnostics(tmp_path)


def test_a_probe_that_was_cut_short_is_not_shown(tmp_path):
    """The file may lose its end with the disk; `cowclip inspect` draws what is whole."""
    append_records(tmp_path, [*one_probe(step=1), *one_probe(step=5)[:2]])
    assert set(read_diagnostics(tmp_path).step) == {1}


def test_embeddings_of_one_dimension_have_no_clip(data, tmp_path):
    train(data, settings(embedding_dim=1), out=tmp_path / "run", diagnostics_every=5)
    table = read_diagnostics(tmp_path / "run")
    assert (table.clipped_share == 0).all() and (table.w_norm > 0).all()
