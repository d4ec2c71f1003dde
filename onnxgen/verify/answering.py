"""Find inputs that an oracle accepts: drawn ones, or those that a person gave."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, product
from typing import TYPE_CHECKING, Any

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError
from onnxgen.verify import feeds as drawing
from onnxgen.verify import sizes as sizing
from onnxgen.verify.limits import LOOP_SECONDS
from onnxgen.verify.oracle import Answer, Oracle, RanOn, Refused, oracles
from onnxgen.verify.stacked import Stacked

if TYPE_CHECKING:
    from onnxgen.verify.check import Check

MAX_REFUSALS = 120  # inputs that an oracle may refuse before it is given up
MAX_REFUSALS_SHOWN = 3  # refusals in the notes
MAX_RAN_ON = 2  # inputs for which a loop may run on before it is given up
OWN_INPUTS = "fix sizes with --sizes NAME=N, or give inputs of your own with --inputs FILE.npz"
_Input = tuple[sizing.Sizes, int, dict[str, Any]]  # sizes of dynamic dims, the seed, and the inputs by name


def answers(check: Check, runs: int, seed: int, feeds: Sequence[Mapping[str, Any]] | None) -> Iterator[Answer]:
    """Yield inputs that an oracle accepts, with its outputs. Raises `OnnxgenError` if there are none."""
    graph, part = check.graph, check._part()
    how = partial(oracles, without_dropout=graph.training, part=part, exact=graph.multiplies_bytes)
    for oracle in how(check.path, new_ops=check.new_ops):
        if isinstance(oracle, Refused):
            check.refusals.append(str(oracle))
            check.notes.append(str(oracle))
            continue
        oracle.seconds = LOOP_SECONDS if check.graph.loops and feeds is None else None
        if check.freed is not None:
            oracle = Stacked(oracle, check.freed, check.graph.outputs)
        used: list[sizing.Sizes] = []
        check.only_reference, check.loads_elsewhere = check.loads_elsewhere, True
        for run in range(runs if feeds is None else len(feeds)):
            tries = _drawn(check, run, seed, used) if feeds is None else _own(check, feeds[run])
            answer = _answer(check, oracle, tries, bool(used))
            if answer is None and not used:
                break
            if answer is not None:
                used.append(answer.sizes)
                yield answer
        if used:
            if used[0] and len(used) > 1 and all(u == used[0] for u in used):
                check.notes.append(f"of the sizes tried for dynamic dims, only {_sizes(used[0])} runs")
            return
    reasons = "; ".join(dict.fromkeys(check.refusals[:1] + check.refusals[-1:]))
    way_out = OWN_INPUTS
    if check.unsaid:
        way_out = f"give a reference for {', '.join(check.unsaid)} in a --plugin: @onnxgen.op(..., reference=...)"
    what = f"could not verify {check.path}: onnxruntime and onnx.reference refused all inputs that were tried"
    raise OnnxgenError(f"{what} ({reasons})", help=way_out)


def _drawn(check: Check, run: int, seed: int, used: list[sizing.Sizes]) -> Iterator[_Input]:
    """Yield inputs to try: those with new sizes first, cautious values only after all sizes."""
    candidates = list(sizing.sizes(check.graph, run, check.sizes))
    candidates.sort(key=lambda c: c in used)
    number = seed * 1000 + run
    shapes = range(len(drawing.UNRANKED) if drawing.is_unranked(check.graph) else 1)
    near = check.approximation
    for spread, sizes, unranked in product(drawing.spreads(run), candidates, shapes):
        feeds = drawing.draw(check.graph, sizes, spread, number, None if near is None else near.inputs, unranked)
        yield sizes, number, feeds if near is None else near.within(feeds)


def _own(check: Check, feeds: Mapping[str, Any]) -> Iterator[_Input]:
    names = [name for name, _, _ in check.graph.inputs]
    wrong = sorted(set(names) ^ set(feeds))
    if wrong:
        raise OnnxgenError(f"the given inputs do not match the graph: {', '.join(map(printable, wrong))}")
    yield {}, 0, {name: feeds[name] for name in names}


def _answer(check: Check, oracle: Oracle, tries: Iterator[_Input], has_others: bool) -> Answer | None:
    """Return the answer to the first inputs that the oracle accepts. `has_others`: it has answered in other runs."""
    ran_on = 0
    for sizes, seed, feeds in islice(tries, MAX_REFUSALS):
        started = time.monotonic()
        try:
            outputs = oracle.run(feeds)
            return Answer(sizes, seed, feeds, oracle, outputs, time.monotonic() - started)
        except Refused as refusal:
            ran_on += isinstance(refusal, RanOn) and oracle.seconds is not None
            if ran_on == MAX_RAN_ON:
                line = f"with inputs that were drawn, a loop of the file runs on: {oracle.name}, {refusal}"
                if has_others:
                    check.notes.append(f"a run was not compared: {line} ({OWN_INPUTS})")
                    return None
                raise OnnxgenError(f"could not verify {check.path}: {line}", help=OWN_INPUTS) from None
            line = f"{oracle.name} refused inputs with {_sizes(sizes)}: {refusal}"
            if line not in check.refusals and len(check.refusals) < MAX_REFUSALS_SHOWN:
                check.notes.append(line)
            check.refusals.append(line)
    return None


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{printable(name)}={size}" for name, size in sizes.items()) or "the file's own sizes"
