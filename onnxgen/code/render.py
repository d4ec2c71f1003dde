"""The text of a generated file: Jinja for the frame, black last."""

from __future__ import annotations

import ast
import base64
import hashlib
import re
import sys
import textwrap
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from onnxgen._version import __version__
from onnxgen.code.allowed import Refused
from onnxgen.code.class_source import code_of
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.copied import copied, imported
from onnxgen.code.meant import Meant, copies, hold, without_docstring
from onnxgen.code.own_code import Import, OwnCode
from onnxgen.code.printer import LINE_LENGTH, between_quotes, comment
from onnxgen.code.settled import LONGEST, Settled
from onnxgen.common.paths import templates_dir
from onnxgen.common.timing import FORMAT, IMPORTS, stage
from onnxgen.errors import OnnxgenError

SUFFIX = ".jinja"
MAIN_TEMPLATE = "module.py.jinja"
# what tells a generated file from others, and whether it was edited: templates may move it, and not leave it out
_NEEDED = {"FINGERPRINT": r'^FINGERPRINT = ""$'}


@dataclass
class Frame:
    """What surrounds the classes of a file.

    Attributes:
        name: the root class.
        source, opset: the ONNX file's name (printable) and the opset of ai.onnx.
        summary: lines of the header docstring (inputs, outputs, weights).
        weights: the sidecar's name, relative to the module's folder.
        fingerprint: what the sidecar must carry.
        constants: what the keys of constants that buffers read from the sidecar begin with; "" if there are none.
        reads_constants: buffers are read from the sidecar when a module is made.
        ties: pairs (kept, tied) of state-dict keys.
        embedded: the safetensors bytes, if they are to be in the file itself.
        sharded: the sidecar is an index of several files.
        floats: the one dtype of all floating-point weights ("torch.float32"); "" if they differ.
    """

    name: str
    source: str
    opset: int
    summary: list[str]
    weights: str
    fingerprint: str = ""
    constants: str = ""
    reads_constants: bool = False
    ties: list[tuple[str, str]] = field(default_factory=list)
    embedded: bytes | None = None
    sharded: bool = False
    floats: str = "torch.float32"

    def hold(self) -> None:
        """Raises `Refused` where a text can't stand where the templates put it: between quotes, or in the docstring."""
        for text in (self.weights, self.constants, *(key for keys in self.ties for key in keys)):
            between_quotes(text)
        for text in (self.name, self.source, *self.summary):
            comment(text)


def render(
    frame: Frame, trees: list[ClassTree], code: OwnCode, notes: list[str], templates: Path | None = None
) -> tuple[str, ast.Module]:
    """The formatted source of a generated file, and what Python reads there: the very trees that were meant.

    Its `FINGERPRINT` is still to be put in by `with_fingerprint`. `code`: what it uses of plugins. `notes`: gets one
    where the file is too long for black.

    Raises:
        OnnxgenError: the user's own templates do something wrong.
        Refused: the file is not what was meant.
    """
    classes = [tree.source for tree in trees]
    frame.hold()
    text = "\n".join(map(code_of, classes))
    own, own_imports = code.used_in(text)
    helpers = copied(text)
    skips_init = "nn.Embedding" in "\n".join([text, *helpers.values(), *own])
    if skips_init:
        helpers = copied(f"{text}\nSkipInit()")
    meant = Meant(trees, copies(helpers, own), frozenset(module for module, _ in own_imports.values()))
    texts = {**helpers, **dict(zip(list(meant.copied)[len(helpers) :], own))}
    first = _needed_first(meant)
    embedded = base64.b85encode(frame.embedded).decode() if frame.embedded is not None else ""
    values: dict[str, Any] = {
        **frame.__dict__,
        "version": __version__,
        "classes": classes,
        "title": _title(frame),
        "helpers": [text for name, text in texts.items() if name not in first],
        "first_helpers": [text for name, text in texts.items() if name in first],
        "embedded": textwrap.wrap(embedded, 88) if embedded else [],
        "imports": _imports(frame, text + "\n".join(helpers.values()), "\n".join(own), own_imports),
        "ties": classes[-1].ties,
        "tied_keys": frame.ties,
        "skips_init": skips_init,
    }
    if templates is not None:  # they may do anything with the lines
        source = _formatted(_rendered(values, templates), templates)
        return source, _held(source, meant, templates)
    settled = Settled(classes, LINE_LENGTH)
    if settled.skipped:
        notes.append(
            f"the file has over {LONGEST:,} lines to format: long lines are left long (run `black` to wrap them)"
        )
    source = settled.restored(_formatted(_rendered({**values, "classes": settled.classes}, None), None))
    return source, _held(source, meant, None)


