"""Binds a node's inputs and attributes to the parameters of its operator's function, by schema name.

The names are those of the schema at the node's own opset. An attribute that a later opset turned into an input has the
same name in both, so the function gets it as a constant input. An attribute that the function does not have is an error
unless its value is the default.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnx import defs

from onnxgen.common.names import printable
from onnxgen.errors import BUG, CHECK, WRITER, OnnxgenError, counted
from onnxgen.graph.annotations import TABLE_INPUTS
from onnxgen.graph.operators import Operator
from onnxgen.graph.schemas import NEWER_RUNTIME, plain, schema
from onnxgen.lowering.arg import Arg
from onnxgen.shapes.info import Info, info

if TYPE_CHECKING:
    from onnxgen.lowering.builder import Builder

MISSING = inspect.Parameter.empty
IGNORED_ATTRIBUTES = {"consumed_inputs"}  # opset 1 to 5: a hint which input's memory may be reused


@cache
def _input_names(operator: Operator, opset: int) -> tuple[tuple[str, bool], ...]:
    """Return (parameter name, is variadic) for each input of the node, in order."""
    found = schema(operator.domain, operator.name, opset)
    if found is None:
        named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        positional = [p for p in operator.parameters.values() if p.kind not in named]
        return tuple((p.name, p.kind is inspect.Parameter.VAR_POSITIONAL) for p in positional)
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    return tuple((operator.renames.get(i.name, i.name), i.option == variadic) for i in found.inputs)


@cache
def _defaults(domain: str, name: str, opset: int) -> dict[str, Any]:
    found = schema(domain, name, opset)
    if found is None:
        return {}
    return {
        key: ir.serde.deserialize_attribute(a.default_value).value
        for key, a in found.attributes.items()
        if a.default_value.name
    }


def as_input(builder: Builder, value: Any) -> Arg:
    """Return an attribute as the constant input that it is in later opsets."""
    array = np.asarray(value, np.float32 if np.asarray(value).dtype.kind == "f" else np.int64)
    return Arg(builder, Info(ir.DataType.from_numpy(array.dtype), array.shape, array))


def _bind_inputs(builder: Builder, operator: Operator) -> dict[str, Any]:
    tables = ((name, False) for name in TABLE_INPUTS.get(builder.node))
    names = (*_input_names(operator, builder.opset), *tables)
    bound: dict[str, Any] = {}
    for i, value in enumerate(builder.node.inputs):
        name, variadic = names[min(i, len(names) - 1)] if names else ("", False)
        if i >= len(names) and not variadic:
            raise _too_many(builder, operator, len(names))
        arg = None if value is None else Arg(builder, info(value), value, i)
        if variadic:
            bound.setdefault(name, []).append(arg)
        else:
            bound[name] = arg
    return bound


def _too_many(builder: Builder, operator: Operator, known: int) -> OnnxgenError:
    given, has_schema = len(builder.node.inputs), schema(operator.domain, operator.name, builder.opset) is not None
    if operator.plugin is None or has_schema:
        way_out = NEWER_RUNTIME if operator.domain and not has_schema else WRITER
        return builder.error(f"the node has {counted(given, 'input')}, but the schema has {known}", way_out)
    what = f"the node has {counted(given, 'input')}, but the function in plugin {operator.plugin.name} takes {known}"
    return builder.error(what, "give the function another parameter, or *more")


def bind(builder: Builder, operator: Operator) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and keyword arguments for calling the operator's function for this node."""
    parameters = operator.parameters
    bound = _bind_inputs(builder, operator)
    given = {k: plain(a.value) for k, a in builder.node.attributes.items()}
    for name, default in _defaults(operator.domain, operator.name, builder.opset).items():
        given.setdefault(name, plain(default))
    rest = next((p.name for p in parameters.values() if p.kind is inspect.Parameter.VAR_KEYWORD), None)
    others: dict[str, Any] = {}  # for the **attributes of a plugin's function
    for name, value in given.items():
        name = operator.renames.get(name, name)
        parameter = parameters.get(name)
        if name in IGNORED_ATTRIBUTES:
            continue
        if rest is not None and (parameter is None or name == rest):
            others[name] = value
        elif parameter is None:
            _refuse_unknown(builder, operator, name, value)
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            bound[name] = value
        elif bound.get(name) is None:
            bound[name] = as_input(builder, value)
    for name in [n for n in bound if n not in parameters]:
        if bound.pop(name) is not None:
            raise builder.error(f"input {name!r} is not handled", BUG)
    positional, keywords = _arguments(builder, parameters, bound)
    return positional, {**keywords, **others}


def _refuse_unknown(builder: Builder, operator: Operator, name: str, value: Any) -> None:
    """Raise an error for an attribute that the function does not have, unless its value is the default.

    If this opset of ai.onnx has no such operator, an unknown attribute has no meaning. onnxruntime runs the node and
    ignores the attribute; so do we, with a note. In its own domains onnxruntime refuses attributes that its schema does
    not have, so an unknown one is from a newer version and has a meaning.
    """
    if schema(operator.domain, operator.name, builder.opset) is None:
        if operator.plugin is not None:
            what = f"attribute {name!r} is no parameter of the function in plugin {operator.plugin.name}"
            raise builder.error(what, "give the function a keyword of that name (see renames=), or **attributes")
        if operator.domain:
            raise builder.error(f"attribute {printable(name)!r} is not handled", NEWER_RUNTIME)
        builder.note(f"attribute {printable(name)} of {operator.name} has no meaning at opset {builder.opset}: ignored")
        return
    default = _defaults(operator.domain, operator.name, builder.opset).get(name, MISSING)
    if default is MISSING or plain(default) != value:
        raise builder.error(f"attribute {name!r} with this value is not handled", BUG)


def _arguments(
    builder: Builder, parameters: dict[str, inspect.Parameter], bound: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for parameter in parameters.values():
        value = bound.get(parameter.name)
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            positional.extend(value or [])
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        if value is None:
            value = None if parameter.default is MISSING else parameter.default
            if parameter.default is MISSING and not str(parameter.annotation).endswith("| None"):
                way_out = f"give {parameter.name} a default if it may be left out" if builder.plugin else CHECK
                raise builder.error(f"{parameter.name!r} is missing", way_out)
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            keywords[parameter.name] = value
        else:
            positional.append(value)
    return positional, keywords
