"""Ways to train with Keras: "exact" ends where "dense" does, or says why it cannot."""

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError

ROWS, FIELDS, BATCH, EPOCHS = 30, 2, 4, 2


def optimizer_of(tf, update):
    adam = tf.keras.optimizers.legacy.Adam
    return cc.CowClip(adam(1e-2), adam(1e-3), l2=1e-2, update=update)


def keras_parts(tf, optimizer):
    """An embedding layer and a callback, as docs/optimizer.md shows them."""

    class Rows(tf.keras.layers.Embedding):
        def call(self, ids, training=None):
            if training:
                optimizer.catch_up(self.embeddings, ids)
            return super().call(ids)

    class Current(tf.keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            optimizer.flush()

        def on_epoch_end(self, epoch, logs=None):
            optimizer.flush()

    return Rows(ROWS, 3, embeddings_initializer="he_normal"), Current()


class FittedModel:
    """A plain Keras model, compiled, and 43 rows: the last batch of an epoch has three."""

    def __init__(self, tf, update, *, id_type="int32", **arguments):
        tf.keras.utils.set_random_seed(4)
        self.tf, self.optimizer = tf, optimizer_of(tf, update)
        layer, self.current = keras_parts(tf, self.optimizer)
        ids = tf.keras.Input([FIELDS], dtype=id_type)
        flat = tf.keras.layers.Flatten()(layer(ids))
        self.model = tf.keras.Model(ids, tf.keras.layers.Dense(1, activation="sigmoid")(flat))
        self.model.compile(self.optimizer, "binary_crossentropy", **arguments)
        rng = np.random.default_rng(2)
        self.ids = rng.integers(0, ROWS, (43, FIELDS))
        self.y = (self.ids[:, :1] < 9).astype("f")

    def fit(self, *callbacks, data=None, **arguments):
        given = {"x": self.ids, "y": self.y, "batch_size": BATCH, "shuffle": False}
        given = {"x": data} if data is not None else given
        given |= {"epochs": EPOCHS, "verbose": 0, "callbacks": [self.current, *callbacks]}
        return self.model.fit(**(given | arguments)).history

    def end(self):
        self.optimizer.flush()
        return [*self.model.get_weights(), self.model.predict(self.ids, verbose=0)]


def by_executions(tf, update):
    trainee = FittedModel(tf, update, steps_per_execution=3)
    trainee.fit()
    return trainee.end()


def weighted(tf, update):
    trainee = FittedModel(tf, update)
    trainee.fit(sample_weight=np.linspace(0, 2, 43), epochs=1)
    trainee.fit(class_weight={0: 1.0, 1: 3.0}, epochs=1)
    return trainee.end()


def validated(tf, update):
    trainee = FittedModel(tf, update)
    stop = tf.keras.callbacks.EarlyStopping(mode="max", patience=1, restore_best_weights=True)
    losses = trainee.fit(stop, validation_split=0.25, epochs=4)["val_loss"]
    return [*trainee.end(), losses]


def repeated(tf, update):
    trainee = FittedModel(tf, update)
    data = tf.data.Dataset.from_tensor_slices((trainee.ids, trainee.y))
    data = data.batch(BATCH, drop_remainder=True).repeat()
    trainee.fit(data=data, steps_per_epoch=7, initial_epoch=1, epochs=3)
    return trainee.end()


def batch_by_batch(tf, update):
    trainee, seen = FittedModel(tf, update), []
    for start in range(0, 43, BATCH):
        part = slice(start, start + BATCH)
        seen.append(trainee.model.train_on_batch(trainee.ids[part], trainee.y[part]))
    losses = trainee.model.evaluate(trainee.ids, trainee.y, verbose=0, callbacks=[trainee.current])
    return [*trainee.end(), seen, losses]


def float_ids(tf, update):
    """Keras's `Input` is of floats unless told otherwise, and its layer casts them."""
    trainee = FittedModel(tf, update, id_type="float32")
    trainee.fit()
    return trainee.end()


def frozen_and_thawed(tf, update):
    trainee = FittedModel(tf, update)
    for trainable in (True, False, True):
        trainee.model.layers[1].trainable = trainable
        trainee.model.compile(trainee.optimizer, "binary_crossentropy")
        trainee.fit(epochs=1)
    return trainee.end()


WAYS = (
    by_executions, weighted, validated, repeated, batch_by_batch, float_ids, frozen_and_thawed,
)  # fmt: skip


@pytest.mark.one_case
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_way_to_fit_gives_the_weights_of_dense(tf, way, recwarn):
    for dense, exact in zip(way(tf, "dense"), way(tf, "exact"), strict=True):
        np.testing.assert_allclose(exact, dense, atol=1e-6)
    assert not [w for w in recwarn if "update=" in str(w.message)]


@pytest.mark.thorough
@pytest.mark.parametrize("update", ["dense", "exact"])
def test_an_interrupted_fit_goes_on(tf, tmp_path, update):
    class Interrupt(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    straight = FittedModel(tf, update)
    straight.fit(epochs=3)
    backup = tf.keras.callbacks.BackupAndRestore
    with pytest.raises(KeyboardInterrupt):
        FittedModel(tf, update).fit(backup(tmp_path), Interrupt(), epochs=3)
    resumed = FittedModel(tf, update)
    resumed.fit(backup(tmp_path), epochs=3)
    for a, b in zip(straight.end(), resumed.end(), strict=True):
        np.testing.assert_array_equal(b, a)


def ragged(tf, optimizer, table, ids):
    rows = tf.RaggedTensor.from_tensor(ids, lengths=ids[:, 0] % (FIELDS + 1))
    optimizer.catch_up(table, rows)
    return tf.reduce_sum(tf.nn.embedding_lookup(table, rows), 1)


def sparse(tf, optimizer, table, ids):
    rows = tf.sparse.from_dense(ids)  # without the zeros
    optimizer.catch_up(table, rows)
    return tf.nn.safe_embedding_lookup_sparse(table, rows, combiner="sum")


def sparse_with_gaps(tf, optimizer, table, ids):
    """As Keras's layer does it: row 0 is read where there is no id."""
    rows = tf.sparse.from_dense(tf.where(ids % 2 == 0, tf.zeros_like(ids), ids))
    optimizer.catch_up(table, rows)
    return tf.nn.safe_embedding_lookup_sparse(table, rows, combiner="sum", default_id=0)


def siamese(tf, optimizer, table, ids):
    sides = []
    for side in tf.unstack(ids, axis=1):
        optimizer.catch_up(table, side)
        sides.append(tf.gather(table, side))
    return sides[0] * sides[1]


class Loop:
    """A training loop as users write them: one table, one kernel."""

    def __init__(self, tf, update, look=None):
        rng = np.random.default_rng(3)
        self.tf, self.optimizer = tf, optimizer_of(tf, update)
        self.table = tf.Variable(rng.normal(0, 0.1, (ROWS, 3)).astype("f"), name="embeddings")
        self.kernel = tf.Variable(rng.normal(0, 0.5, (3, 1)).astype("f"))
        self.look = look or siamese
        self.batches = [
            (rng.integers(0, ROWS, (6, FIELDS)), rng.integers(0, 2, (6, 1)).astype("f"))
            for _ in range(16)
        ]
        self.gradients = tf.function(self._gradients)

    def _gradients(self, ids, y):
        loss_of = self.tf.keras.losses.BinaryCrossentropy(from_logits=True)
        with self.tf.GradientTape() as tape:
            loss = loss_of(y, self.look(self.tf, self.optimizer, self.table, ids) @ self.kernel)
        return tape.gradient(loss, [self.table, self.kernel])

    def step(self, gradients):
        self.optimizer.apply_gradients(zip(gradients, [self.table, self.kernel], strict=True))

    def end(self):
        self.optimizer.flush()
        return self.table.numpy(), self.kernel.numpy()


@pytest.mark.one_case
@pytest.mark.parametrize(
    "look", [ragged, sparse, sparse_with_gaps, siamese], ids=lambda look: look.__name__
)
def test_a_lookup_of_any_kind_gives_the_weights_of_dense(tf, look, recwarn):
    """Gradients from a graph, steps made eagerly: no one is told of rows that are current."""
    ends = []
    for update in ("dense", "exact"):
        loop = Loop(tf, update, look)
        for batch in loop.batches:
            loop.step(loop.gradients(*map(tf.constant, batch)))
        ends.append(loop.end())
    for dense, exact in zip(*ends, strict=True):
        np.testing.assert_allclose(exact, dense, atol=1e-6)
    assert not [w for w in recwarn if "update=" in str(w.message)]


@pytest.mark.parametrize("update", ["dense", "exact", "lazy"])
def test_accumulated_gradients_are_those_of_the_whole_batch(tf, update):
    """Counts included: two half batches, concatenated, are one step of the whole."""
    whole, halves = Loop(tf, update), Loop(tf, update)
    for ids, y in whole.batches:
        whole.step(whole.gradients(ids, y))
        one, two = (halves.gradients(ids[part], y[part]) for part in (slice(3), slice(3, 6)))
        values = tf.concat([one[0].values, two[0].values], 0) / 2
        indices = tf.concat([one[0].indices, two[0].indices], 0)
        slices = tf.IndexedSlices(values, indices, one[0].dense_shape)
        halves.step([slices, (one[1] + two[1]) / 2])
    for a, b in zip(whole.end(), halves.end(), strict=True):
        np.testing.assert_allclose(b, a, atol=1e-6)


def test_added_gradients_are_refused_with_the_remedy(tf):
    loop = Loop(tf, "dense")
    pairs = [loop.gradients(*batch) for batch in loop.batches[:2]]
    with pytest.raises(InputError, match=r"concatenating .*, not by tf\.add_n"):
        loop.step([tf.add_n([table for table, _ in pairs]), pairs[0][1]])


@pytest.mark.parametrize("update", ["dense", "exact", "lazy"])
def test_a_table_that_is_listed_twice_is_refused(tf, update):
    """Two layers that share a table, their variables put together."""
    loop = Loop(tf, update)
    slices, _ = loop.gradients(*loop.batches[0])
    with pytest.raises(InputError, match=r"'embeddings:0' .*two gradients"):
        loop.optimizer.apply_gradients([(slices, loop.table), (slices, loop.table)])
