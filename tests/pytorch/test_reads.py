"""What happens to a table beside steps and reads, which `tests/contract` asks of all."""

import copy
import gc

import pytest

pytestmark = [pytest.mark.system, pytest.mark.quick]


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


def test_shapes_and_gradients_update_nothing(torch, trained):
    model, optimizer = trained()
    weight, table = model[0].weight, optimizer._tables[0]
    missed = table._missed
    known = weight.shape, len(weight), weight.grad, weight.device, weight.dtype, weight.numel()
    assert known and isinstance(weight, torch.nn.Parameter) and weight.requires_grad
    assert table._missed == missed > 0


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
