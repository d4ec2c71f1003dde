"""Looks at data, packages, classes and options before PyTorch is loaded, which takes seconds.

It refuses only what is certain. All of it is checked again, and more, where the data is opened.
`glance` looks at the folders and the files. A table or arrays are read, and compared with the
options and the network's input. What options name is compared with the network's inputs. `unpacked`
finds the data in the folder that an archive was unpacked into. Nothing here imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from onnxgen.common.names import legible, listed
from onnxgen.common.paths import need
from onnxgen.errors import OnnxgenError, Problem, Problems, counted
from onnxgen.record.sidecar import metadata_at, shapes_in
from onnxgen.record.signature import Port, Signature, recorded
from onnxgen.training.config import DIGITS, parse_size
from onnxgen.training.data.boxes.there import is_boxes
from onnxgen.training.data.carrying import carried
from onnxgen.training.data.image_options import by_input, parse_scale, recipes
from onnxgen.training.data.layout import (
    SOUNDS,
    SUFFIXES,
    files_below,
    folders,
    layout,
    nested,
    part_called,
    refuse_nested,
    refuse_special,
)
from onnxgen.training.data.looking import refuse_unopened
from onnxgen.training.data.preprocessing import texts_of
from onnxgen.training.data.source import Gaps, target_called, text_input
from onnxgen.training.data.table import array_of, decoded, divided, need_one_length, read_csv, read_npz, read_parquet
from onnxgen.training.goals.names import check_names, refuse_for_task
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import AUTO, CARDS
from onnxgen.training.tasks.card import Parts

ALWAYS = ("torch", "lightning", "torchmetrics", "tensorboard", "matplotlib")  # packages of every run
MOST_NAMES = 20  # of blocks, in an error
_AUTO = ("auto", "classification")


def glance(model: Path, data: str, settings: Settings) -> None:
    """Refuse what can't be trained.

    Args:
        model: a generated file, or the folder of a run.
        data: `DATA` of the command line.

    Raises:
        OnnxgenError: a package is missing, a folder has no images, or has more classes than the model.
    """
    path, problems = Path(data), Problems()
    refuse_special(path)
    is_folder = data != DIGITS and path.is_dir()
    path = _meant(path, problems) if is_folder else path
    parts = parts_for(path, settings)
    kinds = _kinds(path) if is_folder else set[str]()
    with problems.gathered():
        _need_packages(path, kinds, parts is not None, settings)
    lacking = bool(problems.found)
    check_words(settings, problems)
    plain = (settings.teacher, settings.noise) == (None, None) and settings.task in _AUTO
    images = is_folder and parts is None and plain and kinds <= {*SUFFIXES}
    check_names(settings, problems, (images or (plain and data == DIGITS)) and _is_classifier(model, settings))
    if parts is None:  # another part of the network has its own names
        _check_network(model, settings, problems)
    elif not lacking:  # they read its file, and write the part that is trained
        with problems.gathered():
            parts.refuse(path, model, settings)
    if images:
        with problems.gathered():
            _check_images(path, model, settings, problems, lacking)
    else:
        check_file(path, model, settings, problems)
    problems.raise_if_any()


def _meant(folder: Path, problems: Problems) -> Path:
    """Return the folder that is the data: one that an archive was unpacked into decides what else is wrong."""
    path = unpacked(folder)
    only = folders(path)
    alone = len(only) == 1 and not any(file.is_file() for file in path.iterdir())
    inside = nested(path) if alone and part_called(only[0].name) is None else path
    if inside != path:
        with problems.gathered():
            refuse_nested(path, {"train": path}, SUFFIXES)
    return inside


def _kinds(folder: Path) -> set[str]:
    return {file.suffix.lower() for file in files_below(folder) if file.is_file()}


def _check_images(path: Path, model: Path, settings: Settings, problems: Problems, lacking: bool) -> None:
    """Check that images can be opened, unless packages are `lacking`, and that the network has their classes."""
    laid = layout(path)
    if not lacking:
        refuse_unopened(path, laid, settings.strict, problems)
    _refuse_classes(model, settings, laid.classes)


def _check_network(model: Path, settings: Settings, problems: Problems) -> None:
    """Add names of inputs and of layers that a network does not have. Another head has layers of other names."""
    if (signature := _signature_of(model)) is not None:
        check_ports(signature.inputs, settings, problems)
    if settings.replace_head is None:
        _check_patterns(model, settings, problems)


def _need_packages(path: Path, kinds: set[str], boxes: bool, settings: Settings) -> None:
    need(
        (
            *ALWAYS,
            *(name for name in settings.loggers if name in ("wandb", "mlflow")),
            *(["peft"] if settings.lora else []),
            *(["sklearn"] if str(path) == DIGITS else []),
            *(["soundfile"] if path.suffix.lower() in SOUNDS else []),
            *(["PIL"] if kinds & {*SUFFIXES} or boxes else []),
            *(["yaml", "faster_coco_eval"] if boxes else []),
        )
    )


def parts_for(data: Any, settings: Settings) -> Parts | None:
    """Return how a part of the network is trained for the data, unless another task is asked for; None: all of it."""
    if not isinstance(data, (str, Path)) or str(data) == DIGITS:
        return None
    for card in CARDS.values():
        if card.parts is not None and settings.task in (AUTO, card.name):
            refuse_special(Path(data))
            if card.parts.is_there(unpacked(Path(data))):
                return card.parts
    return None


def _may_change(settings: Settings) -> bool:
    """Return True if the network gets another number of classes, or its outputs may be none."""
    changed = settings.weights is not None or settings.partial or settings.loss != "auto"
    return changed or settings.replace_head is not None


def _refuse_classes(model: Path, settings: Settings, names: Sequence[str]) -> None:
    """Refuse more classes than a classifier has, with the words of `checking.py`."""
    if settings.weights is not None or settings.partial or settings.loss != "auto":
        return
    has, count = len(names), settings.replace_head or _classes_of(model)
    if count and has > count:
        some = ", ".join(map(legible, names[:3])) + (", ..." if has > 3 else "")
        what = f"the data has {counted(has, 'class')} ({some}), but the model has {count}"
        raise OnnxgenError(what, help=f"--replace-head {has}")


def _check_patterns(model: Path, settings: Settings, problems: Problems) -> None:
    """Add the patterns whose first part is nowhere: neither a word of the module's text nor in the names of weights."""
    patterns = [p for p in (*settings.freeze, *settings.lora_target) if not {*"*?[]"} & {*p.partition(".")[0]}]
    names = [name for name in _stored(model) if name != "__metadata__"] if patterns else []
    if not names or model.is_dir():
        return
    tops = [*dict.fromkeys(name.partition(".")[0] for name in names)]
    known = {*tops, *re.findall(r"\w+", model.read_text(encoding="utf-8", errors="replace"))}
    for pattern in patterns:
        if pattern.partition(".")[0] not in known:
            what = f"no module or parameter is called {legible(pattern)!r}"
            more = ", ..." if tops[MOST_NAMES:] else ""
            problems.add(what, help=f"there are {', '.join(map(legible, tops[:MOST_NAMES]))}{more}")


