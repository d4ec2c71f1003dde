"""Generated modules beside the originals that they were exported from: how long, how fast, and whether they compile.

    python -m benchmarks.structure [--networks resnet18,vit] [--exporters legacy,dynamo] [--parts lines,time,compile]
                                   [--rounds 101] [--backend inductor] [--write] [--json FILE]

Lines: the classes of both (torch's own excepted), without comments, docstrings and whatever building and calling the
network does not execute, formatted alike by black's default settings. Time: one forward and backward pass in training
mode, in pairs that take turns. Compiling: `torch.compile(fullgraph=True)` in training mode, then other batch sizes:
"again" counts the graphs that these needed. Export: `torch.export.export` with a dynamic batch.

`--write` puts the table into STRUCTURE.md beside this file.
"""

from __future__ import annotations

import ast
import copy
import inspect
import statistics
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import black
import torch
from torch import Tensor, nn

from benchmarks.common import arguments, finish, interleaved, ratio
from onnxgen.cli.say import aligned
from tests.zoo import Entry
from tests.zoo.pairs import ARCHITECTURES, Pair, loss, outputs, pair

LINES, SLOWER = 1.3, 1.02
BATCH = {"batch", "texts", "images"}
PAGE = Path(__file__).with_name("STRUCTURE.md")


# ---- lines -----------------------------------------------------------------------------------------------------------


def executed(run: Callable[[], Any], files: set[str]) -> set[tuple[str, int]]:
    """(file, line) of every line of some files that is executed while `run` runs."""
    found: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if file not in files:
            return None
        if event == "line":
            found.add((file, frame.f_lineno))
        return trace

    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(None)
    return found


def classes(model: nn.Module) -> list[type]:
    """The classes of a network's modules that are not torch's, each once."""
    kinds = dict.fromkeys(type(module) for module in model.modules())
    return [kind for kind in kinds if kind.__module__.partition(".")[0] != "torch"]


class _Pruned(ast.NodeTransformer):
    """A class with what was executed; `passes` counts the statements that were put where nothing is left."""

    def __init__(self, lines: set[int]) -> None:
        self.lines, self.passes = lines, 0

    def keeps(self, node: ast.stmt) -> bool:
        body = getattr(node, "body", None)
        last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
        return any(line in self.lines for line in range(node.lineno, max(last, node.lineno) + 1))

    def block(self, body: list[ast.stmt], needed: bool = True) -> list[ast.stmt]:
        kept = [self.visit(node) for node in body if self.keeps(node)]
        if not kept and needed:
            self.passes += 1
            return [ast.Pass()]
        return kept

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name in ("body", "orelse", "finalbody"):
            if isinstance(getattr(node, name, None), list):
                setattr(node, name, self.block(getattr(node, name), needed=name == "body"))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = self.block(node.body, needed=False)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        methods = [self.visit(n) for n in node.body if isinstance(n, ast.FunctionDef)]
        node.body = [m for m in methods if m.body]
        if not node.body:
            self.passes, node.body = self.passes + 1, [ast.Pass()]
        return node


def code_lines(kind: type, ran: set[tuple[str, int]]) -> int:
    """The lines of a class that count (see the top of this file)."""
    source, start = inspect.getsourcelines(kind)
    file = inspect.getsourcefile(kind)
    (tree,) = ast.parse(textwrap.dedent("".join(source))).body
    pruned = _Pruned({line - start + 1 for name, line in ran if name == file})
    text = black.format_str(ast.unparse(pruned.visit(tree)), mode=black.Mode())
    return sum(bool(line.strip()) for line in text.splitlines()) - pruned.passes


def length(build: Callable[[], nn.Module], inputs: tuple[Tensor, ...]) -> int:
    """The lines of all classes of a network that building and calling it executes."""
    kinds = classes(build())
    files = {file for kind in kinds if (file := inspect.getsourcefile(kind)) is not None}
    ran = executed(lambda: build().train()(*inputs), files)
    return sum(code_lines(kind, ran) for kind in kinds)


# ---- time ------------------------------------------------------------------------------------------------------------


def slower(made: Pair, rounds: int) -> float:
    """How many times as long as the original's the generated forward and backward pass takes."""
    inputs = made.entry.inputs(4)

    def step(model: nn.Module) -> Callable[[], float]:
        parameters = list(model.parameters())

        def run() -> float:
            for parameter in parameters:
                parameter.grad = None
            start = time.perf_counter()
            loss(model, inputs).backward()
            return time.perf_counter() - start

        return run

    ours, theirs = step(made.generated), step(made.original)
    for _ in range(5):
        ours(), theirs()
    return ratio(interleaved(ours, theirs, rounds))


# ---- compile and export ----------------------------------------------------------------------------------------------


