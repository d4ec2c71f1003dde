"""What fine-tuning a model takes: each verb works on any `nn.Module`, with any loop.

replace_head(model, 3)                           # another number of classes
freeze(model, "stem", "layer1.*")                # parameters, and the statistics of BatchNorms
groups = param_groups(model, lr=1e-3, head_lr=10)
optimizer = torch.optim.AdamW(groups)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxgen.surgery.head import Head, find_head
from onnxgen.surgery.replacing import replace_head
from onnxgen.training.finetune.batchnorm import Calibrated, calibrate_batchnorm
from onnxgen.training.finetune.blocks import blocks
from onnxgen.training.finetune.freezing import freeze, unfreeze, unfreeze_next
from onnxgen.training.finetune.groups import param_groups
from onnxgen.training.finetune.scratch import reset

if TYPE_CHECKING:
    from onnxgen.training.finetune.gradual import GradualUnfreeze

__all__ = [
    "Calibrated",
    "GradualUnfreeze",
    "Head",
    "blocks",
    "calibrate_batchnorm",
    "find_head",
    "freeze",
    "param_groups",
    "replace_head",
    "reset",
    "unfreeze",
    "unfreeze_next",
]


def __getattr__(name: str) -> object:
    if name != "GradualUnfreeze":  # the only one that needs lightning
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from onnxgen.training.finetune.gradual import GradualUnfreeze

    return GradualUnfreeze
