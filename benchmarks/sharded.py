"""Train what one process could not hold: FSDP over several processes, from the first byte to the ONNX file.

    python -m benchmarks.sharded [--megabytes 1024] [--layers 32] [--processes 4] [--folder FOLDER] [--json FILE]

Linux only. The network is random numbers in equal Linear layers, exported with external data. The weights are three
files. `fit` makes a step and a checkpoint; then it is resumed for one more; then the best weights are exported.

Memory is anonymous memory (RssAnon of /proc/PID/status) at its peak, over that of a process that has imported torch:
pages of mapped files can be dropped at any time. It is read every 5 ms, of each process. The share of a process is its
part of weights, gradients and the optimizer's state. The folder needs eight times the size of the weights.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from benchmarks.common import arguments, environment, finish

MIB = 1 << 20
ROWS = 16  # samples
ALLOWED = 600  # MiB beyond the share
IMPORTS = """
import torch
torch.ones(3).sum()
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon")))
"""


def network(folder: Path, megabytes: int, layers: int) -> Path:
    """Equal Linear layers with ReLU between them, written a layer at a time; and a few samples in `data.npz`."""
    width = int((megabytes * MIB / 4 / layers) ** 0.5) // 8 * 8
    path, random = folder / "large.onnx", np.random.default_rng(0)
    nodes, tensors = [], []
    with open(folder / "large.data", "wb") as file:
        for n in range(layers):
            array = random.standard_normal((width, width), np.float32) * np.float32((2 / width) ** 0.5)
            tensor = onnx.TensorProto(name=f"layers.{n}.weight", data_type=1, dims=array.shape)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in {"location": "large.data", "offset": file.tell(), "length": array.nbytes}.items():
                tensor.external_data.add(key=key, value=str(value))
            file.write(array.data)
            tensors.append(tensor)
            x, y = f"h{n}" if n else "x", "y" if n + 1 == layers else f"g{n}"
            nodes.append(helper.make_node("Gemm", [x, tensor.name], [y], f"/layers.{n}/Gemm", transB=1))
            if n + 1 < layers:
                nodes.append(helper.make_node("Relu", [y], [f"h{n + 1}"], f"/act.{n}/Relu"))
    values = [helper.make_tensor_value_info(name, 1, ["batch", width]) for name in "xy"]
    graph = helper.make_graph(nodes, "large", values[:1], values[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    x, y = random.standard_normal((2, 2 * ROWS, width), np.float32)
    np.savez(folder / "data.npz", x_train=x[:ROWS], y_train=y[:ROWS], x_val=x[ROWS:], y_val=y[ROWS:])
    return path


def peaks(args: list[str], folder: Path) -> tuple[list[float], float]:
    """Run the command. Returns the peaks of anonymous memory of its processes, in MiB, and the seconds it took."""
    start, found = time.monotonic(), dict[int, float]()
    log = folder / "log.txt"
    with open(log, "wb") as said:
        command = [sys.executable, "-m", "onnxgen", *args]
        child = subprocess.Popen(command, env=environment(), cwd=folder, stdout=said, stderr=said)
        while child.poll() is None:
            for pid in (child.pid, *children(child.pid)):
                found[pid] = max(found.get(pid, 0.0), resident(pid))
            time.sleep(0.005)
    assert child.returncode == 0, log.read_text()
    return [size for size in found.values() if size > 100], time.monotonic() - start  # no helpers such as `uname`


def children(pid: int) -> list[int]:
    try:
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def resident(pid: int) -> float:
    try:
        found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def measure(folder: Path, megabytes: int, layers: int, processes: int, optimizer: str) -> list[dict[str, Any]]:
    onnx_file, model, out = network(folder, megabytes, layers), folder / "large.py", folder / "run"
    subprocess.run([sys.executable, "-m", "onnxgen", str(onnx_file), "-o", str(model), "--shard-size",
                    f"{megabytes // 3 + 1}MB", "-q"], check=True, env=environment())  # fmt: skip
    imports = subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True, env=environment())
    base = int(imports.stdout) / 1024
    total = sum(file.stat().st_size for file in folder.glob("large-*.safetensors")) / MIB
    copies = {"sgd": 2, "adamw": 4}[optimizer]
    train = ["train", str(model), "--data", str(folder / "data.npz"), "--out", str(out), "--strategy", "fsdp"]
    train += ["--devices", str(processes), "--batch-size", str(ROWS // processes), "--device", "cpu", "--loss", "mse"]
    train += ["--normalize", "none", "--optimizer", optimizer, "--lr", "1e-4"]
    export = ["export", str(out), "-o", str(folder / "out.onnx"), "--no-verify"]
    share, rows = copies * total / processes, []
    for what, args, held in (
        ("train: one step, checkpoint, best", [*train, "--epochs", "1"], share),
        ("resume: one more step", [*train, "--epochs", "2", "--resume"], share),
        ("export, one process", export, 0.0),
    ):
        found, seconds = peaks(args, folder)
        allowed = held + ALLOWED
        rows.append(
            {
                "what": what,
                "processes": len(found),
                "weights MiB": round(total),
                "share MiB": round(held),
                "peak MiB over torch": round(max(found) - base),
                "target": f"<= {allowed:.0f}",
                "": "ok" if max(found) - base <= allowed else "MISSED",
                "seconds": round(seconds),
            }
        )
        print(rows[-1], file=sys.stderr)
    assert (out / "best.safetensors.index.json").is_file()
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the weights (default: 1024)")
    parser.add_argument("--layers", type=int, default=32, help="number of layers (default: 32)")
    parser.add_argument("--processes", type=int, default=4, help="number of processes (default: 4)")
    parser.add_argument("--optimizer", default="sgd", choices=("sgd", "adamw"), help="the optimizer (default: sgd)")
    parser.add_argument("--folder", type=Path, help="where to write the model (default: a temporary folder)")
    given = parser.parse_args()
    if shutil.disk_usage(given.folder or tempfile.gettempdir()).free < 8 * given.megabytes * MIB:
        parser.error(f"{8 * given.megabytes} MB of free disk are needed: take fewer --megabytes, or another --folder")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        rows = measure(Path(folder), given.megabytes, given.layers, given.processes, given.optimizer)
    finish(rows, given.json)


if __name__ == "__main__":
    main()
