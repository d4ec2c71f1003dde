"""The answer of `onnxgen diff`, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Side:
    """Where something is in one of the two.

    Attributes:
        module: the path of the module in the generated source; "" is the network itself.
        line: of the source; 0 if it is not known.
        code: that line.
        nodes: the nodes of the ONNX file that the line was made of.
    """

    module: str = ""
    line: int = 0
    code: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Change:
    """A change of the architecture.

    Attributes:
        kind: "added", "removed" or "changed".
        what: the operators, or what became what: "relu -> silu", "eps 1e-05 -> 0.001".
        was, now: the places, if there is one.
    """

    kind: str
    what: str
    was: Side | None = None
    now: Side | None = None

    def __str__(self) -> str:
        place = self.now or self.was or Side()
        return f"{place.module or 'the network'}: {self.what}{'' if self.kind == 'changed' else f' {self.kind}'}"


@dataclass(frozen=True)
class Weight:
    """A tensor of the second network beside what stands in its place in the first.

    Attributes:
        name: the key in the second one's state dict.
        was: the keys of the first that it was made of; empty if there are none.
        how: "same", "rounding", "half", "quantised", "pruned", "scaled", "changed", "resized", "added" or "removed".
        what: that in words.
        shape: the shape.
        relative: the norm of the change, as a share of the norm of what it was.
        cosine: of the angle between both.
        largest: the largest change of an element.
    """

    name: str
    was: tuple[str, ...]
    how: str
    what: str
    shape: tuple[int, ...]
    relative: float = 0.0
    cosine: float = 1.0
    largest: float = 0.0


@dataclass
class Comparison:
    """What changed between two models.

    Attributes:
        one, other: the files.
        verdict: "same", "different" or "not proved".
        why: what the verdict stands on.
        summary: what changed, in sentences.
        changes: of the architecture, in the order of execution.
        weights: all tensors of the second, in its order, and those that only the first has.
        ports: what differs of inputs and outputs.
        file: what differs of the files and not of the function: names, opset, producer, metadata.
        apart: the largest difference of outputs on drawn inputs, as a share of the largest element; None: not computed.
        runs: on how many drawn inputs.
        sources: the two generated sources, as lines.
    """

    one: str
    other: str
    verdict: str = ""
    why: str = ""
    summary: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    file: list[str] = field(default_factory=list)
    apart: float | None = None
    runs: int = 0
    sources: tuple[Sequence[str], Sequence[str]] = field(default=((), ()), repr=False)

    @property
    def changed_weights(self) -> list[Weight]:
        return [weight for weight in self.weights if weight.how not in ("same", "rounding")]

    def as_json(self) -> dict[str, Any]:
        """Return plain types. Weights that are the same are only counted."""
        return {
            "one": self.one,
            "other": self.other,
            "verdict": self.verdict,
            "why": self.why,
            "summary": self.summary,
            "changes": [asdict(change) for change in self.changes],
            "weights": {
                "same": len(self.weights) - len(self.changed_weights),
                "changed": [asdict(weight) for weight in self.changed_weights],
            },
            "ports": self.ports,
            "file": self.file,
            "apart": self.apart,
            "runs": self.runs,
        }
