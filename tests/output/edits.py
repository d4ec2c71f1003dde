"""A network, the files that it becomes, and edits that a person may make to its module."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import black
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper as h

from onnxgen.cli import run

Edit = Callable[[str], str]
Effect = Callable[[NDArray[np.float32]], NDArray[np.float32]]


def network(seed: int = 0, width: int = 8, layers: int = 3, first: str = "Relu") -> onnx.ModelProto:
    """Layers `fc0`, `fc1`, ..., with `a + a * a` between them, `a` being their activation."""
    rng = np.random.default_rng(seed)
    nodes, tensors, x = [], [], "x"
    for n in range(layers):
        rows, columns = 3 if n == layers - 1 else width, width if n else 4
        for name, shape in ((f"fc{n}.weight", (rows, columns)), (f"fc{n}.bias", (rows,))):
            tensors.append(onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
        nodes.append(h.make_node("Gemm", [x, f"fc{n}.weight", f"fc{n}.bias"], [f"h{n}"], transB=1))
        x = f"h{n}"
        if n < layers - 1:
            nodes.append(h.make_node("Relu" if n else first, [x], [f"a{n}"]))
            nodes.append(h.make_node("Mul", [f"a{n}", f"a{n}"], [f"s{n}"]))
            nodes.append(h.make_node("Add", [f"a{n}", f"s{n}"], [f"q{n}"]))
            x = f"q{n}"
    ports = [h.make_tensor_value_info(name, 1, dims) for name, dims in (("x", ["n", 4]), (x, ["n", 3]))]
    graph = h.make_graph(nodes, "g", ports[:1], ports[1:], tensors)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


class Place:
    """A folder with `net.onnx` and what was generated from it."""

    def __init__(self, folder: Path, *options: str, of: onnx.ModelProto | None = None) -> None:
        self.folder, self.options = folder, options
        self.model, self.out, self.weights = (folder / name for name in ("net.onnx", "model.py", "model.safetensors"))
        self.new = folder / "model.py.new"
        onnx.save(of or network(), self.model)
        assert self() == 0

    def __call__(self, *options: str) -> int:
        return run([str(self.model), "-o", str(self.out), *self.options, *options])

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.iterdir() if path.is_file()}

    def edit(self, edit: Edit | None = None) -> str:
        """Edit the module (default: a new method), and return its text."""
        text = (edit or new_method)(self.out.read_text())
        assert text != self.out.read_text()
        self.out.write_bytes(text.encode())
        return text


def replaced(old: str, new: str) -> Edit:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return edit


def new_method(text: str) -> str:
    method = "\n    def parts(self) -> list[str]:\n        return [name for name, _ in self.named_children()]\n"
    text, count = re.subn(r"\n\n\n(?=(WEIGHTS|FINGERPRINT) = )", f"\n{method}\n\n", text, count=1)
    assert count
    return text


def _argument(text: str) -> str:
    text = replaced("def forward(self, x: Tensor)", "def forward(self, x: Tensor, scale: float = 1.0)")(text)
    return re.sub(r"return (self\.fc\d.*)", r"return \1 * scale", text, count=1)


def _dropout(text: str) -> str:
    text = replaced("super().__init__()\n", "super().__init__()\n        self.drop = nn.Dropout(0.1)\n")(text)
    return replaced("Tensor:\n        x = ", "Tensor:\n        x = self.drop(x)\n        x = ")(text)


def _renamed_argument(text: str) -> str:
    start, end = text.index("    def forward("), text.index("\n\nWEIGHTS = ")
    return text[:start] + re.sub(r"\bx\b", "image", text[start:end]) + text[end:]


def _same(y: NDArray[np.float32]) -> NDArray[np.float32]:
    return y


# What a person may do, and what becomes of the network's output; None if this file can't say.
EDITS: dict[str, tuple[Edit, Effect | None]] = {
    "a comment": (replaced("    def forward", "    # The hot path.\n    def forward"), _same),
    "a comment on a line": (replaced("super().__init__()", "super().__init__()  # nothing else"), _same),
    "a comment at the end": (lambda text: text + "\n# The end.\n", _same),
    "a licence": (lambda text: "# Copyright: mine.\n" + text, _same),
    "a docstring": (replaced("(nn.Module):\n", '(nn.Module):\n    """My network."""\n\n'), _same),
    "the header": (lambda text: '"""Mine."""' + text[text.index('"""', 3) + 3 :], _same),
    "an import": (replaced("import torch\n", "import math\n\nimport torch\n"), _same),
    "a constant": (replaced("\nclass ", "\nLABELS = ('a', 'b', 'c')\n\n\nclass "), _same),
    "a function": (lambda text: text + "\n\ndef mean(x: Tensor) -> Tensor:\n    return x.mean()\n", _same),
    "a method": (new_method, _same),
    "another class name": (lambda text: re.sub(r"\bNet\b", "Tower", text), _same),
    "another argument name": (_renamed_argument, _same),
    "an argument": (_argument, _same),
    "a layer": (_dropout, _same),
    "twice the output": (lambda text: re.sub(r"return (self\.fc.*)", r"return 2 * \1", text, count=1), lambda y: 2 * y),
    "another activation": (lambda text: re.sub(r"F\.relu|torch\.sigmoid", "F.silu", text, count=1), None),
    "a line less": (lambda text: re.sub(r"\n        x = F\.relu\(self\.fc1\(.*\)\)(?=\n)", "", text, count=1), None),
    "black": (lambda text: black.format_str(text, mode=black.Mode(line_length=50)), _same),
    "line ends": (lambda text: text.replace("\n", "\r\n"), _same),
}  # fmt: skip
