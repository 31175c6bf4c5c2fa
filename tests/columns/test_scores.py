"""A run on every role scores a row alike offline, exported, in Triton, in a stream, over HTTP."""

import contextlib
import csv
import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import served
from data import LISTS, ROLES, ROWS, TEST_ROWS, VECTORS, as_text, features_of, frame
from http_clients import URL, client_of
from published import PublishedTrainer, follower_of

import cowclip_merlin as cc
from cowclip_merlin import compat, metrics
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import open_columns
from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.online.training.start import OfflineStart
from cowclip_merlin.serving.live.follower import FixedModel
from cowclip_merlin.serving.live.settings import ServingLimits
from cowclip_merlin.training import Scorer, evaluate_run, load_run
from cowclip_merlin.workflows import PrepareSettings, prepare

pytestmark = pytest.mark.runs
TARGETS = ROLES["labels"].columns
NAMES = ["probability_click", "probability_bought it", "prediction_seconds"]
INPUTS = [name for role in ROLES.values() for name in role.columns if name not in (*TARGETS, "w")]
ROLES_OF_INPUTS = [name for name in ROLES if name not in ("labels", "weight")]


@pytest.fixture(scope="module")
def scores(run, logs):
    """What `cowclip score` gives the rows of the log: float32 [n, 3]."""
    return cc.score(run.path, logs / "log.parquet")


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


class TestOffline:
    """Scores and metrics of files and frames."""

    @pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl", "frame", "texts"])
    def test_all_kinds_of_rows_score_alike(self, run, logs, scores, kind):
        rows = frame()[INPUTS]
        if kind == "texts":
            lists = [*LISTS, *VECTORS]
            rows = rows.assign(**{name: rows[name].map(as_text) for name in lists})
        given = logs / f"log.{kind}" if kind not in ("frame", "texts") else rows
        np.testing.assert_array_equal(cc.score(run.path, given), scores)
        assert scores.shape == (ROWS, 3) and (np.ptp(scores, axis=0) > 0.1).all()

    @pytest.mark.parametrize("name", ROLES_OF_INPUTS)
    def test_every_role_counts(self, run, scores, name):
        rows = frame().head(300)[INPUTS]
        other = rows.assign(**{c: [*rows[c][1:], rows[c][0]] for c in ROLES[name].columns})
        found = np.abs(cc.score(run.path, other) - scores[:300])
        assert (found.max(axis=0) > 1e-3).all()

    def test_prepared_rows_score_as_raw_ones(self, run, data, logs, scores, tmp_path, capsys):
        given = {"kind": "table", "files": (logs / "log.csv",), "like": data.path}
        prepare(PrepareSettings(out=tmp_path / "ALL", **given))
        evaluate_run(run.path, tmp_path / "ALL", predictions=tmp_path / "p.parquet")
        found = pd.read_parquet(tmp_path / "p.parquet")
        np.testing.assert_array_equal(found[NAMES], scores)
        words = ["score", str(run.path), str(logs / "log.csv"), "--out"]
        assert main([*words, str(tmp_path / "s.parquet")]) == 0
        np.testing.assert_array_equal(pd.read_parquet(tmp_path / "s.parquet")[NAMES], scores)

    def test_metrics_are_weighted_and_by_target(self, run, data, tmp_path):
        file = tmp_path / "p.parquet"
        result = evaluate_run(run.path, data.path, by="item", predictions=file)
        found, test = pd.read_parquet(file), open_columns(data, "test")
        assert [*result.targets] == [*TARGETS] and result.auc == run.row["test_auc"]
        assert run.row["test_auc"] == run.row["test_click_auc"]
        for name, kind in zip(TARGETS, NAMES):
            known = found[f"label_{name}"].notna().to_numpy()
            y, p, w = found[f"label_{name}"][known], found[kind][known], test.weight[known]
            np.testing.assert_array_equal(y, test.label[known, TARGETS.index(name)])
            each = result.targets[name]
            assert each.rows == known.sum()
            if name == "seconds":
                rmse = np.sqrt(np.average((y - p) ** 2, weights=w))
                assert each.rmse == run.row["test_seconds_rmse"] == pytest.approx(rmse)
                continue
            auc = metrics.roc_auc(y, p, sample_weight=w)
            assert each.auc == run.row[f"test_{name}_auc"] == auc != metrics.roc_auc(y, p)
            loss = metrics.log_loss(y, p, sample_weight=w)
            assert each.log_loss == run.row[f"test_{name}_log_loss"] == loss
            assert each.calibration == metrics.calibration(y, p, sample_weight=w)
            items = test.column(data.categorical.index("item"))[0][known]
            assert each.by.grouped.auc == metrics.grouped_auc(y, p, items, sample_weight=w).auc
        with (run.path / "reliability.csv").open(newline="") as lines:
            bins = [each for each in csv.DictReader(lines) if each["epoch"] == "2"]
        assert sum(int(each["rows"]) for each in bins) == (test.weight > 0).sum()
        assert len(found) == TEST_ROWS

    def test_what_is_written_of_a_run(self, run, data, capsys):
        assert "of 2 experts" in (run.path / "train.log").read_text()
        words = ["evaluate", str(run.path), str(data.path)]
        assert main([*words, "--by", "user", "--against", str(run.path)]) == 0
        said = capsys.readouterr().out
        assert "test click: 1" in said and "test seconds: " in said and "RMSE" in said
        assert said.count("AUC by user") == 2 and said.count("the same AUC as") == 2
        assert main([*words, "--by", "liked"]) == 2
        assert "unknown by 'liked'; choose one of user, item, note" in capsys.readouterr().err
        with (run.path / "diagnostics.csv").open(newline="") as file:
            groups = {row["group"] for row in csv.DictReader(file) if row["scope"] == "field"}
        assert groups == {"user", "item", "note", "tags seen"}

    def test_a_wrong_vector_is_named(self, run):
        rows = frame().head(4)[INPUTS].copy()
        rows.at[2, "old one"] = [1.0] * 3
        with pytest.raises(InputError, match="row 2, counted from 0: old one has 3 numbers, not 2"):
            cc.score(run.path, rows)

    def test_a_run_needs_its_targets(self, run, data_of):
        one, two = (
            data_of([name for name in ROLES if name != "labels"]),
            "has one label, but .* was",
        )
        with pytest.raises(InputError, match=f"{two} trained on click, bought it, seconds"):
            evaluate_run(run.path, one.path)


