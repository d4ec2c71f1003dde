"""`onnxgen transplant` on architectures of torchvision, timm and transformers: does it fill them, and refuse others?

    python -m benchmarks.transplants [--networks tv.resnet18,hf.bert] [--forms torchscript,dynamo] [--json FILE]
    python -m benchmarks.transplants --wrong [--networks ...]

Each network is drawn with random weights, exported, and changed as the form says. Another instance of the same class,
with other weights, is filled from the file. "equal" says that it then computes what the original module does, on a
drawn input, and not only what onnxgen compares itself. With `--wrong`, the instance is made with other arguments; it
has to be refused, it must not change, and the message has to name a module where they differ.

It needs torchvision, timm and transformers, and for some forms onnxslim, onnxruntime and onnxconverter-common. What is
not installed is left out.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import logging
import re
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from benchmarks.common import arguments, finish
from benchmarks.transplanted import NETWORKS, WRONG, Network
from onnxgen.canonical.capture import exported
from onnxgen.canonical.transplant import NotTheSame, transplant
from onnxgen.errors import OnnxgenError
from onnxgen.runtime.load import load

ENOUGH, ENOUGH_HALF = 1e-4, 3e-2  # of the largest element, in float32: the original module against the filled one


def drawn(module: nn.Module, seed: int) -> nn.Module:
    """Return a module with random weights, scaled so that values neither vanish nor grow."""
    torch.manual_seed(seed)
    for key, value in module.state_dict().items():
        if not value.is_floating_point():
            continue
        if "var" in key:
            value.copy_(torch.rand_like(value) * 0.5 + 0.7)
        elif value.dim() > 1:
            value.copy_(torch.randn_like(value) / max(1, value[0].numel()) ** 0.5)
        elif "weight" in key or "gamma" in key:
            value.copy_(torch.rand_like(value) * 0.4 + 0.8)
        else:
            value.copy_(torch.randn_like(value) * 0.1)
    return module.eval()


class Wrapped(nn.Module):
    """A network that returns one tensor."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.net = module

    def forward(self, *inputs: Tensor) -> Tensor:
        found = self.net(*inputs)
        while not isinstance(found, Tensor):
            if hasattr(found, "logits"):
                return found.logits  # type: ignore[no-any-return]
            found = next(iter(found.values())) if isinstance(found, dict) else found[0]
        return found


class One(Wrapped):
    """A network of one input. Its signature is what `torch.export` names the input by."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)


class Two(Wrapped):
    """A network of two inputs."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        found = self.net(x, attention_mask=mask)
        return found.logits if hasattr(found, "logits") else found[0]  # type: ignore[no-any-return]


def wrapped(module: nn.Module, inputs: tuple[Tensor, ...]) -> nn.Module:
    return (One if len(inputs) == 1 else Two)(module).eval()


# ---- forms -----------------------------------------------------------------------------------------------------------


def _written(module: nn.Module, inputs: tuple[Tensor, ...], path: Path, **more: Any) -> None:
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        torch.onnx.export(module, inputs, str(path), **more)


def torchscript(module: nn.Module, inputs: tuple[Tensor, ...], path: Path) -> None:
    _written(module, inputs, path, dynamo=False, opset_version=17)


def training(module: nn.Module, inputs: tuple[Tensor, ...], path: Path) -> None:
    mode = torch.onnx.TrainingMode.PRESERVE
    _written(module, inputs, path, dynamo=False, opset_version=17, training=mode, do_constant_folding=False)


def dynamo(module: nn.Module, inputs: tuple[Tensor, ...], path: Path) -> None:
    _written(module, inputs, path, dynamo=True, verbose=False)


def onnxslim(module: nn.Module, inputs: tuple[Tensor, ...], path: Path) -> None:
    slim = importlib.import_module("onnxslim")
    torchscript(module, inputs, path)
    onnx.save(slim.slim(onnx.load(path)), path)


