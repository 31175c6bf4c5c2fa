"""Write a model repository for Triton: `<model>/config.pbtxt` and `<model>/<version>/`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.serving.triton.model import OFFSETS, VALUES, inputs_of
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.system.files import atomic_folder, write_json
from cowclip_merlin.targets import served_names
from cowclip_merlin.training import load_run
from cowclip_merlin.training.trained_run import translate_write_errors
from cowclip_merlin.types import JsonObject
from cowclip_merlin.workflows import PreparedData


@dataclass(frozen=True, kw_only=True)
class RepositorySettings(Settings):
    """How Triton names and batches a model. It serves the largest version.

    Raises:
        InputError: if a name is not allowed or a number is below 1.

    >>> RepositorySettings(model_name="../ctr")
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: `model_name` '../ctr': use letters, digits, _, - and .
    """

    model_name: str = option("ctr", "name of the model", kind=str)
    model_version: int = option(1, "number of its version", kind=int, at_least=1, below=2**31)
    max_batch_size: int = option(
        4096, "rows of the largest batch", kind=int, at_least=1, below=2**31
    )

    def __post_init__(self) -> None:
        """Reject names and numbers that Triton does not accept."""
        super().__post_init__()
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", self.model_name):
            raise InputError(f"`model_name` {self.model_name!r}: use letters, digits, _, - and .")


_ESCAPED = {ord('"'): r"\"", ord("\\"): r"\\"} | {
    code: f"\\{code:03o}" for code in (*range(32), 127)
}


def config_text(columns: JsonObject, settings: RepositorySettings) -> str:
    """Return the text of `config.pbtxt` for a model with one input per column.

    The inputs have the names of the columns. Each row has one value of each: a string of a
    categorical column, a 64-bit float of a continuous one, 32-bit floats of a vector. A list column
    has two inputs, of which the first dimension is not the number of rows. Triton cannot batch such
    requests.

    Args:
        columns: "categorical", "continuous", "lists" and "outputs" -> names; "vectors" -> name ->
            length.
        settings: name of the model and size of its batches.
    """
    lists = columns.get("lists", ())
    rows = [-1] if lists else []
    tensors = [
        _tensor("input", name, kind, [-1] if last == -1 else [*rows, last])
        for name, (kind, last) in inputs_of(columns).items()
    ]
    tensors += [_tensor("output", name, "TYPE_FP32", [*rows, 1]) for name in columns["outputs"]]
    head = [
        f"name: {quoted(settings.model_name)}",
        'backend: "python"',
        f"max_batch_size: {0 if lists else settings.max_batch_size}",
    ]
    # The Python backend would copy all tensors to a GPU and back, for a model without GPU code.
    tail = ["instance_group [ { kind: KIND_CPU count: 1 } ]"]
    tail = tail if lists else ["dynamic_batching { }", *tail]
    return "\n".join([*head, *tensors, *tail]) + "\n"


def quoted(text: str) -> str:
    r"""Quote a string for protobuf's text format.

    >>> print(quoted('a "b"\n'))
    "a \"b\"\012"
    """
    return f'"{text.translate(_ESCAPED)}"'


def _tensor(kind: str, name: str, data_type: str, dims: Sequence[int]) -> str:
    shape = ", ".join(map(str, dims))
    return f"{kind} [ {{ name: {quoted(name)} data_type: {data_type} dims: [ {shape} ] }} ]"


_MODEL = Path(__file__).with_name("model.py")
_USUAL = RepositorySettings()


def export_repository(
    run: str | Path,
    data: str | Path,
    *,
    out: str | Path,
    settings: RepositorySettings = _USUAL,
    device: str = "auto",
) -> JsonObject:
    """Write the model of a run and its workflow as a model repository for NVIDIA Triton.

    The model takes one tensor [b, 1] for each column: raw strings of categorical columns and
    64-bit floats of continuous ones. A column with several values per row has two tensors, as
    clients of Merlin Systems send them: NAME__values, the strings of all rows [m], and
    NAME__offsets, int32 [b + 1]. A column of vectors has one, float32 [b, length]. The model
    returns "probability", float32 [b, 1]; of several targets such a tensor for each, with the name
    of the label. The repository needs neither `run`, `data` nor this package, and contains no
    pickle.

    Args:
        run: the run folder.
        data: the folder it was trained on, or one prepared like it; only its columns and
            vocabularies are read.
        out: folder to write; it must not exist.
        settings: name and version of the model, and the size of its batches.
        device: "auto", "cpu" or "gpu": where to load the model.

    Returns:
        "categorical", "continuous" and "outputs" -> their names; with columns of several values
        per row also "lists" -> their names, and "categorical" -> the others; with vectors also
        "vectors" -> column -> length; if `prepare` makes columns of others, as of a time its hour,
        also "made" -> column -> which values the client sends for it.

    Raises:
        InputError: if an input is wrong.
    """
    with atomic_folder(out) as temporary:
        prepared = PreparedData.load(data)
        _check_names(prepared, data)
        model = load_run(run, data, device=device)
        from cowclip_merlin.serving.raw_value_model import RawValueModel

        folder = temporary / settings.model_name
        version = folder / str(settings.model_version)
        version.mkdir(parents=True)
        with translate_write_errors(Path(out)):
            served = RawValueModel(model, prepared)
            signatures = {"serving_default": served.serve}
            saved = str(compat.literal_path(version / "model.savedmodel"))
            compat.tensorflow().saved_model.save(served, saved, signatures=signatures)
        columns = _columns_of(prepared)
        most = {"max_batch_size": settings.max_batch_size} if "lists" in columns else {}
        write_json(version / "columns.json", columns | most)
        shutil.copyfile(_MODEL, version / _MODEL.name)
        (folder / "config.pbtxt").write_text(config_text(columns, settings), encoding="utf-8")
    return columns


def _columns_of(prepared: PreparedData) -> JsonObject:
    """Return the inputs and outputs of a model by kind, for `columns.json`."""
    from cowclip_merlin.workflows.raw.made_columns import made_values

    lists, vectors = tuple(prepared.log_format.multi), dict(prepared.log_format.vectors)
    made = made_values(prepared.log_format)
    return {
        "categorical": tuple(name for name in prepared.categorical if name not in lists),
        "continuous": tuple(prepared.continuous),
        "outputs": tuple(served_names(prepared.targets)),
        **({"lists": lists} if lists else {}),
        **({"vectors": vectors} if vectors else {}),
        **({"made": made} if made else {}),
    }


def _check_names(prepared: PreparedData, data: str | Path) -> None:
    """Refuse a column with the name of an input for lists."""
    names = {*prepared.categorical, *prepared.log_format.widths}
    for column in prepared.log_format.multi:
        for name in names & {column + VALUES, column + OFFSETS}:
            raise InputError(
                f"{data}: column {name!r} has the name of an input for the lists of {column!r}; "
                "rename one of these columns"
            )
