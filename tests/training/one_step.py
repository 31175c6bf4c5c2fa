"""The gradients and the loss of one training step."""

import numpy as np
import pytest

from cowclip_merlin import compat, workers
from cowclip_merlin.loading import DeviceData
from cowclip_merlin.training.train_step import make_train_step


class Recorder:
    """In place of an optimizer: it keeps the gradients of a step, and which of them are slices."""

    def __init__(self, model):
        tf = compat.tensorflow()
        self.kept = [tf.Variable(tf.zeros_like(x)) for x in model.trainable_variables]
        self.slices, self.absent = [], []

    def apply_gradients(self, pairs, experimental_aggregate_gradients=True):
        tf = compat.tensorflow()
        self.slices = [isinstance(g, tf.IndexedSlices) for g, _ in pairs]
        self.absent = [g is None for g, _ in pairs]
        for target, (gradient, _) in zip(self.kept, pairs, strict=True):
            if gradient is not None:
                target.assign(tf.convert_to_tensor(gradient))

    @property
    def found(self):
        """As arrays; None for a weight without a gradient."""
        return [None if absent else x.numpy() for x, absent in zip(self.kept, self.absent)]


def gradients(model, columns, rows, kind=DeviceData):
    """The gradients and the loss of one step on these rows."""
    tf = compat.tensorflow()
    recorder, loss_sum = Recorder(model), tf.Variable(0.0, dtype=tf.float64)
    data = kind(columns.take(np.asarray(rows)))
    batch = next(iter(data.batches_in_file_order(len(rows))))
    make_train_step(model, recorder, data, loss_sum)(batch)
    return recorder.found, float(loss_sum.numpy())


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
