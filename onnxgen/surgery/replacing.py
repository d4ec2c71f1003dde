"""Replace a classifier by one with another number of classes (`replace_head`)."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError, typed
from onnxgen.surgery.head import LAYERS, ClassTensor, Found, find, layers_of_maps
from onnxgen.surgery.ports import Example, call, example_for, outputs, set_classes, signature_of, undisturbed

Keep: TypeAlias = Mapping[int, int] | Sequence[int | None]
Init: TypeAlias = str | Callable[[Tensor], object]

_RESHAPES = ("reshape", "view", "unflatten")
_COUNTS = ("out_features", "out_channels", "num_features")


def replace_head(
    model: nn.Module,
    classes: int,
    *,
    keep: Keep | None = None,
    init: Init = "default",
    head: str | None = None,
    output: int | str | None = None,
    example: Example | None = None,
) -> nn.Module:
    """Give a classifier another number of classes, in place.

    The layer stays the same module, but its parameters are new: make the optimizer afterwards. They have the dtype and
    device of the old ones, and are trained even if those were frozen. A norm over the classes after the layer gets new
    statistics, too.

    Args:
        model: any module.
        classes: the new number of classes.
        keep: the old class for each new one: `{0: 7, 1: 3}`, or a sequence with None for new classes. Rows, biases and
            statistics of kept classes stay.
        init: the initialisation of all other rows: "default" (that of a new layer), "xavier" (biases zero), the name of
            another function of `torch.nn.init` ("kaiming_normal"), or a function of the weight.
        head, output, example: see `find_head`.

    Returns:
        the model.

    Raises:
        OnnxgenError: the head can't be found, or the model's code also uses the number of classes elsewhere. The model
            is then unchanged.
    """
    example = example_for(model, example)
    located = find(model, example, head=head, output=output)
    kept = _kept(keep, classes, located.head.classes)
    expected = _shapes(model, example)
    with _kept_on_error(located):
        put_rows(located, classes, kept, init)
        _check(model, example, expected, located, classes)
    set_classes(model, ())  # its outputs no longer have these labels
    return model


def put_rows(located: Found, rows: int, kept: Mapping[int, int], init: Init) -> list[Tensor]:
    """Give the tensors of a head another number of rows, in place.

    Args:
        kept: the old row of each new one that stays.
        init: see `replace_head`.

    Returns:
        the new tensors, in the order of `found.parts`.
    """
    before, counts = _before(located)
    tensors = [_resized(part, tensor, before[0], rows, kept, init) for part, tensor in before]
    for (part, _), tensor in zip(before, tensors):
        setattr(part.owner.module, part.owner.name, tensor)
    for module, name in counts:
        setattr(module, name, rows)
    return tensors


_Before: TypeAlias = tuple[list[tuple[ClassTensor, Tensor]], list[tuple[nn.Module, str]]]


def _before(located: Found) -> _Before:
    """Return a head's tensors, and the attributes with their number of rows."""
    return [(part, getattr(part.owner.module, part.owner.name)) for part in located.parts], _counts(located)


@contextmanager
def _kept_on_error(located: Found) -> Iterator[None]:
    """Restore a head's tensors and the attributes with the number of classes on an error in the block."""
    before, counts = _before(located)
    try:
        yield
    except BaseException:
        for part, tensor in before:
            setattr(part.owner.module, part.owner.name, tensor)
        for module, name in counts:
            setattr(module, name, located.head.classes)
        raise


