"""Plans of tensor parallelism, and what a process of a two-dimensional run writes; `long_tensor.py` has the runs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, debug, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from onnxgen.errors import OnnxgenError
from onnxgen.training import Settings, fit
from onnxgen.training.data.samples import Feeding
from onnxgen.training.sharded import rows
from onnxgen.training.sharded.tensor import TensorPlan
from onnxgen.training.sharded.trial import tensor_plan
from onnxgen.training.sharded.units import shard
from onnxgen.training.task import Task

DIM = 16


class Block(nn.Module):
    """Grouped-query attention and a gated network. No name says what a layer is for."""

    def __init__(self, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups = heads, groups
        size = DIM // 4
        self.a, self.b, self.c = (nn.Linear(DIM, n * size) for n in (heads, groups, groups))
        self.d = nn.Linear(heads * size, DIM)
        self.norm = nn.RMSNorm(DIM)
        self.e, self.f, self.g = nn.Linear(DIM, 24), nn.Linear(DIM, 24), nn.Linear(24, DIM)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        q = self.a(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (one(x).unflatten(-1, (self.groups, -1)).transpose(1, 2) for one in (self.b, self.c))
        k, v = (one.repeat_interleave(self.heads // self.groups, dim=1) for one in (k, v))
        x = x + self.d(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.norm(x)
        return x + self.drop(self.g(F.silu(self.e(y)) * self.f(y)))


class Fused(nn.Module):
    """Attention from one product, with weights [inputs, outputs] and biases that are added."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(DIM, 3 * DIM)), nn.Parameter(torch.randn(DIM, DIM))
        self.shift, self.last = nn.Parameter(torch.randn(3 * DIM)), nn.Parameter(torch.randn(DIM))

    def forward(self, x: Tensor) -> Tensor:
        parts = (x @ self.first + self.shift).chunk(3, dim=-1)
        q, k, v = (one.unflatten(-1, (4, -1)).transpose(1, 2) for one in parts)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2) @ self.second + self.last


class Net(nn.Module):
    def __init__(self, heads: int = 4, groups: int = 2, tied: bool = True) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(19, DIM), nn.Embedding(8, DIM)
        self.blocks = nn.ModuleList([Block(heads, groups), Fused()])
        self.head = nn.Linear(DIM, 19, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return self.head(h)


TOKENS = torch.arange(12).reshape(2, 6)
ROLES = {
    "tokens.weight": "vocabulary",  # 8 places are fewer than 16 numbers each: they stay whole
    **{f"blocks.0.{name}.weight": "columns" for name in "abcef"},
    **{f"blocks.0.{name}.weight": "rows" for name in "dg"},
    "blocks.1.first": "columns",
    "blocks.1.second": "rows",
}


def test_the_plan_follows_what_is_computed() -> None:
    torch.manual_seed(0)
    model = Net()
    before, drawn = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    plan = tensor_plan(model, [TOKENS], 2)
    assert plan.roles == ROLES
    columns = {f"blocks.0.{name}.{leaf}" for name in "abcef" for leaf in ("weight", "bias")} | {"blocks.1.shift"}
    axes = dict.fromkeys([*columns, "tokens.weight", "head.weight", "blocks.1.second"], 0)
    assert plan.axes == axes | dict.fromkeys(["blocks.0.d.weight", "blocks.0.g.weight", "blocks.1.first"], 1)
    assert plan.mode.random == {F.dropout}
    assert (
        len(plan.said()) == 3
        and plan.said()[2] == "2 processes divide by rows: blocks.*.d.weight, blocks.*.g.weight, blocks.*.second"
    )
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), drawn) and not dist.is_initialized()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_heads_that_do_not_divide_are_gathered_and_what_grows_may_be_uneven() -> None:
    plan = tensor_plan(Net(), [TOKENS], 4)
    assert plan.roles == ROLES  # two keys for four queries
    assert plan.said()[-1] == "each gathers the parts for unflatten: these can't be computed on parts"
    uneven = dict.fromkeys(["blocks.0.e.weight", "blocks.0.f.weight", "blocks.1.first"], "columns")
    found = tensor_plan(Net(), [TOKENS], 5).roles  # 16 is no multiple of 5
    assert found == {"tokens.weight": "vocabulary", **uneven, "blocks.0.g.weight": "rows"}


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).mean((2, 3))


class Undecided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[:, : int(x.sum())]


