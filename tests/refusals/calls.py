"""Calls of Python that are refused: for each callable, arguments and what the error must say."""

from copy import deepcopy
from functools import partial
from math import inf, nan

import numpy as np
from table_schemas import schema_of_tables

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.bench.settings import BenchSettings
from cowclip_merlin.choices import RowSettings
from cowclip_merlin.launcher import LaunchSettings
from cowclip_merlin.online import OnlineSettings
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.online.producing.producer import ProduceSettings
from cowclip_merlin.online.report import MonitoringSettings
from cowclip_merlin.online.training.settings import StreamSettings
from cowclip_merlin.serving.triton.repository import RepositorySettings
from cowclip_merlin.synthetic.drifting_stream import DriftingStream
from cowclip_merlin.tables import FieldRules
from cowclip_merlin.tables.admission import new_admission
from cowclip_merlin.tables.id_map import IdMap
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.workflows.ingest import Split

FIELDS = [FieldRules()] * 2
ROWWISE = {"class_name": "cowclip_merlin>RowWiseAdagrad", "config": {"learning_rate": 0.1}}
RUN = {"model": "deepfm", "batch_size": 64, "base_batch_size": 64, "update": "lazy"}


def cowclip(**arguments):
    return cc.CowClip(**arguments)


def rowwise_adagrad(**arguments):
    return cc.RowWiseAdagrad(**arguments)


def legacy(name, **settings):
    return getattr(compat.tensorflow().keras.optimizers.legacy, name)(**settings)


def new(name, **settings):
    """An optimizer of Keras 2.11 and later."""
    return getattr(compat.tensorflow().keras.optimizers, name)(**settings)


def optimizer_of(values):
    return cc.CowClip.of(values)


def cowclip_of(make, slot="embedding_optimizer", **arguments):
    return cc.CowClip(**{slot: make()}, **arguments)


def serialized(optimizer):
    return compat.tensorflow().keras.optimizers.serialize(optimizer)


def config_of(name):
    return {"class_name": name, "config": new(name).get_config()}


def loss_scaled():
    return compat.tensorflow().keras.mixed_precision.LossScaleOptimizer(cc.CowClip())


def aggregating():
    return legacy("SGD", gradient_aggregator=lambda pairs: pairs)


def excluding():
    optimizer = new("AdamW")
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def one_object():
    adam = legacy("Adam")
    return cc.CowClip(adam, adam)


def copied(**arguments):
    deepcopy(cc.CowClip(**arguments))


def set_on_both(**settings):
    for name, value in settings.items():
        setattr(cc.CowClip(), name, value)


def model(name="deepfm", **settings):
    return getattr(cc.models, name)(
        schema_of_tables({"a": 5, "b": 9}, continuous=["x"]), **settings
    )


def single_rate(**arguments):
    """Merlin gives one to every optimizer under Horovod."""
    return cc.CowClip.from_config(cc.CowClip().get_config() | arguments)


def roc_auc(labels=(0, 1, 1), scores=(0.5, 0.5, 0.5), weights=None):
    return cc.roc_auc(labels, scores, sample_weight=weights)


def online(run=(), **settings):
    return OnlineSettings(run=RunSettings(**RUN | dict(run)), **settings)


