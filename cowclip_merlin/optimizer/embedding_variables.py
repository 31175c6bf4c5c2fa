"""Which variables are embedding tables, and which of them are not clipped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError

tf = compat.tensorflow()


def matches(variable: Any, patterns: Sequence[Any]) -> bool:
    """Whether a pattern is this variable itself, or a regular expression found in its name."""
    return any(
        re.search(p, variable.name) is not None if isinstance(p, str) else p is variable
        for p in patterns
    )


def check_patterns(patterns: Sequence[Any] | None, argument: str) -> tuple[Any, ...] | None:
    """Patterns as a tuple.

    Raises:
        InputError: an entry is neither a regular expression nor a variable.
    """
    if patterns is None:
        return None
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for p in patterns:
        if isinstance(p, str):
            try:
                re.compile(p)
            except re.error as error:
                raise InputError(f"{argument}: {p!r} is no regular expression ({error})") from error
        elif not hasattr(p, "assign"):
            raise InputError(f"{argument}: {p!r} is neither a name, a regex nor a variable")
    return patterns


class Unmatched:
    """The regular expressions of `embeddings` and `skip` that have matched no variable yet.

    Args:
        **patterns: by argument, as `check_patterns` returns them.
    """

    def __init__(self, **patterns: tuple[Any, ...] | None) -> None:
        self._left = {
            argument: [p for p in some or () if isinstance(p, str)]
            for argument, some in patterns.items()
        }

    def __bool__(self) -> bool:
        """Whether there are any."""
        return any(self._left.values())

    def look_at(self, argument: str, variables: Sequence[Any]) -> None:
        """Forget the patterns of this argument that match one of the variables."""
        left = self._left[argument]
        left[:] = [p for p in left if not any(matches(v, (p,)) for v in variables)]

    def refuse(self, argument: str, variables: Sequence[Any]) -> None:
        """Refuse a pattern that has matched none of the variables so far.

        Raises:
            InputError: there is one; the message names it and these variables.
        """
        for pattern in self._left[argument]:
            names = ", ".join(
                [repr(v.name) for v in variables[:4]] + ["..."] * (len(variables) > 4)
            )
            raise InputError(
                f"{argument}: {pattern!r} matches no table of this step (looked at "
                f"{names or 'none'}): correct or remove it; if its table gets gradients in another "
                "call of apply_gradients, call expect([table]) before"
            )


def refuse_dense(variable: Any) -> None:
    """Refuse a dense gradient of an embedding table: its counts are lost.

    Raises:
        InputError: always; the message names the variable and the remedy.
    """
    raise InputError(
        f"the gradient of embedding table {variable.name!r} {tuple(variable.shape)} is dense, so "
        "the ids' counts are lost: remove the Keras regularizer (l2(0), too: see docs/training.md) "
        "or L2 term from it and pass l2=... to CowClip, look rows up with tf.gather or an "
        "embedding layer, and accumulate gradients by concatenating their values and indices, not "
        "by tf.add_n"
    )


def _refuse_other_ranks(variable: Any) -> None:
    if len(variable.shape) != 2:
        raise InputError(
            f"embedding table {variable.name!r} has the shape {tuple(variable.shape)}: give it "
            "[rows, d], and [rows, 1] for one number a row"
        )


def _refuse_twice(variables: Sequence[Any]) -> None:
    seen: set[Any] = set()
    for variable in variables:
        if variable.ref() in seen:
            raise InputError(
                f"embedding table {variable.name!r} {tuple(variable.shape)} has two gradients in "
                "one step, and counts are those of both: give each variable once"
            )
        seen.add(variable.ref())


def refuse_foreign(variables: Iterable[Any]) -> None:
    """Refuse variables whose gradients or steps are not those of TensorFlow and Keras 2.

    Raises:
        InputError: a variable of HugeCTR's Sparse Operation Kit, or of Keras 3.
    """
    for variable in variables:
        homes = {kind.__module__.partition(".")[0] for kind in type(variable).__mro__}
        if "sparse_operation_kit" in homes:
            raise InputError(
                f"table {variable.name!r} belongs to HugeCTR's Sparse Operation Kit, which sums "
                "the gradients of equal ids before CowClip could count them: use an embedding "
                "layer of Keras or Merlin"
            )
        if "keras" in homes and not isinstance(variable, tf.Variable):
            raise InputError(
                f"variable {variable.name!r} belongs to Keras 3: import cowclip_merlin, "
                "and build the model by `from tensorflow import keras`, not by `import keras`"
            )


def refuse_never_caught_up(variables: Sequence[Any], caught_up: set[Any]) -> None:
    """Refuse to train by `update="exact"` on rows that nobody brings up to date.

    Args:
        variables: tables that the forward pass has read.
        caught_up: references of the tables that `catch_up` was called for.

    Raises:
        InputError: a table is not among them.
    """
    for variable in variables:
        if compat.stored(variable).ref() not in caught_up:
            raise InputError(
                f'update="exact": nothing brings rows of {variable.name!r} up to date before the '
                "forward pass reads them: use the models of cowclip_merlin.models, or call "
                'catch_up(table, ids) before each lookup, or take update="dense" or "lazy"'
            )


def with_gradients(grads_and_vars: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The pairs that have a gradient; as Keras does, says which variables have none.

    Raises:
        InputError: there are variables, and none has a gradient.
    """
    given = list(grads_and_vars)
    found = [(gradient, variable) for gradient, variable in given if gradient is not None]
    without = ", ".join(variable.name for gradient, variable in given if gradient is None)
    if without and not found:
        raise InputError(
            f"No gradients provided for any variable ({without:.500}): no loss was given, or it "
            "does not depend on them"
        )
    if without:
        tf.get_logger().warning("Gradients do not exist for variables %.500s", without)
    return found


