"""Find the classifier of a network: the last layer with weights, which has one row for each class.

Names are not reliable. So the model is run once on a small input, and its result is traced back to
a product with a parameter: through softmax, a norm over the classes, pooling and changes of layout.
If any other operation is in between, the network does not end in a classifier.

`Parts` finds the tensors that belong to a classifier: those with one entry for each class. `trace`
records a forward pass as a graph of ATen operations, which shows where each value comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from onnxgen.errors import OnnxgenError, typed
from onnxgen.surgery.ports import NORMS as NORM_LAYERS
from onnxgen.surgery.ports import Example, Owner, call, example_for, near, output_names, outputs, owners, undisturbed

PRODUCTS = {"addmm", "mm", "linear", "convolution", "bmm", "baddbmm", "matmul", "addmv", "mv"}
NORMS = {"native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "batch_norm"}
NORMS |= {"cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_no_update", "_batch_norm_with_update"}
ARITHMETIC = {"add", "sub", "mul", "div"}

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)

_TRANSPOSED = 6  # index of the argument `transposed` of aten's `convolution`
# for the arguments of a norm: x, weight, bias, running mean, running variance
_FILLS = (None, "ones", "zeros", "zeros", "ones")


@dataclass(frozen=True)
class ClassTensor:
    """A tensor with one entry for each class.

    Attributes:
        axis: the axis of the classes.
        fill: the initial values of a new class: "weight", "bias" (both by the chosen initialisation), "zeros", "ones".
    """

    owner: Owner
    axis: int
    fill: str


class Parts:
    """The parameters and buffers of a model, located in a forward pass."""

    def __init__(self, model: nn.Module, traced: Trace) -> None:
        self._owners = owners(model)
        self._operations = traced.operations
        self.products = [operation for operation in traced.operations if self.weight(operation) is not None]

    def weight(self, product: Operation) -> ClassTensor | None:
        """Return the stored tensor that a product multiplies with and its output axis, or None if it has none."""
        if product.name not in PRODUCTS or (product.name == "convolution" and product.arguments[_TRANSPOSED]):
            return None
        for value in product.inputs:
            stored, turns = source(value)
            held = self._owner(value)
            if held is None or stored.tensor.ndim < 2:
                continue
            if product.name in ("linear", "convolution"):
                return ClassTensor(held, 0, "weight")
            columns = (value is product.inputs[-1]) != (turns % 2 == 1)
            return ClassTensor(held, stored.tensor.ndim - 1 if columns else 0, "weight")
        return None

    def of(self, product: Operation) -> tuple[ClassTensor, ...]:
        """Return the weight and bias of a product, and other tensors with one value per class up to the next layer."""
        weight = self.weight(product)
        assert weight is not None
        classes = getattr(weight.owner.module, weight.owner.name).shape[weight.axis]
        tensors = [weight, *self._sized(((value, "bias") for value in product.inputs), classes)]
        behind = {product}
        for operation in self._operations:
            if operation.name in PRODUCTS or not any(value.made_by in behind for value in operation.inputs):
                continue
            behind.add(operation)
            if operation.name in NORMS:
                tensors += self._sized(zip(operation.arguments, _FILLS, strict=False), classes)
            elif operation.name in ARITHMETIC:
                fill = "zeros" if operation.name in ("add", "sub") else "ones"
                tensors += self._sized(((value, fill) for value in operation.inputs), classes)
        return tuple({(id(part.owner.module), part.owner.name): part for part in reversed(tensors)}.values())[::-1]

    def sharing(self, product: Operation) -> str:
        """Return the path of another user of a product's weight, or ""."""
        weight = self.weight(product)
        assert weight is not None
        tensor = getattr(weight.owner.module, weight.owner.name)
        others = [owner.path for owner in self._owners[id(tensor)] if owner.path != weight.owner.path]
        for operation in self._operations:
            if operation.name not in PRODUCTS and not is_view(operation):
                others += [operation.name for value in operation.inputs if source(value)[0].tensor is tensor]
        return others[0] if others else ""

    def _owner(self, value: Value) -> Owner | None:
        """Return the owner of the tensor that a value is a view of, or None."""
        held = () if value.varies else self._owners.get(id(source(value)[0].tensor), ())
        return next((o for o in held if isinstance(o.module, LAYERS)), next(iter(held), None))

    def _sized(self, values: Iterable[tuple[Any, str | None]], classes: int) -> Iterator[ClassTensor]:
        """Yield the stored tensors among some arguments that hold exactly one value per class."""
        for value, fill in values:
            held = self._owner(value) if isinstance(value, Value) and fill else None
            shape = source(value)[0].shape if held else ()
            if held and classes in shape and prod(shape) == classes:
                yield ClassTensor(held, shape.index(classes), fill or "")


