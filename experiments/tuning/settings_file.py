"""Write and read the settings of a run as a YAML file, for `cowclip train --settings`.

The file is one mapping. Its keys are the attributes of `RunSettings`, and the rates of
`RunSettings.overrides` beside them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path

from cowclip_merlin import choices
from cowclip_merlin.addresses import FilePath
from cowclip_merlin.checks import check_not_negative
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings.json_dataclass import dataclass_from_json
from cowclip_merlin.system.files import atomic_write
from cowclip_merlin.system.yaml_file import read_yaml
from cowclip_merlin.training.run_settings import OVERRIDES, RunSettings
from cowclip_merlin.types import Json, JsonObject

_SETTINGS = {each.name: str(each.type) for each in fields(RunSettings) if each.name != "overrides"}
_DEFAULTS = {each.name: each.default for each in fields(RunSettings) if each.default is not MISSING}


def write_settings(path: Path, settings: RunSettings, *, comment: str) -> None:
    """Write all settings that have a value, below a comment of one line."""
    import yaml

    values = {name: value for name, value in settings.as_dict().items() if name in _SETTINGS}
    if settings.scored_split == "test":
        del values["validation_split"]  # the fraction 0 stays: `train` holds out rows by default
    given = {k: v for k, v in (values | settings.overrides).items() if v is not None}
    text = yaml.safe_dump(given, sort_keys=False, allow_unicode=True, default_flow_style=None)
    with atomic_write(path) as temporary:
        temporary.write_text(f"# {comment}\n{text}", encoding="utf-8")


def read_settings(path: FilePath) -> JsonObject:
    """Read a file of `write_settings`, or one by hand, in which any key may be missing.

    Returns:
        Attribute of `RunSettings`, or name of a rate -> value.

    Raises:
        InputError: if the file is not one mapping, has an unknown key, or a value has the wrong
            type or is unknown or out of range.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "settings.yaml"
    >>> _ = file.write_text("model: dcn\\nmlp: [8, 8]\\nl2: 1e-5\\n")
    >>> read_settings(file)
    {'model': 'dcn', 'mlp': [8, 8], 'l2': 1e-05}
    """
    given = read_yaml(path, first_key="model")
    values = {name: _value(path, name, value) for name, value in given.items()}
    rates = {name: value for name, value in values.items() if name in OVERRIDES}
    others = {name: value for name, value in values.items() if name in _SETTINGS}
    try:
        check_not_negative(rates)
        whole = _placeholders(given) | others | {"overrides": rates}
        settings = dataclass_from_json(RunSettings, _DEFAULTS | whole)
    except TypeError as error:
        raise InputError(f"{path}: {error}; correct the file") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    for name, clips in settings.unused_overrides().items() if "clip" in values else ():
        raise InputError(
            f"{path}: {name} has no effect with the clip {settings.clip}; remove it, or use the "
            f"clip {' or '.join(clips)}"
        )
    return values


def _placeholders(given: Mapping[str, Json]) -> JsonObject:
    """Return values for what options may add: what must be given, and what others depend on."""
    return {
        "model": choices.MODELS[0],
        "batch_size": 1,
        "validation_fraction": 0 if given.get("validation_split") == "given" else 0.5,
        "optimizer": "adagrad" if "initial_accumulator" in given else "adam",
    }


def _value(path: FilePath, name: Json, value: Json) -> Json:
    """Return the value of a key; YAML reads 1e-5, without a point, as text."""
    known = (*_SETTINGS, *OVERRIDES)
    if name not in known:
        near = difflib.get_close_matches(str(name).replace("-", "_"), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(known)}"
        raise InputError(f"{path}: unknown key {name!r:.40}; {hint}")
    if name not in OVERRIDES and (value is None or not _SETTINGS[name].startswith("float")):
        return value
    try:
        if isinstance(value, bool):
            raise ValueError("a bool is an int, too")
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{path}: {name} is {value!r:.40}; give a number") from None
