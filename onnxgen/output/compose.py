"""Composes the result of a generation: source, lazy weights with their provenance, and a report.

`signature` is what a sidecar records of inputs and outputs, told from the graph.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
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
from onnxgen.code.render import Frame, aligned, render
from onnxgen.common.built import as_json
from onnxgen.common.cache import file_sha256
from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError, counted
from onnxgen.graph.annotations import APPROXIMATED, DATA_FILES, FREED, LOCAL, RESTORED, TRAINABLE, past, writable
from onnxgen.lowering.sharing import uses
from onnxgen.options import Options
from onnxgen.passes.folded import folds
from onnxgen.passes.retype import KEY as DTYPE
from onnxgen.passes.trainable import add_used, stored_values
from onnxgen.purpose import purpose_of
from onnxgen.record.asked import KEY as OPTIONS
from onnxgen.record.asked import asked
from onnxgen.record.base import BASE, BUILD_LINE, packed, tree_digest, with_fingerprint
from onnxgen.record.labels import KEY as ALPHABET
from onnxgen.record.labels import PREFIX, alphabet_in
from onnxgen.record.sidecar import TRAINED, index_path
from onnxgen.record.signature import KEY as SIGNATURE
from onnxgen.record.signature import Port, Signature
from onnxgen.record.way_back import WayBack, cut_of
from onnxgen.shapes.info import info
from onnxgen.weights.dequantised import KEY as APPROXIMATION
from onnxgen.weights.dequantised import UnpackedTensor, quantised
from onnxgen.weights.dtypes import TORCH_DTYPES
from onnxgen.weights.provenance import Source, way_back
from onnxgen.weights.sidecar import embed_bytes, is_sharded, stored_dtype
from onnxgen.weights.stored import twins

Tensors = dict[str, Source | NDArray[Any]]
DATA = "data"  # key in the sidecar's metadata
MAX_EMBEDDED_BYTES = 64 << 20
_DEFAULTS = Options()
_COMPLEX = (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)
# options whose effects, if any, are in the code
_NOT_IN_FINGERPRINT = ("weights", "limits", "templates", "annotate", "plugins", "allow_unsupported", "paranoid")


@dataclass
class Report:
    """The report of a generation, for people and for `--json`.

    Attributes:
        classes, parameters, lines: counts of the generated file (parameters: trained elements).
        recognised: counts of each `nn` module.
        notes: what the export left out, and other remarks.
        stages: seconds of each stage (see `onnxgen.common.timing`).
        trainable: for each stored float tensor of the ONNX file, whether it is trained, and why.
        wrote: the files written.
        plain: paths of modules left without structure, which would have changed their results (see `validate`).
        status: "written", "merged" (written with the edits that were made by hand), "fresh" (nothing to do) or "kept"
            (edited by hand, source unchanged).
        checked: what comparing the rewritten regions gave, in a sentence.
        left_out: the passes that were left out, since they would have changed results, each with what they changed.
        progress: called with the name of each stage when it begins.
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
    left_out: dict[str, str] = field(default_factory=dict)
    progress: Callable[[str], None] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Build:
    """Digests that a build records, so that the next one can tell without generating that nothing changed.

    Attributes:
        key: of everything that the module is made of; in its header.
        data: of the external data; in the sidecar, which has the digest of the ONNX file anyway.
    """

    key: str
    data: str = ""


@dataclass(repr=False)
class Generated:
    """The result of a generation.

    Attributes:
        source: the module's text.
        tensors: every tensor of the sidecar by its key; a `Source` is read only when it is written.
        metadata: of the sidecar: fingerprint, signature, and how to rebuild each trainable ONNX tensor.
        weights: the path of the sidecar.
        report: see `Report`.
        reads: the ONNX file and its external data, which must not be overwritten.
        key: `Build.key`; "" if this is not a build.
        tree: the syntax tree of the source, made with onnxgen's own templates.
    """

    source: str
    tensors: Mapping[str, Source | NDArray[Any]]
    metadata: Mapping[str, str]
    weights: Path
    report: Report
    reads: frozenset[Path] = frozenset()
    key: str = ""
    tree: ast.Module = field(default_factory=lambda: ast.Module([], []))

    def __repr__(self) -> str:
        counts = {"class": self.report.classes, "parameter": self.report.parameters, "line": self.report.lines}
        shown = ", ".join(counted(number, noun) for noun, number in counts.items())
        return f"<Generated, {self.report.status}: {shown}; weights: {self.weights}>"


