"""In a worker or alone: trains cases on the same batches, and writes what they become.

Writes OUT/CASE.RANK.npz: weights and optimizer state after some steps. One process also trains
with the rows of each batch in other orders, and writes how much the weights differ by that.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from cases import STEPS, Case

from cowclip_merlin import compat, workers
from cowclip_merlin.loading import DeviceData, open_columns, row_order
from cowclip_merlin.optimizer import exchange
from cowclip_merlin.training import RunSettings, build
from cowclip_merlin.training.run import set_up_tensorflow
from cowclip_merlin.training.train_step import make_train_step
from cowclip_merlin.workflows import PreparedData

BATCH, ORDERS = 256, 8
ODD = {3: 255, 5: 1, 20: 2, 49: 1}  # step -> rows of its batch
BETAS = {"beta_1": 0.7, "beta_2": 0.968, "epsilon": 2e-8}
OF_ADAGRAD = {"embedding_lr": 0.02, "dense_lr": 0.02}
RATES = {"adam": BETAS, "adagrad": OF_ADAGRAD, "rowwise_adagrad": OF_ADAGRAD}


def fixed_batches(rows, odd):
    order = np.concatenate([row_order.permutation(rows, seed=1, epoch=e) for e in range(2)])
    ends = np.cumsum([odd.get(step, BATCH) for step in range(max(STEPS))])
    return np.split(order[: ends[-1]].astype(np.int64), ends[:-1])


def reordered(batches, number, parts):
    """The same micro-batches with their rows in another order; order 0 is the same one."""
    rng = np.random.default_rng(number)
    cut = [np.array_split(batch, parts) for batch in batches]
    return [np.concatenate([rng.permutation(x) if number else x for x in each]) for each in cut]


class Training:
    """One case, which can start again without a new trace."""

    def __init__(self, case, prepared, data, steps):
        self._tf = compat.tensorflow()
        overrides = {"r": 0.003, "warmup_epochs": 0} | RATES[case.optimizer]
        settings = RunSettings(
            model=case.model, batch_size=BATCH, base_batch_size=BATCH, mlp=(16, 8), embedding_dim=4,
            update=case.update, optimizer=case.optimizer, tables=case.tables, overrides=overrides,
        )  # fmt: skip
        values = settings.hyperparameters(prepared.kind)
        values = replace(values, micro_batches=case.micro_batches)
        self.model = build.build_model(settings, values, prepared)
        self.optimizer = build.build_optimizer(settings, values, prepared, steps=steps)
        self.optimizer.create_state(self.model.trainable_variables)
        self._loss = self._tf.Variable(0.0, dtype=self._tf.float64)
        self._step = make_train_step(self.model, self.optimizer, data, self._loss)
        self._start = self._values()

    def run(self, batches):
        """Train; return the arrays to write."""
        for variable, value in zip(self._variables(), self._start, strict=True):
            variable.assign(value)
        self._loss.assign(0.0)
        found, shares = {}, []
        for number, batch in enumerate(batches, 1):
            self._step(self._tf.constant(batch))
            shares.append(self.optimizer.clipped_share.numpy())
            if number in STEPS:
                self.optimizer.flush()
                kinds = {"weight": self.model.trainable_variables, "state": self.optimizer.weights}
                for kind, variables in kinds.items():
                    for i, variable in enumerate(variables):
                        found[f"{number} {kind} {i}"] = variable.numpy()
        return found | {"clipped": np.array(shares), "loss": self._loss.numpy()}

    def _variables(self):
        return [*self.model.variables, *self.optimizer.weights]

    def _values(self):
        return [variable.numpy() for variable in self._variables()]


def largest_difference(a, b, step):
    """The largest difference of any weight after this step."""
    names = [name for name in a if name.startswith(f"{step} weight ")]
    return max(np.abs(a[name] - b[name]).max(initial=0) for name in names)


def differences_by_order(training, batches, straight, parts):
    """The largest differences of any weight, [orders, steps to write]; order 0 is the same one."""
    others = [training.run(reordered(batches, number, parts)) for number in range(ORDERS + 1)]
    return np.array([[largest_difference(straight, x, step) for step in STEPS] for x in others])


def main(folder, out, cases):
    set_up_tensorflow(7, "cpu")
    group = workers.join()
    prepared = PreparedData.load(folder)
    data = DeviceData(open_columns(prepared, "train"))
    counted = exchange.CountedSlices
    lost = lambda values, ids, *_: compat.tensorflow().IndexedSlices(values, ids)  # noqa: E731
    for case in (Case(**case) for case in cases):
        batches = fixed_batches(data.rows, ODD if case.micro_batches == 1 else {})
        exchange.CountedSlices = counted if case.counts else lost
        training = Training(case, prepared, data, len(batches))
        found = training.run(batches)
        if group is None and case.optimizer == "adam":
            found["by_order"] = differences_by_order(training, batches, found, case.micro_batches)
        np.savez(Path(out) / f"{case}.{group.rank if group else 0}.npz", **found)
    exchange.CountedSlices = counted
