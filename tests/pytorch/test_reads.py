"""Nobody reads a row of a table that has missed a step."""

import copy
import gc
import io

import numpy as np
import pytest

pytestmark = [pytest.mark.system, pytest.mark.quick]

READS = {
    "lookup": lambda torch, layer: layer(torch.arange(60)),
    "functional": lambda torch, layer: torch.nn.functional.embedding(
        torch.arange(60), weight=layer.weight
    ),
    "data": lambda torch, layer: layer.weight.data,
    "detach": lambda torch, layer: layer.weight.detach(),
    "arithmetic": lambda torch, layer: layer.weight * 1,
    "index": lambda torch, layer: layer.weight[:],
    "list": lambda torch, layer: torch.cat([layer.weight]),
    "numpy": lambda torch, layer: torch.as_tensor(layer.weight.detach().numpy()),
    "transposed": lambda torch, layer: layer.weight.T.T,
    "tolist": lambda torch, layer: torch.tensor(layer.weight.tolist()),
    "state_dict": lambda torch, layer: layer.state_dict()["weight"],
    "copied": lambda torch, layer: copy.deepcopy(layer).weight,
    "moved": lambda torch, layer: layer.weight.to("cpu", torch.float64).float(),
    "saved": lambda torch, layer: saved_and_loaded(torch, layer).weight,
    "parameters": lambda torch, layer: next(iter(layer.parameters())) + 0,
}


def saved_and_loaded(torch, layer):
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.fixture
def trained(torch, model_of, batches, train):
    """`trained(update)`: a model and its optimizer after some steps."""
    from cowclip_merlin.torch import CowClip

    def make(update="exact", steps=30, **more):
        model = model_of()
        optimizer = CowClip(model, 1e-2, l2=1e-3, update=update, **more)
        train(model, optimizer, batches(steps))
        return model, optimizer

    return make


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_every_read_is_of_rows_that_are_up_to_date(torch, trained, read, mode):
    (model, _), (dense, _) = trained(), trained("dense")
    getattr(model, mode)()
    want = dense[0].weight.detach()
    kept = model[0].weight.untyped_storage  # a name alone reads nothing
    with torch.no_grad():
        found = READS[read](torch, model[0]).detach()
    assert kept is not None
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-7)


def test_a_lookup_updates_its_rows_alone(torch, trained):
    model, optimizer = trained()
    table = optimizer._tables[0]
    behind = np.flatnonzero(table._last.numpy() < table._missed)
    assert len(behind) > 10
    model[0](torch.as_tensor(behind[:2]))
    still = np.flatnonzero(table._last.numpy() < table._missed)
    np.testing.assert_array_equal(still, behind[2:])


def test_shapes_and_gradients_update_nothing(torch, trained):
    model, optimizer = trained()
    weight, table = model[0].weight, optimizer._tables[0]
    missed = table._missed
    known = weight.shape, len(weight), weight.grad, weight.device, weight.dtype, weight.numel()
    assert known and isinstance(weight, torch.nn.Parameter) and weight.requires_grad
    assert table._missed == missed > 0


def test_what_a_user_writes_is_not_replayed(torch, trained):
    model, _ = trained()
    with torch.no_grad():
        model[0].weight.fill_(0.25)
    assert (model[0].weight == 0.25).all()


def test_other_memory_of_a_table_is_trained(torch, trained, batches, train):
    (model, optimizer), (dense, same) = trained(), trained("dense")
    for each, of_it in ((model, optimizer), (dense, same)):
        each[0].weight.data = torch.ones(60, 3)
        assert (each[0].weight == 1).all()
        train(each, of_it, batches(5))
        assert (each[0].weight != 1).any()
    torch.testing.assert_close(model[0].weight.data, dense[0].weight.data, rtol=1e-5, atol=1e-7)


def test_a_model_without_its_optimizer_is_whole(torch, trained):
    (model, optimizer), (dense, _) = trained(), trained("dense")
    weight = model[0].weight
    del optimizer
    gc.collect()
    assert type(weight) is torch.nn.Parameter
    torch.testing.assert_close(weight.data, dense[0].weight.data, rtol=1e-5, atol=1e-7)


def test_a_second_optimizer_takes_the_table(torch, trained, batches, train):
    from cowclip_merlin.torch import CowClip

    (model, first), (dense, _) = trained(), trained("dense")
    second = CowClip(model, 1e-2)
    torch.testing.assert_close(model[0].weight.data, dense[0].weight.data, rtol=1e-5, atol=1e-7)
    del first
    gc.collect()
    train(model, second, batches(3))
    assert second._tables[0]._missed == 3


@pytest.mark.parametrize("steps", [5, 12])
def test_a_long_training_updates_all_rows_now_and_then(torch, trained, monkeypatch, steps):
    monkeypatch.setattr("cowclip_merlin.torch.tables.HISTORY", 5)
    (model, optimizer), (dense, _) = trained(steps=steps), trained("dense", steps=steps)
    assert optimizer._tables[0]._missed == steps % 5
    torch.testing.assert_close(model[0].weight.data, dense[0].weight.data, rtol=1e-5, atol=1e-7)


def test_the_state_of_adam_is_taken(torch, model_of, batches, train):
    """A training by `torch.optim.Adam` goes on by `CowClip`, with the same steps."""
    from cowclip_merlin.torch import CowClip

    dense, ours = model_of(sparse=False), model_of()
    layers = [{"params": dense[0].parameters(), "weight_decay": 2e-3}]
    adam = torch.optim.Adam([*layers, {"params": dense[2].parameters()}], lr=1e-2)
    train(dense, adam, batches(20))
    optimizer = CowClip(ours, 1e-2, l2=1e-3, clip="none")
    ours.load_state_dict(dense.state_dict())
    state, own = copy.deepcopy(adam.state_dict()), optimizer.state_dict()
    optimizer.load_state_dict({"state": state["state"], "param_groups": own["param_groups"]})
    train(dense, adam, batches(20, seed=5))
    train(ours, optimizer, batches(20, seed=5))
    for a, b in zip(ours.parameters(), dense.parameters()):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-5, atol=1e-6)
