"""Write a model repository: `<model>/config.pbtxt` and `<model>/<version>/`."""

from __future__ import annotations

import shutil
from pathlib import Path

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.serving.triton.config import config_text
from cowclip_merlin.serving.triton.settings import RepositorySettings
from cowclip_merlin.system.files import atomic_folder, write_json
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
    64-bit floats of continuous ones. It returns "probability", float32 [b, 1]. The repository
    needs neither `run`, `data` nor this package, and contains no pickle.

    Args:
        run: the run folder.
        data: the folder it was trained on, or one prepared like it; only its columns and
            vocabularies are read.
        out: folder to write; it must not exist.
        settings: name and version of the model, and the size of its batches.
        device: "auto", "cpu" or "gpu": where to load the model.

    Returns:
        "categorical" and "continuous" -> the names of these columns.

    Raises:
        InputError: if an input is wrong.
    """
    with atomic_folder(out) as temporary:
        prepared = PreparedData.load(data)
        if lists := prepared.log_format.multi:
            raise InputError(
                f"{data}: column {min(lists)!r} has several values per row, which models for "
                "Triton do not take; export a SavedModel instead"
            )
        if vectors := prepared.log_format.vectors:
            raise InputError(
                f"{data}: column {min(vectors)!r} has vectors, which models for Triton do not "
                "take; export a SavedModel instead"
            )
        model = load_run(run, data, device=device)
        from cowclip_merlin.serving.triton.raw_value_model import RawValueModel

        folder = temporary / settings.model_name
        version = folder / str(settings.model_version)
        version.mkdir(parents=True)
        with translate_write_errors(Path(out)):
            served = RawValueModel(model, prepared)
            signatures = {"serving_default": served.serve}
            compat.tensorflow().saved_model.save(
                served, str(version / "model.savedmodel"), signatures=signatures
            )
        columns = {"categorical": prepared.categorical, "continuous": prepared.continuous}
        write_json(version / "columns.json", columns)
        shutil.copyfile(_MODEL, version / _MODEL.name)
        config = config_text(prepared.categorical, prepared.continuous, settings)
        (folder / "config.pbtxt").write_text(config, encoding="utf-8")
    return columns
