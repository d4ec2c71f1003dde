"""From one flat module to classes: split by scope, resolve sizes, lay out members, name locals, share equal classes."""

from __future__ import annotations

from dataclasses import replace

from onnxgen.code.class_tree import ClassTree, refuse_others
from onnxgen.code.module_def import ModuleDef
from onnxgen.common.names import ModulePath
from onnxgen.options import Options
from onnxgen.structure.classes import write_classes
from onnxgen.structure.nesting import copied
from onnxgen.structure.scopes import Splitter

Plain = frozenset[
    ModulePath
]  # modules of which nothing is made: their statements stay one by one, in a class of their own


def structure(module: ModuleDef, options: Options, plain: Plain = frozenset()) -> list[ClassTree]:
    """The classes of the generated file, those used by others first, the root last. `module` stays as it is.

    Raises:
        OnnxgenError: the network can't be split so.
        Refused: a class has what a generated file may not have.
    """
    module = replace(module, body=copied(module.body), annotate=options.annotate)
    splitter = Splitter(module, plain)
    root = splitter.root(options.flat)
    classes = write_classes(module, root, list(splitter.owners.values()), plain)
    refuse_others(classes, module.own.names, module.own.has_calls)
    return classes
