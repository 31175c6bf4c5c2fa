"""Which GPU each worker of a machine uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs that CUDA programs may use here, as `CUDA_VISIBLE_DEVICES` names them.

    Args:
        environment: variables such as those of `os.environ`.
    """
    count = compat.gpu_count()
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is None or count == 0:
        return [str(index) for index in range(count)]
    names = [name.strip() for name in named.split(",")]
    # CUDA ignores everything from the first invalid name on.
    invalid = next((i for i, name in enumerate(names) if name in ("", "-1")), len(names))
    return names[:invalid]


def one_gpu_each(visible: Sequence[Sequence[str]], device: str, host: str) -> list[str]:
    """Choose a GPU for every worker on one machine; "" where there is none to use.

    Args:
        visible: for each worker, the GPUs that its starter sees. A dask-cuda worker sees all of
            them, its own first.
        device: "auto", "cpu" or "gpu".
        host: name of the machine, for the error.

    Raises:
        InputError: if there are fewer GPUs than workers.

    >>> one_gpu_each([["0", "1"], ["0", "1"]], "auto", "this machine")
    ['0', '1']
    >>> one_gpu_each([["2", "3", "2"], ["3", "2"]], "gpu", "node1")
    ['2', '3']
    >>> one_gpu_each([[], []], "auto", "this machine")
    ['', '']
    """
    if device == "cpu" or not any(visible):
        return [""] * len(visible)
    first = [names[0] for names in visible if names]
    if len(set(first)) == len(visible):
        return first
    every = list(dict.fromkeys(name for names in visible for name in names))
    if len(every) < len(visible):
        raise InputError(
            f"`workers`: {host} has {len(every)} visible GPUs for {len(visible)} workers, and each "
            "needs its own; use fewer workers, or `device` cpu"
        )
    return every[: len(visible)]
