"""`onnxgen view`: which nodes a line has, what a hostile file may put on the page, and the page in a browser."""

from __future__ import annotations

import ast
import base64
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from click.testing import CliRunner
from onnx import helper as h

from onnxgen.cli.app import app
from onnxgen.options import Options
from onnxgen.pipeline import build
from onnxgen.reader import read
from onnxgen.view.page import MAX_LANES, lanes_of, node_rows, traced, view
from tests.conftest import ROOT

CNN = ROOT / "samples" / "mnist" / "mnist.onnx"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
EVIL = "</script><img src=http://example.com/x.png onerror=alert(1)>\"'&"
# Two residual blocks, which become one class.
BLOCKS = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[3, 8] x) => (float[3, 8] y)
    {
        u = MatMul (x, a)  u1 = Relu (u)  u2 = MatMul (u1, b)  v = Add (x, u2)
        w = MatMul (v, c)  w1 = Relu (w)  w2 = MatMul (w1, d)  y = Add (v, w2)
    }
"""


class Elements(HTMLParser):
    """The tags of a page, and its attributes that load something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.loads: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [name for name, _ in attrs if name in ("src", "href") or name.startswith("on")]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Names, a symbolic dim, the producer and an attribute that would be HTML."""
    nodes = [
        h.make_node("Relu", [f"x{EVIL}"], [f"h{EVIL}"], name=f"first{EVIL}"),
        h.make_node("Mul", [f"h{EVIL}", f"w{EVIL}"], [f"y{EVIL}"], name=f"second{EVIL}"),
    ]
    ports = [h.make_tensor_value_info(f"{n}{EVIL}", onnx.TensorProto.FLOAT, [f"n{EVIL}", 2]) for n in "xy"]
    weight = h.make_tensor(f"w{EVIL}", onnx.TensorProto.FLOAT, [2], [0.3, 0.7])
    graph = h.make_graph(nodes, EVIL, ports[:1], ports[1:], [weight])
    opsets = [h.make_opsetid("", 17)]
    onnx.save(h.make_model(graph, opset_imports=opsets, ir_version=8, producer_name=EVIL), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_lines_have_their_nodes() -> None:
    _, lines, nodes = traced(CNN, Options(), Path("m.py"))
    of = {line.strip(): nodes.get(number, []) for number, line in enumerate(lines, 1)}
    assert of["x = F.relu(self.conv1(image))"] == ["/conv1/Conv", "/Relu"]
    assert of["self.conv1 = nn.Conv2d(in_channels, widths[0], kernel_size=3)"] == ["/conv1/Conv", "/Relu"]
    made = {name for names in nodes.values() for name in names}
    assert made == {node.name for node in onnx.load(CNN).graph.node if node.op_type != "Constant"}


def test_the_source_is_that_of_the_module() -> None:
    _, lines, _ = traced(CNN, Options(), Path("m.py"))
    assert lines == build(CNN, Options(), Path("m.py")).source.splitlines()


def test_lines_of_a_shared_class_have_the_nodes_of_all_its_uses(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(BLOCKS)
    for number, node in enumerate(model.graph.node):
        node.name = f"/blocks.{number // 4}/{node.op_type}_{number % 4}"
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((8, 8)).astype(np.float32) for name in "abcd"}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.save(model, tmp_path / "m.onnx")
    _, lines, nodes = traced(tmp_path / "m.onnx", Options(), Path("m.py"))
    assert {name for names in nodes.values() for name in names} == {node.name for node in model.graph.node}
    assert max(len(names) for names in nodes.values()) > 2, "\n".join(lines)


def test_a_long_graph_is_walked_as_often_as_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each line, a graph of 10,000 nodes took minutes."""

    def walks(count: int) -> int:
        lines = " ".join(f"v{i + 1} = {('Tanh', 'Sin')[i % 2]} (v{i})" for i in range(count))
        text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[2] v0) => (float[2] v{count}) {{ {lines} }}'
        onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
        seen: list[ast.AST] = []
        walk = ast.walk

        def counted(tree: ast.AST) -> Iterator[ast.AST]:
            seen.extend([tree] * isinstance(tree, ast.Module))
            return walk(tree)

        monkeypatch.setattr("onnxgen.view.page.ast.walk", counted)
        traced(tmp_path / "m.onnx", Options(), Path("m.py"))
        monkeypatch.undo()
        return len(seen)

    assert walks(40) == walks(4)


@pytest.mark.parametrize("name", ["dtln/model_1", "vnncomp2023/vit/pgd_2_3_16", "ppocr/cls-model"])
def test_what_computes_has_a_line(name: str, shared: Path) -> None:
    """An RNN, a transformer and a CNN with shared classes: only constants and computed shapes have none."""
    path = shared / "models" / f"{name}.onnx"
    _, _, nodes = traced(path, Options(), Path("m.py"))
    made = {name for names in nodes.values() for name in names}
    work = [n for n in onnx.load(path).graph.node if n.op_type in ("Conv", "MatMul", "Gemm", "LSTM", "Softmax", "Relu")]
    assert work and {n.name for n in work if n.name} <= made


