"""HugeCTR's models of `peers.py`: every call fits the signatures, and every tensor the graph."""

import re
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS_OF_MODELS = {"wide_and_deep": "W&D", "deepfm": "DeepFM", "dcn": "DCN"}
VERSIONS = ("23.12", "24.06")


def parameters_on_the_page(name):
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    found = re.search(rf"^\| {re.escape(ROWS_OF_MODELS[name])} \| ([\d,]+) \|", page, re.MULTILINE)
    return int(found[1].replace(",", ""))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ROWS_OF_MODELS)
def test_every_model_fits_together_and_has_our_weights(peer, generated_log, version, name):
    model = peer(version).build(name)
    assert model.graph.parameters == parameters_on_the_page(name)
    columns = 10 if name == "dcn" else 11  # the last one is the first-order weight
    assert model.graph.tables == [(list(generated_log.fields.values()), columns)]
    assert model.graph.unread() == {"loss"} and model.compiled


def test_the_adam_is_that_of_the_other_peers(peer):
    made = peer("24.06")
    for update in ("Local", "Global", "LazyGlobal"):
        made.build("deepfm", update)
        fake = made.fake
        (given,) = [given for name, given in fake.calls if name == "CreateOptimizer"]
        assert given == {
            "optimizer_type": fake.Optimizer_t.Adam,
            "update_type": fake.Update_t[update],
            "beta1": 0.9,
            "beta2": 0.999,
            "epsilon": 1e-7,
        }


def test_the_stand_in_refuses_missing_unknown_and_wrong_arguments(peer):
    """Each call of the benchmark, with one argument removed, added or replaced."""
    from hugectr_signatures import arguments

    made, removed = peer("24.06"), 0
    fake = made.fake
    for name in ROWS_OF_MODELS:
        made.build(name)
        for call, given in fake.calls:
            fake.checked(call, given)
            with pytest.raises(TypeError, match="misspelled is unknown"):
                fake.checked(call, given | {"misspelled": 1})
            for argument, described in arguments(call, "24.06").items():
                if argument in given:
                    with pytest.raises(TypeError, match="incompatible type"):
                        fake.checked(call, given | {argument: object})
                if described.default is None:
                    rest = {k: v for k, v in given.items() if k != argument}
                    with pytest.raises(TypeError, match=f"{argument} is missing"):
                        fake.checked(call, rest)
                    removed += 1
    assert removed > 100


def rebuilt(fake, changed=None, **changes):
    """Build a recorded model again; optionally change the arguments of one call."""
    from hugectr_graph import Graph

    graph = Graph(64)
    add = {
        "Input": graph.add_input,
        "SparseEmbedding": graph.add_embedding,
        "DenseLayer": graph.add_layer,
    }
    for index, (call, given) in enumerate(fake.calls):
        if call in add:
            values = given | changes if index == changed else given
            add[call](types.SimpleNamespace(**fake.checked(call, values)))
    return graph


def test_a_misspelled_tensor_is_refused(peer):
    from hugectr_graph import GraphError

    made = peer("24.06")
    fake, model = made.fake, made.build("deepfm")
    assert rebuilt(fake).shapes == model.graph.shapes
    tried = 0
    for index, (_, given) in enumerate(fake.calls):
        for argument in ("bottom_names", "top_names"):
            for place, tensor in enumerate(given.get(argument, ())):
                names = [*given[argument]]
                if tensor == "loss":
                    continue
                for wrong in (tensor + "x", "label" if argument == "top_names" else "nothing"):
                    names[place] = wrong
                    with pytest.raises(GraphError):
                        rebuilt(fake, index, **{argument: names})
                    tried += 1
        for argument in ("bottom_name", "sparse_embedding_name", "label_name", "dense_name"):
            if argument in given:
                with pytest.raises(GraphError):
                    rebuilt(fake, index, **{argument: "misspelled"})
                tried += 1
    assert tried > 50
