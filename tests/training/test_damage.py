"""Eight flipped bytes, or an empty file: noticed where it is read, and mended where that can be."""

import re
import shutil

import pytest

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.system.checksums import checksum
from cowclip_merlin.training import RunSettings, evaluate_run, train
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare, read_counts

SMALL = RunSettings(
    model="deepfm", batch_size=512, base_batch_size=64, epochs=2, mlp=(8,), update="dense"
)


def flip(file, position=None):
    """Invert eight bytes, in the middle unless told."""
    content = bytearray(file.read_bytes())
    at = len(content) // 2 if position is None else position
    content[at : at + 8] = bytes(255 - byte for byte in content[at : at + 8])
    file.write_bytes(bytes(content))


@pytest.fixture
def data(data, tmp_path):
    ignore = shutil.ignore_patterns(".cache*")
    return PreparedData.load(shutil.copytree(data, tmp_path / "data", ignore=ignore))


@pytest.fixture(scope="module")
def finished(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    data = shutil.copytree(request.getfixturevalue("log").parent, folder / "log") / "log.txt"
    prepared = prepare(PrepareSettings(files=(data,), out=folder / "data"))
    train(prepared.path, SMALL, out=folder / "run")
    return folder / "run", prepared.path


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished[0], tmp_path / "run"), finished[1]


def test_flipped_bytes_of_counts_and_vocabularies_are_refused(data, tmp_path, log):
    flip(data.path / "counts/C3.parquet")
    with pytest.raises(InputError, match=r"counts/C3\.parquet: damaged"):
        read_counts(data, "C3")
    flip(data.path / "categories/unique.C5.parquet")
    with pytest.raises(InputError, match=r"unique\.C5\.parquet: damaged"):
        data.workflow()
    with pytest.raises(InputError, match=r"unique\.C5\.parquet: damaged"):
        prepare(PrepareSettings(files=(log,), out=tmp_path / "new", like=data.path))


@pytest.mark.thorough
def test_a_damaged_cache_is_made_anew(data, tmp_path, caplog):
    before = train(data.path, SMALL, out=tmp_path / "whole")[-1]
    for name in ("ids", "continuous", "label"):
        caplog.clear()
        for split in ("train", "test"):
            flip(data.path / f".cache-{split}/{name}.npy")
        after = train(data.path, SMALL, out=tmp_path / name)[-1]
        assert after["train_loss"] == before["train_loss"]
        assert after["test_log_loss"] == before["test_log_loss"]
        assert caplog.text.count("damaged cache of columns; it is written again") == 2


@pytest.mark.parametrize("part", ["weights.0.bin", "manifest.json"])
def test_an_older_checkpoint_is_found_and_said(run, caplog, capsys, part):
    folder, data = run
    spoiled = folder / "checkpoints/2" / part
    flip(spoiled)
    resume = {"out": folder, "resume": True}
    for use in (lambda: evaluate_run(folder, data), lambda: train(data, SMALL, **resume)):
        caplog.clear()
        capsys.readouterr()
        result = use()
        said = caplog.text + capsys.readouterr().out
        assert f"{spoiled}: damaged" in said and "using checkpoint 1, which is older" in said
    assert [row["epoch"] for row in result] == [1, 2]
    caplog.clear()
    evaluate_run(folder, data)  # it was trained and written again
    assert not caplog.records
    assert (folder / "checkpoints/damaged-2").is_dir()


def test_only_damaged_checkpoints_are_named(run):
    folder, data = run
    for number in (1, 2):
        flip(folder / f"checkpoints/{number}/weights.0.bin")
    words = (
        rf"{folder}/checkpoints/2/weights\.0\.bin: damaged .*; no other checkpoint is whole; train"
    )
    with pytest.raises(InputError, match=words):
        evaluate_run(folder, data)
    with pytest.raises(InputError, match=words):
        train(data, SMALL, out=folder, resume=True)
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"1", "2"}


def resumed(run, epochs):
    folder, data = run
    return ["train", str(data), "--out", str(folder), "--model", "deepfm", "--mlp", "8",
            "--batch-size", "512", "--base-batch-size", "64", "--epochs", str(epochs),
            "--update", "dense", "--resume"]  # fmt: skip


@pytest.mark.parametrize(
    "position", ["header", "epoch", "value", "empty line", "bytes", "no column", "empty cell"]
)
def test_damaged_records_are_named(run, position, capsys):
    folder, _ = run
    file = folder / "metrics.csv"
    lines = file.read_text().splitlines(keepends=True)
    spoiled = {
        "header": [lines[0].replace("epoch", "epocj"), *lines[1:]],
        "epoch": [lines[0], "x" + lines[1], lines[2]],
        "value": [lines[0], lines[1].replace(".", "\x10"), lines[2]],
        "empty line": [lines[0], lines[1], lines[1]],
        "bytes": [lines[0], "\udcff" + lines[1]],
        "no column": [lines[0].replace("train_loss,", ""), *lines[1:]],
        "empty cell": [lines[0], re.sub(r",[^,]+", ",", lines[1], count=2), lines[2]],
    }[position]
    file.write_bytes("".join(spoiled).encode("utf-8", "surrogateescape"))
    assert main(resumed(run, 3)) == 2
    assert "metrics.csv: damaged" in capsys.readouterr().err


def test_a_run_goes_on_without_its_records(run, capsys):
    folder, _ = run
    file = folder / "metrics.csv"
    file.unlink()
    assert main(resumed(run, 2)) == 2
    assert "all 2 epochs are trained, but metrics.csv has none" in capsys.readouterr().err
    assert main(resumed(run, 3)) == 0
    assert file.read_text().splitlines()[1].startswith("3,")


def test_every_changed_byte_changes_the_checksum(tmp_path):
    file = tmp_path / "a"
    for size in (1, 4095, 4096, 10_000):
        file.write_bytes(bytes(size))
        before = checksum(file)
        for position in {0, size // 2, size - 1}:
            content = bytearray(size)
            content[position] = 1
            file.write_bytes(bytes(content))
            assert checksum(file) != before
    file.write_bytes(b"")
    assert checksum(file) != before
