"""`onnxgen identify`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxgen.cli.say import progress, tell, tell_json

if TYPE_CHECKING:
    from onnxgen.identify.answering import Answer

MAX_NAMES = 6  # that are printed without -v


def identify_command(model: Path, libraries: Sequence[str], *, quiet: bool, verbose: bool, as_json: bool) -> int:
    """Print which architecture a file is. Returns 0 if it is named, else 1."""
    from onnxgen.identify import identify

    with progress(f"identifying {model.name}", quiet or as_json):
        answer = identify(model, libraries)
    if as_json:
        tell_json(answer.as_json())
    else:
        print_answer(answer, model, quiet, verbose)
    return 0 if answer.networks else 1


def print_answer(answer: Answer, model: Path, quiet: bool, verbose: bool) -> None:
    """Print the names, how to make the networks, what was compared, and the next command."""
    if not answer.networks:
        tell("none: no known network has the same steps")
        if answer.nearest and not quiet:
            tell(f"  nearest, not the same (its layers, joined otherwise): {', '.join(answer.nearest[:MAX_NAMES])}")
        return
    shown = answer.networks if verbose else answer.networks[:MAX_NAMES]
    for known in shown:
        tell(known.build or f"{known.name} ({known.library})")
    if quiet:
        return
    if len(shown) < len(answer.networks):
        tell(f"and {len(answer.networks) - len(shown)} more (each of them: -v)")
    if len(answer.networks) > 1:
        tell("  the bodies of these have the same steps; positions, paddings and biases are not compared")
    for sentence in (*answer.evidence, *answer.differs):
        tell(f"  {sentence}")
    into = next((known.into for known in answer.networks if known.into), "")
    if into:
        tell(f"  its weights: onnxgen transplant {model} {into} -o weights.safetensors")
