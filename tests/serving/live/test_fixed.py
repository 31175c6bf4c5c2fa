"""The server of a run answers what `cowclip score` writes, whatever the run was trained with."""

import json
import os
import shlex
import signal
import socket

import numpy as np
import pytest
from http_clients import URL, client_of
from server_process import ServerProcess

import cowclip_merlin as cc
from cowclip_merlin.cli import main
from cowclip_merlin.online.events.messages import encode_requests
from cowclip_merlin.serving.live.follower import FixedModel
from cowclip_merlin.serving.live.process import _request_of
from cowclip_merlin.serving.live.settings import ServingLimits

MODEL = "--batch-size 64 --epochs 1 --mlp 8 --embedding-dim 4 --dense-lr 0.02 --embedding-lr 0.05"
RUNS = {
    "deepfm": "",
    "dcnv2": "--tables per_field --update dense --batch-norm --activation dice",
    "wide_and_deep": "--continuous all --freeze-embeddings item --precision bfloat16",
    "dcn": "--update exact --tables sharded",
    "din": "",
}


def log_of(rows, seed):
    rng = np.random.default_rng(seed)
    items, users = rng.integers(0, 20, (rows, 4)), rng.integers(0, 30, rows)
    lines = ["y,watched,user,item,seen,price"]
    for (first, *seen), user, price in zip(items, users, rng.random(rows).round(3)):
        y, watched = (int(rng.random() < 0.2 + 0.6 * (i % 2)) for i in (first, user))
        shown = "|".join(f"i{i}" for i in seen[: user % 4])
        lines.append(f"{y},{9 * watched},u{user},i{first},{shown},{price if user % 5 else ''}")
    return "\n".join([*lines, ""])


@pytest.fixture(scope="module")
def folder(make_once):
    def make(folder):
        (folder / "log.csv").write_text(log_of(600, 1))
        (folder / "new.csv").write_text(log_of(90, 2).replace("u7,", "new,"))
        columns = ["--categorical", "user,item", "--multi", "seen"]
        columns += ["--share-embedding", "seen=item"]
        columns += ["--continuous", "price", "--log", "--freq-threshold", "2"]
        labels = {"DATA": ["y"], "NUMBER": ["watched", "--regression", "watched"]}
        for name, label in labels.items():
            words = ["prepare", "table", str(folder / "log.csv"), "--out", str(folder / name)]
            assert main([*words, *columns, "--label", *label]) == 0

    return make_once("fixed_runs", make)


def run_of(folder, out, data, model, more):
    words = ["train", str(folder / data), "--out", str(out), "--model", model]
    assert main([*words, *MODEL.split(), *more.split()]) == 0
    return out


def served(model, file):
    header, *lines = file.read_text().splitlines()
    rows = [dict(zip(header.split(","), line.split(","))) for line in lines]
    found = encode_requests(rows, model.features)
    assert not found.damaged
    return model.predict(found.events).probabilities


@pytest.mark.runs
@pytest.mark.parametrize("model", [*RUNS, "a number"])
def test_every_model_is_served(folder, model, tmp_path):
    data, how = ("DATA", RUNS[model]) if model in RUNS else ("NUMBER", "")
    run = run_of(folder, tmp_path / "RUN", data, model if model in RUNS else "deepfm", how)
    wanted = cc.score(run, folder / "new.csv").ravel()
    assert np.ptp(wanted) > 0.01
    atol = 4e-3 if "bfloat16" in how else 1e-6
    found = served(FixedModel.of_run(run).model, folder / "new.csv")
    np.testing.assert_allclose(found, wanted, atol=atol, rtol=1e-5)


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    return run_of(folder, tmp_path_factory.mktemp("fixed") / "RUN", "DATA", "deepfm", "")


