"""What becomes of ONNX files that people deploy: how the generated text reads, and whether the module works.

    python -m benchmarks.deployed FOLDER [--nameless] [--run] [--json FILE] [--write HEADING]

FOLDER: every `.onnx` file in it, in any depth. Only classes are looked at, without `from_pretrained`, docstrings,
comments and empty lines.

- lines: of all classes; nameless: of the same file without any name of a node, value or initializer; ratio: of both.
- forward, init: the longest of each in lines, and its statements.
- literals: lists and tuples of more than eight numbers. conditions: on tensors that are made of nothing but sizes.
- items: calls of `.item()`. filled: `nn.Module()` that is filled from outside.
- twins: classes that differ from another one only in name and numbers.
- scalars: trained parameters of one element.

`--run` also loads the module. gradients: parameters with a finite gradient, of all. verify: the exit code of
`onnxgen verify`. compile: `torch.compile(fullgraph=True, backend="eager")` computes the same. export: so does
`torch.export.export`. back: onnxruntime loads what `onnxgen export` writes.

`--write HEADING` puts the table into DEPLOYED.md beside this file, under that heading.
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import onnxgen
from benchmarks.common import arguments
from onnxgen.cli.say import aligned
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.pipeline import generate
from onnxgen.runtime.load import from_pretrained, imported
from onnxgen.verify.check import Check
from onnxgen.verify.convert import to_torch
from tests.support.stripped import strip

PAGE = Path(__file__).with_name("DEPLOYED.md")
LONG_LITERAL = 8
LOADER = "from_pretrained"
Function = ast.FunctionDef | ast.AsyncFunctionDef


# ---- the text --------------------------------------------------------------------------------------------------------


def text_row(source: str) -> dict[str, Any]:
    """The figures of a generated file's text (see the top of this file)."""
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    inner = [node for kind in classes for node in _walk(kind)]
    functions = [node for node in inner if isinstance(node, ast.FunctionDef)]
    calls = [ast.unparse(node.func) for node in inner if isinstance(node, ast.Call)]
    return {
        "lines": sum(map(len, (code_lines(source, kind) for kind in classes))),
        "classes": len(classes),
        "forward": _longest(source, functions, "forward"),
        "init": _longest(source, functions, "__init__"),
        "literals": sum(_long_literals(kind) for kind in classes),
        "conditions": sum(map(size_conditions, functions)),
        "items": sum(call.endswith(".item") for call in calls),
        "filled": calls.count("nn.Module"),
        "twins": twins(classes),
    }


def code_lines(source: str, node: ast.ClassDef | Function) -> set[int]:
    """The numbers of the lines of a class or function that count."""
    lines = source.splitlines()
    left_out: set[int] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.ClassDef | Function) and ast.get_docstring(inner, clean=False) is not None:
            left_out |= _span(inner.body[0])
        if isinstance(inner, Function) and inner.name == LOADER:
            left_out |= _span(inner)
    return {n for n in _span(node) - left_out if not re.fullmatch(r"\s*(#.*)?", lines[n - 1])}


def _span(node: ast.stmt) -> set[int]:
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    return set(range(first, (node.end_lineno or node.lineno) + 1))


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in _children(node):
        yield from _walk(child)


def _children(node: ast.AST) -> list[ast.AST]:
    return [n for n in ast.iter_child_nodes(node) if not (isinstance(n, Function) and n.name == LOADER)]


def _longest(source: str, functions: list[ast.FunctionDef], name: str) -> str:
    """The lines of the longest function of a name, and its statements: `59 (41)`."""
    sizes = [
        (len(code_lines(source, f)), sum(isinstance(n, ast.stmt) for n in ast.walk(f)) - 1)
        for f in functions
        if f.name == name
    ]
    return "{} ({})".format(*max(sizes, default=(0, 0)))


def _long_literals(node: ast.AST) -> int:
    if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict):
        leaves = [n for n in ast.walk(node) if not isinstance(n, ast.expr_context | ast.UnaryOp | ast.USub)]
        numbers = [n for n in leaves if isinstance(n, ast.Constant) and isinstance(n.value, int | float)]
        plain = all(isinstance(n, ast.Constant | ast.List | ast.Tuple | ast.Set | ast.Dict) for n in leaves)
        if plain and len(numbers) > LONG_LITERAL:
            return 1
    return sum(map(_long_literals, _children(node)))


