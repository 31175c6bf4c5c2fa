"""`cowclip experiment bars`: the benchmark's settings, and test scores of the best epoch."""

from dataclasses import replace

import pytest
from benchmark_files import LABELS, write

import cowclip_merlin as cc
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.files import load_experiment
from cowclip_merlin.experiments.on_data.trainings import DataSession, TrainingRuns
from cowclip_merlin.experiments.results import read_results
from cowclip_merlin.experiments.settings import DataSettings
from cowclip_merlin.experiments.tables import read_table
from cowclip_merlin.training import train
from cowclip_merlin.training.run_logs import read_metrics
from cowclip_merlin.workflows import PrepareSettings, prepare

MINE = """
title: A small benchmark
claim: Nothing.
base_batch: {criteo_x4: 16, avazu_x4: 8}
epochs: 9
reference: [DeepFM, 1]
lines:
  - label: DeepFM
    data: criteo_x4
    rule: sde
    multipliers: [1, 8, 32]
    lr_schedule: plateau
    early_stopping: 1
    embedding_dim: 3
    mlp: [5, 4]
    overrides: {embedding_lr: 1.0e-2, dense_lr: 1.0e-2, l2: 0.0}
    published: {1: 81.43}
  - {label: DeepFM, data: avazu_x4, mlp: [7], multipliers: [1]}
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Prepared folders by kind."""
    folder = tmp_path_factory.mktemp("bars")

    def made(kind):
        write(kind, folder / kind)
        files = {"files": (folder / kind,), "out": folder / f"DATA-{kind}"}
        return prepare(PrepareSettings(kind=kind, **files)).path

    return {kind: made(kind) for kind in LABELS}


def runs_of(name, data, out, **more):
    return TrainingRuns(
        DataSession(DataSettings(data=data, out=out, **more)), load_experiment(name)
    )


@pytest.mark.parametrize("kind", LABELS)
def test_each_data_set_has_its_batch_and_its_two_models(data, tmp_path, kind):
    runs = runs_of("bars", data[kind], tmp_path / "out", seeds=2)
    base = 10_000 if kind.endswith("x4") else 4096
    assert runs.sizing.base_batch == base and runs.sizing.max_multiplier == 32
    lines = runs.experiment.lines
    assert [(line.label, line.model) for line in lines] == [
        ("DeepFM", "deepfm"),
        ("DCNv2", "dcnv2"),
    ]
    assert lines[1].cross_layers == {"avazu_x1": 5, "avazu_x4": 4}.get(kind, 3)
    assert [len(line.published) for line in lines] == [1, 1]
    runs.sizing = replace(runs.sizing, rows=36_672_493)  # else no batch fits
    plan = runs.plan()
    assert len(plan) == 2 * 3 * 2
    for run in plan:
        values = run.settings.hyperparameters(kind)
        s = run.settings.batch_size / base
        assert s == run.multiplier and values.dense_lr == pytest.approx(1e-3 * s**0.5)
        assert values.l2 == next(x for x in lines if x.label == run.label).overrides["l2"]
        assert run.settings.effective_clip == "none" and run.settings.validation_split == "given"
        assert run.settings.embedding_dim == (16 if kind.endswith("x4") else 10)


@pytest.mark.runs
def test_the_best_epoch_by_validation_rows_scores_the_test_rows(data, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(MINE)
    words = ["experiment", str(tmp_path / "mine.yaml"), "--data", str(data["criteo_x4"])]
    words += ["--out", str(tmp_path / "out"), "--seeds", "1", "--device", "cpu"]
    assert main([*words, "--dry-run"]) == 0
    assert "DeepFM" in capsys.readouterr().out and not read_results(tmp_path / "out")
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "x1 = 16" in printed and "[81.43]" in printed and "MLP" not in printed
    assert "DeepFM at 32 times the base batch: too large" in printed
    results = read_results(tmp_path / "out")
    assert [(r.batch_size, r.mlp, r.epochs, r.split) for r in results] == [
        (16, "5-4", 9, "test"),
        (128, "5-4", 9, "test"),
    ]
    runs = runs_of(str(tmp_path / "mine.yaml"), data["criteo_x4"], tmp_path / "out", seeds=1)
    for result, run in zip(results, runs.plan(), strict=True):
        again, folder = tmp_path / f"again-{run.multiplier}", tmp_path / "out/runs" / result.run_id
        epochs = train(data["criteo_x4"], run.settings, out=again, device="cpu")
        found = cc.training.evaluate_run(again, data["criteo_x4"], device="cpu")
        assert (result.auc, result.log_loss) == pytest.approx((found.auc, found.log_loss))
        aucs = [epoch["validation_auc"] for epoch in epochs]
        assert result.best_auc == max(aucs) and aucs[result.best_epoch - 1] == max(aucs)
        assert len(epochs) < 9, "a plateau and early stopping end it"
        assert len(read_metrics(folder / "metrics.csv", epochs=9)) == len(epochs)
    cell = dict(read_table(tmp_path / "out/tables/mine.json").rows)["DeepFM"][0]
    assert cell.mean == 100 * results[0].auc and cell.published == 81.43


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"mlp": (8,)}, "mine.yaml: each line has an `mlp` of its own; omit `mlp`"),
        ({"steps": 9}, "`steps` 9: .*the base batch is the experiment's 16; give `max_multiplier`"),
        ({"lines": ("DCN",)}, "mine has no line 'DCN'; `lines` takes DeepFM"),
    ],
)
def test_settings_without_effect_are_refused(data, tmp_path, more, says):
    (tmp_path / "mine.yaml").write_text(MINE)
    given = DataSettings(data=data["criteo_x4"], out=tmp_path / "out", **more)
    with pytest.raises(InputError, match=says):
        DataSession(given).runs(load_experiment(str(tmp_path / "mine.yaml"))).check()


def test_other_data_are_refused(data, tmp_path):
    (tmp_path / "mine.yaml").write_text(MINE)
    with pytest.raises(InputError, match="is a avazu_x1 log; give data of prepare criteo_x4 or av"):
        runs_of(str(tmp_path / "mine.yaml"), data["avazu_x1"], tmp_path / "out")


def test_data_without_validation_rows_are_refused(tmp_path):
    lines = "".join(f"{i % 2},{i % 3}\n" for i in range(60))
    (tmp_path / "log.csv").write_text("y,a\n" + lines)
    columns = {"kind": "table", "label": "y", "categorical": ("a",)}
    prepare(PrepareSettings(files=(tmp_path / "log.csv",), out=tmp_path / "DATA", **columns))
    text = "title: t\nclaim: c\nlines: [{label: a, multipliers: [1], early_stopping: 1}]\n"
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(InputError, match=r"mine\.yaml, a: validation rows choose the epoch"):
        runs_of(str(tmp_path / "mine.yaml"), tmp_path / "DATA", tmp_path / "out")
