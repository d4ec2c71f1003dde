"""Writes `model.py`, `run.json` and `held_back.csv`, and what a run's weights say about themselves.

The text of `model.py` is the module's own, with the number of classes that it was trained with.
`held_back.csv` lists the samples that the run held back.
"""

from __future__ import annotations

import ast
import base64
import csv
import io
import math
import os
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import lightning
import torch
from lightning.pytorch.utilities import rank_zero_only
from safetensors.torch import load
from torch import Tensor, nn

from onnxgen._version import __version__
from onnxgen.common.atomic import replacing
from onnxgen.common.built import as_json
from onnxgen.common.cache import file_sha256
from onnxgen.errors import OnnxgenError, one_line
from onnxgen.export.state import is_constant
from onnxgen.record.base import LENGTH, code_digest, fingerprint, is_digest, with_fingerprint
from onnxgen.record.sidecar import INDEX, files_there, metadata_of, sidecar_files, sidecar_of, space_of
from onnxgen.record.signature import KEY as SIGNATURE
from onnxgen.record.signature import Port, Purpose, Signature
from onnxgen.surgery.ports import signature_of
from onnxgen.training.checkpoint.identity import probe
from onnxgen.training.config import seen_from
from onnxgen.training.data.arrays import Prepared, decoder_of, row_of
from onnxgen.training.data.feeding import fed
from onnxgen.training.data.images import ToInput
from onnxgen.training.data.samples import Samples
from onnxgen.training.data.sounds import Sounds
from onnxgen.training.data.streaming.stream import stream_of
from onnxgen.training.finetune.adapters import KEY
from onnxgen.training.goals.distil import DistilGoal
from onnxgen.training.goals.goal import Goal
from onnxgen.training.launch import first_process, launched
from onnxgen.training.losses import Objective
from onnxgen.training.model import trial_batch
from onnxgen.training.prepare import Plan, trial
from onnxgen.training.report.facts import file_of
from onnxgen.training.report.metrics import need_packages
from onnxgen.training.runs.alike import MOST, SAMPLES, digests, files_of_each
from onnxgen.training.runs.contract import facts_of
from onnxgen.training.runs.folder import BEST, HELD_BACK, MODULE, RECORD, RUNS, TOKENIZER, numbered, slug
from onnxgen.training.runs.record import (
    READING,
    Image,
    Input,
    Part,
    Record,
    Target,
    code_of,
    noted,
    numbers_of_constructors,
    read_record,
    write_record,
)
from onnxgen.training.settings import Settings
from onnxgen.training.singly import alone_of, is_singly
from onnxgen.training.stepwise import states_of, steps_of, stepwise
from onnxgen.training.tasks import card_of
from onnxgen.verify.convert import to_torch
from onnxgen.weights.sidecar import read_tensors

ADAPTED = "its weights are an adapter of another module's"
_OUT = "ONNXGEN_OUT"  # tells the folder of a run to the processes that Lightning starts


@dataclass
class Kept:
    """What a run keeps beside its weights.

    Attributes:
        record: the contents of `run.json`.
        source: the text of `model.py`; "" if there is none.
        metadata: of the weights' files.
        constants: tensors of the module's own weights file that are in no state dict.
        tokenizer: the texts of `tokenizer.json` and of the files beside it that are kept; {} if there are none.
        shard_size: the bytes of the largest file of the weights, if a sharded run divides them as the module's own are;
            0: the weights are one file.
        samples: digests of the training samples.
        held_back: the list of the other samples.
    """

    record: Record
    source: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    constants: dict[str, Tensor] = field(default_factory=dict)
    tokenizer: Mapping[str, str] = field(default_factory=dict)
    shard_size: int = 0
    samples: bytes = b""
    held_back: str = ""

    @rank_zero_only
    def write(self, out: Path, result: Mapping[str, Any] | None = None) -> None:
        """Write `run.json`, with the result once there is one, and `model.py` before that. Raises `OSError`."""
        if result is not None:
            weights = {path.name: file_sha256(path) for path in files_there(out / BEST)}
            result = {name: _finite(value) for name, value in result.items()} | {"weights": weights}
            write_record(out, replace(self.record, result=result))
            return
        contents = {name: text.encode() for name, text in {MODULE: self.source, **self.tokenizer}.items()}
        # A file of the data may have a name that is not UTF-8.
        contents |= {SAMPLES: self.samples, HELD_BACK: self.held_back.encode("utf-8", "surrogateescape")}
        for name, content in contents.items():
            if content:
                with replacing([out]) as files, files.file(out / name) as file:
                    file.write(content)
        write_record(out, replace(self.record, result={}))


