"""`onnxgen prove`: the verdict of edits of one small module, the lines it names, and the weights under new names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import load_file, save_file

import onnxgen
from onnxgen.canonical.places import Texts
from onnxgen.canonical.purity import objections
from onnxgen.canonical.renaming import renamed_record

RESIDUAL = "        x = F.relu(self.fc1(x)) + x\n"


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """A file with two layers and a residual, and its module beside it."""
    draw = np.random.default_rng(0)
    shapes = {"fc1.weight": (4, 4), "fc1.bias": (4,), "fc2.weight": (3, 4), "fc2.bias": (3,)}
    weights = [numpy_helper.from_array(draw.normal(size=s).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["hidden"], transB=1, name="/fc1/Gemm"),
        helper.make_node("Relu", ["hidden"], ["active"], name="/Relu"),
        helper.make_node("Add", ["active", "x"], ["sum"], name="/Add"),
        helper.make_node("Gemm", ["sum", "fc2.weight", "fc2.bias"], ["y"], transB=1, name="/fc2/Gemm"),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", size]) for n, size in (("x", 4), ("y", 3))]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], weights)
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    onnxgen.generate(path, tmp_path / "model.py")
    return path


def edited(net: Path, *changes: tuple[str, str]) -> Path:
    module = net.with_name("model.py")
    text = module.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    module.write_text(text)
    return module


def test_another_spelling_is_proved(net: Path) -> None:
    by_hand = "        x = x + (x @ self.fc1.weight.T + self.fc1.bias).clamp(min=0)\n"
    proof = onnxgen.prove(net, edited(net, (RESIDUAL, by_hand)))
    assert (proof.verdict, proof.why, proof.counterexample) == ("proved", "", None)


def test_a_skipped_residual_names_its_line_and_nodes(net: Path) -> None:
    proof = onnxgen.prove(net, edited(net, (RESIDUAL, RESIDUAL.replace(" + x", ""))))
    assert proof.verdict == "different"
    assert proof.counterexample is not None
    assert proof.places[0].code == "x = F.relu(self.fc1(x))"
    assert "/Add" in proof.places[0].nodes


@pytest.mark.parametrize(
    "new",
    [
        "        x = F.relu(self.fc1(x)).detach() + x\n",  # no gradient reaches the first layer
        "        x = F.relu(self.fc1(x)) + x\n        x = x * 1.01 if self.training else x\n",
        "        x = F.relu(self.fc1(x)) - x\n",
    ],
    ids=["detached", "training", "swapped"],
)
def test_a_change_is_different(net: Path, new: str) -> None:
    assert onnxgen.prove(net, edited(net, (RESIDUAL, new))).verdict == "different"


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (RESIDUAL + "        x = x * 2 if x.shape[0] == 1 else x\n", "asks for a size"),
        (RESIDUAL + "        self.calls = 1\n", "keeps something for the next call"),
        (RESIDUAL + "        x = x.clamp(max=1e6)\n", "canonical forms differ"),
    ],
    ids=["size", "state", "large"],
)
def test_what_may_differ_is_not_proved(net: Path, new: str, why: str) -> None:
    proof = onnxgen.prove(net, edited(net, (RESIDUAL, new)), runs=2)
    assert proof.verdict != "proved"
    assert proof.verdict == "different" or why in proof.why


def test_new_names_are_matched_written_and_exported(net: Path) -> None:
    module = edited(net, ("fc1", "hidden"), ("fc2", "head"))
    proof = onnxgen.prove(net, module, rename=True)
    assert proof.verdict == "proved"
    assert proof.renamed["head.weight"] == "fc2.weight"
    weights = module.with_name("model.safetensors")
    assert [str(weights)] == proof.written
    state = load_file(weights)
    assert set(state) == {"hidden.weight", "hidden.bias", "head.weight", "head.bias"}
    state["head.bias"] = torch.tensor([1.0, 2, 3])
    save_file(state, module.with_name("trained.safetensors"))
    onnxgen.export(module, weights=module.with_name("trained.safetensors"), out=module.with_name("tuned.onnx"))
    tuned = {t.name: numpy_helper.to_array(t) for t in onnx.load(module.with_name("tuned.onnx")).graph.initializer}
    assert tuned["fc2.bias"].tolist() == [1, 2, 3]
    assert np.array_equal(tuned["fc1.weight"], state["hidden.weight"].numpy())


def test_the_command_tells_by_its_exit_code(net: Path) -> None:
    edited(net, (RESIDUAL, RESIDUAL.replace(" + x", "")))
    module = net.with_name("model.py")
    ran = subprocess.run(
        [sys.executable, "-m", "onnxgen", "prove", str(net), str(module)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1, ran.stderr
    assert "different" in ran.stdout
    assert "x = F.relu(self.fc1(x))" in ran.stdout


# ---- parts -----------------------------------------------------------------------------------------------------------

START = "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n"
FORWARD = START + "    def forward(self, x):\n        return {}\n"


@pytest.mark.parametrize(
    "text",
    [
        "import random\n" + FORWARD.format("x"),
        "CALLS = []\n" + FORWARD.format("(CALLS.append(1), x * len(CALLS))[1]"),
        FORWARD.format("torch.is_grad_enabled()"),
        FORWARD.format("torch.compiler.is_compiling()"),
        FORWARD.format("x.data"),
        FORWARD.format("x if x.is_meta else x * 2"),
        FORWARD.format("open('x').read()"),
        FORWARD.format("self.seen.append(x)"),
        START + "    def parameters(self):\n        return []\n",
        START + "    def __getattr__(self, name):\n        return 1\n",
        "import torch.nn.functional as F\nF.relu = F.gelu\n" + FORWARD.format("x"),
        START + "    def forward(self, x):\n        global CALLS\n        return x\n",
        START + "    def forward(self, x):\n        try:\n            return x\n        finally:\n            pass\n",
        "def from_pretrained(cls):\n    return cls()\n",
    ],
)
def test_what_a_capture_would_not_show_is_objected_to(text: str) -> None:
    assert list(objections(text, ""))


@pytest.mark.parametrize(
    "text",
    [
        FORWARD.format("x.reshape(x.shape[0], -1)"),
        "SCALE = 2.0\n" + FORWARD.format("x * SCALE"),
        START
        + "    def forward(self, x):\n        parts = []\n        parts.append(x)\n        return torch.cat(parts)\n",
        "def twice(x):\n    return x * 2\n\n\n" + FORWARD.format("twice(x)"),
        START + "    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(2, 2)\n",
    ],
)
def test_plain_code_is_followed(text: str) -> None:
    assert not list(objections(text, ""))


def test_lines_of_one_text_are_found_in_the_other() -> None:
    texts = Texts("a\nnew\nb\nC\n", "a\nb\nc\n")
    assert (texts.moved(2), texts.back(3), texts.moved(3), texts.back(4)) == (3, 2, 4, 3)
    assert texts.is_edited(2)
    assert texts.was_edited(3)
    assert not texts.is_edited(1)


def test_a_record_takes_new_names_wherever_a_tensor_is_made_of_them() -> None:
    record = {"wayback": '{"t": "a", "u": {"parts": [{"key": "b", "size": [1]}]}}', "uses": '{"t": {"a": [["n", 0]]}}'}
    made = renamed_record({**record, "format": "pt"}, {"a": "c", "b": "d"})
    assert made["wayback"] == '{"t": "c", "u": {"parts": [{"key": "d", "size": [1]}]}}'
    assert made["uses"] == '{"t": {"c": [["n", 0]]}}'
    assert made["format"] == "pt"
