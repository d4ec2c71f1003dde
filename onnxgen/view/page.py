"""Makes the page. All text from the file is escaped, and nothing is loaded from a network."""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from onnxgen.common.names import printable
from onnxgen.options import Options
from onnxgen.plugins import plugged
from onnxgen.reader import read
from onnxgen.record.way_back import WayBack
from onnxgen.view.graph import node_rows, tensor_rows
from onnxgen.view.lines import traced

HERE = Path(__file__).parent
GENERATOR = '<meta name="generator" content="onnxgen view">'


def view(path: Path, options: Options, out: Path) -> str:
    """Return the page of an ONNX file.

    Args:
        path: the ONNX file.
        out: the path of the module, of which only the name is used.

    Raises:
        OnnxgenError: the file or an option is bad, or the model can't be converted exactly.
    """
    generated, lines, nodes_of = traced(path, options, out)
    with plugged(options):
        model = read(path, options)
        scopes = node_rows(model, options)
    rows = [row for _, group in scopes for row in group]
    numbers: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        numbers[row.name].append(row.number)
    shown = [
        (line, sorted({n for name in nodes_of.get(i, ()) for n in numbers.get(name, ())}))
        for i, line in enumerate(_coloured(lines), 1)
    ]
    templates = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
    script = (HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return templates.get_template("page.html.jinja").render(
        generator=Markup(GENERATOR),
        digest=digest,
        script=Markup(script),
        colours=Markup(HtmlFormatter().get_style_defs("#source")),
        title=printable(path.name),
        module=out.name,
        opsets=", ".join(f"{printable(d or 'ai.onnx')} {v}" for d, v in sorted(model.opset_imports.items())),
        count=len(rows),
        report=generated.report,
        notes=[printable(note, 400) for note in generated.report.notes],
        scopes=scopes,
        lines=shown,
        in_lines={number for _, numbers in shown for number in numbers},
        tensors=tensor_rows(model, generated, WayBack.from_metadata(generated.metadata).tensors),
    )


def _coloured(lines: list[str]) -> list[Markup]:
    """Return lines of Python as HTML. pygments escapes them, and closes each tag in its line."""
    text: str = highlight("\n".join(lines), PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return [Markup(line) for line in text.rstrip("\n").split("\n")]
