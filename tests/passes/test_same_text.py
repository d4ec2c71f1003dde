"""The text of operators that the installed onnx defines by functions, too, is pinned: it must not depend on onnx.

Needs no torch: `make floors` runs this with the oldest packages. `benchmarks/versions.py` compares thousands of files.
If you change what is written on purpose: `python -m tests.passes.test_same_text`, and read the difference of sources.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from onnxgen.code import render
from onnxgen.options import Options
from onnxgen.pipeline import build

PINNED = Path(__file__).with_name("same_text.json")
FLOAT, HALF, INT, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL
Q, K, V = (FLOAT, [2, 4, 5, 8]), (FLOAT, [2, 2, 6, 8]), (FLOAT, [2, 2, 6, 8])
PAST = (FLOAT, [2, 2, "past", 8])
PACKED = (FLOAT, ["B", "T", 32])
SCORES, LABELS = (FLOAT, ["N", 5, "L"]), (INT, ["N", "L"])
Input = tuple[int, list[Any]] | None

# name: operator, opset, inputs, the number of outputs, attributes
NODES: dict[str, tuple[str, int, list[Input], int, dict[str, Any]]] = {
    "shrink": ("Shrink", 9, [(FLOAT, ["N", 4])], 1, {"bias": 1.5, "lambd": 0.5}),
    "shrink of integers": ("Shrink", 9, [(INT, [4])], 1, {"bias": 1.5}),
    "hann": ("HannWindow", 17, [(INT, [])], 1, {"periodic": 0}),
    "blackman": ("BlackmanWindow", 17, [(INT, [])], 1, {"output_datatype": 11}),
    "dft": ("DFT", 17, [(FLOAT, ["B", "N", 1])], 1, {"onesided": 1}),
    "inverse dft": ("DFT", 20, [(FLOAT, ["B", 6, 2])], 1, {"onesided": 1, "inverse": 1}),
    "nll": ("NegativeLogLikelihoodLoss", 13, [SCORES, LABELS, (FLOAT, [5])], 1, {"ignore_index": 2}),
    "cross entropy": ("SoftmaxCrossEntropyLoss", 13, [SCORES, LABELS], 2, {"reduction": "sum"}),
    "rotary": ("RotaryEmbedding", 23, [Q, (FLOAT, [9, 4]), (FLOAT, [9, 4]), (INT, [2, 5])], 1, {}),
    "grouped heads": ("Attention", 23, [Q, K, V], 1, {}),
    "a cache": ("Attention", 23, [Q, K, V, None, PAST, PAST], 3, {"is_causal": 1}),
    "softcap": ("Attention", 23, [Q, K, V, (BOOL, [5, 6])], 1, {"softcap": 3.0}),
    "scores": ("Attention", 23, [Q, K, V, (FLOAT, [5, 6])], 4, {"qk_matmul_output_mode": 3, "softmax_precision": 11}),
    "lengths": ("Attention", 24, [Q, K, V, (FLOAT, [5, 4]), None, None, (INT, [2])], 1, {"is_causal": 1}),
    "a window": ("Attention", 28, [Q, K, V], 1, {"left_window_size": 2}),
    "flex": ("ai.onnx.preview:FlexAttention", 26, [Q, K, V], 1, {"scale": 0.5}),
    "linear attention": ("LinearAttention", 27, [PACKED, PACKED, PACKED], 2, {"update_rule": "linear"}),
    "causal convolution": ("CausalConvWithState", 27, [(HALF, ["B", 4, "L"]), (HALF, [4, 1, 3])], 2, {}),
    "swiglu": ("SwiGLU", 28, [(FLOAT, ["N", 4]), (FLOAT, ["N", 4])], 1, {"alpha": 1.5}),
}


def model(op: str, opset: int, inputs: list[Input], outputs: int, attributes: dict[str, Any]) -> onnx.ModelProto:
    domain, _, op = op.rpartition(":")
    if op == "LinearAttention":
        attributes = {**attributes, "q_num_heads": 4, "kv_num_heads": 4}
    names = ["" if given is None else f"i{n}" for n, given in enumerate(inputs)]
    node = helper.make_node(op, names, [f"o{n}" for n in range(outputs)], "node", domain=domain, **attributes)
    given = [helper.make_tensor_value_info(name, *about) for name, about in zip(names, inputs) if about is not None]
    graph = helper.make_graph([node], "graph", given, [onnx.ValueInfoProto(name=o) for o in node.output])
    imports = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def digest(name: str, folder: Path) -> str:
    path = folder / "net.onnx"
    path.write_bytes(model(*NODES[name]).SerializeToString())
    source = build(path, Options(), folder / "net.py").source
    source = re.sub(r'^FINGERPRINT = "\w+"$', "", source, flags=re.M)  # of the file, in which onnx writes its version
    return hashlib.sha256(source.encode()).hexdigest()[:12]


@pytest.mark.parametrize("name", NODES)
def test_the_text_is_as_pinned(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if NODES[name][1] > onnx.defs.onnx_opset_version():
        pytest.skip(f"the installed onnx {onnx.__version__} does not know opset {NODES[name][1]}")
    monkeypatch.setattr(render, "formatted", lambda source, keep_commas=True: source)
    assert digest(name, tmp_path) == json.loads(PINNED.read_text(encoding="utf-8"))[name]


def test_everything_is_pinned() -> None:
    assert json.loads(PINNED.read_text(encoding="utf-8")).keys() == NODES.keys()


if __name__ == "__main__":
    render.formatted = lambda source, keep_commas=True: source
    with tempfile.TemporaryDirectory() as temporary:
        made = {name: digest(name, Path(temporary)) for name in NODES}
    PINNED.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    sys.exit(0)
