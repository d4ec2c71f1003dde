"""Which sizes become arguments of the network, and how they are called.

Goes in: the classes of sizes that may change, with the numbers in the text that they are. Comes out: the arguments,
each with its default, and for each of these numbers what is written for it. Sizes of one name and number are one
argument. A width that is a multiple of another one follows from it. Widths of a convolutional network that do not
depend on each other are a table, `widths=(64, 128, 256)`, if they are few.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isqrt

from onnxgen.arguments.sizes import Related, Size, is_slot
from onnxgen.code.module_def import Assign, ModuleDef
from onnxgen.code.quote import quote, refs
from onnxgen.code.torch_api import CONVOLUTIONS, NORMS, RECURRENT, TRANSPOSED
from onnxgen.lowering.roles import called

MAX_ARGUMENTS = 6
HEADS = "num_heads"
LAYERS = 3  # of a network with arguments
MOST = 0.5  # what part of the widths an argument must give
LEAST = 4  # a smaller size is hardly one that somebody would choose
ENDS = frozenset("in_channels in_features input_size out_channels out_features num_classes".split())
PLAIN = ENDS | {"vocab_size", HEADS, "num_layers", "num_blocks"}  # worth an argument even if used once
WIDTHS = ("hidden_dim", "channels", "dim", "hidden_size")
ORDER = "vocab_size in_channels in_features input_size num_classes out_channels out_features".split()
ORDER += [*WIDTHS, "num_layers", "num_blocks"]
FACTORS = (1, 2, 3, 4, 6, 8, 16)  # of a width that follows from another
TABLE = range(2, 6)  # how many widths a table has
MERGED = 8  # of equal maps that a concatenation makes one, the most
CLASSES = re.compile("head|class|logit|cls|^fc|^outc?$|^linear$|tag|label")
VOCABULARY = re.compile("^(word|tok|char|wte|emb|encoder|text|src|input)")
NAMELESS = re.compile(r"embedding\d+")  # one of several tables whose names tell nothing
POSITIONS = re.compile("pos|wpe")


@dataclass
class Argument:
    """An argument of the network, and the spots that it gives the value of."""

    name: str
    number: int
    spots: dict[int, int]  # by the id of a spot, the number that is written there
    uses: int  # in how many places of layers it is
    entry: int | None = None  # its place in the table of widths

    @property
    def is_shared(self) -> bool:
        """True if several layers have the size. What is between the two layers of an MLP is a number."""
        return self.uses > (2 if self.name == "hidden_dim" else 1)

    def join(self, other: Argument) -> None:
        self.spots.update(other.spots)
        self.uses += other.uses

    @property
    def rank(self) -> int:
        """Its place among the arguments."""
        return ORDER.index(self.name) if self.name in ORDER else len(ORDER)


class Roles:
    """What a class of sizes is for."""

    def __init__(self, module: ModuleDef, related: Related) -> None:
        self.related = related
        self.layers = {".".join(member.path): member.layer for member in module.members}
        self.given = {argument.value for argument in module.inputs}
        self.returned = {name for output in module.outputs for name in refs(output)}
        last = [s for s in module.body if isinstance(s, Assign) and not self.returned.isdisjoint(s.targets)]
        self.classifies = any(called(statement.value)[0] in ("softmax", "log_softmax") for statement in last)

    def is_width(self, place: Size) -> bool:
        """Return True if a place has the size of a layer's inputs or outputs."""
        return self.layers.get(str(place[0])) in SIZED and place[2:] in ((0,), (1,), ("groups",))

    def is_taken(self, size: Size) -> bool:
        """Return True for an axis of an input of the network."""
        return not is_slot(size) and size[0] in self.given

    def taken(self, sizes: list[Size]) -> list[int]:
        """Return the channels that the network takes. What its first layer takes may be a multiple of them."""
        convolves = any(self.layers[str(size[0])] in CONVOLUTIONS for size in sizes if is_slot(size))
        values = [self.related.value[size] for size in sizes if convolves and self.is_taken(size)]
        return [value for value in values if isinstance(value, int)]

    def name(self, sizes: list[Size]) -> str:
        """Return the name of an argument, or "" if it is not clear what the size is for."""
        slots = [size for size in sizes if is_slot(size)]
        made = [(self.layers[str(size[0])], size[2:], str(size[0]).split(".")) for size in slots]
        rows = [path for layer, place, path in made if layer == "nn.Embedding" and place == (0,)]
        if rows:
            return "" if self._is_one_of_several(rows[0]) else _of_rows(rows[0])
        if all(layer == "nn.MultiheadAttention" and place == (1,) for layer, place, _ in made):
            return HEADS
        comes = any(map(self.is_taken, sizes))
        goes = any(size[0] in self.returned for size in sizes if not is_slot(size))
        outs = [(layer, path) for layer, place, path in made if place == (1,) and layer in MAKING]
        ins = [layer for layer, place, path in made if place == (0,) and layer in MAKING]
        convolves = any(layer in CONVOLUTIONS | TRANSPOSED for layer, _, _ in made)
        if goes and not comes and outs and not ins:
            is_class = self.classifies or any(
                CLASSES.search(_stem(path)) for layer, path in outs if layer not in TRANSPOSED
            )
            return "num_classes" if is_class else "out_channels" if convolves else "out_features"
        if comes and (goes or not ins):
            return ""
        if any(layer in RECURRENT and place == (1,) for layer, place, _ in made):
            return "hidden_size"
        if comes:
            return "in_channels" if convolves else "input_size" if ins[0] in RECURRENT else "in_features"
        if any(layer in ("nn.Embedding", "nn.LayerNorm", "nn.MultiheadAttention") for layer, _, _ in made):
            return "dim"
        if convolves and (outs or ins):
            return "channels"
        return "hidden_dim" if outs or ins else ""

    def _is_one_of_several(self, path: list[str]) -> bool:
        """True for a table in a list of tables that have other numbers of rows."""
        *around, number = path
        others = (other for other, layer in self.layers.items() if layer == "nn.Embedding")
        alike = [other for other in others if other.split(".")[:-1] == around] if number.isdigit() else []
        return len({self.related.value.get((other, "in", 0)) for other in alike}) > 1


