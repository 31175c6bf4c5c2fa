"""Change modules when they are imported."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


@contextmanager
def without_tensorflow(*, then: Callable[[], None]) -> Iterator[None]:
    """Hide TensorFlow from what this thread imports, unless TensorFlow is loaded already.

    Importing it takes seconds.

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
        sys.meta_path.insert(0, AfterImport("tensorflow", lambda _: then()))


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


class AfterImport(MetaPathFinder):
    """Import hook that calls a function with a module after it has been imported.

    Args:
        name: of the module.
        change: the function.
    """

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self._name, self._change, self._searching = name, change, False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec, with one more step after the import."""
        if name != self._name or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            self._add_change(spec.loader)
        return spec

    def _add_change(self, loader: Loader) -> None:
        execute = loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            self._change(module)

        loader.exec_module = execute_and_change


class RefusedImport(AfterImport):
    """Import hook for a module that raises `ValueError` when it does not fit its surroundings.

    The error becomes an `ImportError`, which those who can do without the module expect.

    Args:
        name: of the module.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, lambda module: None)

    def _add_change(self, loader: Loader) -> None:
        execute = loader.exec_module

        def execute_or_refuse(module: ModuleType) -> None:
            try:
                execute(module)
            except ValueError as error:
                raise ImportError(str(error), name=self._name) from error

        loader.exec_module = execute_or_refuse


class WhileImporting(AfterImport):
    """Import hook that imports a module within a context manager.

    Args:
        name: of the module.
        surroundings: makes the context manager.
    """

    def __init__(self, name: str, surroundings: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__(name, lambda module: None)
        self._surroundings = surroundings

    def _add_change(self, loader: Loader) -> None:
        execute = loader.exec_module

        def execute_within(module: ModuleType) -> None:
            with self._surroundings():
                execute(module)

        loader.exec_module = execute_within
