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
from cowclip_merlin.targets import refuse_several
from cowclip_merlin.training import load_run
from cowclip_merlin.training.checkpoint import translate_write_errors
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
) -> dict[str, tuple[str, ...]]:
    """Write the model of a run and its workflow as a model repository for NVIDIA Triton.

    The model takes one tensor [b, 1] for each column: raw strings of categorical columns and
    64-bit floats of continuous ones. A column with several values per row has two tensors, as
    clients of Merlin Systems send them: NAME__values, the strings of all rows [m], and
    NAME__offsets, int32 [b + 1]. The model returns "probability", float32 [b, 1]. The repository
    needs neither `run`, `data` nor this package, and contains no pickle.

    Args:
        run: the run folder.
        data: the folder it was trained on, or one prepared like it; only its columns and
            vocabularies are read.
        out: folder to write; it must not exist.
        settings: name and version of the model, and the size of its batches.
        device: "auto", "cpu" or "gpu": where to load the model.

    Returns:
        "categorical" and "continuous" -> the names of these columns; with columns of several
        values per row also "lists" -> their names, and "categorical" -> the others.

    Raises:
        InputError: if an input is wrong.
    """
    with atomic_folder(out) as temporary:
        prepared = PreparedData.load(data)
        if vectors := prepared.log_format.vectors:
            raise InputError(
                f"{data}: column {min(vectors)!r} has vectors, which models for Triton do not "
                "take; export a SavedModel instead"
            )
        refuse_several("a model for Triton", prepared.targets, "export a SavedModel instead")
        _check_names(prepared, data)
        model = load_run(run, data, device=device)
        from cowclip_merlin.serving.triton.raw_value_model import RawValueModel, one_value_columns

        folder = temporary / settings.model_name
        version = folder / str(settings.model_version)
        version.mkdir(parents=True)
        with translate_write_errors(Path(out)):
            served = RawValueModel(model, prepared)
            signatures = {"serving_default": served.serve}
            compat.tensorflow().saved_model.save(
                served, str(version / "model.savedmodel"), signatures=signatures
            )
        columns = {
            "categorical": tuple(one_value_columns(prepared)),
            "continuous": prepared.continuous,
        }
        if lists := tuple(prepared.log_format.multi):
            columns["lists"] = lists
        most = {"max_batch_size": settings.max_batch_size} if lists else {}
        write_json(version / "columns.json", columns | most)
        shutil.copyfile(_MODEL, version / _MODEL.name)
        config = config_text(columns["categorical"], columns["continuous"], settings, lists)
        (folder / "config.pbtxt").write_text(config, encoding="utf-8")
    return columns


def _check_names(prepared: PreparedData, data: str | Path) -> None:
    """Refuse a column that has the name of an input of a list column."""
    names = {*prepared.categorical, *prepared.continuous}
    for column in prepared.log_format.multi:
        for name in names & {column + VALUES, column + OFFSETS}:
            raise InputError(
                f"{data}: column {name!r} has the name of an input for the lists of {column!r}; "
                "rename one of these columns"
            )