def _finite(value: Any) -> Any:
    """Return metrics without those that JSON has no number for; anything else as it is. `metrics.csv` has them all."""
    return {k: v for k, v in value.items() if math.isfinite(v)} if isinstance(value, Mapping) else value


def placed(plan: Plan) -> Plan:
    """Return the plan with the folder of its run. Without `out` it is made, with the next number below `runs/`.

    Raises:
        OnnxgenError: processes that a launcher started can't agree on a number.
    """
    settings = plan.settings
    need_packages(settings)  # before a folder is made
    if settings.out != RUNS:
        return _in_folder(plan, settings.out)
    if os.environ.get("LOCAL_RANK", "0") != "0" and _OUT in os.environ:  # Lightning started this process
        return _in_folder(plan, Path(os.environ[_OUT]))
    if settings.nodes > 1 or launched(Settings()) != Settings():
        raise OnnxgenError("several processes can't agree on the number of a run", help="name its folder with --out")
    source = Path(signature_of(plan.model).source).stem or type(plan.model).__name__.lower()
    out = numbered(slug(settings.name or source))
    if settings.devices * settings.nodes > 1:
        os.environ[_OUT] = str(out)
    return _in_folder(plan, out)


def _in_folder(plan: Plan, out: Path) -> Plan:
    """Return the plan with a folder, which gets a copy of the tokenizer."""
    settings = replace(plan.settings, out=out)
    if plan.data.text is not None and plan.data.text.tokenizing is not None:
        settings = replace(settings, tokenizer=out / TOKENIZER)
    return replace(plan, settings=settings)


def kept(plan: Plan, named: Mapping[str, str]) -> Kept:
    """Return what a run keeps. `named`: the `data` of the run, if it has a name."""
    outputs = _outputs(plan)
    own = signature_of(plan.model)
    ports = tuple(  # text and maps have no sizes that the record would tell
        _resized(port, tuple(output.shape)) if isinstance(output, Tensor) else port
        for port, output in zip(own.outputs, outputs)
    )
    signature = replace(own, outputs=ports) if own.outputs else own
    if plan.settings.replace_head is not None or ports != own.outputs:
        signature = replace(signature, purpose=_purpose(signature, plan.settings.task))
    record = _record(plan, named, signature)
    tokenizing = plan.data.text.tokenizing if plan.data.text is not None else None
    keep = Kept(record, tokenizer=tokenizing.kept() if tokenizing is not None else {})
    if first_process():
        keep.samples = digests(plan.train, plan.feeding.inputs, plan.data.text)
        keep.held_back = held_back(plan.data.parts)
    if plan.adapter is not None:
        keep.record = replace(record, module="", note=ADAPTED)
        keep.metadata = {KEY: as_json(plan.adapter), SIGNATURE: as_json(signature)}
        base = file_of(plan.model)  # a copy of its code tells it from other modules: see `is_same_code`
        keep.source = base.read_text(encoding="utf-8") if base is not None else ""
        return keep
    try:
        keep.source, metadata, keep.constants = _module(plan, list(zip(own.outputs, ports)))
    except OnnxgenError as error:
        keep.record = replace(record, module="", note=str(error))
        return keep
    if plan.settings.strategy == "fsdp":
        keep.shard_size = _shard_size(space_of(plan.model))
    keep.metadata = {**metadata, **facts_of(record), "format": "pt", SIGNATURE: as_json(signature)}
    keep.metadata["fingerprint"] = fingerprint(keep.source) or ""
    keep.record = replace(record, own_code=code_digest(keep.source))
    return keep


