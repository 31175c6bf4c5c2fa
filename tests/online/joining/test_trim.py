"""A join that removes what it has read."""

from joining import FEATURES, LOG, click, impression, open_joiner

from cowclip_merlin.online.joining import loop
from cowclip_merlin.online.joining.loop import JoinLoop
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.system.signals import GracefulStop

SETTINGS = JoinSettings(window=30, lateness=0)


def joined(folder, *, trim):
    logs = [FileLog(folder / name, segment_bytes=1) for name in ("i", "a", "to")]
    for i in range(40):
        logs[0].append([impression(str(i), 100 + i)])
        if i % 3 == 0:
            logs[1].append([click(str(i), 110 + i)])
    joiner, store = open_joiner(logs, SETTINGS, folder, features=FEATURES)
    more = {"idle": 1.0, "until_end": True, "trim": trim, "log": LOG, "stop": GracefulStop()}
    JoinLoop(joiner, *logs[:2], **more).run()
    store.close()
    return logs


def test_the_examples_are_the_same_and_the_logs_are_short(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "TRIM_EVERY", 0.0)
    monkeypatch.setattr(loop, "READ_AT_ONCE", 7)
    (tmp_path / "kept").mkdir()
    (tmp_path / "trimmed").mkdir()
    kept = joined(tmp_path / "kept", trim=False)
    trimmed = joined(tmp_path / "trimmed", trim=True)
    assert [m.value for m in trimmed[2].read(trimmed[2].start(), 99)] == [
        m.value for m in kept[2].read(kept[2].start(), 99)
    ]
    assert [log.start()[0] for log in kept] == [0, 0, 0]
    # All but the newest file of each.
    assert (
        trimmed[0].start()[0] == 39 and trimmed[1].start()[0] == 13 and trimmed[2].start()[0] == 0
    )
