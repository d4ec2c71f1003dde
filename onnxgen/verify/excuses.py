"""Ignore differences that also occur between the oracle's own answers. Notes say where this happened."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from onnxgen.common.names import printable
from onnxgen.errors import counted
from onnxgen.verify import feeds as drawing
from onnxgen.verify import torch_side
from onnxgen.verify.compare import MAX_SLACK_PART, slack_of
from onnxgen.verify.freedom import FLOAT32_NOISE, HALF_NOISE, NOISE, Freedom, explained
from onnxgen.verify.oracle import Answer, Onnxruntime, Refused
from onnxgen.verify.report import Run
from onnxgen.verify.stepwise import stepwise

if TYPE_CHECKING:
    from torch import nn

    from onnxgen.verify.check import Check

NUDGED_RUNS = 3  # runs of the oracle on changed inputs, which measure the conditioning of an output


def conditioning(check: Check, run: Run, given: Answer, expected: list[Any], got: list[Any]) -> None:
    """Ignore differences as large as the oracle's own, when inputs change in their last bits.

    A saturated softmax, the normalisation of nearly equal numbers or a rounding to integers amplify the rounding errors
    by which any two correct implementations differ.
    """
    oracle, seed = given.oracle, given.seed
    precision = max([FLOAT32_NOISE, *(HALF_NOISE.get(dtype, 0.0) for dtype in check.halves)])
    try:
        others = [oracle.run(drawing.nudged(given.feeds, precision, seed + i)) for i in range(NUDGED_RUNS)]
    except Refused:
        return
    for i, (name, e, g) in enumerate(zip(check.graph.outputs, expected, got, strict=True)):
        moved = [torch_side.cast_numpy(o[i], check.cast) for o in others]
        slack = slack_of(e, moved, drawing.MAX_NUDGE_ULPS * precision)
        if not run.outputs[i].why or run.outputs[i].expected != run.outputs[i].got or slack is None:
            continue
        again = check.output(name, e, g, slack)
        if again.agrees:
            check.notes.append(
                f"run {seed % 1000}, output {printable(name)}: {run.outputs[i].why}; but the output of {oracle.name} "
                "moves as much when the inputs change in their last bits, so this is not counted"
            )
            run.outputs[i] = again


def freedom(check: Check, network: nn.Module, run: Run, given: Answer, expected: list[Any], got: list[Any]) -> None:
    """Ignore differences that also occur between answers of onnxruntime.

    If these answers differ so much that they could hide a wrong module, the module is compared step by step.
    """
    feeds, seed = given.feeds, given.seed
    if not isinstance(given.oracle, Onnxruntime) or run.agrees:
        return
    dtype = str(check.cast).removeprefix("torch.")
    dtype = dtype if dtype in HALF_NOISE else ""
    if check.freedom is None:
        check.freedom = Freedom(check.path, check.proto(), check.graph.types, dtype)
    answers = [(n, [torch_side.cast_numpy(v, check.cast) for v in a]) for n, a in check.freedom.answers(feeds)]
    steps = cache(partial(_steps, check, network, feeds))  # for the first output that needs it
    for i, (output, e, g) in enumerate(zip(run.outputs, expected, got, strict=True)):
        if not output.why:
            continue
        own = (name for name, a in answers if check.output(output.name, a[i], g).agrees)
        why = ""
        if (name := next(own, None)) is not None:
            noise = f" of one unit in the last place of every {dtype or 'result'}" if name == NOISE else ""
            why = f"onnxruntime {name}{noise} computes the same"
        elif (moved := explained(e, g, [a[i] for _, a in answers], check.tolerance)) is not None:
            why = (
                "the results of onnxruntime differ as much among themselves (optimisations, one thread, "
                f"accuracy_level, noise of one unit in the last place of every {dtype or 'result'})"
            )
            if moved > MAX_SLACK_PART:
                found = steps()
                if found is not None and check.output(output.name, found[1][i], g).agrees:
                    results = counted(found[0], "intermediate result")
                    why += f", and from each of {results} to the next it computes the same"
                else:
                    what = f"rounding every {dtype or 'result'}"
                    check.coarse[output.name] = f"{what} moves onnxruntime's own answer by {moved:.0%} of its size"
        if why:
            check.notes.append(
                f"run {seed % 1000}, output {output.name}: {output.why}; but {why}, so this is not counted"
            )
            run.outputs[i] = replace(output, why="")


def _steps(check: Check, network: nn.Module, feeds: dict[str, Any]) -> tuple[int, list[Any]] | None:
    """Return the result of `stepwise`, or None if the module has another dtype or batch than the file."""
    if check.cast is not None or check.freed is not None:
        return None
    return stepwise(check.path, check.proto(), check.graph, network, feeds)
