"""The parameters of a class's constructor.

Goes in: the literals of a class, with their values in each instance, and the flags of its optional parts. Comes out:
the parameters with their names and defaults, and the call that makes each instance. The rules: a literal that is equal
in all instances stays a literal, unless it is a width. Literals that always vary together are one parameter. A literal
in an optional part uses the parameter that agrees with it in all instances that have the part, if the two vary alike or
have one name (`stride`). A parameter is positional if most instances differ, else it defaults to the commonest value;
booleans always have a default. A value that follows from another parameter is written so: a padding of half the kernel,
a hidden size that is a multiple or part of another size. Classes that would need more than `MAX_PARAMETERS` are not
merged.

*Flags that follow from sizes* (`condition`), for a residual, and for a part that leads from one size to another:

    if downsample:                         if in_channels != out_channels:
    if residual:                           if stride == 1 and in_channels == out_channels:

*Widths* that are equal in all instances are parameters, too: `Attention(dim)` (`widths`). A class is given all of its
widths, but for those of optional parts, or none: none if a number in `forward`, in the shape of a stored tensor or in a
class that it makes depends on one of them, and none if there are many: then the class is a table of widths.

The sizes of a matrix that a class makes of its own tensors, as of integers and their scales, are called as torch's own
layers call them (`size_names`): what is multiplied with has `in_features` and `out_features`, a table of rows that are
looked up `num_embeddings` and `embedding_dim`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from onnxgen.code import printer
from onnxgen.code.module_def import Member
from onnxgen.code.quote import Ref, formula, members, refs, rewrite
from onnxgen.code.torch_api import function_of
from onnxgen.common.names import Namer, identifier
from onnxgen.structure.forms import Differ
from onnxgen.structure.layout import ITEMS
from onnxgen.structure.literals import Slot, numbers_of
from onnxgen.structure.order import grouped
from onnxgen.structure.scopes import Scope

MAX_PARAMETERS = 10  # with the flags
MAX_FLAGS = 4
MAX_NAMELESS = 3  # parameters whose literals are not arguments with a name
MAX_FACTOR = 16  # between two sizes of which one follows from the other
COUNT = "depth"  # how many blocks a row has
JOINED, SHARES = (0, 1, 2), (1, 2)  # what else is beside the blocks' results; parts of a width that each of them has
SIZE = re.compile("channels|features|(?<!kernel_)size|^(hidden_|embed_|embedding_)?dim$")  # the name of a width

Column = dict[int, Slot]  # a literal in each instance that has it
Flag = tuple[frozenset[int], str]  # the instances that have an optional part; its name, if it has no members


@dataclass(frozen=True)
class Parameter:
    """A parameter of a constructor: its name, type (or ""), and default as text (None: the argument is required)."""

    name: str
    annotation: str
    default: str | None = None

    @property
    def tree(self) -> ast.arg:
        return ast.arg(self.name, printer.annotation(self.annotation) if self.annotation else None)

    @property
    def default_tree(self) -> ast.expr | None:
        return None if self.default is None else rewrite(parsed(self.default), formula)

    def __str__(self) -> str:
        return printer.argument(self.tree, self.default_tree)


@dataclass
class Use:
    """A literal at one place in the code.

    Attributes:
        column: its values.
        owner: the member it belongs to.
        in_forward: `forward` reads it.
        row: the list whose item it belongs to, with the maker of the item.
    """

    column: Column
    owner: str = ""
    in_forward: bool = False
    row: str = ""

    @property
    def texts(self) -> dict[int, str]:
        return {i: ast.unparse(slot.value) for i, slot in self.column.items()}

    @property
    def wanted(self) -> str:
        return next(iter(self.column.values())).wanted


@dataclass
class Group:
    """Literals that are one parameter."""

    texts: dict[int, str]
    uses: list[Use] = field(default_factory=list)
    wanted: str = ""
    name: str = ""
    bases: list[Group] = field(default_factory=list)  # the groups that its value follows from
    is_width: bool = False  # one that is equal in all instances
    rule: str = "{}"  # how it follows: "4 * {}", "{} // 2"

    @property
    def in_forward(self) -> bool:
        return any(use.in_forward for use in self.uses)

    @property
    def is_size(self) -> bool:
        """True for a width; in `forward`, `dim` is the number of an axis."""
        return bool(SIZE.search(self.wanted)) and not (self.in_forward and self.wanted == "dim")

    @property
    def numbers(self) -> dict[int, int]:
        """Its values as integers; {} if some are not."""
        return {i: int(text) for i, text in self.texts.items()} if all(map(str.isdigit, self.texts.values())) else {}

    def may_give(self, kind: str) -> bool:
        """True if it is no value that follows from others, and one of this kind, "size" or a name."""
        is_size = self.is_size and not self.wanted.startswith("hidden_")
        return not self.bases and (is_size if kind == "size" else self.wanted == kind)

    def usual(self) -> set[str]:
        """Return the defaults that torch has for its literals."""
        slots = (slot for use in self.uses for slot in use.column.values())
        return {ast.unparse(slot.default) for slot in slots if slot.default is not None}

    @property
    def expression(self) -> str:
        """What is written for its literals."""
        return self.rule.format(*(base.name for base in self.bases or [self]))


class Parameters:
    """The parameters that literals and flags need, and each instance's arguments."""

    def __init__(self, instances: list[int], uses: list[Use], flags: dict[Flag, str], widths: Sequence[Group]) -> None:
        self.instances, self.flags = instances, flags
        self.all = _grouped(instances, uses)
        self.all += widths
        order = {id(use): i for i, use in enumerate(uses)}
        self.all.sort(key=lambda g: min(order[id(u)] for u in g.uses))
        self.of = {id(use): group for group in self.all for use in group.uses}
        named = [(use, self.of.get(id(use))) for use in uses if widths or id(use) in self.of]
        for group in self.all:
            group.wanted = _wanted(group, named)
        for group in self.all:
            self._derive(group)
        self._drop_nameless_widths()
        self.groups = [group for group in self.all if not group.bases]
        self.conditions = {
            flag: rule
            for flag, name in flags.items()
            if (rule := condition(flag[0], flag[1] or name, self.groups, instances)) is not None
        }

    def _drop_nameless_widths(self) -> None:
        """Keep the numbers of a class that has several widths of one name: it is a table of them."""
        names = Counter(group.wanted for group in self.all if not group.bases)
        if any(names[group.wanted] > 1 for group in self.all if group.is_width and not group.bases):
            self.all = [group for group in self.all if not group.is_width]
            self.of = {key: group for key, group in self.of.items() if not group.is_width}

    def test(self, flag: Flag) -> str:
        """Return what says in `__init__` whether an instance has an optional part: a parameter or a condition."""
        return self.conditions[flag].text if flag in self.conditions else self.flags[flag]

    @property
    def given(self) -> list[tuple[Flag, str]]:
        """The flags that are parameters, with their names."""
        return [(flag, name) for flag, name in self.flags.items() if flag not in self.conditions]

    def _derive(self, group: Group) -> None:
        """Let a padding, a hidden size or the size of a head follow from other parameters, if it does."""
        if any(base is group for other in self.all for base in other.bases):
            return  # what follows from it needs its name
        numbers, heads = group.numbers, list[Group]()
        if group.wanted == "head_dim":
            numbers, heads = self._of_heads(numbers)
        elif self._joins(group):
            return
        for kind, rule, holds in _rules(group.wanted) if numbers else ():
            bases = [base for base in self.all if base is not group and base.may_give(kind)]
            base = next((base for base in bases if _follows(numbers, base.numbers, holds)), None)
            if base is not None:
                group.bases, group.rule = [base, *heads], rule
                return

    def _of_heads(self, sizes: dict[int, int]) -> tuple[dict[int, int], list[Group]]:
        """Return the sizes of all heads together, and the number of heads; nothing if no parameter gives that."""
        heads = [g for g in self.all if g.wanted == "num_heads" and g.numbers.keys() >= sizes.keys()][:1]
        return ({i: n * heads[0].numbers[i] for i, n in sizes.items()} if heads else {}), heads

    def _joins(self, group: Group) -> bool:
        """Let a width be that of what a row of blocks and some others return, side by side, if it is: C2f, CSP."""
        counts = [g for g in self.all if g.wanted == COUNT and len(set(g.numbers.values())) > 1]
        sizes = [g for g in self.all if g.is_size and g is not group and not g.bases]
        numbers = group.numbers if group.is_size else {}
        for count, base, more, share in product(counts, sizes, JOINED, SHARES) if numbers else ():
            n, size = count.numbers, base.numbers
            if numbers.keys() <= n.keys() & size.keys():
                if all(number * share == (n[i] + more) * size[i] for i, number in numbers.items()):
                    group.bases, group.rule = [count, base], f"({{}} + {more}) * {{}}" + f" // {share}" * (share > 1)
                    return True
        return False

    @property
    def are_few(self) -> bool:
        nameless = sum(not any(use.wanted for use in group.uses) for group in self.groups)
        few = len(self.groups) + len(self.given) <= MAX_PARAMETERS
        return few and len(self.given) <= MAX_FLAGS and nameless <= MAX_NAMELESS

    def name(self, attributes: set[str], stored: set[Flag], reserved: frozenset[str]) -> None:
        """Name all parameters.

        Args:
            attributes: the names of submodules; a parameter that `forward` reads is an attribute too.
            stored: the flags that `forward` reads.
            reserved: names that no parameter may have.
        """
        namer = Namer(reserved | {ITEMS, "constant"})  # `constant` is a function of the generated file
        for group in self.groups:
            wanted = group.wanted
            owner = next((u.owner for u in group.uses if u.owner), "")
            if owner and wanted in namer:
                wanted = identifier(f"{owner}_{wanted}")
            if group.in_forward and wanted in attributes:
                wanted = f"{wanted}_"
            group.name = namer.take(identifier(wanted))  # a keyword may have the name of a builtin: `clamp(min=...)`
        for flag, wanted in self.flags.items():
            name = identifier(wanted)
            if flag in stored and name in attributes:
                name = f"use_{name}"
            self.flags[flag] = namer.take(name)

    def parameters(self) -> list[Parameter]:
        """Return them in order: required ones, those with defaults, flags."""
        parameters = [self._parameter(group) for group in self.groups]
        whole = [len(g.texts) == len(self.instances) and g.is_size for g in self.groups]
        parameters = [
            replace(p, default=None) if size else p for p, size in zip(parameters, whole)
        ]  # who makes it says its sizes
        for (only, _), name in self.given:
            parameters.append(Parameter(name, "bool", str(2 * len(only) > len(self.instances))))
        return sorted(parameters, key=lambda p: p.default is not None)

    def _parameter(self, group: Group) -> Parameter:
        kinds = {_annotation(slot.value) for use in group.uses for slot in use.column.values()}
        kinds = {"float"} if kinds == {"int", "float"} else kinds
        counts = Counter(group.texts.values())
        common, count = counts.most_common(1)[0]
        total = len(self.instances)
        has_default = len(group.texts) < total or kinds == {"bool"} or (2 * count > total > 2)
        for text in group.usual():
            if 2 * counts[text] >= total:  # torch's default, unless most instances differ
                common, has_default = text, True
        if has_default and any(kind.startswith("list") for kind in kinds):
            raise Differ("a list as a default, which all instances would share")
        default = common if has_default and not group.is_width else None
        return Parameter(group.name, " | ".join(sorted(kinds)), default)

    def made(self, name: str, instance: int) -> ast.Call:
        """Return the call that makes one instance of the class of this name."""
        values = {group.name: group.texts.get(instance) for group in self.groups}
        values |= {name: str(instance in only) for (only, _), name in self.given}
        call = ast.Call(ast.Name(name, ast.Load()), [], [])
        for parameter in self.parameters():
            value = values[parameter.name]
            if parameter.default is None:
                call.args.append(parsed(str(value)))
            elif value is not None and value != parameter.default:
                call.keywords.append(ast.keyword(parameter.name, parsed(value)))
        return call