def test_nothing_of_the_file_is_html(hostile: Path) -> None:
    page = view(hostile, Options(), Path("m.py"))
    found = Elements(page)
    assert "first" in page and "img" in page, "the names are on the page"
    assert "img" not in found.tags and not found.loads
    assert page.count("<script>") == page.count("</script>") == 1
    assert "default-src 'none'" in page


def test_branches_are_drawn(tmp_path: Path) -> None:
    """A value that is taken again later has a column of its own until then."""
    model = onnx.parser.parse_model(BLOCKS)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.ones((8, 8), np.float32), name) for name in "abcd")
    onnx.save(model, tmp_path / "m.onnx")
    rows = [row for _, group in node_rows(read(tmp_path / "m.onnx", Options()), Options()) for row in group]
    drawn = [(row.lanes, row.op_type) for row in rows]
    block = [("┤●", "MatMul"), ("│●", "Relu"), ("│●", "MatMul"), ("●┘", "Add")]
    assert drawn == block * 2
    assert "<pre>┤●</pre><b>MatMul</b>" in view(tmp_path / "m.onnx", Options(), Path("m.py"))


def test_the_drawing_of_many_values_ends() -> None:
    """Values that are all awaited to the end."""
    nodes = [h.make_node("Neg", ["x"], [f"v{n}"]) for n in range(30)]
    nodes.append(h.make_node("Sum", [f"v{n}" for n in range(30)], ["y"]))
    ports = [h.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2]) for n in "xy"]
    graph = ir.from_proto(h.make_model(h.make_graph(nodes, "g", ports[:1], ports[1:]))).graph
    drawn = list(lanes_of(graph, list(graph)))
    assert drawn[0] == "┤●" and drawn[10] == "┤" + "│" * 10 + "●" and drawn[-1] == "●" + "┘" * (MAX_LANES - 1) + "+"
    assert len({len(line) for line in drawn[MAX_LANES:]}) == 1


def test_the_command_overwrites_only_pages(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("mine")
    result = CliRunner().invoke(app, ["view", str(CNN), "-o", str(out)])
    assert result.exit_code != 0 and out.read_text() == "mine"
    for given in (["--force"], []):
        result = CliRunner().invoke(app, ["view", str(CNN), "-o", str(out), *given])
        assert result.exit_code == 0 and "conv1" in out.read_text()


def test_a_file_that_can_not_be_converted_has_no_page(tmp_path: Path) -> None:
    graph = h.make_graph([h.make_node("Nothing", ["x"], ["y"], domain="no.such")], "g", [], [])
    graph.input.append(h.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2]))
    graph.output.append(h.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2]))
    opsets = [h.make_opsetid("", 17), h.make_opsetid("no.such", 1)]
    onnx.save(h.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    result = subprocess.run(
        [sys.executable, "-m", "onnxgen", "view", str(tmp_path / "m.onnx")], capture_output=True, text=True, cwd=ROOT
    )
    assert result.returncode == 2 and "Nothing" in result.stderr and not (tmp_path / "m.html").exists()


HOVER = """
const hover = at => at.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
const having = (what, text) => [...document.querySelectorAll(what)].find(at => at.textContent.includes(text));
hover(having("#source [data-nodes]", "self.conv1(image)"));
const ofLine = [...document.querySelectorAll(".node.on b")].map(b => b.textContent);
hover(having(".node", "Gemm"));
const ofNode = [...document.querySelectorAll("#source .on")].map(line => line.textContent);
document.title = "seen " + JSON.stringify([ofLine, ofNode.some(text => text.includes("self.fc1(x.flatten(1))"))]);
"""


SEARCH = """
const field = document.querySelector("#search");
const told = text => {
  field.value = text;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  const left = [...document.querySelectorAll("#graph .node")].filter(node => node.checkVisibility());
  return [...new Set(left.map(node => node.querySelector("b").textContent))].join(" ");
};
const every = told("");
const found = [told("gemm transb"), told("conv kernel_shape=(3"), told("no such thing"), told("") === every];
document.title = "seen " + JSON.stringify([found, document.querySelector("#found").textContent]);
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
@pytest.mark.parametrize(
    ("script", "wanted"), [(HOVER, '[["Conv","Relu"],true]'), (SEARCH, '[["Gemm","Conv","",true],""]')]
)
def test_the_page_in_a_browser(script: str, wanted: str, tmp_path: Path) -> None:
    """The script of the page runs under its own policy; a second one, which the policy is told of, hovers or types."""
    page = view(CNN, Options(), Path("m.py"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = re.sub(r"(script-src 'sha256-[^']*')", rf"\1 'sha256-{digest}'", page, count=1)
    page = page.replace("</body>", f"<script>{script}</script></body>")
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    how = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    command = [str(CHROMIUM), *how, (tmp_path / "page.html").as_uri()]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    assert f"<title>seen {wanted}</title>" in seen