def _is_classifier(model: Path, settings: Settings) -> bool:
    return settings.loss == "auto" and _classes_of(model) > 0


def _classes_of(model: Path) -> int:
    """Return how many classes a generated classifier has by what its weights say; 0 if they do not say it."""
    signature = _signature_of(model)
    purpose = None if signature is None else signature.purpose
    if purpose is None or purpose.kind != "classification" or purpose.facts.get("axis") != 1:
        return 0
    count: Any = purpose.facts.get("classes")
    return count if type(count) is int else 0


def _signature_of(model: Path) -> Signature | None:
    """Return what the weights beside a module say of its inputs and outputs; None if they say nothing."""
    if model.is_dir():  # of a run another module may be trained
        return None
    return recorded(metadata_at(model.with_suffix(".safetensors")))


def _stored(model: Path) -> list[str]:
    """Return the names of the weights beside a module; none if they can't be read."""
    try:
        return [*shapes_in(model.with_suffix(".safetensors"))]
    except (OnnxgenError, ValueError):
        return []


_TEXTS, _ARRAYS = (".csv", ".tsv"), (".npy", ".npz", ".parquet")
_PLAIN = ("classification", "multilabel", "regression")  # networks that are trained with a loss of each output
# bytes of a file that is read here, twice in all: text takes a tenth of a second for each MiB
_MOST = {**dict.fromkeys(_TEXTS, 4 << 20), **dict.fromkeys(_ARRAYS, 32 << 20)}


