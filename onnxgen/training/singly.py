"""Networks that take one sample: a batch is a forward pass for each of its samples, whose outputs are stacked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from onnxgen.record.signature import Port, Signature
from onnxgen.surgery.ports import signature_of
from onnxgen.training.data.feeding import EACH, fed, says_batch
from onnxgen.training.data.samples import Data, Field
from onnxgen.training.data.source import DataSource
from onnxgen.training.data.text.roles import BRANCH
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import card_of, possible

_BATCH = "batch"
_COLOURS = frozenset((3, 4))


class Singly:
    """The `forward` of a network that takes one sample, in place of its own. It takes batches, and returns batches.

    An argument without a batch in front is one sample, and gets what the network makes of it.

    Attributes:
        signature: of the network as data sees it, with a batch in front of inputs and outputs.
        instead: what computes the outputs of a sample in place of the network, of the network and the sample; or None.
    """

    instead: Callable[..., Any] | None = None

    def __init__(self, model: nn.Module, modes: Mapping[str, bool], task: str) -> None:
        """Take one sample.

        Args:
            model: the network.
            modes: the inputs with a sample each: False if the file has an axis of 1 for it, True if it has none.
            task: of the settings. A network with a new head does not record what it is for.
        """
        own = signature_of(model)
        self.model, self.modes = model, [modes.get(port.name) for port in own.inputs]
        self.ranks = [len(port.dims or ()) for port in own.inputs]
        self.__signature__ = inspect.signature(model.forward)
        rank = max(rank for rank, mode in zip(self.ranks, self.modes) if mode is not None)
        inputs = tuple(p if m is None else _in_front(p, m) for p, m in zip(own.inputs, self.modes))
        self.steps = [self._has_steps_first(own, port, task) for port in own.outputs]
        outputs = tuple(
            _behind_steps(port) if steps else _in_front(port, not self._is_row(port.dims or (), rank))
            for port, steps in zip(own.outputs, self.steps)
        )
        self.signature = replace(own, inputs=inputs, outputs=outputs)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        inputs = self.__signature__.bind(*arguments, **named).args
        places = [place for place, mode in enumerate(self.modes) if mode is not None]
        whole = [place for place in places if self.modes[place]]
        forward = self.instead or type(self.model).forward
        if whole and all(inputs[place].ndim == self.ranks[place] for place in whole):
            return forward(self.model, *inputs)
        results = [forward(self.model, *sample) for sample in self.samples(inputs)]
        rank = max(self.ranks[place] for place in places)
        steps = [*self.steps, *[False] * len(results[0])]  # outputs may have been added by hand
        if isinstance(results[0], tuple):
            return tuple(self._joined(values, rank, own) for values, own in zip(zip(*results, strict=True), steps))
        return self._joined(results, rank, steps[0])

    def samples(self, inputs: Sequence[Any]) -> Iterator[list[Any]]:
        """Yield the arguments of the network for each sample of a batch."""
        first = next(place for place, mode in enumerate(self.modes) if mode is not None)
        return (self._sample(inputs, n) for n in range(len(inputs[first])))

    def _sample(self, inputs: Sequence[Any], n: int) -> list[Any]:
        cut = {None: slice(None), False: slice(n, n + 1), True: n}
        return [x if mode is None else x[cut[mode]] for x, mode in zip(inputs, [*self.modes, *[None] * len(inputs)])]

    def _joined(self, outputs: Sequence[Any], rank: int, steps: bool) -> Any:
        if not isinstance(outputs[0], Tensor):
            return joined_rows(outputs)
        if steps or self._is_row(outputs[0].shape, rank):
            return torch.cat(list(outputs), 1 if steps else 0) if len(outputs) > 1 else outputs[0]
        return torch.stack(list(outputs))

    def _has_steps_first(self, signature: Signature, port: Port, task: str) -> bool:
        """Return True for scores [steps, 1, classes] of a network that may read lines, as recurrent ones make."""
        dims = port.dims or ()
        reads = any(card.resize == "line" for card in (*possible(signature.purpose), card_of(task)))
        return reads and not any(self.modes) and len(dims) == 3 and dims[1] == 1 and dims[0] != 1

    def _is_row(self, sizes: Sequence[Any], rank: int) -> bool:
        """Return True if the first axis of an output is its sample's, not a channel of a map.

        `rank`: of the input with most axes.
        """
        if not sizes or sizes[0] != 1:
            return False
        return not any(self.modes) or len(sizes) > rank or len(sizes) == 2


def joined_rows(parts: Sequence[Any]) -> Any:
    """Return the rows of all parts of an output that is no tensor: text, or a list of maps."""
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else [row for part in parts for row in part]


def is_singly(model: nn.Module) -> bool:
    """Return True if a network runs on one sample at a time."""
    return isinstance(vars(model).get("forward"), Singly)


def alone_of(model: nn.Module) -> tuple[set[str], set[int]]:
    """Return the names of the inputs, and the numbers of the outputs, that have no axis for the samples of a batch."""
    forward: Any = vars(model).get("forward")
    if not isinstance(forward, Singly):
        return set(), set()
    own = signature_of(model)
    inputs = {port.name for port, mode in zip(own.inputs, forward.modes) if mode}
    pairs = enumerate(zip(own.outputs, forward.signature.outputs))
    return inputs, {n for n, (one, several) in pairs if len(one.dims or ()) != len(several.dims or ())}


def run_singly(model: nn.Module, data: Data | DataSource, settings: Settings) -> None:
    """Let a network that takes one sample run on batches, if the samples of the data are such samples."""
    if "forward" in vars(model) or not data.parts:  # see also `Stepwise`
        return
    fields = next(iter(data.parts.values())).fields
    pictures, table = (data.whites, data.table) if isinstance(data, DataSource) else ({}, False)
    ports = [port for port in fed(model, settings.const).inputs if port.name != BRANCH]
    if not ports or not all(port.dims is not None and _has_no_batch(port.dims) for port in ports):
        return
    alone = _is_alone(ports, signature_of(model).outputs)

    def has_whole_samples(port: Port) -> bool:
        column = settings.inputs.get(port.name, port.name)
        if column in fields:
            return _is_whole(port, fields[column], alone, column in pictures)
        row = alone and table and len(port.dims or ()) == 1
        return row or any(_is_whole(port, field, alone, name in pictures) for name, field in fields.items())

    modes = {port.name: has_whole_samples(port) for port in ports}
    if all(modes[port.name] or (port.dims or (0,))[0] == 1 for port in ports):
        model.forward = Singly(model, modes, settings.task)


def _in_front(port: Port, more: bool) -> Port:
    if port.dims is None:
        return port
    return replace(port, dims=(EACH, *port.dims) if more else (_BATCH, *port.dims[1:]))


def _behind_steps(port: Port) -> Port:
    steps, _, *rest = port.dims or ()
    return replace(port, dims=(steps, _BATCH, *rest))


def _has_no_batch(dims: Sequence[int | str]) -> bool:
    return not any(isinstance(dim, str) and says_batch(dim) for dim in dims)


def _is_alone(ports: Sequence[Port], outputs: Sequence[Port]) -> bool:
    """Return True if no output has the first axis of an input, by its known sizes."""
    first = {port.dims[0] for port in ports if port.dims}
    sizes = [port.dims for port in outputs]
    return bool(sizes) and all(
        dims is not None and not first & {*dims} and all(isinstance(dim, int) for dim in dims) for dims in sizes
    )


def _is_whole(port: Port, field: Field, alone: bool, picture: bool) -> bool:
    """Return True if a sample has all axes of an input, also as an image that is made to fit.

    Args:
        alone: see `_is_alone`.
        picture: True for files of images, which an input with three or four channels takes as one.
    """
    dims, sizes = port.dims or (), field.shape
    if len(sizes) == len(dims) and all(dim == size for dim, size in zip(dims, sizes) if isinstance(dim, int)):
        return True
    if _has_colours(dims) and (picture or _has_colours(sizes)):
        return True
    image = picture or (field.dtype == torch.uint8 and len(sizes) in (2, 3))
    return alone and (image and len(dims) in (2, 3) or len(sizes) == len(dims) == 1)


def _has_colours(sizes: Sequence[int | str]) -> bool:
    return len(sizes) == 3 and bool({sizes[0], sizes[2]} & _COLOURS)