def _purpose(signature: Signature, task: str) -> Purpose | None:
    """Return what a network with another head is for: what it was for if that was trained, else nothing is known."""
    old, card = signature.purpose, card_of(task)
    kinds = [kind for kind in (old.kind, *old.candidates) if kind in card.kinds] if old is not None else []
    if old is None or not kinds or card.parts is not None:
        return None
    dims = {port.name: port.dims or () for port in signature.outputs}.get(str(old.facts.get("output")), ())
    axis = old.facts.get("axis")
    classes = dims[axis] if isinstance(axis, int) and axis < len(dims) else None
    facts = {name: classes if name == "classes" else value for name, value in old.facts.items()}
    return Purpose(kinds[0], (f"it was trained with --task {task}",), facts=facts)


def _outputs(plan: Plan) -> list[Any]:
    """Return the outputs for some samples; of a network that takes one, for one, without a batch that it lacks.

    Of a network that carries a state they are those of a step.
    """
    batch = trial_batch(plan.model, plan.train, plan.settings.seed)
    if (over := stepwise(plan.model)) is not None:
        device = next(plan.model.parameters()).device
        return over.first_outputs(plan.feeding.arguments(batch, device))
    if not is_singly(plan.model):
        return [*trial(plan.model, batch, plan.feeding)]
    outputs = trial(plan.model, {name: column[:1] for name, column in batch.items()}, plan.feeding)
    alone = alone_of(plan.model)[1]
    return [y[0] if n in alone else y for n, y in enumerate(outputs)]


def _module(plan: Plan, ports: list[tuple[Port, Port]]) -> tuple[str, Mapping[str, str], dict[str, Tensor]]:
    """Return the text of `model.py`, the metadata of its weights, and their constants.

    Raises:
        OnnxgenError: the model is of no single file that can be copied.
    """
    space = sys.modules.get(type(plan.model).__module__)
    path = Path(str(getattr(space, "__file__", None)))
    if space is None or not hasattr(space, "FINGERPRINT") or not isinstance(plan.model, getattr(space, "Model", ())):
        raise OnnxgenError(f"{type(plan.model).__name__} is not the Model of a file that onnxgen generated")
    try:
        text = path.read_text(encoding="utf-8")
        divided = plan.settings.strategy == "fsdp" and _shard_size(vars(space)) > 0
        source = source_of(text, space, plan.model, ports, divided=divided)
    except OnnxgenError:
        raise
    except Exception as error:  # the module's code may raise anything
        raise OnnxgenError(f"{path} can't be copied: {one_line(error)}") from error
    return source, metadata_of(vars(space)), _constants(vars(space), plan.model.state_dict())


def _shard_size(space: Mapping[str, Any]) -> int:
    """Return the bytes of the largest file of a module's weights; 0 if they are one file, or in the module."""
    sidecar = sidecar_of(space)
    sizes = [] if sidecar is None else [file.stat().st_size for file in sidecar_files(sidecar)]
    return max(sizes) if len(sizes) > 1 else 0


