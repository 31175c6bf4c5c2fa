"""Folders at addresses: copied once for each version, and whole or not there."""

from pathlib import Path

import pytest

from cowclip_merlin.addresses import (
    Address,
    check_free,
    local_folder,
    origin,
    uploaded_file,
    uploaded_folder,
)
from cowclip_merlin.errors import InputError

DATA = "memory://a/data"


def copies(tmp_path):
    return {path.parent.name for path in (tmp_path / "copies").glob("*/*/data")}


def put(memory, **files):
    for name, content in files.items():
        memory.pipe_file(f"/a/data/{name}", content)


def test_a_folder_is_copied_once_for_each_version(memory, tmp_path, monkeypatch):
    put(memory, marker=b"1", rows=b"abc")
    first = local_folder(DATA, "marker")
    assert (first / "rows").read_bytes() == b"abc" and origin(first) == DATA
    with monkeypatch.context() as offline:
        offline.setattr(type(memory), "get_file", None)  # no copy is made
        assert local_folder(Address(DATA), "marker") == first
    put(memory, rows=b"xyz")  # of the same size
    second = local_folder(DATA, "marker")
    assert (second / "rows").read_bytes() == b"xyz" and (first / "rows").read_bytes() == b"abc"
    assert len(copies(tmp_path)) == 2


def test_a_folder_without_its_marker_is_none(memory, tmp_path):
    put(memory, rows=b"abc")
    with pytest.raises(InputError, match=f"{DATA}: no such folder with a marker"):
        local_folder(DATA, "marker")
    assert not copies(tmp_path)


def test_a_copy_that_breaks_off_is_none(memory, tmp_path, monkeypatch):
    put(memory, marker=b"1", rows=b"abc")
    monkeypatch.setattr(memory, "get_file", lambda *files: Path(files[1]).touch())
    with pytest.raises(InputError, match="changed while it was copied; try again"):
        local_folder(DATA, "marker")
    assert not list((tmp_path / "copies").glob("*/*"))


def test_no_file_is_copied_to_another_folder(memory, tmp_path):
    put(memory, marker=b"1")
    memory.pipe_file("/a/data/sub/../../../evil", b"abc")
    with pytest.raises(InputError, match=r"has a file named '.*evil'; remove it"):
        local_folder(DATA, "marker")
    assert not list(tmp_path.rglob("evil"))


def test_the_marker_goes_first_and_comes_last(memory, monkeypatch):
    put(memory, marker=b"1", rows=b"abc", old=b"-")
    calls = []

    def noting(name, change):
        def note(*paths):
            calls.append((name, str(paths[-1]).rsplit("/", 1)[-1]))
            return change(*paths)

        return note

    for name in ("rm_file", "put_file"):
        monkeypatch.setattr(memory, name, noting(name, getattr(memory, name)))
    with uploaded_folder(DATA, "marker") as folder:
        folder.mkdir()
        (folder / "rows").write_bytes(b"xyz")
        (folder / "marker").write_bytes(b"2")
    assert [name for name, _ in calls] == ["rm_file", "put_file", "rm_file", "put_file"]
    assert [file for _, file in calls] == ["marker", "rows", "old", "marker"]
    assert sorted(memory.find("/a")) == ["/a/data/marker", "/a/data/rows"]


def test_nothing_is_uploaded_without_a_marker(memory, tmp_path):
    refused = pytest.raises(InputError, match=f"^{DATA}/rows: wrong")
    with refused, uploaded_folder(DATA, "marker") as folder:
        folder.mkdir()
        raise InputError(f"{folder}/rows: wrong")
    assert not memory.find("/a") and not list((tmp_path / "copies").glob("*/*"))


