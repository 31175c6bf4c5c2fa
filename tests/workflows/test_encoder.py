"""Texts become codes, counts and ids while a log is read: compared with plain Python."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cowclip_merlin.workflows import text_numbers
from cowclip_merlin.workflows.encoder import Encoder
from cowclip_merlin.workflows.nvtabular_graph import Recipe, filled, scaled
from cowclip_merlin.workflows.prepared.counts import Vocabulary
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.text_numbers import TextNumbers

TEXTS = st.sampled_from(["a", "B", "é", "日本", "aa", "b", "ab", "a\0"])
ROWS = st.lists(
    st.tuples(TEXTS | st.none(), st.lists(TEXTS, max_size=3), st.booleans()), max_size=9
)
TABLE = LogFormat(
    kind="table",
    label="y",
    categorical=("a", "b", "tags"),
    continuous=("x",),
    multi={"tags": "|"},
    share_embedding={"tags": "b"},
)


@given(st.lists(st.lists(st.text(max_size=4), max_size=40), max_size=6), st.integers(0, 3))
def test_texts_are_numbered_as_in_a_dict(parts, skipped):
    """Slices of an array start inside its buffers. 4 slots, so that the hash table grows often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_numbers, "_FIRST_SLOTS", 4)
        texts, known = TextNumbers(), {}
    for part in parts:
        part = part[skipped:]
        values = pa.array(["", *part], pa.string())[1:]
        assert texts.find(values).tolist() == [known.get(text, -1) for text in part]
        expected = [known.setdefault(text, len(known)) for text in part]
        assert texts.add(values).tolist() == expected
        assert texts.values().to_pylist() == list(known) and len(texts) == len(known)


def test_many_texts_of_several_threads_have_one_number_each():
    random = np.random.default_rng(0)
    parts = [pa.array([f"v{i}" for i in random.integers(0, 30_000, 20_000)]) for _ in range(8)]
    texts = TextNumbers()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(texts.add, parts))
    values = np.array(texts.values().to_pylist())
    assert len(values) == len(set(values))
    for part, places in zip(parts, found):
        assert values[places].tolist() == part.to_pylist()


def block(rows):
    """A block with the columns of `staged_columns`, and the masks of its splits."""
    a, tags, train = ([*column] for column in zip(*rows)) if rows else ([], [], [])
    table = pa.table(
        {
            "y": np.zeros(len(rows), np.int8),
            "a": pa.array(a, pa.string()).dictionary_encode(),
            "b": pa.array(a[::-1], pa.string()).dictionary_encode(),
            "tags": pa.array(tags, pa.list_(pa.string())),
            "x": np.arange(len(rows)) - 2.0,
        }
    )
    mask = np.array(train, bool)
    return table, {"train": mask, "test": ~mask}


def ids_of(encoder, codes, table, vocabularies):
    of = encoder.ids(table, vocabularies[table].kept["value"])
    return [of[x].tolist() for x in codes.to_pylist()]


@settings(max_examples=60)
@given(
    parts=st.lists(ROWS, min_size=1, max_size=4),
    threshold=st.integers(0, 3),
    fit_on=st.sampled_from(["train", "all"]),
)
def test_counts_and_ids_are_those_of_a_counter(tmp_path_factory, parts, threshold, fit_on):
    assume(any(train or fit_on == "all" for rows in parts for *_, train in rows))
    folder = tmp_path_factory.mktemp("categories")
    encoder = Encoder(TABLE, Recipe(fit_on=fit_on))
    coded = [encoder.encode(*block(rows), i) for i, rows in enumerate(parts)]
    made = {name: Vocabulary.of(encoder.counts(name), threshold) for name in ("a", "b")}
    for name, vocabulary in made.items():
        vocabulary.write(name, folder)

    columns = {"a": [], "b": []}  # table -> what each row has, and whether it is fitted
    for rows in parts:
        fitted = [train or fit_on == "all" for _, _, train in rows]
        columns["a"] += [([a], f) for (a, _, _), f in zip(rows, fitted)]
        columns["b"] += [([b], f) for (b, _, _), f in zip(rows[::-1], fitted)]
        columns["b"] += [(tags, f) for (_, tags, _), f in zip(rows, fitted)]
    for name, found in columns.items():
        seen = Counter(text for texts, fitted in found if fitted for text in texts)
        missing = seen.pop(None, 0)
        kept = sorted(
            (t for t in seen if seen[t] >= threshold), key=lambda t: (-seen[t], t.encode())
        )
        written = pd.read_parquet(folder / f"unique.{name}.parquet")
        assert written[name].tolist() == kept
        assert written[f"{name}_size"].tolist() == [seen[text] for text in kept]
        assert written.index.tolist() == list(range(3, 3 + len(kept))) or not kept
        meta = pd.read_parquet(folder / f"meta.{name}.parquet").set_index("kind")
        of_kept = sum(seen[text] for text in kept)
        assert meta.num_observed.to_dict() == {
            "pad": 0, "null": missing, "oov": sum(seen.values()) - of_kept, "unique": of_kept,
        }  # fmt: skip
        ids = {None: 1} | {text: 3 + i for i, text in enumerate(kept)}
        for table, rows in zip(coded, parts):
            values = [a for a, _, _ in (rows if name == "a" else rows[::-1])]
            assert ids_of(encoder, table[name], name, made) == [ids.get(t, 2) for t in values]
            if name == "b":
                lists = [[ids.get(text, 2) for text in tags] for _, tags, _ in rows]
                assert ids_of(encoder, table["tags"], name, made) == lists


def test_codes_of_a_known_vocabulary_are_its_ids():
    known = {"a": ["q", "p"], "b": []}
    known = {name: pa.chunked_array([values], pa.string()) for name, values in known.items()}
    encoder = Encoder(TABLE, Recipe(), known)
    rows = [("p", [], False), (None, [], False), ("new", [], False), ("q", ["t"], False)]
    later = [("later", [], False)] * 3
    for number, some in ((1, later), (0, [*rows, ("old", [], False), ("new", [], False)])):
        table = encoder.encode(*block(some), number)
    assert table["a"].to_pylist() == [4, 1, 2, 3, 2, 2]
    assert table["tags"].to_pylist() == [[], [], [], [2], [], []]
    assert encoder.frequent_unknown("a") == ["new", "old"]  # of the first block
    assert not encoder.ranges and not encoder.learns


def test_numbers_are_filled_and_scaled_as_by_pandas():
    x = pd.Series([1.5, None, -3, 7])
    assert filled(pa.array(x, from_pandas=True), log=False).tolist() == [1.5, 0, -3, 7]
    logs = filled(pa.array(x, from_pandas=True), log=True)
    expected = np.log(x.fillna(0).clip(lower=0).astype("float32") + 1)
    assert logs.dtype == np.float32 and (logs == expected.to_numpy()).all()
    assert scaled(np.array([-3.0, 7, 12]), -3.0, 7.0).tolist() == [0, 1, 1.5]
    assert scaled(np.array([0.0, 5]), 5.0, 5.0).tolist() == [0, 0.5]