def _constants(space: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a module's own weights, in files or in the module, that are in no state dict."""
    sidecar, text = sidecar_of(space), space.get("WEIGHTS")
    stored: Mapping[str, Any] = read_tensors(sidecar) if sidecar is not None else {}
    if isinstance(text, str):
        stored = {key: tensor.numpy() for key, tensor in load(base64.b85decode(text)).items()}
    return {key: to_torch(array) for key, array in stored.items() if key not in state and is_constant(key, state)}


def _resized(port: Port, shape: tuple[int, ...]) -> Port:
    """Return an output with the sizes that it has now."""
    if port.dims is None or len(port.dims) != len(shape):
        return port
    return replace(port, dims=tuple(size if isinstance(dim, int) else dim for dim, size in zip(port.dims, shape)))


def _record(plan: Plan, named: Mapping[str, str], signature: Signature) -> Record:
    settings, out, train, origin = plan.settings, plan.settings.out, plan.train, _origin(plan)
    teacher = next((goal.teacher for goal in plan.objectives if isinstance(goal, DistilGoal)), None)
    arranged = plan.feeding.arrangement
    axes = arranged.axes if arranged is not None else (0,) * len(plan.feeding.inputs)
    ports = zip(fed(plan.model).inputs, plan.feeding.inputs, axes)
    return Record(
        name=out.name,
        model=type(plan.model).__name__,
        module=MODULE,
        origin="" if origin is None else seen_from("model", str(origin), out),
        code="" if origin is None else code_of(origin) or "",
        onnx=signature.source,
        sha256=signature.sha256,
        versions={"onnxgen": __version__, "torch": torch.__version__, "lightning": lightning.__version__},
        data=seen_from("data", named["data"], out) if "data" in named else "",
        parts={name: part(samples) for name, samples in plan.data.parts.items()},
        inputs=tuple(_input(port.name, column, plan, axis) for port, column, axis in ports),
        targets=_targets(plan, signature, train),
        states=states_of(plan.model),
        teacher=str(seen_from("teacher", settings.teacher, out) or ""),
        teacher_sha256=teacher.network.sha256 if teacher is not None else "",
        monitor=plan.monitor,
        settings=noted(settings) | ({"tokenizer": TOKENIZER} if settings.tokenizer == out / TOKENIZER else {}),
    )


def _origin(plan: Plan) -> Path | None:
    """Return the module that is trained; of a run that goes on from another one, the module of that."""
    file = file_of(plan.model)
    if plan.adapter is None and file is not None and (file.parent / RECORD).is_file():
        return read_record(file.parent).origin_for(file.parent)
    return file


def part(samples: Samples) -> Part:
    """Describe a part of the data as it is stored, before it is made to fit the model."""
    return Part(len(samples), probe(samples.samples if isinstance(samples, Prepared) else samples))


def _input(name: str, column: str, plan: Plan, batch: int) -> Input:
    samples, joined, image = plan.train, plan.data.joined.get(column, ()), None
    field = samples.fields[column]
    step = samples.steps[column] if isinstance(samples, Prepared) else None
    if isinstance(step, ToInput):
        mean, std = step.scale or (None, None)
        frame, placing = step.frame, step.placing
        beside = placing.pixel(frame.channels) if placing.moves else None
        at, order = placing.how if placing.how in ("corner", "line") else "middle", "BGR" if step.reversed else "RGB"
        sizes = frame.channels, frame.height, frame.width
        image = Image(*sizes, frame.axes, mean, std, step.white, beside, at, order, step.width_step)
    rate = plan.data.rate if isinstance(decoder_of(samples, column), Sounds) else 0
    text, role, pad = plan.data.text, "", 0
    if text is not None and text.tokenizing is not None:
        role, pad = text.roles.get(name, ""), text.tokenizing.pad
    dtype = str(field.dtype).removeprefix("torch.")
    alone = name in alone_of(plan.model)[0]
    facts = (name, column, dtype, tuple(field.shape), image, tuple(joined), rate, role, pad, batch, alone)
    return Input(*facts, steps_of(plan.model, name))


def _targets(plan: Plan, signature: Signature, train: Samples) -> tuple[Target, ...]:
    """Return the outputs that were trained: towards a target of the data, else towards the teacher."""
    own = [_target(goal, signature, train, plan) for goal in plan.objectives]
    targets = [target for target in own if target is not None]
    taught = [pair for goal in plan.objectives if isinstance(goal, DistilGoal) for pair in goal.pairs]
    for pair in taught:
        if pair.output not in {target.output for target in targets}:
            names = plan.settings.classes if pair.count else ()
            facts = (pair.output, pair.name, "", pair.as_loss, pair.student, pair.count, pair.axis, names)
            targets.append(Target(*facts))
    alone = alone_of(plan.model)[1]
    return tuple(replace(target, alone=target.output in alone) for target in targets)


def _target(goal: Goal, signature: Signature, train: Samples, plan: Plan) -> Target | None:
    if not isinstance(goal, Objective):
        return goal.target()
    ports, field = signature.outputs, train.fields[goal.column]
    name = ports[goal.output].name if goal.output < len(ports) else f"output{goal.output}"
    names = (plan.settings.classes or field.classes) if goal.classes else ()
    return Target(goal.output, name, goal.column, goal.loss, goal.ending.kind, goal.classes, goal.axis, names)


def held_back(parts: Mapping[str, Samples]) -> str:
    """Return a table of the samples of the validation and test parts: their files, else their rows in the data, from 0.

    It is "" without such parts, and of streamed or too many samples.
    """
    held = {part: samples for part, samples in parts.items() if part != "train"}
    if not held or any(stream_of(samples) is not None for samples in held.values()):
        return ""
    if sum(map(len, held.values())) > MOST:
        return ""
    text = io.StringIO()
    write = csv.writer(text, lineterminator="\n").writerow
    write(("part", "sample"))
    for part, samples in held.items():
        files = files_of_each(samples)
        named = (" + ".join(path.as_posix() for path in of_sample) for of_sample in files or ())
        rows = (str(row_of(samples, index)) for index in range(len(samples) if files is None else 0))
        for name in chain(named, rows):
            write((part, name))
    return text.getvalue()


Ports: TypeAlias = Sequence[tuple[Port, Port]]
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
Place: TypeAlias = tuple[int, int, int]  # line from 0, and the first and last byte of a number in it
MAX_TRIED = 500  # numbers in a module that may be the number of classes
_WEIGHTS = f'WEIGHTS = Path(__file__).with_name("{BEST}")'
_EMBEDDED = re.compile(r'^WEIGHTS = """\n.*?^"""\.replace\("\\n", ""\)$', re.MULTILINE | re.DOTALL)
_BESIDE = "generate the module without --embed and --shard-size"


def shapes_of(model: nn.Module) -> Shapes:
    """Return the shape of each tensor of a model's state dict."""
    return {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}


def source_of(text: str, space: ModuleType, model: nn.Module, ports: Ports, *, divided: bool = False) -> str:
    """Return the text of a module whose `Model()` has the shapes of a trained model, and whose weights are the best.

    Args:
        text: of the module, as it is or as somebody edited it.
        space: the module itself.
        model: the trained model: an instance of its class, perhaps with another number of classes.
        ports: the model's outputs, as the ONNX file has them and as the trained model has them.
        divided: the weights of the run are several files, as the module's own.

    Raises:
        OnnxgenError: the model was changed in memory in another way, or the text can't be read.
    """
    if any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(ast.parse(text))):
        raise OnnxgenError("the module imports modules beside it, so it can't be copied alone")
    unedited = is_digest(str(getattr(space, "FINGERPRINT", "")), text)
    wanted, has = shapes_of(model), _shapes_in(text, space)
    if has != wanted:
        text = _renumbered(text, space, has, wanted, ports)
    text = _with_weights(text, divided)
    if unedited:  # it is again what onnxgen would call its own
        text = with_fingerprint(text, code_digest(text) + str(space.FINGERPRINT)[LENGTH:])
    return text


