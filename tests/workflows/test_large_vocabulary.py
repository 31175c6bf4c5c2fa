"""Vocabularies with more text than an Arrow array of `string` can hold, here with a lower limit."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin.workflows import PrepareSettings, Recipe, prepare, value_to_id
from cowclip_merlin.workflows.raw.values import value_text
from cowclip_merlin.workflows.raw.values.value_text import in_chunks
from cowclip_merlin.workflows.text_numbers import TextNumbers

LIMIT = 40


@given(
    texts=st.lists(st.text("aé", max_size=9), max_size=12),
    start=st.integers(0, 3),
    most=st.integers(1, 30),
)
def test_text_in_chunks_is_that_text(texts, start, most):
    whole = pa.array(texts, pa.large_string())[start:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(value_text, "_MOST_BYTES", most)
        chunks = in_chunks(whole)
    chunks.validate(full=True)
    assert chunks.type == pa.string() and chunks.to_pylist() == texts[start:]
    sizes = [
        (len(chunk), sum(len(x.encode()) for x in chunk.to_pylist())) for chunk in chunks.chunks
    ]
    assert all(size <= most or texts_in == 1 for texts_in, size in sizes)
    numbers = TextNumbers()
    assert numbers.add(chunks).tolist() == [
        list(dict.fromkeys(texts[start:])).index(x) for x in texts[start:]
    ]


def make(folder, name, users, **settings):
    rows = [f"{i % 2},{user},{i % 5}\n" for i, user in enumerate(users)]
    (folder / f"{name}.csv").write_text("y,user,x\n" + "".join(rows))
    return prepare(
        PrepareSettings(
            files=(folder / f"{name}.csv",), out=folder / name, kind="table", label="y",
            categorical=("user",), continuous=("x",), **settings,
        )
    )  # fmt: skip


def test_a_vocabulary_beyond_the_limit_is_that_below_it(tmp_path, monkeypatch):
    first = [f"user-{i % (i % 61 + 1)}" for i in range(700)]
    second = [f"user-{i % 90}" for i in range(500)]
    found = []
    for limit in (value_text._MOST_BYTES, LIMIT):
        monkeypatch.setattr(value_text, "_MOST_BYTES", limit)
        folder = tmp_path / str(limit)
        folder.mkdir()
        data = make(folder, "first", first, recipe=Recipe(freq_threshold=9))
        extended = make(folder, "second", second, extend=data.path)
        like = make(folder, "like", [*second, "nobody"], like=extended.path)
        ids = [pd.concat(map(pd.read_parquet, like.files("test"))).user.tolist()]
        found.append([value_to_id(data, "user"), value_to_id(extended, "user"), ids])
        for each in ("unique", "rare"):
            file = data.path / "categories" / f"{each}.user.parquet"
            assert pq.read_schema(file).field(0).type == pa.string()
        assert data.fingerprint
    assert found[0] == found[1]
    assert len(found[0][0]) > 10 and len(found[0][1]) > len(found[0][0])
    assert np.unique(found[0][2]).size > 40
