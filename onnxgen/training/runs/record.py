"""`run.json`: what a run was trained on, and how its model is to be fed. Reading it imports no torch.

docs/RUNS.md has the schema. `Image` is what it says of an input of images. A run may run the code of its own `model.py`
alone (`need_same_code`). All other code is named by the user, never by a record alone (`refuse_code`).
"""

from __future__ import annotations

import ast
import copy
import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

from onnxgen.common.atomic import replacing
from onnxgen.common.built import MOST, Between, Metric, OneOf, built, json_object
from onnxgen.common.cache import file_sha256
from onnxgen.common.paths import is_same_place
from onnxgen.errors import OnnxgenError
from onnxgen.record.base import FINGERPRINT, code_digest, is_digest, tree_digest
from onnxgen.training.byname import FUNCTION
from onnxgen.training.config import TYPES, seen_here, typed
from onnxgen.training.runs.folder import MODULE, RECORD, TOKENIZER, best_of, no_run
from onnxgen.training.settings import DEVICES, SETTINGS, Settings
from onnxgen.training.tasks import known

FORMAT = 1  # of the file; a newer one is refused
# settings that only the run itself could use
_PLACES = ("out", "name", "weights", "resume", "restartable", "replace_head", "keep")
UNDECIDED: Mapping[str, Any] = MappingProxyType({"task": "outputs"})  # of a run that names no task
DTYPES: tuple[str, ...] = ("float32", "float64", "float16", "bfloat16", "bool", "complex64", "complex128")
DTYPES += ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
BOXES = "boxes"  # the loss of a `Target` whose answers are boxes
VECTORS = "vectors"  # that of one whose vectors of tokens become vectors of texts
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_Size: TypeAlias = Annotated[int, Between(0, 1 << 40)]


ORDERS = ("RGB", "BGR")  # of channels


@dataclass(frozen=True)
class Image:
    """How an image becomes an input: convert to these channels, fit (bilinear, antialiased), scale, normalise.

    Attributes:
        channels: 1 is gray, 3 is RGB, 4 is RGBA.
        height, width: in pixels.
        axes: of one sample: "CHW", "HWC", "HW", or "flat" (the elements of CHW in one axis).
        mean, std: for each channel, of values from 0 to 1. None: values are fed as they are, from 0 to `white`.
        white: the value of white in the data of the run.
        beside: the bytes of a pixel beside an image that keeps its proportions; None: images are stretched.
        at: where such an image lies: "middle", "corner" or "line" (see `Placing`).
        order: of the channels as they are fed: "RGB", or "BGR" as OpenCV has them. `mean` and `std` are in this order.
        width_step: a line that is longer than `width` gets the least multiple of it that it needs; 0: it is squeezed.
    """

    channels: Annotated[int, OneOf((1, 3, 4))]
    height: Annotated[int, Between(1, 1 << 20)]
    width: Annotated[int, Between(1, 1 << 20)]
    axes: Annotated[str, OneOf(("CHW", "HWC", "HW", "flat"))]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    white: Annotated[float, Between(1e-9, 1e9)]
    beside: tuple[Annotated[int, Between(0, 255)], ...] | None = None
    at: Annotated[str, OneOf(("middle", "corner", "line"))] = "middle"
    order: Annotated[str, OneOf(ORDERS)] = "RGB"
    width_step: Annotated[int, Between(0, 1 << 20)] = 0

    def check(self) -> None:
        """Raise `ValueError` if the values do not go together."""
        if (self.mean is None) != (self.std is None):
            raise ValueError("its image has a mean without a deviation, or the other way round")
        for values in (self.mean, self.std, self.beside):
            if values is not None and len(values) != self.channels:
                what = f"{len(values)} means, deviations or bytes of a pixel"
                raise ValueError(f"its image has {self.channels} channels, and {what}")
        if not all(deviation > 0 for deviation in self.std or ()):
            raise ValueError("its image has a deviation that is not positive")


