"""The registry of operators: the function that lowers each, by opset, and what its card declares.

An operator is one small function with the parameters of its ONNX schema: inputs first, then attributes, keyword-only.
An operator has a second function only if its meaning changed. `find` returns the newest one that is not newer than the
model's opset.

`op` only notes a function in its module. A *layer* is a table of the functions of some modules. onnxgen's own families
make one. The plugins of a generation make another, which is searched first and dropped after the generation (see
`onnxgen.plugins`).

*Cards.* `known` and `is_a` look up, by node, what `@op(...)` declares. The operators' modules are imported at the first
lookup, not before: they import the modules that look facts up. The bundled plugins are imported when an operator is
none of `onnxgen.ops`.

*Bodies.* A function with `body=True` writes nodes in the operator's place (`passes.contrib`), not source. `find` does
not return it; `body_of` does.

*Gradients.* A card says through which inputs no gradient flows, with the reason (`flat`). Every other floating-point
input is differentiable. `tests/gradients` compares the gradients of all operators with finite differences, and checks
that cards are right, too. Inputs of text, integers and booleans have no derivatives, so nothing is said of them.
`docs/OPERATORS.md` prints the reasons.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import onnx_ir as ir

from onnxgen.common.timing import IMPORTS, stage
from onnxgen.graph.domains import is_foreign
from onnxgen.graph.traits import BROADCASTS, COMPARISON, RANDOM, SIZES, STANDARDISES, Trait, all_of

if TYPE_CHECKING:
    from onnxgen.plugins.loading import Plugin
    from onnxgen.shapes.info import Rule


Lowering = Callable[..., Any]
Registered = TypeVar("Registered", bound=Lowering)
Positions = Collection[int]
STANDARD = "onnxgen.passes.standard"  # bodies of the standard's operators, and of those that it dropped
DROPPED = "onnxgen.passes.contrib"
# Plugins in this tree. Generations need not name them, and each may be missing.
BUNDLED = ("onnxgen.classical", "onnxgen.microsoft")
NOTED = "__onnxgen_operators__"  # attribute of a plugin module: the operators that its functions are registered for


@dataclass(frozen=True)
class Rules:
    """What the rooms around lowering know of an operator. A rule that is None follows from its traits, or is unknown.

    Attributes:
        inner: infers dtypes and shapes of an operator that runs graphs (`shapes.bodies`).
        numbers: computes it in numpy, on arrays of numbers: of one input, or of two, which also folds several. That of
            a reduction takes `axis` and `keepdims`, too.
        dims: the same of single dims. A reduction joins two.
        elements: `elements(NodeFacts, *arrays)` returns the elements of the outputs, of numbers and dims alike; `reads`
            is the number of inputs whose elements it takes (None: all).
        kernel: computes it for the check of each generation (`shapes.usual`), apart from `elements`.
        batch: says where the samples of a batch are in its outputs (`passes.batch`).
        axes: the axes of each input, as letters: "b l h; b l". Axes with the same letter have the same size.
        equal: yields which other dims must be equal (`shapes.equal`).
        bound: a lower bound of the result, of those of its data: `bound(node, bounds)`.
        neutral: the number that leaves the first of two inputs as it is; the other one, too, if they commute.
        drawn: for inputs of onnxruntime's operators that count or point somewhere, by position, valid numbers
            (`microsoft.drawn`).
        view: how its result is a view of a stored tensor (`weights.stored`).
        gates: of a recurrent layer of ONNX, the position of each of torch's gates among its own.
        activations: its usual activations, in ONNX's order and small letters.
        flat: why no gradient flows (see above), also by the inputs through which none does.
        ranges: the numbers that are taken at an input, by its position (`shapes.ranges`).
    """

    inner: Lowering | None = None
    numbers: Lowering | None = None
    dims: Lowering | None = None
    elements: Lowering | None = None
    reads: int | None = None
    kernel: Lowering | None = None
    batch: Lowering | None = None
    axes: str = ""
    equal: Lowering | None = None
    ranges: Mapping[int, Lowering] | None = None
    bound: Callable[[ir.Node, list[float]], float] | None = None
    neutral: float | None = None
    drawn: Mapping[int, Lowering] = field(default_factory=dict)
    view: Lowering | None = None
    gates: tuple[int, ...] = ()
    activations: tuple[str, ...] = ()
    flat: str | Mapping[str, str] | None = None


@dataclass(frozen=True, eq=False)
class Operator:
    """The card of an operator: all that onnxgen knows of it, with the function that writes it.

    Attributes:
        name, domain: the operator (`domain` is "" for ai.onnx).
        function: called as `function(b, *inputs, **attributes)`, see `lowering.builder.Builder`.
        is_body: the function writes nodes; `b` is a `passes.contrib.writer.Writer`.
        plugin: the plugin that registered it; None if it is onnxgen's own.

        inputs: of `data`, `matrix`, `bias`, `weights`, `still` and `chosen`, the names of inputs. The attributes of
            these names are the positions.

    The others are the arguments of `op`.
    """

    name: str
    domain: str
    since: int
    function: Lowering
    renames: Mapping[str, str] = field(default_factory=dict)
    takes: Callable[[ir.Node], bool] = lambda node: True
    infer: Rule | None = None
    reference: Lowering | None = None
    tables: tuple[str, ...] = ()
    plugin: Plugin | None = None
    traits: frozenset[Trait] = frozenset()
    inputs: Mapping[str, str] = field(default_factory=dict)
    least: float | None = None
    rules: Rules = Rules()
    is_body: bool = False

    @property
    def key(self) -> tuple[str, str, int]:
        return self.domain, self.name, self.since

    def letters(self, layout: int = 0) -> list[list[str]]:
        """Return the axes of each input as letters (`Rules.axes`). `layout`: the attribute of recurrent layers."""
        text = self.rules.axes
        text = text.replace("s b i", "b s i").replace("d b h", "b d h") if layout else text
        return [form.split() for form in text.split(";")]

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """Return the function's parameters by name, without the builder."""
        parameters = dict(inspect.signature(self.function).parameters)
        parameters.pop(next(iter(parameters)))
        return parameters

    @cached_property
    def places(self) -> dict[str, range]:
        """Return the positions of the inputs by parameter; the last one may have many."""
        taken = [p for p in self.parameters.values() if p.kind is not p.KEYWORD_ONLY]
        return {p.name: range(i, sys.maxsize if p.kind is p.VAR_POSITIONAL else i + 1) for i, p in enumerate(taken)}

    def _positions(self, names: Iterable[str]) -> Positions:
        ranges = [self.places[name] for name in names]
        return ranges[0] if len(ranges) == 1 else [i for each in ranges for i in each]

    @cached_property
    def data(self) -> Positions:
        named = self.inputs.get("data", "").split()
        return self._positions(named) if named else range(sys.maxsize if BROADCASTS in self.traits else 1)

    @cached_property
    def matrix(self) -> int | None:
        return self.places[name][0] if (name := self.inputs.get("matrix")) else None

    @cached_property
    def bias(self) -> int | None:
        return self.places[name][0] if (name := self.inputs.get("bias")) else None

    @cached_property
    def weights(self) -> Positions:
        return self._positions(self.inputs.get("weights", "").split())

    @cached_property
    def still(self) -> Positions:
        flat = self.rules.flat if isinstance(self.rules.flat, Mapping) else ()
        named = [*self.inputs.get("still", "").split(), *(name for name in flat if name in self.places)]
        return self._positions(dict.fromkeys(named))

    @cached_property
    def chosen(self) -> Positions:
        return self._positions(self.inputs.get("chosen", "").split())

    @cached_property
    def axes(self) -> int | None:
        """Return the position of the input that names axes; None if none does."""
        return next((self.places[name][0] for name in ("axes", "axis") if name in self.places), None)


