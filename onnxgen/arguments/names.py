"""Which sizes become arguments of the network, and how they are called.

Goes in: the classes of sizes that may change, with the numbers in the text that they are. Comes out: the arguments,
each with its default, and for each of these numbers what is written for it. Sizes of one name and number are one
argument. If all widths are multiples of one, they follow from it. Else each is an argument, and several of one name are
a table, `widths=(64, 128, 256)`, if they are few. A width within a block follows from that which the block takes.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from math import isqrt

from onnxgen.arguments.sizes import Related, Size, is_slot
from onnxgen.code.module_def import Assign, ModuleDef
from onnxgen.code.quote import quote, refs
from onnxgen.code.torch_api import CELLS, CONVOLUTIONS, NORMS, RECURRENT, TRANSPOSED
from onnxgen.lowering.roles import called

MAX_ARGUMENTS = 8
HEADS, DEPTHS = "num_heads", "depths"
LAYERS = 3  # of a network with arguments
MOST = 1 / 3  # what part of the widths the arguments must give
LEAST = 4  # a smaller size is hardly one that somebody would choose
ENDS = frozenset("in_channels in_features input_size out_channels out_features num_classes".split())
VOCABULARY_SIZE = "vocab_size"
SIDES = {"src": "src", "source": "src", "tgt": "tgt", "target": "tgt"}  # of a translation
VOCABULARIES = [VOCABULARY_SIZE, f"src_{VOCABULARY_SIZE}", f"tgt_{VOCABULARY_SIZE}"]
PLAIN = ENDS | {*VOCABULARIES, "reg_max", HEADS, "num_layers", "num_blocks"}  # worth an argument even if used once
TELLING = ("num_classes", "out_features")  # of a language model the vocabulary
WIDTHS = ("hidden_dim", "channels", "dim", "hidden_size")
ORDER = [*VOCABULARIES, *"in_channels in_features input_size num_classes reg_max out_channels out_features".split()]
ORDER += [*WIDTHS, "num_layers", "num_blocks"]
FACTORS = (1, 2, 3, 4, 6, 8, 16)  # of a width that follows from another
TABLE = 12  # widths of a table, the most
TABLES = {"channels": "widths"}
MERGED = 8  # of equal maps that a concatenation makes one, the most
SCORES = ("sigmoid", "softmax", "log_softmax")
CLASSES = re.compile("head|class|logit|cls|^fc|^outc?$|^linear$|tag|label")
VOCABULARY = re.compile("^(word|tok|char|wte|emb|encoder|text|src|input)")
NAMELESS = re.compile(r"embedding\d+")  # one of several tables whose names tell nothing
POSITIONS = re.compile("pos|wpe")

Width = tuple[bool, int]  # whether it is of maps, and its number
Sums = dict[int, list[tuple[int, int]]]  # by the spot of a sum, a spot of each part (0: a number), and its share


@dataclass
class Argument:
    """An argument of the network, and the spots that it gives the value of."""

    name: str
    number: int
    spots: dict[int, int]  # by the id of a spot, the number that is written there
    uses: int  # in how many places of layers it is
    entry: int | None = None  # its place in the table of widths
    table: str = ""  # the name of the table

    @property
    def is_worth(self) -> bool:
        """True if several layers have the size, or the network is known by it."""
        is_one = self.number == 1 and self.name.startswith("out_")  # what the network tells is one number
        return (self.name in PLAIN and not is_one) or self.table == DEPTHS or (self.uses > 1 and self.number >= LEAST)

    def join(self, other: Argument) -> None:
        self.spots.update(other.spots)
        self.uses += other.uses

    @property
    def rank(self) -> int:
        """Its place among the arguments."""
        name = "num_layers" if self.table == DEPTHS else self.name
        return ORDER.index(name) if name in ORDER else len(ORDER)


@dataclass
class _Places:
    """The places that a class of sizes has in layers: the layer, the place in the call that makes it, and its path."""

    layers: list[tuple[str, Size, list[str]]]

    def __post_init__(self) -> None:
        # what has no layer is a part that the code splits
        making = [(layer, place, path) for layer, place, path in self.layers if not layer or layer in MAKING]
        self.outs = [(layer, path) for layer, place, path in making if not layer or place == (1,)]
        self.ins = [layer for layer, place, _ in making if layer and place == (0,)]
        self.kinds = {(layer, place) for layer, place, _ in self.layers}
        kinds = {layer for layer, _ in self.kinds}
        self.convolves = not kinds.isdisjoint(CONVOLUTIONS | TRANSPOSED)
        self.is_normed = not kinds.isdisjoint({"nn.LayerNorm", "nn.RMSNorm"})
        self.is_of_vectors = not kinds.isdisjoint({"nn.Embedding", "nn.LayerNorm", "nn.MultiheadAttention"})

    @property
    def is_hidden(self) -> bool:
        return any((layer, (1,)) in self.kinds for layer in RECURRENT | CELLS)

    @property
    def only_makes(self) -> bool:
        return bool(self.outs) and not self.ins

    def of_input(self, goes: bool) -> str:
        """Return the name of a size that the network takes, perhaps beside what it tells."""
        if self.only_makes:
            return "out_channels" if self.convolves else "out_features"
        if goes or not self.ins:
            return ""
        return "in_channels" if self.convolves else "input_size" if self.ins[0] in RECURRENT else "in_features"

    def inner(self, is_part: bool) -> str:
        """Return the name of a size within the network."""
        if self.is_of_vectors:
            return "dim"
        if any("dfl" in path and place == (0,) for _, place, path in self.layers):  # of a distribution over distances
            return "reg_max"
        if self.convolves:  # else it is what a head tells
            return "channels" if self.outs and (self.ins or is_part) else ""
        return "hidden_dim" if self.outs or self.ins else ""


class Roles:
    """What a class of sizes is for."""

    def __init__(self, module: ModuleDef, related: Related) -> None:
        self.related = related
        self.layers = {".".join(member.path): member.layer for member in module.members}  # none for a size of a part
        self.given = {argument.value for argument in module.inputs}
        self.returned = {name for output in module.outputs for name in refs(output)}
        assigns = [(s, called(s.value)[0]) for s in module.body if isinstance(s, Assign)]
        self.scored = self._classes_of({s.targets[0] for s, name in assigns if name in SCORES})
        outputs = self._classes_of(self.returned)
        sums = (parts for whole, parts in related.sums.items() if related.find(whole) in outputs)
        self.told = {related.find(part) for parts in sums for part in parts}
        self.classifies = any(name in SCORES[1:] and self.returned & {*s.targets} for s, name in assigns)

    def _classes_of(self, values: Collection[Hashable]) -> set[Size]:
        """Return the classes of sizes that some values have."""
        return {self.related.find(size) for size in self.related.value if size[0] in values}

    def is_width(self, place: Size) -> bool:
        """Return True if a place has the size of a layer's inputs or outputs."""
        return self.layers.get(str(place[0])) in SIZED and place[2:] in ((0,), (1,), ("groups",))

    def is_of_map(self, place: Size) -> bool:
        """Return True if a place has the channels of a map. The widths of vectors are others, even of equal number."""
        layer = self.layers.get(str(place[0]), "")
        return layer in CONVOLUTIONS | TRANSPOSED or (layer in NORMS and layer.endswith(("2d", "3d")))

    def is_taken(self, size: Size) -> bool:
        """Return True for an axis of an input of the network."""
        return not is_slot(size) and size[0] in self.given

    def taken(self, sizes: list[Size]) -> list[int]:
        """Return the channels that the network takes. What its first layer takes may be a multiple of them."""
        convolves = any(self.layers.get(str(size[0])) in CONVOLUTIONS for size in sizes if is_slot(size))
        values = [self.related.value[size] for size in sizes if convolves and self.is_taken(size)]
        return [value for value in values if isinstance(value, int)]

    def name(self, sizes: list[Size], is_part: bool = False) -> str:
        """Return the name of an argument, or "" if it is not clear what the size is for. `is_part`: of a sum."""
        slots = filter(is_slot, sizes)
        layers = [(self.layers.get(str(size[0]), ""), size[2:], str(size[0]).split(".")) for size in slots]
        tables = [(place, path) for layer, place, path in layers if layer == "nn.Embedding"]
        rows = [path for place, path in tables if place == (0,)]
        if rows:
            return "" if self._is_one_of_several(rows[0]) else _of_rows(rows[0])
        places = _Places(layers)
        if places.kinds == {("nn.MultiheadAttention", (1,))}:
            return HEADS
        comes = any(map(self.is_taken, sizes))
        if places.only_makes and (name := self._of_output(places, sizes, comes)):
            return name
        if places.is_hidden:
            return "hidden_size"  # also of a state that the network is given
        if comes:
            return places.of_input(self._goes(sizes))
        return "" if any(self._is_one_of_several(path) for _, path in tables) else places.inner(is_part)

    def _goes(self, sizes: list[Size]) -> bool:
        return any(size[0] in self.returned for size in sizes if not is_slot(size))

    def _of_output(self, places: _Places, sizes: list[Size], comes: bool) -> str:
        """Return the name of a size that the network tells, or "": of classes if there are scores of them."""
        if self._goes(sizes) and not comes and not places.is_normed:
            heads = (_stem(path) for layer, path in places.outs if layer not in TRANSPOSED)
            if self.classifies or any(map(CLASSES.search, heads)):
                return "num_classes"
            return "out_channels" if places.convolves else "out_features"
        return "num_classes" if self.related.find(sizes[0]) in self.told & self.scored else ""

    def _is_one_of_several(self, path: list[str]) -> bool:
        """True for a table in a list of tables that have other numbers of rows."""
        *around, number = path
        others = (other for other, layer in self.layers.items() if layer == "nn.Embedding")
        alike = [other for other in others if other.split(".")[:-1] == around] if number.isdigit() else []
        return len({self.related.value.get((other, "in", 0)) for other in alike}) > 1


