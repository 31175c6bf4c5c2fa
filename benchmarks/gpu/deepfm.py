"""DeepFM with CowClip as a list of the project's operations, and rows to train it on.

A step takes a batch, then runs CowClipRead, CowClipMlp, the loss, CowClipMlpGradient,
CowClipReadStep, CowClipDense, and the counters. All but the batch, the loss and the counters is the
code that training with TensorFlow runs. Those three are kernels of batch.cu.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from cowclip_merlin.choices import RowSettings
from cowclip_merlin.scaling import Hyperparameters
from cowclip_merlin.types import Array, Floats
from gpu.operations import BFLOAT16, FLOAT, INT32, Gpu, Node, Source, blocks_for

FIELDS, NUMBERS = 26, 13
HISTORY, SLOTS = 1 << 16, 1024
"""Learning rates that an optimizer remembers, and tables that its status has words for."""


def criteo_fields(vocabulary: int) -> list[int]:
    """Return the ids of each field, as Criteo's log has them: a few fields have nearly all.

    >>> fields = criteo_fields(1000)
    >>> len(fields), sum(fields), min(fields)
    (26, 1000, 4)
    """
    # As bench.random_data.criteo_fields, whose module needs more packages.
    weights = 0.6 ** np.arange(FIELDS)
    free = vocabulary - 4 * FIELDS
    fields = 4 + (free * weights / weights.sum()).astype(int)
    fields[0] += vocabulary - fields.sum()
    return fields.tolist()


class Rows:
    """Rows of power-law ids on the GPU, whose labels y come from a planted logistic model with p.

    The planted model is the same for every seed.
    """

    def __init__(self, gpu: Gpu, rows: int, fields: Sequence[int], *, seed: int) -> None:
        empty, k = gpu.xp.empty, len(fields)
        self.count, self.fields = rows, tuple(fields)
        self.ids, self.x = empty((rows, k), np.int32), empty((rows, NUMBERS), np.float32)
        self.y, self.p = empty(rows, np.float32), empty(rows, np.float32)
        make = gpu.launch("make_rows", blocks_for(rows), [
            np.int64(seed), np.int64(rows), gpu.array(fields, np.int64), np.int32(k),
            np.int32(NUMBERS), self.ids, self.x, self.y, self.p,
        ])  # fmt: skip
        gpu.run([make])
        gpu.wait()


class DeepFM:
    """Weights and moments, and the nodes of a step (`parts`), of an evaluation and of a flush.

    `tables` and `dense` have "w" and the moments "m" and "v", or "sums" of Adagrad. `loss` sums the
    losses of all steps. Hidden layers compute in bfloat16 if `half`, else in float32 or TF32.
    """

    def __init__(
        self, gpu: Gpu, rows: Rows, batch: int, values: Hyperparameters, widths: Sequence[int], *,
        update: str = "exact", half: bool = True, tf32: bool = True, d: int = 10,
    ) -> None:  # fmt: skip
        self.gpu, self.rows, self.batch, self.values = gpu, rows, batch, values
        self.widths, self.half, self.tf32 = tuple(widths), half, tf32
        self.exact, self.inputs = update == "exact", len(rows.fields) * d + NUMBERS
        self.whole, self.slots = update == "dense", ("m", "v")
        if values.optimizer != "adam":
            self.slots = ("sums",)
        self.columns = -(-self.inputs // 8) * 8
        self._make_weights(sum(rows.fields), d)
        self._register(sum(rows.fields), d)
        xp = gpu.xp
        self.iterations, self.position = xp.zeros(1, np.int64), xp.zeros(1, np.int64)
        self.loss = xp.zeros(1, np.float64)
        self.parts = self._step()
        self.step = list(self.parts.values())
        self._flush = gpu.node(
            "CowClipFlush", {"K": len(self._counts), "tables": self._numbers, "wait": 1},
            counts=self._counts, variables=self._handles,
        )  # fmt: skip

    def _make_weights(self, n: int, d: int) -> None:
        gpu, zeros = self.gpu, self.gpu.xp.zeros
        self.tables = [{"w": zeros((n, k), np.float32)} for k in (d, 1)]
        fill = gpu.launch("fill_normal", blocks_for(n * d), [
            self.tables[0]["w"], np.int64(n * d), np.float32(self.values.init_std), np.int64(0)
        ])  # fmt: skip
        gpu.run([fill])
        for table, k in zip(self.tables, (d, 1)):
            width = 1 if self.values.optimizer == "rowwise_adagrad" else k
            start = 0.0 if self.slots == ("m", "v") else self.values.initial_accumulator
            for name in self.slots:
                table[name] = zeros((n, width), "f")
                table[name].fill(start)
            if self.exact:
                table["last"], table["history"] = zeros(n, "f"), zeros(HISTORY, "f")
                table["count"] = zeros(1, np.int64)
        random, sizes = np.random.RandomState(1), (self.inputs, *self.widths, 1)
        kernels = [random.normal(0, (2 / a) ** 0.5, (a, b)) for a, b in pairwise(sizes)]
        weights = [*kernels[:-1], *map(np.zeros, self.widths), kernels[-1], np.zeros(1)]
        self.dense = [
            {"w": gpu.array(w, "f"), "m": zeros(w.shape, "f"), "v": zeros(w.shape, "f")}
            for w in weights
        ]

    def _register(self, n: int, d: int) -> None:
        """Register the tables; those of `_plain` are read as they are, without missed steps."""
        gpu, values, owner = self.gpu, self.values, self.gpu.new_owner()
        self.settings = [
            RowSettings(
                clip=clip, beta_1=values.beta_1, beta_2=values.beta_2, epsilon=values.epsilon,
                **values.of_rows,
            )
            for clip in ("cowclip", "none")
        ]  # fmt: skip
        self._numbers, self._plain = [
            [
                gpu.add_table(n, k, settings, self.half, exact=exact, counted=exact and slot == 0,
                              owner=owner, slot=slot, whole=self.whole,
                              width=table["sums"].shape[1] if "sums" in table else 0)
                for slot, (k, settings, table) in enumerate(zip((d, 1), self.settings, self.tables))
            ]
            for exact in (self.exact, False)
        ]  # fmt: skip
        status = np.full(1 + 3 * SLOTS, np.iinfo(np.int64).max)
        status[::3] = 0
        words = gpu.variable(gpu.array(status))
        names = ("w", *self.slots, *(("last", "history") if self.exact else ()))
        plain = 1 + len(self.slots)
        handles = [{name: gpu.variable(table[name]) for name in names} for table in self.tables]
        self._handles = [*(each[name] for each in handles for name in names), words]
        self._plain_handles = [*(each[name] for each in handles for name in names[:plain]), words]
        dense = [gpu.variable(each[name]) for each in self.dense for name in ("w", "m", "v")]
        self._dense_handles = [*dense, words]
        self._counts = [gpu.tensor(table["count"]) for table in self.tables] if self.exact else []
        starts = np.cumsum([0, *self.rows.fields[:-1]]).astype(np.int64)
        self._offsets = gpu.tensor(gpu.array(starts))
        self._engine = gpu.add_engine()
        self._weights = [gpu.tensor(each["w"]) for each in self.dense]

    def _hidden(self) -> dict[str, int]:
        """Return the attributes that CowClipMlp and its gradient share."""
        kind, n = BFLOAT16 if self.half else FLOAT, len(self.widths)
        engine = {"engine": self._engine, "tf32": self.tf32}
        return {"X": kind, "T": kind, "N": n, "M": n + 1, "P": 1, **engine}

    def _forward(
        self, rows: Rows, position: Array, batch: int, *, train: bool
    ) -> tuple[Node, Node, Node, list[Source]]:
        """Add what computes the logits.

        Returns:
            The nodes that take a batch, read rows and run the hidden layers, and the parts of the
            logits: products of the output layer, its bias, first and second order.
        """
        gpu, k, n = self.gpu, len(rows.fields), len(self.widths)
        take = gpu.launch("take_batch", blocks_for(batch), [
            position, rows.ids, rows.x, rows.y, np.int64(rows.count), np.int32(batch), np.int32(k),
            np.int32(NUMBERS),
        ], [("int32", (batch, k)), ("float32", (batch, NUMBERS)), ("float32", (batch,))],
        )  # fmt: skip
        exact = self.exact and train
        counts = self._counts if exact else []
        read = gpu.node("CowClipRead", {
            "tables": self._numbers if exact else self._plain, "wait": 0, "width": self.columns,
            "pairs": 1, "T": self._hidden()["T"], "Index": INT32, "K": len(counts),
            "R": len(counts),
        }, ids=take.out(0), offsets=self._offsets, numbers=take.out(1), counts=counts,
            variables=self._handles if exact else self._plain_handles)  # fmt: skip
        weights = self._weights
        mlp = gpu.node("CowClipMlp", self._hidden(), x=read.out(0), kernels=weights[:n],
                       biases=weights[n : 2 * n], output=weights[-2])  # fmt: skip
        return take, read, mlp, [mlp.out(2 * n + 3), weights[-1], read.out(1), read.out(2)]

    def _step(self) -> dict[str, Node]:
        gpu, b, n, rows = self.gpu, self.batch, len(self.widths), self.rows
        counts, none = self._counts, np.int64(0)
        take, read, mlp, logits = self._forward(rows, self.position, b, train=True)
        loss = gpu.launch("click_loss", -(-b // 256), [*logits, take.out(2), np.int32(b)],
                          [("float32", (b, 1)), ("float64", (2 * -(-b // 256),))])  # fmt: skip
        join = gpu.launch("join_loss", 1, [loss.out(1), np.int32(-(-b // 256)), self.loss],
                          [("float32", (1,))])  # fmt: skip
        sizes = {"columns": self.columns, "widths": [self.inputs, *self.widths], "G": 0}
        of_mlp = gpu.node(
            "CowClipMlpGradient", self._hidden() | sizes,
            activations=[mlp.out(1 + i) for i in range(n + 1)],
            masks=[mlp.out(2 + n + i) for i in range(n)], weights=mlp.out(2 * n + 2), gradient=[],
            output=self._weights[-2], of_output=loss.out(0),
        )  # fmt: skip
        iterations, values = gpu.tensor(self.iterations), self.values
        scalars = values.embedding_lr, values.dense_lr, values.beta_1, values.beta_2
        rate, dense_rate, *betas = [gpu.tensor(gpu.array([x], "f"), ()) for x in scalars]
        step = gpu.node("CowClipReadStep", {
            "tables": self._numbers, "wait": 0, "fields": len(rows.fields),
            "T": self._hidden()["T"], "K": len(counts), "R": len(counts),
        }, rate=rate, iterations=iterations, counts=counts, groups=read.out(4),
            rows=[read.out(5 + i) for i in range(len(counts))], flat=of_mlp.out(0),
            first=loss.out(0), second=loss.out(0), sums=read.out(3),
            variables=self._handles)  # fmt: skip
        gradients = [*(of_mlp.out(1 + i) for i in range(2 * n + 1)), join.out(0)]
        dense = gpu.node("CowClipDense", {
            "tables": self._numbers[:1], "wait": 0, "epsilon": values.epsilon, "K": 0,
        }, rate=dense_rate, iterations=iterations, beta_1=betas[0], beta_2=betas[1], counts=[],
            gradients=gradients, variables=self._dense_handles)  # fmt: skip
        done = [x for i, c in enumerate(counts) for x in (c, step.out(2 + i))] or [none] * 4
        after = gpu.launch("next_step", 1, [
            *done, iterations, self.position, np.int32(b), np.int64(rows.count)
        ])  # fmt: skip
        return {"take": take, "read": read, "mlp": mlp, "loss": loss, "join": join,
                "of_mlp": of_mlp, "step": step, "dense": dense, "after": after}  # fmt: skip

    def flush(self) -> None:
        """Bring all rows up to date.

        Raises:
            RuntimeError: if a step since the last flush was refused.
        """
        self.gpu.run([self._flush])
        for table in self.tables if self.exact else []:
            table["count"].fill(0)
        self.gpu.wait()

    def logits(self, rows: Rows, batch: int = 131_072) -> Floats:
        """Return the logits of rows, after a flush: float32 [rows]."""
        gpu, batch = self.gpu, min(batch, rows.count)
        at, z = gpu.xp.zeros(1, np.int64), gpu.xp.zeros(rows.count, np.float32)
        *nodes, parts = self._forward(rows, at, batch, train=False)
        kept = [*parts, at, np.int64(rows.count), np.int32(batch), z]
        nodes.append(gpu.launch("scores", -(-batch // 256), kept))
        nodes.append(gpu.launch("next_part", 1, [at, np.int32(batch)]))
        gpu.run(nodes, -(-rows.count // batch))
        return gpu.host(z)