def twins(classes: list[ast.ClassDef]) -> int:
    """How many classes differ from an earlier one only in their names and numbers."""
    shapes: Counter[str] = Counter()
    for kind in classes:
        copy = ast.parse(ast.unparse(kind)).body[0]
        for node in ast.walk(copy):
            if isinstance(node, ast.ClassDef):
                node.name = ""
            if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
                node.value = 0
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:]
        shapes[ast.dump(copy)] += 1
    return sum(count - 1 for count in shapes.values())


def size_conditions(function: ast.FunctionDef) -> int:
    """How many conditions of a function are on tensors that are made of nothing but sizes."""
    sizes: set[str] = set()  # names of numbers that are sizes
    made: set[str] = set()  # names of tensors that are made of them
    count = 0
    for node in sorted((n for n in ast.walk(function) if hasattr(n, "lineno")), key=lambda n: (n.lineno, n.col_offset)):
        if isinstance(node, ast.Assign):
            kind = _made_of(node.value, sizes, made)
            names = {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
            sizes, made = sizes - names, made - names
            sizes |= names if kind == "size" else set()
            made |= names if kind == "tensor" else set()
        elif isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
            count += _made_of(node.test, sizes, made) == "tensor"
    return count


def _made_of(value: ast.expr, sizes: set[str], made: set[str]) -> str:
    """What an expression holds: a "size", a "tensor" that only sizes make, or something else ("")."""
    shaped = [n for n in ast.walk(value) if isinstance(n, ast.Attribute) and n.attr in ("shape", "device", "dtype")]
    excused = {id(n) for attribute in shaped for n in ast.walk(attribute)}
    names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name) and id(n) not in excused}
    others = names - sizes - made - {"torch", "F", "int", "max", "min"}
    if others or not (names & (sizes | made) or any(a.attr == "shape" for a in shaped)):
        return ""
    return "tensor" if names & (made | {"torch"}) else "size"


# ---- the module ------------------------------------------------------------------------------------------------------


def run_row(path: Path, module: Path, report: onnxgen.VerifyReport | OnnxgenError) -> dict[str, Any]:
    """What a generated module does (see the top of this file). `report`: of `verify`, or its error."""
    if isinstance(report, OnnxgenError):
        row = {"gradients": "", "verify": 2}
    else:
        found = report.gradients
        row = {"gradients": f"{found.reached} of {found.parameters}", "verify": int(not report.agrees)}
    try:
        feeds = next(Check(path, Options(), rtol=1e-3, atol=1e-5).answers(1, 0, None)).feeds
    except OnnxgenError:
        return row
    inputs = tuple(map(to_torch, feeds.values()))
    with imported(module) as file:
        network = from_pretrained(file, module).eval()
        row["compile"] = _same(network, inputs, lambda: torch.compile(network, fullgraph=True, backend="eager"))
        row["export"] = _same(network, inputs, lambda: torch.export.export(network, inputs).module())
    row["back"] = _said(lambda: _loads_back(path, module))
    return row


def _same(network: nn.Module, inputs: tuple[Any, ...], other: Callable[[], Any]) -> str:
    def check() -> None:
        torch._dynamo.reset()
        with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
            expected, got = network(*inputs), other()(*inputs)
        pairs = [(got, expected)] if isinstance(expected, Tensor) else list(zip(got, expected, strict=True))
        assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True) for a, b in pairs), "differs"

    return _said(check)


def _loads_back(path: Path, module: Path) -> None:
    import onnxruntime as ort

    out = module.with_suffix(".back.onnx")
    onnxgen.export(module, path, out=out, verify=False)
    ort.InferenceSession(str(out), providers=["CPUExecutionProvider"])


def _said(work: Callable[[], None]) -> str:
    """ "yes", or why not, in a few words."""
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # compilers print whole graphs
            work()
    except Exception as error:
        return "differs" if isinstance(error, AssertionError) and str(error) == "differs" else type(error).__name__
    return "yes"


