"""Find inputs that an oracle accepts: drawn ones, or those that a person gave."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, product
from typing import TYPE_CHECKING, Any

from onnxgen.common.crashes import CRASHES
from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError
from onnxgen.verify import feeds as drawing
from onnxgen.verify import sizes as sizing
from onnxgen.verify.limits import LOOP_SECONDS
from onnxgen.verify.multiples import described, fit, steps
from onnxgen.verify.oracle import Answer, Onnxruntime, Oracle, RanOn, Refused, oracles
from onnxgen.verify.stacked import Stacked
from onnxgen.verify.vivid import vivid

if TYPE_CHECKING:
    from onnxgen.verify.check import Check

MAX_REFUSALS = 120  # inputs that an oracle may refuse before it is given up
MAX_SETTLED_REFUSALS = 6  # the same, if the sizes are those that the module was generated for
MAX_REFUSAL_SHOWN = 120  # characters of an oracle's reason in a note
MAX_PROBE_SECONDS = 1.0  # an oracle that takes longer for one run is not asked which sizes it takes
# how onnxruntime says which node failed, before it says why
NODE = re.compile(r".*running (\w+) node\. Name:('[^']*') Status Message: (?:/\S*:\d+ )?")
SHORT = r"\1 \2, "
MAX_RAN_ON = 2  # inputs for which a loop may run on before it is given up
OWN_INPUTS = "fix sizes with --sizes NAME=N, or give inputs of your own with --inputs FILE.npz"
_Input = tuple[sizing.Sizes, int, dict[str, Any]]  # sizes of dynamic dims, the seed, and the inputs by name


def answers(check: Check, runs: int, seed: int, feeds: Sequence[Mapping[str, Any]] | None) -> Iterator[Answer]:
    """Yield inputs that an oracle accepts, with its outputs. Raises `OnnxgenError` if there are none."""
    graph, part = check.graph, check._part()
    how = partial(oracles, without_dropout=graph.training, part=part, exact=graph.multiplies_bytes)
    settled = bool(check.options.input_shapes) and sizing.is_settled(graph)
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
            before = len(check.refusals)
            most = MAX_SETTLED_REFUSALS if settled else MAX_REFUSALS
            answer = _answer(check, oracle, islice(tries, most), bool(used))
            if answer is not None and feeds is None:
                answer = _told_by(check, answer)
            _note_refusals(check, oracle, check.refusals[before:], answer)
            if answer is None and not used:
                break
            if answer is not None:
                used.append(answer.sizes)
                yield answer
        if used:
            if used[0] and len(used) > 1 and all(u == used[0] for u in used):
                check.notes.append(f"of the sizes tried for dynamic dims, only {_sizes(used[0])} runs")
            return
        if settled:
            break
    raise _refused_all(check, settled)


def _refused_all(check: Check, settled: bool) -> OnnxgenError:
    """Return the error of a file of which no oracle took any inputs. `settled`: their sizes are those of the module."""
    if settled and check.refusals:
        known = [(name, ", ".join(map(str, facts.shape or ()))) for name, _, facts in check.graph.inputs]
        shapes = ", ".join(f"{name} [{shape}]" for name, shape in known)
        what = f"could not verify {check.path}: the file itself does not run at the module's sizes, {printable(shapes)}"
        return OnnxgenError(f"{what} ({_short(check.refusals[0])})", help="generate it with other sizes: --input-shape")
    reasons = "; ".join(dict.fromkeys(check.refusals[:1] + check.refusals[-1:]))
    way_out = OWN_INPUTS
    if check.unsaid:
        way_out = f"give a reference for {', '.join(check.unsaid)} in a --plugin: @onnxgen.op(..., reference=...)"
    what = f"could not verify {check.path}: onnxruntime and onnx.reference refused all inputs that were tried"
    return OnnxgenError(f"{what} ({reasons})", help=way_out)


def _drawn(check: Check, run: int, seed: int, used: list[sizing.Sizes]) -> Iterator[_Input]:
    """Yield inputs to try: those with new sizes first, cautious values and sizes that were refused after all others."""
    candidates = list(sizing.sizes(check.graph, run, check.sizes))
    candidates.sort(key=lambda c: (not fit(c, check.steps), c in check.refused, c in used))
    number = seed * 1000 + run
    shapes = range(len(drawing.UNRANKED) if drawing.is_unranked(check.graph) else 1)
    for spread, sizes, unranked in product(drawing.spreads(run), candidates, shapes):
        yield sizes, number, _feeds(check, sizes, spread, number, unranked)


def _feeds(check: Check, sizes: sizing.Sizes, spread: str, number: int, unranked: int = 0) -> dict[str, Any]:
    near = check.approximation
    feeds = drawing.draw(check.graph, sizes, spread, number, None if near is None else near.inputs, unranked)
    return feeds if near is None else near.within(feeds)


def _told_by(check: Check, answer: Answer) -> Answer:
    """Return an answer of which more can be told (`vivid.py`), and learn from what was refused before this one."""
    if drawing.is_unranked(check.graph) or check.approximation is not None:
        return answer
    if answer.sizes in check.refused:  # so it was the values that the oracle refused
        check.refused.clear()
    if check.refused and not check.steps:

        def runs(sizes: sizing.Sizes) -> bool:
            try:
                _ask(answer.oracle, sizes, _feeds(check, sizes, drawing.SPREADS[0], answer.seed))
            except Refused:
                return False
            return True

        quick = answer.seconds < MAX_PROBE_SECONDS
        check.steps = steps(check.graph, check.refused, answer.sizes, runs) if quick else {}
    return answer if check.graph.random else vivid(answer, partial(_spread, check, answer))


def _note_refusals(check: Check, oracle: Oracle, refusals: Sequence[str], answer: Answer | None) -> None:
    """Say in one line what an oracle refused before it took inputs. That is said once."""
    if not refusals or oracle.name in check.said:
        return
    check.said.add(oracle.name)
    if check.steps and answer is not None and fit(answer.sizes, check.steps):
        check.notes.append(f"{described(check.steps)}: {oracle.name} refused others")
        return
    inputs, _, why = refusals[0].partition(": ")
    more = len(set(refusals)) - 1
    others = f"; and {more} more" if more else ""
    check.notes.append(f"{inputs}: {_short(why)}{others}")


def _short(why: str) -> str:
    """Return an oracle's reason for a line: which node failed, and why."""
    return NODE.sub(SHORT, why).partition("Non-zero status")[0].rstrip(", ")[:MAX_REFUSAL_SHOWN]