ATTENDING = frozenset(["nn.MultiheadAttention"])
SIZED = CONVOLUTIONS | TRANSPOSED | NORMS - {"nn.GroupNorm"} | ATTENDING | {"nn.Linear", "nn.Embedding"}
MAKING = CONVOLUTIONS | TRANSPOSED | {"nn.Linear", "nn.Embedding", *RECURRENT, *CELLS}


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
    if stem in SIDES:
        return f"{SIDES[stem]}_{VOCABULARY_SIZE}"
    if not stem or VOCABULARY.search(stem):
        return VOCABULARY_SIZE
    return f"num_{stem}" if len(stem) > 2 else ""


def choose(
    candidates: list[Argument], written: Iterable[Mapping[int, Width]], inner: Mapping[int, int]
) -> list[Argument]:
    """Return the arguments.

    A width is no argument if a class that has it also has its number where it does not reach: who changes it would
    change half.

    Args:
        candidates: one for each class of sizes.
        written: for each class of the file, the sizes of layers in its text, by spot.
        inner: the spots of widths that are only within a block, each with that of the width which the block takes.
    """
    worth = [argument for argument in _merged(_outer(candidates, inner)) if argument.is_worth]
    reached = {spot for argument in worth for spot in argument.spots} | inner.keys()
    half = {spot for text in written for spot, number in text.items() if number in _rest(text, reached)}
    kept = [a for a in worth if a.name not in WIDTHS or half.isdisjoint(a.spots)]
    kept = _one_of_two(_one_of_two(kept, TELLING, VOCABULARIES), ["hidden_dim"], ["hidden_size", "dim"])
    least = MOST * sum(len(text.keys() - _ends(kept)) for text in written)
    return _first(sorted(_with_tables(_of_base(kept, least)), key=lambda argument: argument.rank))


