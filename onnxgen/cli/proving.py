"""`onnxgen prove`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onnxgen.cli.say import progress, tell, tell_json
from onnxgen.errors import OnnxgenError

if TYPE_CHECKING:
    from onnxgen.canonical.prove import Proof

CODES = {"proved": 0, "different": 1, "not proved": 4}
MAX_NODES = 6  # of a line that are named


def prove_command(
    model: Path, module: Path | None, *, runs: int, seed: int, rename: bool, quiet: bool, verbose: bool, as_json: bool
) -> int:
    """Prove, and print the verdict. Returns the exit code."""
    from onnxgen.canonical.prove import prove
    from onnxgen.pipeline import default_out

    if model.suffix == ".py" and module is not None and module.suffix != ".py":
        raise OnnxgenError(f"{model} is no ONNX file", help=f"name it last: onnxgen prove {module} {model}")
    path = default_out(model, module)
    if module is None and not path.is_file():
        raise OnnxgenError(f"there is no module {path}", help=f"name it after {model}, or write it: onnxgen {model}")
    with progress(f"proving {path.name}", quiet or as_json):
        proof = prove(model, path, runs=runs, seed=seed, rename=rename)
    if as_json:
        tell_json(proof.as_json())
    else:
        print_proof(proof, path, quiet, verbose)
    return CODES[proof.verdict]


def print_proof(proof: Proof, module: Path, quiet: bool, verbose: bool) -> None:
    """Print the verdict, where the networks part, and on what inputs."""
    if quiet and proof.verdict == "proved":
        return
    tell(f"{proof.verdict}{': ' if proof.why else ''}{proof.why}")
    if proof.given:
        tell(f"  for inputs L with {' and '.join(proof.given)}")
    for place in proof.places:
        file = module.name if place.side == "edited" else "as generated"
        tell(f"  {file}, line {place.line}: {place.code}")
        if place.nodes:
            more = "" if len(place.nodes) <= MAX_NODES else f" and {len(place.nodes) - MAX_NODES} more"
            tell(f"    of the nodes {', '.join(place.nodes[:MAX_NODES])}{more}")
    if (example := proof.counterexample) is not None:
        what, share = example.what or f"output {example.output}", f"{example.difference:.3g} of its largest element"
        tell(f"  {what} differs by {share}, in {example.mode} mode, run {example.run}")
    elif proof.verdict == "not proved" and proof.runs:
        tell(f"  no output differs on {proof.runs} drawn inputs")
    if proof.renamed and (verbose or not quiet):
        names = [f"{new} was {old}" for new, old in proof.renamed.items()]
        shown = names if verbose else names[:3]
        more = "" if len(shown) == len(names) else f" and {len(names) - len(shown)} more (-v)"
        tell(f"  renamed: {', '.join(shown)}{more}")
    for file in proof.written:
        tell(f"  wrote {file}")
