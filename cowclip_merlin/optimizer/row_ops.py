"""The row kernels as TensorFlow operations: numba on the CPU, CuPy on a GPU, or plain ops.

Each way is an object with the same three methods on tensors: `group`, `replay` and `update`.
They work on the gathered rows of a batch, so that no table is ever copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cowclip_merlin import clip as clips
from cowclip_merlin import compat, kernels
from cowclip_merlin.kernels import NonFiniteGradient, RowSettings

tf = compat.tensorflow()


class Rows(NamedTuple):
    """Rows of a table that a step works on.

    Attributes:
        w: weights [u, d].
        m: Adam's first moments [u, d].
        v: Adam's second moments [u, d].
        last: steps each row has seen, counted from where the history starts, int32 [u].
    """

    w: Any
    m: Any
    v: Any
    last: Any


class Missed(NamedTuple):
    """What rows may have missed.

    Attributes:
        history: Adam's alpha of every step, float32 [H].
        to: the step to come to, int32.
    """

    history: Any
    to: Any


class HostRows:
    """The kernels of one implementation behind `tf.numpy_function` (numba) on host memory.

    Args:
        name: implementation of `cowclip_merlin.kernels`.
    """

    def __init__(self, name: str = "numba") -> None:
        self._kernels = kernels.load(name)
        self._memo: tuple[Any, Any] | None = None

    def group(self, ids: Any) -> tuple[Any, Any, Any]:
        """Distinct ids [u], ascending, their starts [u + 1] and order [n]; see `kernels.Groups`."""
        found = tf.numpy_function(self._group, [ids], [ids.dtype, tf.int32, tf.int32])
        return kernels.Groups(*(_vector(x) for x in found))

    def _group(self, ids: Any) -> Any:
        # Lookup and update of a step, and the tables of a model, often have the same ids.
        memo = self._memo
        if memo is None or not np.array_equal(memo[0], ids):
            memo = self._memo = (ids.copy(), tuple(self._kernels.group_rows(ids)))
        return memo[1]

    def replay(self, rows: Rows, missed: Missed, settings: RowSettings) -> tuple[Any, Any, Any]:
        """w, m and v after the missed steps."""

        def run(w: Any, m: Any, v: Any, last: Any, history: Any, to: Any) -> Any:
            state = [w.copy(), m.copy(), v.copy()]
            self._kernels.replay_rows(*state, last.copy(), history, int(to), settings)
            return state

        found = tf.numpy_function(run, [*rows, *missed], [tf.float32] * 3)
        return _shaped(found, rows.w)

    def update(
        self,
        rows: Rows,
        missed: Missed,
        groups: Any,
        values: Any,
        alpha: Any,
        settings: RowSettings,
        name_of: Callable[[int], str],
    ) -> tuple[Any, Any, Any, Any]:
        """w, m and v after the missed steps and this one, and the clip factors [u]."""

        def run(*arrays: Any) -> Any:
            w, m, v, last, history, to, ids, starts, order, g, now = arrays
            state = [w.copy(), m.copy(), v.copy()]
            self._kernels.replay_rows(*state, last.copy(), history, int(to), settings)
            batch = kernels.Groups(ids, starts, order)
            try:
                factor = self._kernels.update_rows(*state, batch, g, float(now), settings)
            except NonFiniteGradient as error:
                raise ValueError(name_of(int(ids[error.place]))) from error
            return [*state, factor]

        inputs = [*rows, *missed, *groups, values, alpha]
        *state, factor = tf.numpy_function(run, inputs, [tf.float32] * 4)
        return *_shaped(state, rows.w), _vector(factor)


class TensorFlowRows:
    """Plain TensorFlow operations: anywhere, and the yardstick for the kernels."""

    def group(self, ids: Any) -> tuple[Any, Any, Any]:
        """Distinct ids [u], the place of each occurrence among them [n], and counts [u]."""
        return tuple(tf.unique_with_counts(ids))

    def replay(self, rows: Rows, missed: Missed, settings: RowSettings) -> tuple[Any, Any, Any]:
        """w, m and v after the missed steps: one pass over all rows per step."""

        def more(step: Any, *_: Any) -> Any:
            return step < missed.to

        def body(step: Any, w: Any, m: Any, v: Any) -> Any:
            alpha = missed.history[step]
            moved = _adam(w, m, v, 2 * settings.l2 * w, alpha, settings)
            due = (rows.last <= step)[:, tf.newaxis]
            state = [tf.where(due, a, b) for a, b in zip(moved, (w, m, v))]
            return step + 1, *state

        # Of no rows the first step is none.
        first = tf.reduce_min(tf.concat([rows.last, [missed.to]], 0))
        _, w, m, v = tf.while_loop(more, body, [first, *rows[:3]])
        return w, m, v

    def update(
        self,
        rows: Rows,
        missed: Missed,
        groups: Any,
        values: Any,
        alpha: Any,
        settings: RowSettings,
        name_of: Callable[[int], str],
    ) -> tuple[Any, Any, Any, Any]:
        """w, m and v after the missed steps and this one, and the clip factors [u]."""
        ids, position, cnt = groups
        data = tf.math.unsorted_segment_sum(tf.cast(values, tf.float32), position, tf.size(ids))
        data = self._checked(data, ids, name_of)
        w, m, v = self.replay(rows, missed, settings)
        g = data + 2 * settings.l2 * w
        numbers = clips.Settings(r=settings.r, zeta=settings.zeta, bound=settings.bound)
        one_field = clips.Rows(g=g, w=w, cnt=cnt, field=tf.zeros_like(cnt), num_fields=1)
        factor = clips.CLIPS[settings.clip].factors([one_field], numbers)[0]
        return *_adam(w, m, v, g * factor[:, tf.newaxis], alpha, settings), factor

    @staticmethod
    def _checked(data: Any, ids: Any, name_of: Callable[[int], str]) -> Any:
        """The gradients; an error that names the first id with NaN or Inf if there is one."""
        bad = ~tf.reduce_all(tf.math.is_finite(data), axis=1)

        def complain() -> Any:
            def report(first: Any) -> Any:
                raise ValueError(name_of(int(first)))

            return tf.numpy_function(report, [tf.boolean_mask(ids, bad)[0]], tf.bool)

        fine = tf.cond(tf.reduce_any(bad), complain, lambda: tf.constant(True))
        with tf.control_dependencies([fine]):
            return tf.identity(data)


def _adam(w: Any, m: Any, v: Any, g: Any, alpha: Any, settings: RowSettings) -> tuple[Any, ...]:
    m = m + (g - m) * (1 - tf.constant(settings.beta_1, tf.float32))
    v = v + (g * g - v) * (1 - tf.constant(settings.beta_2, tf.float32))
    return w - (m * alpha) / (tf.sqrt(v) + settings.epsilon), m, v


def _vector(x: Any) -> Any:
    x.set_shape([None])
    return x


def _shaped(found: Any, like: Any) -> tuple[Any, ...]:
    for x in found:
        x.set_shape(like.shape)
    return tuple(found)


def row_ops(backend: str) -> Any:
    """The operations of a backend: "numba", "cupy" or "tensorflow"."""
    if backend == "tensorflow":
        return TensorFlowRows()
    if backend == "cupy":
        from cowclip_merlin.optimizer.device_rows import DeviceRows

        return DeviceRows()
    return HostRows(backend)
