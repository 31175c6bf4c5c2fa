"""`CowClip` as an optimizer of Keras 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import numpy as np

from cowclip_merlin import choices, compat
from cowclip_merlin.checks import is_number, one_of
from cowclip_merlin.choices import RowSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.keras3.tables import Table, step
from cowclip_merlin.scaling import Hyperparameters, check_hyperparameters
from cowclip_merlin.types import Gradient, JsonObject, Tensor, Variable

tf = compat.any_tensorflow()

Rate: TypeAlias = "float | keras.optimizers.schedules.LearningRateSchedule"

_ROWS = 'limit rows by clip="column", bound=...'
_REFUSED = {
    "weight_decay": "use l2=... for tables",
    "clipnorm": _ROWS,
    "clipvalue": _ROWS,
    "global_clipnorm": _ROWS,
    "use_ema": "leave it out: an average reads all rows at every step",
    "loss_scale_factor": "use keras.optimizers.LossScaleOptimizer(CowClip(...))",
    "gradient_accumulation_steps": "use a larger batch",
}
"""Arguments of Keras's optimizers that this one lacks, and what to do instead."""


@keras.saving.register_keras_serializable(package="cowclip_merlin.keras3")
class CowClip(keras.optimizers.Adam):
    """Adam for a model: CowClip and L2 for its embedding tables, plain Adam for its other weights.

    A table is a weight with a sparse gradient, such as that of `keras.layers.Embedding`. One step
    sums the gradients of equal ids, counts them, and adds L2. Then it clips the gradient of each
    row to norm `max(cnt, 1) * max(r * ||w||, sqrt(d) * zeta)`, and makes a step of Adam (Zheng et
    al., arXiv 2204.06240, Algorithm 1). Tables of dimension 1, the first-order weights, get L2 but
    no clip. With `update="exact"` and `clip="none"`, weights are those of `keras.optimizers.Adam`
    with the penalty `l2 * ||w||^2`, but for rounding.

    `dense_lr` follows `learning_rate` in proportion when a callback changes it. A schedule of
    `learning_rate` leaves a `dense_lr` as it is. Betas, epsilon and l2 stay as they are.

    Args:
        learning_rate: that of the tables, a number or a schedule.
        dense_lr: that of the other weights, a number or a schedule; by default `learning_rate`.
        l2: the penalty of a table is `l2 * ||w||^2`; its gradient is added before the clip.
        clip: "cowclip", "column" or "none".
        update: "exact" updates the rows of the batch, and others when they are read; it needs
            `cowclip_merlin.keras3.Embedding`. "dense" updates all rows at every step, with the
            same numbers; "lazy" only those of the batch.
        beta_1: decay of Adam's first moments, of tables and other weights.
        beta_2: decay of Adam's second moments.
        epsilon: added to the root of the second moment, where Keras adds it.
        r: threshold of "cowclip", relative to the norm of a row.
        zeta: lower bound of that norm, per coordinate.
        bound: threshold of "column".
        name: of the optimizer.
        **others: other arguments of Keras's optimizers; what they ask for is refused.

    Raises:
        InputError: a value is out of range or unknown, or the optimizer lacks an argument.

    Example:
        >>> from cowclip_merlin.keras3 import Embedding
        >>> layer = Embedding(10, 4)
        >>> model = keras.Sequential([layer, keras.layers.Flatten(), keras.layers.Dense(1)])
        >>> model.compile(CowClip(0.01, l2=0.0), "mse")
        >>> fitted = model.fit(np.array([[3, 7, 3]]), np.ones(1), verbose=0)
        >>> moments = model.optimizer.variables[2].numpy()
        >>> moments.any(axis=1).nonzero()[0].tolist()
        [3, 7]
    """

    def __init__(
        self,
        learning_rate: Rate = 1e-3,
        *,
        dense_lr: Rate | None = None,
        l2: float = 1e-5,
        clip: str = "cowclip",
        update: str = "exact",
        beta_1: float = RowSettings.beta_1,
        beta_2: float = RowSettings.beta_2,
        epsilon: float = RowSettings.epsilon,
        r: float = RowSettings.r,
        zeta: float = RowSettings.zeta,
        bound: float = RowSettings.bound,
        name: str = "cowclip",
        **others: Any,
    ) -> None:
        for word, value in others.items():
            if word not in _REFUSED:
                raise TypeError(f"CowClip has no argument {word!r}")
            if value:
                raise InputError(f"CowClip has no {word}; {_REFUSED[word]}")
        one_of("update", update, choices.UPDATES)
        one_of("clip", clip, choices.kernel_clips())
        rates = {"embedding_lr": _as_rate("learning_rate", learning_rate)}
        if dense_lr is not None:
            rates["dense_lr"] = _as_rate("dense_lr", dense_lr)
        numbers = {word: rate for word, rate in rates.items() if is_number(rate)}
        if dense_lr is not None and learning_rate == 0:
            raise InputError(
                "learning_rate is 0, and dense_lr follows it in proportion; give a number above 0, "
                "or trainable=False to the tables"
            )
        checked = Hyperparameters(
            l2=l2, r=r, zeta=zeta, bound=bound, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon,
            **numbers,
        )  # fmt: skip
        super().__init__(rates["embedding_lr"], beta_1, beta_2, epsilon, name=name)
        self._settings = RowSettings(
            clip=clip, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon, **checked.of_rows
        )
        self._update, self._dense_lr = update, rates.get("dense_lr")
        self._given = None
        if self._dense_lr is not None:  # the numbers that were given: both rates, or 1
            both = [numbers.get(word, 1.0) for word in ("embedding_lr", "dense_lr")]
            self._given = self.add_variable([2], name="given_rates")
            self._given.assign(both)
        self._tables: dict[int, Table] = {}

    @classmethod
    def of(cls, values: Hyperparameters, **arguments: Any) -> CowClip:
        """Build a CowClip from hyper-parameters, such as `cowclip_merlin.scale` returns.

        Args:
            values: all but `init_std` and `warmup_epochs`, which are for a schedule of yours.
            **arguments: other arguments of `CowClip`, such as `update`.

        Raises:
            InputError: the values have what this optimizer lacks.

        >>> from cowclip_merlin import scale
        >>> CowClip.of(scale("criteo", to=8192)).get_config()["l2"]
        8e-05
        """
        check_hyperparameters(values)
        if values.optimizer != "adam" or values.micro_batches > 1:
            what = "micro_batches" if values.optimizer == "adam" else values.optimizer
            raise InputError(f"the optimizer for Keras 3 has no {what}; use Adam and one part")
        same = "dense_lr", "l2", "beta_1", "beta_2", "epsilon", "r", "zeta", "bound"
        known = {word: getattr(values, word) for word in same}
        known |= {"learning_rate": values.embedding_lr, "clip": values.clip or "none"}
        return cls(**{**known, **arguments})

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Create the state of these weights; the tables of our layers hear of reads from now on.

        Raises:
            InputError: under a strategy of several devices.
        """
        if self.built:
            return
        if tf.distribute.has_strategy():
            raise InputError("CowClip for Keras 3 has no strategies: train on one device")
        super().build(variables)
        for variable in variables:
            if self._update == "exact" and hasattr(variable.value, "cowclip_table"):
                self._table(variable)

    def add_variable_from_reference(
        self, reference_variable: keras.Variable | Variable, *args: Any, **kwargs: Any
    ) -> keras.Variable:
        """Create a moment where its weights are; Keras would put that of a table on a GPU."""
        is_of_keras = isinstance(reference_variable, keras.Variable)
        weights = reference_variable.value if is_of_keras else reference_variable
        with tf.device(weights.device):
            return super().add_variable_from_reference(reference_variable, *args, **kwargs)

    def _table(self, variable: keras.Variable | Variable) -> Table:
        i = self._get_variable_index(variable)
        if i not in self._tables:
            w = self._trainable_variables[i]
            state = [x.value for x in (w, self._momentums[i], self._velocities[i])]
            self._tables[i] = Table(w.path, state, self._settings, self._update)
        return self._tables[i]

    def _backend_update_step(
        self,
        grads: Sequence[Gradient],
        trainable_variables: Sequence[keras.Variable],
        learning_rate: Tensor,
    ) -> None:
        """Make a step of the tables, and then that of the other weights."""
        if compat.in_xla():
            raise InputError("XLA cannot update rows of tables: use compile(jit_compile=False)")
        pairs = list(zip(grads, trainable_variables))
        sparse = [(g, v) for g, v in pairs if isinstance(g, tf.IndexedSlices)]
        dense = [(g, v) for g, v in pairs if not isinstance(g, tf.IndexedSlices)]
        for _, variable in dense:
            if variable.name.endswith("embeddings"):  # also rows that are not in the batch have one
                raise InputError(
                    f"{variable.path} has a dense gradient: use the table for lookups only, and "
                    "l2= of CowClip in place of a regularizer"
                )
        for _, variable in sparse:
            self._refuse(variable)
        done = []
        if sparse:
            tables = [self._table(v) for _, v in sparse]
            done = [step(tables, [g for g, _ in sparse], self._alpha(learning_rate))]
        with tf.control_dependencies(done):
            if dense:
                super()._backend_update_step(*zip(*dense), self._dense_rate(learning_rate))

    def _refuse(self, variable: keras.Variable) -> None:
        if self._update != "exact":
            return
        if not hasattr(variable.value, "cowclip_table"):
            raise InputError(
                f'{variable.path}: update="exact" needs cowclip_merlin.keras3.Embedding, which '
                'updates rows before it reads them; use it, or update="dense"'
            )
        if variable.constraint is not None:
            raise InputError(
                f"{variable.path} has a constraint, which changes rows outside of the optimizer; "
                'leave it out, or use update="dense"'
            )

    def _alpha(self, rate: Tensor) -> Tensor:
        """Return the rate with both bias corrections, as Keras's Adam computes it."""
        t = tf.cast(self.iterations + 1, tf.float32)
        powers = (tf.pow(tf.constant(x, tf.float32), t) for x in (self.beta_1, self.beta_2))
        first, second = (1 - power for power in powers)
        return tf.cast(rate, tf.float32) * tf.sqrt(second) / first

    def _dense_rate(self, rate: Tensor) -> Tensor:
        if self._dense_lr is None:
            return rate
        given = tf.convert_to_tensor(self._given)
        own = given[1] if is_number(self._dense_lr) else self._dense_lr(self._iterations)
        if callable(self._learning_rate):  # a schedule
            return own
        return own * (tf.convert_to_tensor(rate) / given[0])

    @property
    def clipped_share(self) -> float:
        """Share of the last step's rows that were clipped, over all tables."""
        factors = self._factors()
        return float((factors < 1).mean()) if len(factors) else 0.0

    @property
    def mean_clip_factor(self) -> float:
        """Mean factor of the last step's rows, over all tables; 1 if none was clipped."""
        factors = self._factors()
        return float(factors.mean()) if len(factors) else 1.0

    def _factors(self) -> np.ndarray:
        known = [table.steps.factors for table in self._tables.values()]
        return np.concatenate([np.ones(0), *known])

    def get_config(self) -> JsonObject:
        """Return the arguments; rates are those of the next step."""
        adam, rows = super().get_config(), self._settings
        names = "name", "learning_rate", "beta_1", "beta_2", "epsilon"
        rate = self._dense_lr
        if is_number(rate):
            rate = float(self._dense_rate(self.learning_rate))
        elif rate is not None:
            rate = keras.saving.serialize_keras_object(rate)
        own = {name: getattr(rows, name) for name in ("l2", "clip", "r", "zeta", "bound")}
        return {name: adam[name] for name in names} | own | {
            "dense_lr": rate, "update": self._update
        }  # fmt: skip

    @classmethod
    def from_config(cls, config: JsonObject, custom_objects: JsonObject | None = None) -> CowClip:
        """Build a CowClip from what `get_config` returned."""
        rates = ("learning_rate", "dense_lr")
        made = {
            name: keras.saving.deserialize_keras_object(config[name], custom_objects)
            for name in rates
            if isinstance(config[name], dict)
        }
        return cls(**{**config, **made})


def _as_rate(name: str, value: object) -> Rate:
    if isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
        return value
    if not is_number(value):
        raise InputError(
            f"{name} is {value!r}; give a number or a schedule of keras.optimizers.schedules"
        )
    return float(value)
