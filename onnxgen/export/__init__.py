"""Export to ONNX: write a trained module's values into the file that it was generated from.

If the network has not changed, the values are written into the original graph with the same nodes, names and opset, so
that programs that run the old file run the new one. If only its head has another number of classes, the tensors and
sizes of the head are replaced in that graph. If it was edited, PyTorch exports it anew under the original names of
inputs and outputs. Either way the new file is compared with the module before it is put in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxgen._callable import callable_module
from onnxgen.errors import OnnxgenError
from onnxgen.export.report import DiffersError, ExportReport
from onnxgen.options import Options
from onnxgen.plugins import plugged

if TYPE_CHECKING:
    from torch import nn

__all__ = ["DiffersError", "ExportReport", "export"]


def export(
    module: Path | str,
    onnx: Path | str | None = None,
    weights: Path | str | nn.Module | None = None,
    out: Path | str | None = None,
    *,
    force: bool = False,
    same_graph: bool = False,
    verify: bool = True,
    runs: int = 3,
    seed: int = 0,
    rtol: float = 1e-3,
    atol: float = 1e-5,
    plugins: Sequence[str] = (),
    metadata: Mapping[str, str] | None = None,
) -> ExportReport:
    """Write a generated module's trained values to an ONNX file.

    Args:
        module: the generated file.
        onnx: the ONNX file that it was generated from, with the same content. Default: the file of the recorded name
            beside the module, or as `[[tool.onnxgen.models]]` of the nearest pyproject.toml says.
        weights: a safetensors file (or index), a file of `torch.save` or Lightning, or the trained `nn.Module` itself.
            Default: the module's own sidecar.
        out: the file to write; default: `<onnx>-tuned.onnx` beside the module. External data of the original goes to
            `<out>.data`.
        force: overwrite any file at `out`. Without it, only an earlier export (with the same inputs and outputs).
        same_graph: write the unchanged graph of the original. Otherwise the file also has the changes by options of the
            generation: sizes, a free batch, restored BatchNorms.
        verify: compare the new file with the module before it is put in place; runs, seed, rtol and atol are those of
            `onnxgen.verify`.
        plugins: modules with references of operators that no oracle knows (see `onnxgen.op`).
        metadata: facts about the training for `metadata_props` of the file, as text: `classes` (a JSON list),
            `preprocessing` (JSON), `run` (a digest). Keys get the prefix `onnxgen.`. They replace all entries with this
            prefix that the original has; its other entries stay.

    Returns:
        a report.

    Raises:
        DiffersError: the new file does not compute the same as the module; nothing was written.
        OnnxgenError: a file can't be read or written, or must not be overwritten; the weights do not fit the module;
            PyTorch or onnxruntime is missing; the metadata is no text; or the changed module can't be exported.
    """
    from onnxgen.runtime.load import need_torch

    need_torch("export", "verify")
    from onnxgen.export.job import ExportJob, Verification

    facts = dict(metadata or {})
    if wrong := [key for key, text in facts.items() if not (isinstance(key, str) and key and isinstance(text, str))]:
        what = f"metadata {wrong[0]!r} can't be written: keys and values are strings"
        raise OnnxgenError(what, help='write other values as JSON: {"classes": json.dumps(["cat", "dog"])}')
    wanted = Verification(runs, seed, rtol, atol, plugins) if verify else None
    trained = Path(weights) if isinstance(weights, str) else weights
    original, target = (None if path is None else Path(path) for path in (onnx, out))
    with plugged(Options(plugins=list(plugins))):  # which attributes of an operator are weights
        return ExportJob(Path(module), original, trained, target, force, same_graph, facts).run(wanted)


callable_module(__name__, export)
