"""Finds the columns of pairs and triplets of samples that are compared, and reads them from folders of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError
from onnxgen.record.signature import Port, Signature
from onnxgen.training.data.arrays import Columns
from onnxgen.training.data.faults import Faults
from onnxgen.training.data.folder import Images
from onnxgen.training.data.layout import SUFFIXES
from onnxgen.training.data.looking import looked_at
from onnxgen.training.data.pairs import laid_out, paired
from onnxgen.training.data.samples import Feeding
from onnxgen.training.data.source import DataSource
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import card_of, task_for

ANCHOR, POSITIVE, NEGATIVE = MEMBERS = ("anchor", "positive", "negative")


def member_columns(source: DataSource, ports: Signature, settings: Settings) -> tuple[str, ...]:
    """Return the columns "anchor", "positive" and perhaps "negative" of arrays or images; () if there are no tuples.

    Raises:
        OnnxgenError: they have different shapes.
    """
    fields = next(iter(source.parts.values())).fields
    if settings.target is not None or len(ports.inputs) != 1:
        return ()
    named = tuple(name for name in MEMBERS if name in fields)
    if named[:2] != MEMBERS[:2] or not all(fields[name].shape or name in source.whites for name in named):
        return ()
    first = fields[named[0]]
    for name in named[1:]:
        if (fields[name].shape, fields[name].dtype) != (first.shape, first.dtype):
            shapes = f"{list(first.shape)} and {list(fields[name].shape)}"
            what = f"columns {legible(named[0])!r} and {legible(name)!r} are for one input, but differ: {shapes}"
            raise OnnxgenError(what, help="give both in one shape and dtype")
    return named


def members_of(
    source: DataSource, ports: Signature, settings: Settings, targets: bool
) -> Mapping[str, tuple[str, ...]]:
    """Return `member_columns` by the input that they feed; {} without tuples, and if no `targets` are needed."""
    found = member_columns(source, ports, settings) if card_of(settings.task).compares and targets else ()
    return {ports.inputs[0].name: found} if found else {}


def feeding_of(members: Mapping[str, tuple[str, ...]], score: str, ports: Signature) -> Feeding:
    """Return the columns of the first member of each tuple, and the `score` of the tuple, if there is one.

    Raises:
        OnnxgenError: the batch size is fixed, or an input has no column.
    """
    _refuse_fixed_batch(ports.inputs)
    if left := [port.name for port in ports.inputs if port.name not in members]:
        what = f"pairs of texts feed {listed(members)}, and nothing feeds {listed(left)}"
        raise OnnxgenError(what, help=f"give a number for all samples: --const {legible(left[0])}=0")
    return Feeding(tuple(members[port.name][0] for port in ports.inputs), {}, (score,) if score else ())


def _refuse_fixed_batch(ports: Sequence[Port]) -> None:
    """Raise `OnnxgenError` if the batch size is fixed: a tuple is two or three rows of a batch."""
    if any(port.dims and isinstance(port.dims[0], int) for port in ports):
        what = "a pair is two rows of a batch, and the model takes batches of one size"
        raise OnnxgenError(what, help="generate it again with --dynamic-batch")


def is_tuples(path: Path) -> bool:
    """Return True for a folder with images in `anchor/` beside `positive/`."""
    return path.is_dir() and bool(laid_out(path, POSITIVE, ANCHOR))


def open_tuples(path: Path, *, strict: bool, labelled: bool = True) -> DataSource:
    """Open `anchor/` beside `positive/` and perhaps `negative/`: columns of these names. Files have the same names.

    Raises:
        OnnxgenError: no tuple can be used.
    """
    layouts = {name: laid_out(path, name, ANCHOR) for name in MEMBERS[1:]}
    layouts = {name: found for name, found in layouts.items() if found}
    faults, parts, lost = Faults(path), {}, 0
    for part in layouts[POSITIVE]:
        rows: dict[Path, dict[str, Path]] = {}
        for name, layout in layouts.items():
            images, others = layout.get(part, (layouts[POSITIVE][part][0], path / name))
            found, shared = paired(images, others, SUFFIXES, faults, name)
            lost += shared
            for image, other in found.items():
                if other is None:
                    faults.add(faults.place(image), f"the image has no {name}")
                else:
                    rows.setdefault(image, {ANCHOR: image})[name] = other
        parts[part] = [row for row in rows.values() if len(row) == len(layouts) + 1]
        lost += len(rows) - len(parts[part])
    return _opened(path, parts, faults, strict, lost, (ANCHOR, *layouts))


def _opened(
    root: Path,
    parts: dict[str, list[dict[str, Path]]],
    faults: Faults,
    strict: bool,
    lost: int,
    members: tuple[str, ...],
) -> DataSource:
    seen = looked_at(root, [file for rows in parts.values() for row in rows for file in row.values()])
    for path, facts in seen.items():
        if isinstance(facts, str):
            faults.add(faults.place(path), f"can't be read: {facts}")
    kept = {part: [row for row in rows if not any(isinstance(seen[f], str) for f in row.values())]
            for part, rows in parts.items()}  # fmt: skip
    skipped = lost + sum(map(len, parts.values())) - sum(map(len, kept.values()))
    notes = faults.notes({part: len(rows) for part, rows in kept.items()}, strict, skipped)
    sizes = {seen[file] for rows in kept.values() for row in rows for file in row.values()}
    size = sizes.pop() if len(sizes) == 1 else None
    assert not isinstance(size, str)
    made = {
        part: Columns({name: Images(tuple(row[name] for row in rows), size) for name in members})  # type: ignore[arg-type]
        for part, rows in kept.items()
    }
    return DataSource(
        dict(made), root.name, "", dict.fromkeys(members, 255.0), notes=notes, task=task_for("tuples"), kinds=seen.kinds
    )
