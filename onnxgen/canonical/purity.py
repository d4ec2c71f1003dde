"""What an edited file may say so that one capture of it holds for every call.

`torch.export` runs the Python of a module once. What that Python reads from elsewhere, or keeps from one call to the
next, is not in the result. So a function whose text onnxgen did not write has to keep to what is here: anything else is
refused.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Iterator
from copy import copy
from functools import cached_property
from textwrap import shorten
from typing import Any

from torch import Tensor, nn

from onnxgen.canonical.modules import MODULES, is_module, is_of_another_module

FOR_WEIGHTS = frozenset({"pathlib", "safetensors", "warnings"})  # of these, only what onnxgen wrote may use anything
BUILTINS = frozenset(
    """
    abs all any bool dict enumerate float int isinstance len list map max min object range reversed round slice
    sorted sum super tuple zip ValueError TypeError RuntimeError AssertionError NotImplementedError property
    staticmethod classmethod None True False print pow NotImplemented Exception filter complex
    divmod str repr format iter next getattr
    """.split()
)
IN_INIT = frozenset(
    {"str", "repr", "format", "print", "iter", "next"}
)  # elsewhere, they could tell a capture from a call
CALLED = frozenset({"getattr", "isinstance"})  # and never handed on
KINDS = re.compile(r"torch\.Tensor|tuple|list|dict|torch\.nn\.\w+")  # that `isinstance` may ask for
# of torch: what depends on more than arguments, or lies about gradients
STATEFUL = frozenset(
    """
    compiler jit onnx cuda backends library autograd overrides distributed mps xpu accelerator export fx ops
    classes random initial_seed seed manual_seed set_default_dtype get_default_dtype get_default_device
    set_default_device is_grad_enabled set_grad_enabled is_inference_mode_enabled is_autocast_enabled autocast
    get_num_threads set_num_threads load save from_file hub multiprocessing get_rng_state set_rng_state utils func
    is_inference inference_mode enable_grad amp version set_printoptions set_float32_matmul_precision device
    use_deterministic_algorithms modules
    """.split()
)
PURE = ("torch.onnx.ops", "torch.nn.utils.parametrizations", "torch.nn.utils.rnn")  # in spite of a name above
RANDOM = re.compile(r"torch\.(rand\w*|normal|bernoulli|multinomial|poisson|empty\w*)$")
# what makes a parameter, or a buffer with a name, of a tensor
PARAMETERS = frozenset({"Parameter", "ParameterList", "ParameterDict", "register_buffer", "register_parameter"})
OF_COLLECTIONS = frozenset({"abc", "OrderedDict", "namedtuple"})
ASKING = re.compile(r"get_|are_|is_(autocast|deterministic|grad|warn|vulkan|inference)")  # of the state of torch
OF_FUNCTOOLS = frozenset({"partial", "reduce", "wraps"})
# of a tensor or a module: what a capture answers in another way than a call, or what changes one under another name
ATTRIBUTES = frozenset(
    """
    requires_grad is_leaf grad_fn grad data data_ptr is_meta storage untyped_storage is_contiguous stride set_
    register_hook retain_grad requires_grad_ register_forward_hook register_forward_pre_hook
    register_full_backward_hook register_parameter register_buffer register_module add_module load_state_dict
    train eval apply share_memory_ resize_ numpy tolist item setattr backward is_shared names is_cuda is_cpu
    is_xpu as_strided storage_offset layout zero_grad grad_dtype _modules _parameters _buffers f_locals gi_frame
    format cuda cpu share_memory get_device detach_ detach_copy is_inference dim_order retains_grad is_pinned
    """.split()
)
HOOK = re.compile(r"_?register_\w*hook\w*")
NOT_FOLLOWED = (
    *(ast.Global, ast.Nonlocal, ast.Try, ast.ClassDef, ast.Await, ast.Yield, ast.YieldFrom, ast.Import, ast.ImportFrom),
    *(ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Delete, ast.Match),
)
GROWING = frozenset(
    {"append", "extend", "insert", "pop", "remove", "clear", "update", "add", "setdefault", "popitem", "discard"}
)
OVERRIDDEN = frozenset({"__init__", "forward", "train", "extra_repr", "reset_parameters"})
MAIN = [ast.dump(ast.parse(t, mode="eval").body) for t in ("__name__ == '__main__'", "'__main__' == __name__")]
MADE = ("from_pretrained",)  # of the file's own functions: what loads weights


def objections(text: str, known: str) -> Iterator[str]:
    """Yield what is not followed in a file, apart from what is written in the same way in another one."""
    file, others = File(ast.parse(text)), written(ast.parse(known))
    yield from _bound_again(file.tree, others)
    for node in file.tree.body:
        if said(node) in others:
            continue
        if isinstance(node, ast.ClassDef):
            yield from _class(node, others, file)
        elif isinstance(node, ast.FunctionDef):
            if node.name in MADE:
                yield _said(node, "loads weights in another way")
            elif node.name in file.used:
                yield from Code(node, file).objections()
        else:
            yield from _statement(node, file)


def _bound_again(tree: ast.Module, others: set[str]) -> Iterator[str]:
    """Yield the statements that give a name another meaning which is imported, or belongs to a class or function."""
    own = {n.name for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))} | dict(_imported(tree)).keys()
    seen: set[str] = set()
    for node in tree.body:
        targets = [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        names = [n.id for n in targets] if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) else []
        names += [name for name, _ in _imported(ast.Module([node], []))]
        names += [node.name] if isinstance(node, (ast.ClassDef, ast.FunctionDef)) else []
        for name in names:
            if (name in seen and name in own) or (name in MADE and said(node) not in others):
                yield _said(node, f"gives {name} another meaning")
        seen |= {*names}


class File:
    """The names of a file."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.imported = dict(_imported(tree))

    @cached_property
    def classes(self) -> set[str]:
        return {n.name for n in self.tree.body if isinstance(n, ast.ClassDef)}

    @cached_property
    def frozen(self) -> set[str]:
        """Names of dataclasses that can't be changed."""
        classes = [n for n in self.tree.body if isinstance(n, ast.ClassDef)]
        words = [(n.name, k) for n in classes for d in n.decorator_list if isinstance(d, ast.Call) for k in d.keywords]
        return {name for name, k in words if k.arg == "frozen" and isinstance(k.value, ast.Constant) and k.value.value}

    @cached_property
    def known(self) -> set[str]:
        """Classes, functions, what is imported for computing, and names that are set once, outside of functions."""
        counts: dict[str, int] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                counts[node.id] = counts.get(node.id, 0) + 1
        found = self.classes | {n.name for n in self.tree.body if isinstance(n, ast.FunctionDef)}
        found |= {name for name, whole in self.imported.items() if whole.partition(".")[0] not in FOR_WEIGHTS}
        for node in self.tree.body:
            for name, _ in _assigned(node):
                found |= {name} if counts[name] == 1 else set()
        return found

    @cached_property
    def used(self) -> set[str]:
        """Names that classes mention, and what the functions of these names mention."""
        functions = {n.name: n for n in self.tree.body if isinstance(n, ast.FunctionDef)}
        todo: list[ast.AST] = [n for n in self.tree.body if not isinstance(n, ast.FunctionDef)]
        found: set[str] = set()
        while todo:
            names = {n.id for n in ast.walk(todo.pop()) if isinstance(n, ast.Name)} - found
            found |= names
            todo += [functions[n] for n in names if n in functions]
        return found

    @cached_property
    def of_construction(self) -> set[str]:
        """Names of methods that are called only where a module is made."""
        functions = [n for n in ast.walk(self.tree) if isinstance(n, (ast.FunctionDef, ast.Lambda))]
        makers = [f for f in functions if isinstance(f, ast.FunctionDef) and f.name in ("__init__", *MADE)]
        later = {n for f in functions for n in ast.walk(f) if f not in makers}
        called = {n.attr for f in makers for n in ast.walk(f) if isinstance(n, ast.Attribute) and n not in later}
        other = {n.attr for n in ast.walk(self.tree) if isinstance(n, ast.Attribute) and n in later}
        is_named = any(isinstance(n, ast.Name) and n.id == "getattr" for n in ast.walk(self.tree))
        return set() if is_named else called - other

    def whole(self, node: ast.AST) -> str:
        """Return an expression as text, with what is imported under its whole name."""
        text = ast.unparse(node)
        root, dot, rest = text.partition(".")
        return f"{self.imported.get(root, root)}{dot}{rest}"


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that are imported, each with its whole name."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            for a in node.names:
                yield (a.asname, a.name) if a.asname else (a.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom):
            yield from ((a.asname or a.name, f"{node.module}.{a.name}") for a in node.names)


