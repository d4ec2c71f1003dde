"""What the code looks like: names of locals, sizes and constants, where lines are split; and that it still computes."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Mapping
from pathlib import Path

import black
import onnx
import torch
import torch.nn.functional as F
from onnx import helper
from torch import Tensor, nn

from onnxgen.code import printer
from onnxgen.code.printer import LINE_LENGTH
from onnxgen.common.names import FileText
from onnxgen.options import Options
from onnxgen.pipeline import generate
from tests.support.defaults import given_defaults
from tests.support.real import imported

DEFAULTS = Options()
DYNAMIC = {"x": {0: "batch"}}


class Layout:
    """A network exported by the legacy exporter and generated: `forward[class]` and `init[class]` are its code."""

    def __init__(
        self,
        folder: Path,
        network: nn.Module,
        *inputs: Tensor,
        names: tuple[str, ...] = ("x",),
        dynamic: Mapping[str, Mapping[int, str]] = DYNAMIC,
        options: Options = DEFAULTS,
        opset: int = 17,
    ) -> None:
        self.path, self.network, self.inputs = folder / "net.onnx", network.eval(), inputs
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                network, inputs, str(self.path), dynamo=False, input_names=list(names), dynamic_axes=dict(dynamic),
                opset_version=opset, do_constant_folding=False,
            )  # fmt: skip
        self.source = generate(self.path, folder / "net.py", options).source
        self.model = imported(folder / "net.py").Model.from_pretrained().eval()
        self.init: dict[str, str] = {}
        self.forward: dict[str, str] = {}
        for node in ast.parse(self.source).body:
            for method in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(method, ast.FunctionDef) and method.name in ("__init__", "forward"):
                    lines = self.source.splitlines()[method.lineno - 1 : method.end_lineno]
                    (self.init if method.name == "__init__" else self.forward)[node.name] = textwrap.dedent(
                        "\n".join(lines)
                    )
        assert black.format_str(self.source, mode=black.Mode(line_length=LINE_LENGTH)) == self.source
        self.agrees(*inputs)

    def agrees(self, *inputs: Tensor) -> None:
        """The generated module computes what the original does."""
        expected, got = self.network(*inputs), self.model(*inputs)
        pairs = zip(expected, got, strict=True) if isinstance(expected, tuple) else [(expected, got)]
        for a, b in pairs:
            torch.testing.assert_close(b, a)


def body(text: str) -> str:
    """A function as the tests write it."""
    return textwrap.dedent(text).strip()


# ---- names -----------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, keep: Tensor, memory: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(memory), self.value(memory)
        scores = (q @ k.transpose(1, 2) / 8**0.5).masked_fill(keep[:, None] == 0, torch.finfo(torch.float32).min)
        return scores.softmax(-1) @ v


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.norm = inner, nn.LayerNorm(8)

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.norm(self.inner(x * 2, *(o * 1 for o in others)) + x)


def test_attention_written_out(tmp_path: Path) -> None:
    """Queries, keys, values and scores in a spelling that no idiom takes; the names go along into the submodule."""
    inputs = torch.randn(2, 3, 8), torch.ones(2, 5, dtype=torch.int64), torch.randn(2, 5, 8)
    made = Layout(tmp_path, Outer(Attention()), *inputs, names=("x", "keep", "memory"), dynamic={})
    assert made.forward["Attention"] == body("""
        def forward(self, x, memory, keep):
            q = self.query(x)
            k = self.key(memory).transpose(1, 2)
            v = self.value(memory)
            scores = q @ k / math.sqrt(8)
            mask = keep.unsqueeze(1) == 0
            x = F.softmax(scores.masked_fill(mask, torch.finfo(torch.float32).min), dim=-1)
            return x @ v
        """)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate_proj(x)
        return self.down_proj(torch.exp(gate) * (self.up_proj(x) - gate))


def test_what_made_it(tmp_path: Path) -> None:
    """Beside `x` a value is called by the layer that made it."""
    made = Layout(tmp_path, Gated(), torch.randn(2, 6))
    assert made.forward["Net"] == body("""
        def forward(self, x: Tensor) -> Tensor:
            gate = self.gate_proj(x)
            x = torch.exp(gate) * (self.up_proj(x) - gate)
            return self.down_proj(x)
        """)


class Rotation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("freq", 1 / 100 ** (torch.arange(0, 6, 2) / 6), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1], device=x.device).float()[:, None] * self.freq
        return torch.cat([x[..., :3] * angles.cos(), x[..., 3:] * angles.sin()], dim=-1)


def test_angles_and_positions(tmp_path: Path) -> None:
    made = Layout(tmp_path, Rotation(), torch.randn(2, 4, 6), dynamic={"x": {0: "batch", 1: "length"}})
    assert made.forward["Net"] == body("""
        def forward(self, x: Tensor) -> Tensor:
            x1, x2 = x.chunk(2, dim=-1)
            positions = torch.arange(x.shape[1], device=x.device).float()
            angles = positions.unsqueeze(-1) * self.inv_freq
            return torch.cat([x1 * torch.cos(angles), x2 * torch.sin(angles)], dim=-1)
        """)
    made.agrees(torch.randn(3, 7, 6))


class Half(nn.Module):
    """A U-Net of two levels."""

    def __init__(self) -> None:
        super().__init__()
        self.inc, self.down1, self.down2 = nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)
        self.up1, self.up2 = nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        a = self.inc(image)
        b = self.down1(F.max_pool2d(a, 2))
        x = self.down2(F.max_pool2d(b, 2))
        x = self.up1(torch.cat([b, F.interpolate(x, scale_factor=2.0)], dim=1))
        return self.up2(torch.cat([a, F.interpolate(x, scale_factor=2.0)], dim=1))


def test_skips_are_numbered(tmp_path: Path) -> None:
    """What lives past a change of size is a skip; two of them have numbers, both of them."""
    dynamic = {"image": {0: "batch", 2: "height", 3: "width"}}
    made = Layout(tmp_path, Half(), torch.randn(1, 1, 10, 10), names=("image",), dynamic=dynamic)
    assert made.forward["Net"] == body("""
        def forward(self, image: Tensor) -> Tensor:
            skip1 = self.inc(image)
            skip2 = self.down1(F.max_pool2d(skip1, kernel_size=2))
            x = self.down2(F.max_pool2d(skip2, kernel_size=2))
            x = F.interpolate(x, scale_factor=2)
            x = self.up1(torch.cat([skip2, x], dim=1))
            x = F.interpolate(x, scale_factor=2)
            return self.up2(torch.cat([skip1, x], dim=1))
        """)
    made.agrees(torch.randn(2, 1, 18, 14))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(2, 2, 3, stride=2, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        self.downsample = nn.Conv2d(2, 2, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.downsample(x)
        return F.relu(self.conv2(F.relu(self.conv1(x))) + shortcut)


def test_shortcuts(tmp_path: Path) -> None:
    made = Layout(tmp_path, nn.Sequential(Block()), torch.randn(1, 2, 8, 8))
    (text,) = (t for t in made.forward.values() if "downsample" in t)
    assert text == body("""
        def forward(self, x):
            identity = self.downsample(x)
            x = F.relu(self.conv1(x))
            return F.relu(self.conv2(x) + identity)
        """)


class Added(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return self.norm(self.dense(x) + other)


class Adds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.widen = Added(), Added(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.widen(x), x)
        return self.second(F.gelu(x), x)


def test_arguments_by_their_part(tmp_path: Path) -> None:
    made = Layout(tmp_path, Adds(), torch.randn(2, 4))
    texts = [text for name, text in made.forward.items() if name != "Net"]
    assert len(texts) == 1, "names must not tell two equal classes apart"
    assert texts[0] == body("""
        def forward(self, x, residual):
            return self.norm(self.dense(x) + residual)
        """)
    assert "return self.second(F.gelu(x), x)" in made.forward["Net"]


# ---- sizes -----------------------------------------------------------------------------------------------------------


class Sizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length, _ = tokens.shape
        x = self.fc(tokens).reshape(batch * length, 4)
        x = torch.cat([x, torch.zeros(length, 4)])
        return x.sum(0) + torch.arange(length).sum() + batch


def test_sizes_have_the_names_of_dims(tmp_path: Path) -> None:
    dynamic = {"tokens": {0: "batch", 1: "length"}}
    made = Layout(tmp_path, Sizes(), torch.randn(2, 3, 4), names=("tokens",), dynamic=dynamic)
    text = made.forward["Net"]
    assert "batch, length, _ = tokens.shape" in text
    assert text.count(".shape") == 1
    made.agrees(torch.randn(5, 2, 4))


class OneSize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.arange(x.shape[1])


def test_a_size_used_once_stays_where_it_is(tmp_path: Path) -> None:
    made = Layout(tmp_path, OneSize(), torch.randn(2, 3), dynamic={"x": {0: "batch", 1: "length"}})
    assert "arange(x.shape[1]" in made.forward["Net"] and "length =" not in made.forward["Net"]
    made.agrees(torch.randn(4, 5))


# ---- annotations -----------------------------------------------------------------------------------------------------


class Annotated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 4, 3), nn.Linear(4, 3)

    def forward(self, image: Tensor) -> Tensor:
        x = F.silu(self.conv(image)).mean((2, 3))
        for _ in range(12):
            x = x + 1
        return self.fc(x)


def test_annotations(tmp_path: Path) -> None:
    """Every node is named once, behind its line or, where that is long, above it; the module is the same."""
    image = torch.randn(2, 1, 6, 6)
    plain = Layout(tmp_path, Annotated(), image, names=("image",), dynamic={})
    noted = Layout(tmp_path, Annotated(), image, names=("image",), dynamic={}, options=Options(annotate=True))
    assert ast.unparse(ast.parse(plain.source)) == ast.unparse(ast.parse(noted.source))
    assert [line for line in noted.source.splitlines() if "onnx: " not in line and line not in plain.source] == []
    text = noted.forward["Net"]
    assert "return self.fc(x)  # onnx: /fc/Gemm" in text
    comments = " ".join(re.findall(r"# onnx: (.*)", text))
    names = [node.name for node in onnx.load(tmp_path / "net.onnx").graph.node if node.op_type != "Constant"]
    assert [n for n in names if n not in comments and "Add" not in n] == [], comments
    assert all(comments.count(n) == 1 for n in names if re.search(r"/(Conv|Gemm|Sigmoid)$", n))


def annotated(line: str, nodes: tuple[str, ...]) -> list[str]:
    return printer.annotated(line, tuple(map(FileText, nodes)))


def test_many_nodes_in_one_line(tmp_path: Path) -> None:
    """A line that is made of many nodes names some, and how many more there are."""
    x = helper.make_tensor_value_info("x", 1, ["n", 4])
    y = helper.make_tensor_value_info("y", 1, ["n", 4])
    nodes = [helper.make_node("Identity", [f"h{i}" if i else "x"], [f"h{i + 1}"], f"identity{i}") for i in range(3)]
    nodes += [helper.make_node("Mul", ["h3", "h3"], ["s"], "square"), helper.make_node("Relu", ["s"], ["y"], "relu")]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y]), ir_version=8), tmp_path / "m.onnx")
    source = generate(tmp_path / "m.onnx", options=Options(annotate=True)).source
    assert "return F.relu(x * x)  # onnx: square, relu" in source
    assert annotated("    x = 1", ("n", "m", "n")) == ["    x = 1  # onnx: n, m"]
    assert annotated("x = 1", tuple("abcdefghijk")) == ["x = 1  # onnx: a, b, c, d, e, f, g, h and 3 more"]
    assert annotated("x = 1", ()) == ["x = 1"]
    above = annotated("    x = 1  # [2, 3]", ("a" * 50, "b" * 50))
    assert above == [f"    # onnx: {'a' * 50},", f"    # onnx: {'b' * 50}", "    x = 1  # [2, 3]"]
    assert annotated("x = 1  # [2, 3]", ("a",)) == ["x = 1  # [2, 3]; onnx: a"]


# ---- arguments -------------------------------------------------------------------------------------------------------


def test_the_search_for_defaults() -> None:
    """Functions, layers, methods and builtins; `tests.ops.harness` and `tests.zoo.road` hold everything to it."""
    says = "F.relu(x, inplace=False) nn.Conv2d(1, 2, 3, stride=1) nn.LayerNorm(4, eps=1e-05) x.sum(keepdim=False)"
    fine = "F.relu(x) nn.Conv2d(1, 2, 3, stride=2) nn.LayerNorm(4, eps=1e-06) x.sum(dim=1) x.unbind(0) x.split(2, -1)"
    says += " torch.cumsum(x, 0, dtype=None) torch.cat([x], 0) x.flatten(0)"
    for text, count in ((says, 7), (fine, 0)):
        calls = re.sub(r"\) (?=[a-zA-Z])", ")\n    ", text)
        assert len(given_defaults(f"class A:\n    {calls}\n")) == count


# ---- lines -----------------------------------------------------------------------------------------------------------


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense_first_layer, self.dense_second_layer = nn.Linear(4, 4), nn.Linear(8, 4)
        self.dense_third_layer = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        first = self.dense_first_layer(x)
        second = self.dense_second_layer(torch.cat([first, x], dim=1))
        return torch.cat([self.dense_third_layer(torch.cat([second, first, x], dim=1)), second, first, x], dim=1)


def test_a_line_is_split_where_black_would_break_it(tmp_path: Path) -> None:
    """Names are longer than was thought when statements were put together: then fewer are."""
    text = Layout(tmp_path, Joined(), torch.randn(2, 4)).forward["Net"]
    assert all(line.count("(") == line.count(")") for line in text.splitlines()), text
    assert "return torch.cat([out, dense_second, dense_first, x], dim=1)" in text


class Concatenated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.fc(torch.cat([x, y], dim=1))


class Concatenates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.join = Concatenated()

    def forward(self, x: Tensor) -> Tensor:
        return self.join(x * x, x.exp()).exp()


def test_arguments_that_are_only_concatenated(tmp_path: Path) -> None:
    text = Layout(tmp_path, Concatenates(), torch.randn(2, 4)).forward["Join"]
    assert text == body("""
        def forward(self, x1, x2):
            return self.fc(torch.cat([x1, x2], dim=1))
        """)


class Biased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.table = nn.Linear(8, 24), nn.Embedding(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).unbind(0)
        places = torch.arange(x.shape[1])
        bias = self.table((places - places[:, None]).clamp(-4, 4) + 4).permute(2, 0, 1)[None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)


def test_a_learnt_mask_is_a_bias(tmp_path: Path) -> None:
    made = Layout(tmp_path, Biased(), torch.randn(2, 5, 8), dynamic={"x": {0: "batch", 1: "length"}})
    text = made.forward["Net"]
    assert "qkv = self.qkv(x)" in text and "q, k, v = qkv" in text
    assert "bias = self.table(" in text and "attn_mask=bias" in text and "mask =" not in text
    made.agrees(torch.randn(3, 7, 8))


def test_sizes_of_an_unknown_rank_stay_where_they_are(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", 1, None)
    outputs = [helper.make_tensor_value_info(name, 7, None) for name in ("y", "z")]
    options = {"axis": 0, "keepdims": 0, "select_last_index": 1}
    nodes = [helper.make_node(op, ["x"], [name], **options) for op, name in (("ArgMax", "y"), ("ArgMin", "z"))]
    graph = helper.make_graph(nodes, "g", [x], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    assert generate(tmp_path / "m.onnx").source.count("x.shape[0] - 1") == 2


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = TwoInputs()

    def forward(self, query: Tensor, document: Tensor) -> Tensor:
        return self.inner(query, document).exp()


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return self.fc(x).tanh() * self.fc(other)


def test_inputs_of_the_graph_keep_their_names_side_by_side(tmp_path: Path) -> None:
    inputs = torch.randn(2, 4), torch.randn(2, 4)
    made = Layout(tmp_path, Towers(), *inputs, names=("query", "document"), dynamic={})
    assert "def forward(self, query, document):" in made.forward["Backbone"]
