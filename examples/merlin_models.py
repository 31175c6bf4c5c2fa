"""Train Merlin's own DLRM and DCN with CowClip, from raw values to a served prediction.

    python examples/merlin_models.py --out OUT

The steps: generate a log, fit an NVTabular workflow, read its output with Merlin's Loader, train
both models, save and load them, and compare their predictions. CowClip is two lines, in `train`.

With `--ensemble`, Merlin Systems puts the workflow and each model into one ensemble. The ensemble
maps raw values to probabilities, without Triton. Merlin Systems needs an environment of its own:
`requirements/make_venv.sh ngc .venv-ngc` makes one.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

import cowclip_merlin as cc
from cowclip_merlin import InputError, compat
from cowclip_merlin.errors import exit_code
from cowclip_merlin.settings import Settings, add_options, option, settings_from
from cowclip_merlin.synthetic.criteo_log import generate
from cowclip_merlin.system.files import atomic_folder
from cowclip_merlin.types import KerasModel

if TYPE_CHECKING:
    import nvtabular as nvt
    import pandas as pd
    from merlin.io import Dataset
    from merlin.schema import Schema

LABEL = "label"
# Few columns: Merlin's models build a graph for each of them, which takes longer than training.
NUMBERS = ("I1", "I2", "I3")
CATEGORICAL = ("C1", "C2", "C6", "C7", "C9", "C14")
TEST_FRACTION = 0.1


@dataclass(frozen=True, kw_only=True)
class ExampleSettings(Settings):
    """How to generate the log and train."""

    rows: int = option(100_000, "of the log; the last tenth are the test rows", at_least=100)
    batch_size: int = option(1024, "rows per step", at_least=1)
    epochs: int = option(2, "passes over the training rows", at_least=1)
    seed: int = option(1, "of the log and of the initial weights", at_least=0)


def read_log(file: Path) -> pd.DataFrame:
    """Read the raw log as a DataFrame; categorical columns are text, missing values None."""
    rows = cc.workflows.read_log(file, "criteo", labels=True)
    return rows[[LABEL, *NUMBERS, *CATEGORICAL]]


def click_workflow(folder: Path) -> nvt.Workflow:
    """Return an NVTabular workflow for this log, not fitted; the ids are written to `folder`."""
    nvt = compat.nvtabular()
    from merlin.schema import Tags
    from nvtabular import ops

    ids = list(CATEGORICAL) >> ops.Categorify(out_path=str(folder))
    numbers = list(NUMBERS) >> ops.FillMissing() >> ops.Clip(min_value=0) >> ops.LogOp()
    numbers = numbers >> ops.Normalize(out_dtype="float32")
    label = [LABEL] >> ops.AddMetadata(tags=[Tags.BINARY_CLASSIFICATION, Tags.TARGET])
    return nvt.Workflow(ids + numbers + label)


def dlrm(schema: Schema) -> KerasModel:
    """Merlin's DLRM."""
    mm = compat.merlin_models()
    return mm.DLRMModel(
        schema,
        embedding_dim=16,
        bottom_block=mm.MLPBlock([32, 16]),
        top_block=mm.MLPBlock([32, 16]),
        prediction_tasks=mm.BinaryOutput(LABEL),
    )


def dcn(schema: Schema) -> KerasModel:
    """Merlin's DCN, which is the stacked DCN-V2."""
    mm = compat.merlin_models()
    return mm.DCNModel(
        schema, depth=2, deep_block=mm.MLPBlock([32, 16]), prediction_tasks=mm.BinaryOutput(LABEL)
    )


MODELS = MappingProxyType({"DLRM": dlrm, "DCN": dcn})


def train(model: KerasModel, rows: Dataset, settings: ExampleSettings) -> None:
    """Train a Merlin model with CowClip on a Merlin Dataset."""
    mm = compat.merlin_models()
    base = cc.Hyperparameters(batch_size=256, embedding_lr=1e-3, dense_lr=1e-3, l2=1e-5)
    loader = mm.Loader(rows, batch_size=settings.batch_size)
    # CowClip, in two lines:
    at = cc.scale(base, to=settings.batch_size)
    optimizer = cc.CowClip.of(at)
    model.compile(optimizer, loss="binary_crossentropy")
    model.fit(loader, epochs=settings.epochs, verbose=0)


