"""What a generation makes: source, lazy weights with their way back, and a report."""

from __future__ import annotations

import ast
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen._version import __version__
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.module_def import ModuleDef
from onnxgen.code.printer import is_quotable
from onnxgen.code.quote import TORCH_DTYPES
from onnxgen.code.render import Frame, aligned, render, tree_digest, with_fingerprint
from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError, counted
from onnxgen.graph.annotations import APPROXIMATED, DATA_FILES, FREED, LOCAL, RESTORED, TRAINABLE
from onnxgen.graph.budget import past, writable
from onnxgen.lowering.uses import uses
from onnxgen.options import Options
from onnxgen.output.signature import KEY as SIGNATURE
from onnxgen.output.signature import signature
from onnxgen.passes.folded import Restored, folds
from onnxgen.passes.retype import KEY as DTYPE
from onnxgen.passes.trainable import add_used, stored_values
from onnxgen.reader.cut import cut_metadata
from onnxgen.shapes.info import info
from onnxgen.weights.approximation import KEY as APPROXIMATION
from onnxgen.weights.dequantised import KEY as QUANTISED
from onnxgen.weights.dequantised import UnpackedTensor, quantised
from onnxgen.weights.provenance import Source, way_back
from onnxgen.weights.sidecar import index_path, is_sharded
from onnxgen.weights.streamed import embed_bytes, stored_dtype

Tensors = dict[str, Source | NDArray[Any]]
DATA = "data"  # in the sidecar's metadata
EMBED_LIMIT = 64 << 20  # bytes; base85 in a source file is no place for more
_DEFAULTS = Options()
_COMPLEX = (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)  # `nn.Module.to(dtype)` would change them, too
# what they change is in the code, if anything
_NO_MATTER = ("weights", "limits", "templates", "annotate", "plugins", "allow_unsupported", "paranoid")
BUILD_LINE = "Build"


@dataclass
class Report:
    """What a generation did, for people and for `--json`.

    Attributes:
        classes, parameters, lines: of the generated file (parameters: trained elements).
        recognised: how often each `nn` module occurs.
        notes: what the file was exported without, and other things worth knowing.
        stages: seconds that each stage took (see `onnxgen.common.timing`).
        checked: what `Options.paranoid` found out of the passes, in a sentence; "" if it was not asked for.
        trainable: for each stored float tensor of the ONNX file, whether it is trained, and why.
        wrote: the files written.
        plain: module paths whose structure would have changed what they compute, and was left out (see `validate`).
        progress: is told each stage as it begins.
        status: "written", "fresh" (nothing to do) or "kept" (edited by hand, source unchanged).
    """

    classes: int = 0
    parameters: int = 0
    lines: int = 0
    recognised: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)
    trainable: dict[str, tuple[bool, str]] = field(default_factory=dict)
    wrote: list[Path] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)
    status: str = "built"
    checked: str = ""
    progress: Callable[[str], None] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Build:
    """What a build records of a generation, so that the next one need not generate to know that nothing changed.

    Attributes:
        key: a digest of all that the module is made of; stands in its header.
        data: a digest of the external data; stands in the sidecar, which has that of the ONNX file already.
    """

    key: str
    data: str = ""


@dataclass
class Generated:
    """The result of a generation.

    Attributes:
        source: the module's text.
        tensors: every tensor of the sidecar by its key; a `Source` is read only when it is written.
        metadata: the sidecar's metadata: fingerprint, signature, and the way back of each trainable ONNX tensor.
        weights: where the sidecar goes.
        report: see `Report`.
        reads: the ONNX file and its external data, which nothing may be written over.
        key: that of the build, which the header has; empty if it is none.
        tree: the source as Python reads it, in onnxgen's own templates.
    """

    source: str
    tensors: Mapping[str, Source | NDArray[Any]]
    metadata: Mapping[str, str]
    weights: Path
    report: Report
    reads: frozenset[Path] = frozenset()
    key: str = ""
    tree: ast.Module = field(default_factory=lambda: ast.Module([], []))


