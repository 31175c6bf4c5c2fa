"""Adam that updates only the rows of a sparse gradient (`update="lazy"`, paper section J)."""

from __future__ import annotations

from typing import Any

from cowclip_merlin import compat

tf = compat.tensorflow()


# Saved models of all versions contain this name.
@tf.keras.utils.register_keras_serializable(package="cowclip_merlin", name="RowAdam")
class LazyAdam(tf.keras.optimizers.legacy.Adam):
    """Keras's Adam, but a sparse gradient updates only its own rows and their moments.

    Keras's sparse Adam decays the moments of every row, and updates every row, at every step.
    The ids of a gradient must be distinct.

    >>> w = tf.Variable(tf.zeros([3, 1]))
    >>> g = tf.IndexedSlices(tf.constant([[2.0]]), tf.constant([1]), tf.constant([3, 1]))
    >>> _ = LazyAdam(learning_rate=0.1).apply_gradients([(g, w)])
    >>> [round(float(x), 4) for x in w.numpy()[:, 0]]
    [0.0, -0.1, 0.0]
    """

    def _resource_apply_sparse_duplicate_indices(
        self, grad: Any, handle: Any, indices: Any, **kwargs: Any
    ) -> Any:
        return self._resource_apply_sparse(grad, handle, indices, **kwargs)

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: dict | None = None
    ) -> Any:
        device, dtype = var.device, var.dtype.base_dtype
        coefficients = (apply_state or {}).get((device, dtype))
        if coefficients is None:
            coefficients = self._fallback_apply_state(device, dtype)
        m_slot, v_slot = self.get_slot(var, "m"), self.get_slot(var, "v")
        beta_1, beta_2 = coefficients["beta_1_t"], coefficients["beta_2_t"]
        m = beta_1 * tf.gather(m_slot, indices) + (1 - beta_1) * grad
        v = beta_2 * tf.gather(v_slot, indices) + (1 - beta_2) * tf.square(grad)
        # "lr" already holds both bias corrections: lr * sqrt(1 - beta2^t) / (1 - beta1^t)
        step = coefficients["lr"] * m / (tf.sqrt(v) + coefficients["epsilon"])
        return tf.group(
            self._resource_scatter_update(m_slot, indices, m),
            self._resource_scatter_update(v_slot, indices, v),
            self._resource_scatter_add(var, indices, -step),
        )

    # Keras's own version then reads the whole variable, which copies it at every step.
    def _resource_scatter_add(self, var: Any, indices: Any, value: Any) -> Any:
        return tf.raw_ops.ResourceScatterAdd(resource=var.handle, indices=indices, updates=value)

    def _resource_scatter_update(self, var: Any, indices: Any, value: Any) -> Any:
        return tf.raw_ops.ResourceScatterUpdate(resource=var.handle, indices=indices, updates=value)
