"""Which variables of a step are embedding tables, by their names, and which are refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.types import IndexedSlices, Pair, Variable, VariableRef

tf = compat.tensorflow()


Pattern: TypeAlias = "str | Variable"
"""A regular expression of names, or a variable itself."""


def matches(variable: Variable, patterns: Sequence[Pattern]) -> bool:
    """Whether a pattern is this variable itself, or a regular expression found in its name."""
    return any(
        re.search(p, variable.name) is not None if isinstance(p, str) else p is variable
        for p in patterns
    )


def check_patterns(patterns: Iterable[Pattern] | None, argument: str) -> tuple[Pattern, ...] | None:
    """Check the patterns and return them as a tuple.

    Raises:
        InputError: if an entry is neither a regular expression nor a variable.
    """
    if patterns is None:
        return None
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for p in patterns:
        if isinstance(p, str):
            try:
                re.compile(p)
            except re.error as error:
                raise InputError(
                    f"{argument}: {p!r} is not a regular expression ({error})"
                ) from error
        elif not hasattr(p, "assign"):
            raise InputError(f"{argument}: {p!r} is neither a name, a regex nor a variable")
    return patterns


class Unmatched:
    """The regular expressions in arguments of `CowClip` that have matched no variable yet.

    Args:
        **patterns: patterns by argument, as `check_patterns` returns them.
    """

    def __init__(self, **patterns: tuple[Pattern, ...] | None) -> None:
        self._left = {
            argument: [p for p in some or () if isinstance(p, str)]
            for argument, some in patterns.items()
        }

    def __bool__(self) -> bool:
        """Whether any pattern is left."""
        return any(self._left.values())

    def look_at(self, argument: str, variables: Sequence[Variable]) -> None:
        """Remove the patterns of this argument that match one of the variables."""
        left = self._left[argument]
        left[:] = [p for p in left if not any(matches(v, (p,)) for v in variables)]

    def refuse(self, argument: str, variables: Sequence[Variable]) -> None:
        """Refuse a pattern that has matched no variable so far.

        Raises:
            InputError: if a pattern is left; the message names it and these variables.
        """
        for pattern in self._left[argument]:
            names = ", ".join(
                [repr(v.name) for v in variables[:4]] + ["..."] * (len(variables) > 4)
            )
            raise InputError(
                f"{argument}: {pattern!r} matches no table of this step (looked at "
                f"{names or 'none'}): correct or remove it; if its table gets gradients in another "
                "call of apply_gradients, call register_tables([table]) before"
            )


def refuse_dense(variable: Variable) -> None:
    """Refuse a dense gradient of an embedding table: its counts are lost.

    Raises:
        InputError: always; the message names the variable and the remedy.
    """
    raise InputError(
        f"the gradient of embedding table {variable.name!r} {tuple(variable.shape)} is dense, so "
        "the ids' counts are lost: remove the Keras regularizer (l2(0), too: "
        "see docs/optimizer.md) or L2 term from it and pass l2=... to CowClip, look rows up with "
        "tf.gather or an embedding layer, and accumulate gradients by concatenating their values "
        "and indices, not by tf.add_n"
    )


def refuse_lost_counts(variable: Variable) -> None:
    """Refuse a gradient of a shard without the counts that its lookup gave it.

    Raises:
        InputError: always; the message names the variable and the remedy.
    """
    raise InputError(
        f"the gradient of {variable.name!r}, of which each worker has a part, has lost the ids' "
        "counts: give CowClip the gradients as the tape returns them (LossScaleOptimizer changes "
        'them, and bfloat16 does not need it), or use tables="fused"'
    )


# Operations whose output has the entries of their inputs; those whose output has each id once, and
# the number of this output.
_SAME_ENTRIES = {"Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "EnsureShape", "ConcatV2"}
_DISTINCT = {"Unique": 0, "UniqueV2": 0, "UniqueWithCounts": 0, "UniqueWithCountsV2": 0} | {
    f"SparseSegment{name}GradV2": 1 for name in ("Sum", "Mean", "SqrtN")
}


def refuse_distinct_ids(slices: IndexedSlices, variable: Variable) -> None:
    """Refuse a gradient whose entries are distinct ids, as far as the graph shows it.

    Without a graph it cannot be seen.

    Args:
        slices: `tf.IndexedSlices`.
        variable: the embedding table.

    Raises:
        InputError: if an operation that removes duplicates makes the ids.
    """
    waiting, seen = [slices.indices], set()
    while waiting:
        tensor = waiting.pop()
        made_by = getattr(tensor, "op", None)
        if made_by is None or tensor.ref() in seen:
            continue
        seen.add(tensor.ref())
        if _DISTINCT.get(made_by.type) == tensor.value_index:
            raise InputError(
                f"the gradient of embedding table {variable.name!r} has one entry for each "
                f"distinct id (operation {made_by.type}), so the ids' counts are lost: look up "
                "every occurrence of an id, not the result of tf.unique"
            )
        if made_by.type in _SAME_ENTRIES:
            waiting += made_by.inputs


def refuse_twice_or_no_matrix(variables: Sequence[Variable]) -> None:
    """Refuse a table that is not a matrix, or that has two gradients in one step.

    Raises:
        InputError: the message names the table.
    """
    seen: set[VariableRef] = set()
    for variable in variables:
        if len(variable.shape) != 2:
            raise InputError(
                f"embedding table {variable.name!r} has the shape {tuple(variable.shape)}: give it "
                "[rows, d], and [rows, 1] for one number a row"
            )
        if variable.ref() in seen:
            raise InputError(
                f"embedding table {variable.name!r} {tuple(variable.shape)} has two gradients in "
                "one step, and counts are those of both: give each variable once"
            )
        seen.add(variable.ref())


def refuse_foreign(variables: Iterable[Variable]) -> None:
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


def refuse_never_caught_up(variable: Variable) -> None:
    """Refuse `update="exact"` for a table whose rows no call brings up to date.

    Raises:
        InputError: always; the message names the variable and the remedy.
    """
    raise InputError(
        f'update="exact": nothing brings rows of {variable.name!r} up to date before the '
        "forward pass reads them: use the models of cowclip_merlin.models, or call "
        'catch_up(table, ids) before each lookup, or use update="dense" or "lazy"'
    )


def with_gradients(grads_and_vars: Iterable[Pair]) -> list[Pair]:
    """Return the pairs that have a gradient, and warn of other variables as Keras does.

    Raises:
        InputError: if there are variables, but no gradients.
    """
    given = list(grads_and_vars)
    found = [(gradient, variable) for gradient, variable in given if gradient is not None]
    without = ", ".join(variable.name for gradient, variable in given if gradient is None)
    if without and not found:
        raise InputError(
            f"No gradients provided for any variable ({without:.500}): there is no loss, or it "
            "does not depend on them"
        )
    if without:
        tf.get_logger().warning("Gradients do not exist for variables %.500s", without)
    return found


def looks_like_table(variable: Variable) -> bool:
    """Whether a variable has the name and shape of an embedding table in Keras and Merlin."""
    name = variable.name.rsplit("/", 1)[-1].split(":")[0]
    return name.endswith("embeddings") and len(variable.shape) == 2
