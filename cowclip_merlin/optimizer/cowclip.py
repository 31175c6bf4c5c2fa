"""CowClip as a Keras optimizer around one optimizer for embeddings and one for the rest."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cowclip_merlin import choices, compat
from cowclip_merlin.choices import ClipSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer import embedding_variables
from cowclip_merlin.optimizer.clip_statistics import summarize
from cowclip_merlin.optimizer.clipped_gradients import clipped
from cowclip_merlin.optimizer.clippy import bounded_step
from cowclip_merlin.optimizer.config import (
    Config,
    check,
    choose_backend,
    in_force,
    refuse_aggregators,
    row_optimizer,
)
from cowclip_merlin.optimizer.keras_contract import TwoOptimizers, cowclips_in
from cowclip_merlin.optimizer.lazy_adam import LazyAdam
from cowclip_merlin.optimizer.row_updates.row_state import RowStates

tf = compat.tensorflow()
_log = logging.getLogger("cowclip_merlin")


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class CowClip(TwoOptimizers):
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
        update: "dense" moves all rows at every step, as the paper does; "exact" gives the
            same numbers but touches only the rows in the batch, and replays what a row has
            missed before it is read (see `catch_up`, `flush`); "lazy" moves only the rows in
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
        fields: for "field", "adaptive_field" and "clippy" on a fused table: field -> number
            of rows, in the table's order. Any other table is one field.
        backend: what moves rows: "numba" on the CPU, "cupy" on a GPU, "tensorflow" (plain
            operations) anywhere; "auto" takes the fastest that can do it. `backend` says which.

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
        fields: Mapping[str, int] | None = None,
        backend: str = "auto",
        name: str = "CowClip",
    ) -> None:
        super().__init__(name)
        self._config = check(
            Config(
                clip_settings=ClipSettings(
                    r=r, zeta=zeta, bound=bound, lambda_rel=lambda_rel, lambda_abs=lambda_abs
                ),
                l2=l2,
                update=update,
                clip=clip,
                skip=embedding_variables.check_patterns(skip, "skip"),
                embeddings=embedding_variables.check_patterns(embeddings, "embeddings"),
                fields=None if fields is None else dict(fields),
                backend=backend,
            )
        )
        # Files of HDF5 write the class without the package that it is registered under.
        with tf.keras.utils.custom_object_scope({"RowAdam": LazyAdam, "LazyAdam": LazyAdam}):
            self.embedding_optimizer = compat.legacy_optimizer(embedding_optimizer)
        self.dense_optimizer = compat.legacy_optimizer(dense_optimizer)
        self._refuse_nested()
        if self.embedding_optimizer is self.dense_optimizer:
            raise InputError(
                "embedding_optimizer and dense_optimizer are one object, which would count each "
                "step twice; give two"
            )
        refuse_aggregators(self.embedding_optimizer, self.dense_optimizer)
        if update == "lazy":
            self.embedding_optimizer = row_optimizer(self.embedding_optimizer)
        self._unmatched = embedding_variables.Unmatched(
            embeddings=self._config.embeddings, skip=self._config.skip
        )
        self._in_force = in_force(self._config, self.embedding_optimizer)
        self._track_trackable(self.embedding_optimizer, "embedding_optimizer")
        self._track_trackable(self.dense_optimizer, "dense_optimizer")
        self.backend = choose_backend(self._config, self.embedding_optimizer)
        _log.info("update %s, backend %s", update, self.backend)
        self._states, self._caught_up = None, set()
        if self._in_force.update == "exact" or self.backend != "tensorflow":
            self._states = RowStates(self, self.backend, exact=update != "lazy")

    def _refuse_nested(self) -> None:
        for role in ("embedding_optimizer", "dense_optimizer"):
            if any(cowclips_in(getattr(self, role))):
                raise InputError(
                    f"{role} is or holds a CowClip, and a gradient is to be clipped once: give a "
                    "Keras optimizer such as tf.keras.optimizers.legacy.Adam(1e-4)"
                )

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
                HugeCTR's Sparse Operation Kit, a pattern of `embeddings` or `skip` matches no
                table, or no variable has a gradient.
        """
        given = list(grads_and_vars)
        embedding_variables.refuse_foreign(v for _, v in given)
        pairs = [
            (embedding_variables.with_shape(g), v)
            for g, v in embedding_variables.with_gradients(given)
        ]
        if not pairs:  # as in Keras: a model of which all is frozen
            return tf.no_op()
        self._refuse_unmatched(given)
        with tf.init_scope():
            # All at once: under a strategy, what is created among the operations of a step
            # would depend on them.
            for group, is_table in zip(
                embedding_variables.split(pairs, self._config.embeddings), (True, False)
            ):
                self._create_state([v for _, v in group], is_table)
        if experimental_aggregate_gradients:
            # Counts must be global before the clip, or N replicas would be another algorithm.
            pairs = list(self._aggregate_gradients(pairs))
        embedding_pairs, dense_pairs = embedding_variables.split(pairs, self._config.embeddings)
        steps = []
        if embedding_pairs and self._states is None:
            steps += self._step_of_tables(embedding_pairs)
        elif embedding_pairs:
            steps += self._step_of_rows(embedding_pairs)
        if dense_pairs:
            # After the rows: a gradient that is not finite must stop the whole step.
            with tf.control_dependencies([s for s in steps if s is not None]):
                steps.append(self._apply(self.dense_optimizer, dense_pairs))
        with tf.control_dependencies([s for s in steps if s is not None]):
            return self.iterations.assign_add(1, read_value=False)

    def _compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras, whose `fit` asks for them by `minimize`, right after its forward pass."""
        pairs = super()._compute_gradients(*args, **kwargs)
        if self._in_force.update == "exact":
            sparse = [v for g, v in pairs if isinstance(g, tf.IndexedSlices)]
            embedding_variables.refuse_never_caught_up(sparse, self._caught_up)
        return pairs

    def _refuse_unmatched(self, given: list[tuple[Any, Any]]) -> None:
        """A pattern of `embeddings` must match a variable, and one of `skip` a table."""
        if not self._unmatched:
            return
        found, _ = embedding_variables.split(
            [p for p in given if p[0] is not None], self._config.embeddings
        )
        # What has no gradient, as in a frozen layer, may be a table.
        may_be_tables = [v for _, v in found] + [v for g, v in given if g is None]
        for argument, variables in (
            ("embeddings", [v for _, v in given]),
            ("skip", may_be_tables),
        ):
            self._unmatched.look_at(argument, variables)
            self._unmatched.refuse(argument, variables)

    @staticmethod
    def _apply(optimizer: Any, pairs: list[tuple[Any, Any]]) -> Any:
        return optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)

    def _step_of_rows(self, pairs: list[tuple[Any, Any]]) -> list[Any]:
        """One step by the row engine; tensors that exist once it is made."""
        counted = [not self._skips(table) for _, table in pairs]
        steps, summary = self._states.engine.update(pairs, counted)
        if self._config.update == "dense":
            self._flush(wait=False)
        self._record(summary)
        return steps

    def catch_up(self, table: Any, ids: Any) -> None:
        """With `update="exact"`: bring rows up to date before the forward pass reads them.

        The models of this package do it by themselves. For a lookup of your own call it first,
        inside the same `tf.function`. With any other `update` it does nothing.

        Args:
            table: the variable, or several that are read at the same rows.
            ids: rows to be read, any shape, ragged or sparse, duplicates allowed.
        """
        if self._in_force.update == "exact":
            group = list(table) if isinstance(table, (list, tuple)) else [table]
            embedding_variables.refuse_foreign(group)
            self._caught_up.update(compat.stored(each).ref() for each in group)
            self._states.catch_up(group, ids)

    def expect(self, group: Sequence[Any]) -> None:
        """Tell the optimizer of these tables before they get gradients.

        The patterns of `embeddings` and `skip` are then looked for among them, too. With
        `update="exact"` their state is created, in this order, once: Keras's `get_weights` and
        `set_weights` of an optimizer know variables by their order, which should not depend on
        which row is read first.
        """
        embedding_variables.refuse_foreign(group)
        for argument in ("embeddings", "skip"):
            self._unmatched.look_at(argument, group)
        if self._in_force.update == "exact":
            with tf.init_scope():
                self._create_state(list(group), True)

    def flush(self) -> None:
        """With `update="exact"`: bring every row of every table up to date.

        Afterwards the variables hold what `update="dense"` would have left in them. Without it,
        a variable that is read directly shows each row as of the last step it took part in. A new
        optimizer that a checkpoint was restored into knows its tables after `expect` only.
        """
        self._warn_of_unknown_tables()
        self._flush(wait=True)

    def _flush(self, *, wait: bool) -> None:
        for table in self._states.tables if self._states else ():
            # The table's own, which need not be where this is called from: all replicas have rows.
            replicas = getattr(table, "distribute_strategy", None)
            if replicas is None or embedding_variables.in_replica_of(replicas):
                self._states.engine.flush(table, wait=wait)
            else:
                replicas.run(self._states.engine.flush, args=(table,), kwargs={"wait": wait})

    def _warn_of_unknown_tables(self) -> None:
        if self._in_force.update != "exact" or self._states.tables or not tf.executing_eagerly():
            return
        if int(self.iterations.numpy()):
            warnings.warn(
                'update="exact": this optimizer has made steps and knows no table, as after a '
                "checkpoint was restored; call expect([table, ...]) before flush()",
                stacklevel=3,
            )

    def _step_of_tables(self, pairs: list[tuple[Any, Any]]) -> list[Any]:
        """One step by the embedding optimizer: its gradients are clipped, or its updates."""
        config, clips_it = self._in_force, [not self._skips(table) for _, table in pairs]

        def apply(gradients: list[tuple[Any, Any]]) -> Any:
            return self._apply(self.embedding_optimizer, gradients)

        if choices.CLIPS[config.clip].acts_on == "update":
            steps = factors = bounded_step(pairs, config, clips_it, apply)
        else:
            gradients, factors = clipped(pairs, config, clips_it)
            steps = [apply(gradients)]
        self._record(summarize(factors))
        return steps

    def _skips(self, table: Any) -> bool:
        if self._config.skip is None:
            return table.shape[-1] == 1
        return embedding_variables.matches(table, self._config.skip)