def said(node: ast.stmt) -> str:
    """Return what a statement says, apart from its layout, and from the name of the weights' file beside the module."""
    match node:
        case ast.Assign([ast.Name("WEIGHTS")], ast.Call(ast.Attribute(place, "with_name"), [ast.Constant(str())], [])):
            return f"WEIGHTS beside {ast.dump(place)}"
        case ast.FunctionDef() if node.name in MADE:
            shown = copy(node)
            shown.body = [part for part in node.body if not _is_tie(part)]
            return ast.dump(shown)
    return ast.dump(node)


def _is_of_key(node: ast.expr) -> bool:
    match node:
        case ast.Subscript(ast.Name("state"), ast.Name("key")):
            return True
    return False


def _is_tie(node: ast.stmt) -> bool:
    """Whether a statement gives a tensor of the weights to the other names of it that are missing there."""
    match node:
        case ast.For(
            ast.Name("key"),
            ast.BinOp(ast.Set(names), ast.BitAnd(), ast.Call(ast.Attribute(ast.Name("state"), "keys"), [], [])),
            [ast.Assign([ast.Name("state")], ast.BinOp(ast.Dict(given, values), ast.BitOr(), ast.Name("state")))],
            [],
        ):
            texts = [n.value for n in (*names, *given) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            one = len(texts) == 2 * len(names) and {*texts[: len(names)]} == {*texts[len(names) :]}
            return one and all(map(_is_of_key, values))
    return False


def written(tree: ast.Module) -> set[str]:
    found = {said(n) for n in tree.body}
    return found | {ast.dump(n) for c in tree.body if isinstance(c, ast.ClassDef) for n in c.body}


def _said(node: ast.AST, why: str) -> str:
    return f"line {getattr(node, 'lineno', 1)} {why}: {shorten(ast.unparse(node), 80, placeholder=' ...')}"


def _is_of_torch(whole: str) -> bool:
    """Whether a name of torch depends on its arguments alone."""
    first, *parts = whole.split(".")
    if first not in MODULES or is_of_another_module(whole):
        return first not in MODULES
    if first == "collections":
        return not parts or parts[0] in OF_COLLECTIONS
    if first != "torch" or whole.startswith(PURE):
        return True
    if parts and ASKING.match(parts[0]):
        return False
    return not any(part in STATEFUL or (part.startswith("_") and not part.endswith("__")) for part in parts)


def _is_hidden(name: str) -> bool:
    """Whether an attribute is torch's or Python's own, or a hook."""
    own = name.startswith("_") and (hasattr(Tensor, name) or name in vars(nn.Module()))
    return name.startswith("__") or own or HOOK.fullmatch(name) is not None


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _is_of_self(node: ast.AST) -> bool:
    """Whether an expression is the module, or what is found in it."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return isinstance(node, ast.Name) and node.id == "self"


def _statement(node: ast.stmt, file: File) -> Iterator[str]:
    """Yield what is wrong with a statement outside of functions and classes."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        level = node.level if isinstance(node, ast.ImportFrom) else 0
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        for name in [f"{module}.{a.name}" for a in node.names] if module else [a.name for a in node.names]:
            if level or name.partition(".")[0] not in MODULES or name.endswith(".*") or not _is_of_torch(name):
                yield _said(node, f"is not followed ({name})")
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if not all(isinstance(t, (ast.Name, ast.Tuple)) for t in targets) or any(
            isinstance(n, (ast.Attribute, ast.Subscript)) for t in targets for n in ast.walk(t)
        ):
            yield _said(node, "is not followed (an attribute)")
        elif node.value is not None:
            yield from Code(node.value, file).objections()
    elif not _is_main(node) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        yield _said(node, "is not followed (it)")


def _makes_dataclass(node: ast.expr, file: File) -> bool:
    """Whether a decorator of a class is `dataclass`, perhaps with what it is to be."""
    if isinstance(node, ast.Call) and not node.args and all(isinstance(k.value, ast.Constant) for k in node.keywords):
        node = node.func
    return file.whole(node) == "dataclasses.dataclass"


def _is_main(node: ast.stmt) -> bool:
    """Whether a statement runs only where the file is a script."""
    return isinstance(node, ast.If) and not node.orelse and ast.dump(node.test) in MAIN


def _class(node: ast.ClassDef, others: set[str], file: File) -> Iterator[str]:
    if node.keywords or not all(_makes_dataclass(d, file) for d in node.decorator_list):
        yield _said(node, "is a class with a decorator or a metaclass")
    for base in node.bases:
        if not (isinstance(base, ast.Name) and base.id in file.classes) and not file.whole(base).startswith(
            "torch.nn."
        ):
            yield _said(node, "is a class of another kind")
    for part in node.body:
        if ast.dump(part) in others:
            continue
        if isinstance(part, ast.FunctionDef):
            yield from _method(part, file)
        elif isinstance(part, (ast.Assign, ast.AnnAssign)):
            if any(hasattr(nn.Module, name) or name.startswith("__") for name, _ in _assigned(part)):
                yield _said(part, "overrides a method of nn.Module")
            elif part.value is not None:
                yield from Code(part.value, file).objections()
        elif not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)) and not isinstance(
            part, ast.Pass
        ):
            yield _said(part, "is not followed")


