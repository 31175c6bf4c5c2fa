"""Labels: the same texts count in text, in parquet and in messages; others set the row aside."""

import json

import pandas as pd
import pytest

from cowclip_merlin.online.events.columns import CategoricalColumn
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.readers import read_parquet_rows, read_text_rows

NO_LABELS = ["maybe", "", "2", "01", "yes ", "nan", "null", "on", "é" * 100]
CLICK, NONE = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no")
TEXTS = [form(t) for t in (*CLICK, *NONE) for form in (str, str.title, str.upper)] + NO_LABELS
KNOWN = [int(text.lower() in CLICK) for text in TEXTS[: -len(NO_LABELS)]]
TABLE = LogFormat(kind="table", label="y", categorical=("a",))
FEATURES = LogFeatures(label="y", time="t", categorical=(CategoricalColumn(name="a"),))


def from_text(folder):
    pd.DataFrame({"y": TEXTS, "a": "u"}).to_csv(folder / "t.csv", index=False)
    (parsed,) = read_text_rows(folder / "t.csv", TABLE, 1 << 20)
    return parsed


def from_parquet(folder, kind):
    labels = pd.Series(TEXTS).astype(kind)
    pd.DataFrame({"y": labels, "a": "u"}).to_parquet(folder / "t.parquet")
    (parsed,) = read_parquet_rows(folder / "t.parquet", TABLE, 1000)
    return parsed


@pytest.mark.parametrize("kind", ["text", "object", "category"])
def test_files(tmp_path, kind):
    parsed = from_text(tmp_path) if kind == "text" else from_parquet(tmp_path, kind)
    assert parsed.table["y"].to_pylist() == KNOWN
    shown = [f"y is {text!r:.60}, " for text in NO_LABELS]
    assert [bad.reason[: len(each)] for bad, each in zip(parsed.bad, shown, strict=True)] == shown


@pytest.mark.parametrize("values", [[0, 1, None], [0.0, 1.0, None], [False, True, None]])
@pytest.mark.parametrize("kind", [None, "category"])
def test_numbers_and_booleans_of_parquet(tmp_path, values, kind):
    labels = pd.Series(values, dtype=object).astype(kind or object)
    pd.DataFrame({"y": labels, "a": "u"}).to_parquet(tmp_path / "t.parquet")
    (parsed,) = read_parquet_rows(tmp_path / "t.parquet", TABLE, 1000)
    assert parsed.table["y"].to_pylist() == [0, 1]
    assert [bad.reason.partition(",")[0] for bad in parsed.bad] == ["y is missing"]


def test_messages():
    others = [0, 1, False, True, 0.0, 1.0, 2, None, [1], {"y": 1}, 0.5]
    rows = [{"y": y, "a": "u", "t": 5} for y in (*TEXTS, *others)]
    events, damage = encode_messages([json.dumps(row).encode() for row in rows], FEATURES)
    good = damage.good(len(rows))
    assert events.labels[good].tolist() == [*KNOWN, 0, 1, 0, 1, 0, 1]
    assert len(damage.reasons) == len(NO_LABELS) + 5
    assert damage.reasons[len(KNOWN)].startswith("y is 'maybe', ")
