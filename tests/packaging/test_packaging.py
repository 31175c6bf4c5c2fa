"""Import cost, the wrong Keras, and pins that agree with each other."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from cowclip_merlin.errors import EXTRAS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
EVERY = sorted(ROOT.glob("requirements/*-py3*.txt"))
TRITON = ROOT / "requirements/triton-py311.txt"  # no extra: it needs protobuf < 7
TOOLS = [p for p in EVERY if p.name.startswith(("docs-", "flink-", "current-"))]
LINES = [p for p in EVERY if p not in (*TOOLS, TRITON)]


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"} | environment,
    )


def tensorflow_version():
    major, minor, *_ = version("tensorflow").split(".")
    return int(major), int(minor)


@pytest.mark.quick
@pytest.mark.system
def test_import_loads_nothing_heavy():
    done = python(
        "import sys, cowclip_merlin\n"
        "heavy = {'tensorflow', 'keras', 'numpy', 'cudf', 'cupy', 'nvtabular', 'pandas'}\n"
        "heavy = (heavy | {'merlin'}) & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.quick
@pytest.mark.system
def test_help_loads_no_large_package():
    done = python(
        "import sys\nfrom cowclip_merlin.cli import main\n"
        "try:\n    main(['experiment', '--help'])\nexcept SystemExit:\n    pass\n"
        "large = {'tensorflow', 'merlin', 'pandas', 'pyarrow', 'numba', 'matplotlib', 'yaml'}\n"
        "assert not large & set(sys.modules), large & set(sys.modules)"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.quick
@pytest.mark.system
def test_online_commands_that_do_not_train_do_not_import_tensorflow():
    """They stop at a missing file, after their imports."""
    done = python(
        "import sys\nfrom cowclip_merlin.cli import main\n"
        "for words in ('rollback RUN', 'produce log.csv --features no.yaml --to LOG', 'join "
        "--impressions I --actions A --features no.yaml --to LOG --window 1h --state S'):\n"
        "    assert main(['online', *words.split()]) == 2\n"
        "    large = {'tensorflow', 'keras', 'merlin', 'nvtabular'} & set(sys.modules)\n"
        "    assert not large, (words, large)",
    )
    assert done.returncode == 0, done.stderr
    assert "RUN: no snapshots" in done.stderr and done.stderr.count("no.yaml") == 2


@pytest.mark.system
def test_import_takes_less_than_300_ms():
    code = (
        "import time; t = time.perf_counter(); import cowclip_merlin\n"
        "print(time.perf_counter() - t)"
    )
    # Again if it is slow: other processes may have had the cores.
    assert any(float(python(code).stdout) < 0.3 for _ in range(10))


# To import the first one is to import merlin.models.tf and what that imports.
MODULES = ("merlin.models.tf.inputs.embedding", "nvtabular")


@pytest.mark.system
@pytest.mark.parametrize("module", MODULES)
def test_merlin_is_found_after_this_package(module):
    """Nothing of this package has been touched in between."""
    done = python(f"import cowclip_merlin, {module}; assert {module}.__name__ == '{module}'")
    assert done.returncode == 0, done.stderr


@pytest.mark.system
def test_nvtabular_is_imported_without_tensorflow_which_merlin_learns_of_later():
    done = python(
        "import sys\n"
        "from cowclip_merlin import compat\n"
        "compat.nvtabular()\n"
        "import merlin.dtypes as md\n"
        "from merlin.dtypes.mapping import DTypeMapping\n"
        "from merlin.dtypes.registry import _dtype_registry as registry\n"
        "registry.register('triton', DTypeMapping({md.boolean: [3]}))\n"  # tf.int32 == 3
        "from merlin.table import TensorTable, TensorflowColumn\n"
        "assert 'tensorflow' not in sys.modules and TensorflowColumn.array_type() is None\n"
        "import tensorflow as tf\n"
        "assert TensorflowColumn.array_type() is tf.Tensor and md.dtype(tf.int32) == md.int32\n"
        "assert type(TensorTable({'a': tf.constant([1, 2])})['a']) is TensorflowColumn\n"
        "import merlin.models.tf as mm; mm.DLRMModel"
    )
    assert done.returncode == 0, done.stderr
    assert "dtype mappings" not in done.stderr


@pytest.mark.system
@pytest.mark.parametrize(
    "code",
    [
        "from types import SimpleNamespace as N\n"
        "from cowclip_merlin.workflows.prepared.folder import merlin_schema\n"
        "from cowclip_merlin.workflows.raw.log_format import LogFormat\n"
        "columns = LogFormat(kind='table', categorical=('a',), label='y')\n"
        "merlin_schema(columns, N(cardinalities={'a': 3}, scales={}))",
        "from cowclip_merlin import models\n"
        "models.growing_schema(categorical=['a'], continuous=[], label='y')",
    ],
)
def test_a_schema_is_made_without_warnings_of_merlin(code):
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert "dtype mappings" not in done.stderr


@pytest.mark.system
@pytest.mark.parametrize("module", MODULES)
def test_merlin_before_this_package_works_or_is_one_clear_error(module):
    """It has asked for another Keras, or failed by itself, before anything here could help."""
    done = python(
        f"try:\n    import {module}\nexcept ImportError:\n    pass\n"
        "import cowclip_merlin, merlin.models.tf as mm; mm.DLRMModel"
    )
    if tensorflow_version() < (2, 16):
        assert done.returncode == 0, done.stderr
        return
    last = done.stderr.strip().splitlines()[-1]
    assert re.match("ImportError: .* import cowclip_merlin before tensorflow and before mer", last)


@pytest.mark.system
def test_the_failure_of_merlin_by_itself_can_be_mended_later():
    """With Keras 2 asked for in the environment, an import that failed works the second time."""
    done = python(
        "try:\n    import merlin.models.tf\nexcept ImportError:\n    pass\n"
        "import cowclip_merlin, merlin.models.tf as mm; mm.DLRMModel",
        TF_USE_LEGACY_KERAS="1",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.system
def test_the_wrong_keras_is_named_in_one_line():
    code = "import tensorflow\nimport cowclip_merlin as cc\ncc.scale('criteo', to=2048)\ncc.CowClip"
    done = python(code, TF_USE_LEGACY_KERAS="0")
    if tensorflow_version() < (2, 16):
        assert done.returncode == 0, done.stderr
        return
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0
    assert re.match("ImportError: this part of cowclip_merlin needs Keras 2.*LEGACY_KERAS=1", last)


def pins(path):
    lines = path.read_text().splitlines()
    return dict(
        re.fullmatch(r"([A-Za-z0-9._-]+)==(\S+?)( ;.*)?", line).groups()[:2]
        for line in lines
        if line and not line.startswith("#")
    )


OF_LINES = {
    "default": {"tensorflow": "2.21.0", "pandas": "1.5.3", "dask": "2023.9.2"},
    "rapids": {"tensorflow": "2.21.0", "pandas": "2.2.3", "dask": "2024.11.2"},
    # What the Dockerfiles of merlin-tensorflow 23.12 name, and what RAPIDS 23.04 brings.
    "ngc": {
        "tensorflow": "2.12.0", "pandas": "1.5.2", "numpy": "1.22.4", "dask": "2023.1.1",
        "distributed": "2023.1.1", "pynvml": "11.4.1", "protobuf": "3.20.3", "wrapt": "1.14.0",
        "fsspec": "2022.5.0", "pyarrow": "10.0.1", "numba": "0.56.4", "dask-cuda": "23.4.0",
    },
}  # fmt: skip


NAME = "cowclip-merlin"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements(*extras):
    """What pyproject.toml asks for, by the extras that these name in turn; "": the core."""
    found = []
    for extra in extras:
        of_extra = PROJECT["optional-dependencies"].get(extra, PROJECT["dependencies"])
        for requirement in map(Requirement, of_extra):
            found += [requirement]
            if requirement.name == NAME:
                found += requirements(*requirement.extras)
    return found


@pytest.mark.parametrize("path", LINES, ids=lambda p: p.name)
def test_pins_are_exact_and_agree_with_the_line(path):
    versions = {k.lower().replace("_", "-"): v for k, v in pins(path).items()}
    ngc, rapids = "ngc" in path.name, "rapids" in path.name
    line = "ngc" if ngc else "rapids" if rapids else "default"
    assert {name: versions[name] for name in OF_LINES[line]} == OF_LINES[line]
    if "gpu" in path.name:
        assert versions["cudf-cu12"].startswith("26.2") and "cupy-cuda12x" in versions
        assert "dask-cudf-cu12" not in versions  # from 25.2 on, it refuses the Dask of Merlin
    merlin = pins(ROOT / "requirements/rapids-merlin.txt") if rapids else versions
    assert merlin["merlin-models"] == "23.12.0" and merlin["nvtabular"] == "23.8.0"
    assert "://" not in path.read_text()


@pytest.mark.parametrize("path", LINES, ids=lambda p: p.name)
def test_pins_meet_what_pyproject_asks_for(path):
    gpu, line = "gpu" in path.name, path.name.partition("-")[0]
    extras = ("gpu" if gpu else "cpu", "tune")
    if line != "ngc" and not gpu:  # their images have none of it
        extras += ("online",)
    wanted = [r for r in requirements("", *extras) if r.name != NAME]
    versions = {k.lower().replace("_", "-"): v for k, v in pins(path).items()}
    if line == "rapids":
        versions |= pins(ROOT / "requirements/rapids-merlin.txt")
    # What makes a line one of its own; dask-cuda is for GPUs.
    apart = {
        "default": set(),
        "ngc": {*OF_LINES["ngc"], "tf-keras", "tensorflow-metadata"},
        "rapids": {"pandas", "dask", "distributed", "dask-cuda", "pyarrow"},
    }
    for requirement in wanted:
        if requirement.name not in apart[line]:
            assert versions[requirement.name] in requirement.specifier, requirement


def test_pip_ends_at_once_for_a_python_without_pandas_1_5():
    """Before it fetches what is large: the first requirement is a version that does not exist."""
    refusal, *_ = requirements("merlin")
    assert refusal.name == NAME and "==0+extra.needs.python.3.10.or.3.11" in str(refusal)
    beside = [Requirement(r) for r in PROJECT["optional-dependencies"]["gpu"]][1:]
    for minor in ("3.10", "3.11", "3.12", "3.13", "3.14"):
        assert refusal.marker.evaluate({"python_version": minor}) == (minor >= "3.12")
        for large in beside:
            assert large.marker.evaluate({"python_version": minor}) == (minor < "3.12")


def test_the_core_needs_numpy_and_numba():
    assert {r.name for r in requirements("")} == {"numpy", "numba"}
    (numpy,) = [r.specifier for r in requirements("") if r.name == "numpy"]
    assert all(v in numpy for v in ("1.23.0", "2.5.5")) and "1.22.4" not in numpy


def test_errors_name_extras_that_exist():
    assert set(EXTRAS) <= set(PROJECT["optional-dependencies"])
    distributions = {  # -> what is imported, where the names differ
        "merlin-models": "merlin", "merlin-core": "merlin", "merlin-dataloader": "merlin",
        "pyyaml": "yaml", "apache-flink": "pyflink", "cupy-cuda12x": "cupy",
    }  # fmt: skip
    known = {module for modules in EXTRAS.values() for module in modules}
    for extra, modules in EXTRAS.items():
        asked = {r.name for r in requirements(extra)} - {NAME, "numpy"}
        names = {distributions.get(name, name.replace("-", "_")) for name in asked}
        assert set(modules) <= names <= known, extra


@pytest.mark.quick
@pytest.mark.system
def test_what_the_core_alone_says():
    """`.ci/run` does the same where only the core is installed."""
    script = ROOT / "tests/packaging/core_alone.py"
    done = subprocess.run([sys.executable, str(script), "--hide"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "cowclip_merlin.torch needs torch, which is not installed: pip install" in done.stdout


@pytest.mark.parametrize("path", TOOLS, ids=lambda p: p.name)
def test_pins_without_the_stack_meet_what_pyproject_asks_for(path):
    line = path.name.partition("-")[0]
    versions = {k.lower(): v for k, v in pins(path).items()}
    for requirement in requirements(*{"current": ("", "torch", "keras3")}.get(line, (line,))):
        assert versions[requirement.name] in requirement.specifier, requirement
    assert "://" not in path.read_text() and "tf-keras" not in versions


def test_pins_of_triton_are_what_it_asks_for():
    asked = map(Requirement, (ROOT / "requirements/triton.in").read_text().split())
    versions = pins(TRITON)
    assert all(versions[each.name] in each.specifier for each in asked)
    default = pins(ROOT / "requirements/default-py311.txt")
    assert versions["tensorflow"] == default["tensorflow"]  # it reads what that version wrote
    assert "://" not in TRITON.read_text()


def test_there_are_pins_for_every_promised_stack():
    assert {p.name for p in EVERY} == {
        "docs-py310.txt", "docs-py311.txt", "docs-py312.txt",
        "default-py310.txt", "default-py311.txt", "ngc-py310.txt", "rapids-py311.txt",
        "rapids-py312.txt", "flink-py311.txt", "rapids-gpu-py311.txt", "rapids-gpu-py312.txt",
        "current-py313.txt", "triton-py311.txt",
    }  # fmt: skip


@pytest.mark.system
def test_the_set_up_script_says_what_is_missing(tmp_path):
    done = subprocess.run(
        [str(ROOT / "requirements/make_venv.sh"), "ngc", str(tmp_path / "v"), "3.99"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
    assert "no Python 3.99 that runs" in done.stderr and not (tmp_path / "v").exists()


def set_up(folder):
    return subprocess.run(
        [str(ROOT / "requirements/make_venv.sh"), "default", str(folder)],
        capture_output=True,
        text=True,
    )


@pytest.mark.system
@pytest.mark.parametrize("name", ["thesis.txt", "pyvenv.cfg"])
def test_the_set_up_script_removes_no_folder_but_its_own(tmp_path, name):
    (tmp_path / name).write_text("dear to me")
    done = set_up(tmp_path)
    assert done.returncode == 2
    assert "is not a virtual environment of this script" in done.stderr
    assert (tmp_path / name).read_text() == "dear to me"


@pytest.mark.system
def test_make_clean_removes_no_environment_but_its_own(tmp_path):
    """Whatever `VENV` names."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("mine", ".venv-mine", ".venv-docs", "made"):
        (tmp_path / name).mkdir()
    for name in (".venv-docs", "made"):
        (tmp_path / name / ".stamp").touch()
    for venv in ("mine", "made"):
        subprocess.run(["make", "clean", f"VENV={venv}"], cwd=tmp_path, check=True)
    assert {path.name for path in tmp_path.iterdir()} == {"Makefile", "mine", ".venv-mine"}


