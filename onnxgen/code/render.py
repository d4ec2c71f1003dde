"""Makes the text of a generated file: Jinja fills the templates, then black formats.

black takes up to 4 ms a line, and most lines of a large network are short statements that `ast.unparse` wrote as black
would. A run of such lines is replaced by one statement, a name, and put back after formatting (`Settled`).
`from_pretrained`, half of a small file and the same in many, is formatted alone, once a process.
"""

from __future__ import annotations

import ast
import base64
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from onnxgen._version import __version__
from onnxgen.code.allowed import Refused
from onnxgen.code.class_tree import ClassSource, ClassTree, Meant, hold, names_of
from onnxgen.code.copied import Import, OwnCode, copied, imported
from onnxgen.code.printer import INDENT, LINE_LENGTH, between_quotes, comment
from onnxgen.code.torch_api import dotted
from onnxgen.common.paths import templates_dir
from onnxgen.common.timing import FORMAT, IMPORTS, stage
from onnxgen.errors import OnnxgenError

SUFFIX = ".jinja"
MAIN_TEMPLATE = "module.py.jinja"
LOADING_TEMPLATE = "from_pretrained.py.jinja"


@dataclass
class Frame:
    """The parts of a file around its classes.

    Attributes:
        name, function: the root class, and the function that builds it.
        source, opset: the ONNX file's name (printable) and the opset of ai.onnx.
        summary: lines of the header docstring (inputs, outputs, weights).
        weights: the sidecar's name, relative to the module's folder.
        fingerprint: must be the sidecar's.
        constants: prefix of the keys of constants in the sidecar; "" if there are none.
        reads_constants: `__init__` reads buffers from the sidecar.
        ties: pairs (kept, tied) of state-dict keys.
        embedded: the safetensors bytes, if they are in the file itself.
        sharded: the sidecar is an index of several files.
        floats: the one dtype of all floating-point weights ("torch.float32"); "" if they differ.
    """

    name: str
    function: str
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
        """Raise `Refused` if a text cannot be where the templates put it: between quotes, or in the docstring."""
        for text in (self.weights, self.constants, *(key for keys in self.ties for key in keys)):
            between_quotes(text)
        for text in (self.name, self.function, self.source, *self.summary):
            comment(text)


def render(
    frame: Frame, trees: list[ClassTree], code: OwnCode, notes: list[str], templates: Path | None = None
) -> tuple[str, ast.Module]:
    """Return the formatted source of a generated file, and its syntax tree.

    Its `FINGERPRINT` is empty; `with_fingerprint` fills it in.

    Args:
        frame: see `Frame`.
        trees: the classes, the root last.
        code: what it uses of plugins.
        notes: gets one if the file is too long for black.
        templates: the user's own, if any.

    Raises:
        OnnxgenError: the user's own templates do something wrong.
        Refused: the file does not have the trees that it was made of.
    """
    classes = [tree.source for tree in trees]
    frame.hold()
    text = "\n".join(f"{name}(" for name in sorted(names_of(trees)))
    own, own_imports = code.used_in(text)
    helpers = copied(text)
    meant = Meant(trees, {**helpers, **own}, frozenset(m for m, _ in own_imports.values()), frame.function)
    first = _needed_first(meant)
    embedded = base64.b85encode(frame.embedded).decode() if frame.embedded is not None else ""
    values: dict[str, Any] = {
        **frame.__dict__,
        "version": __version__,
        "classes": classes,
        "title": _title(frame),
        "helpers": [definition.text for name, definition in meant.copied.items() if name not in first],
        "first_helpers": [definition.text for name, definition in meant.copied.items() if name in first],
        "embedded": textwrap.wrap(embedded, 88) if embedded else [],
        "imports": _imports(
            frame, "\n".join([text, *(h.text for h in helpers.values())]), [d.text for d in own.values()], own_imports
        ),
        "ties": classes[-1].ties,
        "tied_keys": frame.ties,
    }
    if templates is not None:  # they may do anything with the lines
        return _finished(_rendered(values, templates), meant, templates, formatted)
    settled = Settled(classes, LINE_LENGTH)
    if settled.skipped:
        long = f"the file has over {MAX_BLACK_LINES:,} lines to format"
        notes.append(f"{long}: long lines are left long (run `black` to wrap them)")
    text = _rendered({**values, "classes": settled.classes}, None)
    loading = _our_environment().get_template(LOADING_TEMPLATE).render(values).strip("\n") + "\n"
    return _finished(text, meant, None, lambda text: settled.restored(formatted_apart(text, loading, formatted)))


