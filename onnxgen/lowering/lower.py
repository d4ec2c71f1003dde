"""Lower an ONNX graph to one flat `ModuleDef`, by calling the operator's function for each node.

`lowering.builder` has what these functions may ask for. This module knows no operator.

`bind` binds a node's inputs and attributes to the parameters of its operator's function, by schema
name. The names are those of the schema at the node's own opset. An attribute that a later opset
turned into an input has the same name in both, so the function gets it as a constant input. An
attribute that the function does not have is an error unless its value is the default.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import defs

from onnxgen.code.copied import OwnCode
from onnxgen.code.module_def import (
    Assign,
    If,
    Input,
    Loop,
    ModuleDef,
    Statement,
    With,
    argument_annotation,
    expressions,
    makers,
    shown,
    used,
)
from onnxgen.code.quote import DeviceOf, MemberRef, Ref, literal, quote, refs
from onnxgen.common.names import FileText, ModulePath, Variable, class_name, printable, unscoped
from onnxgen.errors import BUG, CHECK, FIX_SHAPE, WRITER, OnnxgenError, Problems, WrongTranslation, counted, failed
from onnxgen.graph import operators as registry
from onnxgen.graph.annotations import CLASSES, FOUND_CLASSES, KEPT, REFUSED, TABLE_INPUTS, VARIABLES, is_trained
from onnxgen.graph.nodes import NEWER_RUNTIME, all_nodes, opset_of, plain, schema
from onnxgen.graph.operators import Operator, is_a
from onnxgen.graph.traits import SCALES
from onnxgen.lowering.builder import Arg, Builder, Unpack, lowered
from onnxgen.lowering.constants import write_fills
from onnxgen.lowering.dynamic_sizes import free_rows, resize_as_joined
from onnxgen.lowering.from_sizes import Sized, moved
from onnxgen.lowering.members import Members, is_named_buffer
from onnxgen.lowering.parameter import is_repeated, role_in_integers
from onnxgen.lowering.roles import find_roles
from onnxgen.lowering.unsupported import UNSUPPORTED, WAYS_OUT, Open
from onnxgen.options import Options
from onnxgen.shapes.dims import TooComplex
from onnxgen.shapes.info import Info, info, named_dims, shown_dims
from onnxgen.weights.stored import Views, folded_from, stored


def lower(model: ir.Model, options: Options, name: str) -> ModuleDef:
    """Return one flat class that computes what the graph computes.

    Raises:
        OnnxgenError: some nodes cannot be lowered. It reports all of them.
    """
    state = Lowering(model, options)
    graph = model.graph
    inputs = [state.argument(value) for value in graph.inputs if value not in state.initialized]
    state.run(graph)
    for problem in state.open.merged_problems():
        state.problems.add(problem)
    state.problems.raise_if_any()
    outputs = [state.result(value) for value in graph.outputs]
    state.problems.raise_if_any()
    where = shown(inputs, state.block, state.infos)
    arguments, returned = [argument.value for argument in inputs], [r for o in outputs for r in refs(o)]
    body = live(state.block, [*returned, *makers(outputs, where)], where)
    write_fills(body, state.members.written, state.infos, state.fresh, arguments)
    resize_as_joined(body, state.infos, arguments)
    free_rows(body, state.infos, arguments, returned)
    state.members.share(body)
    outputs = state.members.read_inside(body, outputs)
    find_roles(body, state.infos, state.roles, outputs)
    members = state.members.finish(body, outputs)
    ties = state.members.sharing.ties(members)
    state.notes += state.members.sharing.notes()
    stubs = state.open.finish(members, state.notes)
    name = options.class_name or class_name(name)
    if name in state.own.names:
        raise OnnxgenError(
            f"the network and a name of a plugin are both called {name}",
            help="give the class another name with --class-name",
        )
    named = {r.value: FileText(unscoped(v.name or "")) for v, r in zip(graph.outputs, outputs) if isinstance(r, Ref)}
    return ModuleDef(
        name, members, inputs, outputs, body, state.infos, state.hints, state.members.constants,
        ties, dict(CLASSES.get(model)), state.notes, state.roles, state.members.prefix,
        own=state.own, stubs=stubs, found_classes=FOUND_CLASSES.get(model), results=named,
        variables=state.variables,
    )  # fmt: skip


class Lowering:
    """The state of one network while it is lowered.

    Attributes:
        block: the current (innermost) block of statements.
        infos, hints, variables: what is known of each value, its name in the file, and in the author's source.
        members: what `__init__` will register.
        views: how values are made of stored tensors.
        sized: the tensors that Python computes from sizes, of which no tensor is made before one is needed.
    """

    def __init__(self, model: ir.Model, options: Options) -> None:
        self.model, self.options = model, options
        self.initialized = set(model.graph.initializers.values())
        self.block: list[Statement] = []
        self.infos: dict[str, Info] = {}
        self.hints: dict[str, FileText] = {}
        self.variables: dict[str, Mapping[ModulePath, Variable]] = {}
        self.members = Members(model, options)
        self.problems = Problems()
        self.notes: list[str] = []
        self.roles: dict[str, str] = {}
        self.own = OwnCode()
        self.open = Open()
        self._counts: dict[str, int] = {}  # number of values by hint, so that `fresh` need not try all names
        self._exprs: dict[ir.Value, ast.expr] = {}
        self.sized: dict[ir.Value, Sized] = {}
        self.views = Views(model, options)
        self._sizes: set[str] | None = None  # named dims of used values; computed on demand

    # values

    def fresh(self, hint: str, known: Info | None = None) -> str:
        """Return a new value id."""
        name, n = hint, self._counts.get(hint, 1)
        while name in self.infos:
            n += 1
            name = f"{hint}%{n}"
        self._counts[hint] = n
        self.infos[name] = known or Info()
        self.hints[name] = FileText(unscoped(hint))
        return name

    def define(self, value: ir.Value) -> str:
        """Return the id under which a graph value is assigned."""
        name = self.fresh(value.name or "x", info(value))
        self.variables[name] = VARIABLES.get(self.model).get(value.name or "", {})
        self._exprs[value] = Ref(name)
        return name

    def argument(self, value: ir.Value) -> Input:
        return Input(self.define(value), argument_annotation(info(value)))

    def result(self, value: ir.Value) -> ast.expr:
        builder = Builder(self, ir.Node("", "Output", [value]), 0)
        return self.tensor(Arg(builder, info(value), value))

    def tensor(self, arg: Arg) -> ast.expr:
        """Return the expression of a value as a tensor: a local, a parameter, a buffer, or a tensor of sizes."""
        if arg.value is not None and arg.value in self._exprs:
            return self._exprs[arg.value]
        if arg.value is not None and is_trained(arg.value):
            return self.members.parameter(arg)
        if (sizes := self._sizes_of(arg)) is not None:
            return quote("torch.tensor(v, dtype=d, device=dev)", v=sizes, d=arg.dtype, dev=DeviceOf())
        if arg.value is not None and (is_named_buffer(arg.value) or role_in_integers(arg.value)):
            return self.members.stored_buffer(arg)
        array = arg.constant
        if array is None:
            raise arg.builder.error(f"input {printable(arg.name)} was never computed", BUG)
        hint = folded_from(arg.value) if arg.value is not None else ""
        if is_repeated(arg.value):
            array = array[:1]
            hint = "scale" if is_a(arg.builder.node, SCALES) else hint
        return arg.builder.buffer(array, hint or arg.name, arg.dtype)

    def _sizes_of(self, arg: Arg) -> ast.expr | None:
        """Return the elements of a value that is computed from sizes, as nested lists."""
        if arg.value is not None and arg.value in self.sized:
            return self.sized[arg.value].listed()
        is_known = arg.info.data is not None and arg.info.data.dtype == object and arg.info.constant is None
        return literal(np.asarray(arg.info.data).tolist()) if is_known else None

    # nodes

    def run(self, graph: ir.Graph) -> None:
        """Lower every node of a graph into the current block."""
        for node in graph:
            if all(self._known(output) for output in node.outputs):
                continue
            opset = opset_of(node, self.model)
            builder = Builder(self, node, opset)
            try:
                self._node(builder)
                continue
            except TooComplex as error:
                self.problems.add(builder.problem(str(error), FIX_SHAPE))
            except OnnxgenError as error:
                is_used = any(map(_is_used, node.outputs))  # otherwise at most its shape is used
                for problem in error.problems if is_used else ():
                    self.problems.add(problem)
            except WrongTranslation:
                raise
            except Exception as error:  # functions take for granted that a node makes sense
                self.problems.add(builder.problem(failed(error), BUG))
            for output in node.outputs:  # later nodes may use them
                self.define(output)

    def _known(self, output: ir.Value) -> bool:
        """Return True if there is nothing to compute: the output is unused or stored, or its elements are known.

        An output that the original's state dict has as a buffer is computed all the same.
        """
        if not output.name or not self.is_wanted(output):
            return True
        if KEPT.get(output) and output.producer() is not None and stored(output) is None:
            return False
        return info(output).data is not None or stored(output) is not None

    def is_wanted(self, output: ir.Value) -> bool:
        """Return True if anything uses a node's output, or a dim that it has."""
        if _is_used(output):
            return True
        names = shown_dims(output)
        if names and self._sizes is None:
            values = {v for node in all_nodes(self.model.graph) for v in node.inputs if v is not None}
            self._sizes = {name for v in (*values, *self.model.graph.outputs) for name in named_dims(v)}
        return bool(self._sizes and self._sizes.intersection(names))

    def _node(self, builder: Builder) -> None:
        operator = registry.find(builder.node.domain, builder.node.op_type, builder.opset)
        if operator is None:
            self._without_function(builder)
            return
        builder.plugin = operator.plugin
        positional, keywords = bind(builder, operator)
        result: Any
        if (moved_elements := moved(builder.node, builder.opset, builder.inputs())) is not None:
            result = moved_elements
        elif operator.plugin is not None:
            self.own.has_calls = True
            result = lowered(builder, operator.plugin, lambda: operator.function(builder, *positional, **keywords))
        else:
            result = operator.function(builder, *positional, **keywords)
        self._assign(builder, result)

    def _without_function(self, b: Builder) -> None:
        """Call a stub method (`--allow-unsupported`), or record a problem that all nodes of the operator share."""
        if self.options.allow_unsupported:
            self._assign(b, self.open.call(b))
            return
        if any(map(_is_used, b.node.outputs)):
            self.open.refuse(b.problem(*REFUSED.get(b.node) or (UNSUPPORTED, WAYS_OUT)))
        for output in b.node.outputs:
            self.define(output)

    def _assign(self, b: Builder, result: Any) -> None:
        if isinstance(result, Unpack) and result.count == 1:
            result = quote("x[0]", x=result.value)
        if isinstance(result, Unpack):
            targets = [self.define(o) if o.name else self.fresh("unused") for o in b.node.outputs[: result.count]]
            targets += [self.fresh("unused") for _ in range(result.count - len(targets))]
            b.emit(Assign(tuple(targets), result.value, b.scope, b.nodes, result.form))
            return
        values, outputs = result if isinstance(result, list) else [result], b.node.outputs
        if any(map(_is_used, outputs[len(values) :])):  # a branch or a body may have fewer than its node
            raise b.error(f"the node has {counted(len(outputs), 'output')}, but {len(values)} are computed", BUG)
        for output, value in zip(outputs, values):
            if value is not None and output.name:
                self._assign_one(b, output, value)

    def _assign_one(self, b: Builder, output: ir.Value, value: ast.expr | Sized) -> None:
        if isinstance(value, Sized):
            self.sized[output] = value
            if not shown_dims(output):  # else the rank of a tensor may be used as a size
                return
            value = self.tensor(Arg(b, info(output), output))
        elif isinstance(value, (Ref, MemberRef)):  # the output is that value: no assignment
            self._exprs[output] = value
            if isinstance(value, Ref):
                self._adopt(value.value, output)
            return
        b.emit(Assign((self.define(output),), value, b.scope, b.nodes))

    def _adopt(self, name: str, output: ir.Value) -> None:
        """Give the output's facts and name to a value that an operator's function named."""
        if self.infos[name] == Info():
            self.infos[name] = info(output)
            self.hints[name] = FileText(unscoped(output.name or name))
        self.variables.setdefault(name, VARIABLES.get(self.model).get(output.name or "", {}))

    def subgraph(self, graph: ir.Graph, inputs: list[ast.expr]) -> tuple[list[Statement], list[ast.expr]]:
        """Lower a subgraph, whose inputs stand for the given expressions. Returns its statements and outputs."""
        self._exprs.update(zip(graph.inputs, inputs))
        block: list[Statement] = []
        with self.writing(block):
            self.run(graph)
            return block, [self.result(value) for value in graph.outputs]

    @contextmanager
    def writing(self, block: list[Statement]) -> Iterator[None]:
        """Let this be the current block inside the `with`."""
        outer, self.block = self.block, block
        try:
            yield
        finally:
            self.block = outer


