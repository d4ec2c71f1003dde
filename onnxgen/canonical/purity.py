"""What an edited file may say so that one capture of it holds for every call.

`torch.export` runs the Python of a module once. What that Python reads from elsewhere, or keeps from one call to the
next, is not in the result. So a function whose text onnxgen did not write has to keep to what is here: anything else is
refused.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

from torch import nn

MODULES = frozenset(
    """
    __future__ torch math typing collections collections.abc functools itertools einops dataclasses warnings
    pathlib safetensors
    """.split()
)
BUILTINS = frozenset(
    """
    abs all any bool dict enumerate float int isinstance len list map max min object range reversed round slice
    sorted sum super tuple zip ValueError TypeError RuntimeError AssertionError NotImplementedError property
    staticmethod classmethod None True False print pow NotImplemented Exception filter set frozenset complex
    divmod str repr format iter next getattr
    """.split()
)
IN_INIT = frozenset(
    {"str", "repr", "format", "print", "iter", "next"}
)  # elsewhere, they could tell a capture from a call
# of torch: what depends on more than arguments, or lies about gradients
STATEFUL = frozenset(
    """
    compiler jit onnx cuda backends library autograd overrides distributed mps xpu accelerator export fx ops
    classes random initial_seed seed manual_seed set_default_dtype get_default_dtype get_default_device
    set_default_device is_grad_enabled set_grad_enabled is_inference_mode_enabled is_autocast_enabled autocast
    get_num_threads set_num_threads load save from_file hub multiprocessing get_rng_state set_rng_state utils func
    is_inference inference_mode enable_grad amp
    """.split()
)
# of a tensor or a module: what a capture answers in another way than a call, or what changes one under another name
ATTRIBUTES = frozenset(
    """
    requires_grad is_leaf grad_fn grad data data_ptr is_meta storage untyped_storage is_contiguous stride set_
    register_hook retain_grad requires_grad_ register_forward_hook register_forward_pre_hook
    register_full_backward_hook register_parameter register_buffer register_module add_module load_state_dict
    train eval apply share_memory_ resize_ numpy tolist item setattr backward is_shared names is_cuda is_cpu
    is_xpu as_strided storage_offset layout zero_grad grad_dtype _modules _parameters _buffers f_locals gi_frame
    """.split()
)
NOT_FOLLOWED = (
    *(ast.Global, ast.Nonlocal, ast.Try, ast.ClassDef, ast.Await, ast.Yield, ast.YieldFrom, ast.Import, ast.ImportFrom),
    *(ast.AsyncFunctionDef, ast.Delete, ast.Match),
)
GROWING = frozenset(
    {"append", "extend", "insert", "pop", "remove", "clear", "update", "add", "setdefault", "popitem", "discard"}
)
OVERRIDDEN = frozenset({"__init__", "forward", "train", "extra_repr", "reset_parameters"})
MADE = ("from_pretrained",)  # of the file's own functions: what loads weights


def objections(text: str, known: str) -> Iterator[str]:
    """Yield what is not followed in a file, apart from what is written in the same way in another one."""
    tree, others = ast.parse(text), _written(ast.parse(known))
    names = {n.name for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))} | _constants(tree)
    used = _used(tree)
    for node in tree.body:
        if ast.dump(node) in others:
            continue
        if isinstance(node, ast.ClassDef):
            yield from _class(node, others, names)
        elif isinstance(node, ast.FunctionDef):
            if node.name in MADE:
                yield _said(node, "loads weights in another way")
            elif node.name in used:
                yield from Function(node, names, initial=False).objections()
        else:
            yield from _statement(node)


def _used(tree: ast.Module) -> set[str]:
    """Names that classes mention, and what the functions of these names mention."""
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    todo: list[ast.AST] = [n for n in tree.body if isinstance(n, ast.ClassDef)]
    found: set[str] = set()
    while todo:
        names = {n.id for n in ast.walk(todo.pop()) if isinstance(n, ast.Name)} - found
        found |= names
        todo += [functions[n] for n in names if n in functions]
    return found


def _written(tree: ast.Module) -> set[str]:
    found = {ast.dump(n) for n in tree.body}
    return found | {ast.dump(n) for c in tree.body if isinstance(c, ast.ClassDef) for n in c.body}


def _said(node: ast.AST, why: str) -> str:
    text = " ".join(ast.unparse(node).split())
    return f"line {getattr(node, 'lineno', 1)} {why}: {text[:80]}"


def _constants(tree: ast.Module) -> set[str]:
    """Names of plain numbers, texts and tuples of them, each set once; and of what is imported."""
    counts: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            counts[node.id] = counts.get(node.id, 0) + 1
    found = {
        a.asname or a.name.partition(".")[0]
        for n in ast.walk(tree)
        if isinstance(n, (ast.Import, ast.ImportFrom))
        for a in n.names
    }
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_plain(node.value):
            found |= {node.targets[0].id} if counts[node.targets[0].id] == 1 else set()
    return found


def _is_plain(node: ast.AST) -> bool:
    inside = (
        ast.Constant,
        ast.Tuple,
        ast.UnaryOp,
        ast.BinOp,
        ast.operator,
        ast.unaryop,
        ast.expr_context,
        ast.Attribute,
        ast.Name,
    )
    return all(isinstance(n, inside) for n in ast.walk(node))


def _statement(node: ast.stmt) -> Iterator[str]:
    """Yield what is wrong with a statement outside of functions and classes."""
    if isinstance(node, ast.Import):
        wrong = [a.name for a in node.names if a.name.split(".")[0] not in MODULES]
    elif isinstance(node, ast.ImportFrom):
        wrong = [node.module or "."] if (node.module or ".").split(".")[0] not in MODULES or node.level else []
        wrong += [a.name for a in node.names if a.name in STATEFUL] if (node.module or "").startswith("torch") else []
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        wrong = []
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        wrong = [] if all(isinstance(t, ast.Name) for t in targets) else ["an attribute"]
    elif isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
        wrong = []
    else:
        wrong = ["it"]
    for what in wrong:
        yield _said(node, f"is not followed ({what})")


def _class(node: ast.ClassDef, others: set[str], names: set[str]) -> Iterator[str]:
    if node.decorator_list or node.keywords:
        yield _said(node, "is a class with a decorator or a metaclass")
    for part in node.body:
        if ast.dump(part) in others:
            continue
        if isinstance(part, ast.FunctionDef):
            if part.name not in OVERRIDDEN and hasattr(nn.Module, part.name):
                yield _said(part, "overrides a method of nn.Module")
            yield from Function(part, names, initial=part.name == "__init__").objections()
        elif isinstance(part, (ast.Assign, ast.AnnAssign)):
            if part.value is not None and not _is_plain(part.value):
                yield _said(part, "is state of a class")
        elif not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)) and not isinstance(
            part, ast.Pass
        ):
            yield _said(part, "is not followed")


class Function:
    """One function, with the names that are its own."""

    def __init__(self, node: ast.FunctionDef, known: set[str], initial: bool) -> None:
        self.node, self.initial = node, initial
        self.parameters = {
            a.arg for n in ast.walk(node) if isinstance(n, (ast.FunctionDef, ast.Lambda)) for a in _arguments(n.args)
        }
        self.local = {
            n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        } | self.parameters
        self.local |= {n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef)}
        self.known = known

    def objections(self) -> Iterator[str]:
        for decorator in self.node.decorator_list:
            if ast.unparse(decorator) not in ("staticmethod", "classmethod", "property", "torch.no_grad()"):
                yield _said(decorator, "is a decorator that is not followed")
        for node in ast.walk(self.node):
            yield from self._objections(node)

    def _objections(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Name):
            yield from self._name(node)
        elif isinstance(node, ast.Attribute):
            yield from self._attribute(node)
        elif isinstance(node, ast.Call):
            yield from self._call(node)
        elif isinstance(node, NOT_FOLLOWED):
            yield _said(node, "is not followed")
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and not self.initial:
            if not isinstance(node.value, ast.Name) or node.value.id not in self.local:
                yield _said(node, "changes what is kept")

    def _name(self, node: ast.Name) -> Iterator[str]:
        if node.id in self.local or node.id in self.known:
            return
        if node.id in IN_INIT and not self.initial and not self._is_said(node):
            yield _said(node, "is not followed")
        elif node.id not in BUILTINS and (hasattr(builtins, node.id) or not isinstance(node.ctx, ast.Store)):
            yield _said(node, "is a name that is not followed")

    def _is_said(self, node: ast.AST) -> bool:
        """Whether it stands in what is raised or asserted."""
        return any(node in ast.walk(n) for n in ast.walk(self.node) if isinstance(n, ast.Raise))

    def _attribute(self, node: ast.Attribute) -> Iterator[str]:
        name, whole = node.attr, ast.unparse(node)
        if name.startswith("__") and whole != "super().__init__":
            yield _said(node, "is not followed")
        elif whole.startswith("torch.") and whole.split(".")[1] in STATEFUL | {"_C", "_dynamo", "_inductor"}:
            if not whole.startswith(("torch.onnx.ops", "torch.no_grad")):
                yield _said(node, "depends on more than its arguments")
        elif whole.startswith("torch._"):
            yield _said(node, "depends on more than its arguments")
        elif self.initial:
            return
        elif isinstance(node.ctx, ast.Store):
            yield _said(node, "keeps something for the next call")
        elif name in ATTRIBUTES and not re.fullmatch(r"self\.[\w.\[\]]+\.stride", whole):  # of a layer
            yield _said(node, "is not followed")

    def _call(self, node: ast.Call) -> Iterator[str]:
        if (
            isinstance(node.func, ast.Name)
            and node.func.id == "getattr"
            and not re.match(r"self\b", ast.unparse(node.args[0]))
        ):
            yield _said(node, "is not followed")
        if self.initial or not isinstance(node.func, ast.Attribute) or node.func.attr not in GROWING:
            return
        if not isinstance(node.func.value, ast.Name) or node.func.value.id not in self._lists():
            if node.func.attr != "add" or isinstance(node.func.value, ast.Call):  # `x.add(y)` of a tensor
                yield _said(node, "changes what is kept")

    def _lists(self) -> set[str]:
        """Local names that are always a new list or dict."""
        fresh: dict[str, bool] = dict.fromkeys(self.parameters, False)
        for node in ast.walk(self.node):
            for name, value in _assigned(node):
                new = isinstance(value, (ast.List, ast.Dict, ast.ListComp, ast.DictComp, ast.Set))
                fresh[name] = fresh.get(name, True) and new
        return {name for name, new in fresh.items() if new}


def _arguments(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    for one in (arguments.vararg, arguments.kwarg):
        if one is not None:
            yield one


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield the names that a statement sets, each with what it is set to."""
    pairs: list[tuple[ast.AST, ast.AST]] = []
    if isinstance(node, ast.Assign):
        pairs = [(t, node.value) for t in node.targets]
    elif isinstance(node, (ast.AugAssign, ast.NamedExpr)) or (
        isinstance(node, ast.AnnAssign) and node.value is not None
    ):
        pairs = [(node.target, node.value)]  # type: ignore[list-item]
    elif isinstance(node, (ast.For, ast.comprehension)):
        pairs = [(node.target, node.iter)]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        pairs = [(node.optional_vars, node.context_expr)]
    for target, value in pairs:
        for part in ast.walk(target):
            if isinstance(part, ast.Name):
                yield part.id, value


__all__ = ["objections"]