def _needed_first(meant: Meant) -> set[str]:
    """What of the copied must stand before the classes: annotations and defaults are evaluated as these are read."""
    pending: list[ast.AST] = []
    for method in (method for tree in meant.classes for method in tree.methods):
        arguments = (*method.args.args, *method.args.kwonlyargs)
        pending += [tree for tree in (method.returns, *(a.annotation for a in arguments)) if tree is not None]
        pending += [tree for tree in (*method.args.defaults, *method.args.kw_defaults) if tree is not None]
    found: set[str] = set()
    while pending:
        names = {node.id for node in ast.walk(pending.pop()) if isinstance(node, ast.Name)}
        new = names & meant.copied.keys() - found
        found |= new
        pending += [meant.copied[name] for name in new]
    return found


def _title(frame: Frame) -> str:
    """What a file is and comes from, as the lines that a docstring begins with; only a name is never broken."""
    text = f"{frame.name}, generated by onnxgen {__version__} from {frame.source} (opset {frame.opset})."
    return "\n".join(textwrap.wrap(text, LINE_LENGTH - 3, break_long_words=False, break_on_hyphens=False))


def _held(source: str, meant: Meant, templates: Path | None) -> ast.Module:
    """What Python reads in a finished file, which holds what was meant; the user's own templates only add to it."""
    try:
        if templates is not None:  # a `return` outside of functions is found only here
            compile(source, "<generated>", "exec", dont_inherit=True)
        tree = ast.parse(source)
        hold(tree, meant, is_ours=templates is None)
        return tree
    except SyntaxError as error:
        said = f"{error.msg} (line {error.lineno})"
        if templates is None:
            raise Refused(f"the file is not Python: {said}") from error
        raise OnnxgenError(f"the templates in {templates} do not make a Python file: {said}") from error
    except Refused as error:
        if templates is None:
            raise
        what = f"the templates in {templates} change text that they may only add to: {error}"
        raise OnnxgenError(what, help="docs/TEMPLATES.md has the blocks for code of your own") from error


def _rendered(values: dict[str, Any], templates: Path | None) -> str:
    """The text before formatting. Raises `OnnxgenError` for whatever the user's own templates do wrong."""
    environment = _environment(templates)
    try:
        text: str = environment.get_template(MAIN_TEMPLATE).render(values)
    except Exception as error:
        if templates is None:
            raise
        raise OnnxgenError(f"a template in {templates} fails: {_line(error)}") from error
    if templates is not None:
        left_out = [name for name, pattern in _NEEDED.items() if not re.search(pattern, text, re.MULTILINE)]
        build = {line for line in values["summary"] if line.startswith("Build ")}  # what a build records there
        left_out += ["the summary's Build line"] if build - set(text.splitlines()) else []
        if left_out:
            what = f"the templates in {templates} leave out {' and '.join(left_out)}"
            raise OnnxgenError(what, help="keep them: onnxgen recognises its own files by them")
    return text


def _line(error: Exception) -> str:
    """An error of a template: its kind, what it says, and where (a Python error inside of one has no line itself)."""
    name, line = getattr(error, "name", None), getattr(error, "lineno", None)
    for frame in traceback.extract_tb(error.__traceback__) if line is None else ():
        if frame.filename.endswith(".jinja"):
            name, line = Path(frame.filename).name, frame.lineno
    where = "" if line is None else f" (line {line})" if not isinstance(name, str) else f" ({name}, line {line})"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}{where}"


def _environment(templates: Path | None) -> Any:
    """Templates by name: the user's before ours, which are `onnxgen/...` too, so that the user's can extend them."""
    if templates is None:
        return _our_environment()
    import jinja2

    ours, own = jinja2.FileSystemLoader(templates_dir()), jinja2.FileSystemLoader(templates)
    known = set(ours.list_templates())
    if not {name for name in own.list_templates() if name in known and name.endswith(SUFFIX)}:
        names = ", ".join(name for name in sorted(known) if name.endswith(SUFFIX))
        raise OnnxgenError(f"no template in {templates} overrides one of onnxgen's", help=f"they are {names}")
    return _loading(jinja2.PrefixLoader({"onnxgen": ours}), own, ours)


@cache
def _our_environment() -> Any:
    """Where nobody adds templates: ours are compiled once a process, which takes as long as a small model."""
    with stage(IMPORTS):
        import jinja2

    ours = jinja2.FileSystemLoader(templates_dir())
    return _loading(jinja2.PrefixLoader({"onnxgen": ours}), ours)


def _loading(*loaders: Any) -> Any:
    import jinja2

    loader = jinja2.ChoiceLoader(loaders)
    return jinja2.Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)


