"""What `onnxgen build` costs where nothing is to do: ten models of 100 MB, a whole process against `python -c pass`.

    python -m benchmarks.build [--rounds 21] [--models 10] [--megabytes 100] [--folder DIR] [--json FILE]

Every second model has its weights in a file beside it. The ratio is that of wall clock times of two processes that take
turns, the median over all rounds. The other rows are measured once: the first build, and the first look of a machine
that has a fresh checkout and no cache, which digests all of it. Needs twice the models' size on disk.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.common import arguments, finish, interleaved, python, ratio

SIDE = 512  # of the weights: a megabyte each
RACY = 2.1  # seconds until a file that was just written may be trusted to stay as it is


def model(path: Path, megabytes: int, seed: int, external: bool) -> None:
    """Write a chain of linear layers with so many megabytes of weights."""
    random, nodes, tensors, x = np.random.default_rng(seed), [], [], "x"
    for number in range(megabytes):
        name = f"layers.{number}.weight"
        weight = random.standard_normal((SIDE, SIDE), np.float32)
        tensors.append(numpy_helper.from_array(weight, name))
        nodes.append(helper.make_node("MatMul", [x, name], [f"y{number}"], f"/layers.{number}/MatMul"))
        x = f"y{number}"
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", SIDE])]
    outputs = [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", SIDE])]
    graph = helper.make_graph(nodes, "chain", inputs, outputs, tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    more = {"save_as_external_data": True, "location": f"{path.stem}.bin"} if external else {}
    onnx.save_model(proto, path, **more)


def project(root: Path, models: int, megabytes: int) -> int:
    """Write a project with so many models; returns the bytes of all of them."""
    (root / "models").mkdir()
    for number in range(models):
        model(root / f"models/net{number}.onnx", megabytes, number, external=number % 2 == 1)
    settings = '[[tool.onnxgen.models]]\nsource = "models/*.onnx"\noutput = "src/nets/"\n'
    (root / "pyproject.toml").write_text(settings, encoding="utf-8")
    return sum(path.stat().st_size for path in (root / "models").iterdir())


def build(root: Path, cache: Path) -> float:
    """Seconds of one `onnxgen build`."""
    os.environ["ONNXGEN_CACHE_DIR"] = str(cache)  # what a child inherits
    start = time.perf_counter()
    python("-m", "onnxgen", "build", str(root), "--quiet")
    return time.perf_counter() - start


def nothing() -> float:
    start = time.perf_counter()
    python("-c", "pass")
    return time.perf_counter() - start


def measure(folder: Path, rounds: int, models: int, megabytes: int) -> list[dict[str, Any]]:
    root, cache = folder / "project", folder / "cache"
    root.mkdir()
    size = project(root, models, megabytes)
    time.sleep(RACY)
    first = build(root, cache)
    build(root, cache)
    pairs = interleaved(lambda: build(root, cache), nothing, rounds)
    warm, bare = statistics.median(pairs[0]), statistics.median(pairs[1])
    name = f"{models} models of {size // models / 1e6:.0f} MB"
    return [
        {
            "measurement": f"{name}, nothing to do",
            "seconds": round(warm, 3),
            "against": "python -c pass",
            "its seconds": round(bare, 3),
            "ratio": round(ratio(pairs), 2),
            "target": "< 0.1 s",
        },
        {"measurement": f"{name}, nothing to do, no cache", "seconds": round(build(root, folder / "none"), 3)},
        {"measurement": f"{name}, first build", "seconds": round(first, 3)},
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=21, help="pairs of processes (default: 21)")
    parser.add_argument("--models", type=int, default=10, help="how many (default: 10)")
    parser.add_argument("--megabytes", type=int, default=100, help="size of each (default: 100)")
    parser.add_argument("--folder", type=Path, help="where there is room for them (default: the system's for such)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        rows = measure(Path(folder), given.rounds, given.models, given.megabytes)
    finish(rows, given.json)


if __name__ == "__main__":
    main()