def _needed_first(meant: Meant) -> set[str]:
    """Return the copies that stand before the classes: layers, and what annotations and defaults need."""
    layers = {name: first.tree for name, first in meant.copied.items() if _is_layer(first.tree)}
    methods = [method for tree in meant.classes for method in tree.methods]
    pending = [needed for tree in (*layers.values(), *methods) for needed in _needed_at_once(tree)]
    first = set(layers)
    while pending:
        names = {node.id for node in ast.walk(pending.pop()) if isinstance(node, ast.Name)}
        new = names & meant.copied.keys() - first
        first |= new
        pending += [meant.copied[name].tree for name in new]
    return first


def _is_layer(tree: ast.AST) -> bool:
    return isinstance(tree, ast.ClassDef) and any(dotted(base).startswith("nn.") for base in tree.bases)


def _needed_at_once(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a definition that run where it stands: all but the bodies of functions."""
    if isinstance(tree, ast.FunctionDef):
        arguments = (*tree.args.args, *tree.args.kwonlyargs)
        annotations = (tree.returns, *(argument.annotation for argument in arguments))
        yield from (part for part in (*annotations, *tree.args.defaults, *tree.args.kw_defaults) if part is not None)
        yield from tree.decorator_list
    elif isinstance(tree, ast.ClassDef):
        yield from (*tree.bases, *tree.decorator_list)
        yield from (needed for statement in tree.body for needed in _needed_at_once(statement))
    else:
        yield tree


def _title(frame: Frame) -> str:
    """Return the first lines of the file's docstring. Names are not broken into lines."""
    text = f"{frame.name}, generated by onnxgen {__version__} from {frame.source} (opset {frame.opset})."
    return "\n".join(textwrap.wrap(text, LINE_LENGTH - 3, break_long_words=False, break_on_hyphens=False))


def _finished(
    text: str, meant: Meant, templates: Path | None, formatting: Callable[[str], str]
) -> tuple[str, ast.Module]:
    """Format a file with `formatting` and check it. The user's own templates may only add to it."""
    try:
        source = formatting(text)
        if templates is not None:  # a `return` outside of functions is found only here
            compile(source, "<generated>", "exec", dont_inherit=True)
        tree = ast.parse(source)
        hold(tree, meant, is_ours=templates is None)
        return source, tree
    except SyntaxError as error:
        reason = str(error) if error.lineno is None else f"{error.msg} (line {error.lineno})"
        if templates is None:
            raise Refused(f"the file is not Python: {reason}") from error
        raise OnnxgenError(f"the templates in {templates} do not make a Python file: {reason}") from error
    except Refused as error:
        if templates is None:
            raise
        what = f"the templates in {templates} change text that they may only add to: {error}"
        raise OnnxgenError(what, help="docs/TEMPLATES.md has the blocks for code of your own") from error


def _rendered(values: dict[str, Any], templates: Path | None) -> str:
    """Return the text before formatting. Raises `OnnxgenError` for mistakes in the user's own templates."""
    environment = _environment(templates)
    try:
        text: str = environment.get_template(MAIN_TEMPLATE).render(values)
    except Exception as error:
        if templates is None:
            raise
        raise OnnxgenError(f"a template in {templates} fails: {_line(error)}") from error
    if templates is not None:
        lines = set(text.splitlines())
        left_out = [] if 'FINGERPRINT = ""' in lines else ["FINGERPRINT"]
        build = {line for line in values["summary"] if line.startswith("Build ")}
        left_out += ["the summary's Build line"] if build - lines else []
        if left_out:
            what = f"the templates in {templates} leave out {' and '.join(left_out)}"
            raise OnnxgenError(what, help="keep them: onnxgen recognises its own files by them")
    return text


def _line(error: Exception) -> str:
    """Describe an error of a template: type, message and line. A Python error in one has its line in the traceback."""
    name, line = getattr(error, "name", None), getattr(error, "lineno", None)
    for frame in traceback.extract_tb(error.__traceback__) if line is None else ():
        if frame.filename.endswith(".jinja"):
            name, line = Path(frame.filename).name, frame.lineno
    where = "" if line is None else f" (line {line})" if not isinstance(name, str) else f" ({name}, line {line})"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}{where}"


