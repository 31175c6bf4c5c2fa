"""kill -9 of trainer, server, joiner and Redis, one after the other, at random moments.

    KILLS=30 python -m pytest -s tests/online/whole/test_kills.py

`KILLS` is how many: 2 without it. `RATE` is impressions per second, 1000. The logs are in a Redis
that appends to a file; where it is not installed, they are in files. `-s` shows what was measured.

After each kill, the test waits until both servers have what came after it. Then it pauses the
trainer, and both must answer 10,000 requests equally. All the time, the server that is not killed
must answer. At the end, a model that loads the trainer's snapshot must answer as the servers do,
each impression whose window is over must have an example, and each example that the trainer has
read was trained once.
"""

import os
import random
import shutil
import time
from contextlib import ExitStack

import numpy as np
import pytest
from watched import WatchedPipeline, offline_answers

from cowclip_merlin.demo.pipeline import OWN, DemoSettings
from cowclip_merlin.demo.report import take_stock
from cowclip_merlin.online import open_log

pytestmark = pytest.mark.system

KILLS, RATE = int(os.environ.get("KILLS", "2")), float(os.environ.get("RATE", "1000"))
REDIS = OWN if shutil.which("redis-server") else None
MOST_DIFFERENCE = 1e-6  # between predictions
COMPARED = 10_000  # requests
MOMENT = (2.0, 8.0)  # seconds in which a kill lies
MINUTES = 5.0  # of the stream for each kill: it is ended before
REDIS_AWAY = 1.0  # seconds
SEED = 1


def kill(pipeline, number, chosen):
    """Kill a part; return a line about it."""
    parts = pipeline.parts
    victims = [parts.trainer, parts.servers[0], parts.joiner]
    victims += [each for each in pipeline.processes.all if each.name == "redis"]
    victim = victims[number % len(victims)]
    time.sleep(chosen.uniform(*MOMENT))
    pipeline.check()
    killed = time.time()
    victim.kill()
    if victim.name == "redis":
        time.sleep(REDIS_AWAY)
    victim.start()
    pipeline.wait_until_served(pipeline.sync_after_now())
    back = time.time() - killed
    rows = pipeline.requests(COMPARED, chosen.randrange(2**32))
    with parts.trainer.paused():
        pipeline.wait_until_served(pipeline.last_sync())
        first, second = pipeline.answers(rows)
    assert np.abs(first - second).max() <= MOST_DIFFERENCE
    return f"{victim.name}: served again after {back:.1f} s"


def finish(pipeline, seed):
    """End stream and trainer, and compare the servers with its last snapshot."""
    pipeline.producer.end()
    pipeline.producer.wait()
    pipeline.last_sync()
    pipeline.parts.trainer.end()
    pipeline.parts.trainer.wait(120)
    last = pipeline.last_sync()
    pipeline.wait_until_served(last)
    rows = pipeline.requests(COMPARED, seed)
    served, offline = pipeline.answers(rows), offline_answers(pipeline.work / "run", rows)
    assert np.abs(served - offline).max() <= MOST_DIFFERENCE
    pipeline.requester.stop()
    pipeline.check()
    logs = pipeline.logs
    opened = [open_log(name) for name in (logs.impressions, logs.actions, logs.examples)]
    window = pipeline.demo.window + 2
    return take_stock(pipeline.columns, *opened, window=window, read=last.position[0]), last


def test_nothing_is_lost_and_servers_answer_as_the_model_does(tmp_path):
    chosen = random.Random(SEED)
    minutes = MINUTES * (KILLS + 2)
    demo = DemoSettings(minutes=minutes, rate=RATE, seed=SEED, redis=REDIS)
    with ExitStack() as stack:
        per_day = demo.seconds / demo.days
        pipeline = WatchedPipeline(demo, tmp_path, stack, seconds_per_day=per_day)
        pipeline.begin(asked=1)
        told = [kill(pipeline, number, chosen) for number in range(KILLS)]
        accounts, last = finish(pipeline, chosen.randrange(2**32))
        answered = len(pipeline.requester.seconds)
    print("", *told, accounts, last, f"{answered:,} requests were answered", sep="\n")
    assert accounts.lost == 0 < accounts.due
    # The joiner may write examples after the trainer has ended.
    assert 0 < last.trained + accounts.repeated == last.position[0] <= accounts.examples
    assert answered > 0 == pipeline.requester.unanswered
