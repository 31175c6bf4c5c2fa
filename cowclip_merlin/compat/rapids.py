"""Make Merlin import with every version of cuDF, with or without Dask-cuDF."""

from __future__ import annotations

import importlib
from importlib.abc import MetaPathFinder
from types import ModuleType

from cowclip_merlin.compat.import_hooks import ImportHook, after, refused


def rapids_hooks() -> list[MetaPathFinder]:
    """Return the import hooks that adapt cuDF and Dask-cuDF to Merlin 23.8."""
    return [
        ImportHook("dask_cudf", refused),
        ImportHook("merlin.core.compat", after(fit_cudf_to_merlin)),
    ]


def fit_cudf_to_merlin(core: ModuleType) -> None:
    """Let Merlin use cuDF if it can, and hide it otherwise.

    Merlin uses cuDF only through Dask-cuDF with Dask's legacy dataframes. Dask-cuDF has them up to
    24.12. Without it, `merlin.io` fails at import if it sees cuDF. It then works on pandas.

    Args:
        core: the module `merlin.core.compat`.
    """
    if core.cudf is None:
        return
    if core.dask_cudf is None:
        core.cudf = None
        return
    column = importlib.import_module("cudf.core.column")
    if not hasattr(column, "build_categorical_column"):
        # `merlin.io` imports the name, which cuDF 24.12 lacks. It calls it only with cuDF < 22.2.
        column.build_categorical_column = None
