"""The report of an export, for people and for `--json`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnxgen.errors import OnnxgenError
from onnxgen.verify.report import VerifyReport

BACK, ANEW = "written back", "exported anew"


@dataclass
class ExportReport:
    """The result of `export`.

    Attributes:
        model, module: the original ONNX file, and the generated module.
        out: the new ONNX file.
        method: "written back" into the original graph, or "exported anew" by PyTorch's exporter.
        why: the reason for that method.
        wrote: the files written.
        tensors: the number of stored tensors of the file that the network has.
        changed: the names of tensors whose elements changed.
        below: the names of tensors that training changed by less than a step of the stored numbers (integers, or floats
            of a narrower type), so that they are as before.
        added: new initializers: of BatchNorms, and of tensors that the file shared and training made different.
        resized: tensors of another shape than in the original, and constants with a size: of a head with another number
            of classes.
        lossy: the tensors that were cast back from a narrower type.
        rounded: the float tensors that training changed and that the file stores as integers.
        notes: other information.
        verified: the comparison of the new file with the module; None with `verify=False`.
    """

    model: str
    module: str
    out: str
    method: str = BACK
    why: str = ""
    wrote: list[Path] = field(default_factory=list)
    tensors: int = 0
    changed: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    resized: list[str] = field(default_factory=list)
    lossy: list[str] = field(default_factory=list)
    rounded: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    verified: VerifyReport | None = None

    def forget(self) -> None:
        """Reset the report before another attempt."""
        self.changed, self.below, self.added, self.lossy, self.notes, self.tensors = [], [], [], [], [], 0
        self.resized, self.rounded = [], []

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain types."""
        plain = {k: v for k, v in vars(self).items() if k not in ("wrote", "verified")}
        comparison = None if self.verified is None else self.verified.as_json()
        return {**plain, "wrote": [str(path) for path in self.wrote], "verified": comparison}


class DiffersError(OnnxgenError):
    """The new file does not compute the same as the module. Nothing was written.

    Attributes:
        report: the report, with the differences (`report.verified`).
    """

    exit_code = 1

    def __init__(self, report: ExportReport) -> None:
        self.report = report
        problems = report.verified.problems() if report.verified is not None else []
        first = problems[0] if problems else ""
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        what = f"{report.out} was not written, since it would differ from the module: {first}{more}"
        way = "please report this as a bug in onnxgen" if report.method == BACK else "call torch.onnx.export yourself"
        super().__init__(what, help=f"{way}; or write the file unchecked with --no-verify")
