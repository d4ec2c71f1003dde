"""Joins columns of single numbers into one column for an input: `--inputs features=age+height+weight`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from onnxgen.common.names import legible, listed
from onnxgen.errors import Problems, counted
from onnxgen.record.signature import Signature
from onnxgen.training.data.arrays import Arrays
from onnxgen.training.data.matching import no_target
from onnxgen.training.data.preprocessing import fitted
from onnxgen.training.data.source import DataSource, Gaps, target_called, text_input
from onnxgen.training.data.streaming.stream import Stream
from onnxgen.training.settings import Settings


def stack(source: DataSource, ports: Signature, settings: Settings, targets: bool) -> None:
    """Add a column [n, k] for each input or target that takes k columns, in their order.

    It takes several columns if the settings say so (`a+b`). The only input without a column of a table takes all that
    are no targets.

    Raises:
        OnnxgenError: a column is text, has missing values, or has several numbers per sample; or no column of a table
            is known to be the target.
    """
    problems = Problems()
    columns = list(next(iter(source.parts.values())).fields)
    aims = aims_of(source, ports, settings, columns)
    singles = _singles(source) if settings.table != "none" else []
    for name in (*settings.inputs.values(), *(p.name for p in ports.inputs), *aims):
        if name in source.unfit and (targets if name in aims else name not in singles):
            problem = source.unfit[name]
            problems.add(problem.of_target() if name in aims and isinstance(problem, Gaps) else problem)
    problems.raise_if_any()
    table = fitted(settings.table)
    joined = {settings.inputs.get(n, n): list(members) for n, members in table.inputs.items()} if table else {}
    sums = (*settings.inputs.values(), *(aims if targets else ()))
    joined |= {c: c.split("+") for c in sums if "+" in c and c not in columns}
    own = {settings.inputs.get(p.name, p.name): p for p in ports.inputs}
    joined |= {c: [c] for c, p in own.items() if c in singles and c not in (*aims, *joined) and p.dtype != "bool"}
    open_inputs = [p.name for p in ports.inputs if p.name not in (*settings.inputs, *columns, *joined)]
    if (source.table or singles) and len(open_inputs) == 1:
        if targets and not aims:
            problems.add(no_target(ports, columns))
            problems.raise_if_any()
        used = {*aims, *settings.inputs.values(), *(p.name for p in ports.inputs), *sum(joined.values(), [])}
        left = [c for c in dict.fromkeys((*singles, *columns, *source.unfit)) if c not in used]
        joined |= {open_inputs[0]: left} if len(left) > 1 or {*left} & {*source.unfit, *singles} else {}
    for name, members in joined.items():
        option = "--target" if name in aims else "--table" if singles else "--inputs"
        _join(source, name, members, singles, problems, option)
    problems.raise_if_any()
    source.joined = {name: members for name, members in joined.items() if name not in aims}
    source.text -= {*joined} & {*singles}
    for name, members in joined.items():
        inputs = [p.name for p in ports.inputs if settings.inputs.get(p.name, p.name) == name]
        if members != [name]:
            who = ", ".join(inputs) or "the target"
            source.notes.append(f"{who} gets {counted(len(members), 'column')}: {listed(members)}")


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


def _join(
    source: DataSource, name: str, members: Sequence[str], singles: Sequence[str], problems: Problems, option: str
) -> None:
    """Add the joined column; for a table (which has `singles`) zeros, in whose place `encode` puts its numbers."""
    fields = next(iter(source.parts.values())).fields
    for member in members:
        if member in singles:
            continue
        if member in source.unfit:
            problems.add(source.unfit[member])
        elif member not in fields:
            problems.add(f"{option}: the data has no column {legible(member)!r} (it has {listed(fields)})")
        elif member in source.text:
            problems.add(text_input(member, fields[member].classes))
        elif fields[member].shape:
            has = f"column {legible(member)!r} has {list(fields[member].shape)} numbers per sample"
            problems.add(f"{has}, but only single numbers can be joined")
    for part, samples in source.parts.items() if not problems.found else ():
        if isinstance(samples, Stream):
            source.parts[part] = samples.with_joined(name, members)
            continue
        assert isinstance(samples, Arrays)
        columns = [torch.zeros(len(samples)) if singles else samples.columns[member] for member in members]
        whole = not any(c.is_floating_point() for c in columns)
        stacked = torch.stack([c.to(torch.int64 if whole else torch.float32) for c in columns], 1)
        classes = {column: names for column, names in samples.classes.items() if column != name}
        source.parts[part] = Arrays({**samples.columns, name: stacked}, classes, samples.rows)