# callable -> (arguments, what the error must say)
CALLS = {
    partial(cc.scale, "criteo", to=1024): [
        ({"rule": "cubic"}, "unknown rule 'cubic'"),
        ({"to": 0}, "batch size is 0"),
        ({"to": 10**400}, r"batch size \d+ is too large"),
        ({"to": 1.0}, "is 1.0; .*whole number"),
        ({"to": True}, "is True; .*whole number"),
    ],
    partial(cc.scale, "kaggle", to=1024): [({}, "unknown preset 'kaggle'")],
    partial(cc.scale, 512, to=1024): [({}, "^512 is no Hyperparameters; ")],
    optimizer_of: [
        ({"values": 8192}, "^8192 is no Hyperparameters; give what cowclip_merlin.scale"),
        ({"values": "criteo"}, "^'criteo' is no Hyperparameters; "),
    ],
    cc.Hyperparameters: [
        ({"l2": -1.0}, "l2 is -1.0"),
        ({"clip": "cowclop"}, "unknown clip 'cowclop'"),
        ({"dense_lr": nan}, "dense_lr is nan"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": True}, "batch_size is True; .*whole number"),
        ({"micro_batches": 0}, "micro_batches is 0; .*at least 1"),
        ({"beta_1": 1.0}, "beta_1 is 1.0; .*at most 0.999999"),
        ({"beta_2": -0.1}, "beta_2 is -0.1"),
        ({"epsilon": 0.0}, "epsilon is 0.0; .*above 0"),
    ],
    RowSettings: [
        ({name: value}, f"{name} is {value}; .*finite")
        for name in ("r", "zeta", "bound", "lambda_rel", "lambda_abs")
        for value in (-1.0, nan, inf)
    ],
    cowclip: [
        ({"update": "exact", "clip": "field"}, "update=\"exact\" .*clips .*: 'field' "),
        ({"update": "exact", "clip": "clippy"}, r"exact.*'clippy'.*update=\"dense\"$"),
        ({"update": "eager"}, "unknown update 'eager'; .* dense, exact, lazy"),
        ({"micro_batches": 0}, "micro_batches is 0; "),
        ({"clip": "cow"}, "unknown clip 'cow'"),
        ({"clip": "clippy", "backend": "numba"}, "backend=\"numba\" .*clip 'clippy'"),
        ({"clip": "clippy", "lambda_rel": -0.1}, "lambda_rel is -0.1"),
        ({"clip": "clippy", "lambda_abs": nan}, "lambda_abs is nan"),
        ({"backend": "cuda"}, "unknown backend 'cuda'"),
        (
            {"update": "exact", "l2": 0.7, "backend": "cupy"},
            "2 \\* l2 <= r .*update='exact', .*backend=\"tensorflow\"",
        ),
        ({"clip": "column", "backend": "cupy"}, "clip 'column' and update='dense'"),
        (
            {"update": "lazy", "clip": "field", "backend": "numba"},
            "clip 'field'; .*backend=\"tensorflow\"",
        ),
        ({"l2": -1.0}, "l2 is -1.0"),
        ({"r": nan}, "r is nan"),
        ({"zeta": inf}, "zeta is inf"),
        ({"embedding_optimizer": "adman"}, "unknown optimizer 'adman'"),
        ({"embedding_optimizer": 3}, "builtins.int is not an optimizer"),
        ({"embedding_optimizer": "nadam", "update": "lazy"}, "not with Nadam"),
        ({"dense_optimizer": ROWWISE}, "dense_optimizer is RowWiseAdagrad, which is for tables"),
        ({"skip": ["("]}, "not a regular expression"),
        ({"embeddings": [3]}, "neither a name"),
        ({"fields": {}}, "fields is empty"),
        ({"fields": {"a": 0}}, "fields: 'a' has 0 rows; "),
        ({"fields": {"a": 2.5}}, "fields: 'a' has 2.5 rows"),
        ({"fields": {"a": 3, "table": {"b": 4}}}, "fields: give either "),
        ({"fields": {"(": {"b": 4}}}, r"fields: '\(' .*regular expression"),
    ],
    partial(cowclip, embedding_optimizer="adagrad", update="exact"): [
        ({}, 'update="exact" .*not with Adagrad and l2 1e-05, whose .*no closed form; .*l2=0'),
        ({"embedding_optimizer": ROWWISE}, 'RowWiseAdagrad and l2 1e-05, whose .*; .*"dense"$'),
        ({"l2": 0.0, "embedding_optimizer": "rmsprop"}, 'not with RMSprop; .*"dense"$'),
        ({"update": "dense", "backend": "numba"}, "only rows of the batch with Adagrad; .*backend"),
        ({"update": "lazy", "clip": "field", "backend": "numba"}, "not work with the clip 'field'"),
        ({"l2": 0.0, "micro_batches": 2}, 'use Adam with update="exact"'),
        ({"l2": 0.0, "micro_batches": 2, "backend": "numba"}, "whole batches with Adagrad; "),
        ({"embedding_optimizer": "sgd"}, "not with SGD and l2 1e-05; .*l2=0"),
    ],
    cowclip_of: [
        *(
            ({"make": make, "slot": slot}, f"^{name} has no form .*adam")
            for name in ("Lion", "Adafactor", "AdamW")
            for make in (partial(new, name), partial(config_of, name))
            for slot in ("embedding_optimizer", "dense_optimizer")
            if slot == "embedding_optimizer" or name == "Adafactor"
        ),
        ({"make": partial(new, "Adam", weight_decay=0.1)}, "weight_decay"),
        *(
            ({"make": partial(legacy, "Adam", **{setting: 1e-3}), **more}, f"Adam with {setting}; ")
            for setting in ("clipnorm", "clipvalue", "global_clipnorm", "amsgrad")
            for more in ({"update": "exact"}, {"backend": "numba"})
        ),
        *(
            ({"make": make, "slot": slot}, f"^{slot} is or holds a CowClip")
            for make in (cowclip, loss_scaled, lambda: serialized(cc.CowClip()))
            for slot in ("embedding_optimizer", "dense_optimizer")
        ),
        ({"make": aggregating}, "gradient_aggregator"),
        ({"make": aggregating, "slot": "dense_optimizer"}, "gradient_aggregator"),
    ],
    partial(cowclip_of, slot="dense_optimizer"): [
        ({"make": partial(new, "AdamW", clipnorm=1.0)}, "AdamW with clipnorm is not supported"),
        ({"make": partial(new, "Lion", use_ema=True)}, "Lion with use_ema is not supported"),
        ({"make": excluding}, "exclude_from_weight_decay is not supported"),
        ({"make": partial(new, "AdamW", weight_decay=-1.0)}, "weight_decay is -1.0; it must be at"),
    ],
    one_object: [({}, "one object")],
    copied: [({"update": "exact"}, "from_config")],
    set_on_both: [
        ({name: 1.0}, f"does not follow {name}: .*dense_optimizer")
        for name in ("clipnorm", "clipvalue", "global_clipnorm")
    ],
    rowwise_adagrad: [
        ({"initial_accumulator_value": -1.0}, "initial_accumulator_value is -1"),
        ({"epsilon": -1.0}, "epsilon is -1"),
    ],
    single_rate: [
        ({"lr": 1e-3}, "two learning rates.*Horovod"),
        ({"learning_rate": 1e-3}, "two learning rates.*Horovod"),
    ],
    model: [
        ({"tables": "one"}, "unknown tables 'one'"),
        ({"continuous": "wide"}, "unknown continuous 'wide'"),
        ({"embedding_dim": 0}, "embedding_dim 0|embedding_dim is 0"),
        ({"embedding_dim": 1.0}, "is 1.0; .*whole number"),
        ({"mlp": ()}, r"mlp \(\)"),
        ({"seed": True}, "is True; .*whole number"),
        ({"name": "dcnv2", "low_rank": 0}, "low_rank 0"),
        ({"name": "dcnv2", "cross_layers": 0}, "cross_layers is 0"),
        ({"dropout": 1.0}, "dropout is 1.0; it must be at least 0 and below 1"),
        ({"dropout": -0.1}, "dropout is -0.1"),
        ({"activation": "tanh"}, "unknown activation 'tanh'.*dice"),
        ({"tables": "growing"}, 'tables="growing" needs capacity'),
        ({"capacity": 10}, "tables is 'fused'; "),
        ({"tables": "growing", "capacity": 0}, "capacity is 0; "),
        ({"name": "dcn", "multi_task": "towers"}, "multi_task"),
        ({"name": "dcn", "multi_task": "mmoe"}, "only 'click' is tagged TARGET"),
        ({"multi_task": "mmoe", "mmoe_experts": 0}, "mmoe_experts is 0; it must be at least 1"),
    ],
    roc_auc: [
        ({"labels": [1, 1], "scores": [0.1, 0.2]}, "both classes"),
        ({"labels": [0, 1], "scores": [0.1]}, "2 labels but 1 scores"),
        ({"labels": [0, 2], "scores": [0.1, 0.2]}, "label 2"),
        ({"labels": [0, 1], "scores": [0.1, nan]}, "row 1 is NaN"),
        ({"labels": [], "scores": []}, "no rows"),
        ({"weights": [1, 1]}, "3 labels but 2 weights"),
        ({"weights": [1, -1, 1]}, "weight -1 is not a finite number of 0 or more"),
        ({"weights": [1, nan, 1]}, "weight nan is not a finite number"),
        ({"weights": [0, 0, 0]}, "all weights are 0"),
        ({"weights": [0, 1, 1]}, "got 2 positive and 0 negative labels with weights above 0"),
    ],
    partial(cc.metrics.log_loss, [0, 1]): [({"y_score": [0.1, 1.5]}, "probabilities")],
    partial(cc.metrics.grouped_auc, [0, 1], [0.1, 0.2]): [
        ({"groups": [1, 2, 3]}, "2 labels but 3 groups")
    ],
    partial(RunSettings, model="deepfm", batch_size=64): [
        *(
            ({"class_weight": text}, "`class_weight` is")
            for text in ("", "0", "0:x", "1:nan", "1:-1", "0:1,0:2", "Balanced", "1=2")
        ),
        ({"update": "auto"}, "auto"),
        ({"overrides": {"beta_1": 0.8}, "optimizer": "adagrad"}, "beta_1 is for Adam, but"),
        ({"validation_fraction": nan}, "validation_fraction is nan"),
        ({"validation_fraction": 0.1, "early_stopping": -1}, "early_stopping is -1;"),
        ({"mlp": ()}, "`mlp` is empty; give the width of one hidden layer"),
        (
            {"multi_task": "shared_bottom", "experts": 2},
            "`experts` has no effect with `multi_task`",
        ),
        *(
            ({"combiner": text}, f"`combiner` is '{text}'; name every column once")
            for text in ("tags=sum,tags=mean", "sum,mean", "=sum")
        ),
    ],
    online: [
        ({"run": {"update": "exact"}}, "exact.* rows that are absent"),
        ({"run": {"combiner": "sum"}}, "the features file gives the combiner"),
        ({"run": {"lr_schedule": "cosine"}}, "lr_schedule is 'cosine', which needs the epochs of"),
        ({"run": {"lr_schedule": "linear"}}, "a stream has no length; also set lr_events"),
        ({"lr_events": 5}, "lr_events has no effect with lr_schedule 'constant'; remove it"),
        ({"run": {"lr_schedule": "linear"}, "lr_events": 0}, "lr_events is 0; it must be at least"),
        ({"run": {"epochs": 2, "reset_embeddings": True}}, "reset_embeddings is for the epochs of"),
        ({"capacity": 0}, "capacity is 0"),
        ({"absent": "ones"}, "unknown absent 'ones'"),
        ({"run": {"clip": "global"}}, "global.*each row by itself.* cowclip"),
        ({"window": 9, "admission_filter": "probabilistic"}, "window has no effect"),
        ({"run": {"class_weight": "1:5"}}, "class_weight '1:5' is for a run on a prepared folder"),
        (
            {"run": {"pretrained_embeddings": "item=v.parquet", "tables": "per_field"}},
            "pretrained_embeddings.*is for a run on a prepared folder",
        ),
        (
            {"run": {"freeze_embeddings": "item", "tables": "per_field"}},
            "freeze_embeddings.*is for a run on a prepared folder",
        ),
    ],
    LaunchSettings: [
        ({"workers": 0}, "workers is 0; "),
        ({"workers": 2, "restarts": -1}, "restarts is -1; "),
        ({"workers": 1, "restarts": 1}, "`restarts` is 1, "),
        ({"restarts": 2}, "`restarts` is 2, "),
    ],
    StreamSettings: [({"on_restart": "no"}, "unknown on_restart 'no'")],
    partial(JoinSettings, window=60): [
        ({"window": 0}, "window is 0"),
        ({"late": -1}, "late is -1"),
        ({"lateness": -1}, "lateness is -1"),
        *(({"negatives": x}, f"negatives is {x}") for x in (0.0, 1.5, 1e-12, nan)),
        ({"idle": 0.0}, "idle is 0.0"),
    ],
    MonitoringSettings: [
        ({"metrics": text}, "metrics")
        for text in ("", "host", "1.5", "65536", "-1", "h:x", "a..b:1", "٣")
    ],
    RepositorySettings: [
        *(
            ({"model_name": name}, "`model_name`")
            for name in ("", ".", "..", ".hidden", "a/b", "a b", "ü", "a\n")
        ),
        *(
            ({option: number}, f"{option} is {number}; ")
            for option in ("model_version", "max_batch_size")
            for number in (0, -1, 2**31)
        ),
    ],
    ProduceSettings: [
        ({"rate": -1}, "rate"),
        ({"speed": nan}, "speed"),
        ({"rate": 1, "speed": 1}, "rate|speed"),
        ({"delay": -1}, "delay is -1"),
        ({"seed": -1}, "seed is -1; "),
    ],
    DriftingStream: [
        ({"events": 0}, r"events is \d+; "),
        ({"events": 9, "days": 101}, r"days is \d+; "),
    ],
    BenchSettings: [
        ({"models": ["fm"]}, "unknown model 'fm'; .* deepfm, dcn"),
        ({"updates": ["eager"]}, "unknown update 'eager'"),
        ({"clips": ["global"]}, "unknown clip 'global'; .* cowclip, none"),
        ({"updates": ["lazy", "lazy"]}, "update lazy,lazy: .* once"),
        ({"batches": [8, 8]}, "batch_sizes 8,8: .* once"),
        ({"batches": [0]}, "batch_sizes is 0;"),
        ({"rows_per_turn": 0}, "rows_per_turn is 0"),
        ({"vocabulary": 3}, "vocabulary is 3; .*104"),
        ({"vocabulary": 2**31}, "vocabulary is 2147483648"),
    ],
    Split: [
        ({"how": "even"}, "even"),
        ({"test_fraction": -0.1}, "test_fraction"),
        ({"test_fraction": 1}, "test_fraction"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.0}, "is 1.0; .*whole number"),
    ],
    new_admission: [
        ({"thresholds": [0]}, "admit is"),
        ({"thresholds": [256]}, "from 1 to 255"),
        ({"thresholds": [1.0]}, "is 1.0; .*whole number"),
        ({"thresholds": [1], "kind": "sliding"}, "unknown admission_filter 'sliding'"),
        ({"thresholds": [1], "window": -1}, "window"),
    ],
    partial(cc.tables.GrowingTable, memory=[], capacity=9): [
        ({"fields": []}, "fields is empty"),
        ({"fields": FIELDS, "absent": "ones"}, "unknown absent 'ones'"),
        ({"fields": FIELDS, "max_rows": 8}, "max_rows is 8 at capacity 9; "),
        ({"fields": FIELDS, "field_of_column": [0, 0]}, "field_of_column"),
        *(
            ({"fields": [FieldRules(**rules)]}, "ttl and min_rows")
            for rules in ({"ttl": -1}, {"ttl": 2**32}, {"min_rows": -1})
        ),
    ],
    partial(cc.tables.GrowingTable(FIELDS, memory=[], capacity=9).admit, now=0): [
        ({"ids": np.zeros((1, 3), int)}, r"ids .*\(1, 3\); .*\[rows, 2\]"),
        *(
            ({"ids": np.zeros((1, 2), int), "now": time}, "event times must be")
            for time in (-1, 2**32)
        ),
    ],
    partial(IdMap, 2): [
        ({"capacity": 2}, "capacity is 2"),
        ({"capacity": 1 << 31}, "capacity is 2147483648"),
    ],
    cc.workflows.Recipe: [({"fit_on": "test"}, "unknown fit_on 'test'; .* train, all")],
}
