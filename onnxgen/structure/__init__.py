"""From one flat module to classes: split by scope, resolve sizes, lay out members, name locals, share equal classes."""

from __future__ import annotations

from onnxgen.code.module_def import ModuleDef
from onnxgen.options import Options
from onnxgen.structure.classes import write_classes
from onnxgen.structure.scopes import Splitter
from onnxgen.structure.writer import ClassSource


def structure(module: ModuleDef, options: Options) -> list[ClassSource]:
    """The classes of the generated file, those used by others first, the root last."""
    module.annotate = options.annotate
    splitter = Splitter(module)
    root = splitter.root(options.flat)
    return write_classes(module, root, list(splitter.owners.values()))
