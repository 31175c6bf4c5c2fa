"""The four models on tables that grow: equal to fixed ones, and what is refused."""

import resource
from dataclasses import replace

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.models import MODELS, deepfm, growing_schema, growing_table
from cowclip_merlin.tables import FieldRules
from cowclip_merlin.training import RunSettings

FIELDS, IDS, ROWS, CAPACITY = ("a", "b", "c"), 40, 32, 400
SMALL = {"embedding_dim": 4, "mlp": (8,), "seed": 3, "init_std": 0.1}


def schema():
    return growing_schema(categorical=FIELDS, continuous=["x"], label="click")


def growing(model="deepfm", capacity=CAPACITY, **more):
    return MODELS[model](schema(), tables="growing", capacity=capacity, **(SMALL | more))


def cowclip(**more):
    adam = [compat.tensorflow().keras.optimizers.legacy.Adam(0.01) for _ in range(2)]
    return cc.CowClip(*adam, **({"update": "lazy", "l2": 1e-4} | more))


def batches(steps):
    """Numbers of ids [b, F], x and labels: each batch may have ids that none had before."""
    rng = np.random.default_rng(5)
    for step in range(steps):
        ids = rng.integers(0, min(IDS, 1 + 2 * IDS * step // steps), [ROWS, len(FIELDS)])
        x, label = rng.random([ROWS, 1], np.float32), rng.random([ROWS, 1]) < 0.3
        yield ids, x, label.astype(np.float32)


def raw(ids):
    """64-bit ids, the same numbers in every field."""
    return (ids - 7) * 2**40


def trainer(tf, model, optimizer):
    """A step that returns probabilities before it, and the loss."""
    model.compile(optimizer, "binary_crossentropy")

    @tf.function
    def train(rows, x, label):
        with tf.GradientTape() as tape:
            p = model({"categorical": rows, "continuous": x}, training=True)
            loss = tf.reduce_mean(tf.keras.losses.binary_crossentropy(label, p))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return p, loss

    return train


def fill(fixed, table):
    """Give a fused model the first values of all ids, in its own order of rows."""
    fields, numbers = np.repeat(np.arange(len(FIELDS)), IDS), np.tile(np.arange(IDS), len(FIELDS))
    for layer, memory in zip(fixed.row_sync.layers, table.memory):
        first = replace(memory, w=np.empty(layer.table.shape, np.float32), m=None, v=None)
        first.initialize(np.arange(len(fields), dtype=np.int32), fields, raw(numbers))
        layer.table.assign(first.w)


@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "numba") for name in MODELS), ("deepfm", "tensorflow")]
)
def test_a_growing_table_trains_to_the_numbers_of_a_fixed_one(tf, schema_of, name, backend):
    model, fixed = (
        growing(name),
        MODELS[name](schema_of(dict.fromkeys(FIELDS, IDS), ("x",)), **SMALL),
    )
    ours, theirs = cowclip(backend=backend), cowclip(backend=backend)
    table = growing_table(model, ours)
    table.track_changes()
    fill(fixed, table)
    step, fixed_step = trainer(tf, model, ours), trainer(tf, fixed, theirs)
    for now, (ids, x, label) in enumerate(batches(60)):
        found = step(table.admit(raw(ids), now), x, label)
        wanted = fixed_step(ids.astype(np.int32), x, label)
        for a, b in zip(found, wanted):
            assert np.array_equal(a, b), now
    assert table.num_rows == IDS * len(FIELDS)
    everyone = np.tile(np.arange(IDS)[:, None], len(FIELDS))
    rows, fused = table.lookup(raw(everyone)), everyone + IDS * np.arange(len(FIELDS))
    for layer, other in zip(model.row_sync.layers, fixed.row_sync.layers):
        arrays = layer.table, *(ours.get_slot(layer.table, slot) for slot in "mv")
        others = other.table, *(theirs.get_slot(other.table, slot) for slot in "mv")
        for a, b in zip(arrays, others):
            assert np.array_equal(tf.gather(a, rows), tf.gather(b, fused))
            assert np.ptp(tf.gather(a, rows)) > 0
    found, wanted = (
        model.predict_on_batch(batch_of(rows)),
        fixed.predict_on_batch(batch_of(everyone)),
    )
    assert np.array_equal(found, wanted)


def batch_of(rows):
    return {"categorical": rows, "continuous": np.zeros([len(rows), 1], np.float32)}


