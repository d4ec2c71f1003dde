"""Opens data of any kind, and makes it fit a model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from onnxgen.errors import OnnxgenError
from onnxgen.training.byname import FUNCTION
from onnxgen.training.config import DIGITS, SHARDS
from onnxgen.training.data.archives import read_npz
from onnxgen.training.data.boxes.coco import open_coco
from onnxgen.training.data.boxes.there import is_coco, is_voc, is_yolo
from onnxgen.training.data.boxes.voc import open_voc
from onnxgen.training.data.boxes.yolo import open_yolo
from onnxgen.training.data.columns import from_columns, from_parts, open_digits, read_safetensors
from onnxgen.training.data.faults import Faults
from onnxgen.training.data.fitting import fit_to_model
from onnxgen.training.data.folder import IMAGE, open_folder
from onnxgen.training.data.gaps import without_gaps
from onnxgen.training.data.idx import is_idx, open_idx
from onnxgen.training.data.image_pairs import is_pairs, open_pairs
from onnxgen.training.data.layout import files_in, folders, part_called, refuse_special
from onnxgen.training.data.lists import is_list, lists_in, read_list, with_images, without_targets
from onnxgen.training.data.masks import is_masks, open_masks
from onnxgen.training.data.objects import call, from_object
from onnxgen.training.data.preprocessing import texts_of
from onnxgen.training.data.samples import Data
from onnxgen.training.data.sounds import is_sounds, open_sounds, with_sounds
from onnxgen.training.data.source import DataSource
from onnxgen.training.data.streaming.opening import matching, open_stream, shards_of
from onnxgen.training.data.table import read_csv, read_parquet
from onnxgen.training.data.text.lines import read_jsonl, read_txt
from onnxgen.training.data.tuples import is_tuples, open_tuples
from onnxgen.training.data.unpacked import unpacked
from onnxgen.training.settings import Settings
from onnxgen.training.singly import run_singly
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
    found = open_source(spec, settings, targets=targets)
    run_singly(model, found, settings)
    return found if isinstance(found, Data) else fit_to_model(found, model, settings, targets)


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
    found = _open_path(inner := unpacked(path), settings, targets, texts)
    if inner != path:
        found.notes.insert(0, f"{path} has nothing but the folder {inner.relative_to(path).as_posix()}: it is the data")
    return found


def _open_path(path: Path, settings: Settings, targets: bool, texts: Collection[str]) -> DataSource:
    if SHARDS.fullmatch(str(path)) and not path.exists():
        return open_stream(matching(str(path)), path.name, settings)
    _need(path)
    if is_idx(path):
        return open_idx(path)
    if shards := shards_of(path) if targets or path.suffix.lower() != ".npy" else []:
        return open_stream(shards, path.name, settings)
    lists = lists_in(path) if path.is_dir() else {}
    files = lists or (_parts(path) if path.is_dir() else {"": path})
    kind = next(iter(files.values())).suffix.lower() if files else ""
    if kind in FILES:
        read, has_images = _of_files(path, files, kind, settings, targets, texts)
        if has_images or not lists:  # else the file in the folder lists no images, and there may be some in another way
            return read
    if is_sounds(path):
        return open_sounds(path, settings, targets and settings.teacher is None)
    kinds = [what for what, (is_there, _) in _LABELLED.items() if is_there(path)]
    if settings.task != AUTO:  # folders of classes, unless it is this task
        kinds = [what for what in kinds if _OF_TASKS.get(what, settings.task) == settings.task]
    if len(kinds) > 1:
        raise OnnxgenError(f"{path} has {' and '.join(kinds)}", help="name the one to train with")
    if kinds:
        reader = _LABELLED[kinds[0]][1]
        reader = partial(reader, classes=settings.classes) if reader is open_yolo else reader
        return reader(path, strict=settings.strict, labelled=targets)
    if path.is_dir():
        return open_folder(
            path, strict=settings.strict, labelled=targets and settings.teacher is None and settings.noise is None
        )
    raise OnnxgenError(f"onnxgen can't read data from {path}", help=KINDS)


def _of_files(
    path: Path, files: Mapping[str, Path], kind: str, settings: Settings, targets: bool, texts: Collection[str]
) -> tuple[DataSource, bool]:
    """Return the data of files of one kind, by part ("": of all parts), and True if it has images in place of names."""
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
    if table and (found := with_images(read, files, faults, settings.strict)) is not None:
        return (found if targets or IMAGE in read.whites else without_targets(found)), True
    return read, False


def _need(path: Path) -> None:
    if not path.exists():
        raise OnnxgenError(f"no file or folder {path}", help=KINDS)
    refuse_special(path)


def _parts(folder: Path) -> dict[str, Path]:
    """Return the files `train.csv`, `val.csv` and so on of a folder by part, all of one kind; {} without `train`."""
    found: dict[str, Path] = {}
    for path in files_in(folder, *FILES):
        part = part_called(path.stem)
        if part in found:
            raise OnnxgenError(f"{folder} has two files for {part}: {found[part].name} and {path.name}")
        if part:
            found[part] = path
    if len({path.suffix.lower() for path in found.values()}) > 1:
        raise OnnxgenError(f"{folder} has files of several kinds: {', '.join(p.name for p in found.values())}")
    if any(path.suffix.lower() == ".txt" for path in found.values()) and folders(folder):
        return {}  # images, whose names these files list
    return found if "train" in found else {}
