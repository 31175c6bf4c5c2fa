"""Write a model repository: `<model>/config.pbtxt` and `<model>/<version>/`."""

from __future__ import annotations

import shutil
from pathlib import Path

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.serving.triton.config import config_text
from cowclip_merlin.serving.triton.model import OFFSETS, VALUES
from cowclip_merlin.serving.triton.settings import RepositorySettings
from cowclip_merlin.system.files import atomic_folder, write_json
from cowclip_merlin.targets import served_names
from cowclip_merlin.training import load_run
from cowclip_merlin.training.checkpoint import translate_write_errors
from cowclip_merlin.types import JsonObject
from cowclip_merlin.workflows import PreparedData

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
        "vectors" -> column -> length.

    Raises:
        InputError: if an input is wrong.
    """
    with atomic_folder(out) as temporary:
        prepared = PreparedData.load(data)
        _check_names(prepared, data)
        model = load_run(run, data, device=device)
        from cowclip_merlin.serving.triton.raw_value_model import RawValueModel

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
    lists, vectors = tuple(prepared.log_format.multi), dict(prepared.log_format.vectors)
    return {
        "categorical": tuple(name for name in prepared.categorical if name not in lists),
        "continuous": tuple(prepared.continuous),
        "outputs": tuple(served_names(prepared.targets)),
        **({"lists": lists} if lists else {}),
        **({"vectors": vectors} if vectors else {}),
    }


def _check_names(prepared: PreparedData, data: str | Path) -> None:
    """Refuse a column that has the name of an input of a list column."""
    names = {*prepared.categorical, *prepared.log_format.widths}
    for column in prepared.log_format.multi:
        for name in names & {column + VALUES, column + OFFSETS}:
            raise InputError(
                f"{data}: column {name!r} has the name of an input for the lists of {column!r}; "
                "rename one of these columns"
            )
