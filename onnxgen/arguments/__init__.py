"""Sizes of the network as arguments of its constructor: `Model(num_classes=10, channels=32)`.

Goes in: the classes, in which all sizes are numbers. Comes out: the classes with arguments whose defaults are these
numbers. `rules.py` says which sizes may change and which change together, `written.py` where they are written, and
`names.py` which of them are worth an argument. `counts.py` finds numbers of blocks and of heads.
"""

from __future__ import annotations

from collections import defaultdict

from onnxgen.arguments.counts import attentions, with_depths, with_heads, with_parts
from onnxgen.arguments.names import ATTENDING, LAYERS, MAKING, Argument, Roles, Sums, Width, choose, number_of
from onnxgen.arguments.rules import relate
from onnxgen.arguments.sizes import Related, Size, Terms, is_slot
from onnxgen.arguments.written import Reader, spots_of, write
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
        for tried, parts in (with_parts(spotted), (spotted, {})):
            reader = Reader(tried, specification)
            chosen = _arguments(relate(module), reader, module, [*numbers, *heads], parts)
            if not parts or any(spot in argument.spots for argument in chosen[0] for spot in parts.values()):
                return write(tried, *chosen, module.reserved)
    except Unreadable:  # the checker will say so
        pass
    return classes


def _arguments(
    related: Related, reader: Reader, module: ModuleDef, arguments: list[Argument], parts: dict[Size, int]
) -> tuple[list[Argument], Sums]:
    """Return the arguments that the network can have, and the sums of them.

    Args:
        arguments: those for numbers of blocks and heads.
        parts: the spots of sizes that `forward` names.
    """
    places = _placed(related, reader, parts)
    spot_of = {place: spot for spot, tied in places.items() for place in tied}
    sums = _sums(related, reader, spot_of)
    summed = _shares(sums)
    roles = Roles(module, related)
    arguments, first = [*arguments], dict[Size, int]()
    for sizes in related.classes():
        slots = [*filter(is_slot, sizes)]
        spots = {spot_of.get(slot, 0) for slot in slots}
        if not slots or not spots.isdisjoint({0, *sums}):
            continue  # a size that no number of its own in the text gives
        spots |= reader.like(spots) - places.keys()
        numbers = {spot: reader.number_at(spot) for spot in spots}
        shares = summed[related.find(sizes[0])]
        number = number_of([*numbers.values(), *roles.taken(sizes), *shares])
        if number is not None and (name := roles.name(sizes, bool(shares))):
            arguments.append(Argument(name, number, numbers, len(slots) + len(shares)))
            first[related.find(sizes[0])] = min(spots)
    parts_of = {spot: [(first.get(part, 0), int(n)) for part, n in terms.items()] for spot, terms in sums.items()}
    fixed = {spot for spot, terms in parts_of.items() if any(part for part, _ in terms)}
    return choose(arguments, _widths(related, reader, roles, spot_of, fixed), reader.inner), parts_of


def _shares(sums: dict[int, Terms]) -> dict[Size, list[int]]:
    """Return the shares that each class of sizes has of sums."""
    shares: dict[Size, list[int]] = defaultdict(list)
    for terms in sums.values():
        for part, share in terms.items():
            shares[part].append(int(share))
    return shares


def _widths(
    related: Related, reader: Reader, roles: Roles, spot_of: dict[Size, int], fixed: set[int]
) -> list[dict[int, Width]]:
    """Return the widths in the text of each class, by spot, but for those that arguments give as sums (`fixed`)."""
    widths = {spot for place, spot in spot_of.items() if roles.is_width(place) and related.value.get(place) != 1}
    mapped = {spot for place, spot in spot_of.items() if roles.is_of_map(place)}
    return [
        {spot: (spot in mapped, reader.number_at(spot)) for spot in text & (widths - fixed)} for text in reader.texts
    ]


def _placed(related: Related, reader: Reader, parts: dict[Size, int]) -> dict[int, list[Size]]:
    """Return the places of each number of the text, and tie them: one number is all of them."""
    places: dict[int, list[Size]] = defaultdict(list)
    for place, spot in (*reader.reached(), *parts.items()):
        places[spot].append(place)
    for spot, tied in places.items():
        known = [place for place in tied if place in related.value]
        for place in known[1:]:
            related.tie(known[0], place)
        if len(known) < len(tied) or spot in reader.spoilt:
            related.fix(known)
    return places


def _sums(related: Related, reader: Reader, spot_of: dict[Size, int]) -> dict[int, Terms]:
    """Return what each number of the text follows from that is a sum of sizes."""
    while True:
        related.settle()
        sums: dict[int, Terms] = {}
        lost: list[Size] = []
        totals = {related.find(total) for total in related.sums}
        for sizes in related.classes() if totals else ():
            first = related.find(sizes[0])
            for size in filter(is_slot, sizes if first in totals and first not in related.terms(first) else ()):
                spot = spot_of.get(size, 0)
                terms = related.terms(size)
                if spot:  # a place may have half of the number that is written
                    written, number = reader.number_at(spot), related.value[size]
                    terms = sums[spot] = {part: share * written / number for part, share in terms.items()}  # type: ignore
                if not spot or any(share.denominator > 1 for share in terms.values()):
                    lost.append(size)
        if not lost:
            return sums
        related.fix(lost)
