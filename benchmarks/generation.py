"""How long generating takes: a cold command against the imports it can't do without, then larger graphs by stage.

    python -m benchmarks.generation [--rounds 21] [--nodes 1000,10000] [--blocks 10,100] [--json FILE]

The first row's ratio is that of wall clock times of two processes that take turns, the median over all rounds.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.common import ROOT, arguments, finish, interleaved, python, ratio

FLOOR = "import onnx, onnx_ir, jinja2, black"


def cold(rounds: int, folder: Path) -> dict[str, Any]:
    """`onnxgen mnist.onnx -o model.py` (nothing there yet) against the bare imports, both in new processes."""
    out = folder / "model.py"

    def ours() -> float:
        for path in folder.iterdir():
            path.unlink()
        return timed("-m", "onnxgen", str(ROOT / "samples/mnist/mnist.onnx"), "-o", str(out))

    def theirs() -> float:
        return timed("-c", FLOOR)

    ours(), theirs()  # byte code and file cache
    pairs = interleaved(ours, theirs, rounds)
    return {
        "measurement": "onnxgen mnist.onnx -o model.py",
        "seconds": round(statistics.median(pairs[0]), 3),
        "against": FLOOR,
        "its seconds": round(statistics.median(pairs[1]), 3),
        "ratio": round(ratio(pairs), 3),
        "target": "<= 1.5",
    }


def timed(*args: str) -> float:
    start = time.perf_counter()
    python(*args)
    return time.perf_counter() - start


def chain(nodes: int) -> onnx.ModelProto:
    """A residual MLP of about `nodes` nodes: blocks of MatMul, Add, Relu, MatMul, Add, named as PyTorch names them."""
    make = onnx.helper
    operators: list[onnx.NodeProto] = []
    tensors: list[onnx.TensorProto] = []
    x = "x"
    while len(operators) < nodes:
        scope = f"blocks.{len(operators) // 5}"
        shapes = {"fc1.weight": (16, 8), "fc1.bias": (8,), "fc2.weight": (8, 16)}
        tensors += [_random(f"{scope}.{name}", shape) for name, shape in shapes.items()]
        at = f"/{scope}/"
        operators += [
            make.make_node("MatMul", [x, f"{scope}.fc1.weight"], [f"{at}m"], f"{at}fc1/MatMul"),
            make.make_node("Add", [f"{at}m", f"{scope}.fc1.bias"], [f"{at}b"], f"{at}fc1/Add"),
            make.make_node("Relu", [f"{at}b"], [f"{at}r"], f"{at}Relu"),
            make.make_node("MatMul", [f"{at}r", f"{scope}.fc2.weight"], [f"{at}f"], f"{at}fc2/MatMul"),
            make.make_node("Add", [f"{at}f", x], [f"{at}out"], f"{at}Add"),
        ]
        x = f"{at}out"
    return _model(operators, tensors, x)


UNARY = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Exp", "Softplus", "Elu", "Erf", "Sin")
BINARY = ("Add", "Mul", "Sub", "Max", "Min")


def irregular(nodes: int) -> onnx.ModelProto:
    """`nodes` nodes without names in random order, with random skips: no two stretches are alike."""
    draw = random.Random(0)
    operators: list[onnx.NodeProto] = []
    tensors: list[onnx.TensorProto] = []
    values = ["x"]
    while len(operators) < nodes:
        inputs, kind = [values[-1]], draw.random()
        if kind < 0.25:
            tensors.append(_random(f"w{len(operators)}", (16, 16)))
            operator, inputs = "MatMul", [*inputs, tensors[-1].name]
        elif kind < 0.65:
            operator = draw.choice(UNARY)
        else:
            operator, inputs = draw.choice(BINARY), [*inputs, draw.choice(values[-8:])]
        values.append(f"v{len(operators)}")
        operators.append(onnx.helper.make_node(operator, inputs, values[-1:]))
    return _model(operators, tensors, values[-1])


def _random(name: str, shape: tuple[int, ...]) -> onnx.TensorProto:
    seed = zlib.crc32(name.encode())
    return onnx.numpy_helper.from_array(np.random.default_rng(seed).random(shape, np.float32) - np.float32(0.5), name)


def _model(operators: list[onnx.NodeProto], tensors: list[onnx.TensorProto], result: str) -> onnx.ModelProto:
    make = onnx.helper
    x, y = (make.make_tensor_value_info(name, 1, ["batch", 16]) for name in ("x", result))
    graph = make.make_graph(operators, "large", [x], [y], tensors)
    return make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=9)


def transformer(blocks: int, path: Path) -> int:
    """Write a vision transformer as PyTorch's TorchScript exporter writes it; returns the number of nodes."""
    from tests.zoo import ZOO
    from tests.zoo.export import export
    from tests.zoo.vit import VisionTransformer

    export(replace(ZOO["vit"], build=lambda: VisionTransformer(dim=8, depth=blocks, heads=2)), path)
    return len(onnx.load(path).graph.node)


def staged(name: str, path: Path) -> dict[str, Any]:
    """One generation of a larger graph: seconds a stage, as the command itself reports them."""
    start = time.perf_counter()
    said = json.loads(python("-m", "onnxgen", str(path), "-o", str(path.with_suffix(".py")), "--json"))
    seconds = time.perf_counter() - start
    stages = ", ".join(f"{stage} {spent:.2f}" for stage, spent in said["stages"].items())
    return {
        "measurement": f"{name}, {said['lines']} lines",
        "seconds": round(seconds, 3),
        "stages": {k: round(v, 3) for k, v in said["stages"].items()},
        "against": stages,
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=21, help="pairs of processes (default: 21)")
    parser.add_argument("--nodes", default="1000,10000", help="sizes of the larger graphs (default: 1000,10000)")
    parser.add_argument("--blocks", default="10,100", help="transformers of as many blocks (default: 10,100)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [cold(given.rounds, Path(folder))]
        path = Path(folder) / "graph.onnx"
        for nodes in filter(None, given.nodes.split(",")):
            onnx.save(chain(int(nodes)), path)
            rows.append(staged(f"{nodes} nodes", path))
        for blocks in filter(None, given.blocks.split(",")):
            rows.append(staged(f"{blocks} blocks, {transformer(int(blocks), path)} nodes", path))
        if "," in given.blocks:
            rows[-1]["ratio"] = round(sum(rows[-1]["stages"].values()) / sum(rows[-2]["stages"].values()), 2)
            rows[-1]["target"] = "<= 12 for ten times the blocks"
    finish(rows, given.json)


if __name__ == "__main__":
    main()