def _method(node: ast.FunctionDef, file: File) -> Iterator[str]:
    if node.name not in OVERRIDDEN and (hasattr(nn.Module, node.name) or node.name.startswith("__")):
        yield _said(node, "overrides a method of nn.Module")
    if node.name in MADE:
        yield _said(node, "loads weights in another way")
    yield from Code(node, file, initial=node.name == "__init__" or node.name in file.of_construction).objections()


class Code:
    """One function or expression, with the names that are its own."""

    def __init__(self, node: ast.AST, file: File, initial: bool = False) -> None:
        self.node, self.file = node, file
        self.parents = {child: parent for parent in ast.walk(node) for child in ast.iter_child_nodes(parent)}
        inner = (ast.FunctionDef, ast.Lambda)
        functions = [n for n in ast.walk(node) if isinstance(n, inner)]
        self.parameters = {a.arg for n in functions for a in _arguments(n.args)}
        self.local = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self.local |= self.parameters | {n.name for n in functions if isinstance(n, ast.FunctionDef) and n is not node}
        later = {n for f in functions if f is not node for n in ast.walk(f)}  # what runs in `forward`
        self.initial = {n for n in ast.walk(node) if n not in later} if initial else set[ast.AST]()

    def objections(self) -> Iterator[str]:
        for node in ast.walk(self.node):
            for kind, look in LOOKS.items():
                if isinstance(node, kind):
                    yield from look(self, node)
            if isinstance(node, NOT_FOLLOWED):
                yield _said(node, "is not followed")

    def _is_global(self, node: ast.AST) -> bool:
        """Whether an expression starts at a name that is not the function's own."""
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        return not isinstance(node, ast.Name) or node.id not in self.local

    def _is_local(self, node: ast.AST) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self.local

    def _around(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parents:
            node = self.parents[node]
            yield node

    def _function(self, node: ast.FunctionDef | ast.Lambda) -> Iterator[str]:
        for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)):
            if self._is_frozen(default):
                continue
            if any(isinstance(n, (ast.List, ast.Dict, ast.Set, ast.Call, ast.ListComp)) for n in ast.walk(default)):
                yield _said(default, "is kept from call to call")
        for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if self.file.whole(decorator) not in ("staticmethod", "classmethod", "property", "torch.no_grad()"):
                yield _said(decorator, "is a decorator that is not followed")

    def _is_frozen(self, node: ast.AST) -> bool:
        """Whether an expression makes a frozen dataclass of the file, as its fields are declared."""
        if not isinstance(node, ast.Call) or node.args or node.keywords or not isinstance(node.func, ast.Name):
            return False
        return node.func.id in self.file.frozen

    def _with(self, node: ast.With) -> Iterator[str]:
        for item in node.items:
            if self.file.whole(item.context_expr) != "torch.no_grad()":
                yield _said(item.context_expr, "is not followed")

    def _name(self, node: ast.Name) -> Iterator[str]:
        parent = self.parents.get(node)
        if node.id in CALLED and not (isinstance(parent, ast.Call) and parent.func is node):
            yield _said(node, "is handed on")
        if node.id not in self.local and self._is_handed_on(node):
            yield _said(node, "is a module that is handed on")
        if node.id in self.local or node.id in self.file.known:
            whole = self.file.imported.get(node.id, "")
            if node.id not in self.local and not _is_of_torch(whole):
                yield _said(node, "depends on more than its arguments")
        elif node.id in IN_INIT and node not in self.initial and not self._is_said(node):
            yield _said(node, "is not followed")
        elif node.id not in BUILTINS and (hasattr(builtins, node.id) or not isinstance(node.ctx, ast.Store)):
            yield _said(node, "is a name that is not followed")

    def _is_handed_on(self, node: ast.AST) -> bool:
        """Whether a module gets another name."""
        parent = self.parents.get(node)
        return not isinstance(parent, ast.Attribute) and is_module(self.file.whole(node))

    def _is_said(self, node: ast.AST) -> bool:
        """Whether it stands in what is raised or asserted."""
        return any(
            isinstance(n, ast.Raise) or (isinstance(n, ast.Assert) and n.msg is not None and node in ast.walk(n.msg))
            for n in self._around(node)
        )

    def _text(self, node: ast.AST) -> Iterator[str]:
        """A text that is made of values: a capture makes another one of a size."""
        named = any(isinstance(n, ast.Call) and self.file.whole(n.func) == "getattr" for n in self._around(node))
        if node not in self.initial and not self._is_said(node) and not named:
            yield _said(node, "is a text that is made of values")

    def _operation(self, node: ast.BinOp) -> Iterator[str]:
        if isinstance(node.left, ast.Constant) and isinstance(node.left.value, str):
            yield from self._text(node)

    def _comparison(self, node: ast.Compare) -> Iterator[str]:
        for sign, one, other in zip(node.ops, (node.left, *node.comparators), node.comparators, strict=False):
            if isinstance(sign, (ast.Is, ast.IsNot)) and not any(
                isinstance(side, ast.Constant) and (side.value is None or isinstance(side.value, bool))
                for side in (one, other)
            ):
                yield _said(node, "asks if two objects are the same")
        sides = [n for n in (node.left, *node.comparators) if isinstance(n, ast.Attribute)]
        if node not in self.initial and any(n.attr == "dtype" for n in sides):
            yield _said(node, "asks for a dtype")

    def _set(self, node: ast.AST) -> Iterator[str]:
        if not isinstance(self.parents.get(node), ast.Compare):
            yield _said(node, "has no order")

    def _subscript(self, node: ast.Subscript) -> Iterator[str]:
        if isinstance(node.ctx, ast.Store):
            kept = self._is_global(node) if node in self.initial else not isinstance(node.value, ast.Name)
            if kept or self._is_global(node):
                yield _said(node, "changes what is kept")

    def _attribute(self, node: ast.Attribute) -> Iterator[str]:
        name, whole = node.attr, self.file.whole(node)
        if not self._is_local(node) and self._is_handed_on(node):
            yield _said(node, "is a module that is handed on")
        if _is_hidden(name) and whole != "super().__init__":
            yield _said(node, "is not followed")
        elif not _is_of_torch(whole) or (whole.startswith("functools.") and name not in OF_FUNCTOOLS):
            yield _said(node, "depends on more than its arguments")
        elif isinstance(node.ctx, ast.Store):
            yield from self._stored(node)
        elif node in self.initial:
            return
        elif name == "device":
            yield from self._device(node)
        elif name in ATTRIBUTES and not (name == "stride" and self._is_given(node)):
            yield _said(node, "is not followed")

    def _is_given(self, node: ast.AST) -> bool:
        """Whether an expression is an argument of a layer's function: there, `x.stride` is of a layer."""
        parent = self.parents.get(node)
        call = self.parents.get(parent) if isinstance(parent, ast.keyword) else parent
        whole = self.file.whole(call.func) if isinstance(call, ast.Call) and call.func is not node else ""
        return whole.startswith(("torch.nn.functional.", "torch.conv"))

    def _stored(self, node: ast.Attribute) -> Iterator[str]:
        if node not in self.initial:
            yield _said(node, "keeps something for the next call")
        elif node.attr == "requires_grad" and self._is_parameter(node.value):
            return
        elif not _is_of_self(node) or hasattr(nn.Module, node.attr):
            yield _said(node, "changes what is not the module's own")

    def _is_parameter(self, node: ast.AST) -> bool:
        """Whether a name goes over parameters of the module alone."""
        if not isinstance(node, ast.Name) or node.id in self.parameters:
            return False
        set_ = [n for n in ast.walk(self.node) if isinstance(n, ast.Name) and n.id == node.id and _is_stored(n)]
        loops = [n for n in ast.walk(self.node) if isinstance(n, ast.For) and n.target in set_]
        calls = [n.iter.func for n in loops if isinstance(n.iter, ast.Call) and not n.iter.args]
        kinds = [c for c in calls if isinstance(c, ast.Attribute) and c.attr == "parameters" and _is_of_self(c.value)]
        return len(kinds) == len(set_) > 0

    def _device(self, node: ast.Attribute) -> Iterator[str]:
        """A device may only say where something is made."""
        parent = self.parents.get(node)
        if isinstance(parent, ast.keyword) and parent.arg == "device":
            return
        if not (isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute) and parent.func.attr == "to"):
            yield _said(node, "is not followed")

    def _call(self, node: ast.Call) -> Iterator[str]:
        function = self.file.whole(node.func)
        given = [n for a in (*node.args, *(k.value for k in node.keywords)) for n in ast.walk(a)]
        changeable = any(isinstance(n, (ast.List, ast.Dict, ast.Set, ast.Call)) for n in given)
        if function == "functools.partial" and changeable:
            yield _said(node, "is kept from call to call")
        if function == "getattr":
            yield from self._getattr(node)
        elif function == "isinstance":
            kinds = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
            if not all(KINDS.fullmatch(self.file.whole(kind)) for kind in kinds):
                yield _said(node, "is not followed")
        elif RANDOM.match(self.file.whole(node.func)) and (node in self.initial or not self._has_self()):
            made = [self.file.whole(n.func).split(".")[-1] for n in self._around(node) if isinstance(n, ast.Call)]
            if not PARAMETERS & {*made}:
                yield _said(node, "is another one in each process")
        if isinstance(node.func, ast.Attribute) and node.func.attr in GROWING:
            yield from self._growing(node, node.func)

    def _has_self(self) -> bool:
        return isinstance(self.node, ast.FunctionDef)

    def _getattr(self, node: ast.Call) -> Iterator[str]:
        owner, name = node.args[0], node.args[1]
        if isinstance(name, ast.Constant):
            text = str(name.value)
            wrong = text in ATTRIBUTES or _is_hidden(text) or not _is_of_self(owner)
        else:
            wrong = not isinstance(owner, ast.Name) or not _is_of_self(owner)
        if wrong:
            yield _said(node, "is not followed")

    def _growing(self, node: ast.Call, function: ast.Attribute) -> Iterator[str]:
        if node in self.initial:
            if self._is_global(function.value) and not isinstance(function.value, ast.Call):
                yield _said(node, "changes what is not the module's own")
        elif not isinstance(function.value, ast.Name) or function.value.id not in self._lists():
            if function.attr != "add" or not self._is_tensor(function.value):  # `x.add(y)` of a tensor
                yield _said(node, "changes what is kept")

    def _is_tensor(self, node: ast.AST) -> bool:
        """Whether an expression is no set that a call found."""
        return not isinstance(node, ast.Call) or self.file.whole(node.func).startswith("torch.")

    def _lists(self) -> set[str]:
        """Local names that are always a new list or dict."""
        fresh: dict[str, bool] = dict.fromkeys(self.parameters, False)
        for node in ast.walk(self.node):
            for name, value in _assigned(node):
                new = isinstance(value, (ast.List, ast.Dict, ast.ListComp, ast.DictComp, ast.Set))
                fresh[name] = fresh.get(name, True) and new
        return {name for name, new in fresh.items() if new}


LOOKS: dict[Any, Callable[[Code, Any], Iterator[str]]] = {
    ast.Name: Code._name,
    ast.Attribute: Code._attribute,
    ast.Call: Code._call,
    ast.Subscript: Code._subscript,
    ast.JoinedStr: Code._text,
    ast.BinOp: Code._operation,
    ast.Compare: Code._comparison,
    (ast.Set, ast.SetComp): Code._set,
    ast.With: Code._with,
    (ast.FunctionDef, ast.Lambda): Code._function,
}


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
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            yield from _assigned(ast.Assign(targets=[target.elts[0]], value=value.elts[0]))
            if len(target.elts) > 1:
                rest = ast.Tuple(elts=target.elts[1:], ctx=target.ctx), ast.Tuple(elts=value.elts[1:], ctx=ast.Load())
                yield from _assigned(ast.Assign(targets=[rest[0]], value=rest[1]))
            continue
        for part in ast.walk(target):
            if isinstance(part, ast.Name):
                yield part.id, value


__all__ = ["objections"]
