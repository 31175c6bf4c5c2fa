"""CowClip as a Keras optimizer around one optimizer for embeddings and one for the rest."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.choices import ClipSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer import inner_optimizers
from cowclip_merlin.optimizer.clip_statistics import ClipStatistics
from cowclip_merlin.optimizer.config import Config, resolve
from cowclip_merlin.optimizer.embedding_tables import EmbeddingTables
from cowclip_merlin.optimizer.inner_optimizers import InnerOptimizers, refused_setting
from cowclip_merlin.optimizer.replica import apply_locally, sum_gradients
from cowclip_merlin.optimizer.row_updates.row_update import make_update
from cowclip_merlin.tables import TableLayout

tf = compat.tensorflow()
_log = logging.getLogger("cowclip_merlin")


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class CowClip(tf.keras.optimizers.legacy.Optimizer):
    """Adam (or another Keras optimizer) with adaptive column-wise clipping of embeddings.

    One step is Algorithm 1 of Zheng et al. (arXiv 2204.06240): gradients and counts are
    summed over duplicates and replicas, L2 is added, each row is clipped to
    `max(cnt, 1) * max(r * ||w||, sqrt(d) * zeta)`, and the embedding optimizer is applied.
    All other weights go to the dense optimizer untouched.

    `learning_rate`, and with it Keras's `LearningRateScheduler` and `ReduceLROnPlateau`, is
    the dense optimizer's; the embedding learning rate stays where it is.

    Args:
        embedding_optimizer: Keras 2 optimizer or its name.
        dense_optimizer: Keras 2 optimizer or its name.
        r: threshold relative to the norm of a row.
        zeta: lower bound of the row norm, per coordinate.
        l2: the penalty is `l2 * ||w||^2`; its gradient goes in before the clip.
        update: "dense" updates all rows at every step, as the paper does; "exact" gives the
            same numbers but touches only the rows in the batch, and replays what a row has
            missed before it is read (see `catch_up`, `flush`); "lazy" updates only the rows in
            the batch. "exact" needs Adam, or without L2 Adagrad or SGD, for which it is "lazy".
        clip: "cowclip", "none", one of Table 6: "global", "field", "column",
            "adaptive_field", or "clippy" (Tang et al., arXiv 2302.09178), which scales the
            step of each field so that no coordinate w moves by more than
            `lambda_rel * |w| + lambda_abs`; dense weights keep their steps.
        bound: constant threshold of "global", "field" and "column".
        lambda_rel: of "clippy".
        lambda_abs: of "clippy".
        skip: names, regular expressions or variables of tables that get L2 but no clip;
            by default the tables whose rows have one element.
        embeddings: names, regular expressions or variables of the tables; by default the
            variables whose gradient is a `tf.IndexedSlices`.
        fields: of fused tables, for "field", "adaptive_field", "clippy" and errors: field ->
            number of rows, in the order of the rows, of every table; or such a mapping for
            each name or regular expression of a table. Without, a table is one field. The
            models of this package register their own, which win.
        backend: what updates rows: "numba" on the CPU, "cupy" on a GPU, "tensorflow" (plain
            operations) anywhere; "auto" takes the fastest that can do it. `config` says which.

    Attributes:
        config: what the steps follow, with "auto" and the like resolved.
        tables: which variables are tables, which of them are clipped, and their fields.

    Raises:
        InputError: an argument is out of range or unknown, or (when gradients are applied) an
            embedding table has a dense gradient.

    Example:
        >>> table = tf.Variable(tf.ones([5, 2]), name="embeddings")
        >>> opt = CowClip(embedding_optimizer="sgd", dense_optimizer="sgd", l2=0.0)
        >>> g = tf.IndexedSlices(tf.constant([[30.0, 40.0]]), tf.constant([3]), (5, 2))
        >>> _ = opt.apply_gradients([(g, table)])
        >>> opt.clipped_share.numpy(), opt.mean_clip_factor.numpy().round(4)
        (1.0, 0.0283)
    """

    def __init__(
        self,
        embedding_optimizer: Any = "adam",
        dense_optimizer: Any = "adam",
        *,
        r: float = ClipSettings.r,
        zeta: float = ClipSettings.zeta,
        l2: float = 1e-5,
        update: str = "dense",
        clip: str = "cowclip",
        bound: float = ClipSettings.bound,
        lambda_rel: float = ClipSettings.lambda_rel,
        lambda_abs: float = ClipSettings.lambda_abs,
        skip: Sequence[Any] | None = None,
        embeddings: Sequence[Any] | None = None,
        fields: Mapping[str, Any] | None = None,
        backend: str = "auto",
        name: str = "CowClip",
    ) -> None:
        super().__init__(name)
        thresholds = ClipSettings(
            r=r, zeta=zeta, bound=bound, lambda_rel=lambda_rel, lambda_abs=lambda_abs
        )
        self._asked = Config(
            clip_settings=thresholds, l2=l2, update=update, clip=clip, backend=backend
        )
        inner = InnerOptimizers(embedding_optimizer, dense_optimizer, update=update, outer=CowClip)
        self._inner, self.embedding_optimizer, self.dense_optimizer = inner, *inner.both
        self.config = resolve(self._asked, self.embedding_optimizer)
        _log.info("update %s, backend %s", update, self.backend)
        self.tables = EmbeddingTables(embeddings=embeddings, skip=skip, fields=fields)
        self._statistics = ClipStatistics(self.add_weight)
        self._update = make_update(
            config=self.config, tables=self.tables, optimizer=self.embedding_optimizer,
            add_weight=self.add_weight, create_state=self._create_state,
        )  # fmt: skip
        self._track_trackable(self.embedding_optimizer, "embedding_optimizer")
        self._track_trackable(self.dense_optimizer, "dense_optimizer")

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """One step of Algorithm 1.

        Args:
            grads_and_vars: pairs; the gradient of an embedding table is a `tf.IndexedSlices`
                with one entry per occurrence of an id, values [n, d].
            name: name of the operation.
            experimental_aggregate_gradients: sum gradients over replicas first; False if the
                caller has done so.

        Raises:
            InputError: an embedding table has a dense gradient, is there twice or belongs to
                HugeCTR's Sparse Operation Kit, a pattern of `embeddings`, `skip` or `fields`
                matches no table, `fields` do not fill a table, or no variable has a gradient.
        """
        pairs = self.tables.check_step(list(grads_and_vars))
        if not pairs:  # as in Keras: a model of which all is frozen
            return tf.no_op()
        with tf.init_scope():
            # All at once: under a strategy, what is created among the operations of a step
            # would depend on them.
            for group, tables in zip(self.tables.split(pairs), (True, False)):
                self._create_state([v for _, v in group], tables=tables)
        if experimental_aggregate_gradients:
            pairs = sum_gradients(pairs, self._aggregate_gradients)
        table_pairs, dense_pairs = self.tables.split(pairs)
        steps: list[Any] = []
        if table_pairs:
            steps, summary = self._update.apply(table_pairs)
            self._statistics.record(summary)
        if dense_pairs:
            # After the tables: a gradient that is not finite must stop the whole step.
            with tf.control_dependencies([s for s in steps if s is not None]):
                steps = [*steps, apply_locally(self.dense_optimizer, dense_pairs)]
        with tf.control_dependencies([s for s in steps if s is not None]):
            return self.iterations.assign_add(1, read_value=False)

    def _compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras, whose `fit` asks for them by `minimize`, right after its forward pass."""
        pairs = super()._compute_gradients(*args, **kwargs)
        sparse = [v for g, v in pairs if isinstance(g, tf.IndexedSlices)]
        self._update.refuse_never_caught_up(sparse)
        return pairs

    def register_tables(
        self, tables: Sequence[Any], layouts: Sequence[TableLayout] | None = None
    ) -> None:
        """Tell the optimizer its tables before they get gradients.

        The models of this package do it when they are attached. With `update="exact"` the state
        of these tables is then created in this order, whichever is read first. The patterns of
        `embeddings`, `skip` and `fields` are looked for among them, too.

        Args:
            tables: variables.
            layouts: the fields of each table; they win over `fields`.
        """
        self.tables.register(tables, layouts)

    def catch_up(self, table: Any, ids: Any) -> None:
        """With `update="exact"`: bring rows up to date before the forward pass reads them.

        The models of this package do it by themselves. For a lookup of your own call it first,
        inside the same `tf.function`. With any other `update` it does nothing.

        Args:
            table: the variable, or several that are read at the same rows.
            ids: rows to be read, any shape, ragged or sparse, duplicates allowed.
        """
        self._update.catch_up(table, ids)

    def flush(self) -> None:
        """With `update="exact"`: bring every row of every table up to date.

        Afterwards the variables hold what `update="dense"` would have left in them. Without it,
        a variable that is read directly shows each row as of the last step it took part in. After
        a checkpoint was restored into a new optimizer, call `register_tables` first.
        """
        self._update.flush(lambda: int(self.iterations.numpy()))

    def create_state(self, variables: Iterable[Any]) -> None:
        """Create all state of these variables now, for `set_weights`; the first step does it."""
        tables, dense = self.tables.group(variables)
        self._create_state(tables)
        self._create_state(dense, tables=False)

    _create_all_weights = create_state  # Keras calls it before it loads weights

    def _create_own_weights(self) -> None:
        _ = self.iterations  # created on first access
        self._inner.create_counters()
        self._statistics.create()

    def _create_state(self, variables: list[Any], *, tables: bool = True) -> None:
        """Own counters, the inner optimizer's slots, and what is kept for rows."""
        self._create_own_weights()
        self._inner.create_slots(variables, tables=tables)
        if tables:
            self._update.create_state(variables)

    @property
    def backend(self) -> str:
        """What updates rows: "numba", "cupy" or "tensorflow"."""
        return self.config.backend

    @property
    def clipped_share(self) -> Any:
        """Share of the batch's distinct rows that the last step clipped, scalar variable."""
        self._create_own_weights()
        return self._statistics.share

    @property
    def mean_clip_factor(self) -> Any:
        """Mean factor of the batch's distinct rows in the last step, scalar variable."""
        self._create_own_weights()
        return self._statistics.mean_factor

    @property
    def learning_rate(self) -> Any:
        """The dense optimizer's learning rate: a variable or a schedule."""
        return self.dense_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.dense_optimizer.learning_rate = value

    lr = learning_rate
    clipnorm = refused_setting("clipnorm")
    clipvalue = refused_setting("clipvalue")
    global_clipnorm = refused_setting("global_clipnorm")

    @property
    def iterations(self) -> Any:
        """Steps made. The two optimizers inside count theirs, which their schedules follow."""
        return super().iterations

    @iterations.setter
    def iterations(self, _: Any) -> None:
        raise InputError(
            "the counters of CowClip cannot be replaced: assign to iterations, "
            "embedding_optimizer.iterations and dense_optimizer.iterations"
        )

    @property
    def weights(self) -> list[Any]:
        """Own counters, then the embedding optimizer's and the dense optimizer's variables."""
        return self._weights + self._inner.weights

    def variables(self) -> list[Any]:
        """The same: Keras's own would leave out what is in the two optimizers."""
        return self.weights

    # Not get_slot_names, too: checkpoints would then hold each slot a second time.
    def get_slot(self, var: Any, slot_name: str) -> Any:
        """The state that one of the two optimizers keeps beside a variable, such as Adam's "m".

        With `update="exact"` call `flush` first: a row may not have made all its steps yet.
        """
        return self._inner.get_slot(var, slot_name)

    def get_weights(self) -> list[Any]:
        """As in Keras, after `flush`: steps that rows have missed are not among the weights."""
        self.flush()
        return super().get_weights()

    def set_weights(self, weights: list[Any]) -> None:
        """As in Keras; steps that rows had missed do not change what is set."""
        self.flush()
        super().set_weights(weights)

    def get_config(self) -> dict[str, Any]:
        """The arguments as they were given; variables among them are refused."""
        parts = self._inner.get_config() | self._asked.as_dict() | self.tables.get_config()
        return {"name": self._name} | parts

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """As in Keras; one learning rate, as Merlin writes it for Horovod, is refused."""
        inner_optimizers.refuse_one_rate(config)
        return super().from_config(config, custom_objects=custom_objects)

    def __repr__(self) -> str:
        """What Keras 3 quotes when it refuses this optimizer."""
        return inner_optimizers.keras_2_words(self)
