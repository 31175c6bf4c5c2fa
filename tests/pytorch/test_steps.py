"""Steps of `cowclip_merlin.torch.CowClip` beside those of PyTorch's Adam, and counts of ids."""

import math

import pytest
from emulated_cupy import COMPILER, load_kernels

pytestmark = [pytest.mark.system, pytest.mark.quick]
ROWS, DIM, FIELDS = 60, 3, 4


@pytest.fixture(scope="session")
def emulated(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("no g++ on PATH")
    return load_kernels(tmp_path_factory.mktemp("emulated"))


@pytest.fixture(params=["numba", "cupy"])
def cowclip(request, torch, monkeypatch):
    """The class, with the kernels of the CPU or those of a GPU on the CPU."""
    from cowclip_merlin import torch as front_end

    if request.param == "cupy":
        kernels = request.getfixturevalue("emulated")
        monkeypatch.setattr("cowclip_merlin.kernels.load", lambda name: kernels)
    return front_end.CowClip


def adam_of(torch, model, l2):
    groups = [{"params": model[0].parameters(), "weight_decay": 2 * l2}]
    return torch.optim.Adam([*groups, {"params": model[2].parameters()}], lr=1e-2)


@pytest.mark.parametrize("update", ["exact", "dense"])
@pytest.mark.parametrize(
    ("bag", "l2"),
    [(None, 1e-3), (None, 0.0), ("sum", 1e-3), ("mean", 1e-4), ("weighted", 1e-3)],
)
def test_without_a_clip_weights_are_those_of_adam(
    torch, cowclip, model_of, batches, train, update, bag, l2
):
    """Also with rates that a schedule changes, over steps that most rows miss."""
    ours, theirs = model_of(bag=bag), model_of(bag=bag, sparse=False)
    optimizer = cowclip(ours, 1e-2, l2=l2, clip="none", update=update)
    adam = adam_of(torch, theirs, l2)
    for model, each in ((ours, optimizer), (theirs, adam)):
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(each, 500)
        train(model, each, batches(500), falling)
    for mine, other in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(mine.detach(), other.detach(), rtol=2e-5, atol=2e-5)
    state = optimizer.state[ours[0].weight], adam.state[theirs[0].weight]
    for name in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(*(x[name] for x in state), rtol=1e-3, atol=1e-7)


def clipped_counts(optimizer, table):
    """The counts of a first step with l2=0, r=0 and zeta=1, if all rows were clipped."""
    return optimizer.state[table.weight]["exp_avg"].norm(dim=1) / 0.1 / math.sqrt(DIM)


@pytest.mark.parametrize("rows", [6, ROWS])
@pytest.mark.parametrize("passes", [1, 2, 5])
def test_counts_are_of_all_lookups_before_a_step(torch, cowclip, model_of, rows, passes):
    """Also where PyTorch sums equal ids: of equal batches, or of many for a small table."""
    model = model_of(rows=rows)
    optimizer = cowclip(model, 1e-2, l2=0.0, zeta=1.0, r=0.0)
    table, ids = model[0], torch.tensor([3, 3, 5])
    table(ids)  # without a gradient
    (1e3 * table(ids).sum()).backward()
    optimizer.zero_grad()
    for i in range(passes):
        (1e3 * (table(ids.roll(i % 3)).sum() + table(ids[:1]).sum())).backward()
    assert passes < 5 or rows > 6 or table.weight.grad._nnz() < 20
    optimizer.step()
    counts = clipped_counts(optimizer, table)
    assert counts[[3, 5]].tolist() == pytest.approx([3 * passes, passes], rel=1e-5)
    assert counts.sum() < 4.001 * passes


@pytest.mark.parametrize("set_to_none", [True, False])
def test_counts_begin_anew_with_the_gradient(torch, cowclip, model_of, set_to_none):
    """Whoever sets it to none or to zeros."""
    model = model_of(rows=6)
    optimizer = cowclip(model, 1e-2, l2=0.0, zeta=1.0, r=0.0)
    (1e3 * model[0](torch.tensor([1, 3, 3, 4])).sum()).backward()
    model.zero_grad(set_to_none=set_to_none)
    (1e3 * model[0](torch.tensor([3])).sum()).backward()
    optimizer.step()
    assert clipped_counts(optimizer, model[0]).tolist() == pytest.approx(
        [0, 0, 0, 1, 0, 0], abs=1e-5
    )


def test_gradients_that_are_kept_nowhere_do_not_count(torch, cowclip, model_of):
    model = model_of(rows=6)
    optimizer = cowclip(model, 1e-2, l2=0.0, zeta=1.0, r=0.0)
    table, ids = model[0], torch.tensor([1, 3, 3])

    def look_up():
        found = table(ids)
        return found, 1e3 * found.sum()

    for _ in range(2):
        found, loss = look_up()
        torch.autograd.grad(loss, found)
        torch.autograd.grad(look_up()[1], table.weight)
        look_up()[1].backward()
    torch.autograd.grad(look_up()[1], table.weight)
    optimizer.step()
    counts = clipped_counts(optimizer, table).tolist()
    assert counts == pytest.approx([0, 2, 0, 4, 0, 0], abs=1e-5)


def test_a_backward_pass_that_failed_does_not_count(torch, cowclip, model_of):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise MemoryError("as where a GPU has no room")

    model = model_of(rows=6)
    optimizer = cowclip(model, 1e-2, l2=0.0, zeta=1.0, r=0.0)
    table, ids = model[0], torch.tensor([3, 3, 5])
    with pytest.raises(MemoryError):
        (Fails.apply(table(ids)).sum() + table(ids).sum()).backward()
    (1e3 * table(ids)).sum().backward()
    optimizer.step()
    assert clipped_counts(optimizer, table)[[3, 5]].tolist() == pytest.approx([2, 1], rel=1e-5)
    assert not table.weight.table._read


def test_rows_at_a_padding_index_stay(torch, cowclip):
    layer = torch.nn.Embedding(5, DIM, padding_idx=0, sparse=True)
    optimizer = cowclip(layer, 0.1, l2=0.0)
    before = layer.weight.detach().clone()
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.tensor([0, 0, 2])).sum().backward()
        optimizer.step()
    changed = (layer.weight != before).any(dim=1)
    assert changed.tolist() == [False, False, True, False, False]
