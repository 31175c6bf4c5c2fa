"""Import Merlin next to a GPU and cuDF: stand-in packages with the names of the real ones."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from cowclip_merlin.compat.import_hooks import ImportHook, refused
from cowclip_merlin.compat.merlin import fit_cudf_to_merlin

# Public names of the wheels cudf-cu12 24.12.0 and dask-cudf-cu12 24.12.0, read from their source.
# cudf and cudf.core.column are complete; of the others, what Merlin could want.
NAMES = {
    "cudf": """BaseIndex CategoricalDtype CategoricalIndex DataFrame DateOffset DatetimeIndex
        Decimal128Dtype Decimal32Dtype Decimal64Dtype Grouper Index IntervalDtype IntervalIndex
        ListDtype MultiIndex NA NaT NamedAgg RMMNumbaManager RangeIndex Scalar Series StructDtype
        TimedeltaIndex clear_cache concat crosstab cuda cupy cut datasets date_range
        describe_option dtype factorize from_dataframe from_dlpack from_pandas get_dummies
        get_option interval_range isclose libcudf melt merge numba_config option_context pivot
        pivot_table read_avro read_csv read_feather read_hdf read_json read_orc read_parquet
        read_text register_dataframe_accessor register_index_accessor register_series_accessor
        rmm rmm_cupy_allocator set_option testing to_datetime to_numeric unique unstack""",
    "cudf.api": "",
    "cudf.api.types": "is_list_dtype is_string_dtype is_struct_dtype",
    "cudf.core": "",
    "cudf.core.column": """CategoricalColumn ColumnBase DatetimeColumn DatetimeTZColumn
        Decimal128Column Decimal32Column Decimal64Column DecimalBaseColumn IntervalColumn
        ListColumn NumericalColumn StringColumn StructColumn TimeDeltaColumn as_column
        build_column column_empty column_empty_like concat_columns deserialize_columns
        serialize_columns""",
    "cudf.io": "merge_parquet_filemetadata read_avro read_parquet read_parquet_metadata",
    "cudf.io.parquet": "ParquetWriter read_parquet",
    "dask_cudf": "DataFrame Index Series concat from_cudf from_delayed read_parquet",
    "dask_cudf.io": "",
    "dask_cudf.io.parquet": "CudfEngine",
    "rmm": "",
}

PROGRAM = """
from dask.distributed.diagnostics import nvml
nvml.device_get_count = lambda: 1
import cowclip_merlin
cowclip_merlin.compat.nvtabular()
import merlin.core.compat, merlin.io
assert merlin.core.compat.HAS_GPU
print("cuDF:", merlin.core.compat.cudf)
"""


@pytest.fixture
def stubs(tmp_path):
    for module, names in NAMES.items():
        folder = tmp_path.joinpath(*module.split("."))
        folder.mkdir(exist_ok=True)
        lines = ['__version__ = "24.12.00"', *(f"class {name}: pass" for name in names.split())]
        (folder / "__init__.py").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.system
def test_a_process_with_cudf_24_12_imports_merlin(stubs):
    """Starts a process: Merlin looks for GPUs once, when it is imported."""
    environment = os.environ | {"PYTHONPATH": str(stubs), "CUDA_VISIBLE_DEVICES": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "cuDF: <module 'cudf'" in done.stdout


def test_merlin_does_not_see_cudf_without_dask_cudf():
    core = SimpleNamespace(cudf=object(), dask_cudf=None)
    fit_cudf_to_merlin(core)
    assert core.cudf is None


def test_a_refusal_is_an_import_error(tmp_path, monkeypatch):
    """Dask-cuDF 25.2 raises ValueError at import if Dask's legacy dataframes are chosen."""
    (tmp_path / "refusing.py").write_text("raise ValueError('the legacy API is not supported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [ImportHook("refusing", refused), *sys.meta_path])
    with pytest.raises(ImportError, match="legacy API"):
        __import__("refusing")
