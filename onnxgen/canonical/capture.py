"""From a module to terms: `torch.export` follows the module's Python on sizes without values, and each operator that it
called becomes a term.

Source of the operators' meaning: their pages in torch's documentation, and their schemas.
"""

from __future__ import annotations

import inspect
import logging
import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field, replace
from io import StringIO
from typing import Any

import sympy
import torch
from torch import Tensor, nn
from torch.export import Dim, export
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node
from torch.fx.experimental import _config as config

from onnxgen.canonical import arranging, layers, pooling, recurrent
from onnxgen.canonical.algebra import Algebra
from onnxgen.canonical.arranging import constant as constant
from onnxgen.canonical.deciding import decided
from onnxgen.canonical.equations import replaced, solved, symbol
from onnxgen.canonical.rules import NotFollowed, Result, add, apply, dtype_name
from onnxgen.canonical.terms import Shape, Term, plain, without_ones
from onnxgen.canonical.undivided import MEANT

RULES = (arranging, layers, pooling, recurrent)  # importing them registers their rules
HIDDEN = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "copy"})


@dataclass(frozen=True)
class Followed:
    """What `torch.export` made of a module.

    Attributes:
        program: the `ExportedProgram`.
        guards: what the module's Python asked of the sizes, with inputs by number.
        is_functional: whether what it writes in place was taken apart.
        decided: how the questions about values of tensors were answered; these tensors are among the outputs.
    """

    program: Any
    guards: frozenset[str]
    is_functional: bool = False
    decided: tuple[bool, ...] = ()


@dataclass
class Captured:
    """What a module computes.

    Attributes:
        outputs: the terms that `forward` returns, in order.
        changed: the buffers that it changes, each with its new value.
        inputs: the shapes of the inputs.
        ranges: for each free size of the inputs, the lowest and highest that the module takes.
        guards: what else it asks of the sizes.
        structure: tuples, lists and dicts that the outputs are in.
        leaves: parameters and buffers by path.
        places: each term, with the operator that first made it, in the order of execution.
        equal: sizes, each with what it is in others, by the guards.
    """

    outputs: tuple[Any, ...] = ()
    changed: dict[str, Any] = field(default_factory=dict)
    inputs: list[Shape] = field(default_factory=list)
    ranges: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    guards: frozenset[str] = frozenset()
    structure: str = ""
    leaves: dict[str, Term] = field(default_factory=dict)
    places: list[tuple[Term, Node]] = field(default_factory=list)
    equal: Mapping[Any, Any] = field(default_factory=dict)


def exported(
    module: nn.Module,
    arguments: Sequence[Tensor],
    free: Sequence[Sequence[int]],
    names: Sequence[str] = (),
    asks: bool = False,
    answers: Sequence[bool] | None = None,
) -> Followed:
    """Follow a module with `torch.export`.

    Args:
        arguments: an example.
        free: for each argument, the axes of any size.
        names: of the arguments, where they are passed by name.
        asks: whether it may ask if a size is 0 or 1. Then that is a guard; else such sizes are no others.
        answers: to what it asks of the values of tensors, in order; after them, True. None: it may ask nothing, since
            one path says nothing of the others.
    """
    dynamic: Any = tuple(dict.fromkeys(axes, Dim.AUTO) for axes in free)
    keywords = dict(zip(names, arguments, strict=True)) if names else None
    if names:
        arguments, dynamic = (), dict(zip(names, dynamic, strict=True))
    with warnings.catch_warnings(), _quiet(), config.patch(backed_size_oblivious=asks), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        try:
            wrapped = (dynamic,) if not names and _takes_star(module) else dynamic
            with decided(module, answers) as decisions:
                program = export(module, tuple(arguments), keywords, dynamic_shapes=wrapped, strict=False)
        except NotFollowed:
            raise
        except Exception as error:
            raise NotFollowed(f"torch.export does not follow it: {_line(error)}") from error
    followed = Followed(program, _guards(module, program), decided=tuple(decisions.answers or ()))
    graphs = [part.graph for part in program.graph_module.modules() if isinstance(part, GraphModule)]
    writes = any(_mutates(node) and not counts(node) for graph in graphs for node in graph.nodes)
    return functional(followed) if writes else followed