def _is_used(output: ir.Value) -> bool:
    return bool(output.uses()) or output.is_graph_output()


def live(block: list[Statement], wanted: list[str], where: Mapping[str, str]) -> list[Statement]:
    """Return the statements that the wanted values need, nested blocks included, in order (`where`: see `shown`)."""
    needed = set(wanted)
    kept: list[Statement] = []
    for statement in reversed(block):
        if statement.targets and not needed.intersection(statement.targets):
            continue
        if isinstance(statement, If):
            statement.then = live(statement.then, [t for t in statement.targets if t in needed], where)
            statement.orelse = live(statement.orelse, [t for t in statement.targets if t in needed], where)
            statement.targets = tuple(t for t in statement.targets if t in needed)
        elif isinstance(statement, Loop):
            inside = {n for s in statement.body for n in used(s)}
            statement.body = live(statement.body, [*statement.targets, *inside.intersection(needed)], where)
        elif isinstance(statement, With):
            statement.body = live(statement.body, list(statement.targets), where)
        needed.update(used(statement))
        needed.update(makers(expressions(statement), where))
        kept.append(statement)
    return kept[::-1]


MISSING = inspect.Parameter.empty
IGNORED_ATTRIBUTES = {"consumed_inputs"}  # opset 1 to 5: a hint which input's memory may be reused


