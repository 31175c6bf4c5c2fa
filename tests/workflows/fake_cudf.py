"""A small cuDF on pandas: it has only the functions of cuDF in `NAMES`, and is no pandas frame."""

import types

import numpy as np
import pandas as pd
import pyarrow as pa

NAMES = {
    "module": {"DataFrame", "read_parquet"},
    "DataFrame": {"columns", "index", "merge", "sort_values", "reset_index", "to_arrow"}
    | {"to_parquet", "__getitem__", "__setitem__", "__len__"},
    "Series": {"astype", "clip", "dtype", "fillna", "index", "max", "min", "notna", "rename"}
    | {"reset_index", "value_counts", "where", "__array_ufunc__"},
}
"""What the code uses. `test_gpu_graph.py` looks the names up in cuDF's source if it is there."""


def bare(x):
    if isinstance(x, dict):
        return {key: bare(value) for key, value in x.items()}
    return x.inner if isinstance(x, Frame) else x


def dressed(x):
    kinds = {pd.DataFrame: DataFrame, pd.Series: Series}
    return kinds[type(x)](x) if type(x) in kinds else x


class Frame:
    def __init__(self, data):
        object.__setattr__(self, "inner", self.make(bare(data)))

    def __getattr__(self, name):
        if name not in NAMES[type(self).__name__]:
            raise AttributeError(f"not in NAMES: {type(self).__name__}.{name}")
        found = getattr(self.inner, name)
        if not callable(found):
            return found
        return lambda *args, **kw: dressed(found(*map(bare, args), **bare(kw)))

    def __setattr__(self, name, value):
        setattr(self.inner, name, value)

    def __len__(self):
        return len(self.inner)


class DataFrame(Frame):
    make = staticmethod(pd.DataFrame)

    def __getitem__(self, key):
        return dressed(self.inner[key])

    def __setitem__(self, key, value):
        self.inner[key] = bare(value)

    def merge(self, right, on, how):
        """As cuDF's join, this does not keep the order of the rows."""
        joined = self.inner.merge(bare(right), on=on, how=how)
        return dressed(joined.sample(frac=1, random_state=0))

    def to_arrow(self, preserve_index):
        return pa.Table.from_pandas(self.inner, preserve_index=preserve_index)


class Series(Frame):
    make = staticmethod(lambda x: x)

    def __array_ufunc__(self, ufunc, method, *inputs):
        return dressed(getattr(ufunc, method)(*map(bare, inputs)))

    __add__ = lambda self, x: dressed(self.inner + bare(x))  # noqa: E731
    __sub__ = lambda self, x: dressed(self.inner - bare(x))  # noqa: E731
    __mul__ = lambda self, x: dressed(self.inner * bare(x))  # noqa: E731
    __truediv__ = lambda self, x: dressed(self.inner / np.asarray(bare(x)))  # noqa: E731


def module():
    """Return a module to put into `sys.modules` under the name cudf."""
    fake = types.ModuleType("cudf")
    fake.DataFrame = DataFrame
    fake.read_parquet = lambda file, columns=None: DataFrame(pd.read_parquet(file, columns=columns))
    return fake
