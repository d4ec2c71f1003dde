"""What changed between two models: their function, architecture, weights, inputs, outputs and metadata.

Both are brought to onnxgen's source. Where the sources are one program, their weights are compared and nothing is run
(`side.py`, `weights.py`). Else the canonical forms decide if they are the same function, and which tensor stands for
which (`forms.py`). Where these part, the operators that both execute are aligned (`aligning.py`). Drawn inputs say how
far outputs are apart (`numbers.py`).
"""

from __future__ import annotations

from pathlib import Path

from onnxgen._callable import callable_module
from onnxgen.diff.answer import Change, Comparison, Side, Weight
from onnxgen.options import Options

__all__ = ["Change", "Comparison", "Side", "Weight", "diff"]


def diff(
    one: Path | str, other: Path | str, *, runs: int = 3, seed: int = 0, options: Options | None = None
) -> Comparison:
    """Say what changed between two models.

    Names, the order of nodes, and other spellings of the same function are no changes. Functions are compared in
    evaluation mode.

    Args:
        one: an ONNX file, or a generated module with its weights beside it.
        other: another one.
        runs: the number of drawn inputs on which outputs are compared, where the sources and weights are not equal.
        seed: for the inputs.
        options: as for `onnxgen.load`, for both.

    Returns:
        the comparison. `verdict` is "same": the same function, with the same weights, of the same inputs; "different";
        or "not proved": nothing differs on the drawn inputs, and the canonical forms could not be matched.

    Raises:
        OnnxgenError: a file can't be read or converted, or torch is missing and the networks have to be run.
    """
    from onnxgen.diff.comparing import compare

    return compare(Path(one), Path(other), runs, seed, options or Options())


callable_module(__name__, diff)
