"""Peak memory of LoRA over the integers of a 4-bit file (QLoRA), beside LoRA over the same weights as floats.

    python -m benchmarks.qlora [--layers 30] [--width 2048] [--json FILE]

The net is a stack of MatMulNBits (4 bits, blocks of 32) with drawn weights, 503 MB as floats. Each run trains two
epochs in a process of its own. `run` is the largest resident memory from the start of `fit` to its end, without that
before; `steps` is the same from the first step on. Floats are what `fit` trains beside if the `.onnx` file is gone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.common import arguments, finish, python

BLOCK, CLASSES, SAMPLES, BATCH, RANK = 32, 10, 32, 8, 8


def write_net(path: Path, layers: int, width: int) -> None:
    rng = np.random.default_rng(0)
    nodes, stored = [], []
    x = "x"
    for i in range(layers):
        packed = rng.integers(0, 256, (width, width // BLOCK, BLOCK // 2), np.uint8)
        scales = rng.uniform(0.5, 1.5, width * width // BLOCK).astype(np.float32) / np.float32(4.6 * width**0.5)
        stored += [numpy_helper.from_array(packed, f"fc{i}.weight_Q4"), numpy_helper.from_array(scales, f"fc{i}.scale")]
        sizes = {"K": width, "N": width, "bits": 4, "block_size": BLOCK}
        given = [x, f"fc{i}.weight_Q4", f"fc{i}.scale"]
        nodes.append(helper.make_node("MatMulNBits", given, [f"m{i}"], domain="com.microsoft", **sizes))
        nodes.append(helper.make_node("Tanh", [f"m{i}"], [f"h{i}"]))
        x = f"h{i}"
    head = (rng.normal(size=(width, CLASSES)) / width**0.5).astype(np.float32)
    stored.append(numpy_helper.from_array(head, "head.weight"))
    nodes.append(helper.make_node("MatMul", [x, "head.weight"], ["scores"]))
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", s]) for n, s in (("x", width), ("scores", CLASSES))
    ]
    graph = helper.make_graph(nodes, "stack", ends[:1], ends[1:], stored)
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=10), path)


def resident(key: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(f"{key}:")).split()[1]) * 1024


def begin_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def data_for(width: int) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {"x": rng.normal(size=(SAMPLES, width)).astype(np.float32), "label": rng.integers(0, CLASSES, SAMPLES)}


def train(module: Path, width: int) -> dict[str, Any]:
    import lightning

    from onnxgen.training import fit

    peaks: list[int] = []

    class FromFirstStep(lightning.Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            peaks.append(resident("VmHWM"))
            begin_peak()

    options = {"epochs": 2, "batch_size": BATCH, "val": 0.25, "workers": 0, "device": "cpu", "show": "nothing"}
    options |= {"lora": RANK, "lr": 1e-3, "callbacks": [FromFirstStep()]}
    fit(module.with_name("small.py"), data_for(32), out=module.parent / "small", **options)  # all is imported now
    peaks.clear()
    before = resident("VmRSS")
    begin_peak()
    result = fit(module, data_for(width), out=module.parent / "run", **options)
    peaks.append(resident("VmHWM"))
    seconds = sum(row["seconds"] for row in result.history)
    loss = result.history[-1]["train_loss"]
    return {"run": max(peaks) - before, "steps": peaks[-1] - before, "seconds": seconds, "loss": loss}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        print(json.dumps(train(given.train, given.width)))
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for stem, sizes in (("net", (given.layers, given.width)), ("small", (2, 32))):
            write_net(folder / f"{stem}.onnx", *sizes)
            python("-m", "onnxgen", f"{stem}.onnx", "-o", f"{stem}.py", "--quantized", "float", cwd=folder)
        for base in ("4-bit integers", "floats"):
            if base == "floats":
                (folder / "net.onnx").rename(folder / "away.onnx")
            how = ("--train", str(folder / "net.py"), "--width", str(given.width))
            found = json.loads(python("-m", "benchmarks.qlora", *how).splitlines()[-1])
            rows.append({"base": base, **found})
    floats = rows[1]
    for row in rows:
        for what in ("run", "steps"):
            row[f"{what} of floats'"] = f"{row[what] / floats[what]:.2f}"
    shown = [{k: f"{v / 1e6:.0f} MB" if k in ("run", "steps") else v for k, v in row.items()} for row in rows]
    finish(shown, given.json)


if __name__ == "__main__":
    sys.exit(main())
