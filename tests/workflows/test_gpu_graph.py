"""The path of `prepare` on a GPU, on a stand-in for cuDF, against the path on a CPU."""

import ast
import importlib.util
import sys
from contextlib import nullcontext
from pathlib import Path

import fake_cudf
import pyarrow.parquet as pq
import pytest

from cowclip_merlin.workflows import PrepareSettings, Recipe, prepare
from cowclip_merlin.workflows import prepare as prepare_module

ROWS = """1,u,p,1,0
0,v,,2.5,0
1,u,q,,0
0,,p,-3,0
1,w,,4,
0,u,r,7,0
1,v,r,7,0
0,ü ,s,1e9,0
1,v,t,1,0
0,u,,2,0
"""
TEXT = "y,a,b,x,z\n" + 30 * ROWS + "1,late,late,2e9,\n"


@pytest.fixture
def both(tmp_path, monkeypatch):
    """Prepares the same rows on the CPU's path and on the GPU's path."""
    file = tmp_path / "t.csv"

    def make(text=TEXT, where="", **settings):
        file.write_text(text, encoding="utf-8")
        out = {name: tmp_path / name / f"o{where}" for name in ("cpu", "gpu")}
        usual = {"kind": "table", "label": "y", "categorical": ("a", "b")}
        usual |= {"continuous": ("x", "z"), "files": (file,), "partition_mb": 0.001}
        cpu = prepare(PrepareSettings(out=out["cpu"], device="cpu", **usual | settings))
        with monkeypatch.context() as patch:
            module = sys.modules[prepare_module.__module__]
            patch.setitem(sys.modules, "cudf", fake_cudf.module())
            patch.setattr(module, "use_gpu", lambda device: True)
            patch.setattr(module, "dask_cluster", lambda *args, **kw: nullcontext())
            gpu = prepare(PrepareSettings(out=out["gpu"], **usual | settings))
        return cpu, gpu

    for name in ("cpu", "gpu"):
        (tmp_path / name).mkdir()
    return make


def files(data):
    return sorted(f.relative_to(data.path) for f in data.path.rglob("*") if f.is_file())


def assert_same_files(cpu, gpu):
    """The bytes of the vocabularies, counts and descriptions; the rows and types of the splits."""
    assert files(cpu) == files(gpu)
    for file in files(cpu):
        if file.suffix == ".parquet" and file.parts[0] in ("train", "test"):
            assert pq.read_table(cpu.path / file).equals(pq.read_table(gpu.path / file)), file
        else:
            assert (cpu.path / file).read_bytes() == (gpu.path / file).read_bytes(), file


@pytest.mark.parametrize(
    "settings",
    [
        {"recipe": Recipe(freq_threshold=31, log=True)},
        {"recipe": Recipe(fit_on="all"), "hugectr": True},
    ],
    ids=str,
)
def test_a_gpu_writes_what_a_cpu_writes(both, settings):
    cpu, gpu = both(split="time", test_fraction=0.3, **settings)
    assert len(cpu.files("train")) > 1  # counts and ranges of several partitions are merged
    assert_same_files(cpu, gpu)


def test_a_column_without_a_value(both):
    text = "y,a,b,x,z\n1,,p,1,\n0,,q,2,\n1,,p,3,\n0,,q,4,\n"
    cpu, gpu = both(text, split="time", test_fraction=0.5)
    assert_same_files(cpu, gpu)


def test_the_vocabulary_of_another_folder(both, tmp_path):
    base, _ = both(split="time", test_fraction=0.3)
    new = {"label": None, "categorical": (), "continuous": (), "like": base.path}
    again = both(text=TEXT.replace("u", "new"), where="again", **new)
    assert_same_files(*again)


def defined(folder, kind):
    """Names that cuDF's source defines in a class and its bases, or in `cudf/__init__.py`."""
    if kind == "module":
        nodes = ast.walk(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
        return {a.name for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names}
    names, wanted = set(), [kind]
    trees = [ast.parse(f.read_text(encoding="utf-8")) for f in (folder / "core").glob("*.py")]
    classes = {n.name: n for t in trees for n in ast.walk(t) if isinstance(n, ast.ClassDef)}
    while wanted:
        if (node := classes.get(wanted.pop())) is not None:
            names |= {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
            wanted += [base.id for base in node.bases if isinstance(base, ast.Name)]
    return names


@pytest.mark.parametrize("kind", fake_cudf.NAMES)
def test_the_installed_cudf_has_the_names(kind):
    """Read as text: this needs cuDF's files, but no GPU."""
    found = importlib.util.find_spec("cudf")
    if found is None:
        pytest.skip("needs cuDF (the rapids-gpu pins), but no GPU")
    assert fake_cudf.NAMES[kind] <= defined(Path(found.origin).parent, kind)
