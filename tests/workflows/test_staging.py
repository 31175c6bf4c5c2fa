"""Staged files and the threads that write them."""

from dataclasses import replace
from pathlib import Path
from threading import Event

import dask
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin import compat
from cowclip_merlin.workflows.encoder import Encoder
from cowclip_merlin.workflows.ingest import Ingest
from cowclip_merlin.workflows.nvtabular_graph import Recipe
from cowclip_merlin.workflows.parallel import Threads
from cowclip_merlin.workflows.prepared.changes import ValueCounts
from cowclip_merlin.workflows.prepared.row_numbers import RowNumbers
from cowclip_merlin.workflows.raw import text_lines
from cowclip_merlin.workflows.raw.file_formats import read_staged
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.parsed_rows import Quarantine
from cowclip_merlin.workflows.raw.readers import read_parquet_rows, staged_columns
from cowclip_merlin.workflows.raw.text_lines import Block, LineParser

TABLE = LogFormat(kind="table", label="y", categorical=("a", "b"), continuous=("x",))


def test_codes_of_text_are_that_text_whether_lines_are_damaged_or_not():
    lines = [f"{i % 2},{'é' * (i % 3)},v{i % 4},{i}" for i in range(40)]
    lines[7], lines[30] = "2,x,y,1", "1,x"
    for text in (lines, [line for line in lines if line.count(",") == 3 and line[0] != "2"]):
        block = Block(1, "".join(f"{line}\n" for line in text).encode())
        tables = []
        for coded in (False, True):
            parser = LineParser(TABLE, Path("t.csv"), ["y", "a", "b", "x"], coded=coded)
            parsed = parser.parse(block)
            tables.append(staged_columns(parsed.table, TABLE, {}, coded=coded))
            assert len(parsed.positions) + len(parsed.bad) == len(text)
        assert pa.types.is_dictionary(tables[1].schema.field("a").type)
        assert tables[0].to_pylist() == tables[1].to_pylist()


def test_a_quote_that_is_open_at_the_end_of_a_piece_is_damage():
    """Arrow takes it for a value with a line end in it."""
    log_format = replace(TABLE, continuous=())
    text = b'0,x,y\n0,x,"p\n1,q,r\n0,a,b\n'
    for piece in range(5, 40):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(text_lines, "_PIECE", piece)
            parser = LineParser(log_format, Path("t.csv"), ["y", "a", "b"])
            parsed = parser.parse(Block(1, text))
        assert parsed.table["a"].to_pylist() == ["x", "q", "a"], piece
        assert [bad.line for bad in parsed.bad] == [2], piece


def test_a_block_is_staged_as_text_for_a_gpu_and_as_codes_for_a_cpu(tmp_path):
    table = pa.table({"y": [0, 1] * 10, "a": [f"v{i % 3}" for i in range(20)]})
    table = table.append_column("b", pa.nulls(20, pa.string()))
    table = table.append_column("x", pa.array([None, *range(19)], pa.int64()))
    test = np.arange(20) % 7 == 0
    masks = {"train": ~test, "test": test}
    for encoder in (None, Encoder(TABLE, Recipe())):
        suffix = "parquet" if encoder is None else "arrow"
        files = {split: tmp_path / f"{split}.{suffix}" for split in masks}
        values = ValueCounts(TABLE)
        how = {"block_bytes": 1, "stage": tmp_path, "encoder": encoder, "values": values}
        how |= {"splits": tuple(masks), "counted": "test", "numbers": RowNumbers(tmp_path)}
        made = Ingest(TABLE, None, quarantine=Quarantine(None, max_bad_fraction=0), **how)
        made.whole_floats[0] = {}
        made._write(table, masks, files, 0)
        assert values.missing == {"a": 0, "b": test.sum(), "x": 1}
        for split, mask in masks.items():
            rows = table.filter(pa.array(mask)).to_pydict()
            if encoder is not None:
                rows["a"] = [3 + int(text[1:]) for text in rows["a"]]
                rows |= {"b": [1] * mask.sum(), "x": [x or 0 for x in rows["x"]]}
            assert read_staged(files[split]).to_pydict() == rows


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
        patch.setattr(text_lines, "_TAIL", tail)
        assert text_lines._end_of_lines(text) == expected


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
        for i, result in enumerate(threads.in_order(first_after_the_second, items())):
            assert result == -i
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


def test_a_damaged_row_of_parquet_has_its_number_in_the_file(tmp_path):
    rows = {"y": [1, 0, 1, 7], "a": [*"uvuv"], "b": [*"uuvv"], "x": [0.5] * 4}
    pq.write_table(pa.table(rows), tmp_path / "log.parquet")
    blocks = read_parquet_rows(tmp_path / "log.parquet", TABLE, 2)
    assert [bad.line for block in blocks for bad in block.bad] == [4]