def functional(followed: Followed) -> Followed:
    """Return a program in which nothing is written in place."""
    if followed.is_functional:
        return followed
    program = followed.program
    graphs = [part.graph for part in program.graph_module.modules() if isinstance(part, GraphModule)]
    if len(graphs) > 1 or any(isinstance(n.target, torch._ops.HigherOrderOperator) for n in program.graph.nodes):
        raise NotFollowed("torch.no_grad beside an operator that writes in place")
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        try:
            return replace(followed, program=program.run_decompositions({}), is_functional=True)
        except Exception as error:
            raise NotFollowed(f"torch does not take apart what is written in place: {_line(error)}") from error


def counts(node: Node) -> bool:
    """Whether an operator adds to a buffer that nothing else reads: it counts the batches of a norm."""
    if node.target is not torch.ops.aten.add_.Tensor or node.users:
        return False
    buffer = node.args[0]
    return isinstance(buffer, Node) and buffer.op == "placeholder" and len(buffer.users) == 1


def still_free(followed: Followed) -> list[list[int]]:
    """Return, for each input of a program, the axes that have any size."""
    found, program = [], followed.program
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    for spec, node in zip(program.graph_signature.input_specs, nodes, strict=True):
        value = node.meta.get("val")
        if spec.kind is InputKind.USER_INPUT:
            sizes = value.shape if isinstance(value, Tensor) else ()
            found.append([axis for axis, size in enumerate(sizes) if not isinstance(size, int)])
    return found


def _guards(module: nn.Module, program: Any) -> frozenset[str]:
    """Return what a program asks of sizes, with inputs by number."""
    texts = program._guards_code or []
    for number, name in enumerate(inspect.signature(module.forward).parameters):
        texts = [text.replace(f"L['{name}']", f"L[{number}]") for text in texts]
    return frozenset(map(_sorted, texts))


def _sorted(guard: str) -> str:
    """Return an equation with its sides in order."""
    for sign in (" == ", " != "):
        sides = guard.split(sign)
        if len(sides) == 2:
            return sign.join(sorted(sides))
    return guard


def _takes_star(module: nn.Module) -> bool:
    kinds = [p.kind for p in inspect.signature(module.forward).parameters.values()]
    return kinds == [inspect.Parameter.VAR_POSITIONAL]


@contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _mutates(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


class Reader:
    """Reads an exported program as terms."""

    def __init__(
        self,
        terms: Algebra,
        followed: Followed,
        leaves: Mapping[str, Term | str],
        equal: Mapping[Any, Any] | None = None,
    ) -> None:
        """`leaves`: of a parameter or buffer, the term that it is, or the name of its leaf (default: its own path).

        `equal`: sizes that are others (default: those that this program's guards make equal).
        """
        self.terms, self.program, self.leaves = terms, followed.program, leaves
        self.symbols: dict[Any, Any] = {}
        self.random: dict[Any, int] = {}
        self.effects: dict[Any, int] = {}
        self.tied: dict[Any, str] = {}
        self.memory: dict[int, tuple[Any, str]] = {}
        self.equal = equal
        self.result = Captured(guards=followed.guards)

    def read(self) -> Captured:
        graph = self.program.graph
        self._name_sizes()
        if self.equal is None:
            self.equal = self._equal_sizes() if self.terms.thorough else {}
        self.result.equal = self.equal
        values = self._inputs()
        output = self._run(graph, values)
        signature = self.program.graph_signature.output_specs
        plain_outputs = []
        for spec, value in zip(signature, output, strict=True):
            if spec.kind is OutputKind.USER_OUTPUT:
                plain_outputs.append(value)
            elif spec.kind is OutputKind.BUFFER_MUTATION:
                self.result.changed[spec.target] = value
            else:
                raise NotFollowed(f"it changes its {spec.kind.name.lower()}")
        self.result.outputs = tuple(plain_outputs)
        self.result.structure = str(self.program.call_spec.out_spec)
        self._ranges()
        return self.result

    # ---- sizes -------------------------------------------------------------------------------------------------------

    def _name_sizes(self) -> None:
        number = 0
        for spec, node in zip(self.program.graph_signature.input_specs, self._placeholders(), strict=True):
            if spec.kind is not InputKind.USER_INPUT:
                continue
            value = node.meta.get("val")
            for axis, size in enumerate(value.shape if isinstance(value, Tensor) else ()):
                expression = getattr(getattr(size, "node", None), "expr", None)
                if isinstance(expression, sympy.Symbol):
                    name = symbol(f"input{number}_{axis}")
                    self.symbols.setdefault(expression, name)
            number += 1

    def _equal_sizes(self) -> dict[Any, Any]:
        """Return what the guards make equal."""
        found: list[Any] = [n.meta.get("val") for n in self._placeholders()]
        sizes: list[Any] = [size for value in found if isinstance(value, Tensor) for size in value.shape]
        known = next((s.node.shape_env for s in sizes if isinstance(s, torch.SymInt)), None)
        guards = [guard.expr.xreplace(self.symbols) for guard in known.guards] if known is not None else []
        equations = [g for g in guards if isinstance(g, sympy.Eq) and g.free_symbols <= {*self.symbols.values()}]
        return solved(equations)

    def _placeholders(self) -> list[Node]:
        return [node for node in self.program.graph.nodes if node.op == "placeholder"]

    def size(self, value: Any) -> Any:
        """Return a size in terms of the inputs' sizes."""
        if isinstance(value, (bool, float, int)):
            return value
        node = getattr(value, "node", None)
        if node is None:
            return value
        expression = node.expr
        if not expression.free_symbols <= self.symbols.keys():
            raise NotFollowed("a size that depends on values")
        named = expression.xreplace(self.symbols)
        return plain(replaced(named, self.equal) if self.equal else named)

    def shape(self, value: Tensor) -> Shape:
        return tuple(self.size(size) for size in value.shape)

    def _ranges(self) -> None:
        for size, bounds in self.program.range_constraints.items():
            if size in self.symbols:
                self.result.ranges[str(self.symbols[size])] = (max(bounds.lower, 1), bounds.upper)

    # ---- values ------------------------------------------------------------------------------------------------------

    def _inputs(self) -> dict[Node, Any]:
        values: dict[Node, Any] = {}
        number = 0
        state = self.program.state_dict
        for spec, node in zip(self.program.graph_signature.input_specs, self._placeholders(), strict=True):
            value = node.meta.get("val")
            if spec.kind is InputKind.USER_INPUT:
                if isinstance(value, Tensor):
                    shape = self.shape(value)
                    values[node] = self.terms.term("input", (number,), shape, dtype_name(value.dtype))
                    self.result.inputs.append(shape)
                else:
                    values[node] = value
                number += 1
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                tensor = state.get(spec.target)
                tensor = self.program.constants[spec.target] if tensor is None else tensor
                values[node] = self._leaf(spec.target, tensor, spec.kind is InputKind.PARAMETER, spec.persistent)
            elif spec.kind is InputKind.CONSTANT_TENSOR:
                values[node] = self.constant(self.program.constants[spec.target])
            else:
                raise NotFollowed(f"an input of kind {spec.kind.name.lower()}")
        return values

    def _leaf(self, path: str, tensor: Tensor, is_parameter: bool, persistent: bool | None) -> Term:
        known = self.leaves.get(path, path)
        if not isinstance(known, Term) and not is_parameter and persistent is False:
            return self.constant(tensor)
        kind = "parameter" if is_parameter and tensor.requires_grad else "frozen"
        form = (kind, tuple(tensor.shape), dtype_name(tensor.dtype))
        self._need_its_own(path, tensor)
        tied = self.tied.setdefault((*form, tensor.data_ptr()), path) if tensor.numel() else path
        if tied != path:
            self.result.leaves[path] = self.result.leaves[tied]
            return self.result.leaves[tied]
        if isinstance(known, Term):
            if (known.op, without_ones(known.shape), known.dtype) == (kind, without_ones(form[1]), form[2]):
                self.result.leaves[path] = known
                return self.terms.reshaped(known, form[1])
            known = path
        term = self.terms.term(kind, (known,), *form[1:])
        self.result.leaves[path] = term
        return term

    def _need_its_own(self, path: str, tensor: Tensor) -> None:
        """Raises `NotFollowed` if another parameter or buffer lies in the same memory, and is no whole copy of it."""
        if tensor.is_meta or not tensor.numel():
            return
        memory = tensor.untyped_storage().data_ptr()
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        known, other = self.memory.setdefault(memory, (place, path))
        if known != place:
            raise NotFollowed(f"{path} and {other} share their memory")

    def constant(self, tensor: Tensor) -> Term:
        """Return the term of known elements."""
        return constant(self.terms, tensor)

    # ---- operators ---------------------------------------------------------------------------------------------------

    def _run(self, graph: Any, values: dict[Node, Any]) -> Sequence[Any]:
        for node in graph.nodes:
            if node.op == "output":
                return self._value(node.args[0], values)  # type: ignore[no-any-return]
            if node.op == "get_attr":
                values[node] = node
            elif node.op == "call_function" and counts(node):
                self._count(node, values)
            elif node.op == "call_function":
                values[node] = self._called(node, values)
                for term in _flat(values[node]):
                    self.result.places.append((term, node))
        raise NotFollowed("a graph without outputs")

    def _count(self, node: Node, values: Mapping[Node, Any]) -> None:
        """Note the new value of a buffer that an operator adds to."""
        places = zip(self.program.graph_signature.input_specs, self._placeholders(), strict=True)
        spec = next(spec for spec, place in places if place is node.args[0])
        if spec.kind is not InputKind.BUFFER:
            raise NotFollowed(f"it changes its {spec.kind.name.lower()}")
        buffer, step = (self._value(argument, values) for argument in node.args[:2])
        new = add(self.terms, Result(buffer.shape, buffer.dtype), buffer, step, node.kwargs.get("alpha", 1))
        if not isinstance(new, Term):
            raise NotFollowed("a buffer that it changes")
        self.result.changed[spec.target] = new

    def _value(self, value: Any, values: Mapping[Node, Any]) -> Any:
        if isinstance(value, Node):
            return values[value]
        if isinstance(value, (list, tuple)):
            return tuple(self._value(v, values) for v in value)
        return value

    def _called(self, node: Node, values: Mapping[Node, Any]) -> Any:
        target = MEANT.get(node.target, node.target)
        arguments = [self._value(a, values) for a in node.args]
        if target is operator.getitem:
            return self._item(arguments[0], arguments[1], node)
        result = node.meta.get("val")
        if result is not None and not isinstance(result, (Tensor, tuple, list)):
            return self.size(result)
        if isinstance(target, torch._ops.HigherOrderOperator):
            return self._without_gradient(node, arguments)
        if not isinstance(target, torch._ops.OpOverload):
            raise NotFollowed(f"{target}")
        keywords = {k: self._value(v, values) for k, v in node.kwargs.items() if k not in HIDDEN}
        given = self._bound(target, arguments, keywords)
        return apply(self.terms, self, target, given, self._results(result))

    def _bound(self, target: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
        """Return all arguments in the order of the schema, without those that say where and how a result is stored."""
        bound = []
        for number, argument in enumerate(target._schema.arguments):
            if argument.name in HIDDEN:
                continue
            if number < len(arguments):
                bound.append(arguments[number])
            elif argument.name in keywords:
                bound.append(keywords[argument.name])
            else:
                bound.append(argument.default_value if argument.has_default_value() else None)
        return [tuple(b) if isinstance(b, list) else b for b in bound]

    def _results(self, value: Any) -> list[Result]:
        values = value if isinstance(value, (tuple, list)) else [value]
        return [
            Result(self.shape(v), dtype_name(v.dtype)) if isinstance(v, Tensor) else Result((), "float32")
            for v in values
        ]

    def _item(self, whole: Any, number: Any, node: Node) -> Any:
        if isinstance(whole, tuple):
            return whole[number]
        value = node.meta["val"]
        if not isinstance(value, Tensor):
            return self.size(value)
        return self.terms.term("item", (whole, number), self.shape(value), dtype_name(value.dtype))

    def _without_gradient(self, node: Node, arguments: Sequence[Any]) -> Any:
        if node.target.__name__ != "wrap_with_set_grad_enabled":
            raise NotFollowed(node.target.__name__)
        enabled, part, *operands = arguments
        inner = getattr(node.graph.owning_module, part.target).graph
        places = [n for n in inner.nodes if n.op == "placeholder"]
        outputs = self._run(inner, dict(zip(places, operands, strict=True)))
        if enabled:
            return tuple(outputs)
        return tuple(self.terms.term("detach", (o,), o.shape, o.dtype) if isinstance(o, Term) else o for o in outputs)

    def effect(self, term: Any) -> None:
        """Note what changes a buffer beside its result, as often as it is computed."""
        self.effects[term] = self.effects.get(term, 0) + 1
        self.result.changed["running statistics"] = frozenset(self.effects.items())

    def occurrence(self, key: Any) -> int:
        """Return how often random numbers were drawn for this before."""
        self.random[key] = self.random.get(key, -1) + 1
        return self.random[key]


def read(
    terms: Algebra, followed: Followed, leaves: Mapping[str, Term | str], equal: Mapping[Any, Any] | None = None
) -> Captured:
    """Return an exported program as terms. For the arguments, see `Reader`.

    Raises:
        NotFollowed: it can't be brought to terms.
    """
    try:
        return Reader(terms, followed, leaves, equal).read()
    except NotFollowed:
        raise
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        raise NotFollowed(f"it can't be brought to terms: {type(error).__name__}: {error}") from error


def _flat(value: Any) -> Iterator[Term]:
    if isinstance(value, Term):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _flat(item)