def check_file(path: Path, model: Path, settings: Settings, problems: Problems) -> None:
    """Add what is wrong with a table or arrays: what can't be read, gaps, and columns that options alone name."""
    if not path.is_file() or path.stat().st_size > _MOST.get(path.suffix.lower(), -1):
        return
    before = len(problems.found)
    with problems.gathered():
        columns = _read(path, settings, problems)
    if len(problems.found) > before or any(map(_are_files, columns.values())):
        return  # a list of images or sounds has columns of other names
    table = _Columns(columns, _signature_of(model), settings, problems)
    table.check_named()
    if not table.plain or isinstance(settings.target, Mapping) or table.carries():  # a mapping names other columns
        return
    table.check_classes(model)
    if table.target in columns and settings.table == "none" and settings.tokenizer is None:
        table.check_input()
    if path.suffix.lower() in (".npy", ".npz") and len(problems.found) == before:
        table.check_open()


@dataclass
class _Columns:
    """The columns of a file, and what options and the network ask of them. `network`: None if it is not known."""

    columns: Mapping[str, Any]
    network: Signature | None
    settings: Settings
    problems: Problems

    @property
    def plain(self) -> bool:
        """True if the network is trained with a loss of each output."""
        return self.settings.task in ("auto", "classification", "outputs") and self.settings.teacher is None

    @property
    def target(self) -> str:
        target = self.settings.target
        return target if isinstance(target, str) else target_called(self.columns)

    @property
    def fed(self) -> tuple[Port, ...]:
        """The inputs that data feeds."""
        inputs = self.network.inputs if self.network is not None else ()
        return tuple(port for port in inputs if port.name not in self.settings.const)

    def carries(self) -> bool:
        """Return True if a sample is a sequence of steps, of which the inputs say little; or add what is wrong."""
        carries = True
        with self.problems.gathered():
            carries = self.network is not None and bool(carried(self.network, self.settings, self.columns))
        return carries

    def targets(self) -> list[str]:
        """Return the columns that `--target` names, as it names them."""
        target = self.settings.target
        return [target] if isinstance(target, str) else [*(target or {}).values()]

    def parts(self, whole: str) -> list[str]:
        """Return the columns that a text names: `a+b` names two, unless a column is called so."""
        return [column.strip() for column in ([whole] if whole in self.columns else whole.split("+"))]

    def check_named(self) -> None:
        """Add the columns that options name and the file lacks, or that have gaps."""
        options = [(f"--inputs {name}={legible(whole)}", whole) for name, whole in self.settings.inputs.items()]
        options += [(f"--target {legible(whole)}", whole) for whole in self.targets()]
        named = [(option, column) for option, whole in options for column in self.parts(whole)]
        for option, column in named:
            if column not in self.columns:
                self.problems.add(f"{option}: the data has no such column (it has {listed(self.columns)})")
        usual = [self.target] if self.plain and self.settings.target is None else []
        for column in (*(column for _, column in named), *usual) if self.settings.table == "none" else ():
            if isinstance(gap := self.columns.get(column), Problem):
                self.problems.add(gap.of_target() if isinstance(gap, Gaps) and column in self.aims() else gap)

    def aims(self) -> set[str]:
        """Return the columns that are targets, or part of one."""
        return {self.target, *(column for whole in self.targets() for column in self.parts(whole))}

    def check_classes(self, model: Path) -> None:
        """Add classes or labels of the target that a network does not have."""
        values: Any = self.columns.get(self.target)
        count = 0 if _may_change(self.settings) else _classes_of(model)
        if self.target and _is_text(values):
            with self.problems.gathered():
                _refuse_classes(model, self.settings, sorted({str(value) for value in values}))
        elif count and not self.settings.classes and getattr(values, "ndim", 0) == 1 and values.dtype.kind in "iu":
            _check_labels(self.target, sorted({*values.tolist()}), count, self.problems)

    def check_input(self) -> None:
        """Add what the only input can't take, if that takes floats: text, or numbers of another size."""
        fed, settings = self.fed, self.settings
        if len(fed) != 1 or "float" not in (fed[0].dtype or ""):
            return
        feeding = self.feeding(fed[0].name)
        texts = [name for name, values in feeding.items() if _is_text(values)]
        for name in texts:
            self.problems.add(text_input(name, sorted({*map(str, feeding[name])})))
        usual = (settings.normalize, settings.augment, settings.noise) == ("auto", "none", None)
        if feeding and usual and not texts and not any(isinstance(values, Problem) for values in feeding.values()):
            _check_numbers(fed[0], feeding, self.problems)

    def feeding(self, name: str) -> dict[str, Any]:
        """Return the columns that the only input gets: those that options name, that with its name, or all others."""
        columns = {column: values for column, values in self.columns.items() if column not in self.aims()}
        whole = self.settings.inputs.get(name, name if name in columns else "")
        return {column: columns[column] for column in self.parts(whole) if column in columns} if whole else columns

    def check_open(self) -> None:
        """Add that it is open which column feeds an input, or is the target, of a network of a usual kind."""
        network, settings = self.network, self.settings
        known = network is not None and network.purpose is not None and network.purpose.kind in _PLAIN
        if network is None or not known or settings.noise is not None or any(map(_is_text, self.columns.values())):
            return
        from onnxgen.training.data.matching import named_columns  # imported here: it imports onnx

        with self.problems.gathered():
            named_columns([*self.columns], "", replace(network, inputs=self.fed), settings, True)


