"""One process of a distributed run: python -m tests.training.distributed_run MODEL.py DATA.npz OUT SETTINGS-AS-JSON

The first process writes the weights after the last step to OUT/end.safetensors. Each process writes the weights that
`fit` returned to OUT/result<rank>.safetensors. In the settings, `stop_at` is the step at which the processes get a
signal to stop, and `wait_at` the step at which they wait to be killed; with `background`, checkpoints of a sharded run
are written while it goes on, as on an accelerator. With `wait_rank`, only this process waits, and only in a run that
does not go on from a checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import lightning
import torch
from safetensors.torch import save_file

from onnxgen.training import fit
from onnxgen.training.sharded.strategy import Sharded


class End(lightning.Callback):
    """Writes the weights after the last step into a folder."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        found = pl_module.model.state_dict()
        state = {key: t.full_tensor() if hasattr(t, "full_tensor") else t for key, t in found.items()}  # all must call
        if trainer.is_global_zero:
            save_file({key: value.contiguous().clone() for key, value in state.items()}, self.out / "end.safetensors")


class Stop(lightning.Callback):
    """Sends this process a signal to stop."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


class Wait(lightning.Callback):
    """Stops training, and ends with the launcher: torchrun's processes have their own sessions."""

    def __init__(self, step: int, rank: int | None = None) -> None:
        self.step, self.rank, self.launcher = step, rank, os.getppid()

    def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == self.step and self.rank in (None, trainer.global_rank):
            while os.getppid() == self.launcher:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)


def train(model: Path, data: Path, out: Path, given: dict[str, Any]) -> None:
    stop: list[lightning.Callback] = [Stop(given.pop("stop_at"))] if "stop_at" in given else []
    if given.pop("background", False):
        Sharded.background = True
    step, rank = given.pop("wait_at", None), given.pop("wait_rank", None)
    waits = step is not None and (rank is None or not (out / "checkpoints" / "last.ckpt").exists())
    stop += [Wait(step, rank)] if waits else []
    result = fit(model, data, callbacks=[End(out), *stop], out=out, **given)
    state = {key: value.clone() for key, value in result.model.state_dict().items()}  # tied weights are kept twice
    save_file(state, out / f"result{os.environ.get('LOCAL_RANK', 0)}.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(*map(Path, sys.argv[1:4]), json.loads(sys.argv[4]))
