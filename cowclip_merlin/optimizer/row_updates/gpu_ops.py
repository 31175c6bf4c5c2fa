"""Build and load the TensorFlow operations of the row kernels.

They are built once per machine and loaded once per process.

The machine's C++ compiler compiles the operations (folder `row_ops`) against TensorFlow's headers.
CuPy compiles the kernels that they launch. Neither needs CUDA's compiler.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import importlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from cowclip_merlin import compat
from cowclip_merlin.choices import RowSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels.cuda.nvrtc import load_nvrtc
from cowclip_merlin.kernels.cuda.source import FOLDER, TILES, options, program, tile_of
from cowclip_merlin.system.files import atomic_write

tf = compat.tensorflow()


_log = logging.getLogger("cowclip_merlin")

_SOURCE_FOLDER = Path(__file__).with_name("row_ops")
_REMEDY = 'install g++, or use backend="tensorflow"'
_FLAGS = ("-O2", "-w", "-shared", "-fPIC")


def build() -> Path:
    """Build the shared library of the operations in the user's cache folder, and return its path.

    If that folder is not writable, use a temporary folder that this process deletes at its end.
    The file's name depends on the sources and on TensorFlow's build, not on where it is installed.
    So a machine without a compiler can use a file from the cache of another machine.

    Raises:
        InputError: if no C++ compiler is found, or if it fails, or no folder can be written.
    """
    flags = [*tf.sysconfig.get_compile_flags(), *_FLAGS]
    links = tf.sysconfig.get_link_flags()
    name = _library_name(flags)
    try:
        return _build_in(_cache_folder(), name, flags, links)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home folder
        _log.info("no cache of the GPU's row operations: %s", error)
    try:
        return _build_in(_temporary_folder(), name, flags, links)
    except OSError as error:
        raise InputError(f"cannot store the GPU's row operations: {error}; {_REMEDY}") from error


def _library_name(flags: Sequence[str]) -> str:
    files = [*sorted(_SOURCE_FOLDER.rglob("*.*")), FOLDER / "shared.h"]
    texts = [file.read_text(encoding="utf-8") for file in files]
    others = [flag for flag in flags if not flag.startswith("-I")]
    what = "\n".join([tf.version.VERSION, tf.version.GIT_VERSION, *others, *texts])
    return f"row_ops-{hashlib.sha256(what.encode()).hexdigest()[:16]}.so"


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "cowclip_merlin")


@cache
def _temporary_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="cowclip_merlin.")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _build_in(folder: Path, name: str, flags: list[str], links: list[str]) -> Path:
    file = folder / name
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as temporary:
            _compile(temporary, flags, links)
    return file


def _compile(file: Path, flags: list[str], links: list[str]) -> None:
    compiler, source = _compiler(), str(_SOURCE_FOLDER / "row_ops.cc")
    _log.info("compiling the GPU's row operations, once on this machine (half a minute)")
    command = [*compiler, *flags, f"-I{FOLDER}", source, "-o", str(file), *links]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        words = f"cannot run the C++ compiler {compiler[0]}: {error.strerror}; {_REMEDY}"
        raise InputError(words) from error
    if done.returncode:
        lines = [x for x in done.stderr.splitlines() if "error" in x] or [done.stderr[-200:]]
        words = " ".join(lines[0].split())
        raise InputError(f"{' '.join(compiler)} cannot compile {source}: {words}; {_REMEDY}")


def _compiler() -> list[str]:
    """Return the command of the C++ compiler: the variable CXX, else g++ or c++."""
    given = os.environ.get("CXX", "")
    try:
        command = shlex.split(given)
    except ValueError as error:
        raise InputError(f"CXX={given} is not a command: {error}; {_REMEDY}") from error
    found = shutil.which("g++") or shutil.which("c++")
    if not command and found is None:
        raise InputError(f"the GPU's row operations need a C++ compiler: {_REMEDY}")
    return command or [str(found)]


FUNCTIONS = (
    "histogram", "onesweep", "heads", "sum_groups", "sum_queued", "join_queued", "step_groups",
    "summarize", "catch_up_rows", "sweep_rows", "step_weights", "fetch_rows", "read_batch",
    "adagrad_groups",
)  # fmt: skip
"""The kernels, in the order of `Function` in row_ops/tables.h."""

SOURCES = ("group", "replay", "read", "step", "dense")
"""The files of `program`."""

BLOCKS_PER_PROCESSOR = 8
SWEEP_STEPS = 1024
"""Steps in which all rows are brought up to date, a part of the table in each."""


class Loaded(NamedTuple):
    """Kernels that can be launched.

    Attributes:
        addresses: addresses of FUNCTIONS.
        blocks: number of blocks that fill the device.
        host: whether the functions run on the CPU, as the tests' emulated kernels do.
        module: reference that keeps CuPy from unloading the kernels.
    """

    addresses: tuple[int, ...]
    blocks: int
    host: bool = False
    module: object = None


class TableRecord(ctypes.Structure):
    """`CowClipTable` of row_ops/tables.h."""

    _fields_ = [
        ("rows", ctypes.c_longlong),
        *((name, ctypes.c_int32) for name in ("d", "tile", "kind", "exact", "counted")),
        *((name, ctypes.c_int32) for name in ("blocks", "sweep")),
        *((name, ctypes.c_int32) for name in ("host", "owner", "slot", "width", "whole")),
        *((name, ctypes.c_float) for name in ("l2", "beta_1", "beta_2")),
        *((name, ctypes.c_float) for name in ("keep_m", "keep_v", "epsilon")),
        *((name, ctypes.c_double) for name in ("r", "least", "bound")),
        ("functions", ctypes.c_void_p * len(FUNCTIONS)),
    ]


Describe = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.c_longlong, ctypes.c_int, ctypes.c_void_p, ctypes.c_int
)


class Operations:
    """The loaded operations, and the tables that are registered with them.

    Args:
        file: shared library of the operations.
    """

    def __init__(self, file: Path) -> None:
        self.module = tf.load_op_library(str(file))
        self._library = ctypes.CDLL(str(file))
        self._library.cowclip_add_table.argtypes = [ctypes.POINTER(TableRecord)]
        self._describers: dict[int, Callable[[int, int], str]] = {}
        self._describe = Describe(self._write_words)  # must live as long as the library
        self._library.cowclip_set_describe(self._describe)
        self._owners = 0

    def new_owner(self) -> int:
        """Return a new number for an optimizer."""
        self._owners += 1
        return self._owners

    def add_table(self, record: TableRecord, describe: Callable[[int, int], str]) -> int:
        """Register a table, and return its number.

        Args:
            record: sizes, settings and kernels.
            describe: maps a row or id, and what is wrong (see row_ops/tables.h), to one line.
        """
        number = self._library.cowclip_add_table(ctypes.byref(record))
        self._describers[number] = describe
        return number

    def add_engine(self, record: ctypes.Structure) -> int:
        """Register an engine for hidden layers, `CowClipMlp` of row_ops/mlp/engine.h.

        Raises:
            InputError: if cuBLASLt, or a function of it, is not found.
        """
        missing = ctypes.create_string_buffer(256)
        number = self._library.cowclip_add_mlp(ctypes.byref(record), missing, len(missing))
        if number < 0:
            raise InputError(f"{missing.value.decode()} of NVIDIA's cuBLASLt was not found")
        return number

    def _write_words(self, number: int, row: int, what: int, out: int, size: int) -> None:
        words = self._describers[number](row, what).encode()[: size - 1]
        ctypes.memmove(out, words + b"\0", len(words) + 1)


def record_of(
    rows: int, d: int, settings: RowSettings, loaded: Loaded, **numbers: int
) -> TableRecord:
    """Return what the operations need to know about a table.

    Args:
        rows: number of rows.
        d: length of a row.
        settings: settings of L2, clip, and Adam or Adagrad.
        loaded: the kernels for this table.
        **numbers: "exact", "counted", "owner", "slot", "width", "whole"; missing ones are 0.
    """
    one = ctypes.c_float(1).value
    beta_1, beta_2 = (ctypes.c_float(x).value for x in (settings.beta_1, settings.beta_2))
    return TableRecord(
        rows=rows,
        d=d,
        tile=tile_of(d),
        kind=settings.kernel_id,
        blocks=loaded.blocks,
        sweep=SWEEP_STEPS,
        host=loaded.host,
        l2=2 * settings.l2,
        beta_1=beta_1,
        beta_2=beta_2,
        keep_m=one - beta_1,
        keep_v=one - beta_2,
        epsilon=settings.epsilon,
        r=settings.r,
        least=settings.floor(d),
        bound=settings.bound,
        functions=(ctypes.c_void_p * len(FUNCTIONS))(*loaded.addresses),
        **numbers,
    )


def load_kernels(device: int, d: int, bfloat16: bool) -> Loaded:
    """Load the kernels for rows of length d or less on a GPU, from CuPy's cache if possible.

    Args:
        device: TensorFlow's index of the logical GPU.
        d: length of a row.
        bfloat16: whether gradients are bfloat16.

    Raises:
        InputError: if it is unknown which GPU of the machine this is.
    """
    return _load(device, program_options(d, bfloat16))


def program_options(d: int, bfloat16: bool) -> tuple[str, ...]:
    """Return the compiler options of the program, equal for all d up to a warp.

    >>> program_options(10, False) == program_options(1, False)
    True
    """
    # Its kernels are told each table's tile; only the numbers per lane are compiled in.
    return options(d, TILES[-1], bfloat16=bfloat16)


@cache
def _load(device: int, flags: tuple[str, ...]) -> Loaded:
    import cupy

    with cupy.cuda.Device(cuda_number(device)) as gpu:
        module = cupy.RawModule(code=program(*SOURCES), options=flags)
        functions = [module.get_function(name).kernel for name in FUNCTIONS]
        blocks = gpu.attributes["MultiProcessorCount"] * BLOCKS_PER_PROCESSOR
        addresses = tuple(each.ptr for each in functions)
        return Loaded(addresses, blocks, module=(module, *functions))


def cuda_number(device: int) -> int:
    """Return CUDA's number of TensorFlow's logical GPU.

    They differ if TensorFlow sees only some GPUs, or divides one into several logical GPUs.

    Raises:
        InputError: if TensorFlow leaves out a visible GPU.
    """
    numbers: list[int] = []
    for gpu in tf.config.get_visible_devices("GPU"):
        parts = tf.config.get_logical_device_configuration(gpu) or [None]
        numbers += [int(gpu.name.rpartition(":")[2])] * len(parts)
    found = len(tf.config.list_logical_devices("GPU"))
    if found != len(numbers):
        raise InputError(
            f"TensorFlow uses {found} of {len(numbers)} visible GPUs, and does not say which: "
            'name those to use in CUDA_VISIBLE_DEVICES, or use backend="tensorflow"'
        )
    return numbers[device]


@cache
def operations() -> Operations:
    """Load the operations; build them if this machine has not built them yet.

    Raises:
        InputError: if no C++ compiler is found, or if it fails.
    """
    return Operations(build())


def require_cupy() -> None:
    """Load CuPy and CUDA's compiler NVRTC, which compile the kernels.

    Raises:
        InputError: if one of them is not installed or cannot be loaded.
    """
    try:
        load_nvrtc()
        importlib.import_module("cupy")
    except (ImportError, OSError) as error:
        what = getattr(error, "name", None) or "CuPy or NVRTC"
        raise InputError(
            f"the GPU's row operations need CuPy, and {what} cannot be loaded: pip install "
            'cupy-cuda12x, or use backend="tensorflow"'
        ) from error
