"""A run that is trained again on all rows, for the epochs that held-out rows chose."""

import re

import numpy as np
import pandas as pd
import pytest
from run_weights import acting_at, assert_same_bits, metrics_of, without_times

from cowclip_merlin.cli import main
from cowclip_merlin.training.run_config import RunConfig

pytestmark = pytest.mark.runs
SMALL = ["--batch-size", "64", "--mlp", "4", "--seed", "7", "--device", "cpu"]
STOPPING = ["--epochs", "4", "--early-stopping", "1"]
SHARE = ["--validation-fraction", "0.2"]


@pytest.fixture(scope="module")
def data(make_once):
    """A prepared folder with validation rows of its own."""

    def make(folder):
        some = np.random.default_rng(3)
        for name, rows in (("train", 400), ("validation", 150), ("test", 200)):
            a, b = some.integers(0, 30, rows), some.integers(0, 300, rows)
            y = (some.random(rows) < 0.2 + 0.5 * (a % 2)).astype(int)
            pd.DataFrame({"y": y, "a": a, "b": b}).to_csv(folder / f"{name}.csv", index=False)
        train, *others = (str(folder / f"{x}.csv") for x in ("train", "validation", "test"))
        words = ["--validation", others[0], "--test", others[1], "--out", str(folder / "DATA")]
        assert (
            main(["prepare", "table", train, *words, "--label", "y", "--categorical", "a,b"]) == 0
        )

    return make_once("rows_to_refit", make) / "DATA"


def run(data, out, *words):
    return main(["train", str(data), "--out", str(out), *SMALL, *words])


@pytest.mark.parametrize("share", [False, True], ids=["given rows", "a share"])
def test_it_is_the_run_on_all_rows_with_the_best_number_of_epochs(data, tmp_path, capsys, share):
    held, none = (SHARE, ["--validation-fraction", "0"]) if share else ([], [])
    none = none or ["--validation-split", "none"]
    assert run(data, tmp_path / "RUN", *STOPPING, *held, "--refit") == 0
    printed = capsys.readouterr().out
    epochs, every = re.search(r"^epoch (\d) of (\d) .*; trains again on", printed, re.M).groups()
    assert run(data, tmp_path / "PLAIN", "--epochs", epochs, *none) == 0
    assert_same_bits(tmp_path / "RUN", tmp_path / "PLAIN")
    assert run(data, tmp_path / "STOPPED", *STOPPING, *held) == 0
    found = [metrics_of(tmp_path / x, file) for x, file in (
        ("RUN", "held_out.csv"), ("STOPPED", "metrics.csv"), ("RUN", "metrics.csv"),
    )]  # fmt: skip
    assert without_times(found[0]) == without_times(found[1]) and len(found[0]) == int(every)
    assert len(found[2]) == int(epochs) and "test_auc" in found[2][0]
    assert share or (data / ".cache-train-validation/ids.npy").exists()  # mapped, not copied
    log = (tmp_path / "RUN/train.log").read_text(encoding="utf-8")
    assert f"{400 if share else 550} train rows, 200 test rows" in log
    assert sorted(x.name for x in tmp_path.iterdir()) == ["PLAIN", "RUN", "STOPPED"]


@pytest.mark.parametrize("again", [False, True], ids=["first run", "second run"])
def test_it_goes_on_after_a_signal(data, tmp_path, capsys, again):
    assert run(data, tmp_path / "WHOLE", *STOPPING, "--refit") == 0
    out = tmp_path / "RUN"

    def when(trainer, number, *_):
        return number == 0 and (trainer.settings.scored_split == "test") == again

    with acting_at("_score", when):
        assert run(data, out, *STOPPING, "--refit") == 143
    assert "resume with --resume --refit" in capsys.readouterr().err
    assert (out / "held_out.csv").exists() == again
    assert main(["train", str(data), "--out", str(out), "--resume", "--refit"]) == 0
    assert_same_bits(out, tmp_path / "WHOLE")
    assert RunConfig.load(out).settings == RunConfig.load(tmp_path / "WHOLE").settings


def test_the_first_run_stays_if_the_second_one_fails(data, tmp_path, capsys):
    def fail():
        raise MemoryError

    out = tmp_path / "RUN"
    with acting_at("_score", lambda trainer, *_: trainer.settings.scored_split == "test", fail):
        assert run(data, out, *STOPPING, "--refit") == 2
    assert RunConfig.load(out).settings.early_stopping == 1
    assert main(["train", str(data), "--out", str(out), "--resume", "--refit"]) == 0
    assert RunConfig.load(out).settings.validation_split == "none"
    capsys.readouterr()
