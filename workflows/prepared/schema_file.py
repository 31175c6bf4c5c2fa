"""Write the file with the schema that Merlin's Dataset reads; importing Merlin takes a second."""

from __future__ import annotations

from pathlib import Path

from cowclip_merlin.system.files import write_json
from cowclip_merlin.types import JsonObject
from cowclip_merlin.workflows.nvtabular_graph import Statistics
from cowclip_merlin.workflows.raw.log_format import LogFormat


def write_schema(folder: Path, log_format: LogFormat, statistics: Statistics) -> None:
    """Write `.merlin/schema.json`, as Merlin would write `folder.merlin_schema`."""
    (folder / ".merlin").mkdir(parents=True, exist_ok=True)
    write_json(folder / ".merlin" / "schema.json", schema_json(log_format, statistics))


def schema_json(log_format: LogFormat, statistics: Statistics) -> JsonObject:
    """Return the schema of a prepared folder's columns in the JSON of TensorFlow Metadata."""
    features = []
    for name in log_format.categorical:
        largest = str(statistics.cardinalities[name] - 1)
        domain = {"name": log_format.table_of(name), "max": largest, "isCategorical": True}
        feature = _feature(name, "INT", 32, "categorical") | {"intDomain": domain}
        if name in log_format.multi:
            feature = _with_lists(feature, 0, log_format.max_values or None)
        features.append(feature)
    features += [_feature(name, "FLOAT", 32, "continuous") for name in log_format.continuous]
    if log_format.weight:
        features.append(_feature(log_format.weight, "FLOAT", 32))
    for name, length in log_format.vectors.items():
        features.append(_with_lists(_feature(name, "FLOAT", 32, "continuous"), length, length))
    kind, bits = ("FLOAT", 32) if log_format.float_labels else ("INT", 8)
    for name, regression in log_format.targets:
        tag = "regression" if regression else "binary_classification"
        feature = _feature(name, kind, bits, "target", tag)
        scale = zip(("mean", "spread"), statistics.scales.get(name, ()))
        feature["annotation"]["extraMetadata"][0].update(scale)
        features.append(feature)
    return {"feature": features}


def _feature(name: str, kind: str, bits: int, *tags: str) -> JsonObject:
    about = {"is_list": False, "dtype_item_size": float(bits), "_dims": [], "is_ragged": False}
    found = {"tag": list(tags)} if tags else {}
    return {"name": name, "type": kind, "annotation": found | {"extraMetadata": [about]}}


def _with_lists(feature: JsonObject, least: int, most: int | None) -> JsonObject:
    """Return a feature whose rows have at least and at most so many values; None: any number."""
    limits = {"min": least, "max": most}
    count = {name: str(limit) for name, limit in limits.items() if limit}
    is_ragged = least != most
    size = [float(least), None if most is None else float(most)] if is_ragged else float(least)
    annotation = feature["annotation"]
    about = {"is_list": True, "is_ragged": is_ragged, "_dims": [[0.0, None], size]}
    about = annotation["extraMetadata"][0] | about
    return feature | {"valueCount": count, "annotation": annotation | {"extraMetadata": [about]}}
