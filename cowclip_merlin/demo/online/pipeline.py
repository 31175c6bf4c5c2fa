"""The processes between an impression and a prediction: joiner, trainer, servers and producer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cowclip_merlin.demo.measuring.server_client import ServerClient
from cowclip_merlin.demo.online.processes import DemoSettings, Logs, Process, Processes
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.system.processes import free_ports


class Pipeline:
    """All parts, each a process.

    Args:
        settings: of the demo.
        processes: where the parts are started.
        logs: between the parts.
        features: features file of the stream.
        work: folder for the joiner's state and the trainer's run.
        joiner_options: further options of `cowclip online join`.
        trainer_options: further options of `cowclip online train`.

    Attributes:
        ports: of the servers.
        servers: their processes.
        trainer: its process.
        joiner: its process.
    """

    def __init__(
        self,
        settings: DemoSettings,
        processes: Processes,
        logs: Logs,
        features: Path,
        work: Path,
        *,
        joiner_options: Sequence[str] = (),
        trainer_options: Sequence[str] = (),
    ) -> None:
        self._settings, self._processes, self._logs = settings, processes, logs
        self._features, self._work = str(features), work
        self._joiner_options, self._trainer_options = joiner_options, trainer_options
        self.ports: list[int] = []
        self.servers: list[Process] = []
        self.trainer: Process | None = None
        self.joiner: Process | None = None

    def start(self, *, servers: int) -> None:
        """Start joiner, trainer and servers, which wait for events."""
        self._start_joiner()
        self._start_trainer()
        for i in range(servers):
            self.start_server(f"server-{i + 1}", self._logs.syncs)

    def start_server(self, name: str, syncs: str) -> int:
        """Start a server that follows a log of syncs; return its port."""
        (port,) = free_ports(1)
        words = ["online", "serve", "--from", syncs, "--port", str(port)]
        self.servers.append(self._processes.start_cowclip(name, *words))
        self.ports.append(port)
        return port

    def wait_for_servers(self) -> None:
        """Wait until all servers have the model of the trainer's first sync.

        Raises:
            InputError: a process has ended, or it took too long.
        """
        inputs = load_features(self._features).inputs
        for port, server in zip(self.ports, self.servers, strict=True):
            client = ServerClient(port)
            self._processes.wait_until(
                f"the model of {server.name}", partial(client.is_serving, inputs)
            )
            client.close()

    def start_producer(self) -> Process:
        """Start the stream of impressions and clicks."""
        settings, logs = self._settings, self._logs
        words = ["online", "produce", "--generate", "--features", self._features]
        words += ["--impressions", logs.impressions, "--actions", logs.actions]
        words += ["--events", str(settings.events), "--days", str(settings.days)]
        words += ["--rate", f"{settings.rate:g}", "--delay", f"{settings.delay:g}"]
        words += ["--seed", str(settings.seed)]
        return self._processes.start_cowclip("producer", *words, may_finish=True)

    def _start_joiner(self) -> None:
        logs = self._logs
        words = ["online", "join", "--impressions", logs.impressions, "--actions", logs.actions]
        words += ["--to", logs.examples, "--features", self._features]
        words += ["--window", f"{self._settings.window}s", "--lateness", "1s"]
        words += ["--state", str(self._work / "join.state")]
        self.joiner = self._processes.start_cowclip("joiner", *words, *self._joiner_options)

    def _start_trainer(self) -> None:
        settings, logs = self._settings, self._logs
        words = ["online", "train", "--from", logs.examples, "--to", logs.syncs]
        words += ["--features", self._features, "--out", str(self._work / "run")]
        words += ["--model", "deepfm", "--mlp", "100,100", "--batch-size", str(settings.batch_size)]
        words += ["--embedding-lr", "3e-3", "--dense-lr", "1e-3", "--seed", str(settings.seed)]
        words += ["--max-wait", "0.1", "--sync-every", f"{settings.sync_every:g}"]
        words += ["--dense-every", f"{max(5.0, settings.sync_every):g}", "--catch-up", "8"]
        words += ["--snapshot-every", f"{settings.snapshot_every:g}"]
        self.trainer = self._processes.start_cowclip("trainer", *words, *self._trainer_options)
