"""One process of a distributed run: python -m tests.training.distributed_run MODEL.py DATA.npz OUT SETTINGS-AS-JSON

The weights at the end are written to OUT/end.safetensors, by the first process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from safetensors.torch import save_file

from onnxgen.training import fit
from onnxgen.training.sharding import whole


class End(lightning.Callback):
    """Writes the weights as they are after the last step."""

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        state = whole(pl_module.model.state_dict())
        if trainer.is_global_zero:
            save_file({key: value.contiguous() for key, value in state.items()}, Path(sys.argv[3]) / "end.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    fit(sys.argv[1], sys.argv[2], callbacks=[End()], out=Path(sys.argv[3]), **json.loads(sys.argv[4]))
