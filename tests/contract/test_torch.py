"""The contract, of `cowclip_merlin.torch.CowClip`: with numba's kernels, and CUDA's on the CPU."""

import copy
import sys

import pytest
from contract import Contract, Trained, lacks_on_a_gpu
from emulated_cupy import COMPILER, load_kernels

pytestmark = [pytest.mark.system, pytest.mark.quick]
if "tensorflow" in sys.modules:
    pytest.skip("PyTorch crashes beside TensorFlow: run this file alone", allow_module_level=True)
torch = pytest.importorskip("torch")


class InTorch(Trained):
    as_torch = True

    def __init__(self, tables, dense, *, lr, **settings):
        from cowclip_merlin.torch import CowClip

        settings = {"eps" if name == "epsilon" else name: x for name, x in settings.items()}
        self.model = torch.nn.Module()
        made = [torch.nn.Embedding(*x.shape, sparse=True) for x in tables]
        self.model.tables = torch.nn.ModuleList(made)
        self.model.dense = torch.nn.Parameter(torch.tensor(dense))
        with torch.no_grad():
            for layer, x in zip(made, tables):
                layer.weight.copy_(torch.tensor(x))
        self.optimizer = CowClip(self.model, 1.0 if callable(lr) else lr, **settings)
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

    def dense(self):
        return self.model.dense.detach().numpy()

    def state(self):
        return copy.deepcopy([x.state_dict() for x in (self.model, self.optimizer)])

    def restore(self, state):
        for part, values in zip((self.model, self.optimizer), state):
            part.load_state_dict(values)

    clipped_share = property(lambda self: self.optimizer.clipped_share)
    mean_clip_factor = property(lambda self: self.optimizer.mean_clip_factor)


class TestTorch(Contract):
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
