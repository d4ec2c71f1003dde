"""Joins columns of single numbers into one column for an input: `--inputs features=age+height+weight`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from onnxgen.common.names import printable
from onnxgen.errors import Problem, Problems
from onnxgen.output.signature import Signature
from onnxgen.training.data.arrays import Arrays
from onnxgen.training.data.feeding import no_target
from onnxgen.training.data.source import DataSource, listed, target_called
from onnxgen.training.settings import Settings


def stack(source: DataSource, ports: Signature, settings: Settings, targets: bool) -> None:
    """Add a column [n, k] for each input that takes k columns, in their order.

    An input takes several columns if the settings say so. If it is the only input without a column of a table, it takes
    all columns except the targets.

    Raises:
        OnnxgenError: a column is text, has missing values, or has several numbers per sample; or no column of a table
            is known to be the target.
    """
    problems = Problems()
    columns = list(next(iter(source.parts.values())).fields)
    aims = _aims(source, ports, settings, columns)
    for name in (*settings.inputs.values(), *(p.name for p in ports.inputs), *aims):
        if name in source.unfit:
            problems.add(source.unfit[name])
    problems.raise_if_any()
    joined = {c: c.split("+") for c in settings.inputs.values() if "+" in c and c not in columns}
    open_inputs = [p.name for p in ports.inputs if p.name not in settings.inputs and p.name not in columns]
    if source.table and len(open_inputs) == 1:
        if targets and not aims:
            problems.add(no_target(ports, columns))
            problems.raise_if_any()
        used = {*aims, *settings.inputs.values(), *(p.name for p in ports.inputs), *sum(joined.values(), [])}
        left = [c for c in (*columns, *source.unfit) if c not in used]
        joined |= {open_inputs[0]: left} if len(left) > 1 or set(left) & set(source.unfit) else {}
    for name, members in joined.items():
        _join(source, name, members, problems)
    problems.raise_if_any()
    for name, members in joined.items():
        inputs = [p.name for p in ports.inputs if settings.inputs.get(p.name, p.name) == name]
        source.notes.append(f"{', '.join(inputs)} gets {len(members)} columns: {listed(members)}")


def _aims(source: DataSource, ports: Signature, settings: Settings, columns: Sequence[str]) -> list[str]:
    """Return the columns that are targets."""
    if settings.target:
        return [settings.target] if isinstance(settings.target, str) else list(settings.target.values())
    named = [p.name for p in ports.outputs if p.name in columns or p.name in source.unfit]
    known = source.target or target_called([*columns, *source.unfit])
    return named or ([known] if known else [])


def _join(source: DataSource, name: str, members: Sequence[str], problems: Problems) -> None:
    fields = next(iter(source.parts.values())).fields
    for member in members:
        if member in source.unfit:
            problems.add(source.unfit[member])
        elif member not in fields:
            problems.add(f"--inputs: the data has no column {printable(member)!r} (it has {listed(fields)})")
        elif member in source.text:
            problems.add(text_input(member))
        elif fields[member].shape:
            has = f"column {printable(member)!r} has {list(fields[member].shape)} numbers per sample"
            problems.add(f"{has}, but only single numbers can be joined")
    for part, samples in source.parts.items() if not problems.found else ():
        assert isinstance(samples, Arrays)
        columns = [samples.columns[member] for member in members]
        whole = not any(c.is_floating_point() for c in columns)
        stacked = torch.stack([c.to(torch.int64 if whole else torch.float32) for c in columns], 1)
        source.parts[part] = Arrays({**samples.columns, name: stacked}, samples.classes, samples.rows)


def text_input(column: str) -> Problem:
    """Return the problem that an input takes numbers, but its column holds text."""
    return Problem(
        f"column {printable(column)!r} holds text, but only a target may",
        help="convert it to numbers, or name the columns to use: --inputs INPUT=COLUMN+COLUMN",
    )