def with_shape(gradient: Any) -> Any:
    """The gradient, its dense shape (if it has one) a tensor, as collective operations need it."""
    if not isinstance(gradient, tf.IndexedSlices) or gradient.dense_shape is None:
        return gradient
    shape = tf.convert_to_tensor(gradient.dense_shape)
    return tf.IndexedSlices(gradient.values, gradient.indices, shape)


def strategy_of(table: Any) -> Any | None:
    """The `tf.distribute` strategy that a variable was created under."""
    return getattr(table, "distribute_strategy", None)


def beside(table: Any, *, cpu: bool = False) -> Any:
    """A scope that places variables on the table's device, or on the CPU.

    A strategy has its own ways to place variables.
    """
    if strategy_of(table) is not None:
        return nullcontext()
    return tf.device("CPU:0" if cpu else table.device)


def in_replica_of(strategy: Any) -> bool:
    """Whether this runs in one replica of that strategy."""
    here = tf.distribute.get_strategy() is strategy
    return here and not tf.distribute.in_cross_replica_context()


def looks_like_table(variable: Any) -> bool:
    """Keras and Merlin call the weights of an embedding layer `embeddings`."""
    name = variable.name.rsplit("/", 1)[-1].split(":")[0]
    return name.endswith("embeddings") and len(variable.shape) == 2


def split(
    grads_and_vars: Sequence[tuple[Any, Any]], embeddings: tuple[Any, ...] | None
) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
    """Pairs of the embedding tables, and all others.

    Raises:
        InputError: a table has a dense gradient, two gradients, or is no matrix.
    """
    tables, dense = [], []
    for gradient, variable in grads_and_vars:
        sparse = isinstance(gradient, tf.IndexedSlices)
        named = matches(variable, embeddings) if embeddings is not None else sparse
        if not sparse and (named or (embeddings is None and looks_like_table(variable))):
            refuse_dense(variable)
        (tables if named else dense).append((gradient, variable))
    for _, variable in tables:
        _refuse_other_ranks(variable)
    _refuse_twice([variable for _, variable in tables])
    return tables, dense
