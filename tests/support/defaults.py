"""Finds arguments in generated code that torch would take anyway: told by torch's own signatures and schemas."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

UNKNOWN = object()  # what is no literal
WRITTEN = {("unbind", "dim")}  # the axis that everybody writes


@cache
def signatures(function: str) -> list[tuple[list[str], dict[str, Any]]]:
    """The positional arguments and the defaults of a function, layer or method; one for each overload."""
    is_function = function.startswith(("nn.", "F.", "torch."))
    if is_function:
        try:
            found: Any = {"nn": nn, "F": F, "torch": torch}[function.split(".")[0]]
            for part in function.split(".")[1:]:
                found = getattr(found, part)
            parameters = inspect.signature(found).parameters.values()
        except (AttributeError, TypeError, ValueError):
            pass
        else:
            positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
            return [(positional, {p.name: p.default for p in parameters if p.default is not p.empty})]
    made = []
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{function.split('.')[-1]}"):
        if not is_function and str(schema.arguments[0].type) != "Tensor":  # of a list, or of text
            continue
        arguments = schema.arguments[0 if is_function else 1 :]
        defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
        made.append(([a.name for a in arguments if not a.kwarg_only], defaults))
    return made


def value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return UNKNOWN


def given_defaults(source: str) -> list[str]:
    """The calls in a file's classes with an argument that is torch's default: `F.relu(x, inplace=False)`."""
    found = []
    for definition in ast.parse(source).body:
        if isinstance(definition, ast.ClassDef):
            loading = [n for n in definition.body if isinstance(n, ast.FunctionDef) and n.name == "from_pretrained"]
            for method in loading:
                definition.body.remove(method)
                text = "\n".join(source.splitlines()[method.lineno - 1 : method.end_lineno])
                if text not in _LOADING:
                    _LOADING[text] = _calls(method)
                found += _LOADING[text]
            found += _calls(definition)
    return found


_LOADING: dict[str, list[str]] = {}  # what is found in `from_pretrained`, half of a small file and the same in many


def _calls(tree: ast.AST) -> list[str]:
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _says_default(node, node.func)
    ]


def _says_default(call: ast.Call, function: ast.Attribute) -> bool:
    """By any of the overloads that have all its keywords."""
    text = ast.unparse(function)
    is_function = text.startswith(("nn.", "F.", "torch."))
    given = {k.arg: value(k.value) for k in call.keywords if k.arg}
    for positional, defaults in signatures(text if is_function else function.attr):
        if not given.keys() <= {*positional, *defaults} or len(call.args) > len(positional):
            continue
        same = [name for name, v in given.items() if name in defaults and _equal(v, defaults[name])]
        if call.args and not call.keywords and not isinstance(call.args[-1], ast.Starred):
            last = positional[len(call.args) - 1]
            if last in defaults and _equal(value(call.args[-1]), defaults[last]):
                same += [last] if (function.attr, last) not in WRITTEN else []
        if same:
            return True
    return False


def _equal(given: Any, default: Any) -> bool:
    return given is not UNKNOWN and type(given) is type(default) and bool(given == default)
