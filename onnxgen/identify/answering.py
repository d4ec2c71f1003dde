"""The answer of `onnxgen identify`: the steps of a file are compared with those of known networks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from onnxgen.errors import counted
from onnxgen.identify import LIBRARIES
from onnxgen.identify.families import Family, Sizes, families
from onnxgen.identify.reading import Reading
from onnxgen.identify.steps import DEEPEST_HEAD, FEWEST_LAYERS, Bag, Network, Table, digest, layers, weights_digest
from onnxgen.identify.table import Entry, architectures

FEW = 8  # kinds of tokens; other tables have more rows


@dataclass(frozen=True)
class Known:
    """A network with the same steps as the file.

    Attributes:
        build: the expression that makes it; "" for a network of no library.
        into: the arguments of `onnxgen transplant` that fill it; "" if it needs a class of one's own.
    """

    library: str
    name: str
    build: str = ""
    into: str = ""


@dataclass(frozen=True)
class Answer:
    """Which architecture a file is.

    Attributes:
        networks: those whose bodies have the same steps as the file's. Empty: none is known.
        evidence: what was compared.
        differs: what a network of `networks` has otherwise, such as another head.
        nearest: networks with the same layers and other steps between them. The file is none of them.
    """

    networks: Sequence[Known] = ()
    evidence: Sequence[str] = ()
    differs: Sequence[str] = ()
    nearest: Sequence[str] = ()
    versions: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"named": bool(self.networks), **asdict(self)}


def answer(reading: Reading, libraries: Sequence[str] = LIBRARIES) -> Answer:
    """Compare the steps of a file with those of known networks."""
    network, nearest = reading.network, list[str]()
    for depth in range(DEEPEST_HEAD + 1):
        body = network.body(depth)
        if layers(body) < FEWEST_LAYERS:
            break
        known = [*_of_table(network, body, depth, libraries), *_of_families(reading, body, libraries)]
        limited = reading.quantised and not known
        if limited:
            known = list(_of_table(network, _limited(body), depth, libraries))
        if known:
            versions = {k: v for k, v in architectures().versions.items() if k in {each.library for each in known}}
            return Answer(known, list(_evidence(body)), list(_differs(network, depth, limited)), (), versions)
        entries = architectures().weights.get(weights_digest(body), [])
        nearest += [f"{e.library} {name}" for e in entries if e.library in libraries for name in e.names[:3]]
    return Answer(nearest=list(dict.fromkeys(nearest)))


def _evidence(body: Bag) -> Iterator[str]:
    total = sum(body.values())
    yield f"{layers(body)} of {counted(layers(body), 'layer')} of the body, and all {counted(total, 'step')} with them"
    heads = {label.split()[1] for label in body if re.match(r"product \d", label)}
    if heads:
        yield f"attention with {' and '.join(sorted(heads, key=int))} heads"


def _limited(body: Bag) -> Bag:
    """Return the steps with a ReLU6 for each ReLU. A quantiser leaves it out where its integers end at 6."""
    limited: Bag = Counter()
    for label, count in body.items():
        limited[re.sub(r"\brelu\b", "relu6", label)] += count
    return limited


def _differs(network: Network, depth: int, limited: bool) -> Iterator[str]:
    if limited:
        yield "the file has ReLU where the network has ReLU6: the limit is that of its integers"
    if depth == 0:
        yield "all layers of the file are those of the body: it has no head of its own"
    elif depth > 1:
        yield f"the last {depth} layers on the way to an output are not compared: they are the file's own head"


def _of_table(network: Network, body: Bag, depth: int, libraries: Sequence[str]) -> Iterator[Known]:
    entries = architectures().bodies.get(digest(body), [])
    for entry in sorted(entries, key=lambda entry: LIBRARIES.index(entry.library)):
        if entry.library in libraries:
            names = sorted(entry.names, key=lambda name: _plainness(name, network.size))
            yield from (_known(entry, name, network, depth) for name in names)


def _plainness(name: str, size: int | None) -> tuple[bool, int, str]:
    """Names come first that do not say another size of images, then short ones."""
    said = re.search(r"_(\d{3})(_|$)", name)
    return said is not None and int(said[1]) != size, len(name), name


def _known(entry: Entry, name: str, network: Network, depth: int) -> Known:
    classes = network.classes() if depth == 1 else 0 if depth == 0 else None
    channels = network.channels if len(network.channels) == 1 else {3}
    given = {} if classes in (None, 1000) else {"num_classes": classes}
    if entry.library == "timm":
        given |= {} if channels == {3} else {"in_chans": next(iter(channels))}
        rest = "".join(f", {key}={value}" for key, value in given.items())
        into = f"--into timm:create_model --arg model_name={name}"
        into += "".join(f" --arg {key}={value}" for key, value in given.items())
        return Known("timm", name, f"timm.create_model({name!r}{rest})", into)
    if entry.library == "torchvision":
        given = {key: value for key, value in given.items() if value}
        rest = ", ".join(f"{key}={value}" for key, value in given.items())
        into = f"--into torchvision.models:{name}" + "".join(f" --arg {key}={value}" for key, value in given.items())
        return Known("torchvision", name, f"torchvision.models.{name}({rest})", "" if depth != 1 else into)
    return Known(entry.library, name.replace("_", " "))


# ---- families ----


def _of_families(reading: Reading, body: Bag, libraries: Sequence[str]) -> Iterator[Known]:
    found = [
        (family, sizes)
        for family in families()
        if family.library in libraries and (sizes := family.solve(body)) is not None
    ]
    for family, sizes in found:
        tables = _Tables.of(reading.network.tables, sizes.get("e", sizes.get("d", 0)))
        shared = any(other.shared and other.solve(body) for other in families()) and reading.shares_weights()
        if tables.fit(family) and family.shared == shared:
            yield Known(family.library, family.name, _call(family, sizes, tables))


@dataclass(frozen=True)
class _Tables:
    """What the tables of a file are: each is None if there is none, or none that is seen."""

    words: Table | None
    positions: Table | None
    types: Table | None

    @classmethod
    def of(cls, tables: Sequence[Table], width: int) -> _Tables:
        own = [table for table in dict.fromkeys(tables) if table.width == width]
        types = next((table for table in own if table.rows <= FEW), None)
        many = sorted((table for table in own if table.rows > FEW), key=lambda table: -table.rows)
        words = next((table for table in many if table.chosen_by), None)
        positions = next((table for table in many if table is not words), None)
        return cls(words, positions, types)

    @property
    def of_words(self) -> bool:
        """The rows of positions are computed of the words."""
        words, positions = self.words, self.positions
        return words is not None and positions is not None and bool(words.chosen_by & positions.chosen_by)

    def fit(self, family: Family) -> bool:
        if not family.tables or self.words is None:
            return True
        if self.positions is not None and "positions" not in family.tables:
            return False
        if self.types is not None:
            alone = self.types.rows == 1 and not self.of_words
            return "types" in family.tables and (alone or family.positions_of_words == self.of_words)
        if self.of_words != family.positions_of_words:
            return False
        return self.positions is None or "types" not in family.tables

    def arguments(self, family: Family) -> dict[str, int]:
        of = {"words": self.words, "positions": self.positions, "types": self.types}
        return {name: table.rows for what, name in family.tables.items() if (table := of[what]) is not None}


def _call(family: Family, sizes: Sizes, tables: _Tables) -> str:
    given: dict[str, Any] = {
        name: sizes[size] for size, names in family.sizes.items() for name in names.split() if size in sizes
    }
    given |= {**family.fixed, **tables.arguments(family)}
    arguments = ", ".join(f"{name}={value!r}" for name, value in given.items())
    name, _, part = family.name.partition(".")
    call = f"{family.library}.{name}({family.library}.{family.config}({arguments}))"
    return f"{call}.get_submodule({part!r})" if part else call
