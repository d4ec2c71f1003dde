"""Opens data of any kind, and makes it fit a model.

Data is a path, a Python object, or the name of a function that returns one. A path is opened by the
reader of its format. An object is a dict of arrays, a torch `Dataset` or `DataLoader`, or anything
with a length and items.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from onnxgen.errors import OnnxgenError, typed
from onnxgen.training.byname import FUNCTION, imported
from onnxgen.training.checkpoint import identity
from onnxgen.training.config import DIGITS, SHARDS
from onnxgen.training.data.arrays import spread
from onnxgen.training.data.boxes.formats import open_coco, open_voc, open_yolo
from onnxgen.training.data.boxes.there import is_coco, is_voc, is_yolo
from onnxgen.training.data.columns import from_columns, from_parts, is_idx, open_digits, open_idx, read_safetensors
from onnxgen.training.data.faults import Faults
from onnxgen.training.data.fitting import fit_to_model
from onnxgen.training.data.folder import IMAGE, open_folder
from onnxgen.training.data.glance import unpacked
from onnxgen.training.data.image_pairs import is_masks, is_pairs, is_tuples, open_masks, open_pairs, open_tuples
from onnxgen.training.data.layout import PARTS, files_in, folders, part_called, refuse_special
from onnxgen.training.data.lists import is_list, lists_in, read_list, with_images, without_gaps, without_targets
from onnxgen.training.data.preprocessing import texts_of
from onnxgen.training.data.presets import with_rate
from onnxgen.training.data.samples import Batch, Data, Field, Samples, bits
from onnxgen.training.data.sounds import is_sounds, open_sounds, with_sounds
from onnxgen.training.data.source import DataSource, one_table, target_called
from onnxgen.training.data.streaming.opening import matching, open_stream, shards_of
from onnxgen.training.data.table import read_csv, read_jsonl, read_npz, read_parquet, read_txt
from onnxgen.training.settings import Settings
from onnxgen.training.singly import run_singly
from onnxgen.training.stepwise import run_stepwise
from onnxgen.training.tasks import AUTO, task_for

_TABLES: dict[str, Callable[[Path], dict[str, Any]]]
_TABLES = {".csv": read_csv, ".tsv": read_csv, ".parquet": read_parquet, ".jsonl": read_jsonl, ".txt": read_txt}
FILES = {".npz": read_npz, ".npy": read_npz, ".safetensors": read_safetensors} | _TABLES
ANCHORS, PAIRS = "images in anchor and positive", "images beside images"
_OF_TASKS = {ANCHORS: task_for("tuples"), PAIRS: task_for("images")}
# What is beside the images, whether it is there, and what reads it.
_LABELLED: dict[str, tuple[Callable[[Path], bool], Callable[..., DataSource]]]
_LABELLED = {
    "boxes of COCO (name the .json)": (is_coco, open_coco),
    "boxes of YOLO (name its data.yaml or labels)": (is_yolo, open_yolo),
    "boxes of Pascal VOC (name Annotations)": (is_voc, open_voc),
    "masks (name their folder)": (is_masks, open_masks),
    ANCHORS: (is_tuples, open_tuples),
    PAIRS: (is_pairs, open_pairs),
}
KINDS = "data is a folder of images, of sounds or of shards (.tar, .parquet, .bin), boxes of COCO, YOLO or VOC, "
KINDS += "masks, pairs or lists of images, idx files, "
KINDS += f"{', '.join(FILES)}, the word digits, or module:function"


def open_data(spec: Any, model: nn.Module, settings: Settings, *, targets: bool = True) -> Data:
    """Return data that fits a model: read, split, with images resized and normalised, in the model's dtypes.

    Args:
        spec: a path or a word, as `KINDS` says; or an object: a torch Dataset, arrays `(x, y)`, datasets
            `(train, val, test)`, a dict of columns or of parts, or `Data`, which is returned as it is.
        settings: `inputs`, `target`, `classes`, `val`, `test`, `seed`, `table`, `normalize`, `augment` and `strict`
            are read.
        targets: False if no target is needed and the data must not be split (to predict).

    Raises:
        OnnxgenError: there is no such data, it is damaged, or it can't be made to fit.
    """
    settings = with_rate(settings)
    source = open_source(spec, settings, targets=targets)
    run_stepwise(model, source, settings)
    run_singly(model, source, settings)
    return source if isinstance(source, Data) else fit_to_model(source, model, settings, targets)


def open_source(
    spec: Any, settings: Settings, *, targets: bool = True, texts: Collection[str] = ()
) -> DataSource | Data:
    """Like `open_data`, but return the data as it was read. Settings that change the data are not read.

    Args:
        texts: columns of a table in a text file that hold text, whatever it looks like, beside those of a fitted table.
    """
    name = spec if isinstance(spec, str) else spec.name if isinstance(spec, Path) else "data"
    if isinstance(spec, str) and FUNCTION.fullmatch(spec) and not Path(spec).exists():
        spec = call(spec)
    if isinstance(spec, (str, Path)):
        return open_digits() if spec == DIGITS else _open_unpacked(Path(spec), settings, targets, texts)
    return from_object(spec, name)


def _open_unpacked(path: Path, settings: Settings, targets: bool, texts: Collection[str]) -> DataSource:
    """Return the data of a path, or of the folder that it was unpacked into, with a note of that."""
    source = _open_path(inner := unpacked(path), settings, targets, texts)
    if inner != path:
        name = inner.relative_to(path).as_posix()
        source.notes.insert(0, f"{path} has nothing but the folder {name}: it is the data")
    return source


def _open_path(path: Path, settings: Settings, targets: bool, texts: Collection[str]) -> DataSource:
    if SHARDS.fullmatch(str(path)) and not path.exists():
        return open_stream(matching(str(path)), path.name, settings)
    if not path.exists():
        raise OnnxgenError(f"no file or folder {path}", help=KINDS)
    refuse_special(path)
    if is_idx(path):
        return open_idx(path)
    if shards := shards_of(path) if targets or path.suffix.lower() != ".npy" else []:
        return open_stream(shards, path.name, settings)
    lists = lists_in(path)
    files = lists or _parts(path)
    kind = next(iter(files.values())).suffix.lower() if files else ""
    if kind in FILES:
        read, has_files = _of_files(path, files, kind, settings, targets, texts)
        if has_files or not lists:  # else the file in the folder lists no images, and there may be some in another way
            return read
    if is_sounds(path):
        return open_sounds(path, settings, targets and settings.teacher is None)
    return _open_pictures(path, settings, targets)


def _open_pictures(path: Path, settings: Settings, targets: bool) -> DataSource:
    """Return images with what is labelled on or beside them, else those of a folder."""
    kinds = [what for what, (is_there, _) in _LABELLED.items() if is_there(path)]
    if settings.task != AUTO:  # folders of classes, unless it is this task
        kinds = [what for what in kinds if _OF_TASKS.get(what, settings.task) == settings.task]
    if len(kinds) > 1:
        raise OnnxgenError(f"{path} has {' and '.join(kinds)}", help="name the one to train with")
    if kinds:
        reader = _LABELLED[kinds[0]][1]
        reader = partial(reader, classes=settings.classes) if reader is open_yolo else reader
        return reader(path, strict=settings.strict, labelled=targets)
    if not path.is_dir():
        raise OnnxgenError(f"onnxgen can't read data from {path}", help=KINDS)
    labelled = targets and settings.teacher is None and settings.noise is None
    return open_folder(path, strict=settings.strict, labelled=labelled)


def _of_files(
    path: Path, files: Mapping[str, Path], kind: str, settings: Settings, targets: bool, texts: Collection[str]
) -> tuple[DataSource, bool]:
    """Return the data of files of one kind, by part ("": of all parts), and True if it has images or sounds in place of
    names."""
    known, table = {*texts, *texts_of(settings.table)}, kind in _TABLES
    read_file = partial(read_csv, texts=known) if FILES[kind] is read_csv else FILES[kind]
    columns: dict[str, Mapping[str, Any]]
    columns = {part: (read_list if is_list(file) else read_file)(file) for part, file in files.items()}
    root = path if path.is_dir() else path.parent
    columns, faults = without_gaps(columns, root, settings, targets) if table else (columns, Faults(root))
    read = from_columns(columns[""], path.name, table) if "" in columns else from_parts(columns, path.name, table)
    read.running = kind == ".txt"
    if table:
        with_sounds(read, root, settings, faults)
    if read.rate:
        return read, True
    if table and (images := with_images(read, files, faults, settings.strict)) is not None:
        return (images if targets or IMAGE in read.whites else without_targets(images)), True
    return read, False


def _parts(path: Path) -> dict[str, Path]:
    """Return the files `train.csv`, `val.csv` and so on of a folder by part, all of one kind; {} without `train`.

    A file is that of all parts, "".
    """
    if not path.is_dir():
        return {"": path}
    parts: dict[str, Path] = {}
    for file in files_in(path, *FILES):
        part = part_called(file.stem)
        if part in parts:
            raise OnnxgenError(f"{path} has two files for {part}: {parts[part].name} and {file.name}")
        if part:
            parts[part] = file
    if len({file.suffix.lower() for file in parts.values()}) > 1:
        raise OnnxgenError(f"{path} has files of several kinds: {', '.join(p.name for p in parts.values())}")
    if any(file.suffix.lower() == ".txt" for file in parts.values()) and folders(path):
        return {}  # images, whose names these files list
    return parts if "train" in parts else {}


def call(spec: str) -> Any:
    """Return the result of "module:function". The module may also be in the current folder.

    Raises `OnnxgenError` if there is no such module or function, or it fails.
    """
    name, function = spec.split(":")
    way = f"a function {function}() of {name}.py is called without arguments"
    loaded = imported(spec, "data", way)
    try:
        return loaded() if callable(loaded) else loaded
    except OnnxgenError:
        raise
    except Exception as error:
        raise OnnxgenError(f"data {spec}: {typed(error)}", help=way) from error


def from_object(data: Any, name: str) -> DataSource | Data:
    """Open a Dataset, arrays (x, y), parts (train, val[, test]), a dict of columns or of parts. Return `Data` as it is.

    Raises `OnnxgenError` if it is none of these.
    """
    if isinstance(data, Data):
        return data
    if isinstance(data, Mapping):
        parts = {part_called(str(key)): value for key, value in data.items()}
        if data and None not in parts:
            return _from_parts({str(part): value for part, value in parts.items()}, name)
        return from_columns(data, name)
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):  # a pandas DataFrame, or similar
        return from_columns({str(column): np.asarray(data[column]) for column in data.columns}, name, table=True)
    if isinstance(data, (tuple, list)) and 1 < len(data) <= 3 and not any(map(_is_array, data)):
        return _from_parts(dict(zip(PARTS, data)), name)
    return _from_parts({"train": data}, name)


def _from_parts(parts: Mapping[str, Any], name: str) -> DataSource:
    if "train" not in parts and len(parts) > 1:
        raise OnnxgenError(f"{name} has parts {', '.join(parts)}, but no train")
    columns = {part: _columns(value) for part, value in parts.items()}
    if all(value is not None for value in columns.values()):
        return from_parts({part: value for part, value in columns.items() if value is not None}, name)
    samples = {part: _samples(value, f"{name}, {part}") for part, value in parts.items() if value is not None}
    one_table(samples, name)
    return DataSource(samples, name, target_called(samples[next(iter(samples))].fields))


def _columns(data: Any) -> Mapping[str, Any] | None:
    """Return the columns of arrays in memory; None for any other object."""
    if isinstance(data, Mapping):
        return data
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, (tuple, list)) and data and all(map(_is_array, data)):
        return by_position(data)
    return {"0": data} if _is_array(data) else None


def _samples(data: Any, what: str) -> Samples:
    if isinstance(data, DataLoader):
        raise OnnxgenError(f"{what} is a DataLoader", help="give its dataset: the trainer makes the batches")
    return data if isinstance(data, Samples) else items(data, what)


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, Tensor)) and value.ndim > 0


_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Items:
    """Items that are read when they are taken: each is a tensor, a tuple (see `by_position`), or a dict.

    An item's transforms may draw from the global generators of Python, numpy and torch. These are seeded by seed and
    index for each item, and restored afterwards.
    """

    dataset: Any
    fields: Mapping[str, Field]

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, indices: Sequence[int], seed: int) -> Batch:
        read = []
        with _own_generators():
            for index in indices:
                _seed(int(bits(seed, [index], 1)[0, 0]))
                read.append(_read(self.dataset, int(index)))
        return {name: _stacked([item.get(name) for item in read], name, indices) for name in self.fields}

    def column(self, name: str) -> Tensor | None:
        """Return the dataset's own list of targets (torchvision's have one), if some items agree with it."""
        listed = getattr(self.dataset, "targets", None)
        if name != target_called(self.fields) or self.fields[name].shape or listed is None:
            return None
        try:
            targets = torch.as_tensor(listed)
        except (TypeError, ValueError, RuntimeError):
            return None
        some = spread(self, 8)
        same = targets.shape == (len(self),) and torch.equal(targets[some], self.take(some, 0)[name])
        return targets if same else None


def items(dataset: Any, what: str) -> Items:
    """Return the samples of a dataset, with the columns of its first item.

    Raises `OnnxgenError` if the dataset has no length or no items, or its first item can't be read.
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        way = "give a torch Dataset with __len__ and __getitem__ (an IterableDataset can't be shuffled or resumed)"
        lacks = f"{what} is {type(dataset).__name__}, which lacks a length or items by index"
        raise OnnxgenError(lacks, help=f"{way}, arrays, or a dict of columns")
    if len(dataset) == 0:
        raise OnnxgenError(f"{what} has no samples")
    with _own_generators():
        _seed(0)
        first = _read(dataset, 0)
    classes = getattr(dataset, "classes", ())
    fields = {name: Field(value.dtype, tuple(value.shape)) for name, value in first.items()}
    target = target_called(fields)
    if target and not fields[target].shape and not fields[target].dtype.is_floating_point and classes:
        fields[target] = Field(fields[target].dtype, (), tuple(map(str, classes)))
    return Items(dataset, fields)