@pytest.mark.system
@pytest.mark.quick
def test_the_command_serves_and_ends(folder, run, tmp_path):
    token = {"Authorization": "Bearer secret"}
    (tmp_path / "token").write_text("secret\n")
    with ServerProcess(run, "--token-file", tmp_path / "token", words=("serve",)) as server:
        server.wait_for(lambda: server.get("/ready"))
        rows = [{"user": "u3", "item": "i2", "seen": ["i1", "i9"], "price": None}]
        status, answer = server.predict(rows, **token)
        assert status == 200 and 0 < answer["predictions"][0] < 1
        assert server.predict(rows)[0] == 401
        shown = [line for line in server.lines if "try it: curl" in line]
        assert json.loads(shown[0].split("'")[1])["events"][0].keys() == rows[0].keys()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) in (0, 143)


@pytest.mark.runs
def test_a_port_that_is_taken_is_said_at_once(run, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(run), "--port", port]) == 2
    error = capsys.readouterr().err
    assert f"cannot listen at 127.0.0.1 port {port}: " in error and "another --port" in error


@pytest.mark.runs
def test_data_that_moved_are_given(folder, run, capsys):
    config = run / "config.json"
    text = config.read_text()
    config.write_text(text.replace(json.dumps(str(folder / "DATA")), '"/none/gone"'))
    try:
        assert main(["serve", str(run), "--port", "0"]) == 2
        assert "gone: no such folder" in (error := capsys.readouterr().err) and "--data" in error
        assert len(FixedModel.of_run(run, os.fspath(folder / "DATA")).model)
    finally:
        config.write_text(text)


@pytest.mark.runs
def test_columns_that_prepare_makes_of_others_are_made(tmp_path):
    """A date has an hour and a weekday: the server takes the date, as the log has it."""
    rng, rows = np.random.default_rng(3), 300
    times = [f"2026-11-{1 + i % 28:02} {i % 24:02}:30:00" for i in range(rows)]
    users = rng.integers(0, 9, rows)
    clicks = [int(rng.random() < (i % 24) / 24) for i in range(rows)]
    lines = [f"{y},u{user},{time}" for y, user, time in zip(clicks, users, times)]
    (tmp_path / "log.csv").write_text("\n".join(["y,user,date", *lines, ""]))
    words = f"prepare table {tmp_path}/log.csv --label y --categorical user --time date"
    assert main([*words.split(), "--out", str(tmp_path / "DATA")]) == 0
    run = run_of(tmp_path, tmp_path / "RUN", "DATA", "deepfm", "")
    model = FixedModel.of_run(run)
    wanted = cc.score(run, tmp_path / "log.csv")
    sent = [{"user": f"u{user}", "date": time} for user, time in zip(users, times)]

    with client_of(model, ServingLimits(max_batch=rows)) as client:
        answer = client.post(URL, json={"events": sent}).json()
        np.testing.assert_allclose(answer["predictions"], wanted, atol=1e-6)
        assert np.ptp(wanted) > 0.05 and {*model.example} == {"user", "date"}
        assert client.post(URL, json={"events": [model.example]}).status_code == 200
        wrong = [sent[0], {"user": "u1", "date": "someday"}, {"user": "u1"}]
        first, second = client.post(URL, json={"events": wrong}).json()["events"]
    assert "date is 'someday'" in first["reason"] and "no 'date'; give null" in second["reason"]


@pytest.mark.parametrize("has_token", [False, True])
def test_the_shown_request_is_for_every_curl_and_has_the_token(has_token):
    shown = _request_of({"user": "o'hara"}, "http://127.0.0.1:8000", has_token=has_token)
    program, *words = shlex.split(shown)
    assert program == "curl" and words[-1] == "http://127.0.0.1:8000/v1/predict"
    assert "--json" not in words  # curl 7.82; Ubuntu 22.04 has 7.81
    assert json.loads(words[words.index("-d") + 1]) == {"events": [{"user": "o'hara"}]}
    assert "Content-Type: application/json" in words
    assert ("Authorization: Bearer TOKEN" in words) == has_token
