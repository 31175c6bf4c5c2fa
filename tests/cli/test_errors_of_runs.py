"""Mistakes in settings, prepared folders and run folders: `train`, `evaluate`, `scale`."""

import fcntl
import json
import os
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from tiers import thorough

from cowclip_merlin.cli import main


def missing_checkpoint(p):
    run = p.run()
    shutil.rmtree(run / "checkpoints")
    return p.evaluate(run, p.data())


def damaged_checkpoint(p):
    run = p.run()
    for file in (run / "checkpoints").glob("*.data-*"):
        file.write_bytes(file.read_bytes()[:100])
    return p.evaluate(run, p.data())


def other_model(p):
    run = p.run()
    config = json.loads((run / "config.json").read_text())
    p.edited_json(run / "config.json", settings=config["settings"] | {"model": "dcnv2"})
    return p.evaluate(run, p.data())


def cut_parquet(p):
    data = p.data()
    (file,) = (data / "test").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-100])
    return p.train(data)


def rows_in_words(p):
    data = p.data()
    described = json.loads((data / "dataset.json").read_text())
    described["rows"]["test"] = "many"
    (data / "dataset.json").write_text(json.dumps(described))
    return p.train(data)


def no_parquet(p):
    data = p.data()
    shutil.rmtree(data / "train")
    return p.train(data)


def missing_column(p):
    data = p.data()
    for file in (data / "train").glob("*.parquet"):
        pq.write_table(pq.read_table(file).drop_columns(["C7"]), file)
    p.edited_json(data / "dataset.json", checksums={})  # as in folders of earlier versions
    return p.train(data)


def other_version_of_data(p):
    data = p.data()
    p.edited_json(data / "dataset.json", format_version=99)
    return p.train(data)


def other_version_of_run(p):
    run = p.run()
    p.edited_json(run / "config.json", format_version=99)
    return p.evaluate(run, p.data())


def settings_that_are_none(p):
    run = p.run()
    p.edited_json(run / "config.json", settings={"model": "deepfm", "depth": 3})
    return p.evaluate(run, p.data())


def config_of_another_kind(p):
    run = p.run()
    (run / "config.json").write_text("[1, 2]")
    return p.evaluate(run, p.data())


def config_of_a_stream(p):
    run = p.run()
    (run / "config.json").write_text('{"features": {}, "settings": {}}')
    return p.evaluate(run, p.data())


def layout_of_another_kind(p):
    data = p.data()
    p.edited_json(data / "dataset.json", layout=["label"])
    return p.train(data)


def killed_before_a_checkpoint(p, *more):
    run = p.run()
    shutil.rmtree(run / "checkpoints")
    return p.train(p.data(), *more, out=run.name)


def into_an_online_run(p, *more):
    out = p.write("out/config.json", b'{"log": [], "features": {}, "settings": {}}').parent
    (out / "snapshots").mkdir()
    return p.train(p.data(), *more, out=out.name)


def diverging(p, out):
    return p.train(p.data(), "--dense-lr", "1e30", "--rule", "none", out=out)


def one_label_to_compare(p):
    data = p.column("label", slice(None), 0, "test")
    return p.evaluate(run := p.run(), data, "--against", run)


def field_gone(p):
    data = p.data()
    statistics = json.loads((data / "dataset.json").read_text())["statistics"]
    del statistics["cardinalities"]["C3"]
    p.edited_json(data / "dataset.json", statistics=statistics)
    return p.train(data)


def damaged_description(p):
    data = p.data()
    (data / "dataset.json").write_text("{")
    return p.train(data)


OTHER_KIND = r"out: holds another kind"

