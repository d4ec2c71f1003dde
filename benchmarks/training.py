"""Training speed: forward + backward of generated modules against the PyTorch originals that they were exported from.

    python -m benchmarks.training [--device cpu] [--rounds 31] [--models mnist,resnet18,bert] [--json FILE]

Both are in training mode, hold equal weights and get the same input; eager mode. They take turns in one process, and
the ratio is the median over the rounds. Dropout's ratio stays: both draw as many random numbers.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common import ROOT, arguments, finish, interleaved, ratio
from onnxgen.pipeline import generate
from onnxgen.runtime.load import imported
from tests.zoo.bert import BertModel
from tests.zoo.export import quiet
from tests.zoo.resnet import resnet18

TARGET = 1.05


@dataclass(frozen=True)
class Workload:
    """An original, and an input that it is exported and measured with."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]


def mnist() -> nn.Module:
    """The original of samples/mnist."""
    sys.path.insert(0, str(ROOT / "samples" / "mnist"))
    try:
        from make_onnx import Mnist  # type: ignore[import-not-found]
    finally:
        del sys.path[0]
    made: nn.Module = Mnist()
    return made


def bert_inputs() -> tuple[Tensor, ...]:
    """8 sequences of 128 tokens, a few of them padded."""
    ids = torch.randint(1, 8000, (8, 128))
    mask = torch.ones_like(ids)
    mask[1, 100:] = 0
    return ids, mask, torch.zeros_like(ids)


WORKLOADS = {
    "mnist": Workload(mnist, lambda: (torch.randn(64, 1, 28, 28),)),
    "resnet18": Workload(resnet18, lambda: (torch.randn(8, 3, 64, 64),)),
    "bert": Workload(lambda: BertModel(vocabulary=8000, dim=256, heads=4, layers=4, positions=128), bert_inputs),
}


def export(original: nn.Module, inputs: tuple[Tensor, ...], path: Path, exporter: str) -> None:
    """In training mode, with a dynamic batch: what a person would export who wants to train the result."""
    original.train()
    with quiet():
        if exporter == "legacy":
            names = [f"x{n}" for n in range(len(inputs))]
            torch.onnx.export(
                original,
                inputs,
                path,
                dynamo=False,
                opset_version=17,
                training=torch.onnx.TrainingMode.TRAINING,
                do_constant_folding=False,
                input_names=names,
                dynamic_axes={name: {0: "batch"} for name in names},
            )
            return
        shapes = tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs)
        torch.onnx.export(original, inputs, path, dynamo=True, dynamic_shapes=shapes, verbose=False, optimize=False)


def step(model: nn.Module, inputs: tuple[Tensor, ...], device: torch.device) -> Callable[[], float]:
    """Seconds of one forward and backward pass."""
    parameters = list(model.parameters())

    def run() -> float:
        for parameter in parameters:
            parameter.grad = None
        synchronise(device)
        start = time.perf_counter()
        outputs = model(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        sum(o.mean() for o in outputs).backward()
        synchronise(device)
        return time.perf_counter() - start

    return run


def synchronise(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def measure(name: str, exporter: str, rounds: int, device: torch.device, folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    work = WORKLOADS[name]
    original, inputs = work.build().train(), work.inputs()
    path = folder / f"{name}_{exporter}.onnx"
    weights = {k: v.clone() for k, v in original.state_dict().items()}  # exporting in training mode moves statistics
    export(original, inputs, path, exporter)
    original.load_state_dict(weights)
    generate(path, path.with_suffix(".py"))
    with imported(path.with_suffix(".py")) as module:
        ours = step(module.Model.from_pretrained().train().to(device), tuple(i.to(device) for i in inputs), device)
        theirs = step(original.to(device), tuple(i.to(device) for i in inputs), device)
        for _ in range(3):
            ours(), theirs()
        pairs = interleaved(ours, theirs, rounds)
    found = ratio(pairs)
    return {
        "network": name,
        "exporter": exporter,
        "generated ms": round(statistics.median(pairs[0]) * 1000, 2),
        "original ms": round(statistics.median(pairs[1]) * 1000, 2),
        "ratio": round(found, 3),
        "target": f"<= {TARGET}",
        "": "ok" if found <= TARGET else "MISSED",
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, mps, xpu (default: cpu)")
    parser.add_argument("--rounds", type=int, default=31, help="pairs of passes (default: 31)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's)")
    parser.add_argument("--models", default=",".join(WORKLOADS), help="which (default: all)")
    parser.add_argument("--exporters", default="legacy,dynamo", help="which (default: both)")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            measure(name, exporter, given.rounds, torch.device(given.device), Path(folder))
            for name in given.models.split(",")
            for exporter in given.exporters.split(",")
        ]
    finish(rows, given.json)


if __name__ == "__main__":
    main()
