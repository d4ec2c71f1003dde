"""Commands that show: `onnxgen inspect`, `onnxgen ops`, `onnxgen view` and `onnxgen devices`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxgen.cli.say import aligned, progress, table, tell, tell_json
from onnxgen.common.atomic import replacing
from onnxgen.common.names import legible
from onnxgen.errors import OnnxgenError, Problem, counted
from onnxgen.graph.annotations import TRAINABLE
from onnxgen.graph.nodes import all_nodes
from onnxgen.options import Options
from onnxgen.record.labels import PREFIX, alphabet_in

if TYPE_CHECKING:
    from onnxgen.record.signature import Purpose
    from onnxgen.training.devices import Device


MAX_SHOWN = 100  # characters of an entry of the metadata
Reasons = dict[str, tuple[bool, str]]  # by tensor: is it trained, and why
TYPES = {"FLOAT": "float32", "DOUBLE": "float64"}


def inspect_command(model: Path, options: Options, *, quiet: bool, verbose: bool, as_json: bool) -> int:
    """Show what is in a model. Returns 2 if it can't be converted."""
    with progress(f"reading {model.name}", quiet or as_json):
        facts = inspect(model, options)
    if as_json:
        tell_json(facts)
    else:
        _print(facts, quiet, verbose)
    return 2 if facts["problems"] else 0


def inspect(path: Path, options: Options) -> dict[str, Any]:
    """Describe a model in plain types, as `inspect --json` prints it.

    Raises:
        OnnxgenError: the file can't be read. If it can only not be converted, `problems` has the reasons.
    """
    from onnxgen.reader import read

    model = read(path, options)
    reasons, problems, notes, purpose = _conversion(path, options)
    nodes = all_nodes(model.graph)
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
        "architecture": [] if problems else _architecture(path, options),
        "alphabet": _alphabet(model),
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


def _alphabet(model: ir.Model) -> dict[str, Any] | None:
    alphabet = alphabet_in(model.metadata_props)
    return None if alphabet is None else {"source": alphabet.source, "characters": alphabet.characters}


def _architecture(path: Path, options: Options) -> list[str]:
    """Return the networks of libraries that have the same steps, or none where options choose a part of the file."""
    from onnxgen.identify import identify

    if options.inputs or options.outputs or options.plugins:
        return []
    try:
        return [known.build or known.name for known in identify(path).networks]
    except OnnxgenError:  # it needs an option that `inspect` was given
        return []


def _conversion(path: Path, options: Options) -> tuple[Reasons, tuple[Problem, ...], list[str], Purpose | None]:
    """Convert the model. Returns why each tensor is trained or not, the problems, the notes, and the purpose."""
    from onnxgen import pipeline
    from onnxgen.purpose import purpose_of
    from onnxgen.record.signature import recorded
    from onnxgen.training.data.presets import preset_of

    try:
        generated = pipeline.build(path, options, pipeline.default_out(path, None))
        signature, notes = recorded(generated.metadata), generated.report.notes
        if (preset := preset_of(generated.metadata)) is not None:
            notes = [*notes, preset.told()]
        return generated.report.trainable, (), notes, None if signature is None else signature.purpose
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


def _print(facts: dict[str, Any], quiet: bool, verbose: bool) -> None:
    """Print whether the model can be converted and what it is for, then what it has; every tensor if `verbose`."""
    if not quiet:
        opset = ", ".join(f"{domain} {version}" for domain, version in facts["opset"].items())
        exporter = f", made by {facts['exporter']}" if facts["exporter"] else ""
        tell(f"{facts['model']}: {counted(facts['nodes'], 'node')}, opset {opset}{exporter}")
    for problem in facts["problems"]:
        tell(f"problem: {problem['text']}")
    if not quiet:
        wrong = len(facts["problems"])
        tell(f"can't be converted: {counted(wrong, 'problem')}" if wrong else "can be converted")
        for line in _purpose(facts["purpose"]):
            tell(line)
        if facts["architecture"]:
            first, *more = facts["architecture"]
            tell(f"architecture: {first}" + (f", or {len(more)} more: onnxgen identify" if more else ""))
        if facts["alphabet"]:
            characters, source = facts["alphabet"]["characters"], legible(facts["alphabet"]["source"])
            some = legible("".join(characters), MAX_SHOWN)
            tell(f"alphabet: {counted(len(characters), 'character')}, listed as {source}: {some}")
        for note in facts["notes"]:
            tell(f"note: {note}")
        _print_content(facts, verbose)