def resize_head(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Give a classifier the number of classes of a checkpoint, if that is the only difference between them.

    Args:
        shapes: the shapes in the checkpoint's state dict, by key. The values must be loaded afterwards.

    Returns:
        True if the checkpoint fits now. Otherwise the model is unchanged.
    """
    differing = {key for key, value in model.state_dict().items() if tuple(value.shape) != shapes.get(key)}
    named = sorted({key.rpartition(".")[0] or key for key in differing})
    for head in (None, *named) if differing else ():  # it is found, or else one of the keys names it
        try:
            located = find(model, example_for(model), head=head)
            wanted = {shapes[part.owner.path][part.axis] for part in located.parts}
            if len(wanted) == 1 and differing <= {part.owner.path for part in located.parts}:
                replace_head(model, wanted.pop(), init="zeros", head=head)
                break
        except (OnnxgenError, LookupError):
            continue
    else:
        _resize_maps(model, shapes, differing)
    return all(tuple(value.shape) == shapes.get(key) for key, value in model.state_dict().items())


def _resize_maps(model: nn.Module, shapes: Mapping[str, tuple[int, ...]], differing: set[str]) -> None:
    """Give the layers that compute a detector's raw maps the shapes of a checkpoint, if only their rows differ."""
    count = len(signature_of(model).outputs)
    try:
        heads = layers_of_maps(model, example_for(model), range(count)) if differing else []
    except OnnxgenError:
        return
    layers = [layer for layer in heads if {part.owner.path for part in layer.parts} & differing]
    if differing <= {part.owner.path for layer in layers for part in layer.parts}:
        for layer in layers:
            if rows := shapes.get(layer.parts[0].owner.path, ())[layer.parts[0].axis :][:1]:
                put_rows(layer, rows[0], {}, "zeros")


def _kept(keep: Keep | None, classes: int, old: int) -> dict[int, int]:
    if classes < 1:
        raise OnnxgenError(f"a classifier needs at least 1 class, not {classes}")
    pairs = keep.items() if isinstance(keep, Mapping) else enumerate(keep or ())
    kept = {new: before for new, before in pairs if before is not None}
    for new, before in kept.items():
        if not (0 <= new < classes and 0 <= before < old):
            what = f"keep maps new class {new} to old class {before}, which is out of range"
            raise OnnxgenError(what, help=f"new ones are 0 to {classes - 1}, old ones 0 to {old - 1}")
    return kept


def _counts(located: Found) -> list[tuple[nn.Module, str]]:
    """Return the attributes with the number of classes: torch's own, and integers of a plain parameter's module."""
    counts = []
    for part in located.parts:
        module, plain = part.owner.module, not isinstance(part.owner.module, (*LAYERS, nn.modules.batchnorm._NormBase))
        for name, value in vars(module).items():
            if type(value) is int and value == located.head.classes and (plain or name in _COUNTS):
                counts.append((module, name))
    return list(dict.fromkeys(counts))


def _resized(
    part: ClassTensor,
    old: Tensor,
    weight: tuple[ClassTensor, Tensor],
    classes: int,
    kept: Mapping[int, int],
    init: Init,
) -> Tensor:
    """Return a tensor with one entry for each new class. Kept classes keep their entries."""
    shape = [classes if axis == part.axis else size for axis, size in enumerate(old.shape)]
    rows = old.new_empty([classes, *(size for axis, size in enumerate(shape) if axis != part.axis)])
    with torch.no_grad():
        if part.fill == "ones":
            rows.fill_(1)
        elif part.fill == "weight":
            _initialise(rows, init)
        elif part.fill == "bias" and init == "default":
            bound = 1 / math.sqrt(max(weight[1].numel() // weight[1].shape[weight[0].axis], 1))
            rows.uniform_(-bound, bound)
        else:
            rows.zero_()
        for new, before in kept.items():
            rows[new] = old.detach().select(part.axis, before)
        tensor = rows.movedim(0, part.axis).contiguous()
    return nn.Parameter(tensor) if isinstance(old, nn.Parameter) else tensor


def _initialise(rows: Tensor, init: Init) -> None:
    if callable(init):
        init(rows)
    elif init == "default":
        nn.init.kaiming_uniform_(rows, a=math.sqrt(5))  # as reset_parameters of Linear and the convolutions does
    else:
        name = {"xavier": "xavier_uniform"}.get(init, init).rstrip("_")
        function = getattr(nn.init, f"{name}_", None)
        if function is None:
            raise OnnxgenError(f"init {init!r} is not in torch.nn.init", help="'xavier', 'default', 'zeros'")
        function(rows)


def _shapes(model: nn.Module, example: Example) -> list[tuple[int, ...]]:
    with undisturbed(model):
        return [tuple(tensor.shape) for tensor in outputs(call(model, example))]


def _where(model: nn.Module, classes: int) -> str:
    """Return what to change in the code of a model that counts on a number of classes.

    A reshape to that number takes any with -1 in its place, unless there is a -1 already.
    """
    try:
        file = inspect.getsourcefile(type(model)) or ""
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (TypeError, OSError, ValueError, SyntaxError):  # a class of a notebook, say
        return f"change {classes} in the code"
    used = {type(part).__name__ for part in model.modules() if type(part).__module__ == type(model).__module__}
    code = [part for part in tree.body if isinstance(part, ast.ClassDef) and part.name in used]
    calls = [node for part in code for node in ast.walk(part) if isinstance(node, ast.Call)]
    lines = sorted({line for node in calls if (line := _line_in_reshape(node, classes))})
    if not lines:
        return f"change {classes} in the code"
    places = f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}"
    return f"{places} of {Path(file).name}: write -1 for {classes}"


def _line_in_reshape(node: ast.Call, number: int) -> int:
    """Return the line in which a reshape has a number that could be -1 instead; 0 if there is none."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in _RESHAPES:
        return 0
    listed = [arg.elts if isinstance(arg, (ast.Tuple, ast.List)) else [arg] for arg in node.args]
    sizes = [size for part in listed for size in part]
    lines = [size.lineno for size in sizes if isinstance(size, ast.Constant) and size.value == number]
    has_other = any(isinstance(size, ast.UnaryOp) for size in sizes)
    return lines[0] if len(lines) == 1 and not has_other else 0


def _check(model: nn.Module, example: Example, before: list[tuple[int, ...]], located: Found, classes: int) -> None:
    """Check that the model still runs, and that its output changed in the class axis only."""
    head = located.head
    way_out = f"{_where(model, head.classes)}, or replace {head.path} by hand"
    try:
        after = _shapes(model, example)
    except Exception as error:
        reason = typed(error, 200)
        what = f"the model fails with {classes} classes in {head.path} ({reason})"
        raise OnnxgenError(what, help=way_out) from error
    old, new = before[head.output], after[head.output]
    wanted = [(*old[:axis], classes, *old[axis + 1 :]) for axis, size in enumerate(old) if size == head.classes]
    if new not in wanted:
        what = f"the output is {list(new)} with {classes} classes in {head.path}, but was {list(old)}"
        raise OnnxgenError(what, help=way_out)
