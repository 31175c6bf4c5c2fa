"""`prepare --extend`: known values keep their ids, new ones follow, and counts add up."""

from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows import PrepareSettings, prepare
from cowclip_merlin.workflows.nvtabular_graph import Recipe
from cowclip_merlin.workflows.prepared.counts import SPECIAL, Vocabulary, read_counts

TABLE = {"kind": "table", "label": "y", "categorical": ("user", "item"), "continuous": ("x",)}


def log(seed, first, rows=600):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "y": rng.integers(0, 2, rows),
            "user": [f"u{first + n}" for n in rng.zipf(1.5, rows) % 80],
            "item": [f"i{n}" if n % 9 else "" for n in first // 3 + rng.integers(0, 40, rows)],
            "x": rng.random(rows) * (1 + first),
        }
    )
    frame["tags"] = [f"{a}|{b}" for a, b in zip(frame["item"], frame["user"])]
    return frame


def prepared(folder, frame, **settings):
    frame.to_csv(folder.with_suffix(".csv"), index=False)
    given_ = TABLE if "extend" not in settings else {"kind": "table"}
    options = {"split": "time", "test_fraction": 0.1} | given_ | settings
    return prepare(PrepareSettings(files=(folder.with_suffix(".csv"),), out=folder, **options))


def vocabulary(data, field):
    """Value -> (id, count)."""
    rows = read_counts(data, field).to_pylist()
    return {row["value"]: (row["id"], row["count"]) for row in rows[len(SPECIAL) :]}


def special(data, field):
    return [row["count"] for row in read_counts(data, field).to_pylist()[: len(SPECIAL)]]


@pytest.mark.parametrize("threshold", [0, 3])
def test_ids_stay_and_counts_are_those_of_both_logs(tmp_path, threshold):
    frames = [log(0, 0), log(1, 30)]
    recipe = Recipe(freq_threshold=threshold)
    old = prepared(tmp_path / "old", frames[0], recipe=recipe)
    new = prepared(tmp_path / "new", frames[1], extend=old.path)
    assert new.rows == old.rows == {"train": 540, "test": 60}
    assert new.fitted_rows == 2 * 540 and new.recipe == recipe
    assert (new.statistics.minimum, new.statistics.maximum) == (
        old.statistics.minimum,
        old.statistics.maximum,
    )
    for field in ("user", "item"):
        train = pd.concat([frame[:540] for frame in frames])[field]
        counts = Counter(train[train != ""])
        before, after = vocabulary(old, field), vocabulary(new, field)
        assert {value: id_ for value, (id_, _) in before.items()}.items() <= {
            value: id_ for value, (id_, _) in after.items()
        }.items()
        assert all(count == counts[value] for value, (_, count) in after.items())
        assert set(after) == {v for v, n in counts.items() if n >= threshold} | set(before)
        others = [(value, counts[value]) for value in after if value not in before]
        assert others == sorted(others, key=lambda pair: (-pair[1], pair[0])) and others
        assert new.cardinalities[field] == len(SPECIAL) + len(after)
        rare = sum(n for value, n in counts.items() if value not in after)
        assert special(new, field) == [0, int((train == "").sum()), rare]
        assert bool(rare) == (threshold > 0 and field == "user")
    ids = {value: id_ for value, (id_, _) in vocabulary(new, "user").items()}
    part = pd.read_parquet(new.path / "test")
    assert part["user"].tolist() == [ids.get(value, 2) for value in frames[1]["user"][540:]]
    # A third day counts the rare values of both days before it.
    third = prepared(tmp_path / "third", frames[0], extend=new.path)
    assert sum(count for _, count in vocabulary(third, "user").values()) + special(third, "user")[
        2
    ] == (3 * 540)


def test_lists_and_shared_tables_are_extended(tmp_path):
    columns = {"categorical": ("user", "item"), "multi": ("tags",)}
    shared = {"share_embedding": ("tags=item",)}
    old = prepared(tmp_path / "old", log(0, 0), **columns, **shared)
    new = prepared(tmp_path / "new", log(1, 30), extend=old.path)
    assert new.log_format.share_embedding == {"tags": "item"}
    before, after = vocabulary(old, "item"), vocabulary(new, "tags")
    assert before and all(after[value][0] == id_ for value, (id_, _) in before.items())
    assert len(after) > len(before) and new.cardinalities["tags"] == new.cardinalities["item"]


def test_a_folder_without_its_rare_values_is_refused(tmp_path):
    old = prepared(tmp_path / "old", log(0, 0), recipe=Recipe(freq_threshold=4))
    (old.path / "categories" / "rare.user.parquet").unlink()
    with pytest.raises(InputError, match=r"rare\.user\.parquet: no such file; prepare the data"):
        prepared(tmp_path / "new", log(1, 30), extend=old.path)


COUNTS = st.dictionaries(st.sampled_from("abcdefghij"), st.integers(1, 6))


@given(COUNTS, COUNTS, st.integers(0, 5))
def test_files_are_those_of_slow_counting(tmp_path_factory, old, new, threshold):
    folder = tmp_path_factory.mktemp("v")
    first, second = (
        pa.table({"value": pa.array([*counts, None], pa.string()), "count": [*counts.values(), 2]})
        for counts in (old, new)
    )
    Vocabulary.of(first, threshold).write("c", folder)
    again = Vocabulary.read(folder, "c")
    assert again.rare.to_pylist() == Vocabulary.of(first, threshold).rare.to_pylist()
    again.extended(second, threshold).write("c", folder)
    both = Counter(old) + Counter(new)
    first = sorted((v for v in old if old[v] >= threshold), key=lambda v: (-old[v], v))
    others = sorted(set(both) - set(first), key=lambda v: (-both[v], v))
    wanted = [*first, *(v for v in others if both[v] >= threshold)]
    unique = pd.read_parquet(folder / "unique.c.parquet")
    assert unique["c"].tolist() == wanted
    assert unique["c_size"].tolist() == [both[v] for v in wanted]
    meta = pd.read_parquet(folder / "meta.c.parquet")
    rare = sum(both[v] for v in others if both[v] < threshold)
    assert meta["num_observed"].tolist() == [0, 4, rare, sum(both[v] for v in wanted)]


def test_no_values_at_all():
    none = pa.table({"value": pa.array([], pa.string()), "count": pa.array([], pa.int64())})
    found = Vocabulary.of(none, 0).extended(none, 0)
    assert (found.kept.num_rows, found.rare.num_rows, found.missing) == (0, 0, 0)
