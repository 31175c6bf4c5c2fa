"""The layers of W&D, DeepFM and DCN in HugeCTR's Python API, as in docs/reference.md.

They have the weights of this project's models with `continuous="deep"`. W&D and DeepFM keep the
first-order weight of an id as one more column of its embedding, like HugeCTR's sample
`samples/deepfm/deepfm_parquet.py`. HugeCTR copies a tensor that several layers read
(`Model::graph_analysis` in `HugeCTR/src/pybind/model_compile.cpp`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import hugectr

from contestants.job import Job

MODELS = ("wide_and_deep", "deepfm", "dcn")
CROSS_LAYERS = 3
LABEL, LOGIT = "label", "logit"
"""Names of the tensors that `hugectr.py` copies; in evaluation, LOGIT ends up as probabilities."""


def add_layers(
    model: Any, data: Mapping[str, Any], job: Job, *, name: str, optimizer: Any, combiner: str
) -> None:
    """Add input, embedding, layers and loss to an empty HugeCTR model.

    Args:
        model: a `hugectr.Model`.
        data: content of `hugectr.json`.
        job: widths of the embeddings and of the hidden layers.
        name: one of `MODELS`.
        optimizer: optimizer of the embeddings.
        combiner: "mean" or "sum" of the embeddings of a slot with several keys; no key gives zeros
            (`forward_mean_kernel` in HugeCTR/src/embeddings/forward_per_gpu_functor.cu).
    """
    slots = len(data["slot_names"])
    first_order = name != "dcn"
    model.add(_input(data, slots))
    model.add(_embedding(data, job.embedding_dim + first_order, optimizer, combiner))
    if first_order:
        _split_first_order(model, slots, job.embedding_dim)
    else:
        _reshape(model, "embedding", "v", slots * job.embedding_dim)
    hidden = _add_mlp(model, job.widths)
    if name == "dcn":
        _layer(model, "MultiCross", ["v"], ["cross"], num_layers=CROSS_LAYERS)
        _layer(model, "Concat", ["cross", hidden], ["cross_and_deep"])
        _linear(model, "cross_and_deep", LOGIT, 1)
    else:
        _linear(model, hidden, "deep", 1)
        parts = ["deep", "first_order"]
        if name == "deepfm":
            _layer(model, "FmOrder2", ["v"], ["pairs_by_column"], out_dim=job.embedding_dim)
            _layer(model, "ReduceSum", ["pairs_by_column"], ["pairs"], axis=1)
            parts.append("pairs")
        _layer(model, "Add", parts, [LOGIT])
    _layer(model, "BinaryCrossEntropyLoss", [LOGIT, LABEL], ["loss"])


def _input(data: Mapping[str, Any], slots: int) -> Any:
    ids = hugectr.DataReaderSparseParam(
        top_name="ids", nnz_per_slot=data["nnz_per_slot"], is_fixed_length=False, slot_num=slots
    )
    return hugectr.Input(
        label_dim=data["label_dim"],
        label_name=LABEL,
        dense_dim=data["dense_dim"],
        dense_name="x",
        data_reader_sparse_param_array=[ids],
    )


def _embedding(data: Mapping[str, Any], width: int, optimizer: Any, combiner: str) -> Any:
    return hugectr.SparseEmbedding(
        embedding_type=hugectr.Embedding_t.LocalizedSlotSparseEmbeddingHash,
        embedding_vec_size=width,
        combiner=combiner if max(data["nnz_per_slot"]) > 1 else "sum",
        sparse_embedding_name="embedding",
        bottom_name="ids",
        slot_size_array=data["slot_size_array"],
        optimizer=optimizer,
    )


def _split_first_order(model: Any, slots: int, dim: int) -> None:
    """Split the embeddings into the vectors `v` and the sum of the first-order weights."""
    _reshape(model, "embedding", "table_rows", dim + 1)
    _layer(
        model,
        "Slice",
        ["table_rows"],
        ["vectors", "weights"],
        ranges=[(0, dim), (dim, dim + 1)],
    )
    _reshape(model, "vectors", "v", slots * dim)
    _reshape(model, "weights", "weights_by_slot", slots)
    _layer(model, "ReduceSum", ["weights_by_slot"], ["first_order"], axis=1)


def _add_mlp(model: Any, widths: Sequence[int]) -> str:
    """Add the hidden layers; return the name of the last one's output."""
    _layer(model, "Concat", ["v", "x"], ["hidden0"])
    for number, width in enumerate(widths, 1):
        _linear(model, f"hidden{number - 1}", f"sums{number}", width)
        _layer(model, "ReLU", [f"sums{number}"], [f"hidden{number}"])
    return f"hidden{len(widths)}"


def _reshape(model: Any, bottom: str, top: str, width: int) -> None:
    _layer(model, "Reshape", [bottom], [top], leading_dim=width)


def _linear(model: Any, bottom: str, top: str, width: int) -> None:
    """Add weights and a bias; HugeCTR's default would start the bias at random."""
    zero = hugectr.Initializer_t.Zero
    _layer(model, "InnerProduct", [bottom], [top], num_output=width, bias_init_type=zero)


def _layer(model: Any, kind: str, bottoms: list[str], tops: list[str], **options: Any) -> None:
    model.add(
        hugectr.DenseLayer(
            layer_type=getattr(hugectr.Layer_t, kind),
            bottom_names=bottoms,
            top_names=tops,
            **options,
        )
    )
