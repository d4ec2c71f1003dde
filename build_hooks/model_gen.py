"""`ModelGen`: the settings of `[tool.onnxgen]`, made by a script.

from onnxgen.build_hooks import ModelGen

ModelGen().input("models/mnist.onnx").out_dir("src/pkg/").dtype("float16").run_from_script()
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgen.errors import OnnxgenError, Problem

if TYPE_CHECKING:
    from onnxgen.common.limits import Limits

    from .build import Built, Progress
    from .settings import Project

NAME = "ModelGen"


class ModelGen:
    """Says which ONNX files become which modules, and makes those that are missing or not fresh.

    Each method but `run`, `run_from_script` and `check` changes this object and returns it: calls are chained, or stand
    in lines of their own. Options are those of `onnxgen.Options`, by the same names; they count for all inputs, so
    models that need others need another `ModelGen`. An option that is said again replaces what was said before.

    `[[tool.onnxgen.models]]` with the same files and options makes the same modules, and either finds those fresh that
    the other has made. Unlike there, paths may lead anywhere.

    Args:
        root: the folder that paths are relative to; default: the one that the process is in when it runs.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self._root = root
        self._inputs: list[str] = []
        self._output: str | None = None
        self._table: dict[str, Any] = {}
        self._limits: Limits | None = None

    # ---- files -------------------------------------------------------------------------------------------------------

    def input(self, source: str | os.PathLike[str]) -> ModelGen:
        """Add an ONNX file, or all files that match a pattern such as "models/*.onnx". May be called again."""
        self._inputs.append(Path(source).as_posix())
        return self

    def out_dir(self, folder: str | os.PathLike[str]) -> ModelGen:
        """Set the folder of the modules, which are named like their ONNX files. Default: beside each. It replaces
        `out`.
        """
        self._output = f"{Path(folder).as_posix()}/"
        return self

    def out(self, file: str | os.PathLike[str]) -> ModelGen:
        """Set the module to write, for a single input; for several a name with "{stem}". It replaces `out_dir`."""
        self._output = Path(file).as_posix()
        return self

    # ---- options, as `onnxgen.Options` has them ----------------------------------------------------------------------

    def _option(self, name: str, value: object) -> ModelGen:
        self._table[name] = value
        return self

    def class_name(self, name: str) -> ModelGen:
        """Name the root class."""
        return self._option("class-name", name)

    def weights(self, file: str | os.PathLike[str]) -> ModelGen:
        """Set where to write the sidecar, for a single input. Default: beside the module, named by its stem."""
        return self._option("weights", Path(file).as_posix())

    def dtype(self, name: str) -> ModelGen:
        """Give the whole network another floating point type ("float16", "bfloat16", "float32", "float64")."""
        return self._option("dtype", name)

    def embed(self, on: bool = True) -> ModelGen:
        """Put the weights into the module itself (small models)."""
        return self._option("embed", on)

    def embed_states(self, on: bool = True) -> ModelGen:
        """`embed`, as burn-import calls it."""
        return self.embed(on)

    def input_shapes(self, shapes: Mapping[str, Sequence[int]]) -> ModelGen:
        """Fix dims of the graph's inputs: `{"image": (1, 3, 224, 224)}`; a dim of -1 is left as it is."""
        return self._option("input-shape", {name: list(shape) for name, shape in shapes.items()})

    def inputs(self, values: Sequence[str]) -> ModelGen:
        """Set the values of the graph at which the generated part of the network begins."""
        return self._option("inputs", list(values))

    def outputs(self, values: Sequence[str]) -> ModelGen:
        """Set the values of the graph at which the generated part of the network ends."""
        return self._option("outputs", list(values))

    def flat(self, on: bool = True) -> ModelGen:
        """Write one class, no nested modules."""
        return self._option("flat", on)

    def annotate(self, on: bool = True) -> ModelGen:
        """Name the ONNX nodes of each line in comments."""
        return self._option("annotate", on)

    def trainable(self, pattern: str) -> ModelGen:
        """Make tensors parameters if this regular expression matches their ONNX name, against all rules."""
        return self._option("trainable", pattern)

    def frozen(self, pattern: str) -> ModelGen:
        """Freeze tensors if this regular expression matches their ONNX name."""
        return self._option("frozen", pattern)

    def dynamic_batch(self, on: bool = True) -> ModelGen:
        """Free a batch that the file fixes, if that is provable."""
        return self._option("dynamic-batch", on)

    def batch_axes(self, axes: Mapping[str, int | None]) -> ModelGen:
        """With `dynamic_batch`, set the batch axis of inputs if it is not the first. None: the input has no batch."""
        return self._option("batch-axis", {name: "none" if axis is None else axis for name, axis in axes.items()})

    def restore_batchnorm(self, on: bool = True) -> ModelGen:
        """Put back BatchNorm layers that the export folded into convolutions."""
        return self._option("restore-batchnorm", on)

    def quantized(self, mode: str) -> ModelGen:
        """Set what becomes of quantised operators: "keep" (integers), "float", "qat" or "qat-learned"."""
        return self._option("quantized", mode)

    def dropout(self, probabilities: Mapping[str, float]) -> ModelGen:
        """Put a Dropout after modules: `{"encoder.*": 0.1}`, probability by pattern of module paths."""
        return self._option("dropout", dict(probabilities))

    def nchwc_block(self, channels: int) -> ModelGen:
        """Set how many channels, 8 or 16, are a block in a file that onnxruntime optimised for one kind of
        processor.
        """
        return self._option("nchwc-block", channels)

    def shard_size(self, size: int | str) -> ModelGen:
        """Write weights larger than this as several files: a number of bytes, or "5GB"."""
        return self._option("shard-size", size)

    def templates(self, folder: str | os.PathLike[str]) -> ModelGen:
        """Set a folder with Jinja templates that override onnxgen's own."""
        return self._option("templates", Path(folder).as_posix())

    def plugins(self, names: Sequence[str | os.PathLike[str]]) -> ModelGen:
        """Add modules with operators of your own: `.py` files, folders of packages, or dotted names."""
        return self._option("plugins", [n if isinstance(n, str) else Path(n).as_posix() for n in names])

    def allow_unsupported(self, on: bool = True) -> ModelGen:
        """Write a method to fill in for each operator that has no function."""
        return self._option("allow-unsupported", on)

    def paranoid(self, on: bool = True) -> ModelGen:
        """Compute every rewriting of the graph before and after, on drawn inputs; a difference is an error."""
        return self._option("paranoid", on)

    def limits(self, limits: Limits) -> ModelGen:
        """Set the sizes past which a file is refused; see `onnxgen.Limits`."""
        self._limits = limits
        return self

    def edited(self, way: str) -> ModelGen:
        """Set what happens to edited modules: "refuse" to overwrite them (the default), or "mine": leave them."""
        return self._option("edited", way)

    # ---- what is said, done ------------------------------------------------------------------------------------------

    def run(self, *, force: bool = False, progress: Progress | None = None) -> list[Built]:
        """Make the modules that are missing or not fresh.

        Args:
            force: overwrite modules that were edited by hand.
            progress: is told each stage of a generation as it begins.

        Returns:
            What there is now, in the order of the inputs: `status` ("fresh", "written", or "kept" because it was
            edited and its source has not changed), `files`, `seconds`.

        Raises:
            OnnxgenError: a path or an option is bad, or a model can't be converted: all problems at once, each with its
                input. What could be built was, and all other files are as they were.
            EditedError: a module was edited and its source changed too; `<module>.new` was written beside it.
        """
        from .build import build_project

        return build_project(self._project(), force=force, progress=progress)

    def run_from_script(self, *, force: bool = False, progress: Progress | None = None) -> list[Built]:
        """Do as `run`, with paths relative to the folder of the calling script, whatever the working directory is."""
        script = sys._getframe(1).f_globals.get("__file__")
        if script is None:
            what = f"{NAME}.run_from_script() must be called from a script: paths are relative to its folder"
            raise OnnxgenError(Problem(what, help=f"call {NAME}(folder)...run()"))
        self._root = os.path.dirname(os.path.abspath(script))
        return self.run(force=force, progress=progress)

    def check(self) -> bool:
        """Return True if `run` would leave everything unchanged. Writes nothing. Raises the errors of `run`."""
        from .build import build_project

        return all(built.status != "stale" for built in build_project(self._project(), check=True))

    def _project(self) -> Project:
        from .settings import Project, entries_from

        if not self._inputs:
            raise OnnxgenError(Problem(f"{NAME} has no input", help=f'name an ONNX file: {NAME}().input("mnist.onnx")'))
        root = Path(os.path.abspath(self._root or Path.cwd()))
        table = self._table if self._output is None else {**self._table, "output": self._output}
        models = [{**table, "source": source} for source in self._inputs]
        entries = entries_from(root, models, "input", file=NAME, inside=False)
        if self._limits is not None:
            limits = self._limits
            entries = tuple(replace(e, options=replace(e.options, limits=limits)) for e in entries)
        return Project(root, root, entries)
