"""Build the project's operations without TensorFlow, and run lists of them on one stream of a GPU.

`Gpu` compiles row_ops/ with the headers of tensorflow.h and loads the kernels by the project's own
loaders. So structs, launches, plans of cuBLASLt and refusals are those of training.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.choices import RowSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels.cuda.source import FOLDER, program
from cowclip_merlin.system.files import atomic_write
from cowclip_merlin.types import Array

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCES = ROOT / "cowclip_merlin/optimizer/row_updates/row_ops"
HEADERS = (
    *(f"tensorflow/core/framework/{name}.h" for name in (
        "device_base", "op", "op_kernel", "resource_mgr", "resource_var", "shape_inference")),
    "xla/stream_executor/stream.h",
)  # fmt: skip
TYPES = {"float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int64": 9, "uint16": 14, "uint32": 22}
"""TensorFlow's numbers of types; uint16 holds the bits of bfloat16."""

FLOAT, BFLOAT16, INT32 = TYPES["float32"], TYPES["uint16"], TYPES["int32"]
BLOCK, MOST_BLOCKS = 256, 1056  # threads; blocks of a kernel that loops


class Source(NamedTuple):
    """An input of a node."""

    kind: int  # 0 memory, 1 output of a node, 2 number by value
    index: int  # number of the tensor or node
    output: int = 0  # its number


def loaders() -> tuple[ModuleType, ModuleType]:
    """Import the loaders of the kernels, which need TensorFlow only to find its first GPU."""
    compat.tensorflow = SimpleNamespace
    package = ModuleType("cowclip_merlin.optimizer")  # without what its __init__.py imports
    package.__path__ = [str(ROOT / "cowclip_merlin/optimizer")]
    sys.modules[package.__name__] = package
    from cowclip_merlin.contrib import fused_mlp as fused
    from cowclip_merlin.optimizer.row_updates import gpu_ops

    gpu_ops.cuda_number = lambda device: device
    return gpu_ops, fused


