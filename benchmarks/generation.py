"""How long generating takes: a cold command against the imports it can't do without, then networks and graphs by stage.

    python -m benchmarks.generation [--rounds 21] [--nets resnet50,vit] [--nodes 100,1000,10000] [--json FILE]

The first row's ratio is that of wall clock times of two processes that take turns, the median over all rounds. All
other seconds are CPU time of one core, without imports and without reading, hashing and writing the weights.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.common import ROOT, arguments, finish, interleaved, python, ratio
from onnxgen.common.timing import IMPORTS, WEIGHTS

FLOOR = "import onnx, onnx_ir, jinja2, black"
CPU = (
    "import sys, time; time.perf_counter = time.process_time; from onnxgen.cli import run; sys.exit(run(sys.argv[1:]))"
)
NAMES = ["mnist", "resnet50", "mobilenet_v3", "densenet121", "vit", "bert_base", "gpt2", "lstm_tagger"]


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


def staged(name: str, path: Path) -> dict[str, Any]:
    """One generation of a larger graph: CPU seconds without imports and the weights' bytes, and those of each stage."""
    out = str(path.with_suffix(".py"))
    said = json.loads(python("-c", CPU, str(path), "-o", out, "--force", "--json"))
    stages = {stage: round(seconds, 3) for stage, seconds in said["stages"].items()}
    net = sum(seconds for stage, seconds in stages.items() if stage not in (IMPORTS, WEIGHTS))
    return {
        "measurement": f"{name}, {said['lines']} lines",
        "seconds": round(net, 3),
        "against": ", ".join(f"{stage} {spent:.2f}" for stage, spent in stages.items()),
        "stages": stages,
    }


def sized(name: str, graph: Callable[[int], onnx.ModelProto], sizes: list[int], folder: Path) -> list[dict[str, Any]]:
    """The same kind of graph in several sizes: how much longer a node takes than in the one before."""
    rows: list[dict[str, Any]] = []
    for nodes in sizes:
        onnx.save(graph(nodes), folder / "graph.onnx")
        rows.append(staged(f"{name} {nodes} nodes", folder / "graph.onnx") | {"nodes": nodes})
        rows[-1]["ms a node"] = round(1e3 * rows[-1]["seconds"] / nodes, 3)
        if len(rows) > 1:
            rows[-1]["ratio"] = round(rows[-1]["ms a node"] / rows[-2]["ms a node"], 2)
            rows[-1]["target"] = "<= 1.2 a node" + (", <= 10 s" if nodes == 10_000 else "")
    return rows


def networks(names: list[str], folder: Path) -> list[dict[str, Any]]:
    """Networks of usual sizes."""
    from benchmarks.nets import NETS, export

    rows = []
    for name in names:
        export(NETS[name], folder / "net.onnx")
        rows.append(staged(name, folder / "net.onnx") | {"target": "<= 1.0 s"})
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=21, help="pairs of processes (default: 21)")
    parser.add_argument("--nodes", default="100,1000,10000", help="sizes of graphs (default: 100,1000,10000)")
    parser.add_argument("--nets", default="all", help="networks of benchmarks/nets.py, or none (default: all)")
    given = parser.parse_args()
    sizes = [int(n) for n in given.nodes.split(",") if n]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [cold(given.rounds, folder)] if given.rounds else []
        if given.nets != "none":
            rows += networks(NAMES if given.nets == "all" else given.nets.split(","), folder)
        rows += sized("equal blocks:", chain, sizes, folder)
        rows += sized("nothing alike:", irregular, sizes, folder)
    finish(rows, given.json)


if __name__ == "__main__":
    main()
