"""The table of architectures: fingerprints of the networks of libraries, as data.

    # made with torchvision 0.28.0, timm 1.0.31
    0123456789abcdef 0123456789abcdef 20 torchvision:resnet18 timm:resnet18

A row has the fingerprint of a body, that of its layers alone, the number of layers, and the names of the networks.
No library needs to be installed to read it. `python -m benchmarks.architectures` and `benchmarks.published` make it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

FILES = ("architectures.txt", "published.txt")
MADE = "# made with "


@dataclass(frozen=True)
class Entry:
    """The networks of one library that have one fingerprint."""

    digest: str
    weights: str
    layers: int
    library: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Rows by the fingerprint of the body, and by that of its layers alone; the versions of the libraries."""

    bodies: dict[str, list[Entry]]
    weights: dict[str, list[Entry]]
    versions: dict[str, str]


@cache
def architectures() -> Table:
    """Read the table."""
    return read([Path(__file__).with_name(name).read_text(encoding="utf-8") for name in FILES])


def read(texts: Iterable[str]) -> Table:
    """Read the texts of tables as one."""
    table = Table({}, {}, {})
    for line in "".join(texts).splitlines():
        if line.startswith(MADE):
            table.versions.update(dict(part.split() for part in line.removeprefix(MADE).split(", ")))
        elif line and not line.startswith("#"):
            body, weights, layers, *names = line.split()
            for library in dict.fromkeys(name.partition(":")[0] for name in names):
                own = tuple(name.partition(":")[2] for name in names if name.startswith(f"{library}:"))
                entry = Entry(body, weights, int(layers), library, own)
                table.bodies.setdefault(body, []).append(entry)
                table.weights.setdefault(weights, []).append(entry)
    return table


def written(entries: Iterable[Entry], versions: Sequence[str]) -> str:
    """Return the text of a table."""
    rows: dict[str, tuple[Entry, list[str]]] = {}
    for entry in entries:
        first, names = rows.setdefault(entry.digest, (replace(entry, names=()), []))
        assert (first.weights, first.layers) == (entry.weights, entry.layers)
        names += [f"{entry.library}:{name}" for name in entry.names]
    lines = [
        f"{digest} {entry.weights} {entry.layers} {' '.join(names)}" for digest, (entry, names) in sorted(rows.items())
    ]
    return "\n".join([MADE + ", ".join(versions), *lines, ""])
