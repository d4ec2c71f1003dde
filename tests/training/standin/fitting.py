"""Fits on a simulated device and on the CPU. It needs its own process, since a registered device stays.

python -m tests.training.standin.fitting DEVICE OUT [MODULE ...]
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from onnxgen.training import choose, fit
from onnxgen.training.devices import choice
from tests.support import forked
from tests.training.sketches import sketched
from tests.training.standin.nets import Net, data


class Misplaced(Net):
    """Adds a tensor on the CPU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.ones(3)


def trained(device: str, out: Path, imports: tuple[str, ...], net: type[nn.Module] = Net) -> Any:
    torch.manual_seed(0)
    model = net()
    x, y = data(16)
    x = x[:, :, :2, :4]  # an eighth of the pixels: two steps of the recurrent layers
    given = {"epochs": 1, "batch_size": 8, "lr": 0.01, "clip": 1.0, "val": 0.25, "workers": 0}
    given["optimizer_args"] = {"eps": 1e-2}  # else Adam amplifies gradients that are only noise
    result = fit(model, (x.double(), y), device=device, imports=imports, out=out, **given)
    saved = [torch.load(path, weights_only=False) for path in (out / "checkpoints").rglob("*.ckpt")]
    return model, result.history, saved


def fork_self_tests() -> None:
    """Self-tests run in forks of this process as it is now, with no device registered: nothing is imported anew."""
    here, there = multiprocessing.Pipe()
    if os.fork() == 0:
        here.close()
        with suppress(EOFError):
            while True:
                words, out, err = there.recv()
                if (child := os.fork()) == 0:
                    code = 1
                    try:
                        forked._child(words, os.getcwd(), dict(os.environ), out, err)
                    except SystemExit as error:
                        code = int(error.code or 0)
                    finally:
                        os._exit(code)
                there.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os._exit(0)
    there.close()

    def python(*words: str, timeout: float) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            here.send(([*words], str(out), str(err)))
            if not here.poll(timeout):
                raise subprocess.TimeoutExpired(words, timeout)
            return subprocess.CompletedProcess(words, here.recv(), out.read_text(), err.read_text())

    choice.python = python


def main(device: str, out: Path, imports: tuple[str, ...]) -> None:
    chosen = choose("auto", imports)
    there = choose(device, imports)
    cpu, expected, _ = trained("cpu", out / "cpu", ())
    from tests.training.standin.simulated import COUNTS

    before = COUNTS["calls"]
    ours, history, checkpoint = trained(device, out / "device", imports)
    try:
        trained(device, out / "misplaced", imports, Misplaced)
        misplaced = "nothing was raised"
    except RuntimeError as error:
        misplaced = str(error)
    states = zip(cpu.state_dict().values(), ours.state_dict().values(), strict=True)
    said = {
        "auto": chosen.text,
        "type": there.type,
        "verdict": there.verdict,
        "works": there.works,
        "calls": COUNTS["calls"] - before,
        "difference": max((a - b).abs().max().item() for a, b in states),
        "losses": [[h["train_loss"], h["val_loss"]] for h in history],
        "expected": [[h["train_loss"], h["val_loss"]] for h in expected],
        "keys": list(ours.state_dict()) == list(cpu.state_dict()),
        "saved on": sorted({t.device.type for t in tree_leaves(checkpoint) if isinstance(t, torch.Tensor)}),
        "misplaced": misplaced,
    }
    print(json.dumps(said))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[3:] and hasattr(os, "fork"):  # DirectML's has a process of its own, as users have it
        fork_self_tests()
    with sketched():
        main(sys.argv[1], Path(sys.argv[2]), tuple(sys.argv[3:]))