@cache
def _input_names(operator: Operator, opset: int) -> tuple[tuple[str, bool], ...]:
    """Return (parameter name, is variadic) for each input of the node, in order."""
    operator_schema = schema(operator.domain, operator.name, opset)
    if operator_schema is None:
        named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        positional = [p for p in operator.parameters.values() if p.kind not in named]
        return tuple((p.name, p.kind is inspect.Parameter.VAR_POSITIONAL) for p in positional)
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    return tuple((operator.renames.get(i.name, i.name), i.option == variadic) for i in operator_schema.inputs)


@cache
def _defaults(domain: str, name: str, opset: int) -> dict[str, Any]:
    operator_schema = schema(domain, name, opset)
    if operator_schema is None:
        return {}
    return {
        key: ir.serde.deserialize_attribute(a.default_value).value
        for key, a in operator_schema.attributes.items()
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
    count, has_schema = len(builder.node.inputs), schema(operator.domain, operator.name, builder.opset) is not None
    if operator.plugin is None or has_schema:
        way_out = NEWER_RUNTIME if operator.domain and not has_schema else WRITER
        return builder.error(f"the node has {counted(count, 'input')}, but the schema has {known}", way_out)
    what = f"the node has {counted(count, 'input')}, but the function in plugin {operator.plugin.name} takes {known}"
    return builder.error(what, "give the function another parameter, or *more")


def bind(builder: Builder, operator: Operator) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and keyword arguments for calling the operator's function for this node."""
    parameters = operator.parameters
    bound = _bind_inputs(builder, operator)
    rest = next((p.name for p in parameters.values() if p.kind is inspect.Parameter.VAR_KEYWORD), None)
    others: dict[str, Any] = {}  # for the **attributes of a plugin's function
    for name, value in _attributes(builder, operator).items():
        parameter = parameters.get(name)
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


def _attributes(builder: Builder, operator: Operator) -> dict[str, Any]:
    """Return a node's attributes, with the defaults of the schema, by the names of the function's parameters."""
    defaults = _defaults(operator.domain, operator.name, builder.opset)
    attributes = {k: plain(a.value) for k, a in builder.node.attributes.items()}
    attributes |= {k: plain(default) for k, default in defaults.items() if k not in attributes}
    renamed = {operator.renames.get(name, name): value for name, value in attributes.items()}
    return {name: value for name, value in renamed.items() if name not in IGNORED_ATTRIBUTES}


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
