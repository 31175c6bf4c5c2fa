"""The model of a run that is trained no further, with the rows and columns of a served model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.online.events.columns import (
    CategoricalColumn,
    ContinuousColumn,
    ListRules,
    VectorColumn,
)
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.messages import encode_requests
from cowclip_merlin.online.events.values import NumberScaling
from cowclip_merlin.online.served_model import DenseScorer, ServedModel, Version
from cowclip_merlin.online.training.start import ids_of_table, parts, read_rows
from cowclip_merlin.tables.expiry import Dropped
from cowclip_merlin.tables.id_map import cells_for
from cowclip_merlin.tables.serving_table import Changes, ServingTable
from cowclip_merlin.training.run_config import RunConfig, data_of_run, local_run
from cowclip_merlin.training.starting.warm_start import scoring_weights
from cowclip_merlin.training.trained_run import load_run
from cowclip_merlin.types import JsonObject
from cowclip_merlin.workflows import PreparedData, read_counts
from cowclip_merlin.workflows.prepared.counts import FIRST_VALUE, SPECIAL
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.made_columns import Time, with_made_columns

_VERSION = Version(generation=0, seq=0, info={})
_NOTHING = Dropped(np.empty(0, np.int64), np.empty(0, np.int64))


def load_fixed_model(
    run: str | FilePath, data: str | FilePath | None = None
) -> tuple[ServedModel, JsonObject, LogFormat]:
    """Load the model of a run of `cowclip train`, an event that it can score, and its columns.

    Args:
        run: the run folder.
        data: the folder that it was trained on; None: where it was then.

    Raises:
        InputError: the run or the folder is missing, damaged, or another one.
    """
    run = local_run(run)
    config = RunConfig.load(run)
    prepared = PreparedData.load(data_of_run(run, config) if data is None else data)
    trained = load_run(run, prepared.path, device="cpu")
    features = features_of(prepared, config)
    given = {"freeze_embeddings": None, "pretrained_embeddings": None, "reset_embeddings": False}
    scorer = DenseScorer(replace(config.settings, **given), features)
    scorer.set_weights([variable.numpy() for variable in scoring_weights(trained)])
    layers = trained.row_sync.layers
    known = {name: ids_of_table(prepared, name) for name in features.tables}
    rows = len(known) + sum(len(ids) for _, ids in known.values())
    table = ServingTable(
        len(known),
        rows,
        [layer.dim for layer in layers],
        index_cells=cells_for(rows),
        field_of_column=features.table_of_column,
    )
    for field, (name, (numbers, ids)) in enumerate(known.items()):
        column = prepared.categorical.index(name)
        # A row below the number of fields is that of ids without one: of unknown values here.
        places = np.append(np.full(len(ids), len(known)), field)
        numbers, ids = np.append(numbers, SPECIAL["oov"]), np.append(ids, 0)
        for part in parts(len(ids)):
            fields = np.full(len(ids[part]), field)
            changes = Changes(places[part], fields, ids[part], _NOTHING)
            table.apply(changes, [read_rows(layer, column, numbers[part]) for layer in layers])
    model, example = ServedModel(features, table, scorer, _VERSION), _example(prepared)
    rows, _ = with_made_columns([example], prepared.log_format)
    model.predict(encode_requests(rows, features).events)  # compiles what a request needs
    return model, example, prepared.log_format


def features_of(data: PreparedData, config: RunConfig) -> LogFeatures:
    """Return the columns of a run's prepared folder as requests have them."""
    layout = data.log_format
    lists = {
        name: ListRules(
            separator=layout.multi[name],
            max_values=layout.max_values,
            keep=layout.keep_values,
            combiner=combiner,
        )
        for name, combiner in config.settings.combiners(layout.multi).items()
    }
    return LogFeatures(
        label=layout.label,
        more_labels=layout.more_labels,
        regression=layout.regression,
        time="",
        scales={name: list(scale) for name, scale in data.statistics.scales.items()},
        categorical=tuple(
            CategoricalColumn(
                name=name,
                lists=lists.get(name),
                table=layout.share_embedding.get(name),
                text=name in layout.text,
            )
            for name in data.categorical
        ),
        continuous=tuple(
            ContinuousColumn(name=name, scaling=NumberScaling.from_prepared(data, name))
            for name in data.continuous
        ),
        vectors=tuple(
            VectorColumn(name=name, length=length, separator=layout.vector_separator)
            for name, length in layout.vectors.items()
        ),
    )


def _example(data: PreparedData) -> JsonObject:
    """Return an event of the most frequent values, and of the smallest numbers."""
    layout, found = data.log_format, {}
    made = {name for each in layout.sources if isinstance(each, Time) for name in each.made}
    for name in data.categorical:
        if name in made:
            continue
        if name in layout.buckets:
            found[name] = 1
            continue
        value = read_counts(data, name, ["value"])["value"][
            FIRST_VALUE : FIRST_VALUE + 1
        ].to_pylist()
        found[name] = value if name in layout.multi else (value or [None])[0]
    logs = data.recipe.log
    for name in data.continuous:
        low = data.statistics.minimum[name]
        found[name] = round(float(np.expm1(low) if logs else low), 4)
    found |= {layout.time: "2026-11-30 12:00:00"} if layout.time else {}
    found |= {layout.day_hour: "26113012"} if layout.day_hour else {}
    return found | {name: [0.0] * length for name, length in layout.vectors.items()}
