"""Mutations of generated files, drawn at random: the checker refuses each that computes anything else.

`python -m tests.validate.drawn FIRST LAST COUNT` draws mutations of the random graphs of these seeds (`graph_layers`),
and prints every mutant that is let pass although PyTorch tells it from the original.
"""

from __future__ import annotations

import ast
import copy
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from onnxgen import pipeline
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.validate import Specification, validate
from tests.support.graph_layers import make
from tests.support.real import tensor

Feeds = list[dict[str, Any]]
Change = Callable[[], None]
BINARY = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.MatMult)
COMPARED = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Is, ast.IsNot)


@dataclass
class Drawing:
    """A generated file, what it is held to, and what it is run with."""

    wanted: Specification
    source: str
    name: str
    path: Path
    feeds: Feeds

    def refused(self, source: str) -> bool:
        return validate(self.wanted, ast.parse(source), self.name) is not None


def drawing(path: Path, out: Path, feeds: Feeds, options: Options | None = None) -> Drawing | None:
    """The file that is generated for a graph; None where none is."""
    found: list[tuple[Specification, str]] = []
    given = pipeline.validate

    def noted(wanted: Specification, tree: ast.Module, name: str) -> Any:
        found.append((wanted, name))
        return given(wanted, tree, name)

    pipeline.validate = noted  # type: ignore[attr-defined]
    try:
        pipeline.generate(path, out, options or Options(), force=True)
    except OnnxgenError:
        return None
    finally:
        pipeline.validate = given  # type: ignore[attr-defined]
    wanted, name = found[-1]
    return Drawing(wanted, out.read_text(encoding="utf-8"), name, out, feeds)


def mutants(source: str, draw: random.Random, count: int) -> Iterator[str]:
    """Texts that differ from a file in one place of a class."""
    whole = ast.parse(source)
    for _ in range(count):
        tree = copy.deepcopy(whole)
        changes = [c for node in tree.body if isinstance(node, ast.ClassDef) for c in _changes(node, whole, draw)]
        if changes:
            draw.choice(changes)()
            yield ast.unparse(ast.fix_missing_locations(tree))


def _changes(definition: ast.ClassDef, whole: ast.Module, draw: random.Random) -> Iterator[Change]:
    attributes = sorted({n.attr for n in ast.walk(whole) if isinstance(n, ast.Attribute)})
    for method in definition.body:
        if not isinstance(method, ast.FunctionDef) or method.name == "from_pretrained":
            continue
        names = sorted({n.id for n in ast.walk(method) if isinstance(n, ast.Name)} | {a.arg for a in method.args.args})
        for n in range(len(method.args.defaults)):
            yield lambda n=n, of=method: of.args.defaults.__setitem__(n, ast.Constant(7))  # type: ignore[misc]
            yield lambda of=method: of.args.defaults.pop(0)  # type: ignore[misc]
        for node in ast.walk(method):
            yield from _blocks(node)
            yield from _operands(node)
            yield from _leaves(node, names, attributes, draw)


def _blocks(node: ast.AST) -> Iterator[Change]:
    """Statements dropped, doubled and exchanged."""
    for field in ("body", "orelse"):
        block = getattr(node, field, None)
        if not isinstance(block, list):
            continue
        for i in range(len(block)):
            yield lambda i=i, b=block: b.__setitem__(i, ast.Pass())  # type: ignore[misc]
            yield lambda i=i, b=block: b.insert(i, copy.deepcopy(b[i]))  # type: ignore[misc]
            if i:
                yield lambda i=i, b=block: b.__setitem__(slice(i - 1, i + 1), [b[i], b[i - 1]])  # type: ignore[misc]
            inner = getattr(block[i], "body", None)
            if isinstance(inner, list):
                yield lambda i=i, b=block, inner=inner: b.insert(i, inner[0])  # type: ignore[misc]
                yield lambda i=i, b=block, inner=inner: b.__setitem__(slice(i, i + 1), inner)  # type: ignore[misc]
    if isinstance(node, ast.If) and node.orelse:
        yield lambda: node.__dict__.update(body=node.orelse, orelse=node.body)
    if isinstance(node, ast.IfExp):
        yield lambda: node.__dict__.update(body=node.orelse, orelse=node.body)
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))


def _operands(node: ast.AST) -> Iterator[Change]:
    """Items of lists, arguments and keywords dropped, doubled and exchanged."""
    for field in ("elts", "args", "keywords", "targets", "ops", "keys", "values"):
        items = getattr(node, field, None)
        if not isinstance(items, list) or isinstance(node, ast.arguments):
            continue
        for i in range(len(items)):
            yield lambda i=i, items=items: items.pop(i)  # type: ignore[misc]
            yield lambda i=i, items=items: items.insert(i, copy.deepcopy(items[i]))  # type: ignore[misc]
            if i:
                yield lambda i=i, items=items: items.reverse()  # type: ignore[misc]
    if isinstance(node, ast.BinOp):
        yield lambda: node.__dict__.update(left=node.right, right=node.left)
        for kind in BINARY:
            if not isinstance(node.op, kind):
                yield lambda kind=kind: setattr(node, "op", kind())  # type: ignore[misc]
    if isinstance(node, ast.Compare):
        for compared in COMPARED:
            if not isinstance(node.ops[0], compared):
                yield lambda compared=compared: node.ops.__setitem__(0, compared())  # type: ignore[misc]
    if isinstance(node, (ast.Assign, ast.Return, ast.keyword)) and isinstance(node.value, ast.Call) and node.value.args:
        yield lambda: setattr(node, "value", node.value.args[0])  # type: ignore[union-attr]
    if isinstance(node, ast.Assign):
        for made in (ast.Tuple([node.value], ast.Load()), ast.UnaryOp(ast.USub(), node.value)):
            yield lambda made=made: setattr(node, "value", made)  # type: ignore[misc]
    if isinstance(node, ast.For):
        yield lambda: setattr(node, "iter", ast.Call(ast.Name("reversed"), [node.iter], []))
        yield lambda: setattr(node, "iter", ast.Subscript(node.iter, ast.Slice(ast.Constant(1)), ast.Load()))


