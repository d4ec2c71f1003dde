"""Spoilt modules: does `verify` tell them, and does `--locate` name the node that was spoilt?

    python -m benchmarks.spoilt FILES --count 100 --seed N

FILES: a text file, a path of an ONNX file in each line. One node of a file is changed (a weight by one per cent, an
option, the order of operands), a module is generated of the changed file, and verified against the file as it was. So
the truth is the node's name. A change counts if it changes onnxruntime's results.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.pipeline import generate
from onnxgen.reader import read
from onnxgen.verify import feeds, verify
from onnxgen.verify.graph import examine
from onnxgen.verify.oracle import Onnxruntime, Refused
from onnxgen.verify.sizes import sizes

KINDS = ("weight", "option", "operands")
OPTIONS = {"epsilon", "alpha", "beta", "axis", "strides", "dilations", "pads", "perm", "transB", "axes", "keepdims"}
SWAPPED = ("Sub", "Div", "Pow", "MatMul", "Less", "Greater")
TRIES = 2000


def spoilt(model: onnx.ModelProto, kind: str, rng: random.Random) -> str | None:
    """Change one node of a model; its name, or None where there is none of that kind."""
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    for node in nodes:
        done = {"weight": _weight, "option": _option, "operands": _operands}[kind](model, node, rng)
        if done:
            return node.name
    return None


def _weight(model: onnx.ModelProto, node: onnx.NodeProto, rng: random.Random) -> bool:
    for tensor in model.graph.initializer:
        users = [n for n in model.graph.node if tensor.name in n.input]
        if tensor.name not in node.input or users != [node] or tensor.data_type != onnx.TensorProto.FLOAT:
            continue
        array = numpy_helper.to_array(tensor)
        if array.size > 1 and array.any():
            tensor.CopyFrom(numpy_helper.from_array((array * np.float32(1.01)).astype(np.float32), tensor.name))
            return True
    return False


def _option(model: onnx.ModelProto, node: onnx.NodeProto, rng: random.Random) -> bool:
    for attribute in node.attribute:
        if attribute.name not in OPTIONS:
            continue
        if attribute.type == onnx.AttributeProto.FLOAT:
            attribute.f = attribute.f * 1.5 + 0.1
        elif attribute.type == onnx.AttributeProto.INT:
            attribute.i = 1 - attribute.i if attribute.i in (0, 1) else attribute.i - 1
        elif attribute.name == "perm":
            attribute.ints[:] = [*attribute.ints[:-2], attribute.ints[-1], attribute.ints[-2]]
        elif attribute.name in ("strides", "dilations"):
            attribute.ints[:] = [i % 2 + 1 for i in attribute.ints]
        else:
            attribute.ints[:] = list(reversed(attribute.ints))
        return True
    return False


def _operands(model: onnx.ModelProto, node: onnx.NodeProto, rng: random.Random) -> bool:
    if node.op_type not in SWAPPED or len(node.input) != 2:
        return False
    node.input[:] = list(reversed(node.input))
    return True


def cases(files: list[Path], seed: int, folder: Path) -> Iterator[tuple[Path, str, str, Path, Path]]:
    """The file, the kind of the change, the node's name, and the module; the last is the file with named nodes."""
    rng = random.Random(seed)
    for number in range(TRIES):
        path, kind = rng.choice(files), KINDS[number % len(KINDS)]
        model = onnx.load(path)
        for i, node in enumerate(model.graph.node):
            node.name = f"node{i}"
        named, other, module = (folder / f"{name}{number}" for name in ("named", "other", "module"))
        named, other, module = named.with_suffix(".onnx"), other.with_suffix(".onnx"), module.with_suffix(".py")
        onnx.save(model, named)
        node = spoilt(model, kind, rng)
        if node is None:
            continue
        onnx.save(model, other)
        try:
            if not _differ(named, other, exactly=kind == "weight"):
                continue
            generate(other, module)
        except (OnnxgenError, Refused):
            continue
        yield path, kind, node, named, module


def _differ(a: Path, b: Path, exactly: bool) -> bool:
    """Whether two files compute other things, of the same shapes. Raises `Refused` if one does not run.

    `exactly`: another last bit counts.
    """
    graph = examine(read(a, Options()), Options())
    given = feeds.draw(graph, next(sizes(graph, 0)), "plain", 0)
    one, two = (Onnxruntime(path, None, ()).run(given) for path in (a, b))
    same = np.array_equal if exactly else _same
    return not all(same(x, y) for x, y in zip(one, two, strict=True))


def _same(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype.kind not in "biuf":
        return False
    scale = float(np.abs(np.nan_to_num(a.astype(np.float64))).max()) if a.size else 0.0
    return bool(np.allclose(a, b, rtol=5e-3, atol=5e-3 * scale + 1e-4, equal_nan=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("files", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    files = [Path(line) for line in given.files.read_text().split()]
    told = located = count = 0
    with tempfile.TemporaryDirectory() as folder:
        for path, kind, node, named, module in cases(files, given.seed, Path(folder)):
            count += 1
            try:
                report = verify(named, module, locate=True, runs=2)
                found = report.located.node if report.located else "nothing"
                is_told = report.differs
            except OnnxgenError as error:
                found, is_told = str(error), False
            told, located = told + is_told, located + (found == node)
            if not is_told or found != node:
                print(f"{path}: {kind} of {node}: {'told' if is_told else 'NOT TOLD'}, located {found}", flush=True)
            if count == given.count:
                break
    print(f"{count} spoilt modules: {told} told, {located} located at the node that was spoilt")


if __name__ == "__main__":
    main()
