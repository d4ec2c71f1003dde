"""What a person and a machine must know of a shipped model: a model card, and a bill of materials.

The card has the front matter that model hubs read. The bill of materials is CycloneDX (ECMA-424), version 1.6.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgen._version import __version__
from onnxgen.common.atomic import replacing
from onnxgen.common.names import listed, visible
from onnxgen.training.runs.record import Record, read_record

if TYPE_CHECKING:
    from onnxgen.ship.comparison import Shipped

MARK = "<!-- written by onnxgen -->"  # a README.md without it is a person's, and stays
LIBRARIES = {"onnx": "onnx", "onnx-int8": "onnx", "coreml": "coreml", "litert": "tflite", "executorch": "executorch"}
PIPELINES = {  # tasks as hubs call them
    "classification": "image-classification", "detection": "object-detection", "segmentation": "image-segmentation",
    "keypoints": "keypoint-detection", "ctc": "image-to-text", "next-token": "text-generation",
}  # fmt: skip
NOT_SAID = "unknown"


def write_card(run: Path, record: Record, report: Shipped) -> list[Path]:
    """Write the card and the bill of materials beside a shipped file. Returns their paths.

    A `README.md` that a person wrote stays; the card is then called as the file.
    """
    path = Path(report.out)
    readme = path.with_name("README.md")
    if readme.exists() and MARK not in readme.read_text(encoding="utf-8", errors="replace"):
        readme = path.with_name(f"{path.stem}.README.md")
    bom = path.with_name(f"{path.name}.cdx.json")
    facts = Facts(run, record, report)
    with replacing([path.parent]) as files:
        for place, text in ((readme, facts.card()), (bom, facts.bill())):
            with files.file(place) as file:
                file.write(text.encode())
    return [readme, bom]


def card_of_export(run: Path, out: Path) -> list[Path]:
    """Write card and bill beside the ONNX file of a run, with the metrics that the run noted. Returns their paths."""
    from onnxgen.ship.comparison import Shipped

    return write_card(run, read_record(run), Shipped("onnx", str(out), size=out.stat().st_size))


class Facts:
    """What the card and the bill say: of the run's record, its ONNX file, and the report.

    Attributes:
        record: that of the run.
        origin: entries of the metadata of the ONNX file that the module was generated from.
    """

    def __init__(self, run: Path, record: Record, report: Shipped) -> None:
        self.record, self.report = record, report
        self.origin = origin_metadata(run, record)
        self.license = next((text for key, text in self.origin.items() if key.lower() in ("license", "licence")), "")

        self.metrics: Mapping[str, float] = report.after or report.before
        self.part = report.part
        if not self.metrics:
            self.part, self.metrics = noted_metrics(self.record)

    def card(self) -> str:
        """Return the text of the model card."""
        return "\n".join([*self._front(), MARK, "", *self._body()])

    def _front(self) -> Iterator[str]:
        yield "---"
        yield f"license: {self.license.lower() or NOT_SAID}"
        yield f"library_name: {LIBRARIES.get(self.report.to, 'pytorch')}"
        if (pipeline := PIPELINES.get(str(self.record.settings.get("task")))) is not None:
            yield f"pipeline_tag: {pipeline}"
        yield "tags: [onnxgen]"
        if self.metrics:
            yield "model-index:"
            yield f"- name: {_quoted(self.record.name)}"
            yield "  results:"
            yield f"  - task: {{type: {_quoted(pipeline or 'other')}}}"
            yield f"    dataset: {{name: {_quoted(self._data)}, type: other, split: {self.part}}}"
            yield "    metrics:"
            yield from (f"    - {{type: {_quoted(name)}, value: {value:.6g}}}" for name, value in self.metrics.items())
        yield "---"

    def _body(self) -> Iterator[str]:
        record, report = self.record, self.report
        yield f"# {visible(record.name)}"
        yield ""
        yield f"`{record.model}`, trained with onnxgen {record.versions.get('onnxgen', __version__)}"
        yield f"from `{record.onnx}`." if record.onnx else "from a module of its author."
        yield ""
        yield "| | |"
        yield "|---|---|"
        yield from (f"| {name} | {visible(text)} |" for name, text in self._rows())
        yield ""
        if self.metrics:
            yield f"Measured on the {self.part} part of the data ({record.parts[self.part].samples} samples):"
            yield ""
        if report.metrics:
            yield "| metric | the module | this file |"
            yield "|---|---|---|"
            yield from (f"| {name} | {before:.6g} | {after:.6g} |" for name, before, after in report.metrics)
        elif self.metrics:
            yield "| metric | the module |"
            yield "|---|---|"
            yield from (f"| {name} | {value:.6g} |" for name, value in self.metrics.items())

    def _rows(self) -> Iterator[tuple[str, str]]:
        record, report = self.record, self.report
        yield "file", f"`{Path(report.out).name}`, {report.size:,} bytes"
        yield "takes", ", ".join(f"{i.name} {i.dtype} {list(i.shape)}" for i in record.inputs)
        yield "batch", str(report.batch) if report.batch else "any"
        if record.classes:
            yield "classes", listed(record.classes, 20)
        yield "data", self._data
        yield "trained", self._trained
        yield "licence of the file it came from", self.license or "the file does not say one"
        if record.sha256:
            yield "SHA-256 of the file it came from", f"`{record.sha256}`"
        if report.compared:
            share = f"{report.difference:.2g} of the largest"
            yield "beside the module", f"outputs differ by {share}, on {report.compared} samples"

    @property
    def _data(self) -> str:
        return Path(self.record.data).name or "data in memory"

    @property
    def _trained(self) -> str:
        """All parts, or what was left as it was."""
        settings = self.record.settings
        frozen = settings.get("freeze") or ()
        if settings.get("lora"):
            return f"adapters of rank {settings['lora']}; all else is as in the file"
        return f"all but {', '.join(frozen)}" if frozen else "all parts"

    def bill(self) -> str:
        """Return the bill of materials, as JSON."""
        record, report = self.record, self.report
        name = Path(report.out).name
        metrics = [{"type": key, "value": f"{value:.6g}", "slice": self.part} for key, value in self.metrics.items()]
        parameters: dict[str, Any] = {
            "task": str(record.settings.get("task", "")),
            "inputs": [{"format": f"{i.name}: {i.dtype} {list(i.shape)}"} for i in record.inputs],
            "outputs": [{"format": target.name} for target in record.targets],
            "datasets": [{"type": "dataset", "name": self._data, "contents": {"properties": self._parts()}}],
        }
        model: dict[str, Any] = {
            "type": "machine-learning-model",
            "bom-ref": "model",
            "name": record.name,
            "version": str(record.result.get("best_epoch", "")) or "1",
            "hashes": [{"alg": "SHA-256", "content": digest(Path(report.out))}],
            "modelCard": {"modelParameters": parameters, "quantitativeAnalysis": {"performanceMetrics": metrics}},
            "properties": [
                {"name": "onnxgen:target", "value": report.to},
                {"name": "onnxgen:file", "value": name},
                {"name": "onnxgen:trained", "value": self._trained},
            ],
        }
        if record.sha256:
            ancestor: dict[str, Any] = {"type": "machine-learning-model", "name": record.onnx}
            ancestor["hashes"] = [{"alg": "SHA-256", "content": record.sha256}]
            ancestor |= {"licenses": [{"license": {"name": self.license}}]} if self.license else {}
            model["pedigree"] = {"ancestors": [ancestor]}
        tools = [{"type": "application", "name": key, "version": text} for key, text in record.versions.items()]
        return (
            json.dumps(
                {
                    "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
                    "bomFormat": "CycloneDX",
                    "specVersion": "1.6",
                    "version": 1,
                    "metadata": {"tools": {"components": tools}, "component": model},
                },
                indent=1,
            )
            + "\n"
        )

    def _parts(self) -> list[dict[str, str]]:
        return [
            {"name": f"onnxgen:{name}", "value": f"{part.samples} samples, {part.digest}"}
            for name, part in self.record.parts.items()
        ]


def noted_metrics(record: Record) -> tuple[str, dict[str, float]]:
    """Return the part of the data whose metrics a run noted, and these: of the test part, else of the validation part.

    ("", {}) if it noted none.
    """
    for part, metrics in (("test", record.result.get("test")), ("val", record.result.get("best"))):
        named = {name.removeprefix(f"{part}_"): x for name, x in (metrics or {}).items() if name.startswith(f"{part}_")}
        if named and part in record.parts:
            return part, named
    return "", {}


def origin_metadata(run: Path, record: Record) -> dict[str, str]:
    """Return the entries of the metadata of the ONNX file of a run; {} if the file is not there any more."""
    from onnxgen.training.runs.contract import onnx_beside_origin

    path = onnx_beside_origin(run, record)
    if path is None or not path.is_file():
        return {}
    import onnx

    model = onnx.load(path, load_external_data=False)
    return {entry.key: entry.value for entry in model.metadata_props}


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, or of all files of a folder in their order."""
    whole = hashlib.sha256()
    for part in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        whole.update(part.read_bytes())
    return whole.hexdigest()


def _quoted(text: str) -> str:
    return json.dumps(visible(text), ensure_ascii=False)
