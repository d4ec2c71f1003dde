"""Numbers class names in the order of `Settings.classes`, or in sorted order."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, Problems
from onnxgen.training.data.arrays import stored
from onnxgen.training.data.samples import Data, Feeding, Field
from onnxgen.training.data.source import DataSource


def number_classes(
    source: DataSource, feeding: Feeding, classes: tuple[str, ...], named_by: str = "all"
) -> frozenset[str]:
    """Renumber targets that hold class names by the position in `classes`. Without `classes` they stay sorted.

    Args:
        named_by: what `classes` names: see `Card.classes`.

    Returns:
        The targets that hold class names.

    Raises:
        OnnxgenError: the data has a class that is not in `classes`, or several targets hold names.
    """
    named = [column for column in feeding.aims if column in source.text]
    if classes and len(named) > 1 and named_by == "all":
        what = f"--classes names the classes of one target, but {listed(named)} all hold names"
        raise OnnxgenError(what, help="store the other targets as class indices")
    for column in named if classes and named_by != "characters" else ():
        has = next(iter(source.parts.values())).fields[column].classes
        classes = (*classes, *(name for name in has if name not in classes and named_by == "some"))
        if unknown := [name for name in has if name not in classes]:
            what = f"{source.name} has class {listed(unknown)}, and the classes are {listed(classes)}"
            raise OnnxgenError(what, help="remove these samples, or add the class to --classes")
        places = torch.tensor([classes.index(name) for name in has])
        for part, samples in source.parts.items():
            source.parts[part] = stored(samples).renumbered(column, places, classes)
    return frozenset(named)


def check_order(field: Field, column: str, classes: Sequence[str], problems: Problems) -> None:
    """Check that class indices stored in the data follow the order of `classes`, as far as names tell."""
    has, numbers = field.classes, [str(i) for i in range(max(len(field.classes), len(classes)))]
    if not classes or field.dtype.is_floating_point or list(has) == list(classes[: len(has)]) != []:
        return
    if list(has) != numbers[: len(has)]:
        what = f"the data numbers the classes of target {legible(column)!r} as {listed(has)}"
        problems.add(f"{what}, and the classes are {listed(classes)}", help="give --classes in the order of the data")
    elif all(name.lstrip("-").isdecimal() for name in classes) and list(classes) != numbers[: len(classes)]:
        what = f"target {legible(column)!r} holds class indices, and not the classes {listed(classes)}"
        problems.add(what, help="leave out --classes; the indices must be those of the model's outputs")


def classes_used(data: Data, feeding: Feeding) -> tuple[str, ...]:
    """Return the class names in the order of the model's outputs; () if no target or several targets have names."""
    samples = next(iter(data.parts.values()))
    found = []
    for column in feeding.aims:
        has = samples.fields[column].classes
        if column in data.named or has != tuple(str(i) for i in range(len(has))):
            found.append(has)
    return found[0] if len(found) == 1 else ()