def parsed(text: str) -> ast.expr:
    """Return a new tree of an expression, which becomes part of another (`code.quote.parsed` gives a shared one)."""
    return ast.parse(text, mode="eval").body


def _grouped(instances: list[int], uses: list[Use]) -> list[Group]:
    groups: dict[tuple[tuple[int, str], ...], Group] = {}
    for use in sorted(uses, key=lambda use: len(use.column) < len(instances)):  # those of optional parts last
        texts = use.texts
        varies = len(set(texts.values())) > 1
        candidates: list[Group] = []
        if len(texts) < len(instances):
            agreeing = (g for g in groups.values() if texts.items() <= g.texts.items())
            candidates = [g for g in agreeing if _fits(use, g, varies)]
        candidates.sort(key=lambda g: all(u.wanted != use.wanted for u in g.uses))
        if candidates:
            candidates[0].uses.append(use)
        elif varies:
            groups.setdefault(tuple(sorted(texts.items())), Group(texts)).uses.append(use)
    return [*groups.values()]


def _follows(numbers: dict[int, int], base: dict[int, int], holds: Callable[[int, int], bool]) -> bool:
    return numbers.keys() <= base.keys() and all(holds(n, base[i]) for i, n in numbers.items())


def _fits(use: Use, group: Group, varies: bool) -> bool:
    """True if a literal of an optional part may use the parameter of a group, whose values agree with it."""
    if any(use.wanted == other.wanted for other in group.uses):
        return varies or not all(slot.is_default for slot in use.column.values())
    return varies and bool(SIZE.search(use.wanted)) and any(SIZE.search(other.wanted) for other in group.uses)


