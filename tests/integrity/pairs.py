"""A module and its sidecar as a generation leaves them, the same again with other weights, and what loads of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.output.compose import Generated
from onnxgen.output.write import Output
from onnxgen.pipeline import build
from onnxgen.runtime.load import from_pretrained, imported
from onnxgen.weights.provenance import Source

ONE, SHARDS = Options(), Options(shard_size=600)
LAYERS, WIDTH = 3, 8


def network(path: Path, seed: int, width: int = WIDTH, external: bool = False) -> Path:
    """Write an ONNX file of `LAYERS` layers; the seed makes the weights and nothing else."""
    nodes, tensors = [], []
    for number in range(LAYERS):
        weight = np.random.default_rng((seed, number)).standard_normal((width, width)).astype(np.float32)
        tensors.append(onnx.numpy_helper.from_array(weight, f"layers.{number}.weight"))
        x, y = f"h{number}" if number else "x", f"h{number + 1}" if number + 1 < LAYERS else "y"
        nodes.append(helper.make_node("Gemm", [x, tensors[-1].name], [y], f"/layers.{number}/Gemm", transB=1))
    values = [helper.make_tensor_value_info(name, 1, ["batch", width]) for name in "xy"]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], tensors)
    path.parent.mkdir(parents=True, exist_ok=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path, save_as_external_data=external, location="net.data", size_threshold=0)
    return path


def built(folder: Path, out: Path, seed: int, options: Options = ONE, **more: Any) -> Generated:
    """What is to be written to `out`: every seed gives the very same module, whose fingerprint either sidecar has."""
    return build(network(folder / str(seed) / "net.onnx", seed, **more), options, out)


def write(generated: Generated, out: Path, options: Options = ONE) -> None:
    generated.report.status = "built"
    Output(out, options).write(generated, force=False)


def loaded(out: Path) -> dict[str, np.ndarray[Any, Any]] | None:
    """The weights of a pair that loads, by its own `from_pretrained`; None if it refuses to, or there is none."""
    if not out.exists():
        return None
    try:
        with imported(out) as module:
            return {key: value.numpy() for key, value in from_pretrained(module, out).state_dict().items()}
    except OnnxgenError:
        return None


def which(out: Path, known: Mapping[str, Generated]) -> str:
    """Whose weights a pair has: a name of `known`, "none" if it refuses to load; else, a mixture, an error."""
    found = loaded(out)
    if found is None:
        return "none"
    for name, generated in known.items():
        wanted = {key: np.array(t.numpy() if isinstance(t, Source) else t) for key, t in generated.tensors.items()}
        for tensor in generated.tensors.values():
            if isinstance(tensor, Source):
                tensor.release()  # the next child opens it anew
        if wanted.keys() == found.keys() and all(np.array_equal(wanted[key], found[key]) for key in wanted):
            return name
    raise AssertionError(f"{out} loads, and is none of {', '.join(known)}")


def temporaries(folder: Path) -> list[Path]:
    return sorted(folder.glob(".*"))
