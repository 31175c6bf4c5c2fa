"""The file with the schema, written without Merlin, is what Merlin writes."""

import json

import pytest

from cowclip_merlin.workflows import LogFormat
from cowclip_merlin.workflows.nvtabular_graph import Statistics
from cowclip_merlin.workflows.prepared.folder import merlin_schema, write_schema

COLUMNS = {"kind": "table", "label": "y", "categorical": ("a", "b"), "continuous": ("x",)}
LISTS = {"multi": {"b": "|"}, "share_embedding": {"b": "a"}}


def with_sorted_tags(each):
    return {name: sorted(x) if name == "tag" else x for name, x in each.items()}


@pytest.mark.parametrize(
    "more",
    [
        {},
        LISTS,
        LISTS | {"max_values": 4, "weight": "w", "regression": ("y",)},
        {"vectors": {"v": 3, "one": 1}, "more_labels": ("z",), "regression": ("z",)},
    ],
    ids=lambda more: ",".join(more),
)
def test_the_schema_is_that_of_merlin(tmp_path, more):
    log_format = LogFormat(**COLUMNS, **more)
    statistics = Statistics(cardinalities={"a": 3, "b": 70}, minimum={"x": 0}, maximum={"x": 1})
    write_schema([tmp_path], log_format, statistics)
    schema = merlin_schema(log_format, statistics)
    from merlin.schema.io.tensorflow_metadata import TensorflowMetadata

    text = TensorflowMetadata.from_merlin_schema(schema).to_json()
    expected = json.loads(text, object_hook=with_sorted_tags)
    written = (tmp_path / ".merlin" / "schema.json").read_text()
    assert json.loads(written, object_hook=with_sorted_tags) == expected
