"""The five models in NumPy float64, row by row, from the papers' formulas; and schemas for them."""

import numpy as np
from table_schemas import schema_of_tables

from cowclip_merlin.batch import Batch, Ids

SMALL = {"embedding_dim": 4, "mlp": (6, 5), "seed": 3}
FIELDS = {"item": 7, "clicked": 7, "tags": 4, "bought": 7}  # lists except item; all items share
LISTS = {"clicked": "mean", "tags": "sqrtn", "bought": "mean"}
HISTORIES = (1, 3)  # of DIN, whose target is column 0
SOME = [([1], [1, 2, 1], [0], [4]), ([2], [], [1, 2, 2], []), ([6], [0], [], [6, 6])]
NUMBERS = {"seconds"}  # labels that are numbers
POWERS = {"mean": 1.0, "sum": 0.0, "sqrtn": 0.5}


def with_targets(schema, *targets):
    """The schema with these labels in place of its own."""
    from merlin.schema import ColumnSchema, Schema, Tags

    kinds = {True: Tags.REGRESSION, False: Tags.BINARY_CLASSIFICATION}
    labels = [
        ColumnSchema(name, dtype=np.float32, tags=[Tags.TARGET, kinds[name in NUMBERS]])
        for name in targets
    ]
    return Schema([*schema.excluding_by_name(["click"]), *labels])


def for_task(schema, how):
    """The schema with the labels of a kind of `multi_task`."""
    if how is None:
        return schema
    return with_targets(schema, *(("click", "buy", "seconds")[: 2 if how == "esmm" else 3]))


def list_schema(lists=LISTS):
    tables = dict.fromkeys(("clicked", "bought"), "item")
    return schema_of_tables(FIELDS, tables=tables, lists=lists, continuous=["x", "y"])


def list_batch(rows):
    """A batch of rows of lists, with some numbers."""
    values = [id_ for row in rows for column in row for id_ in column]
    lengths = np.array([[*map(len, row)] for row in rows], np.int32)
    x = np.linspace(-1, 1, 2 * len(rows), dtype=np.float32).reshape(-1, 2)
    return Batch(Ids(np.array(values, np.int64), lengths), x)


def value(x):
    return np.asarray(x, np.float64)


