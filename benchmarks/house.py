"""The size and the shape of the product's own code, by room.

    python -m benchmarks.house [--json FILE]

For each room: files, lines, functions, those that bind a name that says nothing (`VAGUE`), and those of a complexity
above 15, counted as radon does if that is installed. For the whole: the share of import lines, lines over 100
characters, and what the generation of one convolution enters: files, functions, and modules that are loaded. Which
files name an operator is counted by `python -m tests.support.mentions`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, arguments, finish, python

VAGUE = {"found", "made", "given", "said", "told"}
CONVOLUTION = """
import os, sys, tempfile
from pathlib import Path
import numpy as np, onnx
from onnx import parser
graph = parser.parse_graph("n (float[N, 3, 8, 8] x) => (float[N, 4, 6, 6] y) <float[4, 3, 3, 3] w> { y = Conv(x, w) }")
graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w"))
folder = Path(tempfile.mkdtemp())
opset = onnx.helper.make_opsetid("", 17)
onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), folder / "net.onnx")
files, functions, root = set(), set(), os.path.join(os.getcwd(), "onnxgen")
def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(root) and not code.co_name.startswith("<"):
        files.add(code.co_filename)
        functions.add((code.co_filename, code.co_firstlineno))
sys.setprofile(note)
import onnxgen
onnxgen.generate(folder / "net.onnx", folder / "net.py")
sys.setprofile(None)
print(len(files), len(functions), sum(name.partition(".")[0] == "onnxgen" for name in sys.modules))
"""


def product() -> list[Path]:
    """The Python files of the product that git knows."""
    listed = subprocess.run(
        ["git", "ls-files", "onnxgen", "build_hooks", "setup.py"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [ROOT / name for name in listed.stdout.split() if name.endswith(".py")]


def room(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[1] if parts[0] == "onnxgen" and len(parts) > 2 else parts[0]


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def is_vague(function: ast.AST) -> bool:
    stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return bool(VAGUE & (stored | {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}))


def complexities(text: str) -> list[int]:
    """The complexity of each function; [] without radon."""
    if find_spec("radon") is None:
        return []
    from radon.visitors import ComplexityVisitor

    visitor = ComplexityVisitor.from_code(text)
    return [block.complexity for block in (*visitor.functions, *(m for c in visitor.classes for m in c.methods))]


def main() -> None:
    asked = arguments(__doc__).parse_args()
    rooms: dict[str, Counter[str]] = {}
    whole: Counter[str] = Counter()
    every: list[int] = []
    for path in product():
        text = path.read_text(encoding="utf-8")
        tree, lines, found = ast.parse(text), text.splitlines(), complexities(text)
        every += found
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        whole["import lines"] += sum((node.end_lineno or 0) - node.lineno + 1 for node in imports)
        whole["lines over 100"] += sum(len(line) > 100 for line in lines)
        counts = rooms.setdefault(room(path), Counter())
        counts.update(files=1, lines=len(lines), functions=len([*functions(tree)]))
        counts["vague names"] += sum(map(is_vague, functions(tree)))
        counts["complexity above 15"] += sum(value > 15 for value in found)
    columns = ("files", "lines", "functions", "vague names", "complexity above 15")
    rows: list[dict[str, Any]] = [
        {"room": name, **{column: counts[column] for column in columns}}
        for name, counts in sorted(rooms.items(), key=lambda item: -item[1]["lines"])
    ]
    total = {column: sum(row[column] for row in rows) for column in columns}
    finish([*rows, {"room": "all", **total}], asked.json)
    print(f"import lines: {100 * whole['import lines'] / total['lines']:.1f} %; over 100: {whole['lines over 100']}")
    if every:
        print(f"complexity: mean {sum(every) / len(every):.2f} of {len(every)} functions")
    files, run, modules = python("-c", CONVOLUTION, cwd=ROOT).split()[-3:]
    print(f"one convolution: {files} files entered, {run} functions run, {modules} modules of onnxgen loaded")


if __name__ == "__main__":
    sys.exit(main())