MAX_CANDIDATES_SHOWN = 5  # in an error message

_LAYOUT = {"view", "_unsafe_view", "reshape", "permute", "transpose", "t", "numpy_T", "squeeze", "unsqueeze", "expand"}
_LAYOUT |= {"slice", "select", "index", "index_select", "gather", "take_along_dim", "split", "split_with_sizes"}
_LAYOUT |= {"unbind", "alias", "clone", "detach", "contiguous", "_to_copy", "lift_fresh"}
_LAYOUT |= {"native_dropout", "dropout", "masked_fill"}
_POOLING = {"mean", "sum", "amax", "max", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d"}
_POOLING |= {"avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d"}
_POOLING |= {"max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool1d", "max_pool2d"}
_SOFTMAX = {"_softmax", "softmax", "_log_softmax", "log_softmax"}
_SCORES = {"sigmoid", "log_sigmoid_forward", "log", "exp", "neg", "clamp", "clamp_min", "clamp_max"}
_PASSED = _LAYOUT | _POOLING | _SOFTMAX | _SCORES | NORMS


@dataclass(frozen=True)
class Head:
    """A classifier.

    Attributes:
        path: the path of its module ("fc2"), or of a plain parameter ("head.weight").
        classes: the number of classes.
        features: the number of weights per class: `in_features` of a Linear.
        output: the index of the model output that it computes.
        also: paths of other modules or tensors with a value per class: a norm after it, a scale.
    """

    path: str
    classes: int
    features: int
    output: int = 0
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """A head with all its tensors. The first one is the weight."""

    head: Head
    parts: tuple[ClassTensor, ...]


def find_head(
    model: nn.Module, example: Example | None = None, *, head: str | None = None, output: int | str | None = None
) -> Head:
    """Return the classifier of a model.

    Args:
        model: any module; it is run once in evaluation mode, and left as it was.
        example: the input of `forward`: a tensor, a tuple, or a dict by argument. A generated model needs none.
        head: the path of the layer, if it can't be found automatically.
        output: the number or name of the output that it computes, if there are several.

    Raises:
        OnnxgenError: the network does not end in a classifier, or in several; the candidates are listed.
    """
    return find(model, example_for(model, example), head=head, output=output).head


def layers_of_maps(model: nn.Module, example: Example, outputs: Sequence[int]) -> list[Found]:
    """Return the layers that compute the channels of maps, with their tensors. Maps may share a layer.

    Args:
        outputs: the numbers of these outputs.

    Raises:
        OnnxgenError: no layer computes one of them, or its weight is also used for something else.
    """
    search = _Search(model, trace(model, example))
    try:
        products = [search.last_product(search.traced.outputs[index]) for index in outputs]
        return [search.checked(product, index) for product, index in zip(products, outputs)]
    except _NoHead as why:
        raise search.refusal(f"the layer of a raw map was not found: {why}") from None


def last_layers(model: nn.Module, example: Example) -> tuple[str, ...]:
    """Return the paths of the heads of all outputs, of any size, and of the layers that belong to them.

    Raises:
        OnnxgenError: no output has a head.
    """
    search = _Search(model, trace(model, example))
    paths: list[str] = []
    reasons: list[str] = []
    for index in range(len(search.traced.outputs)):
        try:
            head = search.behind(index, any_size=True).head
            paths += [head.path, *head.also]
        except _NoHead as why:
            reasons.append(str(why))
    if not paths:
        raise search.refusal("no classifier was found: " + "; ".join(reasons[:MAX_CANDIDATES_SHOWN]))
    return tuple(dict.fromkeys(paths))


def find(model: nn.Module, example: Example, *, head: str | None = None, output: int | str | None = None) -> Found:
    """Find the head as `find_head` does, with the tensors that belong to it."""
    try:
        traced = trace(model, example)
    except Exception as error:  # the model's code may raise anything
        reason = typed(error, 200)
        raise OnnxgenError(f"the model fails on the example ({reason})", help="give another example=") from error
    search = _Search(model, traced)
    names = output_names(model, traced.result)
    chosen = [_output(output, names)] if output is not None else list(range(len(names)))
    if head is not None:
        return search.named(head, chosen)
    heads: dict[str, Found] = {}
    reasons: list[str] = []
    for index in chosen:
        try:
            located = search.behind(index)
            heads.setdefault(located.head.path, located)
        except _NoHead as why:
            reasons.append(str(why) if len(names) == 1 else f"output {names[index]}: {why}")
    if len(heads) > 1:
        raise search.refusal(f"the model has {len(heads)} classifiers: {', '.join(heads)}", "output= or ")
    if not heads:
        text = "; ".join(reasons[:MAX_CANDIDATES_SHOWN]) or "the model returns nothing"
        raise search.refusal(f"no classifier was found: {text}")
    return next(iter(heads.values()))


def _output(output: int | str, names: list[str]) -> int:
    if isinstance(output, int) and output < len(names):
        return output
    if output in names:
        return names.index(str(output))
    raise OnnxgenError(f"the model has no output {output!r}", help=f"there are {', '.join(names)}")


class _NoHead(Exception):
    """Raised with the reason why an output is not computed by a classifier."""


class _Search:
    def __init__(self, model: nn.Module, traced: Trace) -> None:
        self.traced = traced
        self.parts = Parts(model, traced)

    def behind(self, index: int, any_size: bool = False) -> Found:
        """Find the classifier that computes an output. `any_size`: no axis of the output need have the class count."""
        shape = self.traced.outputs[index].shape
        product = self.last_product(self.traced.outputs[index])
        located = self.checked(product, index, any_size)
        if product.name == "convolution" and prod(shape[2:]) > 1:
            raise _NoHead(f"{located.head.path} gives scores for every position of a map ({_sizes(shape)})")
        if self._projects_attention(product):
            raise _NoHead(f"{located.head.path} is the output projection of an attention")
        return located

    def named(self, path: str, chosen: list[int]) -> Found:
        """Find the last layer with weights at or below a path."""
        below = [o for o in self.parts.products if f"{self._path(o)}.".startswith(f"{path}.")]
        if not below:
            known = list(dict.fromkeys(map(self._path, self.parts.products)))
            raise OnnxgenError(f"no layer with weights is called {path!r}", help=near(path, known))
        reasons = []
        for index in chosen:
            try:
                return self.checked(below[-1], index)
            except _NoHead as why:
                reasons.append(str(why))
        raise self.refusal(reasons[0])

    def refusal(self, what: str, other: str = "") -> OnnxgenError:
        """Make an error that lists the candidates, the last one first."""
        last = list(dict.fromkeys(map(self._described, reversed(self.parts.products))))
        shown = ", ".join(last[:MAX_CANDIDATES_SHOWN]) + (", ..." if len(last) > MAX_CANDIDATES_SHOWN else "")
        return OnnxgenError(what, help=f"name it with {other}head=; there are {shown}" if last else "")

    def last_product(self, value: Value) -> Operation:
        """Return the product that computes a value, skipping operations that may follow a classifier."""
        # True if pooling or softmax follows: a ReLU is then part of the head (SqueezeNet), not the end of an encoder.
        final = False
        while (operation := value.made_by) is not None:
            varying = [v for v in operation.inputs if v.varies]
            if operation in self.parts.products:
                return operation
            final |= operation.name in _POOLING | _SOFTMAX
            passed = operation.name in _PASSED or (operation.name == "relu" and final)
            if not varying or not (passed or (operation.name in ARITHMETIC and len(varying) == 1)):
                joined = operation.name in ARITHMETIC and len(varying) > 1
                raise _NoHead(f"the last operation is {operation.name}{' of two values' if joined else ''}")
            value = varying[0]
        raise _NoHead("no layer with weights computes it")

    def checked(self, product: Operation, index: int, any_size: bool = False) -> Found:
        """Return the head for a product. Its classes must be an axis of the output; its weight must not be shared."""
        parts = self.parts.of(product)
        path, weight, shape = self._path(product), _tensor(parts[0]), self.traced.outputs[index].shape
        classes = weight.shape[parts[0].axis]
        if classes not in shape and not any_size:
            raise _NoHead(f"{path} computes {classes} values, but the output is {_sizes(shape)}")
        if sharing := self.parts.sharing(product):
            raise _NoHead(f"{path} shares its weight with {sharing}, so its size can't change until they are untied")
        own = parts[0].owner.module
        also = [_layer(p.owner) for p in parts[1:] if p.owner.module is not own or not isinstance(own, LAYERS)]
        return Found(Head(path, classes, weight.numel() // classes, index, tuple(dict.fromkeys(also))), parts)

    def _projects_attention(self, product: Operation) -> bool:
        value = next(v for v in product.inputs if v.varies)
        while (before := value.made_by) is not None and before.name in VIEWS:
            value = before.inputs[0]
        return before is not None and (before.name == "bmm" or "dot_product" in before.name)

    def _path(self, product: Operation) -> str:
        part = self.parts.weight(product)
        assert part is not None
        return _layer(part.owner)

    def _described(self, product: Operation) -> str:
        part = self.parts.weight(product)
        assert part is not None
        weight = _tensor(part)
        classes = weight.shape[part.axis]
        return f"{_layer(part.owner)} ({weight.numel() // classes} -> {classes})"


def _layer(owner: Owner) -> str:
    """Return the path of the module if all its tensors belong to it alone, else the path of the tensor."""
    return owner.home if isinstance(owner.module, (*LAYERS, *NORM_LAYERS)) else owner.path


def _tensor(part: ClassTensor) -> Tensor:
    tensor: Tensor = getattr(part.owner.module, part.owner.name)
    return tensor


def _sizes(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


VIEWS = {"t", "transpose", "permute", "numpy_T", "view", "_unsafe_view", "reshape", "expand", "unsqueeze", "squeeze"}
VIEWS |= {"_to_copy", "clone", "detach", "alias", "contiguous"}


@dataclass(eq=False)
class Value:
    """A tensor at one point in time. An in-place operation makes a new value.

    Attributes:
        tensor: kept alive, so that its id is not reused.
        made_by: the operation; None for inputs, parameters and constants.
        varies: True if it depends on the model's inputs.
    """

    tensor: Tensor
    made_by: Operation | None = None
    varies: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)


@dataclass(eq=False)
class Operation:
    """One call of an ATen operator.

    Attributes:
        name: the name without the overload: "addmm", "convolution".
        inputs: the tensors among its arguments, in order.
        arguments: the positional arguments; tensors are replaced by their `Value`.
    """

    name: str
    inputs: list[Value]
    arguments: tuple[Any, ...]


@dataclass
class Trace:
    """A forward pass.

    Attributes:
        result: what the model returned.
        outputs: its tensors.
        operations: in order of execution.
    """

    result: Any = None
    outputs: list[Value] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


def trace(model: nn.Module, example: Example) -> Trace:
    """Run a model in evaluation mode and record the operations it performs."""
    recorder = _Recorder(example)
    with undisturbed(model), recorder:
        result = call(model, example)
    traced = recorder.trace
    traced.result = result
    traced.outputs = [recorder.value(tensor) for tensor in outputs(result)]
    return traced


def is_view(operation: Operation) -> bool:
    """Return True if an operation arranges, casts, or multiplies by one number the elements of a tensor."""
    is_scaled = operation.name in ("mul", "div") and len(operation.inputs) == 1
    return bool(operation.inputs) and (operation.name in VIEWS or is_scaled)


def source(value: Value) -> tuple[Value, int]:
    """Return the tensor that a value is a view of (`is_view`), and the number of times that two axes were swapped."""
    turns = 0
    while (operation := value.made_by) is not None and is_view(operation):
        turns += operation.name in ("t", "transpose", "permute", "numpy_T")
        value = operation.inputs[0]
    return value, turns


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, example: Example) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = Trace()
        leaves = pytree.tree_leaves(dict(example) if not isinstance(example, (Tensor, tuple, list)) else example)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.now = {id(tensor): Value(tensor, varies=True) for tensor in tensors}

    def value(self, tensor: Tensor) -> Value:
        current = self.now.get(id(tensor))
        if current is None:
            current = self.now[id(tensor)] = Value(tensor)
        return current

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorded = pytree.tree_map_only(Tensor, self.value, (args, kwargs or {}))
        inputs = [leaf for leaf in pytree.tree_leaves(recorded) if isinstance(leaf, Value)]
        result = func(*args, **(kwargs or {}))
        operation = Operation(func.overloadpacket.__name__.rstrip("_"), inputs, recorded[0])
        self.trace.operations.append(operation)
        varies = any(value.varies for value in inputs)
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.now[id(tensor)] = Value(tensor, operation, varies)
        return result
