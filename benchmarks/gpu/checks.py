"""Compare the operations on a GPU with NumPy: groups, hidden layers, training, refused steps."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field, replace

import numpy as np

from cowclip_merlin.contrib import fused_mlp as hidden
from cowclip_merlin.scaling import scale
from cowclip_merlin.types import Array, Floats
from gpu import Sizes
from gpu.deepfm import DeepFM, Rows, criteo_fields
from gpu.operations import BFLOAT16, FLOAT, Gpu


def distance(x: Floats, y: Floats) -> float:
    """Return |x - y| / |y|."""
    return float(np.linalg.norm(x - y) / max(np.linalg.norm(y), 1e-30))


def widened(array: Array) -> Floats:
    """Return float32 of the bits of bfloat16, and other arrays as they are."""
    return (array.astype(np.uint32) << 16).view("f") if array.dtype == np.uint16 else array


def bfloat16_bits(array: Floats) -> Array:
    """Return the bits of bfloat16 of numbers that it can hold."""
    return (array.astype("f").view(np.uint32) >> 16).astype(np.uint16)


class Reference:
    """The same DeepFM in NumPy float64, with a step of all rows at every batch: slow and obvious.

    Attributes:
        tables, dense: "w" and "m" and "v", or "sums" of Adagrad, of each, float64.
    """

    def __init__(self, model: DeepFM) -> None:
        self.tables, self.dense = [
            [{k: model.gpu.host(t[k]).astype(np.float64) for k in ("w", *slots)} for t in each]
            for each, slots in ((model.tables, model.slots), (model.dense, ("m", "v")))
        ]
        self._offsets = np.cumsum([0, *model.rows.fields[:-1]])
        self._values, self._settings, self._t = model.values, model.settings, 0

    def step(self, ids: Array, x: Floats, y: Floats) -> float:
        """Train one batch, and return its mean loss."""
        rows, b, n = ids + self._offsets, len(y), (len(self.dense) - 2) // 2
        w, wide = (t["w"] for t in self.tables)
        kernels, biases = ([t["w"] for t in self.dense[i * n : (i + 1) * n]] for i in (0, 1))
        output, bias = self.dense[-2]["w"], self.dense[-1]["w"]
        v = w[rows]
        sums = v.sum(1)
        flat = np.concatenate([v.reshape(b, -1), x], 1)
        h = flat
        for kernel, each in zip(kernels, biases):
            h = np.maximum(h @ kernel + each, 0)
        second = 0.5 * (sums**2 - (v**2).sum(1)).sum(1)
        z = (h @ output)[:, 0] + bias[0] + wide[rows][:, :, 0].sum(1) + second
        dz = (1 / (1 + np.exp(-z)) - y) / b
        _, of_flat, *of_weights = hidden.reference(flat, kernels, biases, dz[:, None], output)
        of_v = of_flat[:, : v[0].size].reshape(v.shape) + dz[:, None, None] * (sums[:, None] - v)
        gradients = np.zeros_like(w), np.zeros_like(wide)
        np.add.at(gradients[0], rows, of_v)
        np.add.at(gradients[1], rows, np.broadcast_to(dz[:, None, None], (*rows.shape, 1)))
        self._t += 1
        count = np.bincount(rows.ravel(), minlength=len(w))
        for table, g, settings in zip(self.tables, gradients, self._settings):
            g += 2 * settings.l2 * table["w"]
            if settings.clip == "cowclip":
                norm, of_w = np.linalg.norm(g, axis=1), np.linalg.norm(table["w"], axis=1)
                least = settings.floor(g.shape[1])
                most = np.maximum(count, 1) * np.maximum(settings.r * of_w, least)
                g *= np.minimum(1, most / np.maximum(norm, 1e-300))[:, None]
            step = self._adagrad if "sums" in table else self._adam
            step(table, g, self._values.embedding_lr)
        for each, g in zip(self.dense, [*of_weights, np.array([dz.sum()])]):
            self._adam(each, g, self._values.dense_lr)
        return np.mean(np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z))))

    def _adagrad(self, t: dict[str, Floats], g: Floats, rate: float) -> None:
        rowwise = self._values.optimizer == "rowwise_adagrad"
        t["sums"] += (g * g).mean(1, keepdims=True) if rowwise else g * g
        t["w"] -= rate * g / (np.sqrt(t["sums"]) + self._values.epsilon)

    def _adam(self, t: dict[str, Floats], g: Floats, rate: float) -> None:
        values, k = self._values, self._t
        t["m"] += (1 - values.beta_1) * (g - t["m"])
        t["v"] += (1 - values.beta_2) * (g * g - t["v"])
        rate *= np.sqrt(1 - values.beta_2**k) / (1 - values.beta_1**k)
        t["w"] -= rate * t["m"] / (np.sqrt(t["v"]) + values.epsilon)


def _arrays(model: DeepFM | Reference) -> list[tuple[str, Array]]:
    """Return weights, moments and accumulators with their kind."""
    kinds = ("embeddings", "id weights", *len(model.dense) * ["dense weights"])
    return [
        (kind if name == "w" else f"moments of {kind}", each[name])
        for kind, each in zip(kinds, (*model.tables, *model.dense))
        for name in ("w", "m", "v", "sums")
        if name in each
    ]


@dataclass
class Checks:
    """The checks, each of which prints a line per figure.

    Attributes:
        gpu: what is checked.
        sizes: of tables and batches.
        found: difference and bound by name.
        wrong: names of those that are wrong.
    """

    gpu: Gpu
    sizes: Sizes
    found: dict[str, tuple[float, float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def all(self) -> None:
        """Run all checks."""
        s = self.sizes
        self.pinned_memory()
        for ids, batch in ((s.few_ids, s.small), (s.many_ids, s.large), (s.few_ids, s.large)):
            self.groups(ids, batch)
        for half, tf32 in ((False, False), (False, True), (True, False)):
            self.hidden_layers(half=half, tf32=tf32)
        self.training("exact", s.check, s.steps)
        self.training("exact", s.check // 8, s.many_steps)
        self.training("lazy", s.check, 3)
        self.training("exact", s.check, s.steps, half=True)
        self.training("dense", s.check, 3, optimizer="rowwise_adagrad")
        self.training("lazy", s.check, 3, optimizer="rowwise_adagrad", half=True)
        self.training("lazy", s.check, 3, optimizer="adagrad")
        self.refused_steps()
        self.equal_runs()

    def note(self, name: str, difference: float, bound: float) -> None:
        """Print and keep a difference from what is right; NaN is wrong."""
        right = bool(difference <= bound)
        word = "right" if right else "WRONG"
        print(f"{word}  {name:<60} {difference:8.1e} <= {bound:.0e}", flush=True)
        self.found[name] = float(difference), bound
        if not right:
            self.wrong.append(name)

    def pinned_memory(self) -> None:
        """A kernel writes into memory of the host, as every step does with its status."""
        at = self.gpu.library.world_pinned(ctypes.c_longlong(8 * 4096))
        if at is None:
            raise RuntimeError("the CUDA driver has no pinned memory")
        pinned = np.frombuffer((ctypes.c_longlong * 4096).from_address(at), np.int64)
        self.gpu.run([self.gpu.launch("write_host", 16, [np.int64(at), np.int32(4096)])])
        self.gpu.wait()
        self.note("pinned memory", float((pinned != 1000 + np.arange(4096)).sum()), 0)

    def groups(self, vocabulary: int, batch: int) -> None:
        """Distinct ids of a batch, where they start, and the order of their occurrences."""
        rows = Rows(self.gpu, batch, criteo_fields(vocabulary), seed=5)
        model = self.model(rows, batch)
        keys = self.gpu.host(rows.ids) + np.cumsum([0, *rows.fields[:-1]])
        ids, slots, count = np.unique(keys.ravel(), return_inverse=True, return_counts=True)
        right = {
            "ids": ids,
            "starts": np.cumsum([0, *count]),
            "order": np.argsort(keys.ravel(), kind="stable"),
            "slots": slots.ravel(),
            "u": np.array([len(ids)]),
        }
        pitch, wrong = (keys.size + 1 + 63) // 64 * 64, 0
        for _ in range(self.sizes.repeats):  # a race shows only sometimes
            self.gpu.run([model.parts["take"], model.parts["read"]])
            found = model.parts["read"].read(4)
            for i, each in enumerate(right.values()):
                wrong += int((found[i * pitch : i * pitch + len(each)] != each).sum())
        self.note(f"groups of {keys.size:,} occurrences of {vocabulary:,} ids", wrong, 0)

    def hidden_layers(self, *, half: bool, tf32: bool) -> None:
        """Hidden layers forward and backward, with numbers whose sums are exact."""
        gpu, kind = self.gpu, BFLOAT16 if half else FLOAT
        rows, widths = hidden.SMALL if self.sizes.tiny else hidden.LARGE
        x, kernels, biases, _ = hidden._numbers(rows, widths)
        output = np.resize([1.0, 2.0, 1.0], [widths[-1], 1])
        of_output = np.resize([2.0, 1.0], [rows, 1])
        right = hidden.reference(x, kernels, biases, of_output, output)
        n, columns = len(kernels), -(-widths[0] // 8) * 8
        flat = np.pad(x, [(0, 0), (0, columns - widths[0])])
        give = lambda a: gpu.tensor(gpu.array(a, "f"))  # noqa: E731
        last = give(output)
        common = {"X": kind, "T": kind, "N": n, "M": n + 1, "P": 1, "tf32": tf32}
        common["engine"] = gpu.add_engine()
        x = gpu.tensor(gpu.array(bfloat16_bits(flat))) if half else give(flat)
        forward = gpu.node("CowClipMlp", common, x=x, kernels=[*map(give, kernels)],
                           biases=[*map(give, biases)], output=last)  # fmt: skip
        backward = gpu.node(
            "CowClipMlpGradient", common | {"columns": columns, "widths": [*widths], "G": 0},
            activations=[forward.out(1 + i) for i in range(n + 1)],
            masks=[forward.out(2 + n + i) for i in range(n)], weights=forward.out(2 * n + 2),
            gradient=[], output=last, of_output=give(of_output),
        )  # fmt: skip
        gpu.run([forward, backward], 2)
        results = [forward.read(2 * n + 3), *(backward.read(i) for i in range(2 * n + 2))]
        found = [*map(widened, results)]
        found[1] = found[1][:, : widths[0]]
        scales = [np.where(r == 0, 2.0**-20, np.abs(r)) for r in right]
        worst = np.max([np.max(np.abs(f - r) / s) for f, r, s in zip(found, right, scales)])
        name = f"hidden layers in {'bfloat16' if half else 'TF32' if tf32 else 'float32'}"
        self.note(name, worst, 2.0**-7 if half else 2.0**-10)  # a rounding, doubled
        fused = sum(forward.read(2 + n + i).size > 0 for i in range(n))
        print(f"       {fused} of {n - 1} gradients of a ReLU are part of a product", flush=True)

    def training(
        self, update: str, batch: int, steps: int, *, half: bool = False, optimizer: str = "adam"
    ) -> None:
        """Steps of the whole model, in float32 or bfloat16.

        The reference steps all rows at every batch. Lazy updates do not, so there all batches are
        the same, and only the rows in it are compared.
        """
        host, lazy = self.gpu.host, update == "lazy"
        rows = Rows(
            self.gpu, batch * (1 if lazy else 7), criteo_fields(self.sizes.check_ids), seed=3
        )
        values = replace(
            scale("criteo", to=batch), l2=1e-3, embedding_lr=1e-3, dense_lr=1e-3, init_std=0.1,
            optimizer=optimizer,
        )  # fmt: skip
        model = self.model(rows, batch, values=values, update=update, half=half, tf32=False)
        reference = Reference(model)
        before = [each.copy() for _, each in _arrays(reference)]
        ids, x, y, loss = host(rows.ids), host(rows.x), host(rows.y).astype(np.float64), 0.0
        for k in range(steps):
            at = (np.arange(batch) + batch * k) % rows.count
            self.gpu.run(model.step)
            loss += batch * reference.step(ids[at], x[at], y[at])
        model.flush()
        present = np.unique(ids + np.cumsum([0, *rows.fields[:-1]]))
        moved: dict[str, float] = {}
        for (kind, array), (_, right), begin in zip(_arrays(model), _arrays(reference), before):
            some = present if lazy and "dense" not in kind else slice(None)
            apart = distance((host(array) - begin)[some], (right - begin)[some])
            moved[kind] = np.max([moved.get(kind, 0.0), apart])
        name = f"{steps} {update} steps of {batch} in {'bfloat16' if half else 'float32'}: "
        name = name if optimizer == "adam" else f"{optimizer}, {name}"
        # Adam takes the sign of small gradients, which bfloat16 rounds.
        bound, sign = (3e-2, 0.4) if half else (1e-3, 1e-3)
        self.note(name + "loss", abs(float(host(model.loss)[0]) / loss - 1), bound)
        of_tables = "moments of embeddings", "moments of id weights"
        for kind, apart in moved.items():
            self.note(name + kind, apart, bound if kind in of_tables else sign)

    def refused_steps(self) -> None:
        """A step with NaN or with an unknown id changes no table, and the message names the row."""
        gpu, batch = self.gpu, self.sizes.small
        rows = Rows(gpu, batch, criteo_fields(self.sizes.few_ids), seed=7)
        model = self.model(rows, batch)
        tables = lambda: [gpu.host(t[k]).copy() for t in model.tables for k in "wmv"]  # noqa: E731
        changed = lambda before: sum((a != b).any() for a, b in zip(before, tables()))  # noqa: E731
        gpu.run(model.step, 2)
        model.flush()
        label, first = rows.y[:1].copy(), rows.ids[:1].copy()
        for name, words, spoil in (
            ("NaN", "gradient of row", lambda: rows.y[:1].fill(np.nan)),
            ("unknown id", "outside: 2000000000", lambda: rows.ids[:1].fill(2_000_000_000)),
        ):
            before = tables()
            spoil()
            told = self._refusal(model)
            rows.y[:1], rows.ids[:1] = label, first
            self.note(f"{name}: the message names it", float(words not in told), 0)
            self.note(f"{name}: tables that changed", changed(before), 0)
            gpu.run(model.step)
            model.flush()
            self.note(f"{name}: tables that the next step leaves", 6 - changed(before), 0)

    def _refusal(self, model: DeepFM) -> str:
        """Return the message of a step that is refused, now or at the flush."""
        told = ""
        for run in (lambda: self.gpu.run(model.step), model.flush):
            try:
                run()
            except RuntimeError as error:
                told = told or str(error)
        model.flush()
        return told

    def equal_runs(self) -> None:
        """Two trainings have the same bits."""
        ends: list[list[Array]] = []
        for _ in range(2):
            rows = Rows(self.gpu, self.sizes.large, criteo_fields(self.sizes.few_ids), seed=9)
            model = self.model(rows, self.sizes.large)
            self.gpu.run(model.step, 3)
            model.flush()
            ends.append([self.gpu.host(t[k]) for t in model.tables for k in "wmv"])
        different = sum((a.view(np.uint32) != b.view(np.uint32)).any() for a, b in zip(*ends))
        self.note("tables that differ in two equal trainings", different, 0)

    def model(self, rows: Rows, batch: int, **settings: object) -> DeepFM:
        """Make a model with the preset's hyper-parameters, or with others."""
        values = settings.pop("values", None) or scale("criteo", to=batch)
        return DeepFM(self.gpu, rows, batch, values, self.sizes.widths, **settings)
