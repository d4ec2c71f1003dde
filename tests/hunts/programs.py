"""Drawn programs: what modules compute, blocks that repeat, and how one of them differs from the others."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field

from tests.hunts.emitting import Emitter
from tests.hunts.instructions import ONE, RARE, TWO, Attrs, attributes

PLACES = ("fc", "conv", "norm", "act", "attn", "q_proj", "mlp.fc1", "mlp.fc2", "0", "1", "2", "3", "", "sub.0", "relu")
LISTS = ("layers", "net", "blocks", "stages.0", "body.layer", "encoder.h")
FAR = 100  # arguments from here on are any value made before, in whatever scope


@dataclass
class Step:
    """One instruction, or a call of a program, in a submodule of its own if it has a name.

    Attributes:
        args: which values it takes: the program's inputs, then what each step made.
    """

    name: str
    op: str
    args: list[int]
    attrs: Attrs = field(default_factory=dict)
    program: Program | None = None


@dataclass
class Program:
    inputs: int
    steps: list[Step]
    result: int


def emit(e: Emitter, program: Program, given: list[str], pool: list[str]) -> str:
    """Write the nodes of a program; `pool`: all values so far, to which its own are added."""
    values = list(given)
    for step in program.steps:
        args = [pool[a % len(pool)] if a >= FAR else values[a % len(values)] for a in step.args]
        with e.inside(step.name):
            if step.program is not None:
                made = emit(e, step.program, args, pool)
            else:
                made = (ONE.get(step.op) or TWO[step.op])(e, step.attrs, *args)
        values.append(made)
        pool.append(made)
    return values[program.result % len(values)]


class Drawer:
    """Draws programs of the instructions that a graph can have."""

    def __init__(self, rng: random.Random, usable: list[str]) -> None:
        self.rng = rng
        common = [n for n in usable if n not in RARE]
        self.ops = rng.sample(common, min(len(common), rng.randint(2, 6))) + ["unary"]
        self.ops += rng.sample(RARE, 1) if rng.random() < 0.25 else []
        self.ops = [o for o in self.ops if o in usable]
        self.crossing = rng.choice((0.0, 0.0, 0.05, 0.2))

    def step(self, before: int, name: str | None = None) -> Step:
        """One that takes, most often, what the last one made; `before`: how many values there are."""
        op = self.rng.choice(self.ops)
        args = [self.argument(before) for _ in range(2 if op in TWO else 1)]
        if len(args) == 2 and self.rng.random() < 0.6:
            args[1] = self.rng.randrange(before)
        if self.rng.random() < 0.3:
            args.reverse()
        named = self.rng.choice(PLACES) if name is None else name
        return Step(named, op, args, attributes(self.rng))

    def argument(self, before: int) -> int:
        if self.rng.random() < self.crossing:
            return FAR + self.rng.randrange(FAR)
        return before - 1 if self.rng.random() < 0.75 else self.rng.randrange(before)

    def block(self, inputs: int, depth: int) -> Program:
        program = Program(inputs, [], -1)
        for _ in range(self.rng.randint(1, 4)):
            before = inputs + len(program.steps)
            if depth and self.rng.random() < 0.25:
                program.steps += self.element(before, depth - 1).steps
            else:
                program.steps.append(self.step(before))
        if self.rng.random() < 0.3:  # a residual
            before = inputs + len(program.steps)
            binary = next((o for o in self.ops if o in ("add", "binary")), "add")
            program.steps.append(Step("", binary, [before - 1, 0][:: self.rng.choice((1, -1))], attributes(self.rng)))
        if self.rng.random() < 0.1:
            program.result = -2
        return program

    def element(self, before: int, depth: int) -> Program:
        """Some steps: a run of blocks, a Sequential, one block called again, or a single step."""
        kind = self.rng.choice(("blocks", "blocks", "blocks", "sequential", "again", "step"))
        if kind == "step":
            return Program(before, [self.step(before)], -1)
        prefix, count = self.rng.choice(LISTS), self.rng.randint(2, 4)
        numbers = self.numbers(count)
        if kind == "sequential":
            drawn = [self.step(before + k, f"{prefix}.{n}") for k, n in enumerate(numbers)]
            for k, step in enumerate(drawn):
                if self.rng.random() < 0.9:
                    step.args[0] = before + k - 1
            return Program(before, drawn, -1)
        inputs = self.rng.choice((1, 1, 1, 2))
        base = self.block(inputs, depth)
        fixed = self.rng.randrange(before)
        steps: list[Step] = []
        for k, n in enumerate(numbers):
            args = [before + k - 1 if self.rng.random() < 0.9 else self.argument(before + k), fixed][:inputs]
            if kind == "again" and k:
                steps.append(Step(steps[0].name, "", args, {}, steps[0].program))
                continue
            one = self.odd(base) if self.rng.random() < 0.35 else copy.deepcopy(base)
            steps.append(Step(f"{prefix}.{n}", "", args, {}, one))
        return Program(before, steps, -1)

    def numbers(self, count: int) -> list[int]:
        """Of the items of a list: without gaps most often, else with some, or out of order."""
        kind = self.rng.random()
        if kind < 0.7:
            return list(range(count))
        if kind < 0.85:
            return sorted(self.rng.sample(range(6), count))
        return self.rng.sample(range(count + 1), count)

    def odd(self, base: Program) -> Program:
        """The program with one difference."""
        program = copy.deepcopy(base)
        steps, rng = program.steps, self.rng
        if not steps:
            return program
        k = rng.randrange(len(steps))
        one = steps[k]
        if one.program is not None and rng.random() < 0.6:
            one.program = self.odd(one.program)
            return program
        change = rng.randrange(8)
        if change == 0:
            one.args.reverse()
        elif change == 1 and one.attrs:
            one.attrs = attributes(rng)
        elif change == 2 and one.attrs:
            key = rng.choice(list(one.attrs))
            one.attrs = {**one.attrs, key: attributes(rng)[key]}
        elif change == 3:
            steps[k] = self.step(program.inputs + k, one.name)
        elif change == 4:
            self._insert(program, k)
        elif change == 5 and len(steps) > 1:
            self._remove(program, k)
        elif change == 6 and k:
            steps[k - 1], steps[k] = steps[k], steps[k - 1]
        else:
            one.args[rng.randrange(len(one.args))] = rng.randrange(program.inputs + k)
        return program

    def _insert(self, program: Program, k: int) -> None:
        """One more step before the k-th, whose value takes the place of what that step got."""
        at = program.inputs + k
        new = self.step(at)
        for step in program.steps[k:]:
            step.args = [a + 1 if at <= a < FAR else a for a in step.args]
        after = program.steps[k]
        new.args[0], after.args[0] = after.args[0], at
        if new.args[0] == at:
            new.args[0] = at - 1
        program.steps.insert(k, new)

    def _remove(self, program: Program, k: int) -> None:
        """Without the k-th step: what it got is passed on."""
        at = program.inputs + k
        gone = program.steps.pop(k)
        for step in program.steps[k:]:
            step.args = [gone.args[0] if a == at else a - 1 if at < a < FAR else a for a in step.args]