def test_an_id_that_expired_and_came_back_is_a_new_one(tf):
    model, optimizer = growing(), cowclip()
    table = growing_table(model, optimizer, fields={"b": FieldRules(ttl=10)})
    step = trainer(tf, model, optimizer)
    ids = np.array([[1, 2, 3], [1, 2, 3]])
    rows = table.admit(ids, 0)
    step(rows, np.ones([2, 1], np.float32), np.ones([2, 1], np.float32))
    trained = [memory.w[rows[0]].copy() for memory in table.memory]
    table.admit(np.array([[1, 9, 3]]), 100)
    assert table.expire(CAPACITY) == 1 and table.lookup(ids)[0, 1] == 1  # absent row of field b
    again = table.admit(ids, 101)
    assert np.array_equal(again, rows)  # the row is used again
    fresh = growing()
    other = growing_table(fresh, cowclip())
    new = other.admit(ids, 0)
    for memory, reference, w in zip(table.memory, other.memory, trained):
        assert np.array_equal(memory.w[again[0, 1]], reference.w[new[0, 1]])
        assert not memory.m[again[0, 1]].any() and not memory.v[again[0, 1]].any()
        assert np.array_equal(memory.w[again[0, [0, 2]]], w[[0, 2]])
    assert not np.array_equal(w[1], np.zeros(1)) and table.memory[0].m[again[0, 0]].any()


@pytest.mark.parametrize("backend", ["numba", "tensorflow"])
@pytest.mark.parametrize("clip", ["cowclip", "none", "column"])
def test_absent_ids_that_are_zeros_stay_zeros(tf, backend, clip):
    """Also when batches get their rows ahead of the steps; the other rows train as ever."""
    found = {}
    for absent in ("zeros", "trained"):
        model, optimizer = growing(), cowclip(backend=backend, clip=clip)
        rules = {"b": FieldRules(admit=2)}
        table = growing_table(model, optimizer, fields=rules, absent=absent)
        step = trainer(tf, model, optimizer)
        ids = np.array([[1, 2, 3], [1, 4, 3]])
        x, label = np.ones([2, 1], np.float32), np.ones([2, 1], np.float32)
        ahead = [table.admit(ids, 0), table.admit(ids + 10, 1), table.admit(ids + 20, 2)]
        assert ahead[0][:, 1].tolist() == [1, 1]
        first = [memory.w[: table.num_fields].copy() for memory in table.memory]
        for rows in ahead:
            p, _ = step(rows, x, label)
        found[absent] = p
        for memory, w in zip(table.memory, first):
            same = [np.array_equal(memory.w[:3], w), not memory.m[:3].any(), not memory.v[:3].any()]
            assert same == [absent == "zeros"] * 3
            assert not w.any() or absent == "trained"
            assert memory.m[ahead[0][:, [0, 2]]].all()  # the other rows were trained
    assert not np.array_equal(*found.values())


def test_rows_of_a_state_that_were_trained_become_zeros(tf):
    model, other, optimizer = growing(), growing(), cowclip()
    table = growing_table(model, optimizer, fields={"b": FieldRules(admit=9)})
    step = trainer(tf, model, optimizer)
    step(table.admit(np.array([[1, 2, 3]]), 0), np.ones([1, 1], np.float32), np.ones([1, 1]))
    zeros = growing_table(other, cowclip(), fields={"b": FieldRules(admit=9)}, absent="zeros")
    zeros.restore(table.state())
    for memory in zeros.memory:
        assert not any(x[:3].any() for x in memory.used(3).values())


def test_the_two_tables_of_a_model_have_seeds_of_their_own():
    table = growing_table(growing(), cowclip())
    assert [memory.seed for memory in table.memory] == [3, 4]
    assert [memory.std for memory in table.memory] == [0.1, 0.0]