def _formatted(source: str, templates: Path | None) -> str:
    try:
        return _black(source)
    except SyntaxError as error:
        if templates is None:
            raise Refused(f"the file is not Python: {error}") from error
        raise OnnxgenError(f"the templates in {templates} do not make a Python file: {error}") from error


def _black(source: str) -> str:
    """The source as black has it. Raises `SyntaxError` if it is no Python to black."""
    with stage(IMPORTS):
        import black
        from black.parsing import InvalidInput

    try:
        with stage(FORMAT):
            return black.format_str(source, mode=black.Mode(line_length=LINE_LENGTH))
    except InvalidInput as error:
        raise SyntaxError(_line(error)) from error


# what the frame itself and the classes may use, by the name that it has in a generated file
_KNOWN = {
    "Callable": ("collections.abc", "Callable"),
    "F": ("torch.nn.functional", ""),
    "base64": ("base64", ""),
    "json": ("json", ""),
    "math": ("math", ""),
    "np": ("numpy", ""),
    "re": ("re", ""),
}


def _imports(frame: Frame, text: str, own: str, own_imports: Mapping[str, Import]) -> dict[str, list[str]]:
    """The import lines, standard library and packages apart: exactly what the file uses.

    `text` is onnxgen's own, `own` what is copied of plugins, with its imports.
    """
    wanted = {"Path": ("pathlib", "Path"), "torch": ("torch", ""), "Tensor": ("torch", "Tensor"), "nn": ("torch", "nn")}
    wanted |= {name: source for name, source in _KNOWN.items() if re.search(rf"(?<![\w.]){name}\b", text + own)}
    wanted |= imported(text) | dict(own_imports)
    wanted |= {"Any": ("typing", "Any"), "assert_close": ("torch.testing", "assert_close")}
    if frame.embedded is not None:
        wanted |= {"base64": ("base64", ""), "load": ("safetensors.torch", "load")}
    else:
        wanted |= {"safe_open": ("safetensors", "safe_open")}
    if frame.sharded:
        wanted |= {"json": ("json", ""), "SafetensorError": ("safetensors", "SafetensorError")}
    whole = sorted(
        f"import {m}" + ("" if m == name else f" as {name}") for name, (m, part) in wanted.items() if not part
    )
    parts: dict[str, list[str]] = {}
    for name, (module, part) in wanted.items():
        if part:
            parts.setdefault(module, []).append(part if part == name else f"{part} as {name}")
    lines = whole + [f"from {m} import {', '.join(sorted(names))}" for m, names in sorted(parts.items())]
    standard = [line for line in lines if line.split()[1].split(".")[0] in sys.stdlib_module_names]
    return {"stdlib": standard, "packages": [line for line in lines if line not in standard]}


_FINGERPRINT = re.compile(r'^FINGERPRINT = "[0-9a-f]*"', re.MULTILINE)


def with_fingerprint(source: str, fingerprint: str) -> str:
    """The source with its `FINGERPRINT` set.

    Raises:
        Refused: it does not have the line: the weights would be refused as another file's.
    """
    line = f'FINGERPRINT = "{fingerprint}"'
    made = _FINGERPRINT.sub(line, source, count=1)
    if line not in made.split("\n"):
        raise Refused("the file does not have its fingerprint")
    return made


def code_digest(source: str) -> str:
    """A digest of what a module does: of its AST without docstrings, and whatever its `FINGERPRINT` says.

    Reformatting, comments and line ends do not change it; the same on every Python version (`ast.dump` is not).

    Raises:
        SyntaxError: the source is no Python.
    """
    return tree_digest(ast.parse(_FINGERPRINT.sub('FINGERPRINT = ""', source.replace("\r\n", "\n"))))


def tree_digest(tree: ast.Module) -> str:
    """The same of a file as Python reads it, with an empty `FINGERPRINT`; takes the docstrings out of it."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            node.body = without_docstring(node.body)
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:16]


def aligned(rows: Mapping[str, list[tuple[str, ...]]]) -> list[str]:
    """Header lines: a label, then rows of columns under each other."""
    widths = (
        [max(len(r[i]) for rs in rows.values() for r in rs if len(r) > i) for i in range(2)]
        if any(rows.values())
        else []
    )
    lines = []
    for label, entries in rows.items():
        for n, row in enumerate(entries):
            cells = [cell.ljust(widths[i]) if i < 2 else cell for i, cell in enumerate(row)]
            line = f"{label if n == 0 else '':<10}{'  '.join(cells)}"
            indent = " " * (12 + len("  ".join(cells[:2])))  # the dims that did not fit stand under the others
            lines += textwrap.wrap(line, LINE_LENGTH, subsequent_indent=indent, break_on_hyphens=False)
    return lines