def compose(
    model: ir.Model,
    module: ModuleDef,
    classes: list[ClassTree],
    path: Path,
    out: Path,
    options: Options,
    report: Report,
    build: Build | None = None,
    requested: Options | None = None,
) -> Generated:
    """Make source, weights and report.

    Args:
        build: what a build records.
        requested: the options before a task made others of them; default: `options`.
    """
    key = build.key if build is not None else ""
    tensors, record = _tensors(module, model, options)
    origin = {**_way_back(model, module, record, options), **_freed_batch(model), **_of_options(model, options)}
    origin |= {SIGNATURE: as_json(signature(model, path)), OPTIONS: asked(requested or options, out.parent)}
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
    _check_length(classes, options)
    if options.embed:  # the text without its weights is in the metadata of the weights
        frame.embedded = embed_bytes({}, {})
        origin[BASE] = packed(render(frame, classes, module.own, [], options.templates)[0])
        frame.embedded = embed_bytes(tensors, origin)
    source, tree = render(frame, classes, module.own, report.notes, options.templates)
    fingerprint = _fingerprint(tree_digest(tree), tensors, options)
    source = with_fingerprint(source, fingerprint)
    report.lines = source.count("\n")
    origin |= {} if options.embed else {BASE: packed(source)}
    metadata = {"format": "pt", "fingerprint": fingerprint, "onnxgen": __version__, **origin}
    tree = render(frame, classes, module.own, [])[1] if options.templates else tree
    return Generated(source, tensors, metadata, weights, report, frozenset({path, *DATA_FILES.get(model)}), key, tree)


def _of_options(model: ir.Model, options: Options) -> dict[str, str]:
    """Return the metadata of the type, the alphabet, the file's own training, and how far it differs from the file."""
    metadata = {DTYPE: options.dtype} if options.dtype else {}
    if (alphabet := alphabet_in(model.metadata_props)) is not None:
        metadata[ALPHABET] = as_json(alphabet)
    if (contract := model.metadata_props.get(PREFIX + TRAINED)) is not None:  # of the training that made the file
        metadata[TRAINED] = contract
    approximated = APPROXIMATED.get(model)
    return metadata if approximated is None else metadata | {APPROXIMATION: as_json(approximated)}


def _check_bytes(tensors: Tensors, model: ir.Model, options: Options) -> None:
    total = sum(int(t.nbytes) for t in tensors.values())
    if problem := past(total, writable(model, options), "the weights have"):
        raise OnnxgenError(problem)
    if options.embed and total > MAX_EMBEDDED_BYTES:
        raise OnnxgenError(f"--embed is for small models, but the weights have {total >> 20} MiB: leave --embed out")


def _check_length(classes: list[ClassTree], options: Options) -> None:
    texts = [tree.source for tree in classes]
    length = sum(len(line) + 1 for text in texts for line in (*text.init, *text.arguments, *text.forward))
    if problem := options.limits.past("source_length", length, f"the source has at least {length:,} characters"):
        raise OnnxgenError(problem)


def _way_back(model: ir.Model, module: ModuleDef, record: Mapping[str, Any], options: Options) -> dict[str, str]:
    shared = uses(model, module.members, [name for name, entry in record.items() if isinstance(entry, list)])
    local = {v.name or "": LOCAL.get(v) for v in stored_values(model.graph) if LOCAL.has(v) and v.name in record}
    return WayBack(record, shared, local, quantised(model, record), cut_of(options)).to_metadata()


def _freed_batch(model: ir.Model) -> dict[str, str]:
    freed = FREED.get(model)
    if freed is None or not freed.inputs:
        return {}
    return {"batch": json.dumps({"size": freed.size, "inputs": freed.inputs, "outputs": freed.outputs})}


def _tensors(module: ModuleDef, model: ir.Model, options: Options) -> tuple[Tensors, dict[str, Any]]:
    """Return the sidecar's tensors, and how to rebuild the ONNX tensors (not those that a pass made, or `--const`)."""
    tied = _tied(module)
    sources = {key: s for member in module.members for key, s in member.state_keys() if key not in tied}
    copies = [(tie.names[0], tie.copy) for tie in module.ties if tie.copy is not None]
    copies += twins(sources, model.graph.initializers.values())
    tensors: Tensors = dict(sources)
    for member in module.members:
        tensors.update({member.state_key(key): array for key, array in member.extra.items()})
    tensors.update(module.constants)
    not_stored = _of_passes(model).union(options.const)
    not_stored |= {p.name for s in sources.values() for p in s.pieces if isinstance(p.tensor, UnpackedTensor)}
    known = {key: source for key, source in sources.items() if not not_stored.issuperset(source.names)}
    return tensors, way_back(known, copies, folds(RESTORED.get(model) or [], sources))


def _tied(module: ModuleDef) -> set[str]:
    """Return the keys of the state dict that are another's parameter."""
    return {tie.names[1] for tie in module.ties}


def _of_passes(model: ir.Model) -> frozenset[str]:
    return frozenset(name for norm in RESTORED.get(model) or () for name in norm.made)


