"""What users of PyTorch put around an optimizer, and what is refused."""

import os
import subprocess
import sys

import pytest

from cowclip_merlin.errors import InputError

pytestmark = [pytest.mark.system, pytest.mark.quick]


@pytest.fixture
def cowclip(torch):
    from cowclip_merlin.torch import CowClip

    return CowClip


def losses(torch, model, batches):
    for ids, labels in batches:
        yield torch.nn.functional.binary_cross_entropy_with_logits(model(ids), labels)


def same_weights(torch, a, b, **close):
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(x.detach(), y.detach(), **close)


def test_a_gradient_scaler_skips_what_overflows(torch, cowclip, model_of, batches):
    plain, scaled = model_of(), model_of()
    one, other = cowclip(plain, 1e-2), cowclip(scaled, 1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for k, (loss, same) in enumerate(
        zip(losses(torch, plain, batches(12)), losses(torch, scaled, batches(12)))
    ):
        for optimizer in (one, other):
            optimizer.zero_grad()
        loss.backward()
        scaler.scale(same * (float("inf") if k == 5 else 1.0)).backward()
        if k != 5:
            one.step()
        scaler.step(other)
        scaler.update()
    same_weights(torch, plain, scaled, rtol=1e-5, atol=1e-7)


def test_gradients_are_clipped_by_norm_before(torch, cowclip, model_of, batches):
    """PyTorch's own function, on all gradients; ids keep their counts."""
    model = model_of()
    optimizer = cowclip(model, 1e-2, clip="none", l2=0.0)
    (loss,) = losses(torch, model, batches(1))
    loss.backward()
    before = model[0].weight.grad.to_dense()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    assert norm > 0.01
    optimizer.step()
    moments = optimizer.state[model[0].weight]["exp_avg"]
    torch.testing.assert_close(moments, 0.1 * before * 0.01 / norm, rtol=1e-4, atol=1e-9)


def test_the_dense_part_may_be_compiled_without_the_tables(
    torch, cowclip, model_of, batches, train
):
    plain, compiled = model_of(), model_of()
    compiled[2].compile(backend="eager")
    for model in (plain, compiled):
        train(model, cowclip(model, 1e-2), batches(5))
    same_weights(torch, plain, compiled, rtol=1e-5, atol=1e-7)


def test_tied_and_frozen_tables(torch, cowclip):
    nn = torch.nn
    a, b, frozen = (nn.Embedding(6, 2, sparse=True) for _ in range(3))
    b.weight = a.weight
    frozen.weight.requires_grad_(False)
    model, before = nn.ModuleList([a, b, frozen]), frozen.weight.clone()
    optimizer = cowclip(model, 0.1, l2=0.0, r=0.0, zeta=1.0)
    assert len(optimizer.param_groups[0]["params"]) == 1
    ids = torch.tensor([1, 2])
    (1e3 * (a(ids).sum() + b(ids).sum() + frozen(ids).sum())).backward()
    optimizer.step()
    counts = optimizer.state[a.weight]["exp_avg"][1] / 0.1
    assert counts.tolist() == pytest.approx([2**0.5 * 2 / 2**0.5] * 2, rel=1e-4)
    assert torch.equal(frozen.weight, before)


def test_another_optimizer_trains_the_dense_weights(torch, cowclip, model_of, batches, train):
    model, other = model_of(), model_of()
    train(model, cowclip(model, 1e-2, dense_lr=0.1, dense_optimizer=torch.optim.SGD), batches(1))
    adam = torch.optim.SGD(other[2].parameters(), 0.1)
    train(other, adam, batches(1))
    torch.testing.assert_close(model[2].weight, other[2].weight)


def test_a_gradient_may_be_used_twice(torch, cowclip, model_of, batches, train):
    model, same = model_of(), model_of()
    one, two = (cowclip(each, 1e-2, l2=0.0) for each in (model, same))
    for _ in range(2):  # one gets the gradient again, of the same weights
        for each, optimizer in ((model, one), (same, two)):
            (loss,) = losses(torch, each, batches(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    before = model[0].weight.detach().clone()
    one.step()
    assert (model[0].weight != before).any() and one.state[model[0].weight]["step"] == 3


def test_weights_may_be_added(torch, cowclip, model_of, batches):
    model, layer = model_of(), torch.nn.Linear(1, 1)
    optimizer = cowclip(model, 1e-2)
    optimizer.add_param_group({"params": layer.parameters(), "lr": 0.5})
    ids, _ = next(batches(1))
    before = layer.weight.item()
    layer(model(ids)).sum().backward()
    optimizer.step()
    assert abs(abs(layer.weight.item() - before) - 0.5) < 1e-3  # Adam's first step
    table = torch.nn.Embedding(3, 2)
    table.sparse = True
    with pytest.raises(InputError, match="had tables alone"):
        cowclip(table).add_param_group({"params": layer.parameters()})


WORKER = """
import sys
import torch
from torch.nn.parallel import DistributedDataParallel
from cowclip_merlin.torch import CowClip
folder, rank = sys.argv[1], int(sys.argv[2])
where = f"file://{folder}/store"
torch.distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=2)
model, batches = torch.load(f"{folder}/start.pt", weights_only=False)
parallel = DistributedDataParallel(model)
optimizer = CowClip(parallel, 1e-2, l2=1e-4, r=0.5)
mine = slice(rank * 4, rank * 4 + 4)
for ids, labels in batches:
    optimizer.zero_grad()
    loss_of = torch.nn.functional.binary_cross_entropy_with_logits
    loss_of(parallel(ids[mine]), labels[mine]).backward()
    optimizer.step()
if rank == 0:
    torch.save(model.state_dict(), f"{folder}/weights.pt")
"""


def test_several_processes_count_the_whole_batch(
    torch, cowclip, model_of, batches, train, tmp_path
):
    """Two of them, of which each has half of the rows, train as one."""
    model = model_of()
    torch.save((model, list(batches(6))), tmp_path / "start.pt")
    optimizer = cowclip(model, 1e-2, l2=1e-4, r=0.5)
    train(model, optimizer, batches(6))
    words = [sys.executable, "-c", WORKER, str(tmp_path)]
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    started = [subprocess.Popen([*words, str(rank)], env=path) for rank in range(2)]
    assert [process.wait(timeout=500) for process in started] == [0, 0]
    found = torch.load(tmp_path / "weights.pt")
    for name, x in model.state_dict().items():
        torch.testing.assert_close(found[name], x, rtol=1e-4, atol=1e-6)
    assert optimizer.clipped_share > 0


def table_of(nn, **more):
    return nn.Embedding(3, 2, **{"sparse": True, **more})


REFUSED = {
    "no table": (lambda nn: nn.Linear(2, 2), "the model has no table: give nn.Embedding"),
    "dense layer": (lambda nn: nn.Embedding(3, 2), "the model has no table"),
    "max_norm": (lambda nn: table_of(nn, max_norm=1.0), "max_norm=1 changes"),
    "frequencies": (lambda nn: table_of(nn, scale_grad_by_freq=True), "scale_grad_by_freq divides"),
    "doubles": (lambda nn: table_of(nn).double(), r"must be float32 .*, not float64"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_one_clear_line(torch, cowclip, case):
    make, words = REFUSED[case]
    with pytest.raises(InputError, match=words):
        cowclip(make(torch.nn))


def test_what_a_step_refuses_changes_nothing(torch, cowclip, model_of, batches, train):
    model = model_of()
    model.append(torch.nn.Embedding(3, 2, sparse=True))  # another table, before the wrong one
    optimizer = cowclip(model[::-1], 1e-2)
    train(model[:3], optimizer, batches(3))
    before = [x.detach().clone() for x in model.parameters()]
    table, ids = model[0], torch.tensor([1, 2])
    wrong = {
        "dense gradient": lambda: (table.weight.sum() + table(ids).sum()).backward(),
        "other ids than its lookups": lambda: setattr(
            table.weight, "grad", torch.sparse_coo_tensor([[4]], torch.ones(1, 3), (60, 3))
        ),
    }
    for words, make in wrong.items():
        optimizer.zero_grad()
        model[3](ids).sum().backward()
        make()
        with pytest.raises(InputError, match=words):
            optimizer.step()
    for old, new in zip(before, model.parameters()):
        assert torch.equal(old, new.detach())
    optimizer.zero_grad()
    optimizer.param_groups[0]["betas"] = (0.5, 0.9)
    with pytest.raises(InputError, match=r"betas of the tables was \(0.9, 0.999\)"):
        optimizer.step()
    with pytest.raises(InputError, match="max_norm changes rows"):
        torch.nn.functional.embedding(ids, table.weight, max_norm=1.0)
    with pytest.raises(IndexError):
        table(torch.tensor([60]))
