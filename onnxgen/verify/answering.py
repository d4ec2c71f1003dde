"""Find inputs that an oracle accepts and that tell something: drawn ones, or a person's own.

- `vivid`: other inputs where the outputs of the drawn ones are mute: nearly the same everywhere,
  whatever the weights are. A detector that is fed with noise finds nothing anywhere. Its map near 0
  is then the map of many wrong modules.
- `relied_on`: sizes that a file calls by one name, where onnxruntime also takes different ones. A
  name such as `batch` is the file's promise that dims are equal, and the source may rely on it: it
  reads a size from whichever input is at hand. onnxruntime does not hold inputs to the promise. So
  sizes that break it are tried, too. What the module does then is no fault, but a person who relies
  on such inputs must know.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, islice, product
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxgen.common.crashes import CRASHES
from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError
from onnxgen.shapes.dims import is_symbol, symbol, symbols
from onnxgen.verify import feeds as drawing
from onnxgen.verify import sizes as sizing
from onnxgen.verify.feeds import LOUDER, SPREADS
from onnxgen.verify.graph import Graph
from onnxgen.verify.oracle import LOOP_SECONDS, Answer, Onnxruntime, Oracle, RanOn, Refused, Stacked, TimedOut, oracles
from onnxgen.verify.report import Gradients
from onnxgen.verify.sizes import described, fit, steps

if TYPE_CHECKING:
    from torch import nn

    from onnxgen.verify.check import Check


MUTE = 1e-4  # an output that varies by less, as a part of 1 or of its largest element if that is larger, is mute
MAX_SEARCH_SECONDS = 10.0  # for the search, by the time that the oracle took for the first inputs


def vivid(answer: Answer, draw: Callable[[str], Mapping[str, Any]]) -> Answer:
    """Return an answer in which more outputs vary, or the same one. `draw`: the inputs of a spread, of equal sizes."""
    best, most = answer, len(answer.outputs) - _mute(answer.outputs)
    if most == len(answer.outputs) or answer.seconds * (len(LOUDER) + len(SPREADS)) > MAX_SEARCH_SECONDS:
        return answer
    for spread in (*LOUDER, *SPREADS):
        feeds, started = dict(draw(spread)), time.monotonic()
        try:
            outputs = answer.oracle.run(feeds)
        except Refused:
            continue
        tell = len(outputs) - _mute(outputs)
        if tell > most and all(map(_are_as_finite, answer.outputs, outputs)):
            best, most = replace(answer, feeds=feeds, outputs=outputs, seconds=time.monotonic() - started), tell
        if most == len(outputs):
            break
    return best


def _mute(outputs: Sequence[Any]) -> int:
    """Return the number of floating point outputs that are mute."""
    count = 0
    for output in outputs:
        if isinstance(output, np.ndarray) and output.dtype.kind == "f" and output.size:
            finite = output[np.isfinite(output)].astype(np.float64)
            largest = float(np.abs(finite).max()) if finite.size else 0.0
            varies = float(finite.std()) if finite.size > 1 else largest
            count += varies < MUTE * max(1.0, largest)
    return count


def _are_as_finite(before: Any, after: Any) -> bool:
    if not (isinstance(before, np.ndarray) and isinstance(after, np.ndarray)) or after.dtype.kind != "f":
        return True
    return bool(np.isfinite(after).all()) or not bool(np.isfinite(before).all())


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
        for tries in _tries(check, runs, seed, feeds, used):
            tries = islice(tries, MAX_SETTLED_REFUSALS if settled else MAX_REFUSALS)
            answer = _answer(check, oracle, tries, feeds is None, bool(used))
            if answer is not None:
                used.append(answer.sizes)
                yield answer
            elif not used:
                break
        if used:
            if used[0] and 1 < len(used) == used.count(used[0]):
                check.notes.append(f"of the sizes tried for dynamic dims, only {_sizes(used[0])} runs")
            return
        if settled:
            break
    raise _refused_all(check, settled)


def _tries(
    check: Check, runs: int, seed: int, feeds: Sequence[Mapping[str, Any]] | None, used: list[sizing.Sizes]
) -> Iterator[Iterator[_Input]]:
    """Yield the inputs to try in each run. `used`: the sizes of the runs before."""
    if feeds is None:
        yield from (_drawn(check, run, seed, used) for run in range(runs))
    else:
        yield from (_own(check, own) for own in feeds)


def _answer(check: Check, oracle: Oracle, tries: Iterator[_Input], are_drawn: bool, has_others: bool) -> Answer | None:
    """Return an oracle's answer for one run, and note what it refused before."""
    before = len(check.refusals)
    answer = _accepted(check, oracle, tries, has_others)
    if answer is not None and are_drawn:
        answer = _told_by(check, answer)
    _note_refusals(check, oracle, check.refusals[before:], answer)
    return answer


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
    """Return an answer of which more can be told (`answering.py`), and learn from what was refused before this one."""
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
    if check.graph.random:
        return answer
    return vivid(answer, lambda spread: _feeds(check, answer.sizes, spread, answer.seed))


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


