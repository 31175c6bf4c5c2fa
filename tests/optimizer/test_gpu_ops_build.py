"""How the operations of a GPU are built, cached and chosen; what both languages agree on."""

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest
from emulated_cupy import COMPILER

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels.cuda import source
from cowclip_merlin.optimizer import config
from cowclip_merlin.optimizer.row_updates import gpu_ops

pytestmark = [pytest.mark.system, pytest.mark.skipif(COMPILER is None, reason="no g++ on PATH")]


def test_the_program_has_the_kernels_that_are_launched_and_no_others(tf):
    found = re.findall(r"__global__ void (\w+)", source.program(*gpu_ops.SOURCES))
    assert sorted(found) == sorted(gpu_ops.FUNCTIONS)


def test_python_and_the_operations_agree_on_functions_and_fields(tf):
    """What the kernels share with the operations is in one header, shared.h."""
    header = Path(gpu_ops.__file__).with_name("row_ops").joinpath("tables.h").read_text()
    names = re.search(r"enum Function \{(.*?)kFunctions", header, re.S)[1]
    wanted = [f"k{''.join(part.title() for part in x.split('_'))}" for x in gpu_ops.FUNCTIONS]
    assert re.findall(r"\w+", names) == wanted
    fields = re.search(r"struct CowClipTable \{(.*?)void\*", header, re.S)[1]
    kinds = {"Long": "c_longlong", "std::int32_t": "c_int32", "float": "c_float"}
    found = [
        (name, getattr(ctypes, kinds.get(kind, "c_double")))
        for kind, some in re.findall(r"([\w:]+) ([\w, \n]+);", fields)
        for name in re.findall(r"\w+", some)
    ]
    assert found == gpu_ops.TableRecord._fields_[:-1]
    shared = source.FOLDER.joinpath("shared.h").read_text()
    assert int(re.search(r"SEGMENT = (\d+)", shared)[1]) == source.SEGMENT


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """A cache folder that does not exist yet, and a folder of this process for its substitute."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(gpu_ops, "_temporary_folder", lambda: tmp_path / "temporary")
    return tmp_path / "cache"


@pytest.mark.parametrize(
    "compiler, said",
    [
        ("", "need a C.. compiler"),
        ("false", "false cannot compile"),
        ("env false", "env false cannot compile"),
        ("/no/such/g++", "compiler /no/such/g.*: No such file"),
        ("'g++", "CXX='g.. "),
    ],
)
def test_no_compiler_is_one_line(tf, monkeypatch, tmp_path, cache, compiler, said):
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setattr(gpu_ops.shutil, "which", lambda name: None)
    with pytest.raises(cc.InputError, match=said) as error:
        gpu_ops.build()
    assert "\n" not in str(error.value) and 'backend="tensorflow"' in str(error.value)
    assert not list(tmp_path.rglob("*.so*"))


COPIER = "import pathlib, sys; pathlib.Path(sys.argv[sys.argv.index('-o') + 1]).touch()"


def test_a_cache_that_cannot_be_written(tf, monkeypatch, tmp_path, cache):
    """The library is compiled once, into another folder; with a compiler of several words."""
    cache.touch()  # a file: no folder can be made in it
    (tmp_path / "compiler.py").write_text(COPIER)
    monkeypatch.setenv("CXX", f"'{sys.executable}' '{tmp_path / 'compiler.py'}'")
    built = gpu_ops.build()
    assert built.exists() and built.parent == tmp_path / "temporary"
    monkeypatch.setenv("CXX", "false")
    assert gpu_ops.build() == built
    (tmp_path / "temporary").rename(tmp_path / "other")
    (tmp_path / "temporary").touch()
    with pytest.raises(cc.InputError, match="cannot store "):
        gpu_ops.build()


def test_a_library_in_a_read_only_cache_is_used(tf, monkeypatch, tmp_path, cache):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "compiler.py").write_text(COPIER)
    monkeypatch.setenv("CXX", f"'{sys.executable}' '{tmp_path / 'compiler.py'}'")
    built = gpu_ops.build()
    assert built.parent == cache / "cowclip_merlin"
    monkeypatch.setattr(gpu_ops, "atomic_write", refuse)  # root may write everywhere
    assert gpu_ops.build() == built


def test_a_library_from_another_machine_is_used_with_the_same_build_of_tensorflow(
    tf, monkeypatch, tmp_path, cache
):
    (tmp_path / "compiler.py").write_text(COPIER)
    monkeypatch.setenv("CXX", f"'{sys.executable}' '{tmp_path / 'compiler.py'}'")
    built = gpu_ops.build()
    flags = [f for f in tf.sysconfig.get_compile_flags() if not f.startswith("-I")]
    monkeypatch.setattr(tf.sysconfig, "get_compile_flags", lambda: ["-I/elsewhere", *flags])
    monkeypatch.setenv("CXX", "false")
    assert gpu_ops.build() == built
    monkeypatch.setattr(tf.version, "GIT_VERSION", "another build of the same version")
    with pytest.raises(cc.InputError, match="false cannot compile"):
        gpu_ops.build()


def test_the_substitute_of_the_cache_is_removed_at_the_end():
    code = (
        "from cowclip_merlin.optimizer.row_updates.gpu_ops import _temporary_folder as folder; "
        "assert folder().is_dir() and folder() == folder(); print(folder())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not Path(done.stdout.strip()).exists()


@pytest.mark.parametrize("missing", ["build", "require_cupy"])
def test_where_row_operations_cannot_be_used_auto_takes_plain_operations(
    tf, monkeypatch, caplog, missing
):
    def fail():
        raise cc.InputError("no compiler")

    monkeypatch.setattr(config.tf.config, "list_logical_devices", lambda kind: ["GPU:0"])
    monkeypatch.setattr(config, "find_spec", lambda name: name)
    for name in ("build", "require_cupy"):
        monkeypatch.setattr(config.gpu_ops, name, fail if name == missing else lambda: None)
    with caplog.at_level("WARNING", logger="cowclip_merlin"):
        assert cc.CowClip(update="lazy").backend == "tensorflow"
    assert "slower row updates on the GPU: no compiler" in caplog.text


def test_the_log_has_the_update_in_force(tf, caplog):
    with caplog.at_level("INFO", logger="cowclip_merlin"):
        cc.CowClip("adagrad", update="exact", l2=0.0, backend="tensorflow")
    assert "update lazy, backend tensorflow" in caplog.text


@pytest.mark.parametrize(
    ("visible", "parts", "numbers"),
    [((0, 1), {}, [0, 1]), ((1,), {}, [1]), ((2, 0), {2: 2}, [2, 2, 0])],
)
def test_kernels_are_loaded_for_the_gpu_that_tensorflow_uses(
    tf, monkeypatch, visible, parts, numbers
):
    """Where a process hides GPUs, or divides them, TensorFlow's numbers are not CUDA's."""
    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in visible]
    logical = {gpu: [None] * parts[i] for i, gpu in zip(visible, gpus, strict=True) if i in parts}
    made = [None] * len(numbers)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus)
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", logical.get)
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: made)
    assert [gpu_ops.cuda_number(i) for i in range(len(numbers))] == numbers
    made.pop()
    with pytest.raises(InputError, match="CUDA_VISIBLE_DEVICES"):
        gpu_ops.cuda_number(0)


def test_auto_says_why_a_gpu_has_slow_row_updates(tf, monkeypatch, caplog):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: ["GPU:0"])
    monkeypatch.setattr("cowclip_merlin.optimizer.config.find_spec", lambda name: None)
    assert cc.CowClip(update="lazy").backend == "tensorflow"
    assert "slower row updates on the GPU: CuPy is not installed" in caplog.text