def _with_weights(text: str, divided: bool) -> str:
    """Let the module read the weights of the run: one file, also if its own are in itself or in several files.

    `divided`: the weights of the run are several files, too.

    Raises:
        OnnxgenError: somebody changed how it reads its own.
    """
    line = _EMBEDDED.search(text) or re.search(r"^WEIGHTS = Path\(.*$", text, re.MULTILINE)
    if line is None:
        return text
    if divided:
        text = text.replace(line[0], _WEIGHTS.replace(BEST, BEST + INDEX), 1)
        return re.sub(r"^(Weights +)[^,\n]+", rf"\g<1>{BEST}{INDEX}", text, count=1, flags=re.MULTILINE)
    text = text.replace(line[0], _WEIGHTS, 1)
    for old, new in READING:
        text = text.replace(old, new)
    if not re.search(r"\bbase64\.", text):
        text = text.replace("import base64\n", "", 1)
    if re.search(r"b85decode\(WEIGHTS|WEIGHTS\.read_text", text):
        raise OnnxgenError("its own code reads its weights, which in a run are one file", help=_BESIDE)
    return re.sub(r"^(Weights +)[^,\n]+", rf"\g<1>{BEST}", text, count=1, flags=re.MULTILINE)


def _shapes_in(text: str, space: ModuleType) -> Shapes:
    """Return the shapes of the model that a text describes. Raises whatever the text raises."""
    names: dict[str, Any] = {"__name__": space.__name__, "__file__": space.__file__, "__package__": space.__package__}
    exec(compile(text, str(space.__file__), "exec", dont_inherit=True), names)
    with torch.device("meta"):
        return shapes_of(names["Model"]())