def predict(model: KerasModel, rows: Dataset, batch_size: int) -> npt.NDArray[np.float32]:
    """Click probabilities [n] of the rows of a Merlin Dataset, in their order."""
    loader = compat.merlin_models().Loader(rows, batch_size=batch_size, shuffle=False)
    return np.concatenate([model(inputs).numpy()[:, 0] for inputs, _ in loader])


def score_raw_rows(
    workflow: nvt.Workflow, model: KerasModel, raw: pd.DataFrame
) -> npt.NDArray[np.float32]:
    """Click probabilities [n] of raw rows, by an ensemble of Merlin Systems in this process."""
    from merlin.systems.dag.ensemble import Ensemble
    from merlin.systems.dag.ops.tensorflow import PredictTensorflow
    from merlin.systems.dag.ops.workflow import TransformWorkflow

    without_label = workflow.remove_inputs([LABEL])
    names = without_label.input_schema.column_names
    steps = names >> TransformWorkflow(without_label) >> PredictTensorflow(model)
    scores = Ensemble(steps, without_label.input_schema).transform(raw[names])
    return np.array(scores.iloc[:, 0].tolist(), np.float32).reshape(-1)


def run(out: Path, settings: ExampleSettings, *, ensemble: bool) -> Mapping[str, float]:
    """Run all steps, write the log, the workflow and the models to `out`; return the test AUCs.

    Raises:
        InputError: if a loaded model or an ensemble does not predict what was trained.
    """
    nvt, mm = compat.nvtabular(), compat.merlin_models()
    generate(out / "log.txt", rows=settings.rows, seed=settings.seed)
    raw = read_log(out / "log.txt")
    first = len(raw) - round(len(raw) * TEST_FRACTION)
    training, test = raw[:first], raw[first:].reset_index(drop=True)
    workflow = click_workflow(out / "fitting").fit(nvt.Dataset(training))
    workflow.save(str(out / "workflow"))
    train_rows = workflow.transform(nvt.Dataset(training))
    test_rows = workflow.transform(nvt.Dataset(test))
    aucs = {}
    for name, build in MODELS.items():
        compat.tensorflow().keras.utils.set_random_seed(settings.seed)
        model = build(workflow.output_schema)
        train(model, train_rows, settings)
        expected = predict(model, test_rows, settings.batch_size)
        model.save(str(out / name))
        loaded = mm.Model.load(str(out / name))
        check_equal(f"{name}, loaded", predict(loaded, test_rows, settings.batch_size), expected)
        if ensemble:
            # Its own: NVTabular unpickles, so a workflow from somebody else could run any code.
            fitted = nvt.Workflow.load(str(out / "workflow"))
            check_equal(f"{name}, ensemble", score_raw_rows(fitted, loaded, test), expected)
        aucs[name] = cc.roc_auc(test[LABEL].to_numpy(), expected)
    return aucs


def check_equal(what: str, got: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> None:
    """Compare two predictions of the same rows.

    >>> check_equal("DLRM, loaded", np.array([0.5]), np.array([0.5]))
    >>> check_equal("DLRM, loaded", np.array([0.5]), np.array([0.75]))
    Traceback (most recent call last):
    cowclip_merlin.errors.InputError: DLRM, loaded: predictions differ by up to 0.25
    """
    difference = np.abs(got - expected).max()
    if not difference <= 1e-6:
        raise InputError(f"{what}: predictions differ by up to {difference:.2g}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example; return 2 if the input is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a new folder")
    add_options(parser, ExampleSettings)
    parser.add_argument(
        "--ensemble", action="store_true", help="also predict with an ensemble of Merlin Systems"
    )
    args = parser.parse_args(argv)

    def train_both() -> None:
        settings = settings_from(args, ExampleSettings)
        if args.ensemble and importlib.util.find_spec("merlin.systems") is None:
            raise InputError(
                "--ensemble: Merlin Systems is not installed here; make an environment with it: "
                "requirements/make_venv.sh ngc .venv-ngc"
            )
        with compat.quiet_merlin(), atomic_folder(args.out) as folder:
            folder.mkdir()
            aucs = run(folder, settings, ensemble=args.ensemble)
        same = "loaded and in an ensemble" if args.ensemble else "loaded"
        for name, auc in aucs.items():
            print(f"{name}: test AUC {auc:.5f}; {same}, it predicts the same")

    return exit_code("merlin_models", train_both)


if __name__ == "__main__":
    sys.exit(main())
