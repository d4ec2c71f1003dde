"""Flags that follow from sizes.

if downsample:                         if in_channels != out_channels:
if residual:                           if stride == 1 and in_channels == out_channels:

Goes in: the parameters of a class, and the instances that have an optional part. Comes out: the condition that holds
for exactly these instances. There is one for a residual, and for a part that leads from one size to another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxgen.structure.parameters import Group

RESIDUAL = "residual"
UNITS = ("channels", "features")


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
    for a, b in _residual(free) if name == RESIDUAL else _led(only, free):
        begins, ends = a.numbers, b.numbers
        if not begins or len(ends) < len(instances) or not only <= begins.keys():
            continue
        differ = frozenset(i for i in instances if begins.get(i, ends[i]) != ends[i])
        moves = frozenset(i for g in strided for i, stride in g.texts.items() if stride != "1")
        if name == RESIDUAL:
            rules, wanted = {"{0} == {1}": differ}, frozenset(instances) - only
            rules = {"{2} == 1 and {0} == {1}": differ | moves} | rules if strided else rules
        else:
            rules, wanted = {"{0} != {1}": differ}, only
            is_strided = any(use.column.keys() == only for g in strided for use in g.uses)
            rules = {"{2} != 1 or {0} != {1}": differ | moves} | rules if is_strided else rules
        rule = next((rule for rule, holds in rules.items() if holds == wanted), None)
        if rule is not None and differ:
            a.texts.update((i, b.texts[i]) for i in instances if i not in begins)
            return Condition(rule, [a, b, *strided])
    return None


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
