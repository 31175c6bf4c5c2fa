"""Codes instead of text: counts, vocabularies and staged files, compared with plain Python."""

from collections import Counter
from pathlib import Path
from threading import Event

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from block_parsing import parse_block
from hypothesis import given, settings
from hypothesis import strategies as st

from cowclip_merlin import compat
from cowclip_merlin.workflows.raw import ingest, text_blocks
from cowclip_merlin.workflows.raw.file_formats import read_staged, staged_schema
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.parquet_rows import read_parquet_rows
from cowclip_merlin.workflows.raw.text_blocks import Block
from cowclip_merlin.workflows.raw.text_lines import LineParser
from cowclip_merlin.workflows.threads import Threads
from cowclip_merlin.workflows.vocabulary import add_counts, count_values, write_vocabulary

VALUES = st.lists(st.sampled_from([None, "a", "B", "é", "日本", "aa", "b"]), max_size=30)
TABLE = LogFormat(kind="table", label="y", categorical=("a", "b"), continuous=("x",))


def categorical(values):
    """With a category that does not occur, as in the smaller split of a block."""
    known = {*values, "unused"} - {None}
    return pd.Categorical(values, categories=sorted(known, reverse=True))


@settings(max_examples=60)
@given(parts=st.lists(VALUES, min_size=1, max_size=10), threshold=st.integers(0, 4))
def test_the_vocabulary_is_that_of_a_counter(tmp_path_factory, parts, threshold):
    frames = [pd.DataFrame({".a": categorical(part)}) for part in parts]
    counts = add_counts([count_values(frame, {".a": [".a"]}) for frame in frames])[".a"]
    folder = tmp_path_factory.mktemp("categories")
    path = write_vocabulary(counts, ".a", str(folder), threshold)

    seen = Counter(value for part in parts for value in part)
    missing = seen.pop(None, 0)
    kept = sorted((v for v in seen if seen[v] >= threshold), key=lambda v: (-seen[v], v.encode()))
    written = pq.read_table(path)
    assert written[".a"].to_pylist() == kept
    assert written[".a_size"].to_pylist() == [seen[value] for value in kept]
    if kept:
        assert pd.read_parquet(path).index.tolist() == list(range(3, 3 + len(kept)))
    meta = pd.read_parquet(folder / "meta..a.parquet").set_index("kind")
    rare = sum(seen.values()) - sum(seen[value] for value in kept)
    assert meta.num_observed.to_dict() == {
        "pad": 0, "null": missing, "oov": rare, "unique": sum(seen[value] for value in kept),
    }  # fmt: skip
    assert meta.num_indices["unique"] == len(kept)


def test_codes_of_text_are_that_text_whether_lines_are_damaged_or_not():
    lines = [f"{i % 2},{'é' * (i % 3)},v{i % 4},{i}" for i in range(40)]
    lines[7], lines[30] = "2,x,y,1", "1,x"
    for text in (lines, [line for line in lines if line.count(",") == 3 and line[0] != "2"]):
        block = Block(1, "".join(f"{line}\n" for line in text).encode())
        tables = []
        for coded in (False, True):
            parser = LineParser(TABLE, Path("t.csv"), ["y", "a", "b", "x"], coded=coded)
            table, positions, bad = parse_block(parser, block)
            tables.append(ingest.staged_columns(table, TABLE, coded=coded))
            assert len(positions) + len(bad) == len(text)
        assert pa.types.is_dictionary(tables[1].schema.field("a").type)
        assert tables[0].to_pylist() == tables[1].to_pylist()


@pytest.mark.parametrize("coded", [False, True])
def test_a_small_split_is_staged_without_the_values_of_the_other(tmp_path, coded):
    table = pa.table(
        {"y": [0, 1] * 10, "a": [f"v{i}" for i in range(20)], "b": pa.nulls(20, pa.string())}
    )
    table = table.append_column("x", pa.array(range(20)))
    mask = np.arange(20) % 7 == 0
    suffix = "arrow" if coded else "parquet"
    targets = [(tmp_path / f"train.{suffix}", ~mask), (tmp_path / f"test.{suffix}", mask)]
    ingest._write(table, targets, TABLE, coded)
    for path, rows in targets:
        staged = read_staged(path)
        assert staged.schema == staged_schema(path) and staged["a"].num_chunks == 1
        assert staged.to_pylist() == table.filter(pa.array(rows)).to_pylist()
    if coded:
        assert staged["a"].chunk(0).dictionary.to_pylist() == ["v0", "v7", "v14"]


@pytest.mark.parametrize("rows", [7, 16, 1000])
def test_text_of_parquet_is_read_exactly_in_batches_that_start_inside_a_row_group(tmp_path, rows):
    """A column with a dictionary ends a batch at the end of a row group."""
    text = [("", None, "é" * i, f"v{i}")[i % 4] for i in range(200)]
    columns = {"y": [i % 2 for i in range(200)], "a": text, "x": list(range(200))}
    columns["b"] = pa.array(text).dictionary_encode()
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=30)
    tables = [p.table for p in read_parquet_rows(tmp_path / "t.parquet", TABLE, rows)]
    for name in ("a", "b"):
        read = [value for table in tables for value in table[name].to_pylist()]
        assert read == [value or None for value in text]


@given(text=st.text("ab\r\n", max_size=40).map(str.encode), tail=st.integers(1, 9))
def test_whole_lines_end_before_the_blank_lines_at_the_end(text, tail):
    content = text[: text.rfind(b"\n") + 1].rstrip(b"\r\n")
    expected = text.find(b"\n", len(content)) + 1 if content else 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_blocks, "_TAIL", tail)
        assert text_blocks._end_of_lines(text) == expected


def test_results_of_threads_are_in_order_and_a_bounded_number_ahead():
    taken, second = [], Event()

    def items():
        for i in range(20):
            taken.append(i)
            yield i

    def first_after_the_second(i):
        if i == 1:
            second.set()
        assert i or second.wait(60)
        return -i

    with Threads(2) as threads:
        for i, pair in enumerate(threads.in_order(first_after_the_second, items())):
            assert pair == (i, -i)
            assert len(taken) <= i + 3


def test_an_error_on_a_thread_reaches_the_caller():
    with Threads(1) as threads, pytest.raises(FileNotFoundError):
        threads.start(Path("no-such-folder/file").read_text)
        threads.start(str)  # waits for the first call
    with Threads(2) as threads, pytest.raises(FileNotFoundError):
        threads.start(Path("no-such-folder/file").read_text)
        threads.finish()
    with Threads(1) as threads, pytest.raises(ZeroDivisionError):
        list(threads.in_order(lambda x: 1 // x, [1, 0]))


def test_merlin_computes_with_the_configured_scheduler():
    compat.nvtabular()
    from merlin.io import dask as of_merlin

    used = []

    def get(graph, keys, **_):
        used.append(keys)
        return dask.get(graph, keys)

    three = dask.delayed(sum)([1, 2])
    assert of_merlin.dask.compute(three, scheduler="synchronous") == (3,) and not used
    with dask.config.set(scheduler=get):
        assert of_merlin.dask.compute(three, scheduler="synchronous") == (3,) and len(used) == 1