def _spread(check: Check, answer: Answer, spread: str) -> dict[str, Any]:
    return _feeds(check, answer.sizes, spread, answer.seed)


def _own(check: Check, feeds: Mapping[str, Any]) -> Iterator[_Input]:
    names = [name for name, _, _ in check.graph.inputs]
    wrong = sorted(set(names) ^ set(feeds))
    if wrong:
        raise OnnxgenError(f"the given inputs do not match the graph: {', '.join(map(printable, wrong))}")
    yield {}, 0, {name: feeds[name] for name in names}


def _answer(check: Check, oracle: Oracle, tries: Iterator[_Input], has_others: bool) -> Answer | None:
    """Return the answer to the first inputs that the oracle accepts. `has_others`: it has answered in other runs."""
    ran_on = 0
    for sizes, seed, feeds in tries:
        started = time.monotonic()
        try:
            outputs = _ask(oracle, sizes, feeds)
            return Answer(sizes, seed, feeds, oracle, outputs, time.monotonic() - started)
        except Refused as refusal:
            ran_on += isinstance(refusal, RanOn) and oracle.seconds is not None
            if ran_on == MAX_RAN_ON:
                line = f"with inputs that were drawn, a loop of the file runs on: {oracle.name}, {refusal}"
                if has_others:
                    check.notes.append(f"a run was not compared: {line} ({OWN_INPUTS})")
                    return None
                raise OnnxgenError(f"could not verify {check.path}: {line}", help=OWN_INPUTS) from None
            check.refusals.append(f"{oracle.name} refused inputs with {_sizes(sizes)}: {refusal}")
            if sizes not in check.refused:
                check.refused.append(sizes)
    return None


def _ask(oracle: Oracle, sizes: sizing.Sizes, feeds: Mapping[str, Any]) -> list[Any]:
    """Return an oracle's outputs. Raises `Refused`, also for inputs that have ended a process before."""
    if CRASHES.has(sizes) and oracle.name == Onnxruntime.name:
        raise Refused("onnxruntime crashes on these sizes, or on larger ones")
    CRASHES.trying(sizes)
    return oracle.run(feeds)


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{printable(name)}={size}" for name, size in sizes.items()) or "the file's own sizes"