def _leaves(node: ast.AST, names: list[str], attributes: list[str], draw: random.Random) -> Iterator[Change]:
    """Names, attributes and constants replaced by others."""
    if isinstance(node, ast.Name) and node.id != "super":
        yield lambda: setattr(node, "id", draw.choice(names))
        yield lambda: setattr(node, "id", draw.choice(names))
    if isinstance(node, ast.Attribute):
        yield lambda: setattr(node, "attr", draw.choice(attributes))
        yield lambda: setattr(node, "attr", f"{node.attr}_")
    if isinstance(node, ast.keyword) and node.arg:
        yield lambda: setattr(node, "arg", draw.choice(names))
    if isinstance(node, ast.Subscript):
        yield lambda: setattr(node, "slice", ast.Constant(draw.choice((0, 1, 2, -1))))
    if isinstance(node, ast.Constant):
        value = node.value
        others: list[Any] = [None, 0, 1, True, 1.0, -0.0]
        if isinstance(value, bool):
            others = [not value, int(value)]
        elif isinstance(value, (int, float)):
            others += [value + 1, value - 1, -value, float(value), bool(value)]
        elif isinstance(value, str):
            others = [value + "x", ""]
        yield lambda: setattr(node, "value", draw.choice(others))


def differs(given: Drawing, source: str) -> bool:
    """Whether PyTorch tells a mutant from the original: by what it registers, its results or an error."""
    original = _seen(given, given.source)
    if isinstance(original, Exception):
        raise original
    mutant = _seen(given, source)
    return isinstance(mutant, Exception) or not _equal(original, mutant)


def _seen(given: Drawing, source: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _observed(given, source)
    except Exception as error:
        return error


def _observed(given: Drawing, source: str) -> Any:
    """Everything that can be seen of a module: its tensors, and its results in either mode, at every size."""
    module = ModuleType("mutant")
    module.__file__ = str(given.path)
    exec(compile(source, "mutant", "exec"), module.__dict__)
    torch.manual_seed(0)
    model: nn.Module = getattr(module, given.name)()
    numbers = torch.Generator().manual_seed(1)
    for _, value in sorted(model.state_dict().items()):
        if value.is_floating_point():
            value.copy_(torch.rand(value.shape, generator=numbers).to(value.dtype) + 0.1)
    seen: list[Any] = [[(k, v.dtype, tuple(v.shape)) for k, v in sorted(model.state_dict().items())]]
    seen.append(sorted((k, v.requires_grad) for k, v in model.named_parameters(remove_duplicate=False)))
    seen.append(sorted(k for k, _ in model.named_buffers()))
    seen.append(len(list(model.parameters())))
    for training in (False, True):
        model.train(training)
        for feed in given.feeds:
            torch.manual_seed(2)
            values = [tensor(a) for a in feed.values()]
            try:
                seen.append(model(*values))
            except Exception as error:  # a batch of one has no statistics
                seen.append(type(error).__name__)
            seen.append(values)  # nothing is changed in place
    seen.append(sorted(model.state_dict().items()))
    return seen


def _equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool(torch.equal(a.nan_to_num(7), b.nan_to_num(7)))
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else bool(a == b)


def holes(given: Drawing, seed: int, count: int) -> tuple[int, int, list[str]]:
    """How many mutants were refused, how many let pass that are the same network, and those that are not."""
    refused, same, wrong = 0, 0, []
    whole = ast.unparse(ast.parse(given.source))
    for source in mutants(given.source, random.Random(seed), count):
        if source == whole:
            continue
        if given.refused(source):
            refused += 1
        elif differs(given, source):
            wrong.append(source)
        else:
            same += 1
    return refused, same, wrong


def of_seed(seed: int, folder: Path, options: Options | None = None) -> Drawing | None:
    """The file of one random graph."""
    case = make(seed)
    path = folder / f"g{seed}.onnx"
    onnx.save(case.model, path)
    return drawing(path, folder / f"g{seed}.py", case.feeds, options)


def main(first: int, last: int, count: int) -> None:
    import difflib

    total = [0, 0, 0]
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, last):
            given = of_seed(seed, Path(folder))
            if given is None or isinstance(_seen(given, given.source), Exception):
                continue
            refused, same, wrong = holes(given, seed, count)
            total = [total[0] + refused, total[1] + same, total[2] + len(wrong)]
            whole = ast.unparse(ast.parse(given.source)).splitlines()
            for source in wrong:
                lines = difflib.unified_diff(whole, source.splitlines(), lineterm="", n=0)
                print(seed, *[line for line in lines if line[:3] not in ("---", "+++") and line[0] in "+-"], sep="\n  ")
            sys.stdout.flush()
    print(f"{total[0]} refused, {total[1]} the same network, {total[2]} let pass and wrong")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