def onnxsim(module: nn.Module, inputs: tuple[Tensor, ...], path: Path) -> None:
    sim = importlib.import_module("onnxsim")
    torchscript(module, inputs, path)
    onnx.save(sim.simplify(onnx.load(path))[0], path)


def onnxruntime(module: nn.Module, inputs: tuple[Tensor, ...], path: Path, level: str = "EXTENDED") -> None:
    runtime: Any = importlib.import_module("onnxruntime")
    torchscript(module, inputs, path.with_suffix(".plain.onnx"))
    options = runtime.SessionOptions()
    options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    runtime.InferenceSession(str(path.with_suffix(".plain.onnx")), options, providers=["CPUExecutionProvider"])


def onnxruntime_basic(module: nn.Module, inputs: tuple[Tensor, ...], path: Path) -> None:
    onnxruntime(module, inputs, path, "BASIC")


def float16(module: nn.Module, inputs: tuple[Tensor, ...], path: Path) -> None:
    half = importlib.import_module("onnxconverter_common.float16")
    torchscript(module, inputs, path)
    model = onnx.load(path)
    casts = {output for node in model.graph.node if node.op_type == "Cast" for output in node.output}
    model = half.convert_float_to_float16(model, keep_io_types=True)
    for node in model.graph.node:  # the converter leaves casts to float32 as they are, and calls their outputs float16
        for attribute in node.attribute if casts & {*node.output} else ():
            attribute.i = onnx.TensorProto.FLOAT16 if attribute.i == onnx.TensorProto.FLOAT else attribute.i
    onnx.save(model, path)


def nameless(module: nn.Module, inputs: tuple[Tensor, ...], path: Path) -> None:
    """TorchScript's file, with numbers for all names."""
    torchscript(module, inputs, path)
    model = onnx.load(path)
    names: dict[str, str] = {"": ""}

    def renamed(graph: Any) -> None:
        for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
            value.name = names.setdefault(value.name, f"v{len(names)}")
            value.doc_string = ""
        for node in graph.node:
            node.name, node.doc_string = "", ""
            del node.metadata_props[:]
            for side in (node.input, node.output):
                side[:] = [names.setdefault(name, f"v{len(names)}") for name in side]
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    renamed(attribute.g)

    renamed(model.graph)
    onnx.save(model, path)


FORMS: dict[str, Callable[..., None]] = {
    f.__name__: f
    for f in (
        torchscript,
        training,
        dynamo,
        onnxslim,
        onnxsim,
        onnxruntime_basic,
        onnxruntime,
        float16,
        nameless,
    )
}


# ---- one file --------------------------------------------------------------------------------------------------------


def filled(name: str, form: str, folder: Path) -> dict[str, Any]:
    """Return a row: whether another instance of a network is filled from the file of the first."""
    network = NETWORKS[name]
    row: dict[str, Any] = {"network": name, "form": form, "result": "", "generate": "", "times": "", "why": ""}
    file = _file(network, form, folder, row)
    if file is None:
        return row
    path, original, inputs = file
    other = wrapped(drawn(network.make(), 2), inputs)
    started = time.perf_counter()
    load(path)
    generating = time.perf_counter() - started
    started = time.perf_counter()
    with torch.no_grad():
        exported(copy.deepcopy(other), inputs, [[] for _ in inputs])
    capturing = time.perf_counter() - started
    started = time.perf_counter()
    row["generate"] = f"{generating:.1f}"
    try:
        report = transplant(path, other)
    except NotTheSame as error:
        row |= {"result": "refused", "why": str(error)}
    except OnnxgenError as error:
        row |= {"result": "error", "why": str(error)}
    except Exception:
        row |= {"result": "crash", "why": " ".join(traceback.format_exc().split())[-300:]}
    else:
        apart = _apart(original, other, inputs)
        row["result"] = "equal" if apart <= (ENOUGH_HALF if form == "float16" else ENOUGH) else "WRONG"
        row["why"] = (
            f"{apart:.1g}, {len(report.folded)} folded, {len(report.chosen)} chosen, {len(report.partly)} partly"
        )
    row["times"] = f"{(time.perf_counter() - started - capturing) / generating:.1f}"
    return row