def _read(dataset: Any, index: int) -> dict[str, Tensor]:
    try:
        item = dataset[index]
    except Exception as error:
        reason = typed(error, 200)
        raise OnnxgenError(f"item {index} of {type(dataset).__name__} can't be read: {reason}") from error
    if isinstance(item, Mapping):
        named = {str(k): v for k, v in item.items()}
    else:
        named = by_position(item if isinstance(item, (tuple, list)) else [item])
    return {name: _tensor(value, name, index) for name, value in named.items()}


def by_position(values: Sequence[Any]) -> dict[str, Any]:
    """Name the values of a tuple: "0", "1", ...; the last of several is "target"."""
    last = len(values) - 1
    return {"target" if 0 < i == last else str(i): value for i, value in enumerate(values)}


def _tensor(value: Any, name: str, index: int) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if hasattr(value, "getbands"):  # a PIL image
        return torch.from_numpy(np.array(value))
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float32)
    try:
        return torch.as_tensor(np.asarray(value))
    except TypeError:
        what = f"column {name!r} of item {index} is {type(value).__name__}, which is not a number, array or image"
        raise OnnxgenError(what, help="let the dataset turn it into a tensor") from None


def _stacked(values: Sequence[Tensor | None], name: str, indices: Sequence[int]) -> Tensor:
    present = [v for v in values if v is not None]
    if len(present) < len(values):
        raise OnnxgenError(f"item {indices[values.index(None)]} has no column {name!r}, but the first item has")
    for value, index in zip(present, indices):
        if value.shape != present[0].shape or value.dtype != present[0].dtype:
            what = f"column {name!r} is {list(value.shape)} {value.dtype} in item {index}"
            what += f", but {list(present[0].shape)} {present[0].dtype} in item {indices[0]}"
            raise OnnxgenError(what, help="let the dataset give all samples one shape")
    return torch.stack(present)


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed % 2**63)


@contextmanager
def _own_generators() -> Iterator[None]:
    """Restore the global generators afterwards, even after an error (Lightning's `isolate_rng` does not)."""
    states = identity.capture(_CPU)
    try:
        yield
    finally:
        identity.restore(states, _CPU)