def _merged(candidates: list[Argument]) -> list[Argument]:
    """Return one argument for each name and number."""
    same: dict[tuple[str, int], Argument] = {}
    for argument in candidates:
        first = same.setdefault((argument.name, argument.number), argument)
        if first is not argument:
            first.join(argument)
    return [*same.values()]


def _of_base(arguments: list[Argument], least: float) -> list[Argument]:
    """Let all widths follow from one, if they can; without widths if they reach less than `least` spots."""
    widths = [argument for argument in arguments if argument.name in WIDTHS]
    if sum(len(argument.spots) for argument in widths) < least:
        return [argument for argument in arguments if argument not in widths]
    base = _base(widths) if widths else None
    if base is None or _is_table([width for width in widths if width.name == base.name], base):
        return arguments
    return _joined(arguments, base)


def _with_tables(arguments: list[Argument]) -> Iterator[Argument]:
    """Yield one argument of each name, or all widths of a name as a table."""
    for name in dict.fromkeys(argument.name for argument in arguments):
        alike = [argument for argument in arguments if argument.name == name]
        if name in WIDTHS and 1 < len(alike) <= TABLE:
            for entry, argument in enumerate(alike):
                argument.entry, argument.table = entry, TABLES.get(name, f"{name}s")
            yield from alike
        else:
            yield max(alike, key=lambda argument: len(argument.spots))  # the commonest of a name has it