def _read(path: Path, settings: Settings, problems: Problems) -> Mapping[str, Any]:
    if path.suffix.lower() in _TEXTS:
        return read_csv(path, texts_of(settings.table))
    if path.suffix.lower() == ".parquet":
        return read_parquet(path)
    parts: dict[str, dict[str, Any]] = {}
    for part, columns in divided(read_npz(path)).items():
        parts[part] = {}
        for name, values in columns.items():
            with problems.gathered():
                parts[part][name] = array_of(decoded(path.name, name, values), f"{path.name}: column {name!r}")
        with problems.gathered():
            need_one_length(parts[part], path.name)
    return parts["train"]


def _check_labels(column: str, there: Sequence[int], count: int, problems: Problems) -> None:
    """Add that some labels are none of the network's classes."""
    if not there or there[-1] < count or there[0] < 0 or (there[0], there[-1]) == (1, count):
        return
    some = listed(map(str, there)) if len(there) <= there[-1] else f"0 to {there[-1]}"
    ways = f"number them 0 to {len(there) - 1}; " if len(there) <= min(there[-1], count) else ""
    what = f"column {legible(column)!r} has the labels {some}, but the model's {count} are 0 to {count - 1}"
    problems.add(what, help=f"{ways}--replace-head {there[-1] + 1}{' keeps their numbers' if ways else ''}")


def _check_numbers(port: Port, columns: Mapping[str, Any], problems: Problems) -> None:
    """Add that columns have values that are none, or another size than the input that they feed."""
    joined, first = all(values.ndim == 1 for values in columns.values()), next(iter(columns.values()))
    if not joined and (len(columns) > 1 or first.dtype.kind != "f"):
        return  # which of them feeds it is not known, or they are images
    for name, values in columns.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            place = tuple(np.argwhere(~np.isfinite(values))[0])
            what = f"column {legible(name)!r} has {values[place]:g} in row {place[0]}"
            problems.add(what, help="remove the sample, or fill in the value")
    _check_shape(port, (len(columns),) if joined else first.shape[1:], port.name if joined else [*columns][0], problems)


