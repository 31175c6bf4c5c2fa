"""Checkpoints hold all that a training keeps, and are written beside it."""

import os
import threading

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.tables.snapshot import load_snapshot, numbers
from cowclip_merlin.training import checkpoint
from cowclip_merlin.training.checkpoint import Checkpoints, has_checkpoint

HYPERS = ("learning_rate", "decay", "beta_1", "beta_2", "first_dense_rate")
"""What the settings of a run decide: a checkpoint of TensorFlow has them, too."""


class Model:
    """Two tables and a dense weight."""

    def __init__(self):
        tf = compat.tensorflow()
        shapes = {"embeddings": [50, 4], "linear/embeddings": [50, 1], "dense": [7]}
        self.variables = [tf.Variable(tf.ones(x), name=name) for name, x in shapes.items()]


def made(**options):
    model, ours = Model(), {"RowWiseAdagrad": cc.RowWiseAdagrad}
    optimizer = cc.CowClip(**{k: ours[x]() if x in ours else x for k, x in options.items()})
    optimizer.tables.register(model.variables[:2], None)
    optimizer.create_state(model.variables)
    step(model, optimizer)
    return model, optimizer


def step(model, optimizer):
    tf = compat.tensorflow()
    ids = tf.constant([3, 7])
    *tables, dense = model.variables
    for table in tables:
        optimizer.catch_up(table, ids)
    pairs = [(tf.IndexedSlices(tf.ones([2, x.shape[1]]), ids, x.shape), x) for x in tables]
    optimizer.apply_gradients([*pairs, (tf.ones_like(dense), dense)])


@pytest.mark.parametrize(
    "options",
    [
        {"update": "exact"},
        {"update": "dense"},
        {"update": "lazy", "embedding_optimizer": "adagrad", "dense_optimizer": "adagrad"},
        {"update": "lazy", "embedding_optimizer": "RowWiseAdagrad"},
        {"update": "dense", "backend": "tensorflow", "clip": "global"},
        {"update": "exact", "dense_optimizer": "lion"},
    ],
    ids=str,
)
def test_a_checkpoint_has_all_variables_that_tensorflows_has(tmp_path, options):
    tf = compat.tensorflow()
    model, optimizer = made(**options)
    whole = tf.train.Checkpoint(weights=model.variables, optimizer=optimizer)
    reader = tf.train.load_checkpoint(whole.write(str(tmp_path / "tensorflow")))
    names = [x for x in reader.get_variable_to_shape_map() if x.endswith("VARIABLE_VALUE")]
    names = [x for x in names if x.split("/")[-3] not in HYPERS]
    checkpoints = Checkpoints(tmp_path / "run", model, optimizer)
    checkpoints.save()
    checkpoints.close()
    arrays = load_snapshot(tmp_path / "run").arrays
    del arrays["loss"]
    theirs = sorted(reader.get_tensor(name).tobytes() for name in names)
    assert sorted(x.tobytes() for x in arrays.values()) == theirs and len(theirs) > 8


def test_the_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """What it changes meanwhile is not in it, and the next one waits until it is there."""
    (tmp_path / "run").mkdir()
    model, optimizer = made(update="exact")
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", model, optimizer)
    written, real = threading.Event(), os.fsync

    def fsync(file):
        assert written.wait(60)
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    before = [x.numpy() for x in model.variables]
    checkpoints.epoch, checkpoints.step = 3, 4
    checkpoints.save()
    for _ in range(3):
        step(model, optimizer)
    after = [x.numpy() for x in model.variables]
    assert not has_checkpoint(tmp_path / "run") and not checkpoints.failed
    written.set()
    checkpoints.save()
    checkpoints.finish()
    assert sorted(numbers(checkpoints.folder)) == [1, 2]
    for number, values in ((1, before), (2, after)):
        found = load_snapshot(checkpoints.folder, number)
        assert found.extra == {"epoch": 3, "step": 4}
        for i, x in enumerate(values):
            np.testing.assert_array_equal(found.arrays[f"weights.{i}"], x)
    assert not np.array_equal(before[2], after[2])


@pytest.mark.parametrize("older", [True, False])
def test_a_run_that_goes_on_may_remove_what_is_read(tmp_path, monkeypatch, older):
    model, optimizer = made(update="lazy")
    checkpoints, real = Checkpoints(tmp_path, model, optimizer), checkpoint.load_part
    checkpoints.save()

    def load_part(folder, number, *given, **how):
        if number == 1:
            for _ in range(2):
                step(model, optimizer)
                checkpoints.save()
            checkpoints.finish()
        return real(folder, number, *given, **how)

    monkeypatch.setattr(checkpoint, "load_part", load_part)
    checkpoints.finish()
    reader = Checkpoints(tmp_path, Model())
    reader.restore(older=older)
    checkpoints.close()
    assert (reader.number, reader.skipped, sorted(numbers(tmp_path))) == (3, [], [2, 3])


def test_another_model_is_refused(tmp_path):
    model, optimizer = made(update="lazy")
    checkpoints = Checkpoints(tmp_path, model, optimizer)
    checkpoints.save()
    checkpoints.close()
    other = Model()
    other.variables[2] = compat.tensorflow().Variable(np.zeros(8, np.float32), name="dense")
    for variables, words in (
        (other.variables, r"dense:0 is \[8\], saved as \[7\]"),
        (other.variables[:2], "it has 3 arrays, not 2"),
    ):
        other.variables = variables
        with pytest.raises(InputError, match=f"1: checkpoint of another model.*{words}"):
            Checkpoints(tmp_path, other).restore()
    assert (other.variables[0].numpy() == 1).all()
