"""A stream through joiner and trainer to two servers, all processes, that is watched and asked."""

import json
import random
import time

import numpy as np

from cowclip_merlin.demo.pipeline import Pipeline, make_logs
from cowclip_merlin.demo.processes import Processes
from cowclip_merlin.online import encode_requests, load_features, open_log
from cowclip_merlin.online.logs.message_log import LogUnavailable
from cowclip_merlin.online.run_config import load_online_config
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.synthetic.drifting_stream import write_stream_features
from cowclip_merlin.tables.snapshot import load_snapshot
from cowclip_merlin.training.run import set_up_tensorflow
from watching import NoAnswer, Requester, ServerClient, SyncWatch

AT_ONCE = 500  # events of a request
UNKNOWN = 10  # one row in so many gets ids that no event has
LONGEST = 600.0  # seconds in which everything must be served again after a kill


class WatchedPipeline:
    """All parts, and threads that watch the syncs and ask a server; `stack` ends them."""

    def __init__(self, demo, work, stack, *, seconds_per_day, trim=(), repeats=()):
        self.demo, self.work, self._stack = demo, work, stack
        write_stream_features(work / "features.yaml", seconds_per_day=seconds_per_day)
        self.columns = load_features(work / "features.yaml")
        self.processes = stack.enter_context(Processes(work / "logs"))
        self.logs = make_logs(demo, self.processes, work)
        self.watch = self._begun(SyncWatch(open_log(self.logs.syncs)))
        self.requester = None
        self.parts = Pipeline(
            demo, self.processes, self.logs, work / "features.yaml", work,
            joiner_options=trim, trainer_options=(*trim, *repeats),
        )  # fmt: skip

    def begin(self, asked):
        """Start all parts, and ask one of the servers all the time."""
        self.parts.start(servers=2)
        self.parts.wait_for_servers()
        self.producer = self.parts.start_producer()
        self.processes.wait_until("events", lambda: self.trained() > 5 * self.demo.rate)
        shown = open_log(self.logs.impressions)
        port = self.parts.ports[asked]
        self.requester = self._begun(Requester(self.columns, shown, port, every=0.05))

    def _begun(self, thread):
        self._stack.callback(thread.stop)
        thread.start()
        return thread

    def trained(self):
        return self.watch.syncs[-1].trained if self.watch.syncs else 0

    def check(self):
        """No process and no thread has failed."""
        self.processes.check()
        for thread in filter(None, (self.watch, self.requester)):
            assert not thread.failure

    def wait(self, condition):
        self.processes.wait_until("what comes after a kill", condition, LONGEST)
        self.check()

    def end_of(self, log):
        """Number of messages of a log; waits for its server."""
        while True:
            try:
                return log.end()[0]
            except LogUnavailable:
                self.check()
                time.sleep(0.1)

    def last_sync(self):
        """The last sync, once the watch has read all that is there."""
        end = self.end_of(open_log(self.logs.syncs))
        self.wait(lambda: self.watch.position[0] >= end)
        return self.watch.syncs[-1]

    def sync_after_now(self):
        """Wait for a sync with examples that are joined from now on."""
        examples = open_log(self.logs.examples)
        first = self.end_of(examples)
        self.wait(lambda: self.end_of(examples) > first + self.demo.rate)
        place = self.end_of(examples)
        self.wait(lambda: self.watch.first_with(place) is not None)
        return self.watch.first_with(place)

    def wait_until_served(self, sync):
        """Wait until both servers have a model that is as new as a sync."""
        for port in self.parts.ports:
            client = ServerClient(port)
            self.wait(lambda client=client: version(client) >= (sync.generation, sync.seq))
            client.close()

    def requests(self, count, seed):
        """Random impressions of the stream, some with ids that it does not have."""
        log, chosen = open_log(self.logs.impressions), random.Random(seed)
        position, values = log.start(), []
        while messages := log.read(position, most=4096):
            position = messages[-1].after
            values += [message.value for message in messages]
        rows = [json.loads(chosen.choice(values)) for _ in range(count)]
        rows = [{name: row[name] for name in self.columns.inputs} for row in rows]
        for i in range(0, count, UNKNOWN):
            rows[i][chosen.choice(self.columns.categorical).name] = f"unknown-{i}"
        return rows

    def answers(self, rows):
        """Predictions of both servers, [2, n]."""
        return np.array([answers(port, rows) for port in self.parts.ports])


def version(client):
    """Generation and number of the sync of a server's model; (0, 0) without a model."""
    try:
        model = client.status().get("model")
    except NoAnswer:
        return 0, 0
    return (model["generation"], model["seq"]) if model else (0, 0)


def answers(port, rows):
    client, found = ServerClient(port), []
    for first in range(0, len(rows), AT_ONCE):
        found += client.predict(rows[first : first + AT_ONCE]).probabilities
    client.close()
    return found


def offline_answers(run, rows):
    """Predictions of the model in a run's newest snapshot, [n]."""
    settings, features = load_online_config(run)
    set_up_tensorflow(settings.run.seed, "cpu")
    trainer, prefix = OnlineTrainer(settings, features), "trainer."
    arrays = load_snapshot(run / "snapshots").arrays
    trainer.restore({k.removeprefix(prefix): x for k, x in arrays.items() if k.startswith(prefix)})
    encoded = encode_requests(rows, features)
    assert not encoded.damaged
    return trainer.predict(encoded.events).astype(np.float64)
