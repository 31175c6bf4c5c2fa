"""Load, evaluate and export the model of a run."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.addresses import is_address, uploaded_file
from cowclip_merlin.checks import one_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import ColumnArrays, load_split_to_device, open_columns
from cowclip_merlin.system.console import phase
from cowclip_merlin.system.files import atomic_folder, read_json, write_json
from cowclip_merlin.targets import kinds_of
from cowclip_merlin.training import evaluation
from cowclip_merlin.training.build import build_model, choose_device
from cowclip_merlin.training.checkpoint import Checkpoints
from cowclip_merlin.training.evaluation import auc_by_targets, evaluate_targets
from cowclip_merlin.training.run import set_up_tensorflow
from cowclip_merlin.training.run_config import RunConfig, local_run
from cowclip_merlin.training.run_logs import label_names, value_names
from cowclip_merlin.training.scoring import predicting
from cowclip_merlin.training.scoring.predicting import check_table_file
from cowclip_merlin.training.stopping.early_stopping import warning_of_run, weights_folder
from cowclip_merlin.types import Array, ArrowColumn, JsonObject, Operation, Tensor, TensorSpec

if TYPE_CHECKING:
    from cowclip_merlin.models import CTRModel
    from cowclip_merlin.models.columns import Columns
    from cowclip_merlin.workflows import PreparedData

VALUES, OFFSETS = "__values", "__offsets"  # as Merlin Systems names the parts of lists
COLUMNS_FILE = "assets.extra/columns.json"  # TensorFlow and its servers ignore this folder


def evaluate_run(
    run: str | Path,
    data: str | Path,
    *,
    split: str = "test",
    predictions: str | Path | None = None,
    against: str | Path | None = None,
    by: str | None = None,
    keep: Sequence[str] = (),
    overwrite: bool = False,
    device: str = "auto",
) -> evaluation.Evaluation | evaluation.RegressionEvaluation:
    """Score a split of a prepared folder with the weights of a run.

    These are the last ones, or with early stopping those of the best epoch.

    If all rows have the same label, there is no AUC to compute: it is NaN. A label that is a number
    has a root mean squared error instead.

    Args:
        run: the run folder.
        data: the folder that the run was trained on, or one prepared with its vocabulary.
        split: "train", "test", or "validation" if `prepare` got such rows.
        predictions: parquet, .csv or .csv.gz file to write: row, label, probability; of several
            targets the last two for each, with its name, such as label_click and
            probability_click. The value of a number is its prediction, not a probability. `row`
            is the row of the log that was prepared, counted from 0 over its files, damaged ones
            included; those of files for a split of their own count from its first file.
        against: another run; its weights score the same rows, and the AUCs are compared.
        by: categorical column, such as the user; also compute the mean AUC of the rows of each id.
        keep: categorical columns whose values are written to `predictions`, too; null where a value
            is missing, new or rare.
        overwrite: replace `predictions` if the file exists.
        device: "auto", "cpu" or "gpu".

    Raises:
        InputError: if an input is wrong, or AUCs are to be compared and all labels are the same, or
            no label is of 0 and 1.
    """
    from cowclip_merlin.workflows import PreparedData

    if predictions is not None and is_address(predictions):
        with uploaded_file(str(predictions), overwrite=overwrite) as file:
            return evaluate_run(
                run,
                data,
                split=split,
                predictions=file,
                against=against,
                by=by,
                keep=keep,
                device=device,
            )
    runs = [local_run(folder) for folder in (run, against) if folder is not None]
    configs, prepared = [RunConfig.load(folder) for folder in runs], PreparedData.load(data)
    if predictions is not None:
        check_table_file(predictions, overwrite=overwrite)
    elif keep:
        raise InputError("`keep` has no effect without `predictions`; remove it, or add that")
    one_of("split", split, prepared.rows)
    predicting.check_kept(keep, [*label_names(prepared.targets), *value_names(prepared.targets)])
    for name in keep:
        one_of("keep", name, prepared.categorical)
    if prepared.rows[split] == 0:
        raise InputError(f"{data}: no rows in the {split} split; choose the other split")
    if by is not None:
        one_of("by", by, [c for c in prepared.categorical if c not in prepared.log_format.multi])
    for folder, config in zip(runs, configs):
        _check_targets(folder, config, prepared)
        _check_vocabulary(folder, config, prepared)
    _check_aucs(prepared, {"against": against, "by": by})
    columns = open_columns(prepared, split)
    if against is not None:
        others = all(prepared.rows.values())  # a folder of --like has test rows only
        remedy = ("choose the other split, or " if others else "") + "omit `against`"
        evaluation.check_targets_scored(
            prepared.path, split, prepared.targets, columns.labels, columns.weights, remedy=remedy
        )
    set_up_tensorflow(configs[0].settings.seed, device)
    rows = load_split_to_device(columns, batch_size=predicting.PREDICTION_BATCH_SIZE)
    predictors = [
        predicting.Predictor(_load_model(folder, config, prepared), rows)
        for folder, config in zip(runs, configs)
    ]
    if predictors[0].on_device and predictions is against is by is None:
        return evaluation.from_device(predictors[0].metrics(), len(columns))
    scores = [predictor.predict() for predictor in predictors]
    if predictions is not None:
        kept = _kept(prepared, split, columns, keep)
        labels = columns.labels
        evaluation.write_predictions(Path(predictions), kept, labels, scores[0], prepared.targets)
    result = evaluate_targets(prepared.targets, columns.labels, *scores, weights=columns.weights)
    if by is None:
        return result
    ids, _ = columns.column(prepared.categorical.index(by))
    scored = (columns.labels, scores[0], columns.weights)
    return auc_by_targets(result, prepared.targets, by, ids, *scored)


def _kept(
    prepared: PreparedData, split: str, columns: ColumnArrays, keep: Sequence[str]
) -> dict[str, ArrowColumn | Array]:
    """Return the row of the log of each row, and the raw values of some columns."""
    import pyarrow as pa

    from cowclip_merlin.workflows import read_counts
    from cowclip_merlin.workflows.prepared.row_numbers import row_numbers

    rows = row_numbers(prepared, split)
    if rows is None:
        rows = np.arange(len(columns))
        logging.getLogger(__name__).warning(
            "%s: does not know the rows of its log, so `row` counts its %s rows; prepare it again",
            prepared.path,
            split,
        )
    found: dict[str, ArrowColumn | Array] = {"row": rows}
    for name in keep:
        ids, lengths = columns.column(prepared.categorical.index(name))
        found[name] = read_counts(prepared, name, ["value"])["value"].take(pa.array(ids))
        if name in prepared.log_format.multi:
            ends = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
            values = found[name].combine_chunks()
            found[name] = pa.ListArray.from_arrays(pa.array(ends), values)
    return found


def _check_aucs(prepared: PreparedData, given: Mapping[str, object]) -> None:
    """Refuse to compare AUCs where no label has one."""
    for name, value in given.items():
        if value is not None and all(target.regression for target in prepared.targets):
            raise InputError(
                f"`{name}` compares AUCs, but {prepared.path} has no label of 0 and 1; omit it"
            )


def load_run(run: str | Path, data: str | Path, *, device: str = "auto") -> CTRModel:
    """Load the model of a run with its weights, not compiled.

    These are the last ones, or with early stopping those of the best epoch. A warning says if they
    scored the test or validation rows worse than always answering the click rate.

    Args:
        run: the run folder.
        data: the folder it was trained on, or one prepared like it; only its columns are read.
        device: "auto", "cpu" or "gpu".

    Returns:
        A Keras model. Its input is a dictionary with an entry for each column, as that of
        `PreparedData.inputs`. It returns click probabilities [b, 1]; with several targets a
        dictionary with these, or numbers, of each.

    Raises:
        InputError: if an input is wrong.
    """
    from cowclip_merlin.workflows import PreparedData

    run = local_run(run)
    config, prepared = RunConfig.load(run), PreparedData.load(data)
    choose_device(device)
    with phase("load the run"):
        model = _load_model(run, config, prepared)
    if warning := warning_of_run(run, config.settings):
        logging.getLogger(__name__).warning("%s", warning)
    return model


def _check_vocabulary(run: Path, config: RunConfig, prepared: PreparedData) -> None:
    if config.vocabulary != prepared.vocabulary:
        raise InputError(
            f"{prepared.path}: its ids or scaled numbers have other meanings than in the data "
            f"of {run}; prepare it with `like` and the folder that the run was trained on"
        )


def _check_targets(run: Path, config: RunConfig, prepared: PreparedData) -> None:
    found = kinds_of(prepared.targets)
    if list(found.items()) != list(config.targets.items()):
        ours, theirs = (", ".join(kinds) or "one label" for kinds in (config.targets, found))
        raise InputError(
            f"{prepared.path}: has {theirs}, but {run} was trained on {ours}; prepare it with "
            "`like` and the folder that the run was trained on"
        )


def _load_model(run: Path, config: RunConfig, prepared: PreparedData) -> CTRModel:
    _check_targets(run, config, prepared)
    _check_vocabulary(run, config, prepared)
    model = build_model(config.settings, config.values, prepared)
    checkpoints = Checkpoints(weights_folder(run, config.settings), model)
    checkpoints.restore(older=config.settings.early_stopping is None)
    for damage in checkpoints.skipped:
        logging.getLogger(__name__).warning("%s", damage)
    return model


def export_run(
    run: str | Path, data: str | Path, *, out: str | Path, device: str = "auto"
) -> dict[str, TensorSpec]:
    """Write the model of a run as a TensorFlow SavedModel that takes ids and scaled numbers.

    `cc.export` writes one that takes raw values.

    Its signature "serving_default" takes one tensor [b] for each column, ids as int64 and numbers
    as float32. A multi-valued column is a matrix [b, k]; 0 fills rows with fewer ids. The signature
    "serving_ragged", which only models with such columns have, takes the ids of all rows as
    NAME__values, int64 [m], and where each row begins and the last ends as NAME__offsets, int32
    [b + 1]; these are the names of Merlin Systems. A column of vectors is a matrix of their
    numbers. Each signature returns "probability", float32 [b]; with several
    targets a tensor for each, a probability or a number, with the name of the label. An id outside
    of its column's table raises an error that names the
    column. `load_model` can load the folder as a Keras model.

    An input has the name of its column if TensorFlow allows it, else a similar name.
    `assets.extra/columns.json` in the folder maps every input to its column, and each of several
    outputs to its label.

    Args:
        run: the run folder.
        data: the folder it was trained on, or one prepared like it; only its columns are read.
        out: folder to write; it must not exist.
        device: "auto", "cpu" or "gpu".

    Returns:
        Input name -> its `tf.TensorSpec`, in the model's order.

    Raises:
        InputError: if an input is wrong.
    """
    with atomic_folder(out) as temporary:
        model = load_run(run, data, device=device)
        from cowclip_merlin.compat.tensorflow_names import safe_names
        from cowclip_merlin.models.multi_task import output_names

        columns = model.blocks[0].columns
        names = safe_names([*columns.fields, *columns.continuous])
        inputs = _input_signature(columns, names)
        signature = {"serving_default": _serving_function(model, inputs, names)}
        if columns.combiners:
            signature["serving_ragged"] = _ragged_function(model, inputs, names)
        with translate_write_errors(Path(out)):
            compat.save_by_keras(model, str(temporary), signatures=signature)
        outputs = output_names(columns.targets) if len(columns.targets) > 1 else {}
        write_columns(temporary, names, outputs)
    return inputs


@contextmanager
def translate_write_errors(target: Path) -> Iterator[None]:
    """Raise TensorFlow's write errors as the `OSError` that Python itself would raise.

    Raises:
        OSError: if TensorFlow cannot write to `target`.
    """
    errors = compat.tensorflow().errors
    try:
        yield
    except errors.PermissionDeniedError as error:
        raise PermissionError(errno.EACCES, "Permission denied", str(target)) from error
    except errors.OpError as error:
        if "No space left" in str(error):
            raise OSError(errno.ENOSPC, "no space left", str(target)) from error
        raise


def input_columns(model: str | Path) -> dict[str, str]:
    """Map the inputs of an exported model to the names of their columns, in the model's order.

    Args:
        model: the folder that `export_run` wrote.

    Raises:
        InputError: if the folder has no `assets.extra/columns.json`, or the file is damaged.
    """
    return _described(Path(model))["inputs"]


def output_labels(model: str | Path) -> dict[str, str]:
    """Map the outputs of an exported model of several targets to their labels; {} with one target.

    Args:
        model: the folder that `export_run` wrote.

    Raises:
        InputError: as `input_columns`.
    """
    return _described(Path(model)).get("outputs", {})


def _described(model: Path) -> JsonObject:
    file = model / COLUMNS_FILE
    columns = read_json(file)
    if not isinstance(columns, dict) or not isinstance(columns.get("inputs"), dict):
        raise InputError(f"{file}: names no inputs; export the run again")
    return columns


def made_inputs(model: str | Path) -> dict[str, str]:
    """Map inputs whose values `prepare` makes of a log's to words about these values.

    Raises:
        InputError: as `input_columns`.
    """
    return _described(Path(model)).get("made", {})


def write_columns(
    model: Path,
    names: Mapping[str, str],
    outputs: Mapping[str, str],
    made: Mapping[str, str] | None = None,
) -> None:
    """Write which column each input of an exported model is, and which label each output.

    Args:
        model: the folder.
        names: column -> input.
        outputs: label -> output; empty with one target.
        made: column -> which values are made for it, if an input takes these.
    """
    path = model / COLUMNS_FILE
    path.parent.mkdir(exist_ok=True)
    described = {"inputs": {name: column for column, name in names.items()}}
    if outputs:
        described["outputs"] = {name: label for label, name in outputs.items()}
    if made:
        described["made"] = {names[column]: words for column, words in made.items()}
    write_json(path, described)


def _input_signature(columns: Columns, names: dict[str, str]) -> dict[str, TensorSpec]:
    tf = compat.tensorflow()
    kinds = dict.fromkeys(columns.fields, tf.int64) | dict.fromkeys(columns.continuous, tf.float32)
    shapes = {c: [None, None] if c in columns.combiners else [None] for c in kinds}
    shapes |= {c: [None, length] for c, length in columns.vectors.items()}
    return {names[c]: tf.TensorSpec(shapes[c], kind, names[c]) for c, kind in kinds.items()}


def _serving_function(
    model: CTRModel, inputs: dict[str, TensorSpec], names: dict[str, str]
) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """Build the function of the signature whose lists are matrices."""
    tf = compat.tensorflow()

    @tf.function(input_signature=[inputs], autograph=False)
    def serve(given: dict[str, Tensor]) -> dict[str, Tensor]:
        return _named_outputs(model, {column: given[name] for column, name in names.items()})

    return serve


def _ragged_function(
    model: CTRModel, inputs: dict[str, TensorSpec], names: dict[str, str]
) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """Build the function of the signature whose lists are values and offsets."""
    tf, lists = compat.tensorflow(), model.blocks[0].columns.combiners
    specs = {name: spec for c, name in names.items() if c not in lists for spec in [inputs[name]]}
    for name in (names[c] for c in lists):
        specs[name + VALUES] = tf.TensorSpec([None], tf.int64, name + VALUES)
        specs[name + OFFSETS] = tf.TensorSpec([None], tf.int32, name + OFFSETS)

    @tf.function(input_signature=[specs], autograph=False)
    def serve(given: dict[str, Tensor]) -> dict[str, Tensor]:
        columns = {c: given[name if c not in lists else name + VALUES] for c, name in names.items()}
        ends = {c: tf.cast(given[names[c] + OFFSETS], tf.int64) for c in lists}
        whole = [_ends_with(ends[c], columns[c], names[c]) for c in lists]
        with tf.control_dependencies(whole):
            ragged = {c: tf.RaggedTensor.from_row_splits(columns[c], ends[c]) for c in lists}
            return _named_outputs(model, columns | ragged)

    return serve


def _ends_with(ends: Tensor, values: Tensor, name: str) -> Operation:
    words = f"{name}{OFFSETS} must end with the number of {name}{VALUES}"
    tf = compat.tensorflow()
    return tf.debugging.assert_equal(ends[-1], tf.size(values, tf.int64), message=words)


def _named_outputs(model: CTRModel, columns: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the outputs of the signature, each [b]."""
    from cowclip_merlin.models.multi_task import output_names, values_by_label

    values, names = values_by_label(model, columns), output_names(model.blocks[0].columns.targets)
    return {names[label]: value for label, value in values.items()}
