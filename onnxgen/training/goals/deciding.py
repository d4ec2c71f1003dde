"""Decides what `--task auto` means, by what the network is for and by what the data has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from onnxgen.errors import OnnxgenError
from onnxgen.record.module import shapes_of, space_of
from onnxgen.record.purpose import Purpose
from onnxgen.record.signature import Signature
from onnxgen.surgery.ports import signature_of
from onnxgen.training.data.fed import fed
from onnxgen.training.data.images import axes_of
from onnxgen.training.data.samples import Field
from onnxgen.training.data.source import DataSource, target_called
from onnxgen.training.data.stacking import aims_of
from onnxgen.training.data.text.choosing import apart, text_columns
from onnxgen.training.data.text.roles import DECODER, IDS, roles_of
from onnxgen.training.data.tuples import member_columns
from onnxgen.training.goals.choice import TASKS
from onnxgen.training.goals.names import LOSS_SETTINGS, OUTPUTS
from onnxgen.training.runs.record import has_code
from onnxgen.training.settings import Settings

OF_SINGLE_OUTPUTS = (*LOSS_SETTINGS, "mixup", "cutmix", "sampler")  # settings that a loss of each output reads
_EACH = "for a loss of each output, --task outputs"
_BOXES = "name a folder with labels of YOLO, COCO or Pascal VOC; for a loss of each output, --task outputs"


@dataclass(frozen=True)
class Given:
    """The data and the settings of a run, before columns are matched."""

    source: DataSource
    ports: Signature
    settings: Settings

    @property
    def fields(self) -> Mapping[str, Field]:
        return next(iter(self.source.parts.values())).fields

    def aim(self, *usual: str) -> str:
        """Return the column that is the target: the one that the settings name, or that has a `usual` name; or ""."""
        said = self.settings.target
        said = next(iter(said.values()), "") if isinstance(said, Mapping) else said
        named = next((column for column in usual if column in self.fields), "")
        found = said or self.source.target or named or target_called(self.fields)
        return found if found in self.fields else ""


def _texts(given: Given, purpose: Purpose) -> str:
    """Texts for `ctc`; names of folders are none."""
    name = given.aim(*TASKS["ctc"].columns)
    if not name or not given.source.raw:
        return ""
    whole = len(given.fields[name].shape) == 1 and not given.fields[name].dtype.is_floating_point
    return f"column {name!r} has a text for each sample" if name in given.source.text or whole else ""


def _keypoints(given: Given, purpose: Purpose) -> str:
    name = given.aim(*TASKS["keypoints"].columns)
    shape = given.fields[name].shape if name else ()
    return f"column {name!r} has {shape[0]} places" if len(shape) == 2 and shape[1] in (2, 3) else ""


def _vectors(given: Given, purpose: Purpose) -> str:
    """Pairs, or classes, for `embedding`."""
    members = member_columns(given.source, given.ports, given.settings) or _pairs_of_texts(given)
    return f"columns {' and '.join(members)} belong together" if members else _classes(given, purpose)


def _pairs_of_texts(given: Given) -> tuple[str, ...]:
    """Return the columns of text that make pairs: anchors and positives, or two with a number beside them."""
    columns = list(given.fields)
    ids = roles_of(given.ports, columns).get(IDS)
    aims = aims_of(given.source, given.ports, given.settings, columns)
    settings = replace(given.settings, task="embedding")
    try:
        found = apart(given.source, ids, settings, True, aims) if ids is not None else None
    except OnnxgenError:  # two texts, and nothing says how they belong together
        found = None
    return found.texts if found is not None else ()


def _classes(given: Given, purpose: Purpose) -> str:
    name, output = given.aim(), purpose.facts.get("output")
    if not name or given.fields[name].shape or given.fields[name].dtype.is_floating_point:
        return ""
    dims = next((port.dims for port in given.ports.outputs if port.name == output), None)
    vectors = purpose.kind != "embedding" or dims is None or len(dims) == 2
    return f"column {name!r} has a class for each sample" if vectors else ""


def _plain(given: Given, purpose: Purpose) -> str:
    texts, columns = text_columns(given.source), list(given.fields)
    if not texts or not roles_of(given.ports, columns) or aims_of(given.source, given.ports, given.settings, columns):
        return ""
    return "" if purpose.facts.get("axis", 2) != 2 else "the data is text without a target"


def _two_texts(given: Given, purpose: Purpose) -> str:
    several = len(text_columns(given.source)) > 1 and DECODER in roles_of(given.ports, list(given.fields))
    return "the data has two columns of text" if several else ""


def _images(given: Given, purpose: Purpose) -> str:
    """Images, or numbers of each pixel. If it is unsure what the network is for, bytes [H, W] may be classes."""
    name = given.aim(*TASKS["image-to-image"].columns)
    field = given.fields[name] if name else None
    if field is None or axes_of(field.shape) is None:
        return ""
    floats = field.dtype.is_floating_point
    fits = floats or (field.dtype == torch.uint8 and (bool(purpose.kind) or len(field.shape) == 3))
    return f"column {name!r} has {'numbers of each pixel' if floats else 'an image for each sample'}" if fits else ""


@dataclass(frozen=True)
class Suits:
    """What a task needs, for a kind of network.

    Attributes:
        task: its name.
        has: returns what the data has for it, as a sentence; "" if it lacks that.
        needs: what that is.
        alone: the names of a column that can't be meant for a loss of each output; `True` for any column.
        new_head: True if the network is for the same also with a head of another number of classes.
    """

    task: str
    has: Callable[[Given, Purpose], str]
    needs: str
    alone: tuple[str, ...] | bool = ()
    new_head: bool = False

    def is_certain(self, given: Given) -> bool:
        """Return True if the data can't be meant for a loss of each output."""
        return self.alone if isinstance(self.alone, bool) else any(name in given.fields for name in self.alone)


