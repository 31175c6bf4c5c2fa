"""Online training: a model that is trained on a log in time order (Monolith).

Read a log as events, replay it, and open the message logs between the parts of a stream. The
commands `cowclip online` train and serve from a stream.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cowclip_merlin.online.events.event_log import EventLog
    from cowclip_merlin.online.events.features import load_features
    from cowclip_merlin.online.events.messages import encode_requests
    from cowclip_merlin.online.logs.file_log import FileLog
    from cowclip_merlin.online.logs.open_log import open_log
    from cowclip_merlin.online.replaying.replay_folder import replay_log
    from cowclip_merlin.online.replaying.settings import ReplaySettings
    from cowclip_merlin.online.settings import OnlineSettings

__all__ = [
    "EventLog",
    "FileLog",
    "OnlineSettings",
    "ReplaySettings",
    "encode_requests",
    "load_features",
    "open_log",
    "replay_log",
]

# A part of a stream imports only what it needs: a server needs no replay.
_LAZY = {
    "EventLog": "online.events.event_log",
    "FileLog": "online.logs.file_log",
    "OnlineSettings": "online.settings",
    "ReplaySettings": "online.replaying.settings",
    "encode_requests": "online.events.messages",
    "load_features": "online.events.features",
    "open_log": "online.logs.open_log",
    "replay_log": "online.replaying.replay_folder",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"cowclip_merlin.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
