"""What servers get of the changes of several workers."""

import numpy as np

from cowclip_merlin.online.sync.served_changes import ChangedRows
from cowclip_merlin.online.training import workers
from cowclip_merlin.tables.expiry import Dropped
from cowclip_merlin.tables.serving_table import Changes


def changed(rows, fields, ids, gone, values):
    """Changes of one worker; the values of both tables begin with these numbers."""
    first = np.asarray(values, np.float32)[:, None]
    tables = [np.hstack([first, first + 0.5, first + 0.25]), -first]
    columns = (np.asarray(x, np.int64).reshape(-1) for x in (fields, ids))
    dropped = Dropped(*(np.asarray(x, np.int64).reshape(-1) for x in gone))
    return ChangedRows(Changes(np.asarray(rows, np.int32), *columns, dropped), tables)


def test_rows_of_absent_ids_once_and_then_all_others(monkeypatch):
    parts = [
        changed([0, 5], [0, 1], [0, -7], ([1], [9]), [1, 2]),
        changed([], [], [], ([], []), []),
        changed([0, 1, 5], [0, 1, 0], [0, 0, 1 << 60], ([0, 1], [3, 4]), [1, 3, 4]),
    ]
    packed = []
    monkeypatch.setattr(workers, "_of_all", lambda _, own: packed.append(own) or own)
    for part in parts:
        workers.gather_changes(None, part, 2)
    every = [np.concatenate(packed[0::2]), np.concatenate(packed[1::2])]
    monkeypatch.setattr(workers, "_of_all", lambda *_: every.pop(0))
    found = workers.gather_changes(None, parts[0], 2)
    assert found.changes.rows.tolist() == [0, 1, 2, 3]
    assert found.changes.fields.tolist() == [0, 1, 1, 0]
    assert found.changes.ids.tolist() == [0, 0, -7, 1 << 60]
    assert [x.tolist() for x in found.changes.gone] == [[1, 0, 1], [9, 3, 4]]
    assert found.values[0][:, 0].tolist() == [1, 3, 2, 4]
    assert found.values[0][:, 2].tolist() == [1.25, 3.25, 2.25, 4.25]
    assert found.values[1].tolist() == [[-1], [-3], [-2], [-4]]
