"""Functions that graphs call: they live as long as their graphs."""

import gc
import weakref

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.tables.variable_memory import call_in_graph

tf = compat.tensorflow()
ONE = tf.constant(1.0)


class Doubler:
    def __call__(self, x):
        return np.float32(2) * x


def doubling(function):
    return tf.function(lambda x: call_in_graph(function, [x], tf.float32))


def test_a_function_is_freed_with_its_graph():
    functions = [Doubler()]
    graphs, freed = [doubling(functions[0])], weakref.ref(functions[0])
    assert graphs[0](ONE).numpy() == 2
    functions.clear()
    gc.collect()
    assert freed() is not None and graphs[0](ONE).numpy() == 2
    graphs.clear()
    gc.collect()
    assert freed() is None


def test_a_function_lives_with_the_concrete_function():
    concrete = doubling(Doubler()).get_concrete_function(tf.TensorSpec([], tf.float32))
    gc.collect()
    assert concrete(ONE).numpy() == 2


def test_a_function_in_a_loop_a_branch_and_an_inner_function():
    def twice(inner):
        @tf.function
        def outer(x):
            for _ in tf.range(2):
                if x > 0:
                    x = inner(x)
                    x.set_shape([])
            return x

        return outer

    outer = twice(doubling(Doubler()))
    assert outer(ONE).numpy() == 4
    gc.collect()
    assert outer(ONE).numpy() == 4


def test_without_a_graph():
    assert call_in_graph(Doubler(), [ONE], tf.float32).numpy() == 2


class Rows(tf.keras.layers.Embedding):
    """An embedding layer that brings its rows up to date, with `update="exact"`."""

    def call(self, ids):
        self.optimizer.catch_up(self.embeddings, ids)
        return super().call(ids)


def fitted(backend, update):
    """A weak reference to the table of a model that was fitted and is gone."""
    layers, optimizer = tf.keras.layers, cc.CowClip(update=update, backend=backend)
    table = Rows(7, 2, input_length=2)
    table.optimizer = optimizer
    model = tf.keras.Sequential([table, layers.Flatten(), layers.Dense(1, "sigmoid")])
    model.compile(optimizer, loss="binary_crossentropy")
    model.fit(np.arange(12).reshape(6, 2) % 7, np.arange(6) % 2, batch_size=3, verbose=0)
    return weakref.ref(table.embeddings)


@pytest.mark.one_case
@pytest.mark.parametrize("backend", ["numba", "tensorflow"])
@pytest.mark.parametrize("update", ["dense", "exact", "lazy"])
def test_a_table_is_freed_with_its_model(backend, update):
    """Without `clear_session`: a notebook may build one model after another."""
    freed = fitted(backend, update)
    gc.collect()
    assert freed() is None
