"""Start the worker processes of one training, on this machine or on a Dask cluster.

The launcher sets `TF_CONFIG` for each process. It loads no TensorFlow itself.
"""

from __future__ import annotations

from cowclip_merlin.launcher.attempts import launch
from cowclip_merlin.launcher.call import LaunchSettings, TrainCall, WorkerCall
from cowclip_merlin.launcher.watch import Patience

__all__ = ["LaunchSettings", "Patience", "TrainCall", "WorkerCall", "launch"]