def build() -> Path:
    """Build the library of the operations in the user's cache folder, and return its path."""
    own = HERE / "operations.cc", HERE / "tensorflow.h", Path(__file__)
    files = [*own, *sorted(SOURCES.rglob("*.*"))]
    stem = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    library = Path(cache, "cowclip_merlin", f"gpu-check-{stem}.so")
    if library.exists():
        return library
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if found is None:
        raise InputError("the operations need a C++ compiler: install g++, or set CXX")
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as include, atomic_write(library) as made:
        for header in HEADERS:
            Path(include, header).parent.mkdir(parents=True, exist_ok=True)
            Path(include, header).write_text('#include "tensorflow.h"\n', encoding="utf-8")
        folders = [f"-I{folder}" for folder in (include, HERE, SOURCES, FOLDER)]
        flags = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC"]
        command = [*shlex.split(found), *flags, *folders, str(files[0]), "-o", str(made), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [x for x in done.stderr.splitlines() if "error" in x] or [done.stderr[-200:]]
            raise InputError(f"{found} cannot compile the operations: {lines[0]}")
    return library


def blocks_for(size: int) -> int:
    """Return the number of blocks of a kernel that loops over so many numbers."""
    return max(1, min(MOST_BLOCKS, -(-size // BLOCK)))


class Node:
    """An operation or kernel in a list, and its outputs."""

    def __init__(self, gpu: Gpu, number: int) -> None:
        self.number = number
        self._library = gpu.library

    def out(self, index: int = 0) -> Source:
        """Return an output as an input of another node."""
        return Source(1, self.number, index)

    def read(self, index: int = 0) -> Array:
        """Copy an output to the host, when all work is done."""
        kind, dims, sizes = ctypes.c_int(), ctypes.c_int(), (ctypes.c_longlong * 8)()
        found = ctypes.byref(kind), ctypes.byref(dims), sizes
        self._library.world_shape(self.number, index, *found)
        dtype = {number: name for name, number in TYPES.items()}[kind.value]
        array = np.empty(sizes[: dims.value], dtype)
        at = ctypes.c_void_p(array.ctypes.data)
        if error := self._library.world_read(self.number, index, at):
            raise RuntimeError(f"CUDA error {error}")
        return array


class Gpu:
    """The operations on the first GPU, and the arrays that they work on; `xp` is CuPy."""

    def __init__(self) -> None:
        self._gpu_ops, self._engine = loaders()
        self._gpu_ops.require_cupy()
        self.xp = importlib.import_module("cupy")
        try:
            self.name = self.xp.cuda.runtime.getDeviceProperties(0)["name"].decode()
        except Exception as error:  # CUDA's errors, of CuPy
            raise InputError(f"CuPy finds no GPU: {error}; --emulate needs none") from error
        self._stream = self.xp.cuda.Stream(non_blocking=True)
        self._stream.use()
        self.library = ctypes.CDLL(str(build()))
        self.library.world_error.restype = ctypes.c_char_p
        self.library.world_bytes.restype = ctypes.c_longlong
        self.library.world_pinned.restype = ctypes.c_void_p
        self.library.world_use_stream(ctypes.c_void_p(self._stream.ptr))
        self._describe = self._gpu_ops.Describe(self._write_words)
        self.library.cowclip_set_describe(self._describe)
        source = program() + (HERE / "batch.cu").read_text(encoding="utf-8")
        module = self.xp.RawModule(code=source, options=self._gpu_ops.program_options(1, False))
        names = re.findall(r"__global__ void (\w+)", source)
        self.kernels = {name: module.get_function(name).kernel for name in names}
        self._kept: list[object] = [module]
        self._owners = 0

    def _write_words(self, table: int, row: int, what: int, out: int, size: int) -> None:
        words = f"{('gradient of row', 'outside:', 'stale row')[what]} {row} of table {table}"
        ctypes.memmove(out, words.encode()[: size - 1] + b"\0", min(len(words), size - 1) + 1)

    def array(self, values: object, dtype: object = None) -> Array:
        """Copy numbers to the GPU."""
        return self.xp.ascontiguousarray(self.xp.asarray(values, dtype=dtype))

    def host(self, array: Array) -> Array:
        """Copy an array to the host."""
        return self.xp.asnumpy(array)

    def tensor(self, array: Array, shape: Sequence[int] | None = None) -> Source:
        """Make an array of the GPU an input; it is kept as long as this object."""
        address = array.__cuda_array_interface__["data"][0]
        return self._given(0, array, address, array.shape if shape is None else shape)

    def value(self, number: np.generic) -> Source:
        """Make a number an input of `launch`, by value."""
        array = np.array([number])
        return self._given(2, array, array.ctypes.data, [1])

    def variable(self, array: Array) -> Source:
        """Return the handle of a variable in the memory of an array."""
        return Source(0, self.library.world_variable(self.tensor(array).index))

    def _given(self, kind: int, array: Array, address: int, shape: Sequence[int]) -> Source:
        self._kept.append(array)
        sizes, dtype = (ctypes.c_longlong * 8)(*shape), TYPES[array.dtype.name]
        at = ctypes.c_void_p(address)
        return Source(kind, self.library.world_tensor(at, dtype, len(shape), sizes))

    def node(
        self,
        op: str,
        attributes: Mapping[str, Any],
        function: int | None = None,
        blocks: int = 1,
        **inputs: Source | Sequence[Source],
    ) -> Node:
        """Add an operation with attributes (types as in `TYPES`), or the kernel of an address."""
        lists = {k: v if isinstance(v, list) else [v] for k, v in attributes.items()}
        words = [f"{k}={','.join(repr(float(x)) for x in v)}" for k, v in lists.items() if v]
        address = ctypes.c_void_p(function)
        number = self.library.world_node(op.encode(), " ".join(words).encode(), address, blocks)
        if number < 0:
            raise RuntimeError(f"{op}: {self.library.world_error().decode()}")
        for name, given in inputs.items():
            for source in [given] if isinstance(given, Source) else given:
                self.library.world_input(number, name.encode(), *source)
        return Node(self, number)

    def launch(
        self,
        kernel: str,
        blocks: int,
        inputs: Sequence[Source | Array | np.generic],
        outputs: Sequence[tuple[str, Sequence[int]]] = (),
    ) -> Node:
        """Add a kernel of batch.cu, whose parameters are its inputs, then its outputs."""
        flat = [x for dtype, shape in outputs for x in (TYPES[dtype], len(shape), *shape)]
        function = self.kernels[kernel].ptr
        return self.node("Launch", {"outputs": flat}, function, blocks, a=[*map(self._any, inputs)])

    def _any(self, given: Source | Array | np.generic) -> Source:
        if isinstance(given, Source):
            return given
        return self.value(given) if isinstance(given, np.generic) else self.tensor(given)

    def run(self, nodes: Sequence[Node], times: int = 1) -> None:
        """Start nodes in their order, all of them some times; a `RuntimeError` tells a refusal."""
        numbers = (ctypes.c_int * len(nodes))(*(node.number for node in nodes))
        if self.library.world_run(numbers, len(nodes), times):
            raise RuntimeError(self.library.world_error().decode())

    def graph(self, nodes: Sequence[Node], times: int) -> Callable[[], None]:
        """Capture nodes as a CUDA graph, and return what starts it; they must have run before."""
        self.wait()
        self._stream.begin_capture()
        try:
            self.run(nodes, times)
        finally:
            graph = self._stream.end_capture()
        return lambda: graph.launch(self._stream)

    def wait(self) -> None:
        """Wait for all work."""
        self._stream.synchronize()

    def mark(self) -> Any:
        """Record an event between the work so far and later work."""
        event = self.xp.cuda.Event()
        event.record(self._stream)
        return event

    def milliseconds(self, begin: Any, end: Any) -> float:
        """Return the time between two marks."""
        end.synchronize()
        return self.xp.cuda.get_elapsed_time(begin, end)

    def new_owner(self) -> int:
        """Return a new number for an optimizer."""
        self._owners += 1
        return self._owners

    def add_table(
        self, rows: int, d: int, settings: RowSettings, bfloat16: bool, **numbers: int
    ) -> int:
        """Register a table, as the project's optimizer does, and return its number."""
        loaded = self._gpu_ops.load_kernels(0, d, bfloat16)
        record = self._gpu_ops.record_of(rows, d, settings, loaded, **numbers)
        self._kept.append(loaded)
        return self.library.cowclip_add_table(ctypes.byref(record))

    def add_engine(self) -> int:
        """Register an engine for hidden layers, and return its number."""
        loaded = self._engine.load_kernels(0)
        record = self._engine.EngineRecord(
            host=loaded.host,
            blocks=loaded.blocks,
            library=self._engine.cublas_file().encode(),
            functions=(ctypes.c_void_p * len(self._engine.FUNCTIONS))(*loaded.addresses),
        )
        self._kept.append(loaded)
        missing = ctypes.create_string_buffer(256)
        number = self.library.cowclip_add_mlp(ctypes.byref(record), missing, len(missing))
        if number < 0:
            raise InputError(f"{missing.value.decode()} of NVIDIA's cuBLASLt was not found")
        return number
