"""`onnxgen diff`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onnxgen.cli.files import refuse_overwriting
from onnxgen.cli.say import aligned, progress, tell, tell_json
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options

if TYPE_CHECKING:
    from onnxgen.diff import Change, Comparison

CODES = {"same": 0, "different": 1, "not proved": 4}
SHOWN = 12  # changes or tensors that are printed without -v
MAX_NODES = 6  # of a line that are named


def diff_command(
    one: Path,
    other: Path,
    options: Options,
    *,
    runs: int,
    seed: int,
    html: Path | None,
    force: bool,
    quiet: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Compare, and print what changed. Returns the exit code."""
    for path in (one, other):
        if path.is_dir():
            raise OnnxgenError(f"{path} is a folder", help="name an ONNX file, or a module that onnxgen generated")
    from onnxgen.diff import diff
    from onnxgen.diff.page import GENERATOR, page

    if html is not None:
        refuse_overwriting([html], [one, other], force, GENERATOR)
    with progress(f"comparing {one.name} and {other.name}", quiet or as_json):
        found = diff(one, other, runs=runs, seed=seed, options=options)
        text = page(found) if html is not None else ""
    if html is not None:
        from onnxgen.common.atomic import replacing

        with replacing([html.absolute().parent]) as files, files.file(html) as file:
            file.write(text.encode())
    if as_json:
        tell_json(found.as_json())
    else:
        print_comparison(found, quiet, verbose)
        if html is not None and not quiet:
            tell(f"wrote {html}")
    return CODES[found.verdict]


def print_comparison(found: Comparison, quiet: bool, verbose: bool) -> None:
    """Print the verdict, and what changed of the network, its weights, its inputs and outputs, and the files."""
    if quiet and found.verdict == "same":
        return
    tell(f"{WORDS[found.verdict]}: {found.why}")
    most = None if verbose else SHOWN
    for text in found.summary:
        tell(f"  {text}")
    if quiet:
        return
    if found.changes:
        tell("Architecture" if found.verdict == "different" else "Spelled otherwise, and no output differs")
        for change in found.changes[:most]:
            _print_change(found, change)
        _print_rest(len(found.changes), most)
    weights = sorted(found.changed_weights, key=lambda w: -w.relative)
    if weights:
        tell("Weights")
        rows = [
            [w.name, w.what or w.how, f"{w.relative:.3g}" if w.was else "", f"{w.cosine:.4f}" if w.was else ""]
            for w in weights[:most]
        ]
        for line in aligned([["tensor", "now", "change / norm", "cosine"], *rows]):
            tell(f"  {line}")
        _print_rest(len(weights), most)
    for title, lines in (("Inputs and outputs", found.ports), ("Beside the function", found.file)):
        if lines:
            tell(title)
            for text in lines[:most]:
                tell(f"  {text}")
            _print_rest(len(lines), most)


WORDS = {"same": "the same function", "different": "different", "not proved": "not proved"}


def _print_change(found: Comparison, change: Change) -> None:
    tell(f"  {change}")
    for path, side in ((found.one, change.was), (found.other, change.now)):
        if side is None or not side.line:
            continue
        more = f" and {len(side.nodes) - MAX_NODES} more" if len(side.nodes) > MAX_NODES else ""
        nodes = f"  (nodes {', '.join(side.nodes[:MAX_NODES])}{more})" if side.nodes else ""
        tell(f"    {Path(path).name}, line {side.line}: {side.code}{nodes}")


def _print_rest(count: int, most: int | None) -> None:
    if most is not None and count > most:
        tell(f"  and {count - most} more (-v)")
