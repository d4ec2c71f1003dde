"""What the onnx package itself writes: extract_model, compose, inliner, shape inference, external data, the parser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import onnx
import onnx.compose
import onnx.inliner
import onnx.parser
import onnx.utils

from benchmarks.exporters.sources import sources

REQUIREMENTS = ["onnx"]
FUNCTIONS = """
<ir_version: 9, opset_import: ["" : 18, "own" : 1]>
agraph (float[N, 8] x) => (float[N, 8] y) { h = own.gate <scale: float = 0.5> (x)  y = own.twice (h) }
<domain: "own", opset_import: ["" : 18]>
gate <scale> (x) => (y) { s = Sigmoid (x) c = Constant <value_float: float = @scale> () m = Mul (s, c) y = Mul (m, x) }
<domain: "own", opset_import: ["" : 18, "own" : 1]>
twice (x) => (y) { a = own.gate <scale: float = 2.0> (x) y = Add (a, a) }
"""


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Parts of networks, networks that follow one another, functions as they are and inlined, data outside the file."""
    for name, path in sources(out, "cnn", "unet", "encoder_post", "lstm", "detect", "diffuse"):
        for part in ("first", "last"):
            yield f"{name}_{part}", partial(_extract, path, part)
    for name, path in sources(out, "mlp", "encoder_pre"):
        yield f"{name}_merged", partial(_merged, path)
    for name, path in sources(out, "cnn_unoptimised", "causal_unoptimised", tools=("torch_dynamo",)):
        yield f"{name}_inlined", partial(_change, path, onnx.inliner.inline_local_functions)
    for name, path in sources(out, "gru", "detect", "causal"):
        yield f"{name}_inferred", partial(_change, path, _inferred)
    for name, path in sources(out, "unet", "encoder_pre", tools=("torch_script",)):
        yield f"{name}_external", partial(_external, path)
    yield "functions", lambda path: onnx.save(onnx.parser.parse_model(FUNCTIONS), path)
    inlined = onnx.inliner.inline_local_functions
    yield "functions_inlined", lambda path: onnx.save(inlined(onnx.parser.parse_model(FUNCTIONS)), path)


def _extract(source: Path, part: str, path: Path) -> None:
    """The first or the last half of the nodes, cut at one value between them."""
    model = onnx.shape_inference.infer_shapes(onnx.load(source))
    known = {value.name for value in model.graph.value_info}
    inner = [name for node in model.graph.node for name in node.output if name in known]
    cut = inner[len(inner) // 2]
    inputs, outputs = ([v.name for v in values] for values in (model.graph.input, model.graph.output))
    ends = (inputs, [cut]) if part == "first" else (list(dict.fromkeys([cut, *inputs])), outputs)
    onnx.utils.extract_model(source, path, *ends, check_model=False)


def _merged(source: Path, path: Path) -> None:
    """A network beside itself, and the sum of both: two inputs, and names with prefixes."""
    one = onnx.load(source)
    value = one.graph.output[0].name
    both = onnx.compose.merge_models(onnx.compose.add_prefix(one, "a/"), onnx.compose.add_prefix(one, "b/"), io_map=[])
    add = onnx.parser.parse_graph("g (float[n] p, float[n] q) => (float[n] r) { r = Add (p, q) }")
    add.ClearField("input"), add.ClearField("output")
    for name in ("p", "q"):
        add.input.append(onnx.helper.make_tensor_value_info(name, 1, None))
    add.output.append(onnx.helper.make_tensor_value_info("r", 1, None))
    last = onnx.helper.make_model(add, opset_imports=one.opset_import, ir_version=one.ir_version)
    onnx.save(onnx.compose.merge_models(both, last, io_map=[(f"a/{value}", "p"), (f"b/{value}", "q")]), path)


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


def _change(source: Path, change: Callable[[onnx.ModelProto], onnx.ModelProto], path: Path) -> None:
    onnx.save(change(onnx.load(source)), path)


def _external(source: Path, path: Path) -> None:
    options = {"all_tensors_to_one_file": False, "size_threshold": 64, "convert_attribute": True}
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    onnx.save(onnx.load(source), folder / "model.onnx", save_as_external_data=True, **options)
