"""One verification, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError, counted
from onnxgen.graph.annotations import APPROXIMATED, FREED
from onnxgen.graph.nodes import NAMED
from onnxgen.heads.trained import of_task
from onnxgen.options import Options
from onnxgen.passes.batch import Freed
from onnxgen.passes.retype import KEY as DTYPE
from onnxgen.passes.trainable import stored_values
from onnxgen.pipeline import read_and_simplify
from onnxgen.plugins.loading import evaluators, without_reference
from onnxgen.reader import read
from onnxgen.record.asked import recorded_options
from onnxgen.record.sidecar import metadata_of
from onnxgen.record.way_back import cut_of, recorded_cut
from onnxgen.runtime.checkpoint import load_partly
from onnxgen.runtime.load import from_pretrained, imported, load
from onnxgen.verify import answering, gradients, rounding, torch_side, trace
from onnxgen.verify import sizes as sizing
from onnxgen.verify.compare import Telling, Tolerance, compare, describe
from onnxgen.verify.graph import examine
from onnxgen.verify.integrity import (
    approximation_of,
    compare_weights,
    in_part,
    moved_tensors,
    other_file,
    record_of,
    without_alphabet,
)
from onnxgen.verify.oracle import (
    LOOP_SECONDS,
    SLOWER,
    Answer,
    ModelPart,
    TimedOut,
    free_inputs,
    freed_of,
    is_free,
    proto,
)
from onnxgen.verify.report import Gradients, Located, OutputCheck, Run, VerifyReport
from onnxgen.verify.rounding import Freedom
from onnxgen.weights.dequantised import Approximation
from onnxgen.weights.stored import stored

if TYPE_CHECKING:
    import torch
    from torch import nn


class Check:
    """Compares one ONNX file with modules (see `verify` for the arguments and errors)."""

    def __init__(
        self, path: Path, options: Options, *, rtol: float, atol: float, sizes: Mapping[str, int] | None = None
    ) -> None:
        self.path, self.sizes, options = path, sizes or {}, of_task(path, options)
        self.given, self.options = options, replace(options, dtype=None)
        self.new_ops = evaluators(options.plugins)
        self.freed: Freed | None = None
        self.approximation: Approximation | None = None
        model = self._examined()
        self.unsaid = without_reference(model, self.new_ops)
        tensors = (stored(v) for v in stored_values(model.graph))
        floats = {t.dtype for t in tensors if t is not None and t.dtype.is_floating_point()}
        self.stored = {str(dtype.numpy()) for dtype in map(ir.DataType, floats)}
        self.tolerance = Tolerance(rtol, atol)
        self.notes: list[str] = []
        self.refusals: list[str] = []
        self.refused: list[sizing.Sizes] = []  # sizes for which no values were accepted
        self.steps: dict[str, int] = {}  # of dims whose sizes must be multiples of something
        self.said: set[str] = set()  # oracles of which a note says what they refused
        self.cast: torch.dtype | None = None
        self.halves: set[str] = set()
        self.freedom: Freedom | None = None  # the oracle's other answers, made on first use
        self.telling = Telling()
        # outputs in which the oracle's own rounding could hide errors in some run, with the reason
        self.coarse: dict[str, str] = {}
        # True if onnxruntime loads the file, and (second) if it refused all inputs, so that onnx.reference answers
        self.loads_elsewhere = self.only_reference = False
        self.partly = ""  # what of the module's weights was loaded, if not all
        self.is_rounded = False  # True if the file's weights are the module's, rounded to integers after training

    def _examined(self) -> ir.Model:
        """Examine the file, with a free batch if the module has one."""
        model = read(self.path, self.options)
        if self.freed is not None:
            free_inputs(model, self.freed)
        self.graph = examine(model, self.options)
        return model

    def _cut(self, space: Mapping[str, Any], is_anew: bool) -> None:
        """Restrict the comparison to the part, the sizes and the `--const` that the module was generated for.

        Args:
            is_anew: the file was exported from the module, and has no input that is a constant.
        """
        metadata = metadata_of(space)
        cut = recorded_cut(metadata) if cut_of(self.options) is None else None
        if cut is not None:
            self.options = replace(self.options, inputs=cut[0], outputs=cut[1])
        shapes = sizing.recorded_ranks(self.graph, metadata)
        is_known = is_anew or self.options.const
        recorded = (None if is_known else recorded_options(metadata, self.path.parent)) or Options()
        shapes |= sizing.asked_sizes(self.graph, recorded.input_shapes, self.sizes)
        if recorded.const:
            shapes |= {name: dims for name, dims in recorded.input_shapes.items() if name in recorded.const}
            self.options = replace(self.options, const=recorded.const)
        if shapes:
            self.options = replace(self.options, input_shapes={**shapes, **self.options.input_shapes})
        if cut is not None or shapes or recorded.const:
            self._examined()
        sizing.need_named(self.sizes, self.graph, self.path)

    def proto(self) -> onnx.ModelProto:
        """Return the compared ONNX model in the form that onnxruntime gets."""
        return proto(self.path, without_dropout=self.graph.training, part=self._part())

    def _part(self) -> ModelPart | None:
        """Return the part of the file that is compared, or None for all of it."""
        cut = cut_of(self.options)
        const, shapes = self.options.const, self.options.input_shapes
        return ModelPart(cut, self.graph.argument_types, const, shapes) if cut is not None or const else None

    def _free_batch(self, space: Mapping[str, Any]) -> None:
        """If only the module has a free batch, compare it with several runs of the file."""
        freed = freed_of(space)
        if freed is None and self.options.dynamic_batch:
            freed = FREED.get(read_and_simplify(self.path, self.options))
        if freed is None or not freed.inputs or is_free(read(self.path, self.options), freed):
            return
        if self.graph.trains_norm:
            self.notes.append(
                "BatchNorm runs in training mode, which mixes samples: only the batch of the file is compared"
            )
            return
        self.freed = freed
        self._examined()
        self.notes.append(f"the batch of {freed.size} was made free: several runs of the file are compared, stacked")

    def verify(
        self,
        module: Path | str | nn.Module | None,
        *,
        runs: int,
        seed: int,
        feeds: Sequence[Mapping[str, Any]] | None,
        integrity: bool,
        locate: bool,
        partial: bool,
    ) -> VerifyReport:
        with self._opened(module, partial) as (network, space):
            shown = str(module) if isinstance(module, (str, Path)) else type(network).__name__
            report, backward = self._begun(network, space, shown), torch_side.Backward()
            if self.partly:
                return in_part(self, network, space, report, self.answers(runs, seed, feeds))
            first: Answer | None = None
            different: tuple[dict[str, Any], Run] | None = None  # inputs of the first run that differs, and the run
            with torch_side.in_mode(network, self.graph):
                for answer in self.answers(runs, seed, feeds):
                    first = first or answer
                    report.runs.append(self.run(network, answer, backward, report.gradients))
                    self.notes += gradients.without_nans(self.path, self.proto, answer.feeds, backward)
                    if not report.runs[-1].agrees and different is None:
                        different = answer.feeds, report.runs[-1]
                if feeds is None and first is not None and all(run.agrees for run in report.runs):
                    self.notes += answering.relied_on(self, network, first)
                gradients.excuse_idle(network, answer.feeds, backward, self._limit(answer))
            report.untold = self.telling.untold() | self.coarse
            report.moved = moved_tensors(self, space)
            if locate and (different is not None or report.moved):
                report.located = self._locate(network, different, report.moved)
            self._finish_gradients(network, backward, record_of(space), report.gradients)
            if integrity:
                report.integrity = compare_weights(self.path, Path(shown), space, self.given)
        return report

    def _locate(
        self, network: nn.Module, different: tuple[dict[str, Any], Run] | None, moved: Sequence[str]
    ) -> Located | None:
        """Return the first place where the module differs. `different`: the inputs of a run that does, and the run."""
        feeds, run = different or ({}, None)
        wrong = [] if run is None else [n for n, o in zip(self.graph.outputs, run.outputs) if o.why]
        return trace.locate(self.path, self.proto(), self.options, self.graph, network, feeds, moved, wrong)

    def forward(
        self, network: nn.Module, space: Mapping[str, Any], *, runs: int, seed: int, is_rounded: bool, is_anew: bool
    ) -> VerifyReport:
        """Compare only the outputs of a module in memory, made from the generated file whose names are `space`.

        Args:
            is_rounded: the weights may differ from the file's, which may be rounded.
            is_anew: the file was exported from the module itself; the module was generated from another file.
        """
        self.is_rounded = is_rounded
        report = self._begun(network, space, type(network).__name__, is_anew)
        if is_anew and self.approximation is not None:
            self.approximation = self.approximation.anew()
        with torch_side.in_mode(network, self.graph):
            for answer in self.answers(runs, seed, None):
                report.runs.append(self.run(network, answer, None, report.gradients))
        report.untold = self.telling.untold() | self.coarse
        return report

    def prepare(self, space: Mapping[str, Any]) -> None:
        """Restrict drawn inputs to what a module takes, the generated file's names being `space`."""
        self._cut(space, False)
        self._free_batch(space)

    def _begun(self, network: nn.Module, space: Mapping[str, Any], shown: str, is_anew: bool = False) -> VerifyReport:
        """Return the report before the first run, and decide what is compared and how."""
        self._cut(space, is_anew)
        self.notes += [] if is_anew else other_file(self.path, self.graph, space, shown)
        self.notes += [] if is_anew else without_alphabet(self.path, space, shown)
        self._approximate(space)
        self._free_batch(space)
        self._choose_tolerance(network, metadata_of(space).get(DTYPE, ""))
        mode = "training" if self.graph.training else "eval"
        tolerance = str(self.approximation or self.tolerance)
        return VerifyReport(str(self.path), shown, mode, tolerance, notes=self.notes)

    def _approximate(self, space: Mapping[str, Any]) -> None:
        """Allow differences due to rounding if the module was made from a quantised file (`--quantized`)."""
        self.approximation = approximation_of(space)
        if self.approximation is None and self.options.quantized != "keep":
            self.approximation = APPROXIMATED.get(read_and_simplify(self.path, self.options))
        if (near := self.approximation) is not None:
            self.options = replace(self.options, quantized=near.mode)
            if near.is_float and not (self.is_rounded or self.graph.rounds):
                self.approximation = None  # weights alone are integers: their floats compute the same

    @contextmanager
    def _opened(
        self, module: Path | str | nn.Module | None, partial: bool
    ) -> Iterator[tuple[nn.Module, Mapping[str, Any]]]:
        """Yield the module to check, and the names in its file (none for an `nn.Module`)."""
        if isinstance(module, (str, Path)):
            with imported(Path(module)) as file:
                if not partial:
                    yield from_pretrained(file, Path(module)), vars(file)
                    return
                network, self.partly = load_partly(file, Path(module), ignore_mismatched_sizes=True)
                yield network, vars(file)
        else:
            yield (load(self.path, self.given) if module is None else module), {}

    def _choose_tolerance(self, network: nn.Module, dtype: str) -> None:
        """Choose the tolerance. `dtype`: the type that the module was generated in, or ""."""
        self.cast = torch_side.whole_dtype(network, self.stored)
        if dtype in NAMED and self.stored != {dtype}:
            self.cast = torch_side.dtype_of(dtype)
        halves = {str(dtype.numpy()) for dtype in self.graph.halves}
        if self.cast is not None:
            name = str(self.cast).removeprefix("torch.")
            halves.add(name)
            self.notes.append(
                f"the weights of the module were cast to {name}, and so are the inputs and the expected outputs"
            )
        self.halves = halves
        for name in sorted(halves):
            self.tolerance = self.tolerance.at_least(name)
        if halves:
            self.notes.append(f"computed in {', '.join(sorted(halves))}: compared with the tolerance {self.tolerance}")
        if self.graph.random:
            names = ", ".join(printable(n) for n in sorted(self.graph.random))
            self.notes.append(f"outputs that depend on random numbers ({names}): only shape and dtype are compared")
        if self.graph.chooses:
            self.notes.append("the graph has branches: only the branches that these inputs take are compared")
        if self.graph.trains_norm and self.graph.keeps_norm:
            self.notes.append("only some of the graph's BatchNormalizations record training mode")

    def answers(self, runs: int, seed: int, feeds: Sequence[Mapping[str, Any]] | None) -> Iterator[Answer]:
        """Yield inputs that an oracle accepts, with its outputs. Raises `OnnxgenError` if there are none."""
        return answering.answers(self, runs, seed, feeds)

    # ---- one run ---------------------------------------------------------------------------------------------------

    def run(
        self, network: nn.Module, answer: Answer, backward: torch_side.Backward | None, gradient_report: Gradients
    ) -> Run:
        """Compare one run. `backward`: None leaves the gradients out."""
        feeds, expected = answer.feeds, answer.outputs
        run = Run(answer.seed, {name: describe(v) for name, v in feeds.items()}, answer.sizes, answer.oracle.name)
        try:
            outputs, got = self._outputs(network, answer)
        except torch_side.Failed as failure:
            return replace(run, error=str(failure))
        if len(got) != len(expected):
            error = f"forward returned {counted(len(got), 'output')}, the graph has {len(expected)}"
            if not self.partly:
                return replace(run, error=error)
            self._note_once(error)
        expected = [torch_side.cast_numpy(e, self.cast) for e in expected]
        run.outputs.extend(self.output(*o) for o in zip(self.graph.outputs, expected, got))
        if self.partly:
            return run
        if any(o.why and o.got == o.expected for o in run.outputs) and self.approximation is None:
            rounding.conditioning(self, run, answer, expected, got)
            rounding.freedom(self, network, run, answer, expected, got)
        try:
            if backward is not None:
                backward.add(network, outputs)
                self._hold_gradients(network, answer, run, gradient_report)
        except torch_side.Failed as failure:
            gradient_report.error = gradient_report.error or str(failure)
        return run

    def _outputs(self, network: nn.Module, answer: Answer) -> tuple[list[Any], list[Any]]:
        """Return the module's outputs, as tensors and as ONNX values. Raises `Failed`, and `OnnxgenError` if that tells
        nothing.
        """
        could_not = f"could not verify {self.path}:"
        try:
            outputs = torch_side.forward(network, answer.feeds, self.cast, len(answer.outputs), self._limit(answer))
            return outputs, torch_side.as_onnx(outputs)
        except TimedOut as stopped:
            what = f"{could_not} a loop of the module runs on with inputs that were drawn ({stopped})"
            raise OnnxgenError(
                f"{what}; {answer.oracle.name} took {answer.seconds:.2g} s", help=answering.OWN_INPUTS
            ) from None
        except torch_side.Failed as failure:
            if not self.only_reference:
                raise
            what = f"{could_not} of the inputs that were tried, onnxruntime refused all"
            raise OnnxgenError(f"{what}, and the module others ({failure})", help=answering.OWN_INPUTS) from None

    def _note_once(self, line: str) -> None:
        self.notes += [] if line in self.notes else [line]

    def _limit(self, answer: Answer) -> float | None:
        """Return the seconds that the module may take for the inputs of an answer."""
        return max(LOOP_SECONDS, SLOWER * answer.seconds) if answer.oracle.seconds is not None else None

    def _hold_gradients(self, network: nn.Module, answer: Answer, run: Run, gradient_report: Gradients) -> None:
        """Compare gradients with differences, in the first run whose outputs agree."""
        if gradient_report.groups or not run.agrees or self.graph.random or self.approximation is not None:
            return
        if self.graph.straight_through:
            why = "the graph rounds to integers: gradients pass straight through, finite differences are not compared"
        else:
            # a small step changes the meaning of inputs that are sizes or scales
            fixed = {name for name, role in self.graph.roles.items() if role.size or role.mode}
            why = gradients.hold(network, answer.feeds, fixed, gradient_report, self._limit(answer))
        if why:
            self._note_once(why)

    def output(self, name: str, expected: Any, got: Any, slack: Any = None) -> OutputCheck:
        random = name in self.graph.random
        if self.approximation is not None:
            return self._approximately(self.approximation, name, self.approximation.floats(name, expected), got)
        d = compare(expected, got, self.tolerance, values=not random, slack=slack)
        compared = "shape and dtype" if random else "values"
        return OutputCheck(printable(name), describe(expected), describe(got), d.absolute, d.relative, compared, d.why)

    def _approximately(self, near: Approximation, name: str, expected: Any, got: Any) -> OutputCheck:
        """Compare a float output up to the error of quantisation. For other outputs only shape and dtype count."""
        is_float = isinstance(expected, np.ndarray) and expected.dtype.kind == "f" and name not in self.graph.random
        d = compare(expected, got, self.tolerance, values=False)
        names = printable(name), describe(expected), describe(got)
        if not is_float and name not in self.graph.random:
            self._note_once(f"output {names[0]} is not floating-point: only its shape and dtype are compared")
        if not is_float or d.why or not expected.size:
            return OutputCheck(*names, 0.0, None, "values" if is_float else "shape and dtype", d.why)
        far = near.distance(name, expected, near.saturated(name, got))
        self.telling.add(name, expected, far.limit)
        why = far.problem(self.tolerance.atol) or ("" if self.is_rounded else far.too_small(self.tolerance.atol))
        return OutputCheck(*names, far.largest, None, "values", why, far.rms, far.limit)

    # ---- gradients -------------------------------------------------------------------------------------------------

    def _finish_gradients(
        self,
        network: nn.Module,
        backward: torch_side.Backward,
        record: Mapping[str, Any] | None,
        gradient_report: Gradients,
    ) -> None:
        """Sum up the gradients. Require none if control flow decides which are reached, or weights lack a record."""
        all_reached = all(n in backward.reached for n, p in network.named_parameters() if p.requires_grad)
        is_known = record is not None and not self.graph.branches and not all_reached
        expected = gradients.expected_keys(self.path, self.options, record or {}) if is_known else set()
        gradients.finish(network, backward, expected, gradient_report)
