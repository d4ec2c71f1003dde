"""From one flat module to classes: split by scope, resolve sizes, lay out members, name locals, share equal classes."""

from __future__ import annotations

from dataclasses import replace

from onnxgen.code.module_def import ModuleDef, Path
from onnxgen.options import Options
from onnxgen.structure.classes import write_classes
from onnxgen.structure.nesting import copied
from onnxgen.structure.scopes import Splitter
from onnxgen.structure.writer import ClassSource

Plain = frozenset[Path]  # modules of which nothing is made: their statements stay one by one, in a class of their own


def structure(module: ModuleDef, options: Options, plain: Plain = frozenset()) -> list[ClassSource]:
    """The classes of the generated file, those used by others first, the root last. `module` stays as it is."""
    module = replace(module, body=copied(module.body), annotate=options.annotate)
    splitter = Splitter(module, plain)
    root = splitter.root(options.flat)
    return write_classes(module, root, list(splitter.owners.values()), plain)
