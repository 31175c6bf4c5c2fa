"""What HugeCTR needs beside the parquet files: the size of each slot."""

from __future__ import annotations

from pathlib import Path

from cowclip_merlin.files import write_json
from cowclip_merlin.workflows.graph import Statistics
from cowclip_merlin.workflows.layout import Layout


def write_slot_sizes(folder: Path, layout: Layout, known: Statistics) -> None:
    """Write `hugectr.json`: names, and `slot_size_array` as HugeCTR's reader takes it.

    The files themselves are `train/` and `test/` with `_metadata.json` and `_file_list.txt`;
    the list names files relative to its folder, so run HugeCTR there or prefix the names.
    """
    write_json(
        folder / "hugectr.json",
        {
            "label_name": layout.label,
            "dense_names": list(layout.continuous),
            "slot_names": list(layout.categorical),
            "slot_size_array": [known.cardinalities[c] for c in layout.categorical],
            "train_source": "train/_file_list.txt",
            "eval_source": "test/_file_list.txt",
            "label_dim": 1,
            "dense_dim": len(layout.continuous),
            "key_type": "I64",
        },
    )
