"""Families: networks of a library that a configuration makes, as patterns of steps with unknown sizes.

`families.json` has a pattern for each class, made by `python -m benchmarks.families`: the steps of the class, whose
numbers are expressions of the sizes (`d`: width, `L`: blocks, `h`: heads, ...). `solve` finds the sizes that give the
steps of a file. They are put into the pattern again and compared with all steps, so a wrong size matches nothing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from onnxgen.identify.steps import Bag

FILE = Path(__file__).with_name("families.json")
NUMBER = re.compile(r"\d+")
Sizes = dict[str, int]


@dataclass(frozen=True)
class Line:
    """A step of a pattern: how often it is there, its label with `#` for each number, and the numbers."""

    count: str
    skeleton: str
    numbers: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """A class of a library.

    Attributes:
        name: the class, and `config`, that of its configuration.
        library: where they are from.
        sizes: the argument of the configuration for each size of the pattern.
        fixed: further arguments, which the pattern was made with.
        tables: arguments for the number of rows of the tables: of "words", "positions" and "types".
        positions_of_words: the rows of positions are computed of the words (RoBERTa).
        shared: all blocks have the same weights.
    """

    name: str
    config: str
    library: str
    sizes: Mapping[str, str]
    fixed: Mapping[str, Any]
    tables: Mapping[str, str]
    positions_of_words: bool
    shared: bool
    lines: tuple[Line, ...]

    def solve(self, bag: Bag) -> Sizes | None:
        """Return the sizes of a network with these steps, or None."""
        there: dict[str, list[tuple[tuple[int, ...], int]]] = {}
        for label, count in bag.items():
            there.setdefault(NUMBER.sub("#", label), []).append((tuple(map(int, NUMBER.findall(label))), count))
        if there.keys() != {line.skeleton for line in self.lines}:
            return None
        sizes: Sizes = {}
        for line in self.lines:
            if not line.numbers and not bind(line.count, there[line.skeleton][0][1], sizes):
                return None
        unsolved = sorted((line for line in self.lines if line.numbers), key=lambda line: len(there[line.skeleton]))
        return next((found for found in _bound(unsolved, there, sizes) if self.bag(found) == bag), None)

    def bag(self, sizes: Sizes) -> Bag | None:
        """Return the steps of a network with these sizes; None if there can't be one."""
        bag: Bag = Counter()
        for line in self.lines:
            count, numbers = value_of(line.count, sizes), [value_of(number, sizes) for number in line.numbers]
            if count is None or None in numbers:
                return None
            bag[line.skeleton.replace("#", "{}").format(*numbers)] += count
        return bag


def _bound(
    lines: Sequence[Line], there: Mapping[str, list[tuple[tuple[int, ...], int]]], sizes: Sizes
) -> Iterator[Sizes]:
    """Yield sizes with which each line may be one of the file's labels."""
    if not lines:
        yield sizes
        return
    for numbers, _ in there[lines[0].skeleton]:
        more = dict(sizes)
        if all(bind(text, number, more) for text, number in zip(lines[0].numbers, numbers, strict=True)):
            yield from _bound(lines[1:], there, more)


def bind(text: str, number: int, sizes: Sizes) -> bool:
    """Make an expression have a value, if only one size of it is unknown. Returns False if it has another."""
    unknown = {name for name in re.findall("[a-zA-Z]+", text) if name not in sizes}
    if not unknown:
        return value_of(text, sizes) == number
    if len(unknown) > 1:
        return True
    (name,) = unknown
    zero, one = (_evaluated(text, {**sizes, name: value}) for value in (1, 2))
    if zero is None or one is None or one == zero:
        return True
    found = 1 + (number - zero) / (one - zero)
    if f"/{name}" in text:
        found = zero / number if "+" not in text and number else Fraction(0)
        if not found:
            return True  # not linear: another line says it
    if found.denominator != 1 or found < 1:
        return False
    sizes[name] = int(found)
    return True


def value_of(text: str, sizes: Sizes) -> int | None:
    """Return the value of an expression if all its sizes are known and it is a whole number."""
    value = _evaluated(text, sizes)
    return None if value is None or value.denominator != 1 else int(value)


def _evaluated(text: str, sizes: Sizes) -> Fraction | None:
    total = Fraction(0)
    for minus, term in re.findall(r"([+-]?)([^+-]+)", text):
        product = Fraction(-1 if minus == "-" else 1)
        for sign, factor in re.findall(r"([*/]?)(\w+)", term):
            value = int(factor) if factor.isdigit() else sizes.get(factor)
            if value is None or (sign == "/" and value == 0):
                return None
            product = product / value if sign == "/" else product * value
        total += product
    return total


@cache
def families(file: Path = FILE) -> tuple[Family, ...]:
    """Read the patterns."""
    found = json.loads(file.read_text(encoding="utf-8"))
    return tuple(
        Family(
            name=entry["name"],
            config=entry["config"],
            library=entry["library"],
            sizes=entry["sizes"],
            fixed=entry["fixed"],
            tables=entry["tables"],
            positions_of_words=entry["positions_of_words"],
            shared=entry["shared"],
            lines=tuple(_line(text) for text in found["patterns"][entry["pattern"]]),
        )
        for entry in found["families"]
    )


def _line(text: str) -> Line:
    count, _, label = text.partition(": ")
    numbers = re.findall(r"\{([^}]*)\}", label)
    return Line(count, re.sub(r"\{[^}]*\}", "#", label), tuple(numbers))
