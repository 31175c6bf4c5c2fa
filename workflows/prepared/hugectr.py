"""Write the slot sizes that HugeCTR needs in addition to the parquet files."""

from __future__ import annotations

from pathlib import Path

from cowclip_merlin.system.files import write_json
from cowclip_merlin.workflows.nvtabular_graph import Statistics
from cowclip_merlin.workflows.raw.log_format import LogFormat


def write_slot_sizes(folder: Path, log_format: LogFormat, statistics: Statistics) -> None:
    """Write `hugectr.json`: column names, and `slot_size_array` for HugeCTR's reader.

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