OperatorTable = dict[tuple[str, str], list[Operator]]  # by (domain, name), oldest version first


def op(
    *names: str,
    since: int = 1,
    domain: str = "",
    renames: Mapping[str, str] | None = None,
    takes: Callable[[ir.Node], bool] | None = None,
    infer: Rule | None = None,
    reference: Lowering | None = None,
    traits: Iterable[Trait] = (),
    data: str = "",
    matrix: str = "",
    bias: str = "",
    weights: str = "",
    still: str = "",
    chosen: str = "",
    least: float | None = None,
    tables: tuple[str, ...] = (),
    body: bool = False,
    **rules: Any,
) -> Callable[[Registered], Registered]:
    """Register a function as the meaning of one or more operators from opset `since` on.

    A plugin's function is used only in generations that name its module (`onnxgen.Options.plugins`).

    Args:
        names: the operators (`op_type`).
        since: the first version of the domain that has this meaning.
        domain: the operators' domain; "" is ai.onnx.
        renames: maps schema names of inputs and attributes to the function's parameters.
        takes: returns True if the function can lower a given node. Default: any node.
        infer: given a node (`shapes.info.NodeFacts`), returns the facts of its outputs, a `shapes.info.Info`
            for each. Default: onnxgen's own rule, or what the file declares.
        reference: computes the operator in numpy: `reference(*inputs, **attributes)`. `verify` and `export` compare
            with it.
        traits: the kinds of operator that it is (`graph.traits.Trait`). Passes use these instead of operator names.
        data: the inputs that the outputs' elements come from, by the function's parameters. Default: the
            first, or all that broadcast.
        matrix: the input that the operator multiplies by. If it is a stored tensor, the operator is a layer.
        bias: the input that it adds to this product.
        weights: the inputs whose stored tensors are weights, whatever their names, sizes and values. Default: `tables`,
            unless the operator standardises by them.
        still: the inputs that carry no gradient, or none that training should follow.
        chosen: the inputs that a person chooses, such as exponents and bounds. Their stored tensors are trained only if
            the exporter recorded parameters.
        least: a lower bound of the first output's elements.
        tables: attributes whose numbers are weights. Each becomes a stored tensor and another input of the node. The
            function takes it by the attribute's name, and it is trained and written back like any weight.
        body: the function writes other operators in the place of this one (`passes.contrib.writer`).
        rules: further rules of onnxgen's own operators (`Rules`).
    """

    weights = weights or ("" if STANDARDISES in traits else " ".join(tables))
    inputs = {"data": data, "matrix": matrix, "bias": bias, "weights": weights, "still": still, "chosen": chosen}

    def register(function: Registered) -> Registered:
        noted = inspect.unwrap(function).__globals__.setdefault(NOTED, [])
        for name in names:
            operator = Operator(
                name, "" if domain == "ai.onnx" else domain, since, function, renames or {},
                takes or (lambda node: True), infer, reference, tables, traits=all_of(traits), inputs=inputs,
                least=least, rules=Rules(**rules), is_body=body,
            )  # fmt: skip
            if function.__module__ == "__main__":  # a notebook cell that runs again replaces its earlier definition
                noted[:] = [o for o in noted if o.key != operator.key]
            noted.append(operator)
        return function

    return register


