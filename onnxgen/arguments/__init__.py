"""Sizes of the network as arguments of its constructor: `Model(num_classes=10, channels=32)`.

Goes in: the classes, in which all sizes are numbers. Comes out: the classes with arguments whose defaults are these
numbers. `rules.py` says which sizes may change and which change together, `written.py` where they are written,
`names.py` which of them are worth an argument, and `writing.py` writes it. `depths.py` finds numbers of blocks,
`heads.py` those of heads.
"""

from __future__ import annotations

from collections import defaultdict

from onnxgen.arguments.depths import with_depths
from onnxgen.arguments.heads import attentions, with_heads
from onnxgen.arguments.names import ATTENDING, LAYERS, MAKING, Argument, Roles, choose, number_of
from onnxgen.arguments.rules import relate
from onnxgen.arguments.sizes import Related, is_slot
from onnxgen.arguments.writing import spots_of, write
from onnxgen.arguments.written import Reader
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.module_def import ModuleDef
from onnxgen.validate.flat import Specification
from onnxgen.validate.values import Unreadable


def with_arguments(classes: list[ClassTree], module: ModuleDef, specification: Specification) -> list[ClassTree]:
    """Return the classes with arguments for sizes that may change. A network of a layer or two needs none."""
    if sum(member.layer in MAKING | ATTENDING for member in module.members) + attentions(module) < LAYERS:
        return classes
    spotted, numbers = with_depths(spots_of(classes), module)
    spotted, heads = with_heads(spotted, module)
    try:
        reader = Reader(spotted, specification)
    except Unreadable:  # the checker will say so
        return classes
    return write(spotted, _arguments(relate(module), reader, module, [*numbers, *heads]), module.reserved)


def _arguments(related: Related, reader: Reader, module: ModuleDef, made: list[Argument]) -> list[Argument]:
    """Return the arguments that the network can have. `made`: those for numbers of blocks and heads."""
    places = defaultdict(list)
    for place, spot in reader.reached():
        places[spot].append(place)
    spot_of = {place: spot for spot, found in places.items() for place in found}
    for spot, found in places.items():
        known = [place for place in found if place in related.value]
        for place in known[1:]:
            related.tie(known[0], place)  # one number in the text is all of them
        if len(known) < len(found) or spot in reader.spoilt:
            related.fix(known)
    roles = Roles(module, related)
    made = [*made]
    for sizes in related.classes():
        slots = [size for size in sizes if is_slot(size)]
        spots = {spot_of.get(slot, 0) for slot in slots}
        if not slots or 0 in spots:
            continue  # a size that no number of its own in the text gives
        spots |= {other for other, like in reader.equal.items() if other not in places and like <= spots}
        numbers = {spot: int(reader.spots[spot].value) for spot in spots}  # type: ignore[arg-type]
        number = number_of([*numbers.values(), *roles.taken(sizes)])
        if number is not None and (name := roles.name(sizes)):
            made.append(Argument(name, number, numbers, len(slots)))
    widths = {spot for place, spot in spot_of.items() if roles.is_width(place) and related.value.get(place) != 1}
    return choose(made, {spot: int(reader.spots[spot].value) for spot in widths if spot})  # type: ignore[arg-type]
