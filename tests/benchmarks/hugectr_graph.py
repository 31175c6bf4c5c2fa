"""The tensors of a HugeCTR model: their names, shapes and weights, by the rules of its layers.

The rules come from HugeCTR at v23.12.00 and v24.06.00: src/pybind/model.cpp (23.12) or
model_compile.cpp (24.06) for names, src/pybind/add_dense_layer_helpers.cpp for shapes, and
src/layers/*.cu for weights and for what a layer rejects. Shapes are those of one batch.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

Shape = tuple[int, ...]


class GraphError(RuntimeError):
    """HugeCTR would end with an error, or compute something else."""


def require(holds: bool, message: str) -> None:
    if not holds:
        raise GraphError(message)


class Graph:
    """The tensors that were added so far.

    Attributes:
        shapes: tensor -> shape.
        slots: sparse input -> number of slots.
        readers: tensor -> number of layers that read it.
        parameters: number of dense weights.
        table: slot -> rows of its table; width of a row.
        loss: whether the loss was added.
    """

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.shapes: dict[str, Shape] = {}
        self.slots: dict[str, int] = {}
        self.readers: Counter[str] = Counter()
        self.parameters = 0
        self.tables: list[tuple[list[int], int]] = []
        self.loss = False

    def add_input(self, given: Any) -> None:
        self._define(given.label_name, (self.batch, given.label_dim))
        self._define(given.dense_name, (self.batch, given.dense_dim))
        for sparse in given.data_reader_sparse_param_array:
            require(sparse.top_name not in self.shapes, f"{sparse.top_name} exists")
            self.slots[sparse.top_name] = sparse.slot_num

    def add_embedding(self, given: Any) -> None:
        require(given.bottom_name in self.slots, f"Cannot find bottom {given.bottom_name}")
        require(given.combiner in ("sum", "mean"), f"No such combiner type: {given.combiner}")
        require(0 < given.embedding_vec_size <= 1024, "Embedding vector size is invalid")
        slots = self.slots[given.bottom_name]
        require(len(given.slot_size_array) == slots, "one slot size for each slot")
        self.readers[given.bottom_name] += 1
        require(self.readers[given.bottom_name] == 1, "two embeddings of one sparse input")
        self.tables.append((list(given.slot_size_array), given.embedding_vec_size))
        self._define(given.sparse_embedding_name, (self.batch, slots, given.embedding_vec_size))

    def add_layer(self, layer: Any) -> None:
        require(not {*layer.top_names} & {*layer.bottom_names}, "bottom and top of one name")
        for name in layer.bottom_names:
            require(name in self.shapes, f"{name}, bottom tensor name does not exists")
            self.readers[name] += 1
            require(self.readers[name] <= 5, "more than 5-way branches")
        kind = layer.layer_type.name
        rule = getattr(self, f"_{kind.lower()}", None)
        require(rule is not None, f"no rule for {kind}; add it here")
        shapes = rule(layer, *(self.shapes[name] for name in layer.bottom_names))
        require(len(shapes) == len(layer.top_names), f"{kind} has {len(shapes)} outputs")
        for name, shape in zip(layer.top_names, shapes):
            self._define(name, shape)

    def unread(self) -> set[str]:
        """Return the tensors that no layer reads."""
        return ({*self.shapes} | {*self.slots}) - {*self.readers}

    def _define(self, name: str, shape: Shape) -> None:
        require(name not in self.shapes, f"{name}, top tensor name already exists")
        require(name not in self.slots, f"{name} is a sparse input")
        require(all(size > 0 for size in shape), f"{name} is empty: {shape}")
        self.shapes[name] = shape

    def _reshape(self, layer: Any, bottom: Shape) -> list[Shape]:
        width = layer.leading_dim
        require(width > 0 and layer.time_step == 0, "only leading_dim is used here")
        require(prod(bottom) % width == 0, f"{bottom} has no rows of {width}")
        # `calculate_tensor_dimensions` would report the batch, whatever the width.
        return [(prod(bottom) // width, width)]

    def _slice(self, layer: Any, bottom: Shape) -> list[Shape]:
        require(bool(layer.ranges), "Empty slice ranges is not allowed")
        before = (-1, 0)
        for start, end in layer.ranges:
            require(0 <= start < end <= bottom[-1], "Ranges cannot be bigger than the input width")
            require(before[0] <= start and before[1] <= end, "A range cannot be out-order")
            before = (start, end)
        return [(*bottom[:-1], end - start) for start, end in layer.ranges]

    def _concat(self, layer: Any, *bottoms: Shape) -> list[Shape]:
        require(all(len(b) == 2 and b[0] == bottoms[0][0] for b in bottoms), f"{bottoms}")
        return [(bottoms[0][0], sum(b[1] for b in bottoms))]

    def _innerproduct(self, layer: Any, bottom: Shape) -> list[Shape]:
        require(len(bottom) in (2, 3), "InnerProductLayer needs 2D or 3D input tensor")
        self.parameters += (bottom[-1] + 1) * layer.num_output
        return [(*bottom[:-1], layer.num_output)]

    def _relu(self, layer: Any, bottom: Shape) -> list[Shape]:
        return [bottom]

    def _multicross(self, layer: Any, bottom: Shape) -> list[Shape]:
        require(len(bottom) == 2 and layer.num_layers > 0, "MultiCross needs 2D and layers")
        require(layer.projection_dim == 0, "only the cross network of DCN is used here")
        self.parameters += layer.num_layers * 2 * bottom[1]  # weights and bias, 1 x width each
        return [bottom]

    def _fmorder2(self, layer: Any, bottom: Shape) -> list[Shape]:
        require(len(bottom) == 2 and layer.out_dim > 0, "FmOrder2 needs 2D and a width")
        require(bottom[1] % layer.out_dim == 0, f"{bottom} has no slots of {layer.out_dim}")
        return [(bottom[0], layer.out_dim)]

    def _reducesum(self, layer: Any, bottom: Shape) -> list[Shape]:
        require(0 <= layer.axis < len(bottom), "The axis is overflow")
        return [tuple(1 if i == layer.axis else size for i, size in enumerate(bottom))]

    def _add(self, layer: Any, *bottoms: Shape) -> list[Shape]:
        require(
            len(bottoms) > 1 and len({*bottoms}) == 1, f"All the input must be alike: {bottoms}"
        )
        return [bottoms[0]]

    def _binarycrossentropyloss(self, layer: Any, *bottoms: Shape) -> list[Shape]:
        require(len(bottoms) == 2, "BinaryCrossEntropyLoss must have two inputs")
        require(bottoms[0] == bottoms[1], f"prediction and label differ: {bottoms}")
        self.loss = True
        return [(1, 1)]
