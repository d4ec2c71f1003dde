"""What a drawn file becomes: the module in memory, generated with passes that lie if the case asks for them, cast and
with another head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx_ir as ir
import torch
from torch import nn

from onnxgen import pipeline
from onnxgen.options import Options
from onnxgen.output.compose import Report
from onnxgen.paranoid import quick, trained
from onnxgen.paranoid.claims import Claim, Regions
from onnxgen.paranoid.quick import QuickChecker
from onnxgen.runtime.load import load
from onnxgen.surgery.replacing import replace_head

LONGEST = 1000  # of a note


class Doubting(QuickChecker):
    """Finds wrong whatever some passes rewrite."""

    lied: frozenset[str] = frozenset()
    name = ""

    def judge(self, name: str, *args: Any) -> None:
        self.name = name
        super().judge(name, *args)

    def _verdict(self, regions: Regions, claim: Claim) -> str | None:
        return "it differs" if claim.needed and self.name in self.lied else super()._verdict(regions, claim)


def generated(path: Path, options: Options | None, lied: frozenset[str], doubts: bool) -> tuple[nn.Module, Report]:
    """The module of a file, and the report of its generation.

    Args:
        lied: passes that count as wrong, so they are left out.
        doubts: whether what is trained is in doubt.
    """
    with ExitStack() as stack:
        reports = stack.enter_context(reported())
        if lied:
            stack.enter_context(_lying(lied))
        if doubts:
            stack.enter_context(_doubting())
        model = load(path, options)
    return model, reports[-1]


@contextmanager
def reported() -> Iterator[list[Report]]:
    """The reports of the generations in the block."""
    reports: list[Report] = []
    real = pipeline.generate

    def generate(*args: Any, **kwargs: Any) -> Any:
        made = real(*args, **kwargs)
        reports.append(made.report)
        return made

    with mock.patch.object(pipeline, "generate", generate):
        yield reports


@contextmanager
def _lying(lied: frozenset[str]) -> Iterator[None]:
    def checker_for(options: Options, left_out: Mapping[str, str]) -> QuickChecker:
        checker = Doubting(left_out)
        checker.lied = lied
        return checker

    with mock.patch.object(quick, "checker_for", checker_for), mock.patch.dict("os.environ", {"ONNXGEN_STRICT": "0"}):
        yield


@contextmanager
def _doubting() -> Iterator[None]:
    def unfounded(self: Any, value: ir.Value, why: str) -> bool:
        return True

    with (
        mock.patch.object(trained.Rules, "is_unfounded", unfounded),
        mock.patch.dict("os.environ", {"ONNXGEN_STRICT": "0"}),
    ):
        yield


def unclear(report: Report) -> str:
    """What is wrong with the notes of a generation: a note is one line of printable text; "" if nothing."""
    for note in (*report.notes, *report.left_out.values(), *report.plain):
        if not (note.isascii() and note.isprintable()) or len(note) > LONGEST:
            return f"a note can't be printed: {note[:200]!r}"
    return ""


def arguments(feed: Mapping[str, Any], dtype: str | None) -> list[torch.Tensor]:
    """The tensors of a feed, of the type that the network was generated in."""
    tensors = [torch.from_numpy(np.array(a)) for a in feed.values()]
    return [t.to(getattr(torch, dtype)) if dtype and t.is_floating_point() else t for t in tensors]


def headed(model: nn.Module, classes: int, wanted: list[list[Any]]) -> list[list[Any]]:
    """Give a model that ends in a head one of the first classes alone; what it computes then."""
    replace_head(model, classes, keep=range(classes))
    return [[output[..., :classes] for output in outputs] for outputs in wanted]