def _own(check: Check, feeds: Mapping[str, Any]) -> Iterator[_Input]:
    names = [name for name, _, _ in check.graph.inputs]
    wrong = sorted(set(names) ^ set(feeds))
    if wrong:
        raise OnnxgenError(f"the given inputs do not match the graph: {', '.join(map(printable, wrong))}")
    yield {}, 0, {name: feeds[name] for name in names}


def _accepted(check: Check, oracle: Oracle, tries: Iterator[_Input], has_others: bool) -> Answer | None:
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


MAX_TRIES = 12  # combinations of places that are tried for one name
MAX_PROMISE_SECONDS = 5.0  # time for all names
OTHER = "\0other"  # the name of the second size, which no file has
Place = tuple[int, int]  # number and axis of an input


def relied_on(check: Check, network: nn.Module, answer: Answer) -> list[str]:
    """Return a line for each name of several dims that the module needs to be equal, and onnxruntime does not."""
    graph, lines = check.graph, list[str]()
    is_plain = graph.is_standard and not graph.random and check.freed is None and check.approximation is None
    if not is_plain or not isinstance(answer.oracle, Onnxruntime):
        return []
    end = time.monotonic() + MAX_PROMISE_SECONDS
    for name, places in _places(graph).items():
        if name not in answer.sizes or name in check.sizes:
            continue
        for moved in islice(_parts(places), MAX_TRIES):
            if time.monotonic() > end:
                return lines
            if why := _breaks(check, network, answer, name, moved):
                lines.append(_line(graph, name, places, moved, why))
                break
    return lines


def _places(graph: Graph) -> dict[str, list[Place]]:
    """Return where the inputs have each name that several dims bear."""
    by_name: dict[str, list[Place]] = {}
    for number, (_, _, facts) in enumerate(graph.inputs):
        for axis, dim in enumerate(facts.shape or () if facts.kind == "tensor" else ()):
            if is_symbol(dim):
                (name,) = symbols(dim)
                by_name.setdefault(name, []).append((number, axis))
    return {name: places for name, places in by_name.items() if len(places) > 1}


def _parts(places: list[Place]) -> Iterator[frozenset[Place]]:
    """Yield sets of places that get another size: single ones first. The first place keeps its size."""
    for count in range(1, len(places)):
        yield from map(frozenset, combinations(places[1:], count))


def _breaks(check: Check, network: nn.Module, answer: Answer, name: str, moved: frozenset[Place]) -> str:
    """Return what the module does with sizes that onnxruntime takes; "" if it computes the same."""
    inputs = []
    for number, (port, kind, facts) in enumerate(check.graph.inputs):
        dims = [symbol(OTHER) if (number, axis) in moved else dim for axis, dim in enumerate(facts.shape or ())]
        inputs.append((port, kind, facts if facts.shape is None else replace(facts, shape=tuple(dims))))
    sizes = {**answer.sizes, OTHER: answer.sizes[name] + 1}
    feeds = drawing.draw(replace(check.graph, inputs=inputs), sizes, drawing.SPREADS[0], answer.seed)
    started = time.monotonic()
    try:
        outputs = answer.oracle.run(feeds)
    except Refused:
        return ""
    other = Answer(answer.sizes, answer.seed, feeds, answer.oracle, outputs, time.monotonic() - started)
    return _difference(check, network, other, answer.sizes[name])


def _difference(check: Check, network: nn.Module, other: Answer, size: int) -> str:
    notes, coarse, limit = list(check.notes), dict(check.coarse), check.only_reference
    try:
        run = check.run(network, other, None, Gradients())
    except TimedOut:
        return ""
    finally:
        check.notes[:], check.coarse, check.only_reference = notes, coarse, limit
    sizes = f"with {size} and {size + 1}"
    return "" if run.agrees else f"{sizes} the module fails" if run.error else f"{sizes} it computes something else"


def _line(graph: Graph, name: str, places: list[Place], moved: frozenset[Place], why: str) -> str:
    first = next(place for place in places if place not in moved)
    axes = [f"axis {axis} of {printable(graph.inputs[number][0])}" for number, axis in (first, *sorted(moved))]
    return (
        f"the file calls the sizes of {', '.join(axes[:-1])} and {axes[-1]} by one name, {printable(name)}, "
        f"and the source relies on it: onnxruntime also takes different ones, and {why}"
    )