@pytest.fixture(scope="module")
def exported(run, data, tmp_path_factory):
    """The SavedModel of the run, and what the command says."""
    out, said = tmp_path_factory.mktemp("exported") / "MODEL", io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(["export", str(run.path), str(data.path), "--out", str(out), "--ids"]) == 0
    return SimpleNamespace(path=out, said=said.getvalue())


class TestExportedWithWorkflow:
    """A SavedModel takes raw values."""

    @pytest.fixture(scope="class")
    def saved(self, run, tmp_path_factory):
        out, said = tmp_path_factory.mktemp("raw") / "MODEL", io.StringIO()
        with contextlib.redirect_stdout(said):
            assert main(["export", str(run.path), "--out", str(out)]) == 0
        model = compat.tensorflow().saved_model.load(str(out))
        return SimpleNamespace(signatures=model.signatures, said=said.getvalue(), path=out)

    def inputs(self, saved, rows, *, ragged=False):
        """Tensors of raw rows, by the file that names the inputs."""
        tf, given = compat.tensorflow(), {}
        for name, column in cc.training.input_columns(saved.path).items():
            values = [*rows[column]]
            if column in VECTORS:
                given[name] = tf.constant(values, tf.float32)
            elif column == "age":
                numbers = [np.nan if x is None else x for x in values]
                given[name] = tf.constant(numbers, tf.float64)
            elif column not in LISTS:
                given[name] = tf.constant(["" if x is None else x for x in values])
            elif ragged:
                lists = tf.ragged.constant(values, dtype=tf.string)
                given[f"{name}__values"] = lists.values
                given[f"{name}__offsets"] = tf.cast(lists.row_splits, tf.int32)
            else:
                given[name] = tf.ragged.constant(values, dtype=tf.string).to_tensor("")
        return given

    def test_it_gives_the_scores(self, saved, scores, run):
        assert "takes raw values\n  string [b]: user, item, note\n" in saved.said
        assert 'string [b, k], filled with "": tags_seen (column' in saved.said
        assert "float64 [b]: age" in saved.said and "float32 [b, 3]: image" in saved.said
        assert "gives click, bought_it, seconds, float32 [b]" in saved.said
        new = frame()[INPUTS].head(3).assign(user=["new", None, "47.0"], item=[None, "new", "i1"])
        new["tags seen"] = [[], ["new", "t1"], ["", "t2", "t3", "t4", "t5"]]
        whole = frame()[INPUTS]
        for rows, wanted in ((whole, scores), (whole[:1], scores[:1]), (new, None)):
            wanted = cc.score(run.path, rows) if wanted is None else wanted
            for name, ragged in (("serving_default", False), ("serving_ragged", True)):
                found = saved.signatures[name](**self.inputs(saved, rows, ragged=ragged))
                outputs = [name.replace(" ", "_") for name in TARGETS]
                close(np.stack([found[name] for name in outputs], axis=1), wanted)

    def test_what_it_cannot_score(self, saved):
        tf = compat.tensorflow()
        given = self.inputs(saved, frame()[INPUTS].head(2))
        wrong = given | {"age": tf.constant([1e300, 1.0], tf.float64)}
        found = saved.signatures["serving_default"](**wrong)["click"].numpy()
        assert np.isnan(found).tolist() == [True, False]
        ragged = self.inputs(saved, frame()[INPUTS].head(2), ragged=True)
        ragged["liked__offsets"] = ragged["liked__offsets"] * 0
        with pytest.raises(tf.errors.InvalidArgumentError, match="liked__offsets must end with"):
            saved.signatures["serving_ragged"](**ragged)


