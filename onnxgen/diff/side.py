"""One of two models: its source, its tensors, what the file says, and its module if that is needed."""

from __future__ import annotations

import ast
import copy
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxgen.common.names import printable
from onnxgen.diff.interface import Facts, facts
from onnxgen.diff.weights import Array
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.output.compose import Generated
from onnxgen.pipeline import default_out
from onnxgen.plugins import plugged
from onnxgen.reader import read
from onnxgen.record.sidecar import METADATA, metadata_of, sidecar_of
from onnxgen.record.signature import Signature, recorded
from onnxgen.runtime.load import shown_as
from onnxgen.view.page import traced
from onnxgen.weights.sidecar import read_tensors, write_pair

if TYPE_CHECKING:
    import onnx_ir as ir
    from torch import nn

PLACES = ("WEIGHTS", "FINGERPRINT")  # names of a generated file that say where the weights are
FRAME = (*PLACES, "Model")  # names that are no part of the network


@dataclass(eq=False)
class Side:
    """A model.

    Attributes:
        path: the file.
        file: the name under which tracebacks show its source.
        lines: of the source.
        nodes: of the ONNX file, by line.
        metadata: of the sidecar.
        facts: what the ONNX file says; None for a module.
        generated: what was generated of an ONNX file.
        model: the ONNX file, as it was read.
    """

    path: Path
    options: Options
    file: str
    lines: list[str]
    nodes: Mapping[int, list[str]]
    metadata: Mapping[str, str]
    facts: Facts | None = None
    generated: Generated | None = None
    space: Any = None
    model: ir.Model | None = None

    @property
    def signature(self) -> Signature | None:
        return recorded(self.metadata)

    @cached_property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    @cached_property
    def program(self) -> str:
        """What the source computes: without names of classes and variables, docstrings and the frame."""
        return program_of(self.text)

    @cached_property
    def code(self) -> frozenset[int]:
        """The lines of the network's classes, without docstrings."""
        lines: set[int] = set()
        for node in (n for n in ast.parse(self.text).body if not _is_frame(n)):
            for part in ast.walk(node):
                is_text = isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)
                if isinstance(part, ast.stmt) and not is_text and not isinstance(part, ast.ClassDef):
                    body = getattr(part, "body", None)
                    last = body[0].lineno - 1 if body else part.end_lineno or part.lineno
                    lines.update(range(part.lineno, last + 1))
        return frozenset(lines)

    @cached_property
    def tensors(self) -> dict[str, Array]:
        """The state dict, as it is stored."""
        if self.generated is not None:
            return {k: v if isinstance(v, np.ndarray) else v.numpy() for k, v in self.generated.tensors.items()}
        sidecar = sidecar_of(vars(self.space))
        if sidecar is not None and self._module is None:
            return read_tensors(sidecar)
        return arrays(self.module)

    _module: nn.Module | None = None

    @property
    def module(self) -> nn.Module:
        """The network, in evaluation mode."""
        from onnxgen.runtime.load import _execute, from_pretrained

        if self._module is None:
            if self.generated is None:
                self._module = from_pretrained(self.space, self.path).eval()
            else:
                with tempfile.TemporaryDirectory(prefix="onnxgen-", ignore_cleanup_errors=True) as folder:
                    out = Path(folder) / "model.py"
                    weights = Path(folder) / self.generated.weights.name
                    write_pair(out, self.text, weights, self.generated.tensors, self.generated.metadata)
                    space = _execute(self.text, out, self.file)
                    self._module = from_pretrained(space, self.path).eval()
                    vars(space)[METADATA] = self.generated.metadata  # the sidecar no longer exists
        return self._module

    def in_floats(self) -> Side:
        """Return the network of a quantised file in floats."""
        if self.generated is None or self.facts is None or not self.facts.is_quantised:
            return self
        return _generated(self.path, replace(self.options, quantized="float"), self.facts)

    def wide(self) -> nn.Module:
        """Return the network in float64."""
        return copy.deepcopy(self.module).double()


def arrays(module: nn.Module) -> dict[str, Array]:
    """Return a module's state dict as arrays."""
    import torch

    state = {key: tensor.detach().cpu() for key, tensor in module.state_dict().items()}
    return {key: (t.float() if t.dtype is torch.bfloat16 else t).numpy() for key, t in state.items()}


@contextmanager
def opened(path: Path, options: Options) -> Iterator[Side]:
    """Read a model: an ONNX file, or a module that onnxgen generated.

    Raises:
        OnnxgenError: it can't be read or converted.
    """
    if path.suffix != ".py":
        with plugged(options):
            model = read(path, options)
            said = facts(model)
        yield replace(_generated(path, options, said), model=model)
        return
    from onnxgen.runtime.load import imported

    with imported(path) as space:
        if not hasattr(space, "Model"):
            raise OnnxgenError(f"{path} has no class Model", help="name a module that onnxgen generated")
        lines = path.read_text(encoding="utf-8").splitlines()
        yield Side(path, options, str(path), lines, {}, metadata_of(vars(space)), space=space)


