"""Compares what options name with the network's inputs and a table's columns. Nothing here imports torch.

It refuses only what is certain. All of it is checked again, and more, where the data is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgen.common.names import legible
from onnxgen.errors import OnnxgenError, Problem, Problems
from onnxgen.training.config import parse_size
from onnxgen.training.data.layout import SOUNDS, SUFFIXES
from onnxgen.training.data.preprocessing import texts_of
from onnxgen.training.data.recipes import recipes
from onnxgen.training.data.scales import by_input, parse_scale
from onnxgen.training.data.source import Gaps, listed, target_called
from onnxgen.training.data.table import read_csv
from onnxgen.training.settings import Settings

if TYPE_CHECKING:
    from onnxgen.output.signature import Port

_TABLES = (".csv", ".tsv")
_MOST = 4 << 20  # bytes of a table that is read here, which takes a tenth of a second for each MiB
_WORDS = ("auto", "none", "")
_CHANNELS = (1, 3, 4)


def check_words(settings: Settings, problems: Problems) -> None:
    """Add what is wrong with settings that are small languages: --size, --normalize and --augment."""
    with problems.gathered():
        recipes(settings.augment, False)
    for text, read in ((settings.size, parse_size), (settings.normalize, _read_scale)):
        for part in (part.rpartition("=")[2].strip() for part in text.split(";")):
            if part not in _WORDS:
                with problems.gathered():
                    read(part)


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
            raise OnnxgenError(f"size {size}: input {name!r} is {_shown(port)}", help="leave --size out")


def _shown(port: Port) -> str:
    return f"[{', '.join(map(str, port.dims or ()))}]"


def check_table(
    path: Path, settings: Settings, problems: Problems, refuse_classes: Callable[[Sequence[str]], None]
) -> None:
    """Add what is wrong with a table: rows that can't be read, columns that options name and it lacks, and gaps.

    `refuse_classes` gets the names of the target's classes, if these are text.
    """
    if path.suffix.lower() not in _TABLES or not path.is_file() or path.stat().st_size > _MOST:
        return
    try:
        columns = read_csv(path, texts_of(settings.table))
    except OnnxgenError as error:
        for problem in error.problems:
            problems.add(problem)
        return
    if any(map(_are_files, columns.values())):  # a list of images or sounds, whose columns get other names
        return
    for option, name in _asked(settings, columns):
        if name not in columns:
            problems.add(f"{option}: the data has no such column (it has {listed(columns)})")
    target = settings.target if isinstance(settings.target, str) else target_called(columns)
    used = [name for _, name in _asked(settings, columns)]
    targets = {target, *(c for whole in _targets(settings) for c in _parts(whole, columns))}
    plain = settings.task in ("auto", "classification", "outputs") and settings.teacher is None
    for name in (*used, *([target] if plain and settings.target is None else ())):
        if settings.table == "none" and isinstance(gap := columns.get(name), Problem):
            problems.add(gap.of_target() if isinstance(gap, Gaps) and name in targets else gap)
    values: Any = columns.get(target)
    if plain and target and _is_text(values):
        refuse_classes(sorted({str(value) for value in values}))


def _asked(settings: Settings, columns: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is given, and each column that it names."""
    given = [(f"--inputs {name}={legible(whole)}", whole) for name, whole in settings.inputs.items()]
    for option, whole in given + [(f"--target {legible(whole)}", whole) for whole in _targets(settings)]:
        for column in _parts(whole, columns):
            yield option, column


def _parts(whole: str, columns: Mapping[str, Any]) -> list[str]:
    """Return the columns that a text names: `a+b` names two, unless a column is called so."""
    return [column.strip() for column in ([whole] if whole in columns else whole.split("+"))]


def _targets(settings: Settings) -> list[str]:
    said: Mapping[str, str] = settings.target if isinstance(settings.target, Mapping) else {}
    return [settings.target] if isinstance(settings.target, str) else [*said.values()]


def _is_text(values: Any) -> bool:
    return hasattr(values, "dtype") and values.dtype.kind == "O"


def _are_files(values: Any) -> bool:
    """Return True if a column may hold paths of images or sounds."""
    return _is_text(values) and any(str(value).lower().endswith((*SUFFIXES, *SOUNDS)) for value in values.tolist())