# ---- the table -------------------------------------------------------------------------------------------------------


def measure(path: Path, name: str, folder: Path, nameless: bool, run: bool) -> dict[str, Any]:
    """The row of one file. Its module is written to `folder`."""
    module = folder / "model.py"
    row: dict[str, Any] = {"file": name}
    try:
        generate(path, module, force=True)
    except OnnxgenError as error:
        return row | {"lines": "refused", "said": str(error)}
    row |= text_row(module.read_text(encoding="utf-8"))
    with imported(module) as file:
        row["scalars"] = sum(p.requires_grad and p.numel() == 1 for p in from_pretrained(file, module).parameters())
    if nameless:
        lines = without_names(path, folder)
        row |= {"nameless": lines, "ratio": round(row["lines"] / lines, 2) if isinstance(lines, int) else ""}
    if run:
        report: onnxgen.VerifyReport | OnnxgenError
        try:
            report = onnxgen.verify(path, module)
        except OnnxgenError as error:
            report = error
        row |= run_row(path, module, report)
        row["said"] = [str(report)] if isinstance(report, OnnxgenError) else [*report.problems(), *report.notes]
    return row


def without_names(path: Path, folder: Path) -> int | str:
    """The class lines of the same file without names."""
    source, module = strip(path, folder / "nameless.onnx", keep_dims=True), folder / "nameless.py"
    try:
        generate(source, module, force=True)
    except OnnxgenError:
        return "refused"
    lines = text_row(module.read_text(encoding="utf-8"))["lines"]
    assert isinstance(lines, int)
    return lines


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The lines of the table; what `verify` said is only in the JSON file."""
    columns = list(dict.fromkeys(key for row in rows for key in row if key != "said"))
    return aligned([columns, *[[str(row.get(c, "")) for c in columns] for row in rows]])


def page(text: str, heading: str, rows: list[dict[str, Any]]) -> str:
    """The page with a table under a heading; a table that was there is replaced."""
    section = f"## {heading}\n\n{summary(rows)}\n\n" + "\n".join(f"    {line}".rstrip() for line in table(rows)) + "\n"
    said = inspect.cleandoc(__doc__ or "").rpartition("\n\n")[0].partition("\n\n")[2]
    sections = re.findall(r"^## .*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    others = [s.rstrip("\n") + "\n" for s in sections if not s.startswith(f"## {heading}\n")]
    return "\n".join([f"# Files that people deploy\n\n{said}\n", *others, section])


def summary(rows: list[dict[str, Any]]) -> str:
    """The sums of a table in a line."""
    said = [f"{len(rows)} files"]
    for key, what in (("lines", "class lines"), ("nameless", "without names")):
        if any(key in row for row in rows):
            said.append(f"{sum(n for row in rows if isinstance(n := row.get(key), int)):,} {what}")
    ran = [row for row in rows if "verify" in row]
    if ran:
        said.append(f"`verify` ends in 0 for {sum(row['verify'] == 0 for row in ran)} of {len(ran)} that were run")
        said += [f"{key}: {sum(row.get(key) == 'yes' for row in ran)}" for key in ("compile", "export", "back")]
    return "; ".join(said) + "."


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nameless", action="store_true", help="also generate each file without its names")
    parser.add_argument("--run", action="store_true", help="also load, verify, compile and export each module")
    parser.add_argument("--write", metavar="HEADING", help=f"put the table into {PAGE.name}")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for path in sorted(given.folder.rglob("*.onnx")):
        name = path.relative_to(given.folder).with_suffix("").as_posix()
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(path, name, Path(folder), given.nameless, given.run))
        print(*(v for k, v in rows[-1].items() if k != "said"), file=sys.stderr, flush=True)
    if not rows:
        parser.error(f"{given.folder} has no .onnx file")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print("\n".join(table(rows)))
    print(summary(rows))
    if given.write:
        text = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
        PAGE.write_text(page(text, given.write, rows), encoding="utf-8")


if __name__ == "__main__":
    main()
