"""Count GPUs without TensorFlow, which would take their memory."""

from __future__ import annotations


def gpu_count() -> int:
    """Return how many GPUs NVIDIA's driver reports; 0 without a driver or its library.

    >>> gpu_count() >= 0
    True
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except Exception:  # no driver, or no library for it
        return 0
