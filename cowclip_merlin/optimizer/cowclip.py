"""CowClip as a Keras optimizer around one optimizer for embeddings and one for the rest."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cowclip_merlin import choices, compat, kernels, workers
from cowclip_merlin.choices import RowSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.config import Config, check, is_plain_adagrad, resolve, row_slots
from cowclip_merlin.optimizer.embedding_tables import EmbeddingTables, refuse_foreign
from cowclip_merlin.optimizer.exchange import add_replicated_weight, exchange_gradients
from cowclip_merlin.optimizer.inner_optimizers import WrappingOptimizer, optimizers_of, warmup_steps
from cowclip_merlin.optimizer.keras_update import KerasEngine
from cowclip_merlin.optimizer.row_optimizers import VaryingAdam
from cowclip_merlin.optimizer.row_updates import gpu_ops
from cowclip_merlin.optimizer.row_updates.cpu_engine import AdagradEngine, CpuEngine
from cowclip_merlin.optimizer.row_updates.engine import Engine
from cowclip_merlin.optimizer.row_updates.gpu_engine import GpuEngine
from cowclip_merlin.optimizer.row_updates.tensorflow_engine import TensorFlowEngine
from cowclip_merlin.optimizer.unique_rows import BatchRead, ReadForm, UniqueRows, flat_ids
from cowclip_merlin.scaling import check_hyperparameters
from cowclip_merlin.tables import TableLayout
from cowclip_merlin.types import (
    IndexedSlices,
    JsonObject,
    KerasOptimizer,
    Operation,
    Pair,
    Tensor,
    Variable,
)

if TYPE_CHECKING:
    from cowclip_merlin.optimizer.embedding_tables import Pattern
    from cowclip_merlin.scaling import Hyperparameters

tf = compat.tensorflow()
_log = logging.getLogger("cowclip_merlin")


@tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
class CowClip(WrappingOptimizer):
    """Adam (or another Keras optimizer) with adaptive column-wise clipping of embeddings.

    One step is Algorithm 1 of Zheng et al. (arXiv 2204.06240). It sums gradients and counts over
    duplicates and replicas, and adds L2. Then it clips the gradient of each row to norm
    `max(cnt, 1) * max(r * ||w||, sqrt(d) * zeta)`, and applies the embedding optimizer.
    The dense optimizer updates all other weights with unchanged gradients.

    `learning_rate` is the dense optimizer's. If it changes, as by Keras's `LearningRateScheduler`
    or `ReduceLROnPlateau`, the embedding learning rate changes by the same factor.

    Args:
        embedding_optimizer: Keras 2 optimizer or its name.
        dense_optimizer: Keras 2 optimizer or its name.
        r: threshold relative to the norm of a row.
        zeta: lower bound of the row norm, per coordinate.
        l2: the penalty is `l2 * ||w||^2`; its gradient is added before the clip.
        update: "dense" updates all rows at every step, as the paper does. "exact" gives the
            same numbers but updates only the rows in the batch. It replays a row's missed
            steps before the row is read (see `catch_up`, `flush`). "lazy" updates only the
            rows in the batch. "exact" needs Adam; without L2, it also works with Adagrad and SGD,
            where it equals "lazy".
        clip: "cowclip", "none", one of Table 6 ("global", "field", "column",
            "adaptive_field"), or "clippy" (Tang et al., arXiv 2302.09178). Clippy scales the
            step of each field so that no coordinate w changes by more than
            `lambda_rel * |w| + lambda_abs`. No clip changes the steps of dense weights.
        bound: constant threshold of "global", "field" and "column".
        lambda_rel: relative bound of "clippy".
        lambda_abs: absolute bound of "clippy".
        skip: names, regular expressions or variables of tables that get L2 but no clip;
            by default the tables whose rows have one element.
        embeddings: names, regular expressions or variables of the tables; by default the
            variables whose gradient is a `tf.IndexedSlices`.
        fields: field -> number of rows, in the order of the rows, if tables are fused; or such
            a mapping for each name or regular expression of a table. "field",
            "adaptive_field", "clippy" and error messages use it. Without it, a table is one
            field. The fields that the models of this package register take precedence.
        backend: code that updates rows: "numba" on the CPU, "cupy" on a GPU, "tensorflow" (plain
            operations) anywhere; "auto" chooses the fastest possible one. `config` has the choice.
        micro_batches: equal parts of a batch, in the order of the gradient's entries. Adam's
            second moment of a row takes the sum of their squared gradients, and not the square
            of their sum (Wang and Aitchison, arXiv 2402.18824). It needs row updates: "exact", or
            the backend "numba".
        link_rates: whether a change of the dense learning rate changes the embedding learning rate
            by the same factor, if both are numbers. Schedules are never linked: give one to each
            optimizer.

    Attributes:
        config: settings of the steps, with "auto" resolved.
        tables: the embedding tables, which of them are clipped, and their fields.
        reserved_rows: rows that a growing table reserves, most of them without values; or None.

    Raises:
        InputError: if an argument is out of range or unknown, or (when gradients are applied) an
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
        embedding_optimizer: KerasOptimizer | str | JsonObject = "adam",
        dense_optimizer: KerasOptimizer | str | JsonObject = "adam",
        *,
        r: float = RowSettings.r,
        zeta: float = RowSettings.zeta,
        l2: float = 1e-5,
        update: str = "dense",
        clip: str = "cowclip",
        bound: float = RowSettings.bound,
        lambda_rel: float = RowSettings.lambda_rel,
        lambda_abs: float = RowSettings.lambda_abs,
        skip: Sequence[Pattern] | None = None,
        embeddings: Sequence[Pattern] | None = None,
        fields: Mapping[str, int | Mapping[str, int]] | None = None,
        backend: str = "auto",
        micro_batches: int = 1,
        link_rates: bool = True,
        name: str = "CowClip",
    ) -> None:
        asked = Config(
            l2=l2, update=update, clip=clip, r=r, zeta=zeta, bound=bound, lambda_rel=lambda_rel,
            lambda_abs=lambda_abs, backend=backend, micro_batches=micro_batches,
        )  # fmt: skip
        both = embedding_optimizer, dense_optimizer
        super().__init__(name, *both, asked=asked, link_rates=link_rates)
        self.config = resolve(asked, self.embedding_optimizer)
        _log.info("update %s, backend %s", self.config.update, self.backend)
        self.tables = EmbeddingTables(embeddings=embeddings, skip=skip, fields=fields)
        self._engine = self._engine_of(self.config)
        self._of_clip: list[Variable] = []  # share of clipped rows, mean factor

    @classmethod
    def of(
        cls,
        values: Hyperparameters,
        *,
        steps_per_epoch: int | None = None,
        clip: str | None = None,
        **arguments: Any,
    ) -> CowClip:
        """Build a CowClip from all of these hyper-parameters but `init_std`.

        Args:
            values: such as `scale` returns.
            steps_per_epoch: converts the warm-up to steps; only without warm-up it may be missing.
            clip: in place of that of `values`. Without either, there is none.
            **arguments: other arguments of `CowClip`, such as `update`.

        Raises:
            InputError: if there is a warm-up, but no number of steps or too many, or `values` are
                none.

        >>> from cowclip_merlin import scale
        >>> opt = CowClip.of(scale("criteo", to=8192), steps_per_epoch=100, update="lazy")
        >>> opt.config.l2, [round(float(opt.learning_rate(step)), 5) for step in (0, 50, 100)]
        (8e-05, [0.0, 0.00113, 0.00226])
        """
        check_hyperparameters(values)
        if values.warmup_epochs and steps_per_epoch is None:
            raise InputError(
                f"warmup_epochs is {values.warmup_epochs:g}, but steps_per_epoch is missing; give "
                "it, or hyper-parameters with warmup_epochs=0"
            )
        pair = optimizers_of(values, warmup_steps(values, steps_per_epoch or 0))
        return cls(*pair, clip=clip or values.clip or "none", **values.of_rows, **arguments)

    def _engine_of(self, config: Config) -> Engine:
        """Return what makes the steps with these settings."""
        adam, backend = self.embedding_optimizer, config.backend
        parts = {"config": config, "tables": self.tables, "optimizer": adam}
        if config.by_keras:
            return KerasEngine(**parts)
        parts |= {"add_weight": self.add_weight, "unclipped": replace(config, clip="none")}
        if backend == "tensorflow":
            return TensorFlowEngine(**parts)
        if backend == "cupy":
            gpu_ops.require_cupy()
            operations, load_kernels = gpu_ops.operations(), gpu_ops.load_kernels
            owner = operations.new_owner()
            return GpuEngine(operations=operations, load_kernels=load_kernels, owner=owner, **parts)
        kind = AdagradEngine if is_plain_adagrad(adam) else CpuEngine
        return kind(kernels=kernels.load(backend), **parts)

    @contextmanager
    def tracing_with(self, **changes: float) -> Iterator[None]:
        """Give the steps that are traced within the block other numbers, such as another L2.

        All steps share their state, so a training can change its batch size: trace one function
        for each size, and set the learning rates before a step. Not with `update="exact"`, whose
        postponed steps know one L2 only.

        Args:
            **changes: thresholds of clips, `l2` and `micro_batches`; with two `VaryingAdam` as
                inner optimizers also `beta_1`, `beta_2` and `squares`, which both get.

        Raises:
            InputError: if `update` is "exact", or another number is given.
        """
        if self.config.update == "exact":
            raise InputError('tracing_with: update="exact" has one L2; use "lazy" or "dense"')
        inner = [x for x in self._by_role().values() if isinstance(x, VaryingAdam)]
        own = {x: changes[x] for x in ("beta_1", "beta_2", "squares") if x in changes}
        if unknown := set(changes) - {*choices.THRESHOLDS, "l2", "micro_batches", *own}:
            raise InputError(f"tracing_with: {', '.join(sorted(unknown))} cannot change")
        if own and len(inner) < 2:
            raise InputError(f"tracing_with: {', '.join(own)} needs two optimizers VaryingAdam")
        before = self.config, self._engine, [each.moments for each in inner]
        config = replace(self.config, **changes)
        check(config, self.embedding_optimizer)
        self.config, self._engine = config, self._engine_of(config)
        for each in inner:
            each.moments = replace(each.moments, **own)
        try:
            yield
        finally:
            self.config, self._engine, moments = before
            for each, earlier in zip(inner, moments):
                each.moments = earlier

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(
        self,
        grads_and_vars: Iterable[Pair],
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> Operation:
        """Make one step of Algorithm 1.

        Args:
            grads_and_vars: pairs; the gradient of an embedding table is a `tf.IndexedSlices`
                with one entry per occurrence of an id, values [n, d].
            name: name of the operation.
            experimental_aggregate_gradients: sum gradients over replicas first; False if the
                caller has done so.

        Raises:
            InputError: if an embedding table has a dense gradient, occurs twice or belongs to
                HugeCTR's Sparse Operation Kit, a pattern of `embeddings`, `skip` or `fields`
                matches no table, `fields` do not fill a table, or no variable has a gradient.
        """
        pairs, groups = self.tables.check_step(list(grads_and_vars))
        if not pairs:  # as in Keras, for a model without trainable layers
            return tf.no_op()
        # Create all state first: under a strategy, variables that are created within a step would
        # depend on its operations.
        self._create_state(*([v for _, v in group] for group in groups))
        if experimental_aggregate_gradients:
            # An aggregator may return other gradients, dense ones of a table, too: split again.
            groups = self.tables.split(list(self._aggregate_gradients(pairs)))
            group, together = workers.current(), self.tables.read_together
            if group is not None:
                groups = exchange_gradients(group, *groups, together, self._sum_rows)
        table_pairs, dense_pairs = groups
        steps: list[Tensor | Operation] = []
        if table_pairs:
            steps, summary = self._engine.step(table_pairs)
            if self.config.update == "dense" and not is_plain_adagrad(self.embedding_optimizer):
                # Rows are never behind, and Adagrad has stepped them all.
                self._engine.flush(wait=False)
            for variable, value in zip(self._of_clip, summary or ()):
                variable.assign(value)
        if dense_pairs:
            # After the tables: a gradient that is not finite must stop the whole step.
            with tf.control_dependencies([s for s in steps if s is not None]):
                steps = [*steps, self._engine.step_dense(self.dense_optimizer, dense_pairs)]
        with tf.control_dependencies([s for s in steps if s is not None]):
            return self.iterations.assign_add(1, read_value=False)

    def _sum_rows(self, slices: IndexedSlices) -> UniqueRows:
        """Sum this worker's gradients of equal ids, which has its share of the micro-batches."""
        parts, group = self.config.micro_batches, workers.current()
        if parts == 1 or self.config.by_keras:
            return self._engine.sum_rows(slices)
        return self._engine.sum_rows(slices, max(1, round(parts / (group.size if group else 1))))

    def _compute_gradients(self, *args: Any, **kwargs: Any) -> list[Pair]:
        """Compute gradients as in Keras; `fit` calls this right after its forward pass."""
        pairs = super()._compute_gradients(*args, **kwargs)
        for gradient, table in pairs if self.config.update == "exact" else ():
            if isinstance(gradient, tf.IndexedSlices) and not self.tables.of(table).caught_up:
                raise InputError(
                    f'update="exact": nothing brings rows of {table.name!r} up to date before the '
                    "forward pass reads them: use the models of cowclip_merlin.models, or call "
                    'catch_up(table, ids) before each lookup, or use update="dense" or "lazy"'
                )
        return pairs

    def register_tables(
        self,
        tables: Sequence[Variable],
        layouts: Sequence[TableLayout] | None = None,
        lookups: Sequence[Hashable] | None = None,
    ) -> None:
        """Register tables before they get gradients.

        The models of this package do this when they are attached. With `update="exact"`, the
        optimizer creates the state of these tables in this order. It also matches the patterns
        of `embeddings`, `skip` and `fields` against them.

        Args:
            tables: variables.
            layouts: the fields of each table; they take precedence over `fields`.
            lookups: for each table a value that it shares with the tables that are always read
                at the same ids. Several workers then send these ids once.
        """
        self.tables.register(tables, layouts, lookups)

    def catch_up(self, table: Variable | Sequence[Variable], ids: Tensor) -> None:
        """Bring rows up to date before a forward pass reads them, with `update="exact"`.

        The models of this package do this. Before a custom lookup, call it inside the same
        `tf.function`. With any other `update` it does nothing.

        Args:
            table: the variable, or several variables that are read at the same rows.
            ids: numbers of the rows to read, any shape, ragged or sparse, with duplicates.
        """
        if self.config.update == "exact":
            tables = list(table) if isinstance(table, (list, tuple)) else [table]
            refuse_foreign(tables)
            known = [self.tables.of(each) for each in tables]
            if any(each.state is None for each in known):
                self._create_missing(self.tables.registered, *([each] for each in tables))
            for each in known:
                each.caught_up = True
            self._engine.catch_up(tables, flat_ids(ids))

    @property
    def reads_batches(self) -> bool:
        """Whether `read_batch` can read a batch: only the backend "cupy" can, in one process."""
        return self._engine.reads_batches and workers.current() is None

    def read_batch(
        self, tables: Sequence[Variable], ids: Tensor, numbers: Tensor, form: ReadForm
    ) -> BatchRead | None:
        """Read all that the layers of a model need of a batch at once, if the backend can.

        `BatchRead.pairs` are then the tables' pairs for `apply_gradients`, without aggregation, for
        one step: a second one would start from the same rows and undo the first.

        Args:
            tables: of the embeddings, and if there are id weights, of these.
            ids: id of each occurrence, integer [b, F].
            numbers: continuous features, float32 [b, C].
            form: what to read.

        Returns:
            The read; None if the backend cannot, or if a strategy or workers share the batch.
        """
        others = self.tables.group(tables)[1]  # which the dense optimizer trains
        if others or not self.reads_batches:
            return None
        self._create_missing(self.tables.registered, *([each] for each in tables))
        return self._engine.read(tables, ids, numbers, form)

    def flush(self) -> None:
        """Bring every row of every table up to date, with `update="exact"`.

        Then the variables have the values of `update="dense"`. Without a flush, each row of a
        variable has its value after the last step that updated it. After restoring a checkpoint
        into a new optimizer, call `register_tables` first.
        """
        if self.config.update == "exact" and tf.executing_eagerly():
            # A restored checkpoint may contain state of registered tables before this process makes
            # its first step.
            waiting = [t for t in self.tables.registered if self.tables.of(t).state is None]
            if (waiting or not self.tables.with_state) and self.iterations.numpy():
                self._create_missing(waiting)
                if not self.tables.with_state:
                    warnings.warn(
                        'update="exact": this optimizer has made steps and knows no table, as '
                        "after a checkpoint was restored; call register_tables([table, ...]) "
                        "before flush()",
                        stacklevel=2,
                    )
        self._engine.flush()

    def create_state(self, variables: Iterable[Variable]) -> None:
        """Create all state of these variables, for `set_weights`; else the first step does it."""
        self._create_state(*self.tables.group(variables))

    _create_all_weights = create_state  # Keras calls this before it loads weights

    def _create_own_weights(self) -> None:
        _ = self.iterations  # created on first access
        for role, optimizer in self._by_role().items():
            # Both counters have the name "iter", but names in an HDF5 file must be unique.
            with tf.name_scope(role):
                _ = optimizer.iterations
        on_read = {"synchronization": tf.VariableSynchronization.ON_READ}
        for name in () if self._of_clip else ("clipped_share", "mean_clip_factor"):
            weight = add_replicated_weight(self.add_weight, name, [], tf.float32, **on_read)
            self._of_clip.append(weight)

    def _create_state(self, tables: list[Variable], dense: list[Variable] | None = None) -> None:
        """Create counters, the inner optimizers' slots, and the state of rows."""
        with tf.init_scope():
            self._create_own_weights()
            for optimizer, variables in zip(self._by_role().values(), (tables, dense)):
                if variables:
                    optimizer._create_all_weights(variables)
                elif variables is not None:  # Nadam fails to create slots for an empty list
                    optimizer._create_hypers()
            self._engine.create(tables)

    def _create_missing(self, *groups: Sequence[Variable]) -> None:
        """Create missing state of tables, group by group."""
        for group in groups:
            missing = [table for table in group if self.tables.of(table).state is None]
            if missing:
                self._create_state(missing)

    @property
    def backend(self) -> str:
        """The code that updates rows: "numba", "cupy" or "tensorflow"."""
        return self.config.backend

    @property
    def row_slots(self) -> tuple[str, ...]:
        """Names of what the embedding optimizer keeps for each row of a table."""
        return row_slots(self.embedding_optimizer)

    @property
    def clipped_share(self) -> Variable:
        """Share of the batch's distinct rows that the last step clipped, scalar variable."""
        self._create_own_weights()
        return self._of_clip[0]

    @property
    def mean_clip_factor(self) -> Variable:
        """Mean factor of the batch's distinct rows in the last step, scalar variable."""
        self._create_own_weights()
        return self._of_clip[1]