# name -> (command, what the line must hold)
CASES = {
    "no prepared folder": (lambda p: p.train(p.path / "nothing"), r"nothing"),
    "folder that was not prepared": (lambda p: p.train(p.path), r"dataset\.json|prepare"),
    "batch larger than the data": (lambda p: p.train(p.data(), batch="100000"), r"100000.*rows"),
    "batch of 0": (lambda p: p.train(p.data(), batch="0"), r"--batch-size is 0"),
    "batch that is no number": (lambda p: p.train(p.data(), batch="64K"), r"64K"),
    "unknown model": (lambda p: p.train(p.data(), model="deepfn"), r"'deepfn'.*deepfm"),
    "unknown rule": (lambda p: p.train(p.data(), "--rule", "cow"), r"'cow'.*cowclip"),
    "unknown clip": (lambda p: p.train(p.data(), "--clip", "cow"), r"'cow'.*cowclip"),
    "unknown preset": (lambda p: p.train(p.data(), "--preset", "kaggle"), r"'kaggle'.*criteo"),
    "exact update": (
        lambda p: p.train(p.data(), "--update", "exact", "--clip", "field"),
        r"exact.*'field'.*dense",
    ),
    "unknown optimizer": (
        lambda p: p.train(p.data(), "--optimizer", "lamb"),
        r"'lamb'.*adam, adagrad",
    ),
    "exact update of Adagrad with L2": (
        lambda p: p.train(p.data(), "--update", "exact", "--optimizer", "adagrad"),
        r'not with Adagrad and l2 2\.5e-06.*"dense"',
    ),
    "accumulator of Adam": (
        lambda p: p.train(p.data(), "--initial-accumulator", "0"),
        r"--initial-accumulator.*Adagrad.*'adam'",
    ),
    "negative accumulator": (
        lambda p: p.train(p.data(), "--optimizer", "adagrad", "--initial-accumulator", "-1"),
        r"initial.accumulator is -1",
    ),
    "rule of Adam": (
        lambda p: p.train(p.data(), "--optimizer", "adagrad", "--rule", "invariant"),
        r"'invariant'.*'adagrad'; use 'sde'",
    ),
    "exact update under Clippy": (
        lambda p: p.train(p.data(), "--update", "exact", "--clip", "clippy"),
        r"exact.*'clippy'.*dense",
    ),
    "validation fraction of 1": (
        lambda p: p.train(p.data(), "--validation-fraction", "1"),
        r"--validation-fraction is 1.0;",
    ),
    "validation fraction of no row": (
        lambda p: p.train(p.data(), "--validation-fraction", "1e-5"),
        r"validation_fraction 1e-05.*holds out 0",
    ),
    "batch larger than what validation leaves": (
        lambda p: p.train(p.data(), "--validation-fraction", "0.95"),
        r"256 is larger.* 1\d\d training rows",
    ),
    "negative l2": (lambda p: p.train(p.data(), "--l2", "-1"), r"l2 is -1"),
    "rate that is not finite": (lambda p: p.train(p.data(), "--dense-lr", "nan"), r"--dense-lr"),
    "mlp that is no list": (lambda p: p.train(p.data(), "--mlp", "40x"), r"40x"),
    "no epochs": (lambda p: p.train(p.data(), "--epochs", "0"), r"epochs is 0"),
    "diverging rates": (
        lambda p: p.train(p.data(), "--dense-lr", "1e30", "--rule", "none"),
        r"diverged.*learning rates",
    ),
    "id outside the vocabulary": (
        lambda p: p.train(p.column("C6", 3, 1 << 30)),
        r"train.*'C6'.*1073741824",
    ),
    "negative id": (lambda p: p.train(p.column("C6", 3, -1)), r"'C6'.*-1"),
    "NaN in a continuous column": (
        lambda p: p.train(p.column("I4", 0, np.nan, "test")),
        r"test.*'I4'.*nan",
    ),
    "label 2 in prepared data": (lambda p: p.train(p.column("label", 0, 2)), r"'label'.*2"),
    "parquet files gone": (no_parquet, r"train"),
    "parquet file cut short": (cut_parquet, r"test/part_?-?0+.*\.parquet: damaged parquet"),
    "rows of dataset.json that are no number": (rows_in_words, r"dataset\.json \(rows is"),
    "column gone": (missing_column, r"'C7'"),
    "data of another version": (other_version_of_data, r"99"),
    "run of another version": (other_version_of_run, r"99"),
    "damaged dataset.json": (damaged_description, r"dataset\.json"),
    "GPU asked for to train": (lambda p: p.train(p.data(), "--device", "gpu"), r"no GPU"),
    "run folder in use": (lambda p: p.train(p.data(), out=p.run().name), r"run.*--resume"),
    "run that was killed early": (killed_before_a_checkpoint, r"run: .*without a checkpoint"),
    "one label among the test rows": (
        lambda p: p.train(p.column("label", slice(None), 0, "test")),
        r"data: .*test rows.*label 0.*prepare",
    ),
    "config.json of a run with unknown settings": (settings_that_are_none, r"damaged config\.json"),
    "config.json of a run that is a list": (config_of_another_kind, r"run of format None"),
    "config.json of a stream": (config_of_a_stream, r"run of online training; .*online serve"),
    "layout of dataset.json that is a list": (layout_of_another_kind, r"damaged dataset\.json"),
    "resume of nothing": (lambda p: p.train(p.data(), "--resume"), r"config\.json"),
    "resume with another rate": (
        lambda p: p.train(p.data(), "--resume", "--l2", "1e-3", out=p.run().name),
        r"overrides.*same settings",
    ),
    "resume with another model": (
        lambda p: p.train(p.data(), "--resume", model="dcn", out=p.run().name),
        r"model deepfm, not dcn",
    ),
    "checkpoint of another model": (other_model, r"checkpoint of another model"),
    "checkpoint damaged": (damaged_checkpoint, r"checkpoint"),
    "checkpoint gone": (missing_checkpoint, r"no checkpoint"),
    "evaluation of no run": (lambda p: p.evaluate(p.path, p.data()), r"config\.json"),
    "predictions into a missing folder": (
        lambda p: p.evaluate(p.run(), p.data(), "--predictions", p.path / "no" / "f.parquet"),
        r"f\.parquet|no",
    ),
    "predictions in place of a folder": (
        lambda p: p.evaluate(p.run(), p.data(), "--predictions", p.path),
        r"is a folder",
    ),
    "figures below a file": (
        lambda p: ["inspect", str(p.run()), "--out", str(p.write("file") / "figures")],
        r"file/figures: Not a directory",
    ),
    "results of bench into a missing folder": (
        lambda p: ["bench", "--rounds", "1", "--json", str(p.path / "no" / "step.json")],
        r"no: no such folder",
    ),
    "unknown update of bench": (
        lambda p: ["bench", "--update", "exactt"],
        r"'exactt'.* dense, exact, lazy$",
    ),
    "r without a clip": (
        lambda p: p.train(p.data(), "--clip", "none", "--r", "1"),
        r"--r has no effect.* none.*--clip cowclip or adaptive_field",
    ),
    "bound of another clip": (
        lambda p: p.train(p.data(), "--bound", "1"),
        r"--bound has no effect.* cowclip.*--clip global or field or column",
    ),
    "negative seed": (lambda p: p.train(p.data(), "--seed", "-1"), r"seed is -1;.*at least 0"),
    "seed too large": (lambda p: p.train(p.data(), "--seed", 2**32), r"seed is 4294967296;"),
    "negative steps between checkpoints": (
        lambda p: p.train(p.data(), "--checkpoint-every", "-3"),
        r"--checkpoint-every is -3",
    ),
    "run into the prepared folder": (
        lambda p: p.train(p.data(), out="data"),
        r"data: holds prepared data",
    ),
    "run in place of a file of the user": (
        lambda p: p.train(p.data(), out=p.write("out/metrics.csv", b"mine").parent.name),
        r"out: holds metrics\.csv",
    ),
    "run into results of experiments": (
        lambda p: p.train(p.data(), out=p.write("out/results.csv").parent.name),
        r"out: holds results of experiments",
    ),
    "run into an online run": (into_an_online_run, OTHER_KIND),
    "run that goes on in an online run": (lambda p: into_an_online_run(p, "--resume"), OTHER_KIND),
    "diverging run beside the user's notes": (
        lambda p: diverging(p, p.write("out/notes.txt").parent.name),
        r"diverged.*learning rates",
    ),
    "diverging run in folders that it makes": (
        lambda p: diverging(p, "a/b/run"),
        r"diverged.*learning rates",
    ),
    "warm-up of a googol of epochs": (
        lambda p: p.train(p.data(), "--warmup-epochs", "1e100"),
        r"--warmup-epochs is 1e\+100,.*too long",
    ),
    "more workers than rows in a batch": (
        lambda p: p.train(p.data(), "--workers", "300"),
        r"--workers is 300,.* 256 rows",
    ),
    "layers that do not fit in memory": (
        lambda p: p.train(p.data(), "--mlp", "300000,30000000"),
        r"not enough memory \(.*\[\d+,30000000\]\).*--mlp",
    ),
    "one label among the rows to compare runs on": (
        one_label_to_compare,
        r"data: .*test rows.*label 0.*--against",
    ),
    "vocabulary of a field gone": (field_gone, r"dataset\.json \(cardinalities"),
    "run in place of a file": (
        lambda p: p.train(p.data(), out=p.write("log.txt").name),
        r"log\.txt: is a file",
    ),
    "run below a file": (
        lambda p: p.train(p.data(), out=p.write("log.txt").name + "/run"),
        r"log\.txt/run: Not a directory",
    ),
    "scale to no number of rows": (
        lambda p: ["scale", "--to", "1" + 400 * "0"],
        r"batch size \d+ is too large",
    ),
    "like nothing": (
        lambda p: p.prepare("criteo", p.write("x.txt"), "--like", ""),
        r"like is empty",
    ),
    "report of nothing": (
        lambda p: ["report", "", "--out", str(p.path / "report.html")],
        r"RESULTS is empty",
    ),
    "scale to a negative batch": (lambda p: ["scale", "--to", "-5"], r"-5"),
    "unknown command": (lambda p: ["trian"], r"trian"),
    "unknown option": (
        lambda p: p.train(p.data(), "--epoch-count", "2"),
        r"--epoch-count 2;.* train --help",
    ),
}


SLOW = "layers that do not fit in memory"  # TensorFlow tries to find the memory for seconds


@pytest.mark.parametrize("case", [thorough(x) if x == SLOW else x for x in CASES])
def test_one_line_and_exit_code_2(case, refused):
    refused(*CASES[case])


def test_a_second_training_into_the_same_folder_is_refused(refused, workspace):
    run = workspace.path / "out"
    run.mkdir()
    first = os.open(run, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    data = workspace.data()
    try:
        refused(lambda p: p.train(data), r"out: another process")
    finally:
        os.close(first)
    assert main(workspace.train(data)) == 0