def _environment(templates: Path | None) -> Any:
    """Load templates: the user's, then ours. Ours are also named `onnxgen/...`, so that the user's can extend them."""
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
    """Load our templates alone. They are compiled once a process, which takes as long as a small model."""
    with stage(IMPORTS):
        import jinja2

    ours = jinja2.FileSystemLoader(templates_dir())
    return _loading(jinja2.PrefixLoader({"onnxgen": ours}), ours)


def _loading(*loaders: Any) -> Any:
    import jinja2

    loader = jinja2.ChoiceLoader(loaders)
    return jinja2.Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)


def formatted(source: str, keep_commas: bool = True) -> str:
    """Format a source with black. Raises `SyntaxError` if black cannot parse it.

    `keep_commas`: a comma after the last element keeps a list on several lines.
    """
    with stage(IMPORTS):
        import black
        from black.parsing import InvalidInput

    try:
        with stage(FORMAT):
            return black.format_str(source, mode=black.Mode(line_length=LINE_LENGTH, magic_trailing_comma=keep_commas))
    except InvalidInput as error:
        raise SyntaxError(_line(error)) from error


# imports of the templates and classes, by name
_ON_DEMAND = {
    "Any": ("typing", "Any"),
    "Callable": ("collections.abc", "Callable"),
    "F": ("torch.nn.functional", ""),
    "base64": ("base64", ""),
    "json": ("json", ""),
    "math": ("math", ""),
    "np": ("numpy", ""),
    "re": ("re", ""),
}


def _imports(frame: Frame, text: str, own: list[str], own_imports: Mapping[str, Import]) -> dict[str, list[str]]:
    """Return the import lines that the file needs, separately for the standard library and packages.

    `text` is onnxgen's own, `own` is copied from plugins.
    """
    wanted = {"Path": ("pathlib", "Path"), "torch": ("torch", ""), "Tensor": ("torch", "Tensor"), "nn": ("torch", "nn")}
    everything = "\n".join([text, *own])
    wanted |= {name: source for name, source in _ON_DEMAND.items() if re.search(rf"(?<![\w.]){name}\b", everything)}
    wanted |= imported(text) | dict(own_imports)
    wanted |= {"warn": ("warnings", "warn")}
    if frame.embedded is not None:
        wanted |= {"base64": ("base64", ""), "load": ("safetensors.torch", "load")}
    else:
        wanted |= {"safe_open": ("safetensors", "safe_open")}
    if frame.sharded:
        wanted |= {"json": ("json", ""), "SafetensorError": ("safetensors", "SafetensorError")}
    lines = _import_lines(wanted)
    standard = [line for line in lines if line.split()[1].split(".")[0] in sys.stdlib_module_names]
    return {"stdlib": standard, "packages": [line for line in lines if line not in standard]}


def _import_lines(wanted: Mapping[str, Import]) -> list[str]:
    """Return the statements that import something by its name in the file: modules, then names from modules."""
    wholes = [f"import {_renamed(module, name)}" for name, (module, part) in wanted.items() if not part]
    parts: dict[str, list[str]] = {}
    for name, (module, part) in wanted.items():
        if part:
            parts.setdefault(module, []).append(_renamed(part, name))
    return sorted(wholes) + [f"from {m} import {', '.join(sorted(names))}" for m, names in sorted(parts.items())]


def _renamed(name: str, local: str) -> str:
    return name if name == local else f"{name} as {local}"


