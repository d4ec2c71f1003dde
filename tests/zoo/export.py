"""Exports a zoo entry with either of torch's exporters."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from filelock import FileLock
from torch import nn

from tests.conftest import KEPT
from tests.support.exporter import keep_tables

if TYPE_CHECKING:
    from tests.zoo import Entry

LEGACY_OPSETS = (9, 11, 13, 17)
DYNAMO_OPSETS = (
    18,
    23,
)  # the oldest that it writes itself; the newest torch 2.13 declares (past it, it only stamps the number)


@dataclass(frozen=True)
class Case:
    """One way to export: str(case) is its pytest id and its key in `Entry.unsupported`."""

    exporter: str
    opset: int
    training: bool

    def __str__(self) -> str:
        return f"{self.exporter}-{self.opset}-{'train' if self.training else 'eval'}"


CASES = tuple(
    Case(exporter, opset, training)
    for training in (False, True)
    for exporter, opsets in (("legacy", LEGACY_OPSETS), ("dynamo", DYNAMO_OPSETS))
    for opset in opsets
)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Neither warnings nor progress: exporters print a lot."""
    keep_tables(anyway=True)
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def export(
    entry: Entry, path: Path, exporter: str = "legacy", opset: int = 17, training: bool = False, keep: str | bool = True
) -> nn.Module:
    """Write the entry's network to `path`; its dynamic dims are dynamic in the file.

    Several tests read the same file of the zoo, so it is exported once, and kept in `build/exports` for the packages
    that made it. `keep=False` exports anew; a name keeps a variant, which is no entry of the zoo.

    In training mode nothing is folded. The legacy exporter then records BatchNormalization with batch statistics and
    Dropout as training; the dynamo exporter records Dropout as training, but BatchNormalization as *inference* (torch
    2.13): compare its files with `as_recorded(model, "dynamo")`, never with the module in plain training mode.

    Returns:
        the module that was exported, in the mode in which it was exported. Tracing in training mode has moved its
        running statistics, and the legacy exporter writes them as they are after it.

    Raises:
        Exception: whatever the exporter refuses with.
    """
    kept = _kept(entry, Case(exporter, opset, training), keep)
    if kept is None:
        return _exported(entry, path, exporter, opset, training)
    file, state = kept.with_suffix(".onnx"), kept.with_suffix(".pt")
    with FileLock(kept.with_suffix(".lock")):
        if not state.exists():
            model = _exported(entry, file, exporter, opset, training)
            torch.save(model.state_dict(), written := state.with_suffix(".new"))
            written.replace(state)
        else:
            model = entry.make().train(training)
            model.load_state_dict(torch.load(state, weights_only=True))
    shutil.copyfile(file, path)
    return model


def _kept(entry: Entry, case: Case, keep: str | bool) -> Path | None:
    """Where an export is kept, without a suffix; None outside of a session of pytest, and for what is not the zoo's."""
    from tests.zoo import ZOO

    folder = os.environ.get(KEPT)
    name = keep if isinstance(keep, str) else next((name for name, known in ZOO.items() if known is entry and keep), "")
    return None if folder is None or not name else _made_by(folder) / f"{name}-{case}"


@functools.cache
def _made_by(folder: str) -> Path:
    """The folder of what these packages export of the networks as they are written here."""
    used = {"torch", "onnx", "onnxscript", "onnx-ir", "numpy", "transformers"}
    packages = sorted({(d.name, d.version) for d in distributions() if d.name.lower().replace("_", "-") in used})
    sources = [p.read_bytes() for p in sorted(Path(__file__).parent.glob("*.py")) if not p.name.startswith("test_")]
    made = Path(folder) / hashlib.sha256(repr((sys.version, packages, sources)).encode()).hexdigest()[:16]
    made.mkdir(parents=True, exist_ok=True)
    return made


def _exported(entry: Entry, path: Path, exporter: str, opset: int, training: bool) -> nn.Module:
    model = entry.make().train(training)
    if exporter == "legacy":
        _legacy(model, entry, path, opset, training)
    else:
        _dynamo(model, entry, path, opset)
    return model


def as_recorded(model: nn.Module, exporter: str) -> nn.Module:
    """Put an exported module into the mode that the file really records (see `export`); returns the module."""
    if exporter == "dynamo":
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
    return model


def _legacy(model: nn.Module, entry: Entry, path: Path, opset: int, training: bool) -> None:
    mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
    with quiet():
        torch.onnx.export(
            model,
            entry.inputs(),
            path,
            dynamo=False,
            opset_version=opset,
            training=mode,
            do_constant_folding=not training,
            input_names=list(entry.input_names),
            output_names=list(entry.output_names),
            dynamic_axes={name: dict(axes) for name, axes in entry.dynamic.items()},
        )


def _dynamo(model: nn.Module, entry: Entry, path: Path, opset: int) -> None:
    # Names, not torch.export.Dim: a Dim is a promise for all sizes, and where a network breaks it (a U-Net whose sides
    # must divide by 4) the exporter tries again and again in other ways.
    shapes = tuple(
        {axis: dim for axis, dim in entry.dynamic.get(name, {}).items() if dim not in entry.static_in_dynamo}
        for name in entry.input_names
    )
    # The exporter keeps these operators whole by overriding their kernels, but in torch 2.13 a kernel that an earlier
    # export looked up is still found instead: the network is then unrolled over time, depending on what ran before.
    for operator in (torch.ops.aten.lstm.input, torch.ops.aten.gru.input):
        operator._dispatch_cache.clear()
    with quiet():
        torch.onnx.export(
            model,
            entry.inputs(),
            path,
            dynamo=True,
            opset_version=opset,
            input_names=list(entry.input_names),
            output_names=list(entry.output_names),
            dynamic_shapes=shapes,
            external_data=False,
            verbose=False,
            optimize=not model.training,
        )
