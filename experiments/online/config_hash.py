"""Hash the settings of a run, so that finished runs are found again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, is_dataclass

from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.training import RunSettings
from cowclip_merlin.types import Json


def hash_settings(settings: OnlineSettings, *parts: Json) -> str:
    """Return a hash that is equal for runs that train the same.

    Settings at their defaults are omitted, so that a new option does not change the names of
    earlier runs.

    Args:
        settings: of the model, with the seed.
        parts: what else the training depends on; dataclasses and plain values.
    """
    usual = OnlineSettings(run=_usual_run()).as_dict()
    given = settings.as_dict()
    table = {k: v for k, v in given.items() if k != "run" and v != usual[k]}
    run = {k: v for k, v in given["run"].items() if v != usual["run"][k]}
    values = [table, run, *(_changed(part) for part in parts)]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def _usual_run() -> RunSettings:
    return RunSettings(model="deepfm", batch_size=1, update="lazy", epochs=1)


def _changed(value: object) -> Json:
    """Return plain values for JSON, without attributes of dataclasses at their defaults."""
    if isinstance(value, tuple):
        return [_changed(each) for each in value]
    if not is_dataclass(value):
        return value
    usual = {
        field.name: field.default_factory() if callable(field.default_factory) else field.default
        for field in fields(value)
    }
    given = {name: getattr(value, name) for name in usual}
    return {name: _changed(each) for name, each in given.items() if each != usual[name]}