def only_pins(folder):
    return subprocess.run(
        [sys.executable, str(ROOT / ".ci/only_pins.py"), str(folder)],
        capture_output=True,
        text=True,
    )


@pytest.mark.system
def test_a_package_installed_by_hand_is_noticed(tmp_path):
    here = {d.metadata["Name"]: d.version for d in distributions()}
    for name in ("pip", "setuptools", "wheel", "cowclip-merlin"):
        here.pop(name, None)
    lines = [f"{name}=={version}" for name, version in here.items()]
    (tmp_path / ".pins").write_text("\n".join(["# a line", *lines]))
    assert only_pins(tmp_path).returncode == 0
    (tmp_path / ".pins").write_text("\n".join([*lines[1:], "no-such-package==1.0"]))
    done = only_pins(tmp_path)
    name, _, version = lines[0].partition("==")
    assert done.returncode == 1
    assert f"{re.sub('[-_.]+', '-', name).lower()}=={version}" in done.stderr
    assert "missing: no-such-package==1.0" in done.stderr


def test_a_wheel_has_every_package():
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = set()
    for folder in tool["package-dir"].values():
        for file in (ROOT / folder).rglob("__init__.py"):
            name = ".".join(file.parent.relative_to(ROOT).parts)
            found.add(name if name.startswith("cowclip_merlin") else f"cowclip_merlin.{name}")
    assert set(tool["packages"]) == found