def _renumbered(text: str, space: ModuleType, has: Shapes, wanted: Shapes, ports: Ports) -> str:
    """Change the numbers in the constructors that give the model its number of classes.

    Each number that may be it is changed alone. It is one of them if only tensors change that are to change.
    """
    reason = "the trained model was changed in memory, not only its number of classes"
    pairs = _changed_sizes(has, wanted)
    if not pairs:
        raise OnnxgenError(reason)

    def brings_nearer(place: Place, new: int) -> bool:
        try:
            shapes = _shapes_in(_replaced(text, {place: new}), space)
        except Exception:  # the number is that of other features too
            return False
        changed = {key for key in has if shapes.get(key) != has[key]}
        return bool(changed) and shapes.keys() == has.keys() and all(shapes[key] == wanted[key] for key in changed)

    places = ((place, new) for old, new in pairs for place in list(_numbers(text, old))[:MAX_TRIED])
    chosen = {place: new for place, new in places if brings_nearer(place, new)}
    renumbered = _replaced(text, chosen)
    if not chosen or _shapes_in(renumbered, space) != wanted:
        raise OnnxgenError(reason)
    statistics = ("running_mean", "running_var")
    more = sum(prod(wanted[key]) - prod(has[key]) for key in has if not key.endswith(statistics))
    return _described(renumbered, {old for old, _ in pairs}, more, ports)


def _changed_sizes(has: Shapes, wanted: Shapes) -> set[tuple[int, int]]:
    """Return each size that another one is to replace, with that; none if the two are not of the same tensors."""
    if has.keys() != wanted.keys():
        return set()
    pairs = {pair for key in has if len(has[key]) == len(wanted[key]) for pair in zip(has[key], wanted[key])}
    return {(old, new) for old, new in pairs if old != new}


def _numbers(text: str, value: int) -> Iterator[Place]:
    """Yield the places where a number stands in the constructors of the classes."""
    for node in numbers_of_constructors(ast.parse(text)):
        if node.value == value:
            assert node.end_col_offset is not None
            yield node.lineno - 1, node.col_offset, node.end_col_offset


def _replaced(text: str, numbers: Mapping[Place, int]) -> str:
    lines = text.encode().split(b"\n")
    for (line, start, end), new in sorted(numbers.items(), reverse=True):
        lines[line] = lines[line][:start] + str(new).encode() + lines[line][end:]
    return b"\n".join(lines).decode()


def _described(text: str, old: set[int], more: int, ports: Ports) -> str:
    """Correct the module's docstring. A shape in a comment that may be wrong now is removed.

    Args:
        old: the sizes that changed, as they were.
        more: how many parameters the model has more than before.
        ports: the outputs before and after.
    """
    lines = text.split("\n")
    dims = re.compile(rf"(?<=[\[ ])({'|'.join(map(str, old))})(?=[,\]])")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and re.fullmatch(r"# \[.*\]", token.string) and dims.search(token.string):
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    end = next((n for n, line in enumerate(lines) if line.startswith("Weights ")), 0)
    start = next((n for n, line in enumerate(lines[:end]) if line.startswith("Outputs ")), end)
    for n in range(start, end):
        for before, after in ports:
            if f" {before.name} " in lines[n] and before.dims and after.dims:
                lines[n] = lines[n].replace(_row(before.dims), _row(after.dims))
    if count := re.search(r"([\d,]+) parameter", lines[end]):
        lines[end] = lines[end].replace(count[1], f"{int(count[1].replace(',', '')) + more:,}")
    return "\n".join(lines)


def _row(dims: tuple[int | str, ...]) -> str:
    return f"[{', '.join(map(str, dims))}]"