def _rules(wanted: str) -> Iterator[tuple[str, str, Callable[[int, int], bool]]]:
    """Yield the ways in which a parameter of this name may follow from one of another kind, and a check of the two."""

    def is_ratio(up: int, down: int) -> Callable[[int, int], bool]:
        return lambda n, size: n * down == size * up

    factors = range(2, MAX_FACTOR + 1)
    if wanted == "padding":
        yield "kernel_size", "{} // 2", lambda n, kernel: n == kernel // 2
    if wanted in ("padding", "pad"):  # of a causal convolution
        yield from (("dilation", f"{factor} * {{}}", is_ratio(factor, 1)) for factor in factors)
    elif wanted == "head_dim":  # times the number of heads
        yield "size", "{} // {}", is_ratio(1, 1)
    elif wanted.startswith("hidden_") or wanted == "channels":
        for factor in factors:
            yield "size", f"{factor} * {{}}", is_ratio(factor, 1)
            yield "size", f"{{}} // {factor}", is_ratio(1, factor)


def _wanted(group: Group, uses: list[tuple[Use, Group | None]]) -> str:
    """Return the name of a parameter, by the name of its first literal. `uses`: all that count, in order."""
    name = next((use.wanted for use in group.uses if use.wanted), "")
    if not name:
        kind = _annotation(next(iter(group.uses[0].column.values())).value)
        return {"int": "size", "float": "value", "bool": "flag", "str": "text"}.get(kind, "size")
    if name == "input_size" and any(use.wanted == "hidden_size" for use in group.uses):
        return "hidden_size"
    side, _, unit = name.partition("_")
    return _of_unit(unit, group, uses) if side in ("in", "out") and unit in UNITS else name