def _file(network: Network, form: str, folder: Path, row: dict[str, Any]) -> Any:
    """Return a file of a network, the network and inputs; None, with the reason in the row, if there is none."""
    path = folder / "net.onnx"
    try:
        inputs = network.inputs()
        original = wrapped(drawn(network.make(), 1), inputs)
        FORMS[form](original, inputs, path)
        _run_in_onnxruntime(path)
        load(path)
    except ModuleNotFoundError as error:
        row |= {"result": "left out", "why": f"no {error.name}"}
    except OnnxgenError as error:
        row |= {"result": "no module", "why": str(error)}
    except Exception as error:
        row |= {"result": "no file", "why": " ".join(str(error).split())[:150]}
    else:
        return path, original.eval(), inputs
    return None


def _run_in_onnxruntime(path: Path) -> None:
    """Load a file in onnxruntime: converters write some that are none."""
    runtime: Any = importlib.import_module("onnxruntime")
    runtime.set_default_logger_severity(4)
    runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def _apart(one: nn.Module, other: nn.Module, inputs: tuple[Tensor, ...]) -> float:
    with torch.no_grad():
        a, b = one(*inputs), other.eval()(*inputs)
    return float((a - b).abs().max() / a.abs().max())


def refused(name: str, number: int, folder: Path) -> dict[str, Any]:
    """Return a row: whether an instance that was made with other arguments is refused."""
    network, wrong = NETWORKS[name], WRONG[name][number]
    row: dict[str, Any] = {"network": name, "other": wrong.what, "result": "", "place": "", "why": ""}
    file = _file(network, wrong.form, folder, row)
    if file is None:
        return row
    path, _, inputs = file
    other = wrapped(drawn(wrong.make(), 2), inputs)
    before = {key: value.clone() for key, value in other.state_dict().items()}
    try:
        transplant(path, other)
        row["result"] = "FILLED"
    except NotTheSame as error:
        row |= {"result": "refused", "why": str(error)}
        paths = [place.module for place in error.places]
        row["place"] = "right" if any(re.search(wrong.where, p) for p in paths) else "other" if paths else "none"
    except OnnxgenError as error:
        row |= {"result": "error", "why": str(error)}
    except Exception:
        row |= {"result": "crash", "why": " ".join(traceback.format_exc().split())[-300:]}
    if any(not torch.equal(value, before[key]) for key, value in other.state_dict().items()):
        row["result"] += " CHANGED"
    return row


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--networks", default="", help="names, or their beginnings")
    parser.add_argument("--forms", default="", help=", ".join(FORMS))
    parser.add_argument("--wrong", action="store_true", help="fill instances with other arguments")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    starts = tuple(given.networks.split(","))
    names = [name for name in (WRONG if given.wrong else NETWORKS) if name.startswith(starts)]
    forms = [form for form in FORMS if not given.forms or form in given.forms.split(",")]
    rows = []
    for name in names:
        for case in range(len(WRONG[name])) if given.wrong else forms:
            with tempfile.TemporaryDirectory() as folder:
                if given.wrong:
                    row = refused(name, int(case), Path(folder))
                else:
                    row = filled(name, str(case), Path(folder))
            rows.append(row)
            print(*(str(value)[:400] for value in row.values()), sep="  ", flush=True)
    counts = {kind: sum(row["result"] == kind for row in rows) for kind in dict.fromkeys(r["result"] for r in rows)}
    print()
    finish(rows, given.json)
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return int(any(kind in ("WRONG", "FILLED", "crash") or "CHANGED" in kind for kind in counts))


if __name__ == "__main__":
    sys.exit(main())
