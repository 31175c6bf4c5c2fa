"""The gradients and the loss of one training step."""

import numpy as np
import pytest

from cowclip_merlin import compat, workers
from cowclip_merlin.loading import DeviceData
from cowclip_merlin.training.train_step import make_train_step


class Recorder:
    """In place of an optimizer: it keeps the gradients of a step."""

    def __init__(self, model):
        tf = compat.tensorflow()
        self.found = [tf.Variable(tf.zeros_like(x)) for x in model.trainable_variables]

    def apply_gradients(self, pairs, experimental_aggregate_gradients=True):
        for target, (gradient, _) in zip(self.found, pairs):
            target.assign(compat.tensorflow().convert_to_tensor(gradient))


def gradients(model, columns, rows, kind=DeviceData):
    """The gradients and the loss of one step on these rows."""
    tf = compat.tensorflow()
    recorder, loss_sum = Recorder(model), tf.Variable(0.0, dtype=tf.float64)
    data = kind(columns.take(np.asarray(rows)))
    batch = next(iter(data.batches_in_file_order(len(rows))))
    make_train_step(model, recorder, data, loss_sum)(batch)
    return [x.numpy() for x in recorder.found], float(loss_sum.numpy())


def check_that_two_workers_equal_one(model, columns, monkeypatch):
    """Each worker knows the weights of the whole batch; the optimizer takes the mean."""
    one, loss = gradients(model, columns, np.arange(31))
    found = []
    for rank in range(2):
        group = workers.Workers(rank, ("a:1", "b:1"))
        monkeypatch.setattr(workers, "current", lambda group=group: group)
        found.append(gradients(model, columns, np.arange(31)))
    assert found[0][1] + found[1][1] == pytest.approx(loss, rel=1e-6)
    for a, b, expected in zip(found[0][0], found[1][0], one):
        np.testing.assert_allclose((a + b) / 2, expected, atol=1e-6)
