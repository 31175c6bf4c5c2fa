"""Compare what servers answer with each other, and with the model of a snapshot."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cowclip_merlin.demo.measuring.server_client import NoAnswer, ServerClient
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.logs.message_log import MessageLog

Array = npt.NDArray[Any]

_AT_ONCE = 500  # events of a request
_UNKNOWN = 10  # one row in so many gets ids that no event has


def requests_from(
    log: MessageLog, features: LogFeatures, count: int, seed: int
) -> list[dict[str, Any]]:
    """Return random impressions of a log, some with ids that it does not have."""
    position, values = log.start(), []
    while messages := log.read(position, most=4096):
        position = messages[-1].after
        values += [message.value for message in messages]
    chosen = random.Random(seed)
    rows = [json.loads(chosen.choice(values)) for _ in range(count)]
    rows = [{name: row[name] for name in features.inputs} for row in rows]
    for i in range(0, count, _UNKNOWN):
        column = chosen.choice(features.categorical).name
        rows[i][column] = f"unknown-{i}"
    return rows


def answers(port: int, rows: Sequence[dict[str, Any]]) -> Array:
    """Return the predictions of a server that takes no syncs meanwhile, [n]."""
    client, found = ServerClient(port), []
    for first in range(0, len(rows), _AT_ONCE):
        found += client.predict(rows[first : first + _AT_ONCE]).probabilities
    client.close()
    return np.array(found)


def wait_for_version(
    ports: Sequence[int], version: tuple[int, int], check: Callable[[], None], seconds: float = 240
) -> None:
    """Wait until servers have a model that is as new as a sync.

    Args:
        ports: of the servers.
        version: generation and number of the sync.
        check: is called often, and may raise.
        seconds: to wait at most.

    Raises:
        InputError: it took too long.
    """
    until = time.monotonic() + seconds
    clients = [ServerClient(port) for port in ports]
    for client in clients:
        while _version(client) < version:
            check()
            if time.monotonic() > until:
                raise InputError(
                    f"port {client.port}: has {_version(client)} instead of {version} after "
                    f"{seconds:.0f} s"
                )
            time.sleep(0.05)
        client.close()


def _version(client: ServerClient) -> tuple[int, int]:
    """Generation and number of the sync of a server's model; (0, 0) without a model."""
    try:
        model = client.status().get("model")
    except NoAnswer:
        return 0, 0
    return (model["generation"], model["seq"]) if model else (0, 0)


def offline_answers(run: Path, rows: Sequence[dict[str, Any]]) -> Array:
    """Return the predictions of the model in a run's newest snapshot, [n]."""
    from cowclip_merlin.online.events.requests import encode_requests
    from cowclip_merlin.online.run_config import load_online_config
    from cowclip_merlin.online.training.trainer import OnlineTrainer
    from cowclip_merlin.tables.snapshot import load_snapshot
    from cowclip_merlin.training.run import set_up_tensorflow

    settings, features = load_online_config(run)
    set_up_tensorflow(settings.run.seed, "cpu")
    trainer, prefix = OnlineTrainer(settings, features), "trainer."
    arrays = load_snapshot(run / "snapshots").arrays
    trainer.restore({k.removeprefix(prefix): x for k, x in arrays.items() if k.startswith(prefix)})
    encoded = encode_requests(rows, features)
    if encoded.damaged:
        raise InputError(f"requests are damaged: {encoded.damaged}")
    return trainer.predict(encoded.events).astype(np.float64)
