"""Tensor parallelism beside one process: the plan of each network, and the largest difference.

    python -m benchmarks.tensor [--nets bert,gpt2,...] [--layouts 2,2x2,4] [--json FILE]

The networks are those of tests/zoo, exported in training mode and generated. A layout is FSDP x TENSOR-PARALLEL
processes, of gloo on the CPU. All have the weights of the file. Compared are the outputs and the gradients of all
parameters with those of one process, which has the whole batch. Differences are shares of the largest value (or of 1)
of the output or the gradient. With one group the network has its dropout, and each process begins with another seed, so
that the processes must agree on one; with several groups there is no dropout.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.common import arguments, finish
from onnxgen.pipeline import generate
from onnxgen.training.model import open_model
from onnxgen.training.sharded.tensor import TensorPlan, draw_alike, whole
from onnxgen.training.sharded.trial import tensor_plan
from onnxgen.training.sharded.units import shard
from tests.zoo import ZOO, Entry
from tests.zoo.export import export
from tests.zoo.gpt2 import GPT2LMHeadModel

BATCH = 4
# Beside those of the zoo: three heads can't be shared by two processes, four can.
ENTRIES = {**ZOO, "gpt2-4-heads": replace(ZOO["gpt2"], build=lambda: GPT2LMHeadModel(heads=4))}
NETS = ("bert", "gpt2", "gpt2-4-heads", "llama", "vit", "encoder")


def entry_of(name: str) -> Entry:
    return ENTRIES[name]


def written(name: str, folder: Path) -> Path:
    """Export and generate a network. Returns its module."""
    onnx_file, module = folder / f"{name}.onnx", folder / f"{name.replace('-', '_')}.py"
    export(entry_of(name), onnx_file, "legacy", 17, training=True, keep=False)
    generate(onnx_file, module)
    return module


def loss_of(made: Any) -> Tensor:
    """A number whose gradient differs from element to element, the mean over the samples."""
    outputs = made if isinstance(made, tuple) else (made,)
    weights = [torch.arange(one[0].numel()).reshape(one.shape[1:]).float().sin() for one in outputs]
    return torch.stack([(one * weight).flatten(1).sum(1).mean() for one, weight in zip(outputs, weights)]).sum()


def difference(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, as a share of the largest value."""
    return float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1))


def compared(model: nn.Module, inputs: Sequence[Tensor], plan: TensorPlan, mesh: Any) -> tuple[float, float]:
    """Run a model whole, then divided. Returns the differences of outputs and of gradients."""
    torch.manual_seed(5)
    made = model(*inputs)
    loss_of(made).backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    divided = copy.deepcopy(model)
    divided.zero_grad()
    shard(divided, mesh, plan)
    shares, number = mesh["data_parallel"].size(), mesh["data_parallel"].get_local_rank()
    rows = slice(number * BATCH // shares, (number + 1) * BATCH // shares)
    torch.manual_seed(5 + mesh["tensor_parallel"].get_local_rank())
    draw_alike(mesh["tensor_parallel"])
    with plan.active():
        found = whole(divided(*(one[rows] for one in inputs)))
        loss_of(found).backward()
    pairs = zip(*(one if isinstance(one, tuple) else (one,) for one in (found, made)))
    outputs = max(difference(a.detach(), b[rows].detach()) for a, b in pairs)
    grads = {name: p.grad.full_tensor() for name, p in divided.named_parameters() if p.grad is not None}
    assert grads.keys() == wanted.keys()
    return outputs, max(difference(grads[name], wanted[name]) for name in wanted)


def work(rank: int, folder: Path, nets: Sequence[str], shares: int, size: int) -> None:
    """One process of a layout: it writes what it found to `folder`."""
    torch.set_num_threads(1)
    rows = []
    models = [open_model(folder / f"{name.replace('-', '_')}.py").train() for name in nets]
    inputs = [entry_of(name).inputs(BATCH) for name in nets]
    for layer in (one for model in models for one in model.modules() if shares > 1):
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
        elif isinstance(layer, nn.MultiheadAttention):
            layer.dropout = 0.0
    plans = [tensor_plan(model, given, size) for model, given in zip(models, inputs)]
    address = f"file://{folder / f'store{shares}x{size}'}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=shares * size)
    mesh = init_device_mesh("cpu", (shares, size), mesh_dim_names=("data_parallel", "tensor_parallel"))
    for name, model, given, plan in zip(nets, models, inputs, plans):
        outputs, gradients = compared(model, given, plan, mesh)
        worst = torch.tensor([outputs, gradients])
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        parameters = dict(model.named_parameters())
        divided = sum(parameters[key].numel() for key in plan.axes if key in parameters)
        share = divided / sum(parameter.numel() for parameter in parameters.values())
        rows.append({"net": name, "layout": f"{shares}x{size}", "divided": f"{share:.0%}",
                     "outputs": f"{worst[0]:.1e}", "gradients": f"{worst[1]:.1e}", "plan": plan.said()})  # fmt: skip
    if rank == 0:
        torch.save(rows, folder / f"rows{shares}x{size}")
    dist.destroy_process_group()


def measure(folder: Path, nets: Sequence[str], layouts: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """The rows of all networks by all layouts (FSDP, tensor-parallel)."""
    for name in nets:
        written(name, folder)
    found = []
    for shares, size in layouts:
        mp.spawn(work, (folder, nets, shares, size), shares * size)
        found += torch.load(folder / f"rows{shares}x{size}", weights_only=True)
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--nets", default=",".join(NETS), help=f"networks (default: {','.join(NETS)})")
    parser.add_argument("--layouts", default="2,2x2,4", help="TENSOR or FSDPxTENSOR processes (default: 2,2x2,4)")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    layouts = [
        (int(first or 1), int(last)) for first, _, last in (one.rpartition("x") for one in given.layouts.split(","))
    ]
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), given.nets.split(","), layouts)
    for row in rows:
        print(f"{row['net']}, {row['layout']}:", *row.pop("plan"), sep="\n  ")
    finish(rows, given.json)


if __name__ == "__main__":
    main()
