"""From one flat module to classes.

Goes in: the flat `ModuleDef` that lowering makes. Comes out: one `ClassTree` for each class of the generated file. The
stages: split by scope, resolve sizes, find sequences and loops, share classes, lay out members, name local variables.
"""

from __future__ import annotations

from dataclasses import replace

from onnxgen.code.class_tree import ClassTree, forward_length, refuse_others
from onnxgen.code.module_def import Loop, ModuleDef, flattened
from onnxgen.common.names import ModulePath, class_name
from onnxgen.options import Options
from onnxgen.structure.about import describe
from onnxgen.structure.branches import join_branches
from onnxgen.structure.classes import write_classes
from onnxgen.structure.clues import layer_names, says_what
from onnxgen.structure.known import known_names, rename
from onnxgen.structure.nesting import copied
from onnxgen.structure.scopes import Splitter

__all__ = ["Plain", "join_branches", "structure"]

LONGEST = 60  # lines of the network's own `forward`, if parts of it can be methods
DIVIDED = 55  # lines that it has then, about
Plain = frozenset[ModulePath]  # modules whose statements stay one by one, each in a class of its own


def structure(module: ModuleDef, options: Options, plain: Plain = frozenset()) -> list[ClassTree]:
    """Return the classes of the generated file, each after the classes it uses, the root last. `module` is not changed.

    Raises:
        OnnxgenError: the graph computes with a dim that no input has.
        Refused: a class holds something that a generated file may not contain.
    """
    classes = _written(module, options, plain, 1.0)
    share = 1.0
    while (lines := forward_length(classes[-1].source)) > LONGEST and not plain and not options.flat:
        share *= DIVIDED / lines
        shorter = _written(module, options, plain, share)
        if forward_length(shorter[-1].source) >= lines:
            break  # no part of it can be a method
        classes = shorter
    recorded = {class_name(name) for path, name in module.classes.items() if path not in module.found_classes}
    rename(classes, known_names(classes, module.reserved | module.own.names, recorded))
    refuse_others(classes, module.own.names, module.own.has_calls)
    describe(classes)
    return classes


def _written(module: ModuleDef, options: Options, plain: Plain, share: float) -> list[ClassTree]:
    """Return the classes. `share`: how much of the root's `forward` stays in it; parts of the rest become methods."""
    infos = dict(module.infos)  # a value of a loop has the size of no turn
    turns = frozenset(name for s in flattened(module.body) if isinstance(s, Loop) for name in s.turn)
    inputs = {argument.value for argument in module.inputs}
    result_names = {v: name for v, name in module.results.items() if v not in inputs and not says_what(module.hint(v))}
    module = replace(
        module,
        body=copied(module.body),
        infos=infos,
        hints=module.hints | result_names,
        roles=dict(module.roles),
        annotate=options.annotate,
        makers=layer_names(module.body),
        turns=turns,
        items={},
    )
    return write_classes(module, Splitter(module, plain).root(options.flat), plain, share)