def peak():
    """The most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def steps_of_all_kinds(tf, model, optimizer, table):
    """Steps and predictions, with a graph and without."""
    step = trainer(tf, model, optimizer)
    for now, (ids, x, label) in enumerate(batches(3)):
        rows = table.admit(raw(ids), now)
        step(rows, x, label)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(batch_of(rows), training=True))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        model.predict_on_batch(batch_of(rows))


@pytest.mark.parametrize("backend", ["numba", "tensorflow"])
def test_memory_is_reserved_and_not_resident(tf, backend):
    """4 GiB in all, of which few are taken, and steps never copy a table of 1 GiB."""
    small, optimizer = growing(), cowclip(backend=backend)
    steps_of_all_kinds(tf, small, optimizer, growing_table(small, optimizer))
    start = peak()
    model, optimizer = growing(capacity=2**32 // (4 * 3 * 5)), cowclip(backend=backend)
    table = growing_table(model, optimizer)
    table.admit(np.zeros([1, len(FIELDS)], int), 0)
    made = peak()
    steps_of_all_kinds(tf, model, optimizer, table)
    assert made - start < 700 and peak() - made < 200


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"update": "dense"}, "update='dense' also moves rows that are absent"),
        ({"update": "exact"}, 'use update="lazy"'),
        ({"clip": "field"}, "clip='field' does not take each row by itself; use one of cowclip"),
        ({"embedding_optimizer": "adagrad"}, "must be Adam, not Adagrad"),
    ],
)
def test_optimizers_that_do_not_fit_are_refused(settings, said):
    with pytest.raises(cc.InputError, match=said):
        growing_table(growing(), cc.CowClip(**({"update": "lazy"} | settings)))


def test_other_arguments_that_do_not_fit_are_refused(tf, schema):
    with pytest.raises(cc.InputError, match="needs CowClip, not Adam"):
        growing_table(growing(), tf.keras.optimizers.legacy.Adam())
    with pytest.raises(cc.InputError, match="the model has tables='fused'; build it with"):
        growing_table(deepfm(schema, **SMALL), cowclip())
    model = growing()
    with pytest.raises(cc.InputError, match="no field 'd'; the model has a, b, c"):
        growing_table(model, cowclip(), fields={"d": FieldRules()})
    with pytest.raises(cc.InputError, match="unknown absent 'ones'; choose one of trained, zeros"):
        growing_table(model, optimizer := cowclip(), absent="ones")
    growing_table(model, optimizer)  # a mistake can be corrected
    with pytest.raises(cc.InputError, match="has a growing table already"):
        growing_table(model, optimizer)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        mirrored = growing()
    with pytest.raises(cc.InputError, match="outside of the scope of"):
        growing_table(mirrored, cowclip())


def test_capacity_goes_with_growing_tables(schema):
    with pytest.raises(cc.InputError, match='tables="growing" needs capacity'):
        deepfm(schema, tables="growing")
    with pytest.raises(cc.InputError, match="tables is 'fused'; leave it out"):
        deepfm(schema, capacity=10)
    with pytest.raises(cc.InputError, match="capacity is 0; give 1 or more, below 2"):
        deepfm(schema, tables="growing", capacity=0)


def test_training_needs_the_table_and_its_optimizer(tf):
    model, optimizer = growing(), cowclip()
    ids, x, label = next(batches(1))
    with pytest.raises(cc.InputError, match="no row has a value yet"):
        trainer(tf, model, optimizer)(ids, x, label)
    table = growing_table(model, optimizer)
    rows = table.admit(ids, 0)
    with pytest.raises(cc.InputError, match="another optimizer than growing_table was called with"):
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
        with pytest.raises(cc.InputError, match=r"no row has a value yet; call .*growing_table"):
            getattr(model, method)(*arguments)
    growing_table(model, model.optimizer)
    assert np.isfinite(model.predict_on_batch(batch)).all()
    assert np.isfinite(model.evaluate(data, verbose=0, return_dict=True)["loss"])


def test_weights_of_its_optimizer_are_not_read_or_replaced_as_a_whole(tf):
    model, optimizer = growing(), cowclip()
    table = growing_table(model, optimizer)
    ids, x, label = next(batches(1))
    trainer(tf, model, optimizer)(table.admit(ids, 0), x, label)
    with pytest.raises(cc.InputError, match=r"^get_weights of an optimizer .* reserved rows"):
        optimizer.get_weights()
    with pytest.raises(cc.InputError, match=r"^set_weights of an optimizer .* reserved rows"):
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
        with pytest.raises(
            cc.InputError, match=f"^{name} of a model .* all 400 reserved rows: use"
        ):
            getattr(model, name)(*arguments)
    with pytest.raises(cc.InputError, match="a checkpoint of a model"):
        tf.train.Checkpoint(model=model).save(path)
    assert not list(tmp_path.iterdir())


def test_a_run_on_a_prepared_folder_has_no_growing_tables(capsys):
    from cowclip_merlin.cli import build_parser

    with pytest.raises(cc.InputError, match="tables 'growing' is for online training"):
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
        with pytest.raises(cc.InputError, match="no longer where new rows are written"):
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
        (rows, "the gradient of the ids without a row of field 'c' is not finite"),
        (np.repeat(rows[:, 1:2], 3, axis=1), "the gradient of id 6 of field 'b' is not finite"),
    ):
        with pytest.raises(tf.errors.OpError, match=said):
            step(given, np.ones((1, 1), np.float32), np.full((1, 1), np.nan, np.float32))
