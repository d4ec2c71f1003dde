"""A generated module, exported and generated again, is the very same text: what is written is what is read.

Each file of `tests/golden` is such a module, from ten families of networks. Both of torch's exporters write it, in
training mode with nothing folded. What comes out below the header must be what went in.

To take over a change of the generator, or a new file: `python -m tests.whole.test_golden NAME` generates the file
again, from its own legacy export, until it stays the same; read the difference before you commit it.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onnxgen.pipeline import generate
from tests.support.real import imported
from tests.zoo import Entry
from tests.zoo.export import export

GOLDEN = Path(__file__).parents[1] / "golden"
FILES = sorted(GOLDEN.glob("*.py"))
EXPORTS = (("legacy", 17), ("dynamo", 23))  # 23 is the newest opset that torch 2.13's exporter itself declares
ROW = re.compile(r"(?:(Inputs|Outputs) +| {10})(\w+) +(float32|int64) +\[(.*)\]")


@dataclass(frozen=True)
class Value:
    """An input or output as the header lists it; dims are numbers or names."""

    name: str
    dtype: str
    dims: tuple[str, ...]

    @property
    def dynamic(self) -> dict[int, str]:
        return {axis: dim for axis, dim in enumerate(self.dims) if dim.isidentifier()}

    def example(self, sizes: dict[str, int]) -> Tensor:
        """A tensor; each name of a dim stands for a size of its own, that halves as often as networks halve it."""
        shape = [int(d) if d.isdigit() else sizes.setdefault(d, 16 * len(sizes) or 2) for d in self.dims]
        return torch.ones(shape, dtype=torch.int64) if self.dtype == "int64" else torch.randn(shape)


def header(text: str) -> dict[str, list[Value]]:
    """Inputs and outputs of a generated module, from its docstring."""
    found: dict[str, list[Value]] = {"Inputs": [], "Outputs": []}
    section = ""
    for line in (ast.get_docstring(ast.parse(text)) or "").splitlines():
        row = ROW.fullmatch(line)
        if row is not None:
            section = row[1] or section
            found[section].append(Value(row[2], row[3], tuple(filter(None, row[4].split(", ")))))
    assert found["Inputs"] and found["Outputs"], "the header says what goes in and what comes out"
    return found


class Untouched(Entry):
    """A network as its constructor leaves it: exporters store equal biases and norms once."""

    def make(self) -> nn.Module:
        torch.manual_seed(0)
        return self.build()


def entry(path: Path) -> Entry:
    """The module in a generated file as the zoo's exporters take it."""
    values = header(path.read_text())
    module: Any = imported(path)
    everything = values["Inputs"] + values["Outputs"]

    def inputs(batch: int = 2) -> tuple[Tensor, ...]:
        sizes: dict[str, int] = {}
        return tuple(value.example(sizes) for value in values["Inputs"])

    return Untouched(
        module.Model,
        inputs,
        tuple(v.name for v in values["Inputs"]),
        tuple(v.name for v in values["Outputs"]),
        {v.name: v.dynamic for v in everything},
    )


def again(path: Path, exporter: str, opset: int, folder: Path) -> str:
    """The text generated from an export of a generated module."""
    source = folder / f"{path.stem}.onnx"
    made_of = hashlib.sha256(path.read_bytes() + Path(__file__).read_bytes()).hexdigest()[:16]
    export(entry(path), source, exporter, opset, training=True, keep=f"{path.stem}-{made_of}")
    return generate(source, folder / path.name).source


def below_header(text: str) -> str:
    return text.split('"""', 2)[2]


@pytest.mark.parametrize(("exporter", "opset"), EXPORTS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_very_same_text(path: Path, exporter: str, opset: int, tmp_path: Path) -> None:
    assert below_header(again(path, exporter, opset, tmp_path)) == below_header(path.read_text())


def test_ten_families() -> None:
    assert len(FILES) >= 10


def renew(name: str) -> None:
    """Write a golden file anew from its own export; says so if that does not settle."""
    path = GOLDEN / f"{name}.py"
    for _ in range(3):
        before = path.read_text()
        with tempfile.TemporaryDirectory() as folder:
            path.write_text(again(path, *EXPORTS[0], Path(folder)))
        if below_header(before) == below_header(path.read_text()):
            return
    print(f"{path} changes each time", file=sys.stderr)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        renew(argument)
