"""What the tests of one real file share: it is read, generated, loaded, and run in onnxruntime, once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import onnx
import onnx_ir as ir
import torch

from onnxgen import pipeline
from onnxgen.errors import OnnxgenError
from onnxgen.graph.annotations import SCOPE
from onnxgen.options import Options
from onnxgen.output.compose import Generated
from onnxgen.reader import read
from tests.ops.harness import unformatted
from tests.shapes.agreeing import outputs_of_all_nodes
from tests.support.real import computes_in_half, imported

KEPT_BYTES = 1 << 28  # of the values of a file's nodes


class RealFile:
    """One file of the collection.

    Attributes:
        entry: what the manifest says of it.
        path: the file.
        folder: has `model.py` and its weights, if `is_written`; else the module is only made in memory.
        misread: what is wrong with the graph that was read, if anything.
    """

    def __init__(self, entry: dict[str, Any], refs: ModuleType, folder: Path, is_written: bool) -> None:
        self.entry, self.refs, self.folder, self.is_written = entry, refs, folder, is_written
        self.path: Path = entry["path"]
        self.name: str = entry["file"]
        self.misread: AssertionError | None = AssertionError("it was not read")

    @cached_property
    def outcome(self) -> Generated | OnnxgenError:
        """What is generated, or why the file is refused. Every pass is checked if its category is to be run."""
        out = self.folder / "model.py"
        try:
            with mock.patch.object(pipeline, "read", self._read), checked(self.entry["category"] in RUN):
                if self.is_written:
                    return pipeline.generate(self.path, out)
                with unformatted():
                    return pipeline.build(self.path, Options(), out)
        except OnnxgenError as error:
            return error

    @property
    def generated(self) -> Generated:
        """Raises the `OnnxgenError` if the file is refused."""
        if isinstance(self.outcome, OnnxgenError):
            raise self.outcome
        return self.outcome

    @property
    def has_trained(self) -> bool:
        """Whether it has anything to train; not if it is refused."""
        made = self.outcome
        return isinstance(made, Generated) and any(yes for yes, _ in made.report.trainable.values())

    @cached_property
    def module(self) -> ModuleType:
        assert self.generated
        return imported(self.folder / "model.py")

    def model(self) -> torch.nn.Module:
        """A new instance in eval mode."""
        model: torch.nn.Module = self.module.Model.from_pretrained().eval()
        return model

    @cached_property
    def feeds(self) -> dict[str, Any]:
        feeds: dict[str, Any] = self.refs.inputs(self.path, recipe=self.entry.get("feeds"))
        return feeds

    @cached_property
    def half(self) -> bool:
        return computes_in_half(self.path)

    @cached_property
    def proto(self) -> onnx.ModelProto:
        return onnx.load(self.path)

    @property
    def values(self) -> dict[str, Any] | str:
        """What onnxruntime computes for every node; the reason if it can't show them all."""
        if (kept := vars(self).get("_values")) is not None:
            return kept
        try:
            found: dict[str, Any] | str = outputs_of_all_nodes(self.proto, self.feeds)
        except Exception as error:
            found = str(error)
        sizes = [getattr(v, "nbytes", 0) for v in found.values()] if isinstance(found, dict) else []
        if sum(sizes) <= KEPT_BYTES:
            self._values = found
        return found

    @cached_property
    def expected(self) -> dict[str, Any]:
        """What onnxruntime computes for the outputs, at the level that the manifest says."""
        level, values = self.entry.get("ort_level", "off"), self.values
        if level == "off" and isinstance(values, dict):
            return {output.name: values[output.name] for output in self.proto.graph.output}
        outputs: dict[str, Any] = self.refs.outputs(self.path, self.feeds, level)
        return outputs

    def _read(self, path: Path, options: Options) -> ir.Model:
        found = read(path, options)
        try:
            assert_whole(found)
        except AssertionError as error:
            self.misread = error
        else:
            self.misread = None
        return found


RUN = ("net", "graph", "broken")


def assert_whole(found: ir.Model) -> None:
    """Every value that is used is made before, and every node has a scope."""
    made = {v for n in found.graph.all_nodes() for v in n.outputs}
    assert all(v in made or v.is_graph_input() or v.is_initializer() for v in found.graph.outputs)
    assert all(isinstance(SCOPE.get(n), tuple) for n in found.graph.all_nodes())
    seen = {*found.graph.inputs, *found.graph.initializers.values()}
    for step in found.graph:  # several files are not sorted
        assert all(v is None or v in seen for v in step.inputs)
        seen.update(step.outputs)


@contextmanager
def checked(yes: bool = True) -> Iterator[None]:
    """Let `onnxgen.paranoid` check every pass, unless the environment already says whether it does."""
    wanted = mock.patch.dict(os.environ, ONNXGEN_PARANOID="1")
    with wanted if yes and "ONNXGEN_PARANOID" not in os.environ else nullcontext():
        yield