def _floats(tensors: Tensors, module: ModuleDef) -> str:
    """Return the dtype of all floating-point entries of the state dict; "" if there are several."""
    dtypes = {stored_dtype(tensor) for key, tensor in tensors.items() if key not in module.constants} & set(
        TORCH_DTYPES
    )
    floats = {dtype for dtype in dtypes if dtype.is_floating_point() or dtype in _COMPLEX} or {ir.DataType.FLOAT}
    return f"torch.{TORCH_DTYPES[floats.pop()]}" if len(floats) == 1 else ""


def _fingerprint(digest: str, tensors: Tensors, options: Options) -> str:
    """Return a digest of code, keys, shapes, dtypes and options, which module and sidecar must share.

    It begins with the code's digest, to detect edits. Weight bytes and provenance are not in it: two files of one
    network with other weights or tensor names give the same module, and either sidecar fits.
    """
    layout = {k: [list(t.shape), str(t.dtype)] for k, t in tensors.items()}
    asked = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in _NOT_IN_FINGERPRINT}
    chosen = {name: str(value) for name, value in asked.items() if value != getattr(_DEFAULTS, name)}
    text = json.dumps([__version__, layout, chosen], sort_keys=True)
    return digest + hashlib.sha256(text.encode()).hexdigest()[:16]


def _fill(report: Report, model: ir.Model, module: ModuleDef, classes: list[ClassTree]) -> None:
    report.classes, report.parameters = len(classes), _count_trained(module)
    layers = [m.layer for m in module.members if m.kind == "module" and m.layer.startswith("nn.")]
    report.recognised = dict(sorted(Counter(layers).items()))
    report.notes.extend(module.notes)
    taken: set[ir.Value] = set()
    add_used(model.graph, taken)
    of_passes = _of_passes(model)
    for value in stored_values(model.graph):
        if TRAINABLE.has(value) and value.name not in of_passes:
            trained, reason = TRAINABLE.get(value)
            if trained and value not in taken:
                trained, reason = False, "only a branch that never runs uses it"
            report.trainable[value.name or ""] = (trained, reason)


def _count_trained(module: ModuleDef) -> int:
    """Return the number of trained elements, those of tied tensors once."""
    tied, total = _tied(module), 0
    for member in (member for member in module.members if member.kind != "buffer"):
        for key, source in member.keys.items():
            if member.state_key(key) not in tied and not key.startswith("running_") and key not in member.frozen:
                total += int(np.prod(source.shape, dtype=np.int64))
    return total


def _frame(model: ir.Model, module: ModuleDef, path: Path, out: Path, weights: Path | None, report: Report) -> Frame:
    """Return the parts of the file around its classes. `weights`: None if they are in the module."""
    stored_inputs = set(model.graph.initializers)
    inputs = [v for v in model.graph.inputs if v.name not in stored_inputs]
    rows = {"Inputs": [_row(v) for v in inputs], "Outputs": [_row(v) for v in model.graph.outputs]}
    summary = aligned(rows)
    place = printable(weights.name, 60) if weights is not None else "in this file"
    summary.append(f"{'Weights':<10}{place}, {counted(report.parameters, 'parameter')}")
    relative = "" if weights is None else Path(os.path.relpath(weights, out.parent)).as_posix()
    if not is_quotable(relative):
        what = f"the name of the weights file, {printable(relative)}, can't be written into a Python file"
        raise OnnxgenError(what, help="name another --weights FILE")
    opset = model.graph.opset_imports.get("", 1)
    names = module.name, module.function, printable(path.name, 80)
    frame = Frame(*names, opset, summary, relative, ties=[tie.names for tie in module.ties])
    frame.constants = module.constants_prefix if module.constants else ""
    return frame


def _row(value: ir.Value) -> tuple[str, str, str]:
    facts = info(value)
    dims = "?" if facts.shape is None else ", ".join(printable(str(d), 24) for d in facts.shape)
    dtype = "?" if facts.dtype is None else TORCH_DTYPES.get(facts.dtype, "str")
    return printable(value.name or "", 40), dtype if facts.kind == "tensor" else f"{facts.kind} of {dtype}", f"[{dims}]"


def signature(model: ir.Model, path: Path) -> Signature:
    """Return the signature of a graph with propagated shapes, read from `path`. External data is not hashed."""
    stored = set(model.graph.initializers)
    inputs = tuple(_described(v) for v in model.graph.inputs if v.name not in stored)
    outputs = tuple(map(_described, model.graph.outputs))
    return Signature(inputs, outputs, path.name, file_sha256(path), purpose_of(model))


def _described(value: ir.Value) -> Port:
    facts = info(value)
    dims = None if facts.shape is None else tuple(d if isinstance(d, int) else str(d) for d in facts.shape)
    dtype = None if facts.dtype is None else TORCH_DTYPES.get(facts.dtype, "str")
    return Port(value.name or "", dtype, dims, facts.kind)
