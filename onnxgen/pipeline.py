"""The pipeline from an ONNX file to a module's source.

Path --read--> ir.Model --simplify--> ir.Model --lower--> ModuleDef --structure--> classes --render--> source
                                                          +---------------- validate: the same? ---------+
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from onnxgen.arguments import with_arguments
from onnxgen.code.chains import written_short
from onnxgen.code.class_tree import ClassTree, length
from onnxgen.code.copied import helper_names
from onnxgen.code.module_def import ModuleDef
from onnxgen.code.style import STYLES, by_name, styled
from onnxgen.common.names import identifier, network_name, sentence, unscoped
from onnxgen.common.paths import python_file, refuse_hiding
from onnxgen.common.timing import recorded, stage, uncollected
from onnxgen.errors import OnnxgenError, counted
from onnxgen.graph.annotations import CHECKED, CLASSES
from onnxgen.heads.trained import of_task
from onnxgen.lowering.dropout import add_dropout
from onnxgen.lowering.lower import lower
from onnxgen.options import Options
from onnxgen.output.compose import Build, Generated, Report, compose
from onnxgen.output.notes import inference_notes
from onnxgen.output.write import Output
from onnxgen.passes import simplified
from onnxgen.passes.checking import checker_module
from onnxgen.plugins import plugged
from onnxgen.reader import read
from onnxgen.record.way_back import WayBack
from onnxgen.scopes import find_blocks
from onnxgen.scopes.origin import shortest
from onnxgen.structure import Plain, join_branches, structure
from onnxgen.validate import (
    Difference,
    Specification,
    Stored,
    decided,
    hold,
    hold_keys,
    same_either_way,
    specify,
    stored_by,
    translated,
    validate,
)

DEFAULTS = Options()
Progress = Callable[[str], None]  # called with the name of each stage (`common.timing.STAGES`) when it begins


def read_and_simplify(path: Path, options: Options) -> ir.Model:
    """Read a file and run all passes. Raises `OnnxgenError` (see `reader.read`, `passes.simplified`)."""
    with plugged(options):
        return _simplified(path, of_task(path, options), Report())[0]


def build(
    path: Path, options: Options, out: Path, progress: Progress | None = None, record: Build | None = None
) -> Generated:
    """Make in memory what `generate` would write to `out`. The weights stay lazy. `record`: see `Build`.

    Raises:
        OnnxgenError: the file or an option is bad, or the model can't be converted exactly.
    """
    report, requested = Report(), options
    report.progress = progress
    with plugged(options), uncollected():
        model, stored = _simplified(path, options := of_task(path, options), report)
        report.notes += inference_notes(model, options)
        name = _class_name(model, path, options)
        draft = shortest(model, options, lambda: _draft(model, options, name, report))
        module, wanted = draft.module, draft.wanted
        if options.dropout:
            with timed(report, "structure"):
                add_dropout(module, options.dropout)
            with timed(report, "validate"):
                wanted = specify(module, wanted)

        def composed(plain: Plain) -> Generated:
            classes = draft.classes
            if plain or options.dropout:
                with timed(report, "structure"):
                    classes = _classes(module, options, wanted, plain)
            with timed(report, "render"):
                written = styled(classes, STYLES[options.style])
                return compose(model, module, written, path, out, options, report, record, requested)

        def differs(generated: Generated) -> Difference | None:
            with timed(report, "validate"):
                return validate(wanted, generated.tree, module.name)

        generated = translated(composed, differs, report)
        with timed(report, "validate"):
            hold_keys(module, generated.tensors)
            hold(stored, module, WayBack.from_metadata(generated.metadata).tensors, options, decided(model.graph))
            if checker_module() is not None:
                checker_module().hold_weights(model, generated, options)
        return generated


def _simplified(path: Path, options: Options, report: Report) -> tuple[ir.Model, Stored]:
    """Return a file's graph after all passes, and its stored tensors before."""
    left_out: dict[str, str] = {}
    while True:
        with timed(report, "read"):
            model = read(path, options)
        with timed(report, "validate"):
            stored = stored_by(model.graph)
        with timed(report, "simplify"):
            if simplified(model, options, left_out):
                break
    checked = CHECKED.get(model)
    report.checked, report.left_out, names = str(checked or ""), left_out, ", ".join(left_out)
    if left_out:
        report.notes.append(f"{counted(len(left_out), 'rewriting')} left out, which would change results: {names}")
    if checked is not None and checked.doubts:
        doubt = sentence(unscoped(checked.doubts[0]))
        report.notes.append(f"what is trained is in doubt (--trainable and --frozen decide), please report it: {doubt}")
    return model, stored


