"""Lines are parsed together, and each is kept or set aside as it would be alone."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv
from slow_parsing import row_of

from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.raw import text_lines
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.readers import read_text_rows
from cowclip_merlin.workflows.raw.text_lines import Block, LineParser
from cowclip_merlin.workflows.raw.values import numbers
from cowclip_merlin.workflows.raw.values.numbers import read_numbers

GOOD = ["", "1", "0", "u", "é", "1"]
TEXTS = [
    '"', '""', '"q"', '"a,b"', '"open', '"a""b"c', '5" disc', 'a"', "x,y", "\r", "\0", "a|b||b",
    "|", "long" * 30, "\t", '"a"b"c', '"""', '""""', ' "a', '"a\tb"', '"a"","b', '""a',
]  # fmt: skip
NUMBERS = [
    " 7 ", "\t8", "-3", "+5", "007", "1.5", ".5", "1.", "1e3", "1e400", "nan", "inf", "-Inf",
    "0x1f", "0X1", "x", "1_0", "٣", " ", "9223372036854775807", "9223372036854775808", "1e", "--1",
    "1\0", "-0",
]  # fmt: skip
LABELS = ["true", "NO", "Yes", "1.0", "2", "maybe", "0.5"]
VECTORS = ["1|2", "1|2|3", "1| 2.5", "1|x", "1|", "1|nan", "1|1e39", "1|\t2"]
OTHERS = [b"", b"\r", b"\xff,1,1,1", b"1,\xc3\x28,u,1", b"a", b",,,,,,", b"\r\r", b"1\t2\r3\t4"]
FORMATS = [
    {"continuous": ("x", "i"), "integer": ("i",)},
    {"continuous": ("x",), "weight": "i", "multi": {"b": "|"}},
    {"vectors": {"x": 2}, "continuous": ("i",)},
    {"more_labels": ("i",), "regression": ("i",), "continuous": ("x",)},
    {"label": "", "continuous": ("x",)},
    {"label": "", "categorical": ("a",)},
]


@st.composite
def texts(draw):
    """A format, the columns of a file, and its lines: most cells are good, all kinds are there."""
    chosen = {"kind": "table", "label": "y", "categorical": ("a", "b")}
    log_format = LogFormat(**chosen | draw(st.sampled_from(FORMATS)))
    log_format = replace(log_format, separator=draw(st.sampled_from([",", "\t"])))
    columns = [*draw(st.permutations(log_format.columns)), *["other"] * draw(st.booleans())]
    numbers = (*log_format.continuous, *log_format.regression, log_format.weight)
    good = {name: ("1", "20") if name in numbers else GOOD for name in columns}
    good |= {name: ("1|2", "3|.5") for name in log_format.vectors}
    good |= {name: ("0", "1") for name in log_format.labels[:1]}
    wrong = st.sampled_from([*TEXTS, *NUMBERS, *LABELS, *VECTORS, ""])
    whole = st.tuples(*(st.sampled_from(good[name]) for name in columns)).map(list)
    lines = []
    for cells in draw(st.lists(whole, min_size=1, max_size=12)):
        if draw(st.integers(0, 2)) == 0:
            cells[draw(st.integers(0, len(cells) - 1))] = draw(wrong)
        if draw(st.integers(0, 9)) == 0:
            cells = draw(st.sampled_from([cells[1:], [*cells, "1"], cells[:1]]))
        lines.append(log_format.separator.join(cells).encode() + b"\r" * draw(st.booleans()))
    for other in draw(st.lists(st.sampled_from(OTHERS), max_size=2)):
        lines.insert(draw(st.integers(0, len(lines))), other)
    return log_format, columns, lines


@settings(max_examples=150)
@given(text=texts(), coded=st.booleans(), piece=st.sampled_from([8, 60, 1 << 19]))
def test_the_lines_of_a_block_are_kept_as_each_of_them_alone(text, coded, piece):
    log_format, columns, lines = text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_lines, "_PIECE", piece)
        parser = LineParser(log_format, Path("t.csv"), columns, coded=coded)
        parsed = parser.parse(Block(7, b"".join(line + b"\n" for line in lines)))
    check(parser, parsed, lines)
    singly = [parser.parse(Block(bad.line, bad.text + b"\n")).bad for bad in parsed.bad]
    assert [[bad] for bad in parsed.bad] == singly


def check(parser, parsed, lines):
    """Compare what was parsed of lines, of which the first one is line 7, with each line alone."""
    rows = [row_of(line, parser.columns, parser.log_format) for line in lines]
    kept = [i for i, row in enumerate(rows) if row is not None]
    assert parsed.positions.tolist() == kept
    assert parsed.table.to_pylist() == [rows[i] for i in kept]
    bad = [(i + 7, line) for i, line in enumerate(lines) if rows[i] is None]
    assert [(each.line, each.text) for each in parsed.bad] == bad


@pytest.mark.parametrize("columns", FORMATS)
def test_each_odd_cell_after_a_good_line_and_between_others(columns):
    log_format = LogFormat(**{"kind": "table", "label": "y", "categorical": ("a", "b")} | columns)
    names, good = log_format.columns, dict.fromkeys(log_format.columns, "1")
    good |= dict.fromkeys(log_format.vectors, "1|2")
    whole = ",".join(good.values()).encode()
    odd = [
        ",".join((good | {name: cell}).values()).encode()
        for cell in {*TEXTS, *NUMBERS, *LABELS, *VECTORS}
        for name in names
    ] + OTHERS
    parser = LineParser(log_format, Path("t.csv"), list(names))
    for line in odd:
        check(parser, parser.parse(Block(7, b"%s\n%s\n" % (whole, line))), [whole, line])
    lines = [each + b"\r" for line in odd for each in (whole, line)]
    check(parser, parser.parse(Block(7, b"".join(line + b"\n" for line in lines))), lines)


def number_of(text, kind):
    """A text as a number, and whether it is one or missing."""
    if text is None:
        return None, True
    try:
        number = pa.scalar(text.strip(" \t")).cast(kind).as_py()
    except pa.ArrowInvalid:
        return None, False
    return (None, False) if kind == pa.int64() and "x" in text.lower() else (number, True)


@given(
    texts=st.lists(st.sampled_from([None, *NUMBERS, "1", "2.5"]) | st.text("0x1.-e +"), max_size=9),
    kind=st.sampled_from([pa.int64(), pa.float64()]),
    chunks=st.booleans(),
)
def test_texts_are_numbers_together_as_each_of_them_alone(texts, kind, chunks):
    column = pa.array(texts, pa.string())
    column = pa.chunked_array([column[:3], column[3:]]) if chunks else column[: len(texts)]
    numbers, good = read_numbers(column, kind)
    assert numbers.type == kind
    found = list(zip(numbers.to_pylist(), good.tolist()))
    assert repr(found) == repr([number_of(text, kind) for text in texts])


@pytest.mark.parametrize("every", [1, 3, 100])
@pytest.mark.parametrize(
    "damage", ["0,u,v,1,2", "0,u,v,x", "?,u,v,1", '0,"u,v,1', "0,u,v,\xff", ""]
)
def test_damage_is_found_in_a_few_passes_however_much_there_is(monkeypatch, damage, every):
    lines = [f'{i % 2},"u, {i}",v{i},{i}' for i in range(300)]
    lines[::every] = [damage] * len(lines[::every])
    text = "".join(f"{line}\n" for line in lines).encode("latin-1")
    passes, read = [], csv.read_csv
    monkeypatch.setattr(csv, "read_csv", lambda *a: passes.append(1) or read(*a))
    alone = numbers._is_whole
    monkeypatch.setattr(numbers, "_is_whole", lambda *a: passes.append(1) or alone(*a))
    log_format = LogFormat(kind="table", label="y", categorical=("a", "b"), continuous=("x",))
    parsed = LineParser(log_format, Path("t.csv"), ["y", "a", "b", "x"]).parse(Block(1, text))
    assert [bad.line for bad in parsed.bad] == list(range(1, 301, every))
    assert len(passes) <= 4


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("name", ["t.csv", "t.tsv.gz", "t.txt.zst"])
def test_bad_lines_of_a_file_have_its_line_numbers(tmp_path, name, header):
    names = ("y", "a", "b", "x")
    log_format = LogFormat(
        kind="table", label="y", categorical=("a", "b"), continuous=("x",), header=header,
        file_columns=() if header else names,
    ).of_file(tmp_path / name)  # fmt: skip
    separator = log_format.separator
    lines = [separator.join((str(i % 2), f"u{i}", "é" * (i % 4), f"{i}.5")) for i in range(500)]
    damage = [separator.join(cells) for cells in ("123", "2uvw", "1uvw", "1ux?")]
    lines[3::7] = [damage[i % 4] for i in range(len(lines[3::7]))]
    lines[11], lines[12], lines[13] = "", "\r", f'{separator}"a'
    content = "\n".join([separator.join(names)] * header + lines)
    with pa.output_stream(tmp_path / name) as stream:
        stream.write(content.encode())
    found = list(read_text_rows(tmp_path / name, log_format, 1000))
    assert len(found) > 5
    rows = [row_of(line.encode(), names, log_format) for line in lines]
    assert [row for each in found for row in each.table.to_pylist()] == [x for x in rows if x]
    bad = [i + 1 + header for i, row in enumerate(rows) if row is None]
    assert [each.line for part in found for each in part.bad] == bad


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "_LONGEST", 100)
    (tmp_path / "t.csv").write_text("y,a\n0,u\n" + "1,v\r" * 90)
    with pytest.raises(InputError, match=r"t\.csv: line 3 is longer than 100 bytes; check that"):
        list(text_lines.read_blocks(tmp_path / "t.csv", 40))
