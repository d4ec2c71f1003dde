"""`onnxgen inspect MODEL.onnx` and `onnxgen ops`."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxgen.cli.say import aligned, progress, table, tell, tell_json
from onnxgen.common.names import legible
from onnxgen.errors import OnnxgenError, Problem, counted
from onnxgen.graph.annotations import TRAINABLE
from onnxgen.graph.nodes import all_nodes
from onnxgen.options import Options
from onnxgen.record.labels import PREFIX, alphabet_in

if TYPE_CHECKING:
    from onnxgen.record.purpose import Purpose

MAX_SHOWN = 100  # characters of an entry of the metadata
Reasons = dict[str, tuple[bool, str]]  # by tensor: is it trained, and why
TYPES = {"FLOAT": "float32", "DOUBLE": "float64"}


def inspect_command(model: Path, options: Options, *, quiet: bool, verbose: bool, as_json: bool) -> int:
    """Show what is in a model. Returns 2 if it can't be converted."""
    with progress(f"reading {model.name}", quiet or as_json):
        found = inspect(model, options)
    if as_json:
        tell_json(found)
    else:
        _print(found, quiet, verbose)
    return 2 if found["problems"] else 0


def inspect(path: Path, options: Options) -> dict[str, Any]:
    """Describe a model in plain types, as `inspect --json` prints it.

    Raises:
        OnnxgenError: the file can't be read. If it can only not be converted, `problems` has the reasons.
    """
    from onnxgen.reader import read

    model = read(path, options)
    reasons, problems, notes, purpose = _conversion(path, options)
    nodes, alphabet = all_nodes(model.graph), alphabet_in(model.metadata_props)
    unsupported = {problem.op for problem in problems if problem.op}
    operators = Counter(_operator(node) for node in nodes)
    return {
        "model": str(path),
        "exporter": " ".join(legible(p) for p in (model.producer_name, model.producer_version) if p),
        "ir_version": model.ir_version,
        "opset": {legible(domain or "ai.onnx"): version for domain, version in sorted(model.opset_imports.items())},
        "inputs": [_value(v) for v in model.graph.inputs],
        "outputs": [_value(v) for v in model.graph.outputs],
        "purpose": None if purpose is None else asdict(purpose),
        "alphabet": None if alphabet is None else {"source": alphabet.source, "characters": alphabet.characters},
        "nodes": len(nodes),
        "operators": [
            {"name": name, "count": number, "supported": not {name, name.rpartition(".")[2]} & unsupported}
            for name, number in sorted(operators.items())
        ],
        "tensors": list(_float_tensors(model.graph, reasons)),
        "metadata": {key: text for key, text in model.metadata_props.items() if key.startswith(PREFIX)},
        "notes": notes,
        "problems": [{**vars(problem), "text": str(problem)} for problem in problems],
    }


def _conversion(path: Path, options: Options) -> tuple[Reasons, tuple[Problem, ...], list[str], Purpose | None]:
    """Convert the model. Returns why each tensor is trained or not, the problems, the notes, and the purpose."""
    from onnxgen import pipeline
    from onnxgen.purpose import purpose_of
    from onnxgen.record.signature import recorded
    from onnxgen.record.usual import usual_of

    try:
        made = pipeline.build(path, options, out := pipeline.default_out(path, None))
        signature, notes = recorded(made.metadata), made.report.notes
        if (usual := usual_of(made.metadata)) is not None:
            notes = [*notes, f"{usual.told()} -> {shlex.join(usual.line(out))}"]
        return made.report.trainable, (), notes, None if signature is None else signature.purpose
    except OnnxgenError as error:
        problems = error.problems
    try:
        simplified = pipeline.read_and_simplify(path, options)
    except OnnxgenError:
        return {}, problems, [], None
    from onnxgen.passes.trainable import stored_values

    stored = [v for v in stored_values(simplified.graph) if TRAINABLE.has(v)]
    return {v.name or "": TRAINABLE.get(v) for v in stored}, problems, [], purpose_of(simplified)


def _float_tensors(graph: ir.Graph, reasons: dict[str, tuple[bool, str]]) -> Iterator[dict[str, Any]]:
    from onnxgen.passes.trainable import stored_values
    from onnxgen.weights.stored import stored

    for value in stored_values(graph):
        tensor = stored(value)
        if tensor is not None and tensor.dtype.is_floating_point():
            trained, why = reasons.get(value.name or "", (False, "not in the simplified graph"))
            yield {
                "name": legible(value.name or ""),
                "dtype": _dtype(tensor.dtype),
                "shape": list(tensor.shape.numpy()),
                "trainable": trained,
                "why": why,
            }


def _operator(node: ir.Node) -> str:
    return legible(node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}")


def _value(value: ir.Value) -> dict[str, Any]:
    kind = {ir.SequenceType: "sequence", ir.OptionalType: "optional"}.get(type(value.type), "tensor")  # type: ignore[arg-type]
    dims: list[int | str] | None = None
    if value.shape is not None:
        dims = [d if isinstance(d, int) else legible(str(d.value or "?")) for d in value.shape]
    return {"name": legible(value.name or ""), "kind": kind, "dtype": _dtype(value.dtype), "shape": dims}