def _of_unit(unit: str, group: Group, uses: list[tuple[Use, Group | None]]) -> str:
    """Return the name of channels or features.

    Those that come in first or go out last are `in_channels` or `out_channels`, or just `channels` if they are both or
    the class has no others; channels between two layers are `hidden_channels`.
    """
    ins = [g for use, g in uses if use.wanted == f"in_{unit}"]
    outs = [g for use, g in uses if use.wanted == f"out_{unit}"]
    begins, ends = ins[:1] == [group], outs[-1:] == [group]
    plain = "dim" if unit == "features" else unit
    if begins and (ends or not outs) or (ends and not ins):
        return plain
    return f"in_{unit}" if begins else f"out_{unit}" if ends else f"hidden_{plain}"


def _annotation(value: ast.expr) -> str:
    if isinstance(value, ast.Attribute):
        is_layer = isinstance(value.value, ast.Name) and value.value.id == "nn"
        return "type[nn.Module]" if is_layer else "Callable[[Tensor], Tensor]"
    if isinstance(value, ast.UnaryOp):
        value = value.operand
    if isinstance(value, ast.Tuple):
        return f"tuple[{', '.join(_annotation(e) for e in value.elts)}]"
    if isinstance(value, ast.List):
        return f"list[{' | '.join(sorted({_annotation(e) for e in value.elts}))}]"
    if isinstance(value, ast.Constant):
        return "float" if isinstance(value.value, float) else type(value.value).__name__
    return "int"


RESIDUAL = "residual"
UNITS = ("channels", "features")
RESIDUAL_FORMS = "{2} == 1 and {0} == {1}", "{0} == {1}"  # with a stride, and without
LED_FORMS = "{2} != 1 or {0} != {1}", "{0} != {1}"


