"""Print the page of operators from the registry: `python docs/operators.py > docs/OPERATORS.md`.

An operator stands here because onnxgen has a function for it, or it is written out by others. What was compared
with onnxruntime is in the tests and in benchmarks/MODELS.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import onnx

from onnxgen.ops.registry import Operator, operators
from onnxgen.passes.contrib import bodies

HEAD = """\
# Operators

Printed by `python docs/operators.py > docs/OPERATORS.md` from the registry; `onnxgen ops` lists the same.

An operator stands here because onnxgen has a function for it; what was compared with onnxruntime is in `tests/ops` and,
by file, in `benchmarks/MODELS.md`. The numbers are opsets: from the first one on the function has the operator's
meaning, and at a further one the meaning changed and another function begins. What a function can't express exactly it
refuses with the node's name. "By its body": onnxgen has no function of its own, and puts the nodes by which the ONNX
standard defines the operator in its place. "Written out": operators of onnxruntime and ones that the standard dropped,
for which onnxgen puts the standard's (`onnxgen/passes/contrib`).
"""


def main() -> None:
    rows = {key: _opsets(versions) for key, versions in operators().items() if not key[0].startswith("onnxgen")}
    for schema in onnx.defs.get_all_schemas():
        if (schema.domain, schema.name) not in rows and _has_body(schema) and not schema.deprecated:
            rows[schema.domain, schema.name] = "by its body"
    rows |= dict.fromkeys(bodies() - rows.keys(), "written out")
    print(HEAD)
    print(f"{len(rows)} operators.\n\n| domain | operator | from opset |\n|---|---|---|")
    for (domain, name), opsets in sorted(rows.items()):
        print(f"| {domain or 'ai.onnx'} | {name} | {opsets} |")


def _opsets(versions: list[Operator]) -> str:
    return ", ".join(str(version.since) for version in versions)


def _has_body(schema: onnx.defs.OpSchema) -> bool:
    return bool(schema.has_function or schema.has_context_dependent_function)


if __name__ == "__main__":
    main()
