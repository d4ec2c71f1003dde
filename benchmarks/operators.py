"""What Inductor makes of every operator: one of ONNX's own backend tests each, on the CPU.

    python -m benchmarks.operators [--operators Conv,Gelu] [--rounds 101] [--write] [--json FILE]

The test is an operator's first that one graph can hold. "Equal" is ONNX's own comparison with the outputs that the test
states, strict on shape and dtype; the errors are the largest absolute differences from them. Seconds are those of
compiling, the C++ compiler's included, with nothing from Inductor's caches; microseconds those of one call (the tensors
are tiny, so that calls are mostly overhead). Rows that are in the JSON file already are kept, so that a long run may be
cut off.

`--write` puts the table into OPERATORS.md beside this file.
"""

from __future__ import annotations

import inspect
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx.backend.test.runner import Runner

from benchmarks.common import arguments, finish, interleaved
from onnxgen.backend import OnnxgenRep
from onnxgen.cli.say import aligned
from tests.backend.compiled import REFUSALS, compiled, python_bound, with_stored
from tests.ops.harness import _as_array, _cases, generate, instantiate, to_torch

PAGE = Path(__file__).with_name("OPERATORS.md")


def chosen() -> dict[str, Any]:
    """For each operator that a backend test runs alone, the first one that compiles; else the first."""
    listed = python_bound()
    found: dict[str, tuple[int, Any]] = {}
    for case in _cases():
        nodes = case.model.graph.node
        if "_expanded" in case.name or len(nodes) != 1 or case.name.startswith("test_bernoulli"):
            continue
        name = ".".join(filter(None, [nodes[0].domain.removeprefix("ai.onnx."), nodes[0].op_type]))
        reason, inputs = listed.get(case.name, ("", []))
        rank = 0 if not reason else 1 if inputs else 2
        if name not in found or rank < found[name][0]:
            found[name] = (rank, case)
    return {name: found[name][1] for name in sorted(found)}


def difference(made: Sequence[Any], stated: Sequence[Any]) -> float:
    """The largest absolute difference of numbers."""
    largest = 0.0
    for a, b in zip(made, stated):
        if isinstance(a, (list, tuple)):
            largest = max(largest, difference(a, b))
        elif a is not None and np.asarray(a).dtype.kind not in "OUS" and np.shape(a) == np.shape(b) and np.size(a):
            with np.errstate(invalid="ignore"):
                gap = np.abs(np.asarray(a).astype(np.complex128) - np.asarray(b).astype(np.complex128))
            largest = max(largest, float(np.nanmax(np.where(np.asarray(a) == np.asarray(b), 0.0, gap))))
    return largest


def microseconds(eager: OnnxgenRep, graph: OnnxgenRep, inputs: Sequence[Any], rounds: int) -> tuple[float, float]:
    """Medians of one call of both."""
    tensors = [to_torch(value) for value in inputs]

    def timed(model: torch.nn.Module) -> Callable[[], float]:
        def call() -> float:
            start = time.perf_counter()
            model(*tensors)
            return time.perf_counter() - start

        return call

    with torch.no_grad():
        first, second = interleaved(timed(eager.module), timed(graph.module), rounds)
    return statistics.median(first) * 1e6, statistics.median(second) * 1e6


def measure(name: str, case: Any, rounds: int) -> dict[str, Any]:
    """One row of the table."""
    row: dict[str, Any] = {"operator": name, "test": case.name, "compiled": "", "equal": ""}
    reason, stored = python_bound().get(case.name, ("", []))
    if reason and not stored:
        return row | {"compiled": "no: " + reason.partition(":")[0]}
    inputs, stated = ([_as_array(value) for value in values] for values in case.data_sets[0])
    feeds = dict(zip([declared.name for declared in case.model.graph.input], inputs))
    model = with_stored(case.model, {key: feeds.pop(key) for key in stored})
    eager = OnnxgenRep(instantiate(generate(model)), compiled(model).dtypes)
    row["eager error"] = f"{difference(eager.run(list(feeds.values())), stated):.1e}"
    graph = compiled(model, "inductor")
    start = time.perf_counter()
    try:
        made = graph.run(list(feeds.values()))
    except Exception as error:  # besides what it refuses (`REFUSALS`), what it writes may not run
        what = "no: " if isinstance(error, REFUSALS) else "breaks: "
        return row | {"compiled": f"{what}{type(error).__name__}: {str(error).strip().splitlines()[0][:60]}"}
    row |= {"compiled": "yes", "seconds": round(time.perf_counter() - start, 1)}
    row["error"] = f"{difference(made, stated):.1e}"
    try:
        Runner.assert_similar_outputs(stated, made, case.rtol, case.atol)
        row["equal"] = "yes"
    except AssertionError:
        row["equal"] = "no"
    before, after = microseconds(eager, graph, list(feeds.values()), rounds)
    return row | {"eager us": round(before), "inductor us": round(after)}


def summary(rows: list[dict[str, Any]]) -> str:
    made = [row for row in rows if row["compiled"] == "yes"]
    equal = sum(row["equal"] == "yes" for row in made)
    seconds = statistics.median(row["seconds"] for row in made) if made else 0
    return f"{len(made)} of {len(rows)} operators compiled, {equal} of these equal; median {seconds} s to compile"


def page(rows: list[dict[str, Any]]) -> str:
    columns = ["operator", "test", "compiled", "equal", "seconds", "eager error", "error", "eager us", "inductor us"]
    cells = [columns, *[[str(row.get(column, "")) for column in columns] for row in rows]]
    table = "\n".join(f"    {line}" for line in aligned(cells))
    said = inspect.cleandoc(__doc__ or "").partition("\n\n")[2].rpartition("\n\n")[0]
    return (
        f"# Operators under Inductor\n\n{said}\n\n"
        f"torch {torch.__version__}, {torch.get_num_threads()} thread.\n\n{table}\n\n{summary(rows)}\n"
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--operators", help="which (default: all)")
    parser.add_argument("--rounds", type=int, default=101, help="pairs of calls (default: 101)")
    parser.add_argument("--write", action="store_true", help=f"write the table to {PAGE.name}")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch._inductor.config.force_disable_caches = True
    cases = chosen()
    wanted = given.operators.split(",") if given.operators else list(cases)
    known = json.loads(given.json.read_text()) if given.json is not None and given.json.exists() else []
    rows = {row["operator"]: row for row in known}
    for name in wanted:
        if name not in rows:
            rows[name] = measure(name, cases[name], given.rounds)
            print(*rows[name].values(), file=sys.stderr, flush=True)
            if given.json is not None:
                given.json.write_text(json.dumps(list(rows.values()), indent=2) + "\n", encoding="utf-8")
    made = [rows[name] for name in wanted]
    finish(made, given.json)
    print(summary(made))
    if given.write:
        PAGE.write_text(page(made), encoding="utf-8")


if __name__ == "__main__":
    main()
