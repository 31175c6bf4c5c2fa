"""Dropout, batch normalization and other activations in online training."""

import numpy as np
import pytest
from streams import EVENTS, FEATURES, messages, stream_trainer
from test_server_messages import Server
from tiers import thorough

from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.online.training.dense_scorer import DenseScorer
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.tables.snapshot import load_snapshot

LAYERS = {"activation": "dice", "batch_norm": True, "dropout": 0.3}


@pytest.mark.runs
@pytest.mark.parametrize(
    ("model", "how"),
    [
        ("deepfm", LAYERS),
        thorough("dcn", LAYERS | {"precision": "bfloat16"}),
        thorough("dcnv2", {"activation": "gelu", "batch_norm": True}),
        thorough("wide_and_deep", LAYERS | {"jit_compile": True}),
    ],
)
def test_servers_have_the_inference_form(tmp_path, settings_of, events, model, how):
    settings = settings_of(model, batch_size=32, table={"capacity": 3000}, **how)
    work = stream_trainer(tmp_path / "run", settings, events, FileLog(tmp_path / "sync"))
    work.run()
    server, batch = Server(work.trainer), encode_messages(messages(range(EVENTS)), FEATURES)[0]
    wanted = work.trainer.predict(batch)
    server.apply_all(FileLog(tmp_path / "sync"))
    np.testing.assert_allclose(server.predict(batch), wanted, atol=1e-6)
    np.testing.assert_array_equal(server.predict(batch), server.predict(batch))
    begun = DenseScorer(settings, FEATURES)  # a server that starts with a snapshot
    begun.restore(load_snapshot(tmp_path / "run/snapshots").arrays, "trainer.dense")
    for mine, theirs in zip(begun.variables, server.scorer.variables, strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=mine.name)
    moving = [x.numpy() for x in begun.variables if "moving_mean" in x.name]
    assert len(moving) == 1 + (how["activation"] == "dice") and all(map(np.any, moving))
    new = OnlineTrainer(settings, FEATURES)
    new.restore({name: x.copy() for name, x in work.trainer.state().items()})
    np.testing.assert_array_equal(new.predict(batch), wanted)
    for variable in new.dense_variables:  # so scores need the moving statistics
        if "moving_" in variable.name:
            variable.assign(np.full(variable.shape, float("variance" in variable.name)))
    assert np.abs(new.predict(batch) - wanted).max() > 1e-3
