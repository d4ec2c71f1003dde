"""Parameters shared out to the processes, block by block (FSDP2), on whatever devices `torch.distributed` reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn

from onnxgen.training.finetune.blocks import blocks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def strategy(processes: int) -> ModelParallelStrategy:
    """Lightning's strategy for it. (Its `FSDPStrategy`, of the older API, insists on CUDA.)"""
    return ModelParallelStrategy(processes, 1, save_distributed_checkpoint=False)


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shard each generated block, then what is left of the model, in place; its keys stay."""
    from torch.distributed.fsdp import fully_shard

    for path in blocks(model):
        fully_shard(model.get_submodule(path), mesh=mesh)
    fully_shard(model, mesh=mesh)
