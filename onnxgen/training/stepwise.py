"""Networks that carry a state from step to step: a sample is a sequence, and the network runs on each of its steps."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, counted
from onnxgen.record.signature import Port, Signature
from onnxgen.surgery.ports import evaluating, signature_of
from onnxgen.training.data.arrays import column_of, decoder_of, in_columns
from onnxgen.training.data.carrying import RATES, carried
from onnxgen.training.data.feeding import batch_axis, batch_name, set_constants
from onnxgen.training.data.samples import Data, Samples
from onnxgen.training.data.sounds import Sounds
from onnxgen.training.data.source import DataSource, Lists, target_called
from onnxgen.training.goals.goal import IGNORED_CLASS
from onnxgen.training.runs.record import Carried, Steps
from onnxgen.training.settings import Settings

STATE = "state"  # the kind of an output that is carried: it has no target
STEPS, LENGTH = "steps", "length"
_BATCH = "batch"


@dataclass(frozen=True)
class State:
    """An input that holds a state.

    Attributes:
        place: of the input among the arguments, and `output` the index of the output that it goes on from.
        sizes: of its axes; None is the batch axis.
        start: the number that fills it before the first step.
    """

    name: str
    place: int
    output: int
    sizes: tuple[int | None, ...]
    dtype: torch.dtype
    start: float = 0.0

    def begin(self, count: int, like: Tensor) -> Tensor:
        """Return the state of `count` samples before their first step, of the type of the module, as `like` is."""
        dtype = like.dtype if self.dtype.is_floating_point and like.is_floating_point() else self.dtype
        sizes = [count if size is None else size for size in self.sizes]
        return torch.full(sizes, self.start, dtype=dtype, device=like.device)


@dataclass(frozen=True)
class Cut:
    """How a sample becomes steps.

    Attributes:
        chunk: of an axis, the numbers of a step that are new; 0: a sample has an axis of steps in front.
        context: how many before them a step has, too: of the chunk before, and zeros before the first.
    """

    chunk: int = 0
    context: int = 0

    def count(self, length: int) -> int:
        """Return the number of steps of a sample of this length."""
        return -(-length // self.chunk) if self.chunk else length


class Stepwise:
    """The `forward` of a network that carries a state, in place of its own. It takes and returns sequences.

    The state begins as zeros, or as `--const` says, for each sample. The gradient reaches through `window` steps: the
    state that begins a window is a number to it (Williams & Peng, 1990).

    Attributes:
        own: the signature of the network.
        signature: of the network as data sees it: without states, with an axis of steps or of the whole length.
        carried: the names of the inputs that hold a state, and `outputs` the indices of their next values.
        found: the inputs that are always one number, and that number.
        instead: what computes the outputs of a step in place of the network, of the network and the step; or None.
    """

    instead: Callable[..., Any] | None = None

    def __init__(
        self,
        model: nn.Module,
        states: Sequence[State],
        cut: Cut,
        axes: Mapping[int, tuple[int, int]],
        window: int | None,
        found: Mapping[str, float],
    ) -> None:
        """`axes`: by the place of each input with steps, its batch axis, and the axis of a sample that is cut."""
        own = self.own = signature_of(model)
        self.model, self.states, self.cut, self.axes = model, tuple(states), cut, dict(axes)
        self.window, self.found = window, dict(found)
        self.singly = all(None not in state.sizes for state in states)
        self.batch = batch_name(own.inputs)
        held = {state.place for state in states}
        names = [*inspect.signature(type(model).forward).parameters.values()][1:]
        left = [place for place in range(len(own.inputs)) if place not in held]
        self.places = left
        self.__signature__ = inspect.Signature([names[place] for place in left])
        self.outputs = {state.output for state in states}
        self.carried = {state.name for state in states}
        self.signature = replace(
            own,
            inputs=tuple(self._in_steps(own.inputs[place], place) for place in left),
            outputs=tuple(self._out(port, number) for number, port in enumerate(own.outputs)),
        )

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        inputs = self.__signature__.bind(*arguments, **named).args
        count = len(inputs[self.places.index(next(iter(self.axes)))])
        if not self.singly or count == 1:
            return self._run(inputs)
        made = [self._run(self._row(inputs, n)) for n in range(count)]
        return tuple(
            torch.cat(rows, self.states_axis(number)) if number in self.outputs else torch.cat(rows)
            for number, rows in enumerate(zip(*made, strict=True))
        )

    def samples(self, inputs: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        """Yield the arguments of the network for each step of a batch; of one sample, if it takes one at a time."""
        made: list[Sequence[Tensor]] = []
        for step in self.steps(self._row(inputs, 0) if self.singly else inputs, made):
            yield step
            with torch.no_grad():
                made.append(self._outputs(step))

    def first_outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return what the network makes of the first step, in evaluation mode."""
        with evaluating(self.model), torch.no_grad():
            return [*self._outputs(next(self.samples(inputs)))]

    @property
    def facts(self) -> tuple[Any, ...]:
        """What makes two of them do the same with a network."""
        return self.states, self.cut, self.axes, self.window, self.found

    @property
    def batch_axes(self) -> list[int | None]:
        """The batch axis of each input of the network and then of each output; None if it has none."""
        states = {state.place: state.sizes for state in self.states}
        inputs: list[int | None] = [None] * len(self.own.inputs)
        for place, sizes in states.items():
            inputs[place] = sizes.index(None) if None in sizes else None
        for place, (axis, _) in self.axes.items():
            inputs[place] = axis
        numbers = range(len(self.own.outputs))
        return [*inputs, *(self.states_axis(n) if n in self.outputs else self._output_axis(n) for n in numbers)]

    def _output_axis(self, number: int) -> int:
        ports = self.own.outputs
        dims = (ports[number].dims if number < len(ports) else None) or ()
        return dims.index(self.batch) if self.batch in dims else 0

    def states_axis(self, number: int) -> int:
        """Return the axis along which the states of several samples are joined."""
        sizes = next(state.sizes for state in self.states if state.output == number)
        size = None if None in sizes else 1
        return sizes.index(size) if size in sizes else 0

    def _row(self, inputs: Sequence[Tensor], n: int) -> list[Tensor]:
        return [x[n : n + 1] if place in self.axes else x for place, x in zip(self.places, inputs)]

    def _run(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        made: list[list[Tensor]] = []
        for step in self.steps(inputs, made):
            made.append([*self._outputs(step)])
            for number in self.outputs if len(made) > 1 else ():
                made[-2][number] = made[-1][number]  # of the states the last ones are kept
        if not made:
            raise OnnxgenError("a sample has no steps", help="leave it out of the data")
        return tuple(self._joined(values, number) for number, values in enumerate(zip(*made, strict=True)))

    def steps(self, inputs: Sequence[Tensor], made: Sequence[Sequence[Tensor]]) -> Iterator[list[Tensor]]:
        """Yield the arguments of the network for each step; `made` has what it made of the steps before."""
        given = dict(zip(self.places, inputs))
        cuts = {place: self._cut(x, place) for place, x in given.items() if place in self.axes}
        counts = {len(steps) for steps in cuts.values()}
        if len(counts) > 1:
            raise OnnxgenError(f"the inputs of a sample have {listed(map(str, sorted(counts)))} steps")
        first = next(x for place, x in given.items() if place in self.axes)
        states = [state.begin(len(first), self._like(first)) for state in self.states]
        for number in range(counts.pop()):
            if number:
                states = [self._next(state, before, made[-1]) for state, before in zip(self.states, states)]
            if self.window and number % self.window == 0:
                states = [x.detach() for x in states]
            step = {**given, **{place: steps[number] for place, steps in cuts.items()}}
            step |= {state.place: x for state, x in zip(self.states, states)}
            yield [step[place] for place in sorted(step)]

    def _like(self, given: Tensor) -> Tensor:
        return next((p for p in self.model.parameters() if p.is_floating_point()), given)

    def _next(self, state: State, before: Tensor, made: Sequence[Tensor]) -> Tensor:
        after = made[state.output]
        if after.shape != before.shape:
            name = self.own.outputs[state.output].name
            what = f"state {legible(state.name)!r} is {list(before.shape)}, and its next value {legible(name)!r}"
            raise OnnxgenError(f"{what} is {list(after.shape)}", help="name the output that it is: --carry")
        return after.to(before.dtype)

    def _cut(self, x: Tensor, place: int) -> Sequence[Tensor]:
        """Return an input of each step."""
        axis, cut = self.axes[place]
        if not self.cut.chunk:
            return [step.movedim(0, axis) if axis else step for step in x.unbind(1)]
        chunk, context = self.cut.chunk, self.cut.context
        steps = self.cut.count(x.shape[cut])
        sizes = [0, 0] * (x.ndim - 1 - cut) + [context, steps * chunk - x.shape[cut]]
        x = nn.functional.pad(x, sizes)
        pieces = (x.narrow(cut, number * chunk, context + chunk) for number in range(steps))
        return [piece.movedim(0, axis) if axis else piece for piece in pieces]

    def _outputs(self, step: Sequence[Tensor]) -> Sequence[Tensor]:
        forward = self.instead or type(self.model).forward
        made = forward(self.model, *step)
        return made if isinstance(made, tuple) else (made,)

    def _joined(self, values: Sequence[Tensor], number: int) -> Tensor:
        """Return the last state, or an output of all steps: [batch, steps, ...]."""
        if number in self.outputs:
            return values[-1]
        axis = self._output_axis(number)
        return torch.stack([value.movedim(axis, 0) if axis else value for value in values], 1)

    def _in_steps(self, port: Port, place: int) -> Port:
        """Return an input as data feeds it."""
        if place not in self.axes or port.dims is None:
            return port
        axis, cut = self.axes[place]
        rest = [*port.dims[:axis], *port.dims[axis + 1 :]]
        if self.cut.chunk:
            rest[cut - 1] = LENGTH
        else:
            rest.insert(0, STEPS)
        return replace(port, dims=(_BATCH if self.singly else port.dims[axis], *rest))

    def _out(self, port: Port, number: int) -> Port:
        if number in self.outputs:
            return replace(port, kind=STATE)
        if port.dims is None:
            return port
        axis = port.dims.index(self.batch) if self.batch in port.dims else 0
        rest = [*port.dims[:axis], *port.dims[axis + 1 :]]
        return replace(port, dims=(_BATCH if self.singly else self.batch, STEPS, *rest))


def stepwise(model: nn.Module) -> Stepwise | None:
    """Return what runs a network on the steps of a sample; None if it carries no state."""
    forward: Any = vars(model).get("forward")
    return forward if isinstance(forward, Stepwise) else None


def constants_of(model: nn.Module, settings: Settings) -> dict[str, float]:
    """Return the numbers that fill inputs of a network: those of `--const`, and those that were found."""
    over = stepwise(model)
    return dict(settings.const) if over is None else {**over.found, **settings.const}


def settled_steps(model: nn.Module, settings: Settings) -> Settings:
    """Return the settings with the states that were found, so that a run treats other data alike."""
    if (over := stepwise(model)) is None:
        return settings
    outputs = signature_of(model).outputs
    carry = {state.name: outputs[state.output].name for state in over.states}
    return replace(settings, carry=carry, const=constants_of(model, settings))


def states_of(model: nn.Module) -> tuple[Carried, ...]:
    """Return what a record says of the states of a network."""
    if (over := stepwise(model)) is None:
        return ()
    outputs = signature_of(model).outputs
    return tuple(
        Carried(
            state.name,
            outputs[state.output].name,
            str(state.dtype).removeprefix("torch."),
            tuple(size for size in state.sizes if size is not None),
            state.sizes.index(None) if None in state.sizes else 0,
            None not in state.sizes,
            state.start,
        )
        for state in over.states
    )


def steps_of(model: nn.Module, name: str) -> Steps | None:
    """Return what a record says of how an input is cut into steps; None if it is not."""
    over, places = stepwise(model), {port.name: place for place, port in enumerate(signature_of(model).inputs)}
    if over is None or places.get(name) not in over.axes:
        return None
    cut = over.axes[places[name]][1]
    return Steps(cut - 1 if over.cut.chunk else 0, over.cut.chunk, over.cut.context)


def notes_of(model: nn.Module) -> list[str]:
    """Return sentences of what a network carries, and how a sample is cut."""
    if (over := stepwise(model)) is None:
        return []
    outputs, cut = signature_of(model).outputs, over.cut
    pairs = listed(f"{legible(s.name)} from {legible(outputs[s.output].name)}" for s in over.states)
    context = f" with the {cut.context} before them" if cut.context else ""
    size = f"of {cut.chunk} numbers{context}" if cut.chunk else "each a row"
    reach = f"{counted(over.window, 'step')}" if over.window else "all steps"
    notes = [f"carried from step to step: {pairs}; steps {size}; the gradient reaches through {reach}"]
    filled = [f"{legible(name)} is {value:g}" for name, value in over.found.items()]
    return notes + ([f"always the same: {listed(filled)}; --const sets another number"] if filled else [])


def run_stepwise(model: nn.Module, data: Data | DataSource | None, settings: Settings) -> None:
    """Let a network that carries a state run on sequences, if it has one and nothing else feeds it.

    `data` is not needed if the settings name the states.

    Raises:
        OnnxgenError: what the settings say of states or steps does not fit the network or the data.
    """
    own = signature_of(model)
    columns = {*data.first.fields} if data is not None and data.parts else set[str]()
    pairs = carried(own, settings, columns)
    if not pairs:
        if settings.chunk or settings.context or settings.bptt:
            what = "--chunk, --context and --bptt are of networks that carry a state from step to step"
            raise OnnxgenError(f"{what}, and none is found", help="name its inputs and outputs: --carry INPUT=OUTPUT")
        if stepwise(model) is not None:
            del model.forward
        return
    for name, given in (("teacher", settings.teacher), ("compile", settings.compile)):
        if given:
            what = f"{name} is not for a network that carries a state: it runs once for each step of a sample"
            raise OnnxgenError(what, help=f"leave out --{name}")
    states = _states(own, pairs, settings)
    held = {state.place for state in states}
    rate = data.rate if isinstance(data, (Data, DataSource)) else 0
    found = _found(model, own, held, columns, settings, rate)
    cut = Cut(settings.chunk or 0, settings.context)
    left = [p for p in range(len(own.inputs)) if p not in held and own.inputs[p].name not in {*found, *settings.const}]
    if not left:
        raise OnnxgenError("the network has no input that data could feed", help="leave one out of --carry and --const")
    batch = batch_name(own.inputs)
    axes = {place: _axes(own.inputs[place], batch, cut) for place in left}
    _refuse_without_batch(own, states, axes)
    over, before = Stepwise(model, states, cut, axes, settings.bptt, found), stepwise(model)
    if before is None or before.facts != over.facts:  # else it may run a file in place of the network
        model.forward = over
    set_constants(model, settings.const)
    if isinstance(data, DataSource):
        _tensors_of_lists(data, own, settings)


def _states(own: Signature, pairs: Mapping[str, str], settings: Settings) -> list[State]:
    names, outputs = [port.name for port in own.inputs], [port.name for port in own.outputs]
    states = []
    for name, output in pairs.items():
        port, made = own.inputs[names.index(name)], own.outputs[outputs.index(output)]
        sizes = _sizes(port, made, batch_name(own.inputs))
        dtype: torch.dtype = getattr(torch, str(port.dtype))
        states.append(
            State(name, names.index(name), outputs.index(output), sizes, dtype, settings.const.get(name, 0.0))
        )
    return states


def _sizes(port: Port, made: Port, batch: str) -> tuple[int | None, ...]:
    """Return the sizes of a state, as input or output tell them. One axis may be open: that of the batch."""
    pairs = list(zip(port.dims or (), made.dims or ()))
    sizes = [next((dim for dim in pair if isinstance(dim, int)), None) for pair in pairs]
    named = [n for n, pair in enumerate(pairs) if sizes[n] is None and batch in pair]
    free = [n for n, size in enumerate(sizes) if size is None]
    if len(free) > 1 or (named and named != free):
        what = f"the sizes of state {legible(port.name)!r} [{', '.join(map(str, port.dims or ()))}] are not known"
        raise OnnxgenError(what, help="fix them: generate the model with --input-shape")
    return tuple(sizes)


def _found(
    model: nn.Module, own: Signature, held: set[int], columns: set[str], settings: Settings, rate: int
) -> dict[str, float]:
    """Return the whole numbers [] that are the same for all data: the rate of sounds, and what the network ignores."""
    found, unread = {}, _unread(type(model))
    for place, port in enumerate(own.inputs):
        given = port.name in {*settings.const, *settings.inputs, *columns}
        if place in held or given or port.dims != () or "int" not in (port.dtype or ""):
            continue
        if rate and port.name.lower() in RATES:
            found[port.name] = float(rate)
        elif place in unread:
            found[port.name] = 0.0
    return found


def _unread(kind: type[nn.Module]) -> set[int]:
    """Return the places of the arguments that `forward` does not read."""
    with suppress(OSError, TypeError, SyntaxError):
        function = ast.parse(textwrap.dedent(inspect.getsource(kind.forward))).body[0]
        if isinstance(function, ast.FunctionDef):
            read = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
            return {n for n, one in enumerate(function.args.args[1:]) if one.arg not in read}
    return set()


def _axes(port: Port, batch: str, cut: Cut) -> tuple[int, int]:
    """Return the batch axis of an input, and the axis of a sample, the batch's in front, that is cut (0: none is)."""
    axis = batch_axis(port, batch)
    if port.dims is None:
        raise OnnxgenError(f"the sizes of input {legible(port.name)!r} are not known", help="wrap the model")
    if not cut.chunk:
        return axis, 0
    rest = [*port.dims[:axis], *port.dims[axis + 1 :]]
    wanted = cut.chunk + cut.context
    fits = [n for n, size in enumerate(rest) if size == wanted] or [n for n, s in enumerate(rest) if isinstance(s, str)]
    if not fits:
        what = f"input {legible(port.name)!r} takes [{', '.join(map(str, port.dims))}], but --chunk and --context make"
        raise OnnxgenError(f"{what} steps of {wanted}", help="together they are the size of an axis of the input")
    return axis, 1 + fits[0]


def _refuse_without_batch(own: Signature, states: Sequence[State], axes: Mapping[int, tuple[int, int]]) -> None:
    """Refuse states of one sample beside inputs of any number of samples."""
    for state in states:
        alone = None not in state.sizes
        for place, (axis, _) in axes.items():
            port = own.inputs[place]
            fixed = isinstance((port.dims or (0,))[axis], int)
            if alone != fixed or (alone and (port.dims or (0,))[axis] != 1):
                what = f"state {legible(state.name)!r} has no axis for the samples of input {legible(port.name)!r}"
                sizes = f" [{', '.join(map(str, port.dims or ()))}]"
                way = f"--const {legible(state.name)}=0 begins each sample anew; or generate it with --dynamic-batch"
                raise OnnxgenError(what + sizes, help=way)


def _tensors_of_lists(source: DataSource, own: Signature, settings: Settings) -> None:
    """Make tensors of columns of lists of numbers, each sample with its own length.

    Targets are filled up with what no loss counts, inputs with zeros behind a sample's end.

    Raises:
        OnnxgenError: samples differ in length, and what would fill a column up is not known.
    """
    asked = settings.target.values() if isinstance(settings.target, Mapping) else [settings.target]
    aims = {*asked, *(port.name for port in own.outputs), target_called([*source.fields, *source.unfit])}
    fed = {*settings.inputs.values(), *(port.name for port in own.inputs)}
    unfit = dict(source.unfit)
    for name, problem in source.unfit.items():
        columns = _numbers(source, name) if isinstance(problem, Lists) else {}
        rows = [row for of_part in columns.values() for row in of_part]
        if len({row.shape[1:] for row in rows}) != 1:
            continue
        most, whole = max(map(len, rows)), not any(row.is_floating_point() for row in rows)
        if any(len(row) < most for row in rows) and not (name in fed or (name in aims and whole)):
            what = f"column {legible(name)!r} has lists of several lengths"
            if name in aims:
                raise OnnxgenError(f"{what}, and only whole numbers can be left out at the end", help="fill them up")
            raise OnnxgenError(f"{what}: is it an input or a target?", help=f"--target {legible(name)}")
        for part, of_part in columns.items():
            filled = torch.full((len(of_part), most, *rows[0].shape[1:]), IGNORED_CLASS if name in aims - fed else 0)
            filled = filled if whole else filled.float()
            for place, row in zip(filled, of_part):
                place[: len(row)] = row
            source.parts[part] = in_columns(source.parts[part]).with_column(name, filled)
        del unfit[name]
    source.unfit = unfit


def _numbers(source: DataSource, name: str) -> dict[str, list[Tensor]]:
    """Return the lists of a column as tensors, by part; {} if they hold something else than numbers."""
    try:
        return {part: [torch.tensor(row) for row in source.raw[part][name]] for part in source.parts}
    except (TypeError, ValueError, RuntimeError, KeyError):  # it holds text, lists of several depths, or nothing
        return {}


def steps_of_each(over: Stepwise | None, samples: Samples, column: str) -> list[int] | None:
    """Return the number of steps of each sample, if sounds have lengths of their own; else None."""
    sounds = decoder_of(samples, column)
    if over is None or not isinstance(sounds, Sounds):
        return None
    return [over.cut.count(frames) for frames in sounds.frames]


def check_steps(model: nn.Module, data: Data, inputs: Sequence[str], targets: Sequence[str]) -> None:
    """Raise `OnnxgenError` if a sample has another number of targets than of steps."""
    over = stepwise(model)
    for part, samples in data.parts.items():
        counts = steps_of_each(over, samples, inputs[0])
        for column in targets if counts is not None else ():
            values = column_of(samples, column)
            if values is None or values.ndim < 2 or values.is_floating_point() or counts is None:
                continue
            there = (values.flatten(2).ne(IGNORED_CLASS).any(2) if values.ndim > 2 else values.ne(IGNORED_CLASS)).sum(1)
            wrong = [row for row, (has, count) in enumerate(zip(there.tolist(), counts)) if has != count]
            if wrong:
                row = wrong[0]
                what = f"column {legible(column)!r} of {part} has {there[row]} values in row {row}, but its sound has"
                more = f"; so have {counted(len(wrong) - 1, 'more row')}" if len(wrong) > 1 else ""
                way = f"give a value for each {over.cut.chunk if over else 0} samples, and one for the rest"
                raise OnnxgenError(f"{what} {counts[row]} steps{more}", help=way)
