"""Limits on the size of a file; a file past a limit is refused with the limit's name and how to raise it.

`--limit NAME=N` on the command line, `limit = {NAME = N}` in `[tool.onnxgen]`, `Options(limits=Limits(NAME=N))`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from onnxgen.errors import OnnxgenError

MAX_GRAPH_DEPTH = 100  # nested graphs; the stacks of Python and protobuf overflow not much later


def _limit(default: int, of: str) -> int:
    limit: int = field(default=default, metadata={"of": of})
    return limit


@dataclass(frozen=True)
class Limits:
    """Sizes past which a file is refused. Raise them for large files that you trust.

    A file past the default of one of the first three, which the caller has raised, is read by a process of its own
    first, that may use so much `memory` and so many `seconds`.
    """

    fields: int = _limit(10_000_000, "fields of the protobuf; counted before it is parsed")
    nodes: int = _limit(250_000, "nodes, with those of inner graphs, and once local functions are inlined")
    initializers: int = _limit(250_000, "stored tensors")
    depth: int = _limit(32, "graphs in graphs: branches and bodies of loops (100 at most)")
    rank: int = _limit(64, "dims of a tensor")
    name_length: int = _limit(65_536, "characters of a name")
    text_length: int = _limit(16_777_216, "bytes of a string in an attribute or a tensor")
    fold_elements: int = _limit(16_777_216, "elements of sparse tensors made dense, and of constants computed, in all")
    written: int = _limit(67_108_864, "bytes of weights, past four times the bytes that were read")
    source_length: int = _limit(67_108_864, "characters of the generated source")
    memory: int = _limit(8_000_000_000, "bytes of memory of the process that reads a file past the defaults first")
    seconds: int = _limit(600, "seconds of processor time of that process")

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit < 2**63:
                raise OnnxgenError(f"--limit {name}={limit}: the number must be whole, from 1 to {2**63 - 1}")
        if self.depth > MAX_GRAPH_DEPTH:
            raise OnnxgenError(f"--limit depth={self.depth}: the number must be at most {MAX_GRAPH_DEPTH}")

    def past(self, name: str, count: int, what: str) -> str | None:
        """Return a message if `count` passes the limit `name`, else None. It begins with `what` ("it has 70 dims")."""
        limit: int = getattr(self, name)
        if count <= limit:
            return None
        return f"{what}; the limit is {limit:,} (raise it with --limit {name}={count})"


NAMES = tuple(f.name for f in fields(Limits))