def _print_content(facts: dict[str, Any], verbose: bool) -> None:
    ports = [
        (title if i == 0 else "", *_row(value))
        for title in ("inputs", "outputs")
        for i, value in enumerate(facts[title])
    ]
    tell("\n".join(aligned(ports)))
    rows = [(o["name"], str(o["count"]), "" if o["supported"] else "NOT SUPPORTED") for o in facts["operators"]]
    table("Operators", ("operator", "count", ""), rows)
    tensors = [
        (t["name"], t["dtype"], str(t["shape"]), "trained" if t["trainable"] else "not trained", t["why"])
        for t in facts["tensors"]
    ]
    if tensors and verbose:
        table("Floating-point tensors", ("name", "dtype", "shape", "", "why"), tensors)
    elif tensors:
        table("Floating-point tensors (each of them: -v)", ("", "count", "why", "such as"), _grouped(tensors))
    if facts["metadata"]:
        table("Metadata", ("key", "value"), [(k, shorten(v, MAX_SHOWN)) for k, v in facts["metadata"].items()])


def _grouped(tensors: Sequence[tuple[str, ...]]) -> list[tuple[str, str, str, str]]:
    """Return a row for each reason why tensors are trained or not, with their number and some names."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, _, _, trained, why in tensors:
        groups.setdefault((trained, why), []).append(name)
    some = {key: ", ".join(names[:2]) + (", ..." if len(names) > 2 else "") for key, names in groups.items()}
    return [(trained, str(len(names)), why, some[trained, why]) for (trained, why), names in groups.items()]


def _purpose(purpose: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what the network is for, with the first piece of evidence, and the others on their own lines."""
    if purpose is None:
        return
    evidence = list(purpose["evidence"])
    if purpose["kind"]:
        yield f"purpose: {purpose['kind']}: {evidence.pop(0)}"
    else:
        maybe = " or ".join(purpose["candidates"])
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
    entries: list[dict[str, Any]] = [
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
        tell_json(entries)
    elif not quiet:
        heads = ("operator", "domain", "opsets", *(["plugin"] if any(o["plugin"] for o in entries) else []))
        rows = []
        for o in entries:  # from the first opset, and again where the meaning changed
            since = "from " + ", again from ".join(map(str, o["since"]))
            rows.append((str(o["name"]), str(o["domain"]), since, str(o["plugin"] or "")))
        table(f"{len(rows)} operators that onnxgen has a function for", heads, [row[: len(heads)] for row in rows])
    return 0


def view_command(
    model: Path, output: Path | None, options: Options, *, force: bool, quiet: bool, verbose: bool, as_json: bool
) -> int:
    """Write the page of a model. Returns the exit code.

    Raises:
        OnnxgenError: the model can't be converted, or the page would overwrite another file.
    """
    from onnxgen.pipeline import default_out
    from onnxgen.view.page import GENERATOR, view

    out = output or model.with_suffix(".html")
    if out.is_dir():
        raise OnnxgenError(f"cannot write {out}: it is a folder", help="name a file for the page")
    if out.exists() and not force and GENERATOR not in out.read_text(encoding="utf-8", errors="replace")[:2000]:
        raise OnnxgenError(f"{out} was not made by onnxgen view", help="name another file, or add --force")
    with progress(f"drawing {out.name}", quiet or as_json):
        page = view(model, options, default_out(model, None))
    with replacing([out.absolute().parent]) as files, files.file(out) as file:
        file.write(page.encode())
    if as_json:
        tell_json({"page": str(out)})
    elif not quiet:
        tell(f"wrote {out}")
    return 0


def devices_command(*, imports: tuple[str, ...], test: bool, quiet: bool, verbose: bool, as_json: bool) -> int:
    """Print the devices to train on. Returns the exit code: 1 if a self-test fails."""
    from onnxgen.runtime.load import need_torch

    need_torch("devices")
    from onnxgen.training.devices import devices

    with progress("testing devices", quiet or as_json or not test):
        available = devices(imports, test=test)
    if as_json:
        tell_json([_as_json(device) for device in available])
    elif not quiet:
        _print_devices(available, test, verbose)
    failed = [device for device in available if device.verdict not in (None, "ok")]
    return 1 if failed else 0


def _print_devices(devices: list[Device], test: bool, verbose: bool) -> None:
    from onnxgen.training.devices import FEATURES

    columns = ("device", "name", "memory", "works", "self-test")
    rows = [(d.text, d.name, _size(d.memory), " ".join(d.works), d.verdict or "not run") for d in devices]
    kept = len(columns) if test else 3
    table("Devices, in the order of --device auto", columns[:kept], [row[:kept] for row in rows])
    if verbose and test:
        table("What works", ("", "means"), list(FEATURES.items()))


def _size(memory: int | None) -> str:
    return "unknown" if memory is None else f"{memory / 2**30:.1f} GiB"


def _as_json(device: Device) -> dict[str, object]:
    plain = {name: getattr(device, name) for name in ("kind", "index", "name", "memory")}
    return {"device": device.text, **plain, "works": list(device.works), "self_test": device.verdict}