def noted_in(module: object) -> list[Operator]:
    """Return the operators that the functions of one module are registered for."""
    noted: list[Operator] = vars(module).get(NOTED, [])
    return noted


def layer(operators: Iterable[Operator]) -> OperatorTable:
    """Group operators by (domain, name). Raises `ValueError` if one is registered twice."""
    table: OperatorTable = {}
    for operator in operators:
        versions = table.setdefault((operator.domain, operator.name), [])
        if any(v.since == operator.since for v in versions):
            domain = f"{operator.domain}." if operator.domain else ""
            raise ValueError(f"{domain}{operator.name} is registered twice from opset {operator.since} on")
        versions.append(operator)
        versions.sort(key=lambda v: v.since)
    return table


@cache
def with_functions() -> OperatorTable:
    """Return the operators of `onnxgen.ops`."""
    return _noted("onnxgen.ops")


@cache
def bundled() -> OperatorTable:
    """Return the operators of plugins in this tree, and those that the standard dropped. None is in `onnxgen.ops`."""
    return _noted(DROPPED, *BUNDLED)


def bodies() -> OperatorTable:
    """Return the operators of `bundled` that are written as others."""
    return {key: versions for key, versions in bundled().items() if versions[-1].is_body}


@cache
def written_out() -> OperatorTable:
    """Return the standard's operators that a pass writes as others where their function takes no such call."""
    return _noted(STANDARD)


