"""The model that a run returns: the trained one with its best weights or, if that is sharded, another object."""

from __future__ import annotations

import copy

import lightning
import torch
from safetensors.torch import load_file
from torch import nn

from onnxgen.surgery.classes import classes_of, set_classes
from onnxgen.training.checkpoint.callback import Checkpoints
from onnxgen.training.checkpoint.weights import load_weights
from onnxgen.training.finetune.adapters import load_adapter, merge
from onnxgen.training.finetune.packed import packed_layers
from onnxgen.training.goals.own import keep_state, restore
from onnxgen.training.known import known_of, note_known
from onnxgen.training.model import note_learned
from onnxgen.training.recompute import keep_all
from onnxgen.training.runs.folder import BEST, GOAL, LAST, there
from onnxgen.training.sharded.rows import map_rows
from onnxgen.training.task import Task


def without_values(network: nn.Module) -> nn.Module:
    """Return a copy of a model whose parameters and buffers are empty: `map_rows` gives it those of files.

    Buffers that no file has are shared. The scales and class names that were noted for the model are noted for the
    copy.
    """
    stored = {id(tensor) for tensor in network.state_dict(keep_vars=True).values()}
    memo: dict[int, object] = {
        id(p): nn.Parameter(torch.empty(0, dtype=p.dtype), p.requires_grad) for p in network.parameters()
    }
    memo |= {id(b): torch.empty(0, dtype=b.dtype) if id(b) in stored else b for b in network.buffers()}
    found = copy.deepcopy(network, memo)
    note_known(found, known_of(network))
    set_classes(found, classes_of(network))
    return found


def give_back(
    network: nn.Module, whole: nn.Module, trainer: lightning.Trainer, keep: Checkpoints, stopped: str
) -> None:
    """Load the best weights into the models. If the run was interrupted, save the latest weights first.

    Every process reads the files.

    Args:
        network: the trained model.
        whole: the model to return: `network`, or its copy `without_values` if it is sharded. It gets the latest weights
            if none are best.
    """
    keep_all(network)
    note_learned(whole)
    if stopped != "interrupted":
        trainer.strategy.barrier()
    elif whole is network and trainer.is_global_zero:  # a sharded run has done it
        keep.save_last(whole)
    best, last = there(keep.out / BEST), there(keep.out / LAST)
    if whole is not network and (found := best or last) is not None:
        map_rows(whole, found)
    early = stopped == "interrupted" and keep.best_epoch is None  # then the latest weights go on
    if best is not None and not early and not (whole is not network and stopped == "interrupted"):
        (load_weights if keep.only is None else load_adapter)(network, best)
    if keep.only is not None and not any(packed_layers(network)):
        merge(network)
    own = keep.out / GOAL
    for model in dict.fromkeys((network, whole)) if own.is_file() else ():
        keep_state(model, load_file(own))
    task = trainer.lightning_module
    if isinstance(task, Task) and own.is_file() and stopped != "interrupted":
        restore(whole, task.objectives)
