"""The machine code that numba keeps is of the present sources."""

import importlib.util
import re
from pathlib import Path

import pytest

from cowclip_merlin.kernels import compiled


@pytest.fixture
def loaded(tmp_path):
    """Load a module with a compiled function anew; return how often its code came from the disk."""
    file = tmp_path / "doubling.py"
    file.write_text(
        "from cowclip_merlin.kernels.compiled import compiled\n\n"
        "@compiled\ndef double(x):\n    return 2 * x\n"
    )

    def load():
        spec = importlib.util.spec_from_file_location("doubling", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert module.double(4) == 8
        return sum(module.double.stats.cache_hits.values())

    return load


def test_a_change_of_another_file_makes_numba_compile_again(loaded, monkeypatch):
    assert [loaded(), loaded()] == [0, 1]
    monkeypatch.setattr(compiled, "_hash_of_sources", lambda: "of a changed file")
    assert [loaded(), loaded()] == [0, 1]


def test_every_change_in_these_folders_has_another_hash(monkeypatch, tmp_path):
    """A file without compiled functions may have constants that are compiled into others."""
    names = [f"{folder}/a.py" for folder in compiled.FOLDERS] + ["kernels/compiled.py"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("A = 1\n")
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "kernels/compiled.py"))
    hashes = {compiled._hash_of_sources.__wrapped__()}
    for name in names:
        (tmp_path / name).write_text("A = 2\n")
        hashes.add(compiled._hash_of_sources.__wrapped__())
    assert len(hashes) == 1 + len(names)


def test_all_compiled_functions_are_in_these_folders():
    package = Path(compiled.__file__).parents[1]
    using = [f for f in package.rglob("*.py") if re.search("^@compiled", f.read_text(), re.M)]
    names = {str(file.relative_to(package)) for file in using}
    assert names and all(name.startswith(compiled.FOLDERS) for name in names)