@pytest.mark.parametrize(
    "model, text",
    [
        (Conv(), "Conv has nothing that --tensor-parallel 2 divides"),
        (Undecided(), "can't divide Undecided: .*_local_scalar_dense"),
    ],
)
def test_what_can_not_be_divided(model: nn.Module, text: str) -> None:
    before = copy.deepcopy(model.state_dict())
    inputs = torch.ones(2, 3, 8, 8) if isinstance(model, Conv) else torch.ones(2, 4)
    with pytest.raises(OnnxgenError, match=f"{text}.*leave out --tensor-parallel"):
        tensor_plan(model, [inputs], 2)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    "given, text",
    [
        ({"tensor_parallel": 2}, "tensor_parallel needs the strategy fsdp"),
        ({"tensor_parallel": 2, "strategy": "fsdp", "compile": True}, "tensor_parallel and compile exclude"),
        ({"tensor_parallel": 0, "strategy": "fsdp"}, "at least 1"),
    ],
)
def test_settings_that_do_not_fit(given: dict[str, Any], text: str) -> None:
    with pytest.raises(OnnxgenError, match=text):
        Settings(**given)


def test_a_size_that_does_not_divide_the_processes(tmp_path: Path) -> None:
    given: dict[str, Any] = {"strategy": "fsdp", "tensor_parallel": 2, "devices": 3, "out": tmp_path, "device": "cpu"}
    data = {"x": TOKENS.repeat(4, 1), "y": TOKENS.repeat(4, 1)}
    with pytest.raises(OnnxgenError, match="tensor_parallel=2 does not divide the number of processes, 3"):
        fit(Net(), data, **given)


# ---- in one process, which claims to be one of four ------------------------------------------------------------------


@contextmanager
def claimed(rank: int, model: nn.Module, plan: TensorPlan) -> Iterator[dict[str, Tensor]]:
    """The state of one of 2 x 2 processes. DTensor forgets the others: it caches what it found for equal meshes."""
    debug._clear_sharding_prop_cache()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data_parallel", "tensor_parallel"))
        mine = copy.deepcopy(model)
        shard(mine, mesh, plan)
        yield mine.state_dict()
    finally:
        dist.destroy_process_group()


def test_two_by_two_processes_write_and_read_what_is_theirs(tmp_path: Path) -> None:
    """Columns are parts of rows, rows are parts of columns, and the vocabulary of 19 is uneven."""
    torch.manual_seed(0)
    model, path = Net(tied=False), tmp_path / "best.safetensors"
    plan, whole = tensor_plan(model, [TOKENS], 2), model.state_dict()
    with ExitStack() as stack:
        begun: list[Any] = []
        for rank in range(4):
            with claimed(rank, model, plan) as state:
                held = sum(rows.block_of(value)[1].numel() for value in state.values())
                assert held < 0.4 * sum(value.numel() for value in whole.values())
                shaped = {key: rows._Shaped.of(value, None) for key, value in state.items()}
                begun = begun or rows._begun(stack, shaped, path, {}, 0)
                rows._written(state, {}, begun, rank == 0)
    torch.testing.assert_close(load_file(path), dict(whole), rtol=0, atol=0)
    for rank in range(4):
        with claimed(rank, model, plan) as wanted:
            empty = copy.deepcopy(model)
            for parameter in empty.parameters():
                parameter.data.zero_()
            blocks = {key: rows.block_of(value)[1].clone() for key, value in wanted.items()}
            for value in wanted.values():
                rows.block_of(value)[1].zero_()
            assert rows.read_rows(wanted, path) == whole.keys()
            assert all(torch.equal(rows.block_of(wanted[key])[1], block) for key, block in blocks.items())


def test_gradients_of_several_processes_are_computed_at_once_and_within_the_plan(tmp_path: Path) -> None:
    """There plain tensors count as the same ones in all processes; a batch is not split, as each pass exchanges."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        layer = nn.Linear(3, 2, bias=False)
        layer.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [Shard(0)]))
        task = Task(layer, [], Feeding(("x",), {}))
        task.trainer = SimpleNamespace(world_size=2)  # type: ignore[assignment]
        task.split = TensorPlan(2)

        class Plain(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, weight: Tensor) -> Tensor:
                return weight * 1

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Tensor:
                return gradient * torch.full((2, 3), 2.0)

        task.backward(Plain.apply(layer.weight).sum().full_tensor())
        assert layer.weight.grad is not None
        assert torch.equal(layer.weight.grad.full_tensor(), torch.full((2, 3), 2.0))
    finally:
        dist.destroy_process_group()
