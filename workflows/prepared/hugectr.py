"""Write what HugeCTR needs in addition to the parquet files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.system.files import write_json
from cowclip_merlin.types import JsonObject
from cowclip_merlin.workflows.nvtabular_graph import Statistics
from cowclip_merlin.workflows.raw.log_format import LogFormat


def check_of_hugectr(log_format: LogFormat) -> None:
    """Refuse columns that HugeCTR does not read."""
    vectors, shared = (
        f"{min(names, default='')!r}" for names in (log_format.vectors, log_format.share_embedding)
    )
    labels, weight = ", ".join(log_format.labels), log_format.weight
    found = {
        f"writes no vectors, but column {vectors} has some": log_format.vectors,
        f"writes one label of 0 and 1, not {labels}": log_format.float_labels,
        f"writes no weights, but column {weight!r} has some": weight,
        f"needs a table for each column, but {shared} shares that of another one": (
            log_format.share_embedding
        ),
    }
    for words, wrong in found.items():
        if wrong:
            raise InputError(f"`hugectr` {words}; omit it")


def write_slot_sizes(
    folder: Path, log_format: LogFormat, statistics: Statistics, longest: Mapping[str, int]
) -> None:
    """Write `hugectr.json`: column names, and `slot_size_array` for HugeCTR's reader.

    `nnz_per_slot` has the largest number of ids of a row in each column, at least 1: HugeCTR's
    reader takes memory for as many, and writes past its end if a row has more.

    Each split has `_metadata.json` and `_file_list.txt`. The list and the two sources name files
    relative to `folder`, so run HugeCTR with `folder` as its working directory. The source of a
    split without rows is null.
    """
    write_json(
        folder / "hugectr.json",
        {
            "label_name": log_format.label,
            "dense_names": list(log_format.continuous),
            "slot_names": list(log_format.categorical),
            "slot_size_array": [statistics.cardinalities[c] for c in log_format.categorical],
            "nnz_per_slot": [max(longest.get(c, 1), 1) for c in log_format.categorical],
            "train_source": _source(folder, "train"),
            "eval_source": _source(folder, "test"),
            "label_dim": 1,
            "dense_dim": len(log_format.continuous),
            "key_type": "I64",
        },
    )


def _source(folder: Path, split: str) -> str | None:
    name = f"{split}/_file_list.txt"
    return name if (folder / name).exists() else None


def output_types(log_format: LogFormat) -> dict[str, str]:
    """Return the types that HugeCTR reads: float32 labels and int64 ids, apart from lists."""
    one_each = [name for name in log_format.categorical if name not in log_format.multi]
    return {log_format.label: "float32", **dict.fromkeys(one_each, "int64")}


def write_lists(out: Path, rows: Mapping[str, int], log_format: LogFormat) -> None:
    """Write `_metadata.json` and `_file_list.txt` of a split, from the rows of each of its files.

    HugeCTR opens the names unchanged and reads `_metadata.json` from the first one's folder.
    """
    described = _description(rows, log_format)
    lines = [str(len(rows)), *(f"{out.name}/{name}" for name in rows)]
    (out / "_metadata.json").write_text(json.dumps(described), encoding="utf-8")
    (out / "_file_list.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _description(rows: Mapping[str, int], log_format: LogFormat) -> dict[str, list[JsonObject]]:
    """Return what Merlin writes into `_metadata.json`: rows of the files, places of the columns."""
    kinds = {
        "cats": log_format.categorical,
        "conts": log_format.continuous,
        "labels": (log_format.label,),
    }
    place = {name: i for i, name in enumerate(c for kind in kinds.values() for c in kind)}
    described: dict[str, list[JsonObject]] = {
        "file_stats": [{"file_name": n, "num_rows": count} for n, count in rows.items()]
    }
    for kind, columns in kinds.items():
        described[kind] = [{"col_name": name, "index": place[name]} for name in columns]
    return described