def _check_shape(port: Port, shape: tuple[int, ...], column: str, problems: Problems) -> None:
    dims = port.dims or ()
    fits = [prod(map(int, d)) for d in (dims[1:], dims) if all(isinstance(size, int) for size in d)]
    if port.dims is None or not fits or prod(shape) in fits:
        return
    way = "change the data, or generate the model for this shape with --input-shape"
    if len(dims) == 4 and len(shape) in (2, 3):
        way = "images as uint8 are resized and converted; or generate the model with --input-shape"
    gives = ", ".join(map(str, ("n", *shape)))
    what = f"input {port.name!r} takes [{', '.join(map(str, dims))}], but column {column!r} gives [{gives}]"
    problems.add(what, help=way)


def _is_text(values: Any) -> bool:
    return hasattr(values, "dtype") and values.dtype.kind == "O"


def _are_files(values: Any) -> bool:
    """Return True if a column may hold paths of images or sounds."""
    return _is_text(values) and any(str(value).lower().endswith((*SUFFIXES, *SOUNDS)) for value in values.tolist())


_WORDS = ("auto", "none", "")
_CHANNELS = (1, 3, 4)


def check_words(settings: Settings, problems: Problems) -> None:
    """Add what is wrong with --size, --normalize and --augment, and what does not go with the task."""
    with problems.gathered():
        recipes(settings.augment, False)
    for text, read in (
        (settings.size, parse_size),
        (settings.train_size or "", parse_size),
        (settings.normalize, _read_scale),
    ):
        for part in (part.rpartition("=")[2].strip() for part in text.split(";")):
            if part not in _WORDS:
                with problems.gathered():
                    read(part)
    with problems.gathered():
        if settings.task in CARDS:
            refuse_for_task(settings)


def _read_scale(text: str) -> None:
    parse_scale(text, max(part.count("/") + 1 for part in text.split(",")))


def check_ports(ports: Sequence[Port], settings: Settings, problems: Problems) -> None:
    """Add the names of inputs that the network does not have, and a size that is not its own."""
    names = [port.name for port in ports]
    has = listed(names)
    for name in {**settings.inputs, **settings.const}:
        if name not in names:
            problems.add(f"the model has no input {legible(name)!r} (it has {has})")
    for text in (settings.size, settings.normalize):
        with problems.gathered():
            by_input(text, names)
    with problems.gathered():
        _check_sizes(ports, settings)


def _check_sizes(ports: Sequence[Port], settings: Settings) -> None:
    for name, size in by_input(settings.size, [port.name for port in ports]).items():
        port = next(port for port in ports if port.name == name)
        dims = port.dims or ()
        if size == "auto" or len(dims) != 4 or dims[1] not in _CHANNELS:
            continue
        pairs = zip(dims[2:], parse_size(size))
        if any(isinstance(dim, int) and dim != side for dim, side in pairs):
            what = f"size {size}: input {name!r} is [{', '.join(map(str, dims))}]"
            raise OnnxgenError(what, help="leave --size out")


_BESIDE = ("", ".db", ".ini", ".md", ".pdf")  # what lies beside data and says nothing of it: README.md, Thumbs.db


def unpacked(path: Path) -> Path:
    """Return the folder inside that is meant by one that has nothing else; `path` if that is not certain.

    It has the folders of at least two classes, or labels of boxes. What is hidden does not count, as `__MACOSX`.
    """
    if not path.is_dir() or (inner := nested(path, (*SUFFIXES, *SOUNDS))) == path:
        return path
    way = [path, *(above for above in inner.parents if above != path and above.is_relative_to(path))]
    if part_called(inner.relative_to(path).parts[0]) or any(map(_says_something, way)):
        return path
    classes = [one for one in folders(inner) if any(files_below(one, *SUFFIXES, *SOUNDS))]
    return inner if classes[1:] or is_boxes(inner) else path


def _says_something(folder: Path) -> bool:
    files = (file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    return any(file.suffix.lower() not in _BESIDE for file in files)