@dataclass(frozen=True)
class Draft:
    """One reading of a file's names, up to its classes.

    Attributes:
        module: the flat module, without the layers of `--dropout`.
        wanted: what its text must compute.
    """

    module: ModuleDef
    wanted: Specification
    classes: list[ClassTree]

    @property
    def length(self) -> int:
        """The number of lines that its classes have, about: long statements are broken when the text is formatted."""
        return sum(length(tree.source) for tree in self.classes)


def _draft(model: ir.Model, options: Options, name: str, report: Report) -> Draft:
    with timed(report, "simplify"):
        find_blocks(model, options)
    with timed(report, "lower"):
        module = lower(model, options, name)
    with timed(report, "structure"):
        join_branches(module, same_either_way)
    with timed(report, "validate"):
        wanted = specify(module)
    with timed(report, "structure"):
        return Draft(module, wanted, _classes(module, options, wanted))


def _classes(module: ModuleDef, options: Options, wanted: Specification, plain: Plain = frozenset()) -> list[ClassTree]:
    classes, style = structure(module, options, plain), STYLES[options.style]
    if plain:
        return by_name(classes, style)
    return written_short(by_name(with_arguments(classes, module, wanted), style), module.reserved)


def generate(
    path: Path | str,
    out: Path | str | None = None,
    options: Options = DEFAULTS,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> Generated:
    """Write the module and its weights.

    Args:
        path: the ONNX file.
        out: the module to write; default: beside the ONNX file, by its stem.
        options: see `Options`.
        force: overwrite a module that was edited by hand.
        progress: called with the name of each stage (`onnxgen.common.timing.STAGES`) when it begins.

    Returns:
        The result. `report.status` says if it was written, merged with edits, fresh, or kept because it was edited.

    Raises:
        OnnxgenError: the file or an option is bad, the model can't be converted exactly, or writing failed. No file was
            changed.
        EditedError: the module was edited, its source changed too, and they can't be merged. `<out>.new` was written
            beside it.
    """
    path, out = Path(path), default_out(path, out)
    refuse_hiding(out)
    generated = build(path, options, out, progress)
    with timed(generated.report, "write"):
        Output(out, options).write(generated, force)
    return generated


def check(
    path: Path | str,
    out: Path | str | None = None,
    options: Options = DEFAULTS,
    *,
    progress: Progress | None = None,
) -> bool:
    """Return True if the module and its weights are what `generate` would write. Writes nothing."""
    path, out = Path(path), default_out(path, out)
    return Output(out, options).is_fresh(build(path, options, out, progress))


def default_out(path: Path | str, out: Path | str | None) -> Path:
    """Return the path of the module: `out`, or by default the ONNX file's path with its stem as an identifier.

    Raises `OnnxgenError` if Python could not import that file.
    """
    path = Path(path)
    if out is None:
        return path.with_name(identifier(path.stem, "model") + ".py") if path.name else Path("model.py")
    if not Path(out).name or Path(out).is_dir():
        raise OnnxgenError(f"cannot write {out}: it is a folder", help="name a file for the module")
    return python_file(Path(out))


def _class_name(model: ir.Model, path: Path, options: Options) -> str:
    if options.class_name in helper_names():
        raise OnnxgenError(f"class name {options.class_name!r} has another meaning in a generated file")
    return options.class_name or CLASSES.get(model).get((), "") or network_name(path.stem)


@contextmanager
def timed(report: Report, name: str) -> Iterator[None]:
    """Report that a stage begins, and record its seconds (see `common.timing`)."""
    if report.progress is not None:
        report.progress(name)
    with recorded(report.stages), stage(name):
        yield