@dataclass
class Condition:
    """What is written for a flag: a rule, and the parameters in it."""

    rule: str
    bases: list[Group]

    @property
    def text(self) -> str:
        return self.rule.format(*(base.name for base in self.bases))


def condition(only: frozenset[int], name: str, groups: list[Group], instances: list[int]) -> Condition | None:
    """Return the condition that holds for the instances that have an optional part; None if there is none.

    `name`: that of the flag. A size that only the part needs is given to the other instances, too.
    """
    free = [group for group in groups if not group.bases]
    strided = [g for g in free if g.wanted == "stride" and len(g.texts) == len(instances)][:1]
    is_residual = name == RESIDUAL
    wanted = frozenset(instances) - only if is_residual else only  # the instances where something differs
    rules = _forms(only, is_residual, strided)
    for a, b in _residual(free) if is_residual else _led(only, free):
        differ = _differing(a.numbers, b.numbers, only, instances)
        rule = next((rule for rule, moves in rules.items() if differ | moves == wanted), None)
        if rule is not None and differ:
            a.texts.update((i, b.texts[i]) for i in instances if i not in a.texts)
            return Condition(rule, [a, b, *strided])
    return None


def _differing(
    begins: dict[int, int], ends: dict[int, int], only: frozenset[int], instances: list[int]
) -> frozenset[int]:
    """Return the instances in which two sizes are not the same; none if the sizes are not known."""
    if not begins or len(ends) < len(instances) or not only <= begins.keys():
        return frozenset()
    return frozenset(i for i in instances if begins.get(i, ends[i]) != ends[i])


def _forms(only: frozenset[int], is_residual: bool, strided: list[Group]) -> dict[str, frozenset[int]]:
    """Return the forms that a condition may have, with the instances where a stride decides it."""
    asks = is_residual or any(use.column.keys() == only for group in strided for use in group.uses)
    moves = frozenset(i for group in strided for i, stride in group.texts.items() if stride != "1")
    with_stride, plain = RESIDUAL_FORMS if is_residual else LED_FORMS
    return {with_stride: moves, plain: frozenset()} if strided and asks else {plain: frozenset()}


def _residual(groups: list[Group]) -> Iterator[tuple[Group, Group]]:
    """Yield what comes in and what goes out."""
    for unit in UNITS:
        ends = [next((g for g in groups if g.wanted == f"{side}_{unit}"), None) for side in ("in", "out")]
        if ends[0] is not None and ends[1] is not None:
            yield ends[0], ends[1]


def _led(only: frozenset[int], groups: list[Group]) -> Iterator[tuple[Group, Group]]:
    """Yield the sizes from and to which the part leads that only these instances have."""
    own = [(use, g) for g in groups for use in g.uses if use.column.keys() == only and not use.in_forward]
    for unit in UNITS:
        begins = [g for use, g in own if use.wanted == f"in_{unit}"]
        ends = [g for use, g in own if use.wanted == f"out_{unit}"]
        if len(begins) == len(ends) == 1 and begins != ends:
            yield begins[0], ends[0]


LEAST = 8  # a smaller number is no width that somebody chooses
MOST = 3  # widths of a class that is no table
ROW = 3  # items of a list that is a table
KEY = "key"  # of a constant in the weights
PLAIN = ("", "groups")  # what else may be a width: the size of a parameter, the groups of a convolution
STEPS = re.compile("kernel_size|stride|padding|dilation|dim|num_heads|dropout|depth")  # no sizes, or written as -1
MAX_STEPS = 4  # between a stored tensor and the matrix: a cast, a zero point, a scale
MAX_OPERANDS = 2  # of each of these
PRODUCT, TABLE = ("in_features", "out_features"), ("num_embeddings", "embedding_dim")


def widths(uses: Sequence[Use], count: int, held: Iterable[int]) -> list[Group]:
    """Return the widths that a class is given, each with the literals that it is.

    Args:
        uses: its literals.
        count: of its instances.
        held: the sizes that the classes have which it makes, and which nobody gives.
    """
    by_number = _by_number(uses)
    candidates = {number for number, own in by_number.items() if any(SIZE.search(use.wanted) for use in own)}
    if len(candidates) > MOST or not candidates.isdisjoint(held) or _has_table(uses) or _depend(candidates, uses):
        return []
    groups = []
    for number in candidates:
        whole = next((use for use in by_number[number] if len(use.column) == count), None)
        if whole is not None:  # else only an optional part has it
            groups.append(Group(whole.texts, by_number[number], is_width=True))
    return groups


