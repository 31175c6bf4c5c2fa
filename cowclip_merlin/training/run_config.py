"""Read and write `config.json` of a run folder: the run's settings, values and data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cowclip_merlin.errors import InputError
from cowclip_merlin.scaling import Hyperparameters
from cowclip_merlin.system.files import read_json
from cowclip_merlin.system.json_dataclass import dataclass_from_json
from cowclip_merlin.system.versions import versions
from cowclip_merlin.training.run_settings import RunSettings

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The content of a run folder's `config.json`.

    Attributes:
        settings: the settings that the user gave.
        values: the hyper-parameters after scaling.
        fingerprint: fingerprint of the prepared data.
        vocabulary: vocabulary of the prepared data, as in `PreparedData`.
    """

    settings: RunSettings
    values: Hyperparameters
    fingerprint: str
    vocabulary: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "format_version": FORMAT_VERSION,
            "settings": self.settings.as_dict(),
            "hyperparameters": asdict(self.values) | {"clip": self.settings.effective_clip},
            "data_fingerprint": self.fingerprint,
            "data_vocabulary": self.vocabulary,
            "versions": versions(),
        }

    @classmethod
    def load(cls, run: Path) -> RunConfig:
        """Read the configuration of a run folder.

        Raises:
            InputError: if the folder is not a run folder, is damaged or has another format.
        """
        if not (run / "config.json").exists():
            raise InputError(f"{run}: no config.json; give the run folder that cowclip train wrote")
        config = read_json(run / "config.json")
        version = config.get("format_version") if isinstance(config, dict) else None
        if version != FORMAT_VERSION:
            raise InputError(
                f"{run}: run of format {version}; this version reads format {FORMAT_VERSION}; "
                "train again"
            )
        try:
            values = dict(config["hyperparameters"])
            values.pop("clip")
            return cls(
                settings=RunSettings.from_dict(config["settings"]),
                values=dataclass_from_json(Hyperparameters, values),
                fingerprint=config["data_fingerprint"],
                vocabulary=config.get("data_vocabulary"),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{run}: damaged config.json ({error}); train again") from error