class ByHand:
    """A model's logits for one target, before ESMM's product.

    Args:
        model: of any layout whose tables are whole.
        rows: for each row a list of ids for each column.
        x: numbers [b, C].
        target: its index.
    """

    def __init__(self, model, rows, x, target=0):
        self.body, self.ids, self.x, self.target = model.blocks[0], rows, value(x), target
        settings = self.body.architecture
        self.all, self.how = settings.continuous == "all", settings.multi_task
        self.many = self.how is not None

    def tables(self, layer):
        """The table of each field."""
        whole = np.concatenate([value(table) for table, _ in layer.table_layouts()])
        return np.split(whole, np.cumsum([*layer.layout.fields.values()])[:-1])

    def vectors(self, layer, row):
        """The combined embedding of each column."""
        tables, found = self.tables(layer), []
        columns, names = self.body.columns, [*self.body.columns.fields]
        for c, (name, field) in enumerate(zip(names, columns.table_of_field)):
            items = [tables[field][i] for i in self.ids[row][c]]
            power = POWERS[columns.combiners.get(name, "sum")]
            if hasattr(self.body, "units") and c in HISTORIES:
                unit, power = self.body.units[HISTORIES.index(c)], 0.0
                target = tables[field][self.ids[row][0][0]]
                items = [weight_of(unit, item, target) * item for item in items]
            found.append(sum(items, np.zeros(layer.dim)) / max(len(items), 1) ** power)
        return found

    @property
    def wide(self):
        return self.body.wide[self.target] if self.many else self.body.wide

    def linear(self, row):
        z = sum(w[0] for w in self.vectors(self.wide, row))
        kernel = value(self.body.wide_dense.kernel)[:, self.target] if self.all else 0.0
        return z + (self.x[row] @ kernel if self.all else 0.0)

    def flat(self, row):
        return np.concatenate([*self.vectors(self.body.embedding, row), self.x[row]])

    def tower(self, layers, row):
        h = self.flat(row)
        for block in layers:
            kernel, bias = block.trainable_variables
            h = np.maximum(h @ value(kernel) + value(bias), 0)
        return h

    def hidden(self, row):
        """MMoE: Ma et al., KDD 2018, equations 5 to 7: experts, weighted by the target's gate."""
        if self.how == "esmm":
            return self.tower(self.body.towers[self.target], row)
        if self.how != "mmoe":
            return self.tower(self.body.hidden, row)
        experts = [self.tower(layers, row) for layers in self.body.towers]
        n = len(experts)
        kernel = value(self.body.gates.kernel)[:, self.target * n : (self.target + 1) * n]
        gate = np.exp(self.flat(row) @ kernel)
        return sum(share * expert for share, expert in zip(gate / gate.sum(), experts))

    def last(self, h):
        if self.how in ("mmoe", "esmm"):
            return h @ value(self.body.logit.w)[self.target] + value(self.body.logit.b)[self.target]
        kernel, bias = self.body.logit.trainable_variables
        return h @ value(kernel)[:, self.target] + value(bias)[self.target]

    def WideAndDeep(self, row):
        return self.linear(row) + self.last(self.hidden(row))

    def DeepFM(self, row):
        v = self.vectors(self.body.embedding, row)
        weights = value(self.body.fm.kernel)[:, self.target] if self.many else 1.0
        pairs = sum((weights * v[f]) @ v[g] for f in range(len(v)) for g in range(f))
        return self.linear(row) + pairs + self.last(self.hidden(row))

    def crossed(self, row):
        return self.flat(row) if self.all else self.flat(row)[: -self.x.shape[1]]

    def DCN(self, row):
        x0 = x = self.crossed(row)
        for w, b in zip(self.body.cross.w, self.body.cross.b, strict=True):
            x = x0 * (x @ value(w)[:, 0]) + value(b) + x
        return self.with_cross(x, row)

    def DCNv2(self, row):
        cross = self.body.cross
        x0 = x = self.crossed(row)
        if hasattr(cross, "factors"):
            return self.with_cross(self.low_rank(cross, x), row)
        for w, b in zip(cross.w, cross.b, strict=True):
            x = x0 * (value(w).T @ x + value(b)) + x
        return self.with_cross(x, row)

    def low_rank(self, cross, x0):
        x = x0
        for factor, b in zip(cross.factors, cross.b, strict=True):
            u, c, v = (value(factor[k]) for k in "ucv")
            gates = np.exp(x @ value(cross.gate))
            gates, total = gates / gates.sum(), np.zeros_like(x)
            for e in range(cross.experts):
                low = np.tanh(c[e] @ np.tanh(v[e].T @ x))
                total += gates[e] * x0 * (u[e] @ low + value(b))
            x = total + x
        return x

    def with_cross(self, x, row):
        z = self.last(np.concatenate([x, self.hidden(row)]))
        return z + self.linear(row) if self.all else z

    def DIN(self, row):
        return self.last(self.hidden(row))

    def logits(self):
        compute = getattr(self, type(self.body).__name__)
        return np.array([compute(row) for row in range(len(self.ids))])


def weight_of(unit, item, target):
    """Of an item in a history (DIN, section 4.3): the activation unit, without a softmax."""
    h = np.concatenate([item, target, item - target, item * target])
    for dense, prelu in zip(unit.hidden, unit.prelu, strict=True):
        h = h @ value(dense.kernel) + value(dense.bias)
        h = np.where(h > 0, h, value(prelu.alpha) * h)
    return (h @ value(unit.weight.kernel) + value(unit.weight.bias))[0]


def logits_by_hand(model, rows, x):
    """Logits [b, T] of all targets, with ESMM's product (Ma et al., SIGIR 2018, equation 1)."""
    targets = range(len(model.blocks[0].columns.targets))
    z = np.stack([ByHand(model, rows, x, target).logits() for target in targets], axis=1)
    if model.blocks[0].architecture.multi_task == "esmm":
        p = np.prod(1 / (1 + np.exp(-z)), axis=1)
        z[:, 1] = np.log(p / (1 - p))
    return z