def _noted(*packages: str) -> OperatorTable:
    with stage(IMPORTS):
        modules = [module for name in packages for module in _modules(name)]
    return layer(operator for module in modules for operator in noted_in(module))


def _modules(name: str) -> list[ModuleType]:
    try:
        package = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name or name not in BUNDLED:
            raise
        return []
    return [importlib.import_module(f"{name}.{m.name}") for m in pkgutil.iter_modules(package.__path__) if not m.ispkg]


class Plugged:
    """The operators of plugins in one generation.

    Attributes:
        named: the operators of the plugins that it names. They take precedence over onnxgen's own.
    """

    def __init__(self, named: OperatorTable, find_installed: Callable[[], OperatorTable]) -> None:
        self.named, self.find_installed = named, find_installed

    @cached_property
    def installed(self) -> OperatorTable:
        """Return the operators of installed packages, searched for when a file has an unknown domain."""
        return self.find_installed()


# One per thread or task: concurrent generations have their own plugins.
_plugged: ContextVar[Plugged | None] = ContextVar("plugged", default=None)


@contextmanager
def plugged_in(named: OperatorTable, find_installed: Callable[[], OperatorTable]) -> Iterator[Plugged]:
    """Activate plugins for the block: the named ones, and the installed ones if they are needed."""
    plugged = Plugged(named, find_installed)
    token = _plugged.set(plugged)
    try:
        yield plugged
    finally:
        _plugged.reset(token)


def operators(*plugins: OperatorTable) -> OperatorTable:
    """Return all operators by (domain, name), oldest version first: those that onnxgen has a function for, and those of
    active plugins.
    """
    own = {**with_functions(), **bundled()}
    table = {key: list(versions) for key, versions in own.items() if not versions[-1].is_body}
    for key, versions in (item for layer in plugins for item in layer.items()):
        newer = {v.since for v in versions}
        kept = [v for v in table.get(key, []) if v.since not in newer]
        table[key] = sorted([*kept, *versions], key=lambda v: v.since)
    return table


def find(domain: str, name: str, opset: int) -> Operator | None:
    """Return the function for an operator as opset `opset` defines it, or None."""
    found = of_plugins(domain, name, opset) or _ours(domain, name, opset)
    return None if found is None or found.is_body else found


def body_of(domain: str, name: str, opset: int) -> Operator | None:
    """Return the body for an operator as opset `opset` defines it, or None: also if a plugin has a function for it."""
    found = of_plugins(domain, name, opset) or _ours(domain, name, opset)
    return found if found is not None and found.is_body else None


def own(domain: str, name: str, opset: int) -> Operator | None:
    """Return the function that onnxgen itself has for an operator, or None."""
    found = _ours(domain, name, opset)
    return None if found is None or found.is_body else found


def _ours(domain: str, name: str, opset: int) -> Operator | None:
    return _newest(with_functions() if (domain, name) in with_functions() else bundled(), domain, name, opset)


