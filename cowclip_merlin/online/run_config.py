"""Read and write what a run of online training is: its settings and the columns of its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cowclip_merlin.errors import MALFORMED, InputError
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.system.files import read_json
from cowclip_merlin.tables.field_rules import FieldRules
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.workflows.online.features import (
    CategoricalColumn,
    ContinuousColumn,
    LogFeatures,
)
from cowclip_merlin.workflows.online.numbers import NumberScaling

CONFIG = "config.json"


def online_config(settings: OnlineSettings, features: LogFeatures) -> dict[str, Any]:
    """Return plain values for JSON, which `load_online_config` reads."""
    return {"features": _plain(asdict(features)), "settings": settings.as_dict()}


def load_online_config(run: str | Path) -> tuple[OnlineSettings, LogFeatures]:
    """Read the settings and the columns of a run folder.

    Raises:
        InputError: the folder is not one of online training, or damaged.
    """
    file = Path(run) / CONFIG
    if not file.exists():
        raise InputError(f"{run}: no {CONFIG}; give the folder that cowclip online train wrote")
    config = read_json(file)
    try:
        return _settings(config["settings"]), _features(config["features"])
    except MALFORMED as error:
        raise InputError(f"{file}: damaged ({error!r:.80}); use a new folder") from None


def refuse_difference(out: Path, before: Any, config: Mapping[str, Any]) -> None:
    """Refuse to go on with other settings than those of a folder.

    Args:
        out: the folder.
        before: its configuration.
        config: what it should be.

    Raises:
        InputError: a value differs; the message names it.
    """
    for name, value in config.items():
        if not isinstance(before, dict) or before.get(name) != value:
            raise InputError(
                f"{out}: the run there has another {_difference(before, name, value)}; go on "
                "with the same log and settings, or use another --out"
            )


def _difference(before: Any, name: str, value: Any) -> str:
    """Name the setting that differs."""
    old = before.get(name) if isinstance(before, dict) else None
    if isinstance(value, dict) and isinstance(old, dict):
        unset = object()
        inner = next(k for k in {**value, **old} if value.get(k, unset) != old.get(k, unset))
        return _difference(old, inner, value.get(inner))
    return f"{name} ({old!r:.60}, not {value!r:.60})"


def _plain(value: Any) -> Any:
    """The same values as JSON reads them back."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _settings(values: Mapping[str, Any]) -> OnlineSettings:
    return OnlineSettings(**{**values, "run": RunSettings.from_dict(values["run"])})


def _features(values: Mapping[str, Any]) -> LogFeatures:
    categorical = [
        CategoricalColumn(**{**each, "rules": FieldRules(**each["rules"])})
        for each in values["categorical"]
    ]
    continuous = [
        ContinuousColumn(**{**each, "scaling": NumberScaling(**each["scaling"])})
        for each in values["continuous"]
    ]
    columns = tuple(values["columns"])
    lists = {"categorical": tuple(categorical), "continuous": tuple(continuous)}
    return LogFeatures(**{**values, **lists, "columns": columns})
