"""Write a run as a TensorFlow SavedModel that takes the raw values of the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin import compat
from cowclip_merlin.compat.tensorflow_names import safe_names
from cowclip_merlin.system.files import atomic_folder
from cowclip_merlin.training import load_run
from cowclip_merlin.training.run_config import RunConfig, data_of_run, local_run
from cowclip_merlin.training.trained_run import (
    OFFSETS,
    VALUES,
    translate_write_errors,
    write_columns,
)
from cowclip_merlin.types import Tensor, TensorSpec
from cowclip_merlin.workflows import PreparedData
from cowclip_merlin.workflows.raw.made_columns import made_values

if TYPE_CHECKING:
    from cowclip_merlin.serving.raw_value_model import RawValueModel


def export(
    run: str | Path, *, out: str | Path, data: str | Path | None = None, device: str = "auto"
) -> dict[str, TensorSpec]:
    """Write a run and its workflow as a TensorFlow SavedModel that takes raw values.

    Programs need neither this package nor NVTabular. The signature "serving_default" takes one
    tensor for each column: of a categorical column strings [b], "" for a missing one; of a
    continuous column float64 [b], NaN for a missing one; of lists strings [b, k], which "" fills
    up; of vectors float32 [b, length]. With lists, the signature "serving_ragged" takes their
    values as NAME__values, strings [m], and where each row begins and the last ends as
    NAME__offsets, int32 [b + 1]. Each signature returns "probability", float32 [b]; with several
    targets a tensor for each, with the name of the label. It is NaN if 32 bits cannot hold a number
    of the row after scaling.

    An input has the name of its column if TensorFlow allows it, else a similar name.
    `assets.extra/columns.json` in the folder maps every input to its column, and each of several
    outputs to its label. Columns that `prepare` makes of others, as of a time its hour, are inputs,
    too: "made" there says which values they take.

    Args:
        run: the run folder.
        out: folder to write; it must not exist.
        data: the folder that the run was trained on; None: where it was then.
        device: "auto", "cpu" or "gpu": where to load the model.

    Returns:
        Input name -> its `tf.TensorSpec`, of "serving_default".

    Raises:
        InputError: if an input is wrong.
    """
    with atomic_folder(out) as temporary:
        run = local_run(run)
        config = RunConfig.load(run)
        prepared = PreparedData.load(data_of_run(run, config) if data is None else data)
        model = load_run(run, prepared.path, device=device)
        from cowclip_merlin.models.multi_task import output_names
        from cowclip_merlin.serving.raw_value_model import RawValueModel

        served, tf = RawValueModel(model, prepared), compat.tensorflow()
        layout = prepared.log_format
        names = safe_names([*prepared.categorical, *prepared.continuous, *layout.vectors])
        labels = output_names(prepared.targets)
        inputs = _inputs(prepared, names)
        serve = _serving_function(served, prepared, names, labels)
        signatures = {"serving_default": tf.function(serve, input_signature=[inputs])}
        if layout.multi:
            ragged = {
                k: spec for k, spec in inputs.items() if k not in map(names.get, layout.multi)
            }
            for name in map(names.get, layout.multi):
                ragged[name + VALUES] = tf.TensorSpec([None], tf.string, name + VALUES)
                ragged[name + OFFSETS] = tf.TensorSpec([None], tf.int32, name + OFFSETS)
            signatures["serving_ragged"] = tf.function(serve, input_signature=[ragged])
        with translate_write_errors(Path(out)):
            tf.saved_model.save(served, str(compat.literal_path(temporary)), signatures=signatures)
        outputs = labels if len(labels) > 1 else {}
        write_columns(temporary, names, outputs, made_values(layout))
    return inputs


def _inputs(data: PreparedData, names: Mapping[str, str]) -> dict[str, TensorSpec]:
    tf, layout = compat.tensorflow(), data.log_format
    shapes = {c: [None, None] if c in layout.multi else [None] for c in data.categorical}
    kinds = {c: (tf.string, shape) for c, shape in shapes.items()}
    kinds |= dict.fromkeys(data.continuous, (tf.float64, [None]))
    kinds |= {c: (tf.float32, [None, length]) for c, length in layout.vectors.items()}
    return {names[c]: tf.TensorSpec(shape, kind, names[c]) for c, (kind, shape) in kinds.items()}


def _serving_function(
    served: RawValueModel,
    data: PreparedData,
    names: Mapping[str, str],
    outputs: Mapping[str, str],
) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """Build the function of both signatures: lists are matrices, or values and offsets."""
    tf, layout = compat.tensorflow(), data.log_format

    def of_list(given: dict[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
        if name in given:
            values = given[name]
            return tf.reshape(values, [-1]), tf.fill([tf.shape(values)[0]], tf.shape(values)[1])
        values, offsets = given[name + VALUES], given[name + OFFSETS]
        words = f"{name}{OFFSETS} must end with the number of {name}{VALUES}"
        whole = tf.debugging.assert_equal(offsets[-1], tf.size(values), message=words)
        with tf.control_dependencies([whole]):
            return tf.identity(values), offsets[1:] - offsets[:-1]

    def serve(given: dict[str, Tensor]) -> dict[str, Tensor]:
        texts = {c: given[names[c]] for c in data.categorical if c not in layout.multi}
        numbers = [given[names[c]] for c in data.continuous]
        vectors = {c: given[names[c]] for c in layout.vectors}
        lists = {c: of_list(given, names[c]) for c in layout.multi}
        rows = tf.shape([*texts.values(), *(lengths for _, lengths in lists.values())][0])[0]
        x = tf.stack(numbers, axis=1) if numbers else tf.zeros([rows, 0], tf.float64)
        found = served.values(texts, x, lists, vectors)
        return {outputs[label]: value for label, value in found.items()}

    return serve