def of_plugins(domain: str, name: str, opset: int) -> Operator | None:
    """Return what an active plugin has for an operator, a function or a body, or None."""
    plugged = _plugged.get()
    operator = named(domain, name, opset)
    if operator is None and plugged is not None and is_foreign(domain):
        return _newest(plugged.installed, domain, name, opset)
    return operator


def named(domain: str, name: str, opset: int) -> Operator | None:
    """Return what a named plugin of this generation has for an operator, or None."""
    plugged = _plugged.get()
    return _newest(plugged.named, domain, name, opset) if plugged is not None else None


def _newest(table: OperatorTable, domain: str, name: str, opset: int) -> Operator | None:
    return next((v for v in reversed(table.get((domain, name), ())) if v.since <= opset), None)


NO_CARD = Operator("", "", 0, lambda b: None)


def known(node: ir.Node) -> Operator:
    """Return the card of a node's operator; an empty one if it is not registered."""
    own_card = card(node.domain, node.op_type)
    return own_card if own_card.name else of_plugins(node.domain, node.op_type, node.version or 1) or own_card


def card(domain: str, name: str) -> Operator:
    """Return all that onnxgen knows of an operator of its own; an empty card if it has none of that name."""
    key = "" if domain == "ai.onnx" else domain, name
    return _cards().get(key) or _others().get(key, NO_CARD)


def is_a(node: ir.Node, *traits: Trait) -> bool:
    """Return True if a node's operator has one of these traits."""
    return not known(node).traits.isdisjoint(traits)


@cache
def having(*traits: Trait) -> frozenset[str]:
    """Return the names of the operators of `onnxgen.ops`, of any domain, that have one of these traits."""
    return frozenset(name for (_, name), operator in _cards().items() if not operator.traits.isdisjoint(traits))


@cache
def having_all(*traits: Trait) -> frozenset[str]:
    """Return the names of the operators of `onnxgen.ops`, of any domain, that have all of these traits."""
    return frozenset[str].intersection(*map(having, traits))


@cache
def _cards() -> dict[tuple[str, str], Operator]:
    return {key: versions[-1] for key, versions in with_functions().items()}


@cache
def _others() -> dict[tuple[str, str], Operator]:
    return {key: versions[-1] for key, versions in {**written_out(), **bundled()}.items()}


PIECEWISE_CONSTANT = "the operator is piecewise constant: its derivative is 0 wherever there is one"
INTEGERS = "the results are integers or booleans"
TEXT = "the input is text or an encoded image"
COUNTED = "the result depends on no floating-point input"
DRAWN = "the numbers are random and depend on no input"
BITS = "the operator reads the bits as another type, which is not smooth"
SETS_SIZE = "the input sets the size of the result, an integer"
REFUSED = "onnxgen refuses a node with this input"
TYPE = "only the type of the input counts"
SETS_GRID = "the input only sets the numbers to round to"
UNREAD = "nothing reads it"

_OF_KIND = {COMPARISON: INTEGERS, SIZES: INTEGERS, RANDOM: DRAWN}


def key(domain: str, name: str) -> str:
    """Return the name of an operator with its domain."""
    return f"{domain}.{name}" if domain not in ("", "ai.onnx") else name


def everywhere(domain: str, name: str) -> str | None:
    """Return why no gradient flows through an operator, whatever the input; None if one flows through some."""
    known = card(domain, name)
    of_kind = next((why for trait, why in _OF_KIND.items() if trait in known.traits), None)
    return known.rules.flat if isinstance(known.rules.flat, str) else of_kind


def by_input(domain: str, name: str) -> Mapping[str, str]:
    """Return why none flows through some inputs, by the schema's names."""
    flat = card(domain, name).rules.flat
    return flat if isinstance(flat, Mapping) else {}


def reason(domain: str, name: str, parameter: str | None = None) -> str | None:
    """Return why no gradient flows through an operator, or through one of its inputs; None if one does."""
    return everywhere(domain, name) or (None if parameter is None else by_input(domain, name).get(parameter))