def _one_of_two(arguments: list[Argument], names: Collection[str], others: Collection[str]) -> list[Argument]:
    """Let an argument of one of some names be one of the others that has its number, if no table has either."""
    counts = Counter(argument.name for argument in arguments)
    alone = {
        argument.number: argument for argument in arguments if argument.name in others and counts[argument.name] == 1
    }
    kept: list[Argument] = []
    for argument in arguments:
        other = alone.get(argument.number) if argument.name in names and counts[argument.name] == 1 else None
        if other is None:
            kept.append(argument)
        else:
            other.join(argument)
    return kept


def _rest(text: Mapping[int, Width], reached: set[int]) -> set[Width]:
    """Return the numbers of a class that no argument reaches."""
    return {number for spot, number in text.items() if spot not in reached}


def _ends(arguments: list[Argument]) -> set[int]:
    """Return the spots of what is no width: what the network takes and tells."""
    return {spot for argument in arguments if argument.name not in WIDTHS for spot in argument.spots}


def _first(chosen: list[Argument]) -> list[Argument]:
    """Return the first arguments, of which a table is one."""
    names = [*dict.fromkeys(argument.table or argument.name for argument in chosen)][:MAX_ARGUMENTS]
    return [argument for argument in chosen if (argument.table or argument.name) in names]


def _outer(candidates: list[Argument], inner: Mapping[int, int]) -> list[Argument]:
    """Let the widths within blocks follow from those that the blocks take if they are multiples; else they are numbers.

    A width that is also one between blocks is none of them.
    """
    of = {spot: argument for argument in candidates for spot in argument.spots}
    kept: list[Argument] = []
    for argument in candidates:
        if argument.name not in WIDTHS or not argument.spots.keys() <= inner.keys():
            kept.append(argument)
            continue
        outer = {id(base): base for spot in argument.spots if (base := of.get(inner[spot]))}
        base = next(iter(outer.values())) if len(outer) == 1 else None
        if base is not None and base.name in WIDTHS and follows(argument, base):
            base.join(argument)
        elif argument.name != "channels":  # an MLP's is chosen; a squeezed map's depends on others
            kept.append(argument)
    return kept


def _joined(arguments: list[Argument], base: Argument) -> list[Argument]:
    """Let a width give those that are equal to it or follow from it."""
    kept: list[Argument] = []
    for other in arguments:
        # not the width of an input: the network would take others than its caller has
        is_equal = other.name in ("out_features", *WIDTHS) and other.number == base.number
        if other is not base and (is_equal or (other.name in WIDTHS and follows(other, base))):
            base.join(other)
        else:
            kept.append(other)
    return kept


def _base(widths: list[Argument]) -> Argument:
    """Return the width that most of the others follow from."""
    # a number that is written once may be that of coordinates, of which the others are multiples by accident
    often = [argument for argument in widths if len(argument.spots) > 1] or widths
    return max(often, key=lambda a: (sum(len(o.spots) for o in widths if follows(o, a)), a.number, a.rank))


def _is_table(widths: list[Argument], base: Argument) -> bool:
    """True for a few widths that are written one by one, not as multiples of one of them.

    They do not all follow from it, or they are those of convolutions and hardly a number is a multiple of them.
    """
    factors = ({number // width.number for number in width.spots.values()} for width in widths)
    is_plain = all(len(own & {*FACTORS}) <= 2 for own in factors)  # with what a concatenation makes of it
    is_free = not all(follows(width, base) for width in widths)
    return 1 < len(widths) <= TABLE and (is_free or (base.name == "channels" and is_plain))


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


def total(parts: Iterable[tuple[Argument | None, int]], names: Mapping[int, str]) -> ast.expr:
    """Return what is written for a sum. A part without an argument is a number, which stands last."""
    numbers: Counter[int] = Counter()
    of: dict[int, Argument] = {}
    for argument, number in parts:
        numbers[id(argument)] += number
        if argument is not None:
            of[id(argument)] = argument
    terms: list[ast.expr] = [expression(numbers[key], argument, names[key]) for key, argument in of.items()]
    rest = numbers[id(None)]
    if rest or not terms:
        terms.append(ast.Constant(rest))
    first, *others = terms
    return reduce(lambda left, right: ast.BinOp(left, ast.Add(), right), others, first)


def number_of(values: Iterable[int]) -> int | None:
    """Return the least of the numbers of a class of sizes, if all others are multiples of it."""
    least = min(values)
    return least if least and not any(value % least for value in values) else None