ATTENDING = frozenset(["nn.MultiheadAttention"])
SIZED = CONVOLUTIONS | TRANSPOSED | NORMS - {"nn.GroupNorm"} | ATTENDING | {"nn.Linear", "nn.Embedding"}
MAKING = CONVOLUTIONS | TRANSPOSED | {"nn.Linear", "nn.Embedding", *RECURRENT}


def _stem(path: list[str]) -> str:
    return next((part for part in reversed(path) if not part.isdigit()), "")


def _of_rows(path: list[str]) -> str:
    """Name the number of rows of an embedding after it: `word_embeddings` has those of the vocabulary."""
    if NAMELESS.fullmatch(_stem(path)):
        return ""
    stem = re.sub("_?(emb|embed|embedding|embeddings)$", "", _stem(path).lower())
    if POSITIONS.search(stem):
        return "max_length"
    if stem.endswith("type"):  # as BERT's configuration has it
        return "type_vocab_size"
    if not stem or VOCABULARY.search(stem):
        return "vocab_size"
    return f"num_{stem}" if len(stem) > 2 else ""


def choose(found: list[Argument], written: Mapping[int, int]) -> list[Argument]:
    """Return the arguments. `found`: one for each class of sizes. `written`: the sizes of layers in the text, by spot.

    A width is no argument if its number is also written where it does not reach: who changes it would change half.
    """
    same: dict[tuple[str, int], Argument] = {}
    for argument in found:
        first = same.setdefault((argument.name, argument.number), argument)
        if first is not argument:
            first.join(argument)
    widths = [argument for argument in same.values() if argument.name in WIDTHS and argument.is_shared]
    table: list[Argument] = []
    if widths:
        base = _base(widths)
        table = _table(widths) if base.name == "channels" else []
        if not table:
            _join(same, widths, base)
        beside = [a for a in same.values() if (a not in table if table else a.name not in WIDTHS)]
        others = {spot for argument in beside for spot in argument.spots}
        spots = {spot: number for argument in table or [base] for spot, number in argument.spots.items()}
        rest = {number for spot, number in written.items() if spot not in others | spots.keys()}
        is_half = not rest.isdisjoint(spots.values())
        if is_half or len(spots) < MOST * (len(written) - len(others)):
            same = {key: argument for key, argument in same.items() if argument.name not in WIDTHS}
            table = []
    for entry, argument in enumerate(table):
        argument.entry = entry
    made: dict[str, Argument] = {}
    single = [argument for argument in same.values() if argument.entry is None]
    for argument in sorted(single, key=lambda a: -len(a.spots)):  # the commonest of a name has it
        is_one = argument.number == 1 and argument.name.startswith("out_")  # what the network tells is one number
        if (argument.name in PLAIN and not is_one) or (argument.is_shared and argument.number >= LEAST):
            made.setdefault(argument.name, argument)
    chosen = sorted(made.values(), key=lambda argument: argument.rank)[: MAX_ARGUMENTS - bool(table)]
    return sorted([*chosen, *table], key=lambda argument: argument.rank)


def _join(same: dict[tuple[str, int], Argument], widths: list[Argument], base: Argument) -> None:
    """Let a width give those that are equal to it or follow from it."""
    for other in [*same.values()]:
        # not the width of an input: the network would take others than its caller has
        is_equal = other.name in ("out_features", *WIDTHS) and other.number == base.number
        if other is not base and (is_equal or (other in widths and follows(other, base))):
            base.join(other)
            del same[other.name, other.number]


def _base(widths: list[Argument]) -> Argument:
    """Return the width that most of the others follow from."""
    # a number that is written once may be that of coordinates, of which the others are multiples by accident
    often = [argument for argument in widths if len(argument.spots) > 1] or widths
    return max(often, key=lambda a: (sum(len(o.spots) for o in widths if follows(o, a)), a.number, a.rank))


def _table(widths: list[Argument]) -> list[Argument]:
    """Return the widths of convolutions, if they are few and hardly a number is a multiple of them."""
    found = [argument for argument in widths if argument.name == "channels" and argument.number >= LEAST]
    factors = ({number // argument.number for number in argument.spots.values()} for argument in found)
    is_plain = all(len(own & {*FACTORS}) <= 2 for own in factors)  # with what a concatenation makes of it
    return found if is_plain and len(found) in TABLE else []


def follows(argument: Argument, base: Argument) -> bool:
    return argument.number in [factor * base.number for factor in FACTORS]


def expression(number: int, argument: Argument, name: str) -> ast.expr:
    """Return what is written for a number that an argument gives: `2 * channels`, `2 * channels * 7 * 7` of a map."""
    factor = number // argument.number
    most = max(FACTORS) if argument.entry is None else MERGED
    sides = ((first, isqrt(factor // first)) for first in FACTORS if factor > most)
    first, side = next(((f, side) for f, side in sides if f * side * side == factor), (factor, 1))
    value = quote(name)
    if first > 1:
        value = ast.BinOp(ast.Constant(first), ast.Mult(), value)
    for _ in range(2 if side > 1 else 0):
        value = ast.BinOp(value, ast.Mult(), ast.Constant(side))
    return value


def number_of(values: Iterable[int]) -> int | None:
    """Return the least of the numbers of a class of sizes, if all others are multiples of it."""
    least = min(values)
    return least if least and not any(value % least for value in values) else None
