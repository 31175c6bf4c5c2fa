"""Categorify with a faster fit and lookup on the CPU, and with support for empty columns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from cowclip_merlin import compat
from cowclip_merlin.types import Array
from cowclip_merlin.workflows.prepared.counts import FIRST_VALUE, SPECIAL, empty_vocabulary
from cowclip_merlin.workflows.raw.values.multi_values import lists_of_values
from cowclip_merlin.workflows.raw.values.value_text import arrow_of_series, text_of_series

if TYPE_CHECKING:
    import cudf
    import dask.dataframe as dd
    from dask.delayed import Delayed
    from nvtabular import ColumnSelector

ops = compat.nvtabular().ops

MISSING, UNKNOWN = SPECIAL["null"], SPECIAL["oov"]


class FastCategorify(ops.Categorify):
    """NVTabular's Categorify with one vocabulary per column; it learns and writes the same.

    On pandas it looks values up in a hash index, where NVTabular joins and sorts. NVTabular
    rejects a partition in which a column has no values; this class gives it the missing id. With
    cuDF it counts by itself, since NVTabular's count fails from cuDF 24.8 on. Ties in frequency
    are then sorted by value, as `prepare` sorts them.

    Args:
        multi: columns with several values per row -> what separates them in text. Their ids are
            lists. A row without a value has an empty list, and a missing value in a list no id.
        share: column -> the column whose vocabulary it has, too. NVTabular's joint encoding does
            the same, for columns of one form.
        settings: arguments of NVTabular's Categorify.
    """

    def __init__(
        self,
        *,
        multi: Mapping[str, str] | None = None,
        share: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.multi = dict(multi or {})
        # NVTabular reads from it the size of a column's vocabulary, and the name of its domain.
        self.storage_name = dict(share or {})

    def fit(self, col_selector: ColumnSelector, ddf: dd.DataFrame) -> Delayed:
        """Return a task that counts the values and writes the vocabularies."""
        if isinstance(ddf._meta, pd.DataFrame):
            return super().fit(col_selector, ddf)
        from cowclip_merlin.workflows.gpu_graph import fit_vocabularies

        folder = Path(self.out_path) / "categories"
        folder.mkdir(exist_ok=True)
        return fit_vocabularies(ddf, col_selector.names, folder, self.freq_threshold)

    def _table_of(self, column: str) -> str:
        """Return the name of a column's vocabulary."""
        return self.storage_name.get(column, column)

    def fit_finalize(self, categories: Mapping[str, str]) -> None:
        """Keep the paths; write the empty vocabularies that NVTabular omits."""
        super().fit_finalize(categories)
        for name, path in self.categories.items():
            if not Path(path).exists():
                empty_vocabulary(name).to_parquet(path)

    def transform(
        self, col_selector: ColumnSelector, df: pd.DataFrame | cudf.DataFrame
    ) -> pd.DataFrame | cudf.DataFrame:
        """Replace values by their ids."""
        if isinstance(df, pd.DataFrame):
            ids = {
                name: (self._lists if name in self.multi else self._ids)(df[name], name)
                for name in col_selector.names
            }
            return pd.DataFrame(ids, index=df.index)
        ids = {name: self._ids_by_join(df[name], name) for name in col_selector.names}
        result = type(df)(ids)
        result.index = df.index
        return result

    def _ids_by_join(self, values: cudf.Series, name: str) -> cudf.Series:
        """Return the ids of one cuDF column, int32 [n]; cuDF's join does not keep the order."""
        asked = values.rename("value").reset_index(drop=True).reset_index()
        found = asked.merge(self._ids_of_values(name), on="value", how="left")
        found = found.sort_values("index").reset_index(drop=True)
        ids = found["id"].fillna(UNKNOWN).where(found["value"].notna(), MISSING)
        return ids.astype(self.output_dtype)

    def _ids_of_values(self, name: str) -> cudf.DataFrame:
        """Return a cuDF frame with the columns value and id; each worker reads it once."""
        import cudf
        from merlin.io.worker import get_worker_cache

        table = self._table_of(name)
        path = str(self.categories[table])
        with get_worker_cache("cats") as cache:
            key = ("frame", path)
            if key not in cache:
                values = cudf.read_parquet(path, columns=[table])[table].rename("value")
                known = values.reset_index(drop=True).reset_index()
                known["id"] = known["index"] + FIRST_VALUE
                cache[key] = known[["value", "id"]]
            return cache[key]

    def _ids(self, values: pd.Series, name: str) -> Array:
        """Return the ids of one column, int32 [n]."""
        if isinstance(values.dtype, pd.CategoricalDtype):
            # Missing values have the code -1, which is the last entry.
            ids = np.append(self._look_up(values.cat.categories, name), MISSING)
            return ids.astype(self.output_dtype)[values.cat.codes.to_numpy()]
        ids = self._look_up(values, name)
        ids[values.isna().to_numpy()] = MISSING
        return ids

    def _lists(self, values: pd.Series, name: str) -> Array:
        """Return the ids of each row of a multi-valued column: arrays of int32, [n]."""
        given = arrow_of_series(values, name)
        lists = lists_of_values(given, self.multi[name], where=f"column {name!r}")
        coded = lists.values.dictionary_encode()
        known = self._look_up(coded.dictionary.to_pandas(), name).astype(self.output_dtype)
        ids = known[coded.indices.to_numpy()]
        return pa.ListArray.from_arrays(lists.offsets, pa.array(ids)).to_pandas().to_numpy()

    def _look_up(self, values: pd.Series | pd.Index, name: str) -> Array:
        """Return the ids of values, int32 [n]; those of missing values mean nothing.

        In a vocabulary of text, an empty text that no row to fit on had is a missing value.
        """
        vocabulary = self._vocabulary(name)
        if vocabulary.dtype == object or isinstance(vocabulary.dtype, pd.StringDtype):
            values = _as_text(values, name)
        index = vocabulary.get_indexer(values)
        ids = (index + FIRST_VALUE).astype(np.dtype(self.output_dtype))
        absent = index < 0
        ids[absent] = UNKNOWN
        empty = pd.Series(np.asarray(values, object)[absent], dtype=object).isin([""])
        ids[np.flatnonzero(absent)[empty]] = MISSING
        return ids

    def _vocabulary(self, name: str) -> pd.Index:
        """Return the values in the order of their ids; each worker reads them once."""
        from merlin.io.worker import get_worker_cache

        table = self._table_of(name)
        path = str(self.categories[table])
        with get_worker_cache("cats") as cache:
            key = ("index", path)
            if key not in cache:
                index = pd.Index(pd.read_parquet(path, columns=[table])[table])
                _ = index.is_unique  # builds the hash table now, while one thread has the cache
                cache[key] = index
            return cache[key]


def _as_text(values: pd.Series | pd.Index, name: str) -> pd.Series | pd.Index | Array:
    """Return values of any type as text: a log has text, and so have the vocabularies."""
    if pd.api.types.infer_dtype(values, skipna=True) in ("string", "empty"):
        return values
    return text_of_series(values, name).to_numpy(zero_copy_only=False)