def aligned(rows: Mapping[str, list[tuple[str, str, str]]]) -> list[str]:
    """Return header lines: a label, then (name, dtype, dims) in columns. Dims that do not fit continue below."""
    names, dtypes = (max((len(row[i]) for several in rows.values() for row in several), default=0) for i in (0, 1))
    lines = []
    for label, entries in rows.items():
        for n, (name, dtype, dims) in enumerate(entries):
            start = f"{label if n == 0 else '':<10}{name:<{names}}  {dtype:<{dtypes}}  "
            indent = " " * len(start)
            lines += textwrap.wrap(start + dims, LINE_LENGTH, subsequent_indent=indent, break_on_hyphens=False)
    return lines


MAX_BLACK_LINES = 20_000  # lines to format; a file with more keeps the long lines of its methods
_BODY = 2 * len(INDENT)  # the column at which methods' lines begin
# An assignment or a call, perhaps with a shape comment. Left out is what black writes differently from `ast.unparse`:
# powers, slices, strings, 1e+20, 1 .real, (1,), and statements that may affect blank lines.
_SIMPLE = re.compile(r"( *)([\w., ]+ = )?([\w .,()\[\]=+\-*/%@<>!&|^~]+?)(  # \[[^#]*\])?", re.ASCII)
_OTHER = re.compile(
    r"\*\*|\w \.|,[)\]]|, =|\de\+|(?<![\w.])\d[\w.]*\.[A-Za-z_]|^ *\("
    r"|\b(?:return|yield|await|pass|break|continue|del|assert|raise)\b"
)
_MARK = re.compile(r"^( *)_settled_(\d+)_$", re.MULTILINE)
# Stands for `from_pretrained`. It is an f-string, as that method has: by those black sees for which versions of Python
# a file is, and splits lines accordingly.
_LOADING = 'f"_from_pretrained_"\n'


class Settled:
    """The lines that were taken out of the classes of one file.

    Attributes:
        skipped: all lines of methods were taken out, since there are too many to format.
    """

    def __init__(self, classes: Sequence[ClassSource], line_length: int) -> None:
        self.line_length = line_length
        left = sum(not self._settled(line) for c in classes for line in (*c.init, *c.forward))
        self.skipped = left > MAX_BLACK_LINES
        self.runs: list[list[str]] = []
        self.classes = [replace(c, init=self._without(c.init), forward=self._without(c.forward)) for c in classes]

    def restored(self, source: str) -> str:
        """Put the lines back into the formatted source."""
        return _MARK.sub(lambda mark: mark[1] + f"\n{mark[1]}".join(self.runs[int(mark[2])]), source)

    def _without(self, lines: list[str]) -> list[str]:
        """Replace each run of settled lines (or all lines, if skipped) by a mark."""
        left: list[str] = []
        before = None  # indentation of the current run
        for line in lines:
            indent = "" if self.skipped else line[: len(line) - len(line.lstrip(" "))]
            if not self.skipped and not self._settled(line):
                before = None
                left.append(line)
                continue
            if indent != before:
                before = indent
                left.append(f"{indent}_settled_{len(self.runs)}_")
                self.runs.append([])
            self.runs[-1].append(line[len(indent) :])
        return left

    def _settled(self, line: str) -> bool:
        if len(line) + _BODY > self.line_length or _OTHER.search(line):
            return False
        match = _SIMPLE.fullmatch(line)
        # black removes parentheses around a whole value
        return match is not None and not (match[3].startswith("(") and match[3].endswith(")"))


def formatted_apart(text: str, method: str, formatted: Callable[[str], str]) -> str:
    """Format a file with a function that is the same in many files, and formatted once.

    Args:
        text: the file.
        method: the lines of the function in it.
        formatted: formats a file.
    """
    marked = text.replace(method, _LOADING)
    if text.count(method) != 1 or marked.count(_LOADING) != 1:
        return formatted(text)
    return formatted(marked).replace(_LOADING, _alone(method, formatted))


@lru_cache(maxsize=64)
def _alone(method: str, formatted: Callable[[str], str]) -> str:
    return formatted(method)