class TestExported:
    """A SavedModel takes what a scorer makes of raw rows."""

    @pytest.fixture(scope="class")
    def inputs(self, run, logs):
        return Scorer(run.path).inputs(logs / "log.parquet")

    def test_inputs_of_a_scorer(self, run, inputs, exported):
        assert "int64 [b, k], filled with 0: tags_seen (column 'tags seen'), liked" in exported.said
        assert "float32 [b, 3]: image" in exported.said
        assert "gives click, bought_it, seconds, float32 [b]" in exported.said
        ids = {name: "int64" for name in ("user", "item", "note", *LISTS)}
        numbers = {name: "float32" for name in ("age", *VECTORS)}
        assert {name: x.dtype.name for name, x in inputs.items()} == ids | numbers
        assert (inputs["liked"][:, -1] == 0).any(), "some row must be filled up"
        empty = Scorer(run.path).inputs(frame()[INPUTS].head(0))
        assert [x.shape[0] for x in empty.values()] == [0] * len(INPUTS)

    def test_all_ways_to_call_it(self, run, data, exported, inputs, scores):
        tf = compat.tensorflow()
        given = {name: tf.constant(x) for name, x in inputs.items()}
        saved = tf.saved_model.load(str(exported.path))
        served_by = {"default": saved.signatures["serving_default"](**given)}
        lists = {name: tf.RaggedTensor.from_tensor(given[name], padding=0) for name in LISTS}
        ragged = {k: v for k, v in given.items() if k not in LISTS}
        for name, x in lists.items():
            ragged |= {
                f"{name}__values": x.values,
                f"{name}__offsets": tf.cast(x.row_splits, tf.int32),
            }
        served_by["ragged"] = saved.signatures["serving_ragged"](**ragged)
        models = load_run(run.path, data.path), cc.load_model(str(exported.path))
        found = [*served_by.values(), *(model.predict(inputs, verbose=0) for model in models)]
        for each in (*found, models[0](given | lists)):
            close(np.stack([self.of_label(each, name) for name in TARGETS], axis=1), scores)
        some = {name: x[:1] for name, x in given.items()}
        for wrong, words in (
            ({"liked": tf.constant([[99]], tf.int64)}, "liked"),
            ({"image": some["image"] * np.nan}, "not finite"),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match=words):
                saved.signatures["serving_default"](**some | wrong)
        for wrong, words in (
            ({"liked__values": ragged["liked__values"] * 0 + 99}, "liked"),
            ({"liked__offsets": ragged["liked__offsets"][:-1]}, "liked__offsets must end with"),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match=words):
                saved.signatures["serving_ragged"](**ragged | wrong)

    def of_label(self, outputs, name):
        """TensorFlow's names have no spaces; a model's outputs have more behind the label."""
        names = (name, name.replace(" ", "_"))
        (found,) = (x for output, x in outputs.items() if output.startswith(names))
        return np.reshape(found, -1)

    def test_triton_takes_raw_rows(self, run, data, scores, tmp_path, capsys, monkeypatch):
        monkeypatch.setitem(sys.modules, "triton_python_backend_utils", None)  # put back at the end
        words = ["export", str(run.path), str(data.path), "--out", str(tmp_path / "REPO")]
        assert main([*words, "--triton", "--max-batch-size", "300"]) == 0
        rows = [
            {
                name: ("" if x is None and name != "age" else np.nan if x is None else x)
                for name, x in row.items()
            }
            for row in frame()[INPUTS].to_dict("records")
        ]
        broken = rows[1] | {"image": [0.0, np.nan, 1.0]}
        batches = [[rows[:1]], [rows[1:90], [broken]], [rows[90:300], rows[300:301]]]
        first, second, third = served.serve(tmp_path / "REPO" / "ctr", "1", batches)
        answers = [first[0], second[0], *third]
        assert {tuple(each) for each in answers} == {TARGETS}
        found = [np.concatenate([each[name] for each in answers]) for name in TARGETS]
        close(np.stack(found, axis=1), scores[:301])
        assert second[1] == "image has a number that is not finite; give a whole vector"
        config = tmp_path / "REPO/ctr/config.pbtxt"
        config.write_text(config.read_text().replace("[ -1, 3 ]", "[ -1, 4 ]"))
        with pytest.raises(ValueError, match=r"inputs image; .*config\.pbtxt"):
            served.serve(tmp_path / "REPO" / "ctr", "1", [])


