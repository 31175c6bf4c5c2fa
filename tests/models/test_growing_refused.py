"""Growing tables: what is refused, and what errors say."""

import numpy as np
import pytest
from growing_models import (
    CAPACITY,
    FIELDS,
    SMALL,
    batch_of,
    batches,
    cowclip,
    growing,
    raw,
    trainer,
)

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.models import growing_table
from cowclip_merlin.tables import FieldRules
from cowclip_merlin.training import RunSettings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"update": "dense"}, "update='dense' .*absent"),
        ({"update": "exact"}, 'use update="lazy"'),
        ({"clip": "field"}, "clip='field' .* cowclip"),
        ({"embedding_optimizer": "sgd"}, "must be Adam or Adagrad, not SGD; use one of them"),
    ],
)
def test_optimizers_that_do_not_fit_are_refused(settings, said):
    with pytest.raises(cc.InputError, match=said):
        growing_table(growing(), cc.CowClip(**({"update": "lazy"} | settings)))


def test_other_arguments_that_do_not_fit_are_refused(tf, schema):
    with pytest.raises(cc.InputError, match="needs CowClip, not Adam"):
        growing_table(growing(), tf.keras.optimizers.legacy.Adam())
    with pytest.raises(cc.InputError, match="tables='fused'; "):
        growing_table(cc.models.deepfm(schema, **SMALL), cowclip())
    model = growing()
    with pytest.raises(cc.InputError, match=r"no field 'd'; .*a, b, c"):
        growing_table(model, cowclip(), fields={"d": FieldRules()})
    with pytest.raises(cc.InputError, match=r"unknown absent 'ones'; .* trained, zeros"):
        growing_table(model, optimizer := cowclip(), absent="ones")
    growing_table(model, optimizer)  # a mistake can be corrected
    with pytest.raises(cc.InputError, match="growing table already"):
        growing_table(model, optimizer)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        mirrored = growing()
    with pytest.raises(cc.InputError, match="scope of"):
        growing_table(mirrored, cowclip())


def test_several_workers_are_refused(monkeypatch):
    group = cc.workers.Workers(0, ("a:1", "b:1"))
    monkeypatch.setattr(cc.workers, "current", lambda: group)
    with pytest.raises(cc.InputError, match="there are 2 workers"):
        growing_table(growing(), cowclip())


def test_training_needs_the_table_and_its_optimizer(tf):
    model, optimizer = growing(), cowclip()
    ids, x, label = next(batches(1))
    with pytest.raises(cc.InputError, match="no row has a value yet"):
        trainer(tf, model, optimizer)(ids, x, label)
    table = growing_table(model, optimizer)
    rows = table.admit(ids, 0)
    with pytest.raises(cc.InputError, match=r"another optimizer .*growing_table"):
        trainer(tf, model, cowclip())(rows, x, label)
    trainer(tf, model, optimizer)(rows, x, label)


def test_nothing_is_predicted_from_rows_without_values(tf):
    model = growing()
    model.compile(cowclip(), "binary_crossentropy")
    batch = batch_of(np.zeros([4, len(FIELDS)], np.int32))
    data = tf.data.Dataset.from_tensors((batch, np.zeros([4, 1], np.float32)))
    for method, arguments in {
        "predict_on_batch": [batch],
        "test_on_batch": [batch, np.zeros([4, 1], np.float32)],
        "predict": [data],
        "evaluate": [data],
    }.items():
        with pytest.raises(cc.InputError, match=r"no row has .*growing_table"):
            getattr(model, method)(*arguments)
    growing_table(model, model.optimizer)
    assert np.isfinite(model.predict_on_batch(batch)).all()
    assert np.isfinite(model.evaluate(data, verbose=0, return_dict=True)["loss"])


def test_weights_of_its_optimizer_are_not_read_or_replaced_as_a_whole(tf):
    model, optimizer = growing(), cowclip()
    table = growing_table(model, optimizer)
    ids, x, label = next(batches(1))
    trainer(tf, model, optimizer)(table.admit(ids, 0), x, label)
    with pytest.raises(cc.InputError, match=r"^get_weights of an optimizer .* reserved"):
        optimizer.get_weights()
    with pytest.raises(cc.InputError, match=r"^set_weights of an optimizer .* reserved"):
        optimizer.set_weights([])


def test_whole_tables_are_not_written_or_replaced(tf, tmp_path):
    model = growing()
    path = str(tmp_path / "model")
    for name, arguments in {
        "save": [path],
        "save_weights": [path],
        "load_weights": [path],
        "export": [path],
        "get_weights": [],
        "set_weights": [[]],
    }.items():
        with pytest.raises(cc.InputError, match=f"^{name} of a model .* 400 reserved"):
            getattr(model, name)(*arguments)
    with pytest.raises(cc.InputError, match="a checkpoint of a model"):
        tf.train.Checkpoint(model=model).save(path)
    assert not list(tmp_path.iterdir())


def test_a_run_on_a_prepared_folder_has_no_growing_tables(capsys):
    from cowclip_merlin.cli import build_parser

    with pytest.raises(cc.InputError, match=r"tables 'growing' .*online"):
        RunSettings(model="deepfm", batch_size=8, tables="growing")
    with pytest.raises(SystemExit):
        build_parser().parse_args(["train", "--help"])
    assert "growing" not in capsys.readouterr().out


def test_a_table_whose_memory_moved_is_refused():
    """A tensor of the whole table makes the next lookup copy it: new rows would be lost."""
    tf, model, optimizer = compat.tensorflow(), growing(), cowclip(backend="numba")
    table = growing_table(model, optimizer)
    train = trainer(tf, model, optimizer)
    ids, x, label = next(batches(1))
    rows = table.admit(raw(ids), 0)
    train(rows, x, label)
    kept = tf.identity(model.row_sync.layers[0].table)
    table.admit(raw(ids), 1)  # nothing has moved yet
    train(rows, x, label)
    for call in (lambda: table.admit(raw(ids) + 1, 2), table.state):
        with pytest.raises(cc.InputError, match="new rows are written"):
            call()
    assert kept.shape[0] == CAPACITY


def test_an_error_names_the_field_and_the_id(tf):
    model, optimizer = growing(), cowclip(backend="numba")
    table = growing_table(model, optimizer, fields={"c": FieldRules(admit=9)})
    step = trainer(tf, model, optimizer)
    rows = table.admit(np.array([[5, 6, 7]]), 0)
    assert [table.owner_of(int(row)) for row in rows[0]] == [(0, 5), (1, 6), None]
    assert table.owner_of(CAPACITY) is table.owner_of(-1) is None
    for given, said in (
        (rows, "gradient of .*without a row of field 'c'"),
        (np.repeat(rows[:, 1:2], 3, axis=1), "gradient of id 6 of field 'b'"),
    ):
        with pytest.raises(tf.errors.OpError, match=said):
            step(given, np.ones((1, 1), np.float32), np.full((1, 1), np.nan, np.float32))
