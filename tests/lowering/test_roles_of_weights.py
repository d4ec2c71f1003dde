"""Names of weights without a name in the file: by what they do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from onnx import parser
from torch import Tensor, nn

from onnxgen.graph.domains import DOMAIN
from onnxgen.lowering.parameter import role
from onnxgen.pipeline import generate
from onnxgen.runtime.load import load
from tests.ops.harness import run_model
from tests.zoo.export import quiet


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Embedding(n, 8) for n in (9, 3, 5))

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        positions = torch.arange(input_ids.shape[1])
        y: Tensor = self.a(input_ids) + self.b(token_type_ids) + self.c(positions)
        return y


class Twice(nn.Module):
    """One table, in which ids of two kinds are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 8)

    def forward(self, input_ids: Tensor, segment_ids: Tensor) -> Tensor:
        return torch.cat([self.table(input_ids), self.table(segment_ids)])


class Scaled(nn.Module):
    """A scaled branch, and a sum with a product that is no branch's."""

    def __init__(self, is_branch: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Parameter(torch.rand(6))
        self.is_branch = is_branch

    def forward(self, x: Tensor) -> Tensor:
        y = self.b * F.relu(self.a(x))
        return x + y if self.is_branch else y * x


class Biased(nn.Module):
    """Attention with a bias of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 24), nn.Parameter(torch.randn(1, 2, 5, 5))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.a(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.b)


def nameless(net: nn.Module, example: tuple[Tensor, ...], names: list[str], path: Path) -> Path:
    """Export without any name but those of inputs."""
    with quiet():
        torch.onnx.export(
            net.eval(), example, path, dynamo=False, opset_version=17, input_names=names,
            dynamic_axes={name: {0: "batch", 1: "length"} for name in names if "_ids" in name},
        )  # fmt: skip
    model = onnx.load(path)
    renamed = {tensor.name: f"{n + 100}" for n, tensor in enumerate(model.graph.initializer)}
    for tensor in model.graph.initializer:
        tensor.name = renamed[tensor.name]
    for node in model.graph.node:
        node.name = ""
        for i, name in enumerate(node.input):
            node.input[i] = renamed.get(name, name)
    model.producer_name = ""
    onnx.save(model, path)
    return path


IDS = (torch.tensor([[1, 2, 8, 0]]), torch.tensor([[0, 1, 2, 2]]))
CASES = [
    (Tokens(), IDS, {"embedding.weight", "token_type_embedding.weight", "position_embedding.weight"}),
    (Twice(), IDS, {"embedding.weight"}),
    (Scaled(True), (torch.randn(3, 6),), {"fc.weight", "fc.bias", "gamma"}),
    (Scaled(False), (torch.randn(3, 6),), {"fc.weight", "fc.bias", "scale"}),
    (Biased(), (torch.randn(2, 5, 8),), {"fc.weight", "fc.bias", "position_bias"}),
]


@pytest.mark.parametrize(
    ("net", "example", "keys"), CASES, ids=[f"{type(n).__name__}{i}" for i, (n, *_) in enumerate(CASES)]
)
def test_names_by_what_they_do(net: nn.Module, example: tuple[Tensor, ...], keys: set[str], tmp_path: Path) -> None:
    names = ["input_ids", "token_type_ids" if isinstance(net, Tokens) else "segment_ids"] if len(example) > 1 else ["x"]
    path = nameless(net, example, names, tmp_path / "net.onnx")
    ours = load(path)
    assert {name for name, _ in ours.named_parameters()} == keys
    torch.testing.assert_close(ours(*example), net(*example), rtol=1e-4, atol=1e-5)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc2(torch.tanh(self.fc1(x)))
        return y


@pytest.mark.parametrize(("attribute", "wanted"), [("model", "Backbone"), ("model0", "Block"), ("MLP_0_1", "MLP")])
def test_no_class_is_called_after_the_file(attribute: str, wanted: str, tmp_path: Path) -> None:
    net = nn.Sequential()
    net.add_module(attribute, Inner())
    net.add_module("head", nn.Linear(6, 2))
    path = tmp_path / "some_file.onnx"
    with quiet():
        torch.onnx.export(net.eval(), (torch.randn(2, 6),), path, dynamo=False, opset_version=17)
    source = generate(path, tmp_path / "made.py").source
    assert f"class {wanted}(nn.Module)" in source and source.count("class SomeFile") == 1


def test_a_vector_that_is_viewed_as_a_matrix_is_the_matrix_of_the_product() -> None:
    """As the dynamo exporter folds `x @ w.view(1, -1) + c`; a layer has its matrix transposed."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[3, 1] x) => (float[3, 4] y)
        <float[1, 4] view = {0.3, -1.7, 0.2, 2.9}, float[4] c = {-0.6, 1.1, 0.4, -2.3}> {
        a = MatMul (x, view)  b = Add (a, c)  y = Tanh (b) }"""
    )
    model.graph.initializer[1].name = model.graph.node[1].input[1] = "block.c"
    model.producer_name = "pytorch"
    view = onnx.helper.make_tensor_value_info("view", 1, [1, 4])
    view.metadata_props.add(key="pkg.onnxscript.optimizer.folded_from", value="['block.w', 'val_1']")
    model.graph.value_info.append(view)
    ours = run_model(model, {"x": np.array([[0.1], [0.2], [-2]], np.float32)}).model
    assert {name: tensor.numel() for name, tensor in ours.named_parameters()} == {"block.w": 4, "block.c": 4}


def test_parameters_of_a_standardised_weight_are_called_by_their_place() -> None:
    values = [ir.Value(name=name, shape=ir.Shape([4])) for name in "wgb"]
    node = ir.Node(DOMAIN, "Standardize", values, num_outputs=1)
    assert [role(node, value) for value in values] == ["weight", "gain", "bias"]