@dataclass(frozen=True)
class Steps:
    """How a sample becomes the steps of a network that carries a state.

    Attributes:
        axis: of a sample, along which it is cut.
        chunk: the numbers of a step that are new; 0: each index of the axis is a step, which lacks this axis.
        context: how many numbers before them a step begins with; before the first step they are zeros.
    """

    axis: Annotated[int, Between(0, 64)] = 0
    chunk: _Size = 0
    context: _Size = 0

    def shape(self, sample: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a step of a sample of this shape."""
        one = (self.chunk + self.context,) if self.chunk else ()
        return (*sample[: self.axis], *one, *sample[self.axis + 1 :])


@dataclass(frozen=True)
class Carried:
    """An input that holds a state, which begins as `value` and goes on from an output.

    Attributes:
        shape, batch, alone: of the state of one sample, as of `Input`.
    """

    name: str
    output: str
    dtype: Annotated[str, OneOf(DTYPES)]
    shape: tuple[_Size, ...]
    batch: Annotated[int, Between(0, 64)] = 0
    alone: bool = False
    value: float = 0.0


@dataclass(frozen=True)
class Input:
    """An input of the model: the data's column that fed it, torch's dtype, and the shape of one sample.

    Attributes:
        columns: those of a table that were joined to that column, in their order; () if none were.
        rate: of a sound, in Hz; 0 for all else.
        role: of text, what the input is for (`data/text/roles.py`); "" for all else.
        pad: of text, the token that fills it up.
        batch: the input's batch axis.
        alone: True if the input is one sample, without that axis.
        steps: how a sample is cut, if the network carries a state; else None.
    """

    name: str
    column: str
    dtype: Annotated[str, OneOf(DTYPES)]
    shape: tuple[_Size, ...]
    image: Image | None = None
    columns: tuple[str, ...] = ()
    rate: _Size = 0
    role: str = ""
    pad: _Size = 0
    batch: Annotated[int, Between(0, 64)] = 0
    alone: bool = False
    steps: Steps | None = None


@dataclass(frozen=True)
class Target:
    """A trained output.

    Attributes:
        output: its index, and `name` its name.
        column: the data's column with the target.
        loss: torch's name of the loss.
        activation: what the model ends in: "softmax", "log_softmax", "sigmoid" or "".
        classes: number of classes; 0 if this is not a classifier. With 2 classes the output may be one number.
        axis: the output's axis along which the classes lie.
        names: of the classes, in order; there may be fewer than classes, or none. Of a text its characters, without
            the blank.
        batch: the output's batch axis.
        alone: True if the output is that of one sample; `axis` and `batch` are those of outputs that are stacked.
        blank: the class that stands for no character, of a text (loss "ctc_loss").
        scale: of an image (loss "image"), mean and deviation as in `Settings.normalize`: the output is the image, of
            values from 0 to 1, minus the mean, by the deviation.
        order: of the colours of an image, as of `Image`.
        head: of boxes (loss "boxes"), `places` of the raw maps among the outputs, and what they mean (`tail`). Of
            vectors of tokens (loss "vectors"), the `pooling` that makes vectors of texts, and the input `mask`.
    """

    output: Annotated[int, Between(0, 1 << 16)]
    name: str
    column: str
    loss: str
    activation: Annotated[str, OneOf(("", "softmax", "log_softmax", "sigmoid"))]
    classes: _Size
    axis: Annotated[int, Between(0, 64)]
    names: tuple[str, ...]
    batch: Annotated[int, Between(0, 64)] = 0
    blank: _Size = 0
    scale: str = ""
    head: Mapping[str, Any] = field(default_factory=dict)
    order: Annotated[str, OneOf(ORDERS)] = "RGB"
    alone: bool = False

    def check(self) -> None:
        """Raise `ValueError` if the values do not go together."""
        labels = self.loss.startswith("binary")  # there are two classes of each of them
        if self.classes and len(self.names) > max(self.classes, 2) and not labels:
            raise ValueError(f"its target {self.name!r} has {self.classes} classes and {len(self.names)} names")
        if self.loss == "ctc_loss" and self.classes and not self.blank < self.classes <= len(self.names) + 1:
            raise ValueError(f"its target {self.name!r} has {self.classes} classes, and another number of characters")
        if self.loss == BOXES and not isinstance(self.head.get("places"), list):
            raise ValueError(f"its target {self.name!r} has no places of raw maps")

    @property
    def all_names(self) -> tuple[str, ...]:
        """A name for each class. One that the data did not name has its number."""
        rest = (str(n) if str(n) not in self.names else f"class {n}" for n in range(len(self.names), self.classes))
        return (*self.names, *rest)


@dataclass(frozen=True)
class Part:
    """A part of the data: its number of samples, and a hash of its columns and of some samples."""

    samples: Annotated[int, Between(0, MOST)]
    digest: str


@dataclass(frozen=True)
class Ended:
    """The `result` of a run: why it ended, its seconds and epochs, and metrics of the best epoch and of other parts.

    `weights`: the SHA-256 of the files of the best weights, by name.
    """

    stopped: str = ""
    seconds: Annotated[float, Between(0, 1e12)] = 0.0
    epochs: _Size = 0
    best_epoch: Metric | None = None
    best: Mapping[str, Metric] = field(default_factory=lambda: _NOTHING)
    test: Mapping[str, Metric] | None = None
    before: Mapping[str, Metric] = field(default_factory=lambda: _NOTHING)
    weights: Mapping[str, str] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True)
class Record:
    """The contents of `run.json`.

    Attributes:
        name: of the run's folder.
        model: its class.
        module: the file of its code in the run's folder; "" if the model is of no single file, and `note` says why.
        origin: the module that was trained, seen from the run's folder; "" if it was of no file.
        code: a digest of what that module did then (see `code_digest`).
        own_code: that of the run's own module; "" if there is none.
        onnx, sha256: name and SHA-256 of the ONNX file that the module was generated from; may be "".
        versions: of onnxgen, torch and lightning.
        data: the data as it was named, seen from the run's folder; "" if it was a Python object.
        parts: of the data, as they were split; the seed and the shares are in `settings`.
        inputs, targets: see `Input` and `Target`; `states`: see `Carried`.
        settings: those that differ from the defaults, by name; `table` says how columns of a table were prepared.
        teacher, teacher_sha256: the network whose outputs were learnt, seen from the run's folder, and the SHA-256 of
            its file and external data (of a module: of its code and tensors); may be "".
        monitor: the metric that decides which weights are best; "" of a run of a version that did not note it.
        result: `stopped`, `seconds`, `best_epoch`, `best` and `test`, once the run has ended (see `Ended`).
    """

    name: Annotated[str, Between(0, 255)]
    model: str
    module: str
    origin: str
    onnx: str
    sha256: str
    versions: Mapping[str, str]
    data: str
    parts: Mapping[str, Part]
    inputs: Annotated[tuple[Input, ...], Between(1, 1 << 16)]
    targets: tuple[Target, ...]
    settings: Mapping[str, Any]
    note: str = ""
    code: str = ""
    own_code: str = ""
    teacher: str = ""
    teacher_sha256: str = ""
    monitor: str = ""
    states: tuple[Carried, ...] = ()
    result: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    format: int = FORMAT

    def check(self) -> None:
        """Raise `ValueError` if the values do not go together."""
        for what, name in (("name", self.name), ("onnx", self.onnx)):  # files are written and read under these names
            if name and (Path(name).name != name or name == ".." or "\0" in name):
                raise ValueError(f"its {what} is {name!r}, which is no name of a file")
        if unknown := [name for name in self.parts if name not in ("train", "val", "test")]:
            raise ValueError(f"its parts have {unknown[0]!r}, and there are train, val and test")
        built(Ended, dict(self.result), "result")
        for name, value in self.settings.items():
            if name not in SETTINGS or name in _PLACES:
                raise ValueError(f"its settings have {name!r}, which none of a run is called")
            try:
                typed(value, TYPES[name])
            except ValueError as error:
                raise ValueError(f"its settings: {name} must be {error}, not {str(value)[:60]!r}") from None
        if self.settings.get("tokenizer", TOKENIZER) != TOKENIZER:
            raise ValueError(f"its tokenizer is {self.settings['tokenizer']!r}, not {TOKENIZER}")

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes of the first classifier, or the characters of a text; () if there are none.

        If the data named some classes, the others have numbers.
        """
        first = next((target for target in self.targets if target.classes or target.names), None)
        if first is None or not first.names:
            return ()
        fits = first.loss == "ctc_loss" or first.loss.startswith("binary")  # these have fewer names than classes
        return first.names if fits else first.all_names

    def to_json(self) -> str:
        values = asdict(replace(self, versions=dict(self.versions), result=dict(self.result)))
        return json.dumps({"format": values.pop("format"), **values}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Raises `ValueError` for anything that `to_json` did not write."""
        values = json_object(text)
        if values.get("format") != FORMAT:
            raise ValueError(f"its format is {values.get('format')!r}, and this version reads {FORMAT}")
        if values.get("module") not in ("", MODULE):  # it is code that runs: no other file may be named
            raise ValueError(f"its module is {str(values.get('module'))[:60]!r}, not {MODULE}")
        record: Record = built(cls, values)
        return record

    @property
    def writes(self) -> bool:
        """True if it is a language model that continues texts."""
        return known(self.settings.get("task")).labels == "next" and "tokenizer" in self.settings

    def settings_for(self, run: Path) -> Settings:
        """Return the settings of the run, to treat other data in the same way; without those of its devices.

        Raises:
            OnnxgenError: one of them has a wrong type.
        """
        own = self.values_for(run)
        values = {name: v for name, v in own.items() if name == "teacher" or SETTINGS[name].group != DEVICES}
        try:
            return Settings(**values)
        except OnnxgenError as error:
            raise OnnxgenError(f"{run / RECORD}: settings: {error}") from None

    def values_for(self, run: Path) -> dict[str, Any]:
        """Return the settings of the run by name, with paths as they are named from the current folder."""
        values = {name: seen_here(name, typed(value, TYPES[name]), run) for name, value in self.settings.items()}
        taught = {"teacher": Path(seen_here("teacher", self.teacher, run))} if self.teacher else {}
        return {**UNDECIDED, **values, **taught}

    def data_for(self, run: Path) -> str:
        """Return the data of the run as it is named from the current folder; "" if it was a Python object."""
        return str(seen_here("data", self.data, run)) if self.data else ""

    def origin_for(self, run: Path) -> Path:
        """Return the module that was trained, as it is named from the current folder; the run's own if that is gone,
        was changed since, or is another than the run's own.
        """
        module = self.place_of_origin(run)
        return module if has_code(module, self.code) and is_same_code(module, run) else run / self.module

    def place_of_origin(self, run: Path) -> Path:
        """Return where the module that was trained was, as it is named from the current folder."""
        return Path(seen_here("model", self.origin, run)) if self.origin else run / self.module


def code_of(module: Path) -> str | None:
    """Return a digest of what a module does (see `code_digest`); None if it can't be read."""
    with suppress(OSError, SyntaxError, ValueError):
        return code_digest(module.read_text(encoding="utf-8"))
    return None


def has_code(module: Path, recorded: str) -> bool:
    """Return True if a module does what it did when its digest was recorded (see `is_digest`)."""
    with suppress(OSError, SyntaxError, ValueError):
        return is_digest(recorded, module.read_text(encoding="utf-8"))
    return False


def read_record(run: Path) -> Record:
    """Return the record of a run. Raises `OnnxgenError`: the folder is no run, or its record is damaged."""
    try:
        return Record.from_json((run / RECORD).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise no_run(run) from None
    except OSError as error:
        raise OnnxgenError(f"{run / RECORD} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise OnnxgenError(f"{run / RECORD} can't be read: {error}") from None


def whole_weights(run: Path, record: Record) -> Path:
    """Return the best weights of a run, as they were written.

    Raises:
        OnnxgenError: there are none yet, or they were changed since, or damaged.
    """
    weights = best_of(run)
    for name, wanted in record.result.get("weights", {}).items():
        file = run / Path(name).name
        if not file.is_file() or file_sha256(file) != wanted:
            what = f"{file} was changed or damaged since the run ended: it has another SHA-256 than {RECORD} says"
            raise OnnxgenError(what, help="restore it, or name other weights with --weights")
    return weights


def need_own_code(run: Path, record: Record) -> None:
    """Raise `OnnxgenError` if the module of a run does not do what it did when the run wrote it."""
    if record.own_code and not has_code(run / MODULE, record.own_code):
        what = f"{run / MODULE} was changed or damaged since the run wrote it: it does something else"
        raise OnnxgenError(what, help="restore it; to use another module, train that one")


def write_record(run: Path, record: Record) -> None:
    """Write the record of a run. The file is replaced atomically. Raises `OSError`."""
    with replacing([run]) as files, files.file(run / RECORD) as file:
        file.write(record.to_json().encode())


def noted(settings: Settings) -> dict[str, Any]:
    """Return the settings that differ from the defaults, without paths of the run itself and Python objects."""
    default = Settings()
    values = {f.name: getattr(settings, f.name) for f in fields(Settings) if f.name not in _PLACES}
    plain = {name: value for name, value in values.items() if value != getattr(default, name) and _is_plain(value)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def going_on(run: Path, data: Any) -> dict[str, Any]:
    """Return the settings with which a run goes on: all of its own on its own data, which is then split as before.

    Other data gets the size of the images and, in the same order, the classes and the columns of a table. A reader's
    characters are in its weights, where a new head may add others. The new run is called as this one.

    Args:
        data: as it is named from the current folder; None for the run's own.
    """
    record = read_record(run)
    record.settings_for(run)  # its errors name the record
    named = re.fullmatch(r"(.+)-\d+", run.resolve().name)  # the new run has the next number
    kept = record.values_for(run) | ({"name": named[1]} if named else {})
    if data is None or is_same(data, record.data_for(run)):
        return kept
    reads = any(target.loss == "ctc_loss" for target in record.targets)  # its weights have their characters
    names = ("name", "size", *(() if reads else ("classes",)), "tokenizer", "max_length")
    settings: dict[str, Any] = {name: kept[name] for name in names if name in kept}
    if isinstance(data, (str, Path)) and Path(data).suffix.lower() in (".csv", ".tsv", ".parquet"):
        joined = {entry.name: "+".join(entry.columns) for entry in record.inputs if entry.columns}
        joined = {} if "tokenizer" in kept else joined
        settings |= {"inputs": joined} if joined and "table" not in kept else {}
    return settings


def is_same(data: Any, own: str) -> bool:
    """Return True if `data` names the data of a run."""
    return bool(own) and isinstance(data, (str, Path)) and (str(data) == own or is_same_place(data, own))


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


READING = (  # how the templates read weights that are in the module or in several files; and in one file
    ("Path(weights).read_bytes() if weights else base64.b85decode(WEIGHTS)", "Path(weights or WEIGHTS).read_bytes()"),
    ("load(base64.b85decode(WEIGHTS))[key]", "load(WEIGHTS.read_bytes())[key]"),
    ('    name = json.loads(WEIGHTS.read_text())["weight_map"][key]\n', ""),
    ("safe_open(WEIGHTS.with_name(name), ", "safe_open(WEIGHTS, "),
)
_OPTIONS = {"imports": "import"}  # settings whose option has another name
_FORMS = ('Path(__file__).with_name("")', 'Path(__file__).parent / ""', '"".replace("", "")')  # of the templates
_BASE64 = ast.dump(ast.parse("import base64").body[0])
_OWN_PATHS = [ast.dump(ast.parse(form, mode="eval").body) for form in _FORMS]


def refuse_code(values: Mapping[str, Any], by_user: Collection[str], run: Path) -> None:
    """Refuse the code that the record of a run names outside of its folder, unless the user named it, too.

    Args:
        values: `data` and settings, as the record has them.
        by_user: the names of those that the user gave.

    Raises:
        OnnxgenError: the data or the task is a function, the teacher a module, or a module is to be imported.
    """
    code = {name: value for name, value in values.items() if name not in by_user and _is_code(name, value)}
    if not code:
        return
    texts = {name: " ".join(value) if isinstance(value, tuple) else str(value) for name, value in code.items()}
    named = " and ".join(f"{name} {value}" for name, value in texts.items())
    options = " ".join(f"--{_OPTIONS.get(name, name)} {value}" for name, value in texts.items())
    what = f"{run} names code outside of its folder, which is not run unasked: {named}"
    raise OnnxgenError(what, help=f"if you trust it, name it yourself: {options}")


def _is_code(name: str, value: Any) -> bool:
    if name in ("data", "task"):
        return FUNCTION.fullmatch(str(value)) is not None and not (name == "data" and Path(value).exists())
    return bool(value) and (name == "imports" or (name == "teacher" and Path(value).suffix != ".onnx"))


def need_same_code(module: Path, run: Path, way: str) -> None:
    """Refuse a module that a record of a run names, and that does not do what the run's `model.py` does.

    Args:
        way: what the user can do.

    Raises:
        OnnxgenError: it is another, or the run has none.
    """
    if not is_same_code(module, run):
        what = f"{run} names {module}, whose code is not that of its {MODULE}: it is not run unasked"
        raise OnnxgenError(what, help=way)


def is_same_code(module: Path, run: Path) -> bool:
    """Return True if a module does what the `model.py` of a run does.

    Two things may differ: where the weights are, and the numbers in constructors, since a run writes the number of
    classes there that it trained. To run such a module is to run `model.py`.
    """
    module = module / MODULE if module.is_dir() else module
    with suppress(OSError, SyntaxError, ValueError, RecursionError):
        one, other = (path.read_text(encoding="utf-8") for path in (module, run / MODULE))
        return one == other or _what_it_does(one) == _what_it_does(other)
    return False


def _what_it_does(text: str) -> str:
    text = FINGERPRINT.sub('FINGERPRINT = ""', text.replace("\r\n", "\n"))
    for old, new in READING:
        text = text.replace(old, new)
    tree = ast.parse(text)
    tree.body = [_without_weights(item) for item in tree.body if ast.dump(item) != _BASE64]
    for node in numbers_of_constructors(tree):
        node.value = 0
    return tree_digest(tree)


def numbers_of_constructors(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the whole numbers in the constructors of a module's classes."""
    for item in tree.body:
        for method in item.body if isinstance(item, ast.ClassDef) else []:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                for node in ast.walk(method):
                    if isinstance(node, ast.Constant) and type(node.value) is int:
                        yield node


def _without_weights(item: ast.stmt) -> ast.stmt:
    """Return a statement, but `WEIGHTS = ...` of the templates without the name of the file or its contents."""
    match item:
        case ast.Assign(targets=[ast.Name("WEIGHTS")]):
            value = copy.deepcopy(item.value)
        case _:
            return item
    for node in ast.walk(value):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.parse("WEIGHTS = None").body[0] if ast.dump(value) in _OWN_PATHS else item
