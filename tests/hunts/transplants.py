"""Drawn modules whose weights are put back from their files: `python -m tests.hunts transplants --cases 150 --seed 0`.

A seed's module (`modules`) is exported, and a copy of it with other weights is filled from the file. It has to compute
what the module computed. A refusal is told, and no fault: the file may not show how it was written.
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import onnx
import torch
from torch import nn

import onnxgen
from tests.hunts import modules
from tests.hunts.judge import Unmade

APART = 1e-4  # of the largest element: float32 weights, compared in float64


def others(net: nn.Module, seed: int) -> nn.Module:
    """A copy with other weights."""
    torch.manual_seed(seed)
    found = copy.deepcopy(net)
    with torch.no_grad():
        for tensor in (*found.parameters(), *found.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.1)
    return found


def apart(one: nn.Module, other: nn.Module, x: torch.Tensor) -> float:
    """The largest difference of the outputs, as a share of the largest element."""
    with torch.no_grad():
        a, b = (copy.deepcopy(net).double()(x.double()) for net in (one, other))
    a, b = (v[0] if isinstance(v, tuple) else v for v in (a, b))
    return float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)) if a.numel() else 0.0


def judged(seed: int) -> tuple[str, str]:
    """`equal`, `refused`, `wrong`, `crash` or `void`, and why."""
    try:
        case, net = modules.make(seed), modules.drawn(seed)
    except Unmade as error:
        return "void", str(error)
    if not list(net.parameters()):
        return "void", "it has no parameters"
    filled = others(net, seed)
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(case.model, Path(folder) / "net.onnx")
        try:
            onnxgen.transplant(Path(folder) / "net.onnx", filled)
        except onnxgen.OnnxgenError as error:
            return "refused", str(error)
        except Exception as error:
            return "crash", f"{type(error).__name__}: {error}"
    worst = apart(net, filled, torch.from_numpy(case.feeds[0]["i0"]))
    return ("equal", "") if worst < APART else ("wrong", f"apart by {worst:.1e}")


def hunt(first: int, cases: int) -> Counter[str]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    table: Counter[str] = Counter()
    for seed in range(first, first + cases):
        kind, why = judged(seed)
        table[kind] += 1
        if kind not in ("equal", "void"):
            print(f"== transplants {seed}: {kind}: {why[:250]}", flush=True)
    print(f"transplants: {cases} seeds from {first}: {dict(table)}", flush=True)
    return table
