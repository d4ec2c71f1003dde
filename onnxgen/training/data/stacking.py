"""Joins columns of single numbers into one column for an input: `--inputs features=age+height+weight`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, Problems, counted
from onnxgen.record.signature import Signature
from onnxgen.training.data.arrays import stored
from onnxgen.training.data.matching import no_target
from onnxgen.training.data.preprocessing import fitted
from onnxgen.training.data.samples import Samples
from onnxgen.training.data.source import DataSource, Gaps, target_called, text_input
from onnxgen.training.settings import Settings


def stacked(source: DataSource, ports: Signature, settings: Settings, targets: bool) -> DataSource:
    """Return the data with a column [n, k] for each input or target that takes k columns, in their order.

    It takes several columns if the settings say so (`a+b`). The only input without a column of a table takes all that
    are no targets.

    Raises:
        OnnxgenError: a column is text, has missing values, or has several numbers per sample; or no column of a table
            is known to be the target.
    """
    columns = list(next(iter(source.parts.values())).fields)
    aims = aims_of(source, ports, settings, columns)
    singles = _singles(source) if settings.table != "none" else []
    fed = [*settings.inputs.values(), *(port.name for port in ports.inputs)]
    _refuse_unfit(source, aims if targets else [], [c for c in fed if c not in (*aims, *singles)])
    joined = _asked(ports, settings, columns, aims, singles, targets)
    open_inputs = [p.name for p in ports.inputs if p.name not in (*settings.inputs, *columns, *joined)]
    if (source.table or singles) and len(open_inputs) == 1:
        if targets and not aims:
            raise OnnxgenError(no_target(ports, columns))
        used = {*aims, *fed, *sum(joined.values(), [])}
        left = [c for c in dict.fromkeys((*singles, *columns, *source.unfit)) if c not in used]
        joined |= {open_inputs[0]: left} if len(left) > 1 or {*left} & {*source.unfit, *singles} else {}
    problems = Problems()
    for name, members in joined.items():
        option = "--target" if name in aims else "--table" if singles else "--inputs"
        _check(source, [member for member in members if member not in singles], problems, option)
    problems.raise_if_any()
    return replace(
        source,
        parts={part: _with_columns(samples, joined, bool(singles)) for part, samples in source.parts.items()},
        joined={name: members for name, members in joined.items() if name not in aims},
        text=source.text - ({*joined} & {*singles}),
        notes=[*source.notes, *_notes(ports, settings, joined)],
    )


def _refuse_unfit(source: DataSource, aims: Sequence[str], inputs: Sequence[str]) -> None:
    problems = Problems()
    for name in (name for name in (*inputs, *aims) if name in source.unfit):
        problem = source.unfit[name]
        problems.add(problem.of_target() if name in aims and isinstance(problem, Gaps) else problem)
    problems.raise_if_any()


def _asked(
    ports: Signature, settings: Settings, columns: list[str], aims: list[str], singles: list[str], targets: bool
) -> dict[str, list[str]]:
    """Return what the table of an earlier run and the settings join, and the inputs that are columns of a table."""
    table, inputs = fitted(settings.table), settings.inputs
    joined = {inputs.get(n, n): list(members) for n, members in table.inputs.items()} if table else {}
    joined |= {c: c.split("+") for c in (*inputs.values(), *(aims if targets else ())) if "+" in c and c not in columns}
    own = {inputs.get(p.name, p.name): p for p in ports.inputs}
    return joined | {c: [c] for c, p in own.items() if c in singles and c not in (*aims, *joined) and p.dtype != "bool"}


def _notes(ports: Signature, settings: Settings, joined: Mapping[str, list[str]]) -> Iterator[str]:
    for name, members in joined.items():
        inputs = [p.name for p in ports.inputs if settings.inputs.get(p.name, p.name) == name]
        if members != [name]:
            yield f"{', '.join(inputs) or 'the target'} gets {counted(len(members), 'column')}: {listed(members)}"


def aims_of(source: DataSource, ports: Signature, settings: Settings, columns: Sequence[str]) -> list[str]:
    """Return the columns that are targets."""
    if settings.target:
        return [settings.target] if isinstance(settings.target, str) else list(settings.target.values())
    named = [p.name for p in ports.outputs if p.name in columns or p.name in source.unfit]
    known = source.target or target_called([*columns, *source.unfit])
    return named or ([known] if known else [])


def _singles(source: DataSource) -> list[str]:
    """Return the columns with one number or text, or none, for each sample, in their order."""
    unusable = {n for n, problem in source.unfit.items() if not isinstance(problem, Gaps)}
    first = next(iter(source.raw.values()), {})
    return [name for name, values in first.items() if name not in unusable and np.ndim(values) == 1]


def _check(source: DataSource, members: Sequence[str], problems: Problems, option: str) -> None:
    fields = next(iter(source.parts.values())).fields
    for member in members:
        if member in source.unfit:
            problems.add(source.unfit[member])
        elif member not in fields:
            problems.add(f"{option}: the data has no column {legible(member)!r} (it has {listed(fields)})")
        elif member in source.text:
            problems.add(text_input(member, fields[member].classes))
        elif fields[member].shape:
            has = f"column {legible(member)!r} has {list(fields[member].shape)} numbers per sample"
            problems.add(f"{has}, but only single numbers can be joined")


def _with_columns(samples: Samples, joined: Mapping[str, list[str]], is_table: bool) -> Samples:
    """Return samples with the new columns; for a table zeros, in whose place `encode` puts its numbers."""
    for name, members in joined.items():
        samples = stored(samples).with_joined(name, members, is_table)
    return samples