_CAUSAL = Suits("language-model", _plain, "text alone, without a target")
_SUITS = {  # by kind (see `purpose.KINDS`); other kinds are trained with a loss of each output
    "ctc": Suits("ctc", _texts, "text for each sample", alone=True, new_head=True),
    "image-to-image": Suits("image-to-image", _images, "image as a target"),
    "keypoints": Suits("keypoints", _keypoints, "places for each sample", alone=TASKS["keypoints"].columns),
    "embedding": Suits("embedding", _vectors, "class for each sample"),
    "language-model": _CAUSAL,
    "seq2seq": Suits("seq2seq", _two_texts, "second column of text"),
}


def decide(source: DataSource, model: nn.Module, settings: Settings) -> str:
    """Return the task of `--task auto`: that of the data if it is certain, else the one that the network is for, if the
    data has what it reads; else "outputs". A note of the source says why, or what else was possible.

    Raises:
        OnnxgenError: the network finds boxes, and the data has classes instead.
    """
    purpose = recorded_purpose(model)
    if source.task or purpose is None:
        return source.task or OUTPUTS
    given = Given(source, fed(model), settings)
    if not purpose.kind:
        return _of_candidates(given, purpose)
    suits = _suiting(purpose)
    if settings.replace_head is not None and not (suits is not None and suits.new_head):
        return OUTPUTS
    if suits is None:
        said = isinstance(settings.target, Mapping) or _speaks_against(settings, ())
        if purpose.kind == "detection" and not said and _classes(given, purpose):
            what = f"the network finds boxes ({purpose.evidence[0]}), but {_classes(given, purpose)}, and no boxes"
            raise OnnxgenError(what, help=_BOXES)
        return OUTPUTS
    has, against = suits.has(given, purpose), _speaks_against(settings, TASKS[suits.task].losses)
    if has and not against:
        source.notes.append(f"trained with --task {suits.task}: {purpose.evidence[0]}, and {has}; {_EACH}")
        return suits.task
    why = f"{against} is for a loss of each output" if against else f"the data has no {suits.needs}"
    what = f"the network seems to be for {purpose.kind} ({purpose.evidence[0]}), but {why}"
    source.notes.append(f"{what}: trained with a loss of each output, unless --task names another way")
    return OUTPUTS


def _of_candidates(given: Given, purpose: Purpose) -> str:
    """Return the task for a network whose purpose is unsure. If the data leaves several, a note names them."""
    found = {kind: _SUITS[kind] for kind in purpose.candidates if kind in _SUITS}
    found = {kind: suits for kind, suits in found.items() if suits.new_head or given.settings.replace_head is None}
    found = {kind: suits for kind, suits in found.items() if suits.has(given, purpose)}
    found = {k: s for k, s in found.items() if not _speaks_against(given.settings, TASKS[s.task].losses)}
    if "embedding" in found and _has_a_score_of_each_class(given):
        del found["embedding"]
    if "ctc" in found and given.aim(*TASKS["ctc"].columns) in TASKS["ctc"].columns:
        found = {"ctc": found["ctc"]}  # classes, as for vectors, are not called texts
    tasks = list(dict.fromkeys(suits.task for suits in found.values()))
    if not tasks:
        return OUTPUTS
    if len(tasks) == 1 and all(suits.is_certain(given) for suits in found.values()):
        has = next(iter(found.values())).has(given, purpose)
        said = f"the network may be for {' or '.join(purpose.candidates)}, and {has}"
        given.source.notes.append(f"trained with --task {tasks[0]}: {said}; {_EACH}")
        return tasks[0]
    maybe = f"the network may be for {' or '.join(purpose.candidates)}: trained with a loss of each output"
    given.source.notes.append(f"{maybe}; the data also suits --task {' or '.join(tasks)}")
    return OUTPUTS


def _suiting(purpose: Purpose) -> Suits | None:
    if purpose.kind == "language-model" and not purpose.facts.get("causal"):
        return Suits("masked-language-model", _plain, _CAUSAL.needs)
    return _SUITS.get(purpose.kind)


def _has_a_score_of_each_class(given: Given) -> bool:
    name, dims = given.aim(), given.ports.outputs[0].dims if len(given.ports.outputs) == 1 else None
    return bool(name and dims) and len(given.fields[name].classes) == dims[-1]  # type: ignore[index]


def _speaks_against(settings: Settings, losses: tuple[str, ...]) -> str:
    """Return the option that only a loss of each output reads, or another task's loss; "" if there is none."""
    default = Settings()
    for name in OF_SINGLE_OUTPUTS:
        value = getattr(settings, name)
        if name == "loss" and isinstance(value, str) and value.lower() in losses:
            continue
        if value != getattr(default, name):
            return f"--{name.replace('_', '-')}"
    return ""


def recorded_purpose(model: nn.Module) -> Purpose | None:
    """Return what the sidecar of a generated module says about its network.

    None if it says nothing, or if the module was edited or its layers have other sizes: then it may be for something
    else by now.
    """
    space, purpose = space_of(model), signature_of(model).purpose
    if purpose is None or (file := space.get("__file__")) is None:
        return purpose
    if not has_code(Path(file), str(space.get("FINGERPRINT", ""))):
        return None
    known, own = shapes_of(space), {key: tuple(tensor.shape) for key, tensor in model.named_parameters()}
    return purpose if all(known.get(key, shape) == shape for key, shape in own.items()) else None