def _depend(candidates: Iterable[int], uses: Sequence[Use]) -> bool:
    """True if a number that stays may follow from a width."""
    if any(use.wanted == KEY for use in uses):  # a constant, whose sizes the text does not tell
        return True
    fixed = {number for use in uses if _is_fixed(use) for number in sizes(use)}
    return any(other % number == 0 or number % other == 0 for number in candidates for other in fixed)


def _by_number(uses: Iterable[Use]) -> dict[int, list[Use]]:
    """Return the literals that are equal in all instances and may be widths, by the number that they are."""
    equal = (use for use in uses if not _is_fixed(use) and len({*use.texts.values()}) == 1)
    return grouped((number, use) for use in equal for number in sizes(use))


def sizes(use: Use) -> set[int]:
    """Return the numbers of a literal that may be sizes."""
    counts = STEPS.search(use.wanted) if use.in_forward else not (use.wanted in PLAIN or SIZE.search(use.wanted))
    numbers = set() if counts else {n for slot in use.column.values() for n in _integers(slot.value)}
    return {number for number in numbers if number >= LEAST}


def _has_table(uses: Iterable[Use]) -> bool:
    """True if like items of a list have other widths."""
    inner = (use for use in uses if use.row and SIZE.search(use.wanted))
    rows = grouped(((use.row, use.wanted), str(use.texts)) for use in inner)
    return any(len(row) >= ROW and len({*row}) > 1 for row in rows.values())


def _is_fixed(use: Use) -> bool:
    """True for a literal that no width can be: one in `forward`, and several numbers."""
    return use.in_forward or any(isinstance(slot.value, (ast.Tuple, ast.List)) for slot in use.column.values())


def _integers(tree: ast.AST) -> list[int]:
    values = (node.value for node in numbers_of(tree) if isinstance(node, ast.Constant))
    return [value for value in values if isinstance(value, int)]


def size_names(scope: Scope) -> dict[int, dict[int, str]]:
    """Return the names of the sizes of each such tensor, by the id of its member and the number of the literal."""
    makers = scope.makers()
    by_member: dict[int, dict[int, str]] = {}
    for tree in scope.walk():
        matrix, names = _matrix(tree)
        for member in _made_of(matrix, makers, MAX_STEPS) if matrix is not None else ():
            first = _first_size(member.build)
            if first:
                by_member[id(member)] = {first: names[0], first + 1: names[1]}
    return by_member


def _first_size(build: ast.expr) -> int:
    """Return which literal is the first size of a tensor of two axes as it begins; 0 for other tensors.

    They are `torch.zeros(384, 1536, dtype=torch.int8)` and `nn.Parameter(torch.normal(0.0, 0.02, (384, 1536)))`.
    """
    if isinstance(build, ast.Call) and function_of(build) == "nn.Parameter":
        build = build.args[0]
    if not isinstance(build, ast.Call):
        return 0
    if function_of(build) == "torch.zeros":
        return 1 if len(build.args) == 2 else 0
    sizes = build.args[-1] if function_of(build) == "torch.normal" else None
    return 3 if isinstance(sizes, ast.Tuple) and len(sizes.elts) == 2 and len(build.args) == 3 else 0


def _matrix(tree: ast.AST) -> tuple[ast.expr | None, tuple[str, str]]:
    """Return what an operator takes as a matrix, and the names of its sizes."""
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.MatMult):
        return tree.right, PRODUCT
    is_index = isinstance(tree, ast.Subscript) and isinstance(tree.slice, Ref)
    return (tree.value if isinstance(tree, ast.Subscript) and is_index else None), TABLE


def _made_of(tree: ast.expr, makers: dict[str, ast.expr], steps: int) -> Iterator[Member]:
    """Yield the members of the class that a value is made of."""
    yield from members(tree)
    operands = refs(tree)
    for name in operands if steps and len(operands) <= MAX_OPERANDS else ():
        if name in makers:
            yield from _made_of(makers[name], makers, steps - 1)
