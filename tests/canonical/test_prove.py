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
from torch import nn

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


@pytest.mark.parametrize(
    "lines",
    [
        ("self.seen = [1]", "seen = self.seen; k = seen[0]; seen[0] = 2; x = x * k"),
        ("self.scales = (2.0 if i else 1.0 for i in range(9))", "x = [x * k for k, _ in zip(self.scales, [1])][0]"),
        ("self.turned = nn.Parameter(self.fc1.weight.data.T)", "x = x + self.turned.sum() * 0"),
    ],
    ids=["list", "iterator", "memory"],
)
def test_what_is_kept_from_call_to_call_is_not_proved(net: Path, lines: tuple[str, str]) -> None:
    start = "        self.fc2 ="
    new = (start, f"        {lines[0]}\n{start}"), (RESIDUAL, f"{RESIDUAL}        {lines[1]}\n")
    assert onnxgen.prove(net, edited(net, *new), runs=1).verdict != "proved"


# ---- parts -----------------------------------------------------------------------------------------------------------

START = "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n"
INIT = START + "    def __init__(self):\n        super().__init__()\n        {}\n"
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
        "import torch as t\n" + FORWARD.format("x if t.is_grad_enabled() else x * 2"),
        "from torch.utils import checkpoint\n" + FORWARD.format("checkpoint.checkpoint(abs, x)"),
        "import torch._dynamo as d\n" + FORWARD.format("x if d.is_compiling() else x * 2"),
        "from torch import *\n" + FORWARD.format("x"),
        "from pathlib import Path\n" + FORWARD.format("x * float(Path('scale').read_text())"),
        "X = setattr(nn, 'Linear', nn.Bilinear)\n" + FORWARD.format("x"),
        "X = torch.randn(3)\n" + FORWARD.format("x * X"),
        "if '__name__':\n    F.relu = F.gelu\n" + FORWARD.format("x"),
        FORWARD.format("x * len(f'{x.shape[0]}')"),
        FORWARD.format("x * len('%s' % x.shape[0])"),
        FORWARD.format("x * len('{}'.format(x.shape[0]))"),
        FORWARD.format("x * 2 if isinstance(x.shape[0], int) else x"),
        FORWARD.format("x * 2 if x.shape[0] is x.shape[1] else x"),
        FORWARD.format("x * 2 if x.device.type == 'cuda' else x"),
        FORWARD.format("x * 2 if x.device == torch.device('cpu') else x"),
        FORWARD.format("getattr(x, 'data')"),
        FORWARD.format("getattr(self.w, 'da' + 'ta')"),
        FORWARD.format("list(map(getattr, [x], ['data']))[0]"),
        FORWARD.format("x * (x._version + 1)"),
        FORWARD.format("[x * k for k in {1.0, 2.0}][0]"),
        FORWARD.replace("self, x", "self, x, seen={{}}").format("x"),
        FORWARD.replace("self, x", "self, x, seen=[1]").format("x"),
        START + "    def __torch_function__(self, *a):\n        return 1\n",
        START.replace("nn.Module", "torch.Tensor") + "    pass\n",
        START + "    def from_pretrained(cls):\n        return cls()\n",
        INIT.format("self.fc.weight.register_hook(lambda g: g * 0)"),
        INIT.format("self._register_load_state_dict_pre_hook(print)"),
        INIT.format("nn.Module.forward = abs"),
        INIT.format("nn.functional.relu = abs"),
        INIT.format("self.forward = abs"),
        INIT.format("torch.set_default_dtype(torch.float64)"),
        INIT.format("nn.modules.module.register_module_forward_hook(print)"),
        INIT.format("self.scale = torch.rand(1).item()"),
        INIT.format("self.calls = []\n        self.f = lambda x: self.calls.append(1)"),
        INIT.format("self.f = functools.lru_cache(abs)"),
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
        INIT.format("self.fc = nn.Linear(2, 2)"),
        INIT.format("self.w = nn.Parameter(torch.randn(2))"),
        INIT.format("self.names = [f'layer{i}' for i in range(3)]"),
        FORWARD.format("getattr(self, f'layer{1}')(x)"),
        FORWARD.format("x + torch.arange(3, device=x.device)"),
        FORWARD.format("x if x.shape[0] in {1, 2} else x * 2"),
        "WIDTHS = [1, 2]\n" + FORWARD.format("x * WIDTHS[0]"),
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


def test_the_name_of_the_weights_is_no_edit(tmp_path: Path) -> None:
    """Neither are inputs of one sample, of which a BatchNorm has no statistics, a reason to prove nothing."""
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)).eval()
    for training in (False, True):
        mode = torch.onnx.TrainingMode.PRESERVE if training else torch.onnx.TrainingMode.EVAL
        torch.onnx.export(
            net, (torch.randn(3, 4),), tmp_path / "net.onnx", input_names=["x"], dynamic_axes={"x": {0: "n"}},
            training=mode, do_constant_folding=not training, dynamo=False,
        )  # fmt: skip
        onnxgen.generate(tmp_path / "net.onnx", tmp_path / "other.py", force=True)
        assert onnxgen.prove(tmp_path / "net.onnx", tmp_path / "other.py").verdict == "proved"
        text = (tmp_path / "other.py").read_text()
        (tmp_path / "edited.py").write_text(text.replace("return ", "return 1 * ", 1))
        assert (tmp_path / "edited.py").read_text() != text
        assert onnxgen.prove(tmp_path / "net.onnx", tmp_path / "edited.py").verdict == "proved"