def compose(
    model: ir.Model,
    module: ModuleDef,
    classes: list[ClassTree],
    path: Path,
    out: Path,
    options: Options,
    report: Report,
    build: Build | None = None,
) -> Generated:
    """Put source, weights and report together, and what a build records of them."""
    key = build.key if build is not None else ""
    tensors, record = _tensors(module, RESTORED.get(model) or [])
    origin = {**_way_back(model, module, record), SIGNATURE: signature(model, path).to_json(), **_freed_batch(model)}
    origin |= cut_metadata(options) | ({DTYPE: options.dtype} if options.dtype else {})
    if (approximated := APPROXIMATED.get(model)) is not None:
        origin[APPROXIMATION] = approximated.to_json()
    if build is not None and build.data and not options.embed:
        origin[DATA] = build.data
    weights = Path(options.weights) if options.weights else out.with_suffix(".safetensors")
    _check_bytes(tensors, model, options)
    sharded = not options.embed and is_sharded(tensors, options.shard_size)
    _fill(report, model, module, classes)
    shown = None if options.embed else index_path(weights) if sharded else weights
    frame = _frame(model, module, path, out, shown, report)
    frame.summary += [f"{BUILD_LINE:<10}{key}"] if key else []
    frame.sharded, frame.floats = sharded, _floats(tensors, module)
    frame.reads_constants = any("constant" in tree.called for tree in classes)
    if options.embed:
        frame.embedded = embed_bytes(tensors, origin)
    _check_length(classes, options)
    source, tree = render(frame, classes, module.own, report.notes, options.templates)
    digest = tree_digest(tree)
    fingerprint = _fingerprint(digest, tensors, options)
    source = with_fingerprint(source, fingerprint)
    report.lines = source.count("\n")
    metadata = {"format": "pt", "fingerprint": fingerprint, "onnxgen": __version__, **origin}
    reads = frozenset({path, *DATA_FILES.get(model)})
    tree = render(frame, classes, module.own, [])[1] if options.templates else tree
    return Generated(source, tensors, metadata, weights, report, reads, key, tree)


def _check_bytes(tensors: Tensors, model: ir.Model, options: Options) -> None:
    total = sum(_nbytes(t) for t in tensors.values())
    if problem := past(total, writable(model, options), "the weights have"):
        raise OnnxgenError(problem)
    if options.embed and total > EMBED_LIMIT:
        raise OnnxgenError(f"--embed is for small models, but the weights have {total >> 20} MiB: leave --embed out")


def _check_length(classes: list[ClassTree], options: Options) -> None:
    texts = [tree.source for tree in classes]
    length = sum(len(line) + 1 for text in texts for line in (*text.init, *text.arguments, *text.forward))
    if problem := options.limits.past("source_length", length, f"the source has at least {length:,} characters"):
        raise OnnxgenError(problem)


def _way_back(model: ir.Model, module: ModuleDef, record: Mapping[str, Any]) -> dict[str, str]:
    """The metadata that takes trained values back: what makes each ONNX tensor, who takes those that the file has once
    for several keys, in which local functions the others lie that are no tensor of the graph, and which integers each
    tensor stands for that is none of the file's."""
    shared = uses(model, module.members, [name for name, entry in record.items() if isinstance(entry, list)])
    local = {v.name: LOCAL.get(v) for v in stored_values(model.graph) if LOCAL.has(v) and v.name in record}
    found = {"wayback": record, "uses": shared, "functions": local, QUANTISED: quantised(model, record)}
    return {key: json.dumps(value) for key, value in found.items() if value or key == "wayback"}


def _freed_batch(model: ir.Model) -> dict[str, str]:
    """What the batch was made free of (`--dynamic-batch`), as the metadata has it."""
    freed = FREED.get(model)
    if freed is None or not freed.inputs:
        return {}
    return {"batch": json.dumps({"size": freed.size, "inputs": freed.inputs, "outputs": freed.outputs})}


def _tensors(module: ModuleDef, restored: list[Restored]) -> tuple[Tensors, dict[str, Any]]:
    """The sidecar's tensors, and the way back from them to the ONNX tensors (not to those that were made here)."""
    tied = {tie.names[1] for tie in module.ties}
    sources = {key: s for member in module.members for key, s in member.state_keys() if key not in tied}
    copies = [(tie.names[0], tie.copy) for tie in module.ties if tie.copy is not None]
    tensors: Tensors = dict(sources)
    for member in module.members:
        tensors.update({member.state_key(key): array for key, array in member.extra.items()})
    tensors.update(module.constants)
    made = frozenset(name for norm in restored for name in norm.made)
    made |= {p.name for s in sources.values() for p in s.pieces if isinstance(p.tensor, UnpackedTensor)}
    known = {key: source for key, source in sources.items() if not made.issuperset(source.names)}
    return tensors, way_back(known, copies, folds(restored, sources))