def _dtype(dtype: ir.DataType | None) -> str:
    name = "?" if dtype is None else ir.DataType(dtype).name
    return TYPES.get(name, name.lower())


def _print(found: dict[str, Any], quiet: bool, verbose: bool) -> None:
    """Print whether the model can be converted and what it is for, then what it has; every tensor if `verbose`."""
    if not quiet:
        opset = ", ".join(f"{domain} {version}" for domain, version in found["opset"].items())
        made = f", made by {found['exporter']}" if found["exporter"] else ""
        tell(f"{found['model']}: {counted(found['nodes'], 'node')}, opset {opset}{made}")
    for problem in found["problems"]:
        tell(f"problem: {problem['text']}")
    if not quiet:
        wrong = len(found["problems"])
        tell(f"can't be converted: {counted(wrong, 'problem')}" if wrong else "can be converted")
        for line in _purpose(found["purpose"]):
            tell(line)
        if found["alphabet"]:
            characters, source = found["alphabet"]["characters"], legible(found["alphabet"]["source"])
            some = legible("".join(characters), MAX_SHOWN)
            tell(f"alphabet: {counted(len(characters), 'character')}, listed as {source}: {some}")
        for note in found["notes"]:
            tell(f"note: {note}")
        _print_content(found, verbose)


def _print_content(found: dict[str, Any], verbose: bool) -> None:
    ports = [
        (title if i == 0 else "", *_row(value))
        for title in ("inputs", "outputs")
        for i, value in enumerate(found[title])
    ]
    tell("\n".join(aligned(ports)))
    rows = [(o["name"], str(o["count"]), "" if o["supported"] else "NOT SUPPORTED") for o in found["operators"]]
    table("Operators", ("operator", "count", ""), rows)
    tensors = [
        (t["name"], t["dtype"], str(t["shape"]), "trained" if t["trainable"] else "not trained", t["why"])
        for t in found["tensors"]
    ]
    if tensors and verbose:
        table("Floating-point tensors", ("name", "dtype", "shape", "", "why"), tensors)
    elif tensors:
        table("Floating-point tensors (each of them: -v)", ("", "count", "why", "such as"), _grouped(tensors))
    if found["metadata"]:
        table("Metadata", ("key", "value"), [(k, shorten(v, MAX_SHOWN)) for k, v in found["metadata"].items()])


def _grouped(tensors: Sequence[tuple[str, ...]]) -> list[tuple[str, str, str, str]]:
    """Return a row for each reason why tensors are trained or not, with their number and some names."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, _, _, trained, why in tensors:
        groups.setdefault((trained, why), []).append(name)
    some = {key: ", ".join(names[:2]) + (", ..." if len(names) > 2 else "") for key, names in groups.items()}
    return [(trained, str(len(names)), why, some[trained, why]) for (trained, why), names in groups.items()]


def _purpose(found: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what the network is for, with the first piece of evidence, and the others on their own lines."""
    if found is None:
        return
    evidence = list(found["evidence"])
    if found["kind"]:
        yield f"purpose: {found['kind']}: {evidence.pop(0)}"
    else:
        maybe = " or ".join(found["candidates"])
        yield "purpose: unsure" + (f" ({maybe})" if maybe else "")
    yield from (f"  {sentence}" for sentence in evidence)


def _row(value: dict[str, Any]) -> tuple[str, str, str]:
    kind = "" if value["kind"] == "tensor" else f"{value['kind']} of "
    dims = "?" if value["shape"] is None else ", ".join(map(str, value["shape"]))
    return value["name"], kind + value["dtype"], f"[{dims}]"


def ops_command(plugins: Sequence[str], *, quiet: bool, verbose: bool, as_json: bool) -> int:
    """List the operators that onnxgen and plugins have a function for."""
    from onnxgen.graph.operators import operators
    from onnxgen.plugins import plugged

    with plugged(Options(plugins=plugins)) as there:
        known = operators(there.installed, there.named)
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "domain": domain or "ai.onnx",
            "since": [version.since for version in versions],
            "parameters": list(versions[-1].parameters),
            "plugin": next((v.plugin.name for v in versions if v.plugin is not None), None),
        }
        for (domain, name), versions in sorted(known.items())
        if not domain.startswith("onnxgen")  # operators that only passes create
    ]
    if as_json:
        tell_json(found)
    elif not quiet:
        heads = ("operator", "domain", "opsets", *(["plugin"] if any(o["plugin"] for o in found) else []))
        rows = []
        for o in found:  # from the first opset, and again where the meaning changed
            since = "from " + ", again from ".join(map(str, o["since"]))
            rows.append((str(o["name"]), str(o["domain"]), since, str(o["plugin"] or "")))
        table(f"{len(rows)} operators that onnxgen has a function for", heads, [row[: len(heads)] for row in rows])
    return 0
