"""Print the page of operators: `python docs/operators.py > docs/OPERATORS.md`.

It is made of the registry, of what cards say of gradients, and of the counts of ONNX's backend tests, which
`tests/backend/test_counts.py` holds to the installed onnx.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import onnx

import onnxgen
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import bodies, by_input, everywhere, key, operators
from onnxgen.passes.standard import STANDARD_BODIES

ONNXGEN = Path(onnxgen.__file__).parent
COUNTS = Path(__file__).resolve().parents[1] / "tests" / "backend" / "counts.txt"
COLUMNS = ("domain", "operator", "file", "from opset", "newest", "backend tests", "gradients", "kind", "notes")
HEAD = """\
# Operators

`python docs/operators.py > docs/OPERATORS.md` prints this page. `onnxgen ops` lists the operators that have a function.

- **file**: where its function is, in `onnxgen/`.
- **from opset**: the first opset for which onnxgen has a function. A further number is the opset in which the meaning
  changed, and another function begins. "written out": onnxgen has no function, and writes standard nodes instead. These
  are operators of onnxruntime (`onnxgen/microsoft`) and operators that the standard dropped (`onnxgen/passes/contrib`),
  and some that the standard defines by others (`onnxgen/passes/standard`).
- **newest**: the operator's newest schema in onnx {version}.
- **backend tests**: of the {total} tests of ONNX's own runner, how many with this operator pass, and how many there are
  (`tests/backend`). {passed} pass in all. `tests/backend/exclusions.py` says why the others do not count. An operator
  without such a test is compared with onnxruntime, or with a definition in numpy, in `tests/ops`.
- **gradients**: "yes" if `tests/gradients` compares them with finite differences in float64, for each input of floating
  point. Otherwise the reason why there are none (`onnxgen/graph/operators.py`), which a test also checks.
- **kind**: properties that passes ask for (`onnxgen/graph/traits.py` explains the words).
- **notes**: what the function does, and what it refuses instead of guessing.
"""

OWN = f"""
## Private operators

Passes write these where PyTorch has a layer or a function and ONNX has several nodes. They are in no file. Their domain
is `{DOMAIN}`.

| operator | file | inputs and attributes | kind | notes |
|---|---|---|---|---|"""


def main() -> None:
    names = _names()
    passed, total = _counts()["*"]
    print(HEAD.format(version=onnx.__version__, passed=passed, total=total))
    print(f"{len(names)} operators.\n")
    print(_row(COLUMNS) + "\n|" + "---|" * len(COLUMNS))
    for domain, name in sorted(names):
        cells = (domain or "ai.onnx", name, _file(domain, name), _opsets(domain, name), _newest(domain, name))
        more = (_tested(domain, name), _gradients(domain, name), _kind(domain, name), _notes(domain, name))
        print(_row((*cells, *more)))
    print(OWN)
    for domain, name in sorted(pair for pair in operators() if pair[0] == DOMAIN):
        inputs = ", ".join(operators()[domain, name][-1].parameters)
        print(_row((name, _file(DOMAIN, name), inputs, _kind(domain, name), _notes(domain, name))))


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells).rstrip() + " |"


def _functions(domain: str, name: str) -> list[Callable[..., Any]]:
    own = [version.function for version in (bodies() | operators()).get((domain, name), [])]
    return own or [function for key_, function in STANDARD_BODIES.items() if key_ == (domain, name)]


def _file(domain: str, name: str) -> str:
    """Return where an operator's functions are; for a function that another one made, where the operator is named."""
    found: dict[str, None] = {}
    for function in _functions(domain, name):
        own = Path(inspect.getsourcefile(function) or "")
        named = [own]
        if "<locals>" in function.__qualname__:
            keys = (f'"{name}":', f'op("{name}"')
            named = [path for path in sorted(own.parent.glob("*.py")) if any(k in path.read_text() for k in keys)]
        found.update(dict.fromkeys(path.relative_to(ONNXGEN).as_posix() for path in named[:1] or [own]))
    return ", ".join(found)


def _kind(domain: str, name: str) -> str:
    versions = operators().get((domain, name))
    return ", ".join(sorted(trait.value for trait in versions[-1].traits)) if versions else ""


def _names() -> set[tuple[str, str]]:
    return {name for name in operators() if name[0] != DOMAIN} | {*bodies(), *STANDARD_BODIES}


def _opsets(domain: str, name: str) -> str:
    if (domain, name) in operators():
        return ", ".join(str(version.since) for version in operators()[domain, name])
    return "written out"


@cache
def _schemas() -> dict[tuple[str, str], list[Any]]:
    found: dict[tuple[str, str], list[Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        found.setdefault((schema.domain, schema.name), []).append(schema)
    return found


def _newest(domain: str, name: str) -> str:
    history = sorted(_schemas().get((domain, name), []), key=lambda s: s.since_version)
    kept = [str(s.since_version) for s in history if not s.deprecated]
    dropped = f", deprecated in {history[-1].since_version}" if history and history[-1].deprecated else ""
    return kept[-1] + dropped if kept else ""


@cache
def _counts() -> dict[str, tuple[int, int]]:
    """Of each operator the tests that pass, and all; "*" has those of all operators."""
    rows = [line.split() for line in COUNTS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {name: (int(passed), int(total)) for name, passed, total in rows}


def _tested(domain: str, name: str) -> str:
    counts = _counts().get(key(domain, name))
    return f"{counts[0]}/{counts[1]}" if counts else ""


def _gradients(domain: str, name: str) -> str:
    nowhere = everywhere(domain, name)
    if nowhere is not None:
        return f"no: {nowhere}"
    inputs = by_input(domain, name)
    return "; ".join(["yes", *(f"not by `{parameter}`: {reason}" for parameter, reason in inputs.items())])


def _notes(domain: str, name: str) -> str:
    """The first sentence of each function's docstring, and what it refuses."""
    functions = _functions(domain, name)
    told = dict.fromkeys((inspect.getdoc(f) or "").partition("\n")[0] for f in functions)
    refused = "; ".join(dict.fromkeys(text for f in functions for text in _refusals(f)))
    parts = [*filter(None, told), f"Refused: {refused}." if refused else ""]
    return " ".join(parts).strip().replace("|", "\\|")


def _refusals(function: Callable[..., Any]) -> Iterator[str]:
    """What `b.error(...)` and `Refused(...)` in a function say first; … for what depends on the node."""
    for call in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        called = call.func if isinstance(call, ast.Call) else None
        named = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if isinstance(call, ast.Call) and named in ("error", "Refused") and call.args:
            text = call.args[0]
            if isinstance(text, ast.Constant):
                yield str(text.value)
            elif isinstance(text, ast.JoinedStr):
                yield "".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in text.values)


if __name__ == "__main__":
    main()
