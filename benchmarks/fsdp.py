"""Overhead of `fit` with FSDP against a loop with torch's FSDP2 written by hand: GPT-2, the same tokens.

    python -m benchmarks.fsdp [--device cpu] [--processes 2] [--layers 4] [--width 256] [--length 128] [--batch 4]
                              [--steps 40] [--rounds 3] [--precision 32-true] [--json FILE]

The network is generated from an export. After each step of `fit` there is one by hand, so that whatever else the
machine does slows both alike. Of `fit` it is everything from the second to the last step, loader and metrics included.
The first step, which starts the loader, and the checkpoint and best weights at the end are timed apart. The loop by
hand shards each block and the rest, indexes tensors, and does nothing else.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from argparse import SUPPRESS
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from benchmarks.common import arguments, environment, finish
from benchmarks.fit import Turns, keep_memory, now
from onnxgen.pipeline import generate
from onnxgen.training import choose, fit
from onnxgen.training.sharded.strategy import LISTS
from tests.support.real import imported
from tests.zoo import ZOO
from tests.zoo.export import export
from tests.zoo.gpt2 import GPT2LMHeadModel
from tests.zoo.pairs import still

TARGET, VOCABULARY, RATE = 0.97, 8000, 1e-4


class Hand:
    """Steps with FSDP2 as one writes them by hand."""

    def __init__(self, module: Any, tokens: Tensor, given: Any, device: torch.device) -> None:
        model = module.Model.from_pretrained().to(device).train()
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if given.precision == "bf16-mixed" else None
        more = {} if policy is None else {"mp_policy": policy}
        for block in blocks(model):
            fully_shard(block, **more)
        self.model = fully_shard(model, **more)
        self.optimizer = torch.optim.AdamW(model.parameters(), RATE)
        self.tokens, self.device, self.batch = tokens, device, given.batch
        self.order = torch.randperm(len(tokens)).split(given.batch)
        self.number = 0

    def step(self) -> None:
        ids = self.tokens[self.order[self.number % len(self.order)]].to(self.device)
        self.number += 1
        logits = self.model(ids)[:, :-1]
        loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    return max((list(m) for m in model.modules() if isinstance(m, LISTS)), key=len)


@dataclass
class Begun(Turns):
    """The loop by hand begins with the first epoch, when there is a group of processes."""

    hand: Any
    device: torch.device

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.hand = self.hand()
        super().on_train_epoch_start(trainer, pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *of_the_step: Any) -> None:
        """The first step starts the workers of the loader, and is timed apart."""
        if trainer.global_step > 1:
            super().on_train_batch_end(trainer, pl_module, *of_the_step)
            return
        self.first = now(self.device)[0] - self.began[0]
        self.hand.step()
        self.began = now(self.device)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The last checkpoint is timed apart: it grows with the weights, and not with the steps."""
        self.end = now(self.device)[0] - self.began[0]


def turns(module: Any, tokens: Tensor, given: Any, out: Path) -> Turns:
    device = choose(given.device).torch_device
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    made = Begun(lambda: Hand(module, tokens, given, device), device)
    more: dict[str, Any] = {"epochs": 1, "val": 0.0, "batch_size": given.batch, "lr": RATE, "optimizer": "adamw"}
    more |= {"device": given.device, "devices": given.processes, "precision": given.precision, "metric": ()}
    data = {"train": (tokens, tokens)}
    fit(module.Model.from_pretrained(), data, strategy="fsdp", callbacks=[made], show="nothing", out=out, **more)
    return made


def process(given: Any, folder: Path) -> None:
    """What each process does; the first one writes seconds of both to `folder`."""
    keep_memory()
    module, generator = imported(folder / "gpt2.py"), torch.Generator().manual_seed(0)
    found = []
    for turn in range(given.rounds + 1):
        steps = given.steps if turn else 3  # the first round warms up
        number = steps * given.batch * given.processes
        tokens = torch.randint(0, VOCABULARY, (number, given.length), generator=generator)
        made = turns(module, tokens, given, folder / f"run{turn}")
        if turn:
            found.append((made.ours[0], made.theirs[0], made.first, made.end))
    if os.environ["RANK"] == "0":
        (folder / "found.json").write_text(json.dumps(found))


def measure(given: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build = partial(GPT2LMHeadModel, VOCABULARY, given.width, given.width // 64, given.layers, given.length)
        export(still(replace(ZOO["gpt2"], build=build)), folder / "gpt2.onnx", "legacy", 17, training=True)
        generate(folder / "gpt2.onnx", folder / "gpt2.py")
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={given.processes}"]
        command += ["--standalone", "-m", "benchmarks.fsdp", *sys.argv[1:], "--inside", name]
        threads = "1" if given.device == "cpu" else "8"
        subprocess.run(command, check=True, env=environment() | {"OMP_NUM_THREADS": threads})
        found = json.loads((folder / "found.json").read_text())
    total = (given.steps - 1) * given.batch * given.processes * given.length
    speed = statistics.median(theirs / ours for ours, theirs, *_ in found)
    return {
        "device": given.device,
        "processes": given.processes,
        "precision": given.precision,
        "fit tokens/s": round(total / statistics.median(ours for ours, *_ in found)),
        "by hand tokens/s": round(total / statistics.median(theirs for _, theirs, *_ in found)),
        "ratio of speed": round(speed, 3),
        "first step s": round(statistics.median(first for *_, first, _ in found), 2),
        "last checkpoint s": round(statistics.median(end for *_, end in found), 2),
        "target": f">= {TARGET}",
        "": "ok" if speed >= TARGET else "MISSED",
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--processes", type=int, default=2, help="processes, on CUDA one a device (default: 2)")
    parser.add_argument("--layers", type=int, default=4, help="blocks (default: 4)")
    parser.add_argument("--width", type=int, default=256, help="width of the network (default: 256)")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sample (default: 128)")
    parser.add_argument("--batch", type=int, default=4, help="samples of a step in each process (default: 4)")
    parser.add_argument("--steps", type=int, default=40, help="steps of a round (default: 40)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default: 3)")
    parser.add_argument("--precision", default="32-true", help="32-true or bf16-mixed (default: 32-true)")
    parser.add_argument("--inside", type=Path, help=SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        process(given, given.inside)
    else:
        finish([measure(given)], given.json)


if __name__ == "__main__":
    main()
