"""From one flat module to classes: split by scope, resolve sizes, lay out members, name locals, share equal classes."""

from __future__ import annotations

from onnxgen.code.class_tree import ClassTree, refuse_others
from onnxgen.code.module_def import ModuleDef
from onnxgen.options import Options
from onnxgen.structure.classes import write_classes
from onnxgen.structure.scopes import Splitter


def structure(module: ModuleDef, options: Options) -> list[ClassTree]:
    """The classes of the generated file, those used by others first, the root last.

    Raises:
        OnnxgenError: the network can't be split so.
        Refused: a class has what a generated file may not have.
    """
    module.annotate = options.annotate
    splitter = Splitter(module)
    root = splitter.root(options.flat)
    classes = write_classes(module, root, list(splitter.owners.values()))
    refuse_others(classes, module.own.names, module.own.has_calls)
    return classes