def _generated(path: Path, options: Options, said: Facts) -> Side:
    out = default_out(path, None)
    generated, lines, nodes = traced(path, replace(options, weights=None), out)
    shown = shown_as(Path(printable(path.name).replace('"', "'")))
    return Side(path, options, shown, lines, nodes, generated.metadata, said, generated)


def program_of(source: str) -> str:
    """Return the network that a source is, as text. Programs that differ only in names of classes and variables,
    comments, docstrings and where the weights are have the same."""
    tree = ast.parse(source)
    body = [node for node in tree.body if not _is_place(node)]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    keywords = {keyword.arg for call in calls for keyword in call.keywords if keyword.arg is not None}
    names = {node.name: f"<class {i}>" for i, node in enumerate(n for n in body if isinstance(n, ast.ClassDef))}
    names |= {node.name: "<build>" for node in body if isinstance(node, ast.FunctionDef) and _has_pretrained(node)}
    return "\n".join(ast.dump(_Renamed(names, keywords).visit(node)) for node in body)


def _is_place(node: ast.stmt) -> bool:
    """Return True for a text, and for what says where the weights are."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(target, ast.Name) and target.id in PLACES for target in targets)


def _has_pretrained(function: ast.FunctionDef) -> bool:
    return any(arg.arg == "pretrained" for arg in function.args.args)


def _is_frame(node: ast.stmt) -> bool:
    """Return True for what builds and loads the network: it is alike in all generated files, but for its names."""
    if isinstance(node, ast.FunctionDef):
        return node.name == "from_pretrained" or _has_pretrained(node)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    for target in node.targets if isinstance(node, ast.Assign) else ():
        if isinstance(target, ast.Name) and target.id in FRAME:
            return True
        if isinstance(target, ast.Attribute) and target.attr == "from_pretrained":
            return True
    return False


class _Renamed(ast.NodeTransformer):
    """Names classes and the variables of methods by their order, and takes docstrings and annotations away."""

    def __init__(self, classes: Mapping[str, str], kept: set[str]) -> None:
        self.names, self.kept = dict(classes), kept
        self.versions = 0  # of values of the straight method that is renamed

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self.names.get(node.name, node.name)
        node.body = _without_docstring(node.body)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body, node.returns = _without_docstring(node.body), None
        node.name = self.names.get(node.name, node.name)
        outer, local = self.names, {}
        if node.name == "forward" and _is_straight(node):
            given = [a.arg for a in node.args.args[1:]]
            self.versions = 1
            self.names = {**outer, **{name: self._fresh() for name in given if name not in self.kept}}
            node.args = self.visit(node.args)
            node.body = [self.visit(statement) for statement in node.body]
            self.names, self.versions = outer, 0
            return node
        if node.name == "forward" and not _has_scopes(node):
            given = [a.arg for a in node.args.args[1:]]
            stored = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
            free = [name for name in dict.fromkeys([*given, *stored]) if name not in self.kept]
            local = {name: f"<{i}>" for i, name in enumerate(free)}
        self.names = {**outer, **local}
        node = self.generic_visit(node)  # type: ignore[assignment]
        self.names = outer
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Give what a straight method stores a new name: it says nothing that a name is used again."""
        node.value = self.visit(node.value)
        if self.versions:
            stored = [n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name) and _is_stored(n)]
            self.names = {**self.names, **{name: self._fresh() for name in dict.fromkeys(stored)}}
        node.targets = [self.visit(target) for target in node.targets]
        return node

    def _fresh(self) -> str:
        self.versions += 1
        return f"<{self.versions}>"  # no name of Python

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg, node.annotation = self.names.get(node.arg, node.arg), None
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.names.get(node.id, node.id)
        return node


def _is_straight(function: ast.FunctionDef) -> bool:
    """Return True if a method only assigns to names, one statement after the other, and returns."""
    if not all(isinstance(statement, (ast.Assign, ast.Return, ast.Expr)) for statement in function.body):
        return False
    stores = [n for n in ast.walk(function) if isinstance(n, (ast.NamedExpr, ast.Delete, ast.Starred))]
    return not stores and not _has_scopes(function) and not function.args.kwonlyargs and not function.args.defaults


def _is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _has_scopes(function: ast.FunctionDef) -> bool:
    """Return True if a function has names of its own inside of it."""
    kinds = (ast.Lambda, ast.FunctionDef, ast.ListComp, ast.DictComp, ast.GeneratorExp, ast.SetComp, ast.Global)
    return any(isinstance(node, kinds) for node in ast.walk(function) if node is not function)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    is_text = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return body[1:] if is_text and len(body) > 1 else body