def test_what_was_made_stays_here_if_it_cannot_be_uploaded(memory, monkeypatch):
    def fail(*files):
        raise OSError("the network is away")

    monkeypatch.setattr(memory, "put_file", fail)
    refused = pytest.raises(InputError, match=r"the network is away.*the folder is in (.*)\)")
    with refused as error, uploaded_folder(DATA, "marker") as folder:
        folder.mkdir()
        (folder / "marker").write_bytes(b"2")
    kept = str(error.value).rpartition("in ")[2].removesuffix(")")
    assert local_folder(kept, "marker").joinpath("marker").read_bytes() == b"2"
    assert not memory.find("/a")


def test_a_copy_is_uploaded_only_over_what_it_was_made_of(memory):
    put(memory, rows=b"abc", marker=b"1")
    refused = pytest.raises(InputError, match="another process has written there; use another")
    with refused as error, uploaded_folder(DATA, "marker", begun=True) as folder:
        (folder / "marker").write_bytes(b"2")
        put(memory, rows=b"other", marker=b"3")
    kept = Path(str(error.value).rpartition("in ")[2].removesuffix(")"))
    assert (kept / "marker").read_bytes() == b"2"
    assert memory.cat_file("/a/data/marker") == b"3"


def test_a_copy_without_a_change_is_not_uploaded(memory, monkeypatch):
    put(memory, rows=b"abc", marker=b"1")
    monkeypatch.setattr(memory, "put_file", None)
    monkeypatch.setattr(memory, "rm_file", None)
    refused = pytest.raises(InputError, match="settings differ")
    with refused, uploaded_folder(DATA, "marker", begun=True):
        raise InputError("settings differ")


def test_what_is_there_is_not_replaced(memory):
    check_free(DATA, "marker", replace=False, remedy="use another")
    put(memory, rows=b"abc")
    with pytest.raises(InputError, match="already exists; use another"):
        check_free(DATA, "marker", replace=False, remedy="use another")
    with pytest.raises(InputError, match="has no marker, so it is not replaced"):
        check_free(DATA, "marker", replace=True, remedy="")
    refused = pytest.raises(InputError, match="already exists; use `overwrite`")
    with refused, uploaded_file(f"{DATA}/rows", overwrite=False):
        pass
    assert memory.cat_file("/a/data/rows") == b"abc"


def test_a_file_appears_if_it_is_whole(memory):
    with pytest.raises(ZeroDivisionError), uploaded_file(f"{DATA}/rows", overwrite=False) as file:
        file.write_bytes(b"half")
        raise ZeroDivisionError
    assert not memory.find("/a")
    with uploaded_file(f"{DATA}/rows", overwrite=False) as file:
        file.write_bytes(b"abc")
    assert memory.find("/a") == ["/a/data/rows"] and memory.cat_file("/a/data/rows") == b"abc"


@pytest.mark.parametrize(
    ("address", "error", "words"),
    [
        ("s3://a/b", ImportError("Install s3fs"), "^s3://a/b needs .*: pip install s3fs$"),
        ("gs://a/b", ImportError("Install gcsfs"), "pip install gcsfs$"),
        ("hf://a/b", ImportError("Install huggingface_hub"), "^hf://a/b: Install huggingface_hub"),
        ("s3://a/b", PermissionError("Forbidden"), r"^s3://a/b: no permission \(Forbidden\)"),
        ("s3://a/b", FileNotFoundError("no bucket"), "^s3://a/b: no such bucket; check"),
        ("s3://a/b", RuntimeError("lost"), r"^s3://a/b: cannot be reached \(lost\); check the"),
    ],
)  # fmt: skip
def test_whatever_a_package_raises_is_one_line(monkeypatch, address, error, words):
    def fail(_):
        raise error

    monkeypatch.setattr("fsspec.core.url_to_fs", fail)
    with pytest.raises(InputError, match=words):
        Address(address).exists()


def test_an_unknown_scheme_is_refused():
    with pytest.raises(InputError, match=r"^nowhere://a/b: cannot be reached .*nowhere"):
        Address("nowhere://a/b").exists()
