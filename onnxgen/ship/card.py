"""What a person and a machine must know of a shipped model: a model card, and a bill of materials.

The card has the front matter that model hubs read. The bill of materials is CycloneDX (ECMA-424), version 1.6.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgen._version import __version__
from onnxgen.common.atomic import replacing
from onnxgen.common.cache import file_sha256
from onnxgen.common.names import listed, visible
from onnxgen.errors import OnnxgenError
from onnxgen.training.runs.record import Record, read_record

if TYPE_CHECKING:
    from onnxgen.ship.comparison import Shipped

MARK = "<!-- written by onnxgen"  # a README.md without it is a person's, and stays; the digest of its text follows
LIBRARIES = {"onnx": "onnx", "onnx-int8": "onnx", "coreml": "coreml", "litert": "tflite", "executorch": "executorch"}
PIPELINES = {  # tasks as hubs call them
    "classification": "image-classification", "detection": "object-detection", "segmentation": "image-segmentation",
    "keypoints": "keypoint-detection", "ctc": "image-to-text", "next-token": "text-generation",
}  # fmt: skip
NOT_SAID = "unknown"
LICENSE = re.compile(r"[A-Za-z][A-Za-z0-9.+-]*")


def places_of_card(path: Path, force: bool = False) -> list[Path]:
    """Return where the card and the bill of a file are written.

    A `README.md` that a person wrote, or changed, stays, and so does that of another file; the card is then called as
    the file.

    Raises:
        OnnxgenError: a person wrote that one, too; or, without `force`, the bill.
    """
    names = ("README.md", f"{path.stem}.README.md", f"{path.name}.README.md")
    readme = next((place for place in map(path.with_name, names) if _is_free(place, partial(_replaces, path))), None)
    if readme is None:
        what = f"the card can't be written: {' and '.join(names[:2])} in {path.parent} were not written by onnxgen"
        raise OnnxgenError(what, help="move one of them, or name another file with -o")
    bill = path.with_name(f"{path.name}.cdx.json")
    if not _is_free(bill, is_own_bill) and (not force or bill.is_dir()):
        raise OnnxgenError(f"{bill} was not written by onnxgen", help="move it, or name another file with -o")
    return [readme, bill]


def _is_free(place: Path, own: Callable[[str], bool]) -> bool:
    """Return True if nothing is there, or a text that is our own."""
    if not os.path.lexists(place):
        return True
    try:
        return own(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def is_own_card(text: str) -> bool:
    """Return True for a card that nobody changed since it was written."""
    front, _, rest = text.partition(f"{MARK} ")
    mark, _, body = rest.partition("\n")
    return bool(rest) and mark == _mark(front + body)


def _replaces(path: Path, text: str) -> bool:
    """Return True if a card may become that of a file: nobody changed it, and no other file is there that it is of."""
    of = re.search(r"^\| file \| `(.*)`, [\d,]+ bytes \|$", text, re.MULTILINE)
    there = of is not None and of[1] != _line(path.name) and path.with_name(of[1]).exists()
    return is_own_card(text) and not there


def is_own_bill(text: str) -> bool:
    """Return True for a bill of materials that was written here."""
    return "onnxgen:target" in text


def _mark(text: str) -> str:
    return f"{hashlib.sha256(text.encode()).hexdigest()[:16]} -->"


def write_card(run: Path, record: Record, report: Shipped, folder: Path, places: Sequence[Path]) -> None:
    """Write the card and the bill of materials of the files in a folder into it, under the names of their `places`."""
    parts = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): file_sha256(path) for path in parts}
    facts = Facts(run, record, report, files)
    for place, text in zip(places, (facts.card(), facts.bill())):
        (folder / place.name).write_bytes(text.encode())


def card_of_export(run: Path, wrote: Sequence[Path], places: Sequence[Path]) -> list[Path]:
    """Write card and bill beside the ONNX file of a run, with the metrics that the run noted. Returns their paths.

    Args:
        wrote: the file, and those of its external data.
        places: see `places_of_card`.
    """
    from onnxgen.ship.comparison import Shipped

    record, out = read_record(run), wrote[0]
    size = sum(path.stat().st_size for path in wrote)
    report = Shipped("onnx", str(out), size=size, batch=fixed_in_file(out, record))
    facts = Facts(run, record, report, {path.name: file_sha256(path) for path in wrote})
    with replacing([out.absolute().parent]) as files:
        for place, text in zip(places, (facts.card(), facts.bill())):
            with files.file(place) as file:
                file.write(text.encode())
    return [*places]


def fixed_in_file(path: Path, record: Record) -> int:
    """Return the number of samples that an ONNX file takes at a time; 0 if it takes any."""
    import onnx

    axes = {entry.name: entry for entry in record.inputs}
    for port in onnx.load(path, load_external_data=False).graph.input:
        dims, entry = port.type.tensor_type.shape.dim, axes.get(port.name)
        if entry is not None and entry.alone:
            return 1
        if entry is not None and entry.batch < len(dims):
            return int(dims[entry.batch].dim_value)
    return 0


class Facts:
    """What the card and the bill say: of the run's record, its ONNX file, and the report.

    Attributes:
        record: that of the run.
        files: the SHA-256 of each file, by its name.
        origin: entries of the metadata of the ONNX file that the module was generated from; None if it is gone.
    """

    def __init__(self, run: Path, record: Record, report: Shipped, files: Mapping[str, str]) -> None:
        self.record, self.report, self.files = record, report, files
        self.origin = origin_metadata(run, record)
        entries = (self.origin or {}).items()
        self.license = next((text.strip() for key, text in entries if key.lower() in ("license", "licence")), "")
        self.metrics: Mapping[str, float] = report.after or report.before
        self.part = report.part
        if not self.metrics:
            self.part, self.metrics = noted_metrics(self.record)

    def card(self) -> str:
        """Return the text of the model card."""
        front, body = "".join(f"{line}\n" for line in self._front()), "".join(f"{line}\n" for line in self._body())
        return f"{front}{MARK} {_mark(front + body)}\n{body}"

    def _front(self) -> Iterator[str]:
        yield "---"
        if not self.license or LICENSE.fullmatch(self.license):
            yield f"license: {_quoted(self.license.lower()) if self.license else NOT_SAID}"
        else:  # hubs know names of licences only
            yield "license: other"
            yield f"license_name: {_quoted(self.license)}"
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
            yield from (
                f"    - {{type: {_quoted(name)}, value: {_number(value)}}}" for name, value in self.metrics.items()
            )
        yield "---"

    def _body(self) -> Iterator[str]:
        record, report = self.record, self.report
        yield ""
        yield f"# {_cell(record.name)}"
        yield ""
        yield f"{_code(record.model)}, trained with onnxgen {record.versions.get('onnxgen', __version__)}"
        yield f"from {_code(record.onnx)}." if record.onnx else "from a module of its author."
        yield ""
        yield "| | |"
        yield "|---|---|"
        yield from (f"| {name} | {text} |" for name, text in self._rows())
        yield ""
        if self.metrics:
            yield f"Measured on the {self.part} part of the data ({record.parts[self.part].samples} samples):"
            yield ""
        if report.metrics:
            yield "| metric | the module | this file |"
            yield "|---|---|---|"
            yield from (f"| {_cell(name)} | {before:.6g} | {after:.6g} |" for name, before, after in report.metrics)
        elif self.metrics:
            yield "| metric | the module |"
            yield "|---|---|"
            yield from (f"| {_cell(name)} | {value:.6g} |" for name, value in self.metrics.items())

    def _rows(self) -> Iterator[tuple[str, str]]:
        record, report = self.record, self.report
        yield "file", f"{_code(Path(report.out).name)}, {report.size:,} bytes"
        constants: Mapping[str, float] = record.settings.get("const", {})
        held = {state.name for state in record.states}
        always = [f"{name}, which is {value:g}" for name, value in constants.items() if name not in held]
        yield "takes", _code(", ".join([*(f"{name} {kind}" for name, kind in self._takes()), *always]))
        for one in record.states:
            yield (
                f"state {_cell(one.name)}",
                f"begins as {one.value:g}; each step makes the next: {_code(one.output)}",
            )
        yield "batch", str(report.batch) if report.batch else "any"
        if record.classes:
            yield "classes", _cell(listed(record.classes, 20))
        yield "data", _cell(self._data)
        yield "trained", _cell(self._trained)
        unsaid = "the file does not say one" if self.origin is not None else "not known: the file is gone"
        yield "licence of the file it came from", _cell(self.license) or unsaid
        if record.sha256:
            yield "SHA-256 of the file it came from", f"`{record.sha256}`"
        if report.compared:
            share = f"{report.difference:.2g} of the largest"
            what = f"{report.compared} samples of the {report.part} part"
            yield "beside the module", f"outputs differ by {share}, on {what}"
        yield from (("note", _cell(note)) for note in report.notes)

    def _takes(self) -> Iterator[tuple[str, str]]:
        """Yield each input, with its type and the shape of a sample: of a step, if the network carries a state."""
        for one in self.record.inputs:
            shape = one.shape if one.steps is None else one.steps.shape(one.shape)
            cut = one.steps if one.steps is not None and one.steps.chunk else None
            news = f", a step of {cut.chunk} numbers behind the {cut.context} before them" if cut else ", a step"
            yield one.name, f"{one.dtype} {list(shape)}{news if one.steps is not None else ''}"
        for state in self.record.states:
            yield state.name, f"{state.dtype} {list(state.shape)}"

    @property
    def _data(self) -> str:
        return Path(self.record.data).name if self.record.data else "data in memory"

    @property
    def _trained(self) -> str:
        """All parts, or what was left as it was."""
        settings = self.record.settings
        frozen = settings.get("freeze") or ()
        if settings.get("lora"):
            return f"adapters of rank {settings['lora']}"
        return f"all but {', '.join(frozen)}" if frozen else "all parts"

    def bill(self) -> str:
        """Return the bill of materials, as JSON."""
        record, report = self.record, self.report
        name = Path(report.out).name
        metrics = [{"type": key, "value": f"{value:.6g}", "slice": self.part} for key, value in self.metrics.items()]
        parameters: dict[str, Any] = {
            "task": str(record.settings.get("task", "")),
            "inputs": [{"format": f"{name}: {kind}"} for name, kind in self._takes()],
            "outputs": [{"format": n} for n in (*(t.name for t in record.targets), *(s.output for s in record.states))],
            "datasets": [{"type": "dataset", "name": self._data, "contents": {"properties": self._parts()}}],
        }
        model: dict[str, Any] = {
            "type": "machine-learning-model",
            "bom-ref": "model",
            "name": record.name,
            "version": str(record.result.get("best_epoch", "")) or "1",
            **({"hashes": _hashes(self.files[name])} if name in self.files else {}),
            "modelCard": {"modelParameters": parameters, "quantitativeAnalysis": {"performanceMetrics": metrics}},
            "properties": [
                {"name": "onnxgen:target", "value": report.to},
                {"name": "onnxgen:file", "value": name},
                {"name": "onnxgen:trained", "value": self._trained},
            ],
        }
        others = [{"type": "file", "name": n, "hashes": _hashes(x)} for n, x in self.files.items() if n != name]
        model |= {"components": others} if others else {}
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


def origin_metadata(run: Path, record: Record) -> dict[str, str] | None:
    """Return the entries of the metadata of the ONNX file of a run; None if it is gone, or another one now."""
    from onnxgen.training.runs.contract import onnx_beside_origin

    path = onnx_beside_origin(run, record)
    if path is None or file_sha256(path) != record.sha256:
        return None
    import onnx

    model = onnx.load(path, load_external_data=False)
    return {entry.key: entry.value for entry in model.metadata_props}


def _hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]


def _line(text: str) -> str:
    return " ".join(visible(text).split())


def _quoted(text: str) -> str:
    """Return text as YAML."""
    return json.dumps(_line(text), ensure_ascii=False)


def _number(value: float) -> str:
    """Return a number as YAML 1.1 has it: 1.0e-05, .nan, -.inf."""
    text = f"{value:.6g}"
    if not math.isfinite(value):
        return f"-.{text[1:]}" if text.startswith("-") else f".{text}"
    return text if "." in text else text.replace("e", ".0e")


def _cell(text: str) -> str:
    """Return text of one line for a table of Markdown, of which nothing is markup."""
    return re.sub(r"([\\`*\[\]|<>])", r"\\\1", _line(text))


def _code(text: str) -> str:
    """Return text of one line as code."""
    return "`" + _line(text).replace("`", "'").replace("|", "\\|") + "`"
