"""Change how modules are imported."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Around = Callable[[ModuleType], AbstractContextManager[None]]


class ImportHook(MetaPathFinder):
    """Imports a module within a context manager, which gets the empty module.

    Args:
        name: of the module.
        around: makes the context manager.
    """

    def __init__(self, name: str, around: Around) -> None:
        self._name, self._around, self._searching = name, around, False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec, whose loader runs within the context manager."""
        if name != self._name or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_within(module: ModuleType) -> None:
                with self._around(module):
                    execute(module)

            spec.loader.exec_module = execute_within
        return spec


def after(change: Callable[[ModuleType], None]) -> Around:
    """Call a function with the module after its import."""

    @contextmanager
    def around(module: ModuleType) -> Iterator[None]:
        yield
        change(module)

    return around


@contextmanager
def refused(module: ModuleType) -> Iterator[None]:
    """Raise a `ValueError` as an `ImportError`, which those who can do without it expect."""
    try:
        yield
    except ValueError as error:
        raise ImportError(str(error), name=module.__name__) from error


@contextmanager
def without_tensorflow(*, then: Callable[[], None]) -> Iterator[None]:
    """Hide TensorFlow, which takes seconds, from what this thread imports, unless it is loaded.

    Args:
        then: is called after a later import of TensorFlow, to tell those who did not find it.
    """
    if any(name in sys.modules for name in ("tensorflow", "merlin.core.compat.tensorflow")):
        yield
        return
    hidden = _HiddenTensorFlow()
    sys.meta_path.insert(0, hidden)
    try:
        yield
    finally:
        sys.meta_path.remove(hidden)
        sys.meta_path.insert(0, ImportHook("tensorflow", after(lambda _: then())))


class _HiddenTensorFlow(MetaPathFinder):
    """Import hook that makes the thread that created it import without TensorFlow."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """Raise for TensorFlow; return None for all other modules."""
        if name == "tensorflow" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError("imported when it is first needed", name=name)