def features_from(data):
    """A features file that takes the scales of numbers from a prepared folder."""
    scale = "{name: age, transform: none, minimum: 0, maximum: 90}"
    return features_of(*ROLES).replace(scale, "age") + f"prepared: {data.path}\n"


@pytest.fixture(scope="module")
def stream(data, run, settings_of, tmp_path_factory):
    """A trainer that has started from the run, which it has published; and a client."""
    folder = tmp_path_factory.mktemp("stream")
    (folder / "f.yaml").write_text(features_from(data), encoding="utf-8")
    features = load_features(folder / "f.yaml")
    settings = settings_of(batch_size=64, multi_task="mmoe", experts=2)
    made = PublishedTrainer(settings, features, folder / "run", FileLog(folder / "sync"))
    OfflineStart(run.path, data.path, made.trainer).apply(0)
    made.event_time = 0
    made.start()
    made.sync()
    with client_of(follower_of(made)) as client:
        yield made.trainer, client


class TestFixed:
    """The server of a run that is trained no further."""

    @pytest.fixture(scope="class")
    def server(self, run):
        with client_of(FixedModel.of_run(run.path), ServingLimits(), log_name="RUN") as client:
            yield client

    def predictions(self, server, rows):
        events = json.loads(json.dumps(rows.to_dict("records"), default=float))
        answer = server.post(URL, json={"events": events})
        assert answer.status_code == 200, answer.text
        return [[*each.values()] for each in answer.json()["predictions"]]

    @pytest.mark.parametrize("texts", [False, True])
    def test_it_answers_the_scores(self, server, scores, texts):
        rows = frame()[INPUTS].head(1000)
        if texts:
            rows = rows.assign(**{n: rows[n].map(as_text) for n in (*LISTS, *VECTORS)})
        close(self.predictions(server, rows), scores[:1000])
        close(self.predictions(server, rows[7:8]), scores[7:8])

    def test_values_that_are_new_or_missing(self, run, server):
        rows = frame()[INPUTS].head(3).copy()
        rows["user"] = ["new", None, ""]
        rows["item"] = [None, "new", "i1"]
        rows["age"] = pd.Series([None, 7, 1e9], dtype=object)
        rows["tags seen"] = [[], ["new", "t1"], ["", "t2", "t3", "t4", "t5"]]
        close(self.predictions(server, rows), cc.score(run.path, rows))

    def test_its_pages_are_those_of_a_run(self, server):
        status = server.get("/v1/status").json()
        assert (status["run"], status["log"], status["state"]) == ("RUN", None, "serving")
        assert "cowclip_ready 1.0" in server.get("/metrics").text
        assert server.get("/ready").json() == {"ready": True}
        document = server.get("/openapi.json").json()
        assert "of a run" in document["info"]["description"]
        body = document["paths"][URL]["post"]["requestBody"]["content"]["application/json"]
        assert {*body["example"]["events"][0]} == {*INPUTS}
        assert server.post(URL, json=body["example"]).status_code == 200

    @pytest.mark.parametrize("name", ROLES_OF_INPUTS)
    def test_a_wrong_request_is_one_line(self, server, name):
        usual = json.loads(json.dumps(frame()[INPUTS].to_dict("records")[0], default=float))
        for column, value, reason in ROLES[name].messages:
            if "\ud800" in str(value) or (isinstance(value, list) and value[:1] == [10**400]):
                continue  # the client cannot send it
            body = json.dumps({"events": [usual | {column: value}]})
            answer = server.post(URL, content=body, headers={"content-type": "application/json"})
            error = answer.json()["error"]
            assert answer.status_code in (400, 422) and "\n" not in error
            assert error.startswith(f"event 0: {reason}") or "NaN" in body or "Infinity" in body
        first = ROLES[name].columns[0]
        lacking = {f"{k}s" if k == first else k: v for k, v in usual.items()}
        error = server.post(URL, json={"events": [lacking]}).json()["error"]
        assert error.startswith(f"event 0: no {first!r}, but '{first}s'; give ")


