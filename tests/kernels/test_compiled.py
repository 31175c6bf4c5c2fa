"""The machine code that numba keeps is of the present sources."""

import importlib.util

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


def test_the_hash_is_of_the_files_with_compiled_functions(monkeypatch, tmp_path):
    here = tmp_path / "kernels" / "compiled.py"
    for name in ("kernels/loops/a.py", "tables/b.py", "tables/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("@compiled\n")
    (tmp_path / "tables/c.py").write_text("plain")
    monkeypatch.setattr(compiled, "__file__", str(here))

    def hash_after(name, text):
        (tmp_path / name).write_text(text)
        return compiled._hash_of_sources.__wrapped__()

    first = compiled._hash_of_sources.__wrapped__()
    assert hash_after("tables/c.py", "other") == first
    assert len({first, hash_after("tables/b.py", "@compiled 2"),
                hash_after("kernels/loops/a.py", "@compiled 2")}) == 3  # fmt: skip