def _floats(tensors: Tensors, module: ModuleDef) -> str:
    """The one dtype that all floating-point entries of the state dict have; "" if there are several."""
    found = {stored_dtype(tensor) for key, tensor in tensors.items() if key not in module.constants} & set(TORCH_DTYPES)
    floats = {dtype for dtype in found if dtype.is_floating_point() or dtype in _COMPLEX} or {ir.DataType.FLOAT}
    return f"torch.{TORCH_DTYPES[floats.pop()]}" if len(floats) == 1 else ""


def _nbytes(tensor: Source | NDArray[Any]) -> int:
    return int(tensor.nbytes)


def _fingerprint(digest: str, tensors: Tensors, options: Options) -> str:
    """What ties a module to its sidecar: code, keys, shapes, dtypes and options, but no weight bytes.

    It begins with the code's digest, by which an edit is noticed.
    Nor the way back, which only the sidecar has: two files of one network that name their tensors differently give the
    very same module, which either sidecar fits.
    """
    layout = {k: [list(t.shape), str(t.dtype)] for k, t in tensors.items()}
    asked = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in _NO_MATTER}
    chosen = {name: str(value) for name, value in asked.items() if value != getattr(_DEFAULTS, name)}
    text = json.dumps([__version__, layout, chosen], sort_keys=True)
    return digest + hashlib.sha256(text.encode()).hexdigest()[:16]


def _fill(report: Report, model: ir.Model, module: ModuleDef, classes: list[ClassTree]) -> None:
    report.classes, report.parameters = len(classes), 0
    tied = {tie.names[1] for tie in module.ties}
    for member in module.members:
        for short, (key, source) in zip(member.keys, member.state_keys()):
            if (
                member.kind != "buffer"
                and key not in tied
                and not short.startswith("running_")
                and short not in member.frozen
            ):
                report.parameters += int(np.prod(source.shape, dtype=np.int64))
    layers = [m.layer for m in module.members if m.kind == "module" and m.layer.startswith("nn.")]
    report.recognised = dict(sorted(Counter(layers).items()))
    report.notes.extend(module.notes)
    taken: set[ir.Value] = set()
    add_used(model.graph, taken)
    made = frozenset(name for norm in RESTORED.get(model) or () for name in norm.made)
    for value in stored_values(model.graph):
        if TRAINABLE.has(value) and value.name not in made:
            trained, reason = TRAINABLE.get(value)
            if trained and value not in taken:
                trained, reason = False, "only a branch that never runs uses it"
            report.trainable[value.name or ""] = (trained, reason)


def _frame(model: ir.Model, module: ModuleDef, path: Path, out: Path, weights: Path | None, report: Report) -> Frame:
    """What the templates are given of the file itself. `weights`: None where they are in the module."""
    stored_inputs = set(model.graph.initializers)
    inputs = [v for v in model.graph.inputs if v.name not in stored_inputs]
    rows = {"Inputs": [_row(v) for v in inputs], "Outputs": [_row(v) for v in model.graph.outputs]}
    summary = aligned(rows)
    place = printable(weights.name, 60) if weights is not None else "in this file"
    summary.append(f"{'Weights':<10}{place}, {counted(report.parameters, 'parameter')}")
    relative = "" if weights is None else _relative(weights, out.parent).as_posix()
    if not is_quotable(relative):
        what = f"the name of the weights file, {printable(relative)}, can't be written into a Python file"
        raise OnnxgenError(what, help="name another --weights FILE")
    opset = model.graph.opset_imports.get("", 1)
    return Frame(
        module.name,
        printable(path.name, 80),
        opset,
        summary,
        relative,
        constants=module.constants_prefix if module.constants else "",
        ties=[t.names for t in module.ties],
    )


def _relative(path: Path, folder: Path) -> Path:
    import os

    return Path(os.path.relpath(path, folder))


def _row(value: ir.Value) -> tuple[str, str, str]:
    facts = info(value)
    dims = "?" if facts.shape is None else ", ".join(printable(str(d), 24) for d in facts.shape)
    dtype = "?" if facts.dtype is None else TORCH_DTYPES.get(facts.dtype, "str")
    return printable(value.name or "", 40), dtype if facts.kind == "tensor" else f"{facts.kind} of {dtype}", f"[{dims}]"