def batch_axes(entry: Entry) -> Iterator[tuple[int, int]]:
    """(input, axis) of each dim that is a batch size."""
    for index, name in enumerate(entry.input_names):
        for axis, dim in entry.dynamic.get(name, {}).items():
            if dim in BATCH:
                yield index, axis


def compiled(made: Pair, backend: str) -> tuple[str, str]:
    """Whether one graph holds it all, and how many more graphs other batch sizes needed."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = torch.compile(copy.deepcopy(made.generated), fullgraph=True, backend=backend)
    counts = []
    for batch in (4, 3, 5):
        inputs = made.entry.inputs(batch)
        for index, axis in batch_axes(made.entry):
            torch._dynamo.mark_dynamic(inputs[index], axis)
        try:
            with torch._dynamo.config.patch(allow_rnn=True):  # else it refuses nn.LSTM and nn.GRU, the original's, too
                torch.stack([y.square().mean() for y in outputs(model, inputs)]).sum().backward()
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0][:60]}", ""
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    return "yes", str(counts[-1] - counts[0])


def exported(made: Pair) -> str:
    """Whether `torch.export.export` takes it with a dynamic batch, and what it makes computes the same."""
    model, entry = copy.deepcopy(made.generated).eval(), made.entry
    axes: list[dict[int, Any]] = [{} for _ in entry.input_names]
    for index, axis in batch_axes(entry):
        axes[index][axis] = torch.export.Dim.DYNAMIC
    try:
        program = torch.export.export(model, entry.inputs(4), dynamic_shapes=(*axes,)).module()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:60]}"
    with torch.no_grad():
        ours, theirs = outputs(program, entry.inputs(3)), outputs(model, entry.inputs(3))
    return "yes" if all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs, strict=True)) else "differs"


# ---- the table -------------------------------------------------------------------------------------------------------


def measure(name: str, exporter: str, parts: set[str], rounds: int, backend: str, folder: Path) -> dict[str, Any]:
    made = pair(name, exporter, folder)
    row: dict[str, Any] = {"network": name, "exporter": exporter}
    if "lines" in parts:
        sys.modules[made.module.__name__] = made.module  # where `inspect` looks for a class's source
        inputs = made.entry.inputs(4)
        theirs, ours = length(made.entry.build, inputs), length(made.module.Model, inputs)
        row |= {"original lines": theirs, "generated lines": ours, "lines": round(ours / theirs, 2)}
    if "time" in parts:
        row["time"] = round(slower(made, rounds), 3)
    if "compile" in parts:
        row["one graph"], row["again"] = compiled(made, backend)
        row["export"] = exported(made)
    return row


def summary(rows: list[dict[str, Any]]) -> str:
    """How many rows are within the bounds, and the medians."""
    said = []
    for key, bound in (("lines", LINES), ("time", SLOWER)):
        found = [row[key] for row in rows if key in row]
        if found:
            within = sum(value <= bound for value in found)
            said.append(f"{key}: {within} of {len(found)} at most {bound}, median {statistics.median(found):.3f}")
    good = [row for row in rows if row.get("one graph") == "yes" and row["again"] == "0" and row["export"] == "yes"]
    if any("export" in row for row in rows):
        said.append(f"one graph for every batch size, and exported: {len(good)} of {len(rows)}")
    return "; ".join(said)


def page(rows: list[dict[str, Any]], backend: str) -> str:
    columns = list(rows[0])
    table = "\n".join(
        f"    {line}" for line in aligned([columns, *[[str(r.get(c, "")) for c in columns] for r in rows]])
    )
    said = inspect.cleandoc(__doc__ or "").partition("\n\n")[2].rpartition("\n\n")[0]
    return (
        f"# Generated modules beside their originals\n\n{said}\n\n"
        f"torch {torch.__version__}, {backend}, {torch.get_num_threads()} thread.\n\n{table}\n\n{summary(rows)}\n"
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--networks", default=",".join(ARCHITECTURES), help="which (default: all)")
    parser.add_argument("--exporters", default="legacy", help="legacy, dynamo or both (default: legacy)")
    parser.add_argument("--parts", default="lines,time,compile", help="what to measure (default: lines,time,compile)")
    parser.add_argument("--rounds", type=int, default=101, help="pairs of passes (default: 101)")
    parser.add_argument("--backend", default="inductor", help="of torch.compile (default: inductor)")
    parser.add_argument("--write", action="store_true", help=f"write the table to {PAGE.name}")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in given.networks.split(","):
            for exporter in given.exporters.split(","):
                parts = set(given.parts.split(","))
                rows.append(measure(name, exporter, parts, given.rounds, given.backend, Path(folder)))
                print(*rows[-1].values(), file=sys.stderr, flush=True)
    finish(rows, given.json)
    print(summary(rows))
    if given.write:
        PAGE.write_text(page(rows, given.backend), encoding="utf-8")


if __name__ == "__main__":
    main()