class TestOnline:
    """A stream that starts from the run, and its server."""

    @pytest.mark.parametrize("kind", ["csv", "parquet"])
    def test_a_stream_scores_as_its_start(self, stream, logs, scores, kind):
        trainer = stream[0]
        log = EventLog([logs / f"log.{kind}"], trainer.features)
        close(np.concatenate([trainer.predict(events) for events in log]), scores)

    @pytest.mark.parametrize("texts", [False, True])
    def test_a_server_answers_the_scores(self, stream, scores, texts):
        rows = frame()[INPUTS].head(6)
        if texts:
            rows = rows.assign(**{n: rows[n].map(as_text) for n in (*LISTS, *VECTORS)})
        asked = json.loads(json.dumps(rows.to_dict("records"), default=float))
        answer = stream[1].post(URL, json={"events": asked})
        assert answer.status_code == 200
        found = answer.json()["predictions"]
        assert [[*each] for each in found] == [[*TARGETS]] * 6
        close([[*each.values()] for each in found], scores[:6])
        assert stream[1].get("/v1/status").json()["model"]["vectors"] == VECTORS

    def test_the_answer_is_described(self, stream):
        schemas = stream[1].get("/openapi.json").json()["components"]["schemas"]
        kinds = schemas["Predictions"]["properties"]["predictions"]["anyOf"]
        number, by_name = (kind["items"] for kind in kinds)
        assert number == {"type": "number"}
        assert by_name == {"type": "object", "additionalProperties": {"type": "number"}}

    @pytest.mark.parametrize("name", ROLES_OF_INPUTS)
    def test_a_wrong_request_is_one_line(self, stream, name):
        usual = json.loads(json.dumps(frame()[INPUTS].to_dict("records")[0], default=float))
        for column, value, reason in ROLES[name].messages:
            if "\ud800" in str(value) or (isinstance(value, list) and value[:1] == [10**400]):
                continue  # the client cannot send it
            body = json.dumps({"events": [usual, usual | {column: value}]})
            answer = stream[1].post(URL, content=body, headers={"content-type": "application/json"})
            error = answer.json()["error"]
            assert answer.status_code in (400, 422) and "\n" not in error
            assert error.startswith(f"event 1: {reason}") or "NaN" in body or "Infinity" in body

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            (ROLES["vector"].features, r"its vectors are image \(3\), old one \(2\), but those of"),
            ("length: 3", "but those of the features file are"),
            (ROLES["list"].features, "'tags seen' has several values .*; add its `separator`"),
            ("keep: last}", "mean, not sum"),
            (", table: item", r"column 'liked' has the ids of 'item', .*`table: item`"),
            (ROLES["labels"].features, "name the same `label` and `regression`"),
            ("experts", "was trained with experts 2, not 3"),
            ("regression: seconds", r"its labels are .*, seconds \(a number\), but those"),
        ],
    )
    def test_a_start_needs_the_roles_of_its_run(
        self, data, run, settings_of, tmp_path, line, reason
    ):
        change = {"length: 3": "length: 4", ROLES["labels"].features: "label: click\n"}
        change |= {ROLES["list"].features: "- tags seen\n"}
        change |= {"keep: last}": "keep: last, combiner: sum}"}
        text = features_from(data).replace(line, change.get(line, ""))
        (tmp_path / "f.yaml").write_text(text, encoding="utf-8")
        features = load_features(tmp_path / "f.yaml")
        several = (
            {"multi_task": "mmoe", "experts": 3 if line == "experts" else 2}
            if len(features.labels) > 1
            else {}
        )
        settings = settings_of(batch_size=64, **several)
        trainer = SimpleNamespace(features=features, settings=settings)
        with pytest.raises(InputError, match=reason):
            OfflineStart(run.path, data.path, trainer)
