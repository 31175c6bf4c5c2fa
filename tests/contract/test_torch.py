"""The contract, of `cowclip_merlin.torch.CowClip`: with numba's kernels, and CUDA's on the CPU."""

import copy
import gc
import io
import sys

import pytest
from contract import CaughtUp, Contract, ContractOfReads, lacks_on_a_gpu
from emulated_cupy import COMPILER, load_kernels

pytestmark = [pytest.mark.system, pytest.mark.quick]
if "tensorflow" in sys.modules:
    pytest.skip("PyTorch crashes beside TensorFlow: run this file alone", allow_module_level=True)
torch = pytest.importorskip("torch")
IDS = torch.arange(60)


def saved_and_loaded(layer):
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


OF_LAYER = {
    "lookup": lambda layer: layer(IDS),
    "in eval": lambda layer: layer.eval()(IDS),
    "functional": lambda layer: torch.nn.functional.embedding(IDS, weight=layer.weight),
    "data": lambda layer: layer.weight.data,
    "detach": lambda layer: layer.weight.detach(),
    "arithmetic": lambda layer: layer.weight * 1,
    "index": lambda layer: layer.weight[:],
    "list": lambda layer: torch.cat([layer.weight]),
    "transposed": lambda layer: layer.weight.T.T,
    "tolist": lambda layer: torch.tensor(layer.weight.tolist()),
    "state_dict": lambda layer: layer.state_dict()["weight"],
    "copied": lambda layer: copy.deepcopy(layer).weight,
    "moved": lambda layer: layer.weight.to("cpu", torch.float64).float(),
    "saved": lambda layer: saved_and_loaded(layer).weight,
    "parameters": lambda layer: next(iter(layer.parameters())) + 0,
}


class InTorch(CaughtUp):
    as_torch = True
    HISTORY = "cowclip_merlin.torch.tables"
    READS = tuple(OF_LAYER)

    def __init__(self, tables, dense, *, lr, **settings):
        self.model = torch.nn.Module()
        made = [torch.nn.Embedding(*x.shape, sparse=True) for x in tables]
        self.model.tables = torch.nn.ModuleList(made)
        self.model.dense = torch.nn.Parameter(torch.tensor(dense))
        with torch.no_grad():
            for layer, x in zip(made, tables):
                layer.weight.copy_(torch.tensor(x))
        self.change_optimizer(lr, **settings)

    def change_optimizer(self, lr, **settings):
        from cowclip_merlin.torch import CowClip

        settings = {"eps" if name == "epsilon" else name: x for name, x in settings.items()}
        self.optimizer = CowClip(self.model, 1.0 if callable(lr) else lr, **settings)
        gc.collect()  # of the one before
        every = [lr if callable(lr) else lambda _: 1.0] * len(self.optimizer.param_groups)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, every)

    def step(self, batches, dense):
        self.optimizer.zero_grad()
        loss = (self.model.dense * torch.tensor(dense)).sum()
        for layer, (ids, values) in zip(self.model.tables, batches):
            loss = loss + (layer(torch.tensor(ids)) * torch.tensor(values)).sum()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()

    def table(self, i):
        return self.model.tables[i].weight.detach().numpy()

    def read(self, how, folder):
        weight = self.model.tables[0].weight
        kept = weight.untyped_storage  # a name alone reads nothing
        with torch.no_grad():
            found = OF_LAYER[how](self.model.tables[0]).detach().numpy()
        assert kept is not None
        return found

    def look_up(self, ids):
        return self.model.tables[0](torch.tensor(ids)).detach().numpy()

    def write(self, rows):
        with torch.no_grad():
            self.model.tables[0].weight.copy_(torch.tensor(rows))

    def behind(self):
        table = self.optimizer._tables[0]
        return table._last.numpy() < table._missed, table._missed

    def dense(self):
        return self.model.dense.detach().numpy()

    def state(self):
        return copy.deepcopy([x.state_dict() for x in (self.model, self.optimizer)])

    def restore(self, state):
        for part, values in zip((self.model, self.optimizer), state):
            part.load_state_dict(values)

    @staticmethod
    def of(values, **arguments):
        from cowclip_merlin.torch import CowClip

        nn = torch.nn
        model = nn.Sequential(nn.Embedding(3, 2, sparse=True), nn.Linear(2, 1))
        optimizer = CowClip.of(model, values, **arguments)
        tables, dense = optimizer.param_groups
        (table,) = optimizer._tables
        return tables["lr"], dense["lr"], tables["l2"], table._settings.clip, table.update

    clipped_share = property(lambda self: self.optimizer.clipped_share)
    mean_clip_factor = property(lambda self: self.optimizer.mean_clip_factor)


class TestTorch(ContractOfReads):
    @pytest.fixture(scope="class")
    def make(self):
        return InTorch


class TestTorchWithEmulatedKernels(Contract):
    @pytest.fixture(scope="class")
    def make(self, tmp_path_factory):
        if COMPILER is None:
            pytest.skip("no g++ on PATH")
        kernels = load_kernels(tmp_path_factory.mktemp("emulated"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("cowclip_merlin.kernels.load", lambda name: kernels)
            yield InTorch

    def lacks(self, **settings):
        return lacks_on_a_gpu(**settings)
