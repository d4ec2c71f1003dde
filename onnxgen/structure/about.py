"""What a class computes, in a few words: the first sentence of its docstring.

Goes in: the classes of a file, a class before those that it is a part of. Comes out: a text for each, such as "Residual
block: two 3x3 convolutions". It names the layers in the order in which `forward` calls them. It leaves out
normalisation, activations and dropout, unless there is nothing else.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from onnxgen.code.class_tree import ClassTree
from onnxgen.code.quote import walk
from onnxgen.code.torch_api import ACTIVATIONS, CONVOLUTIONS, PARAMETRISATIONS, RECURRENT, TRANSPOSED, function_of
from onnxgen.structure.clues import SHORTCUTS

LINEAR = "linear layer"
LAYERS = {
    "nn.Linear": LINEAR,
    "nn.Embedding": "embedding",
    "nn.MultiheadAttention": "multi-head attention",
    "nn.TransformerEncoder": "transformer encoder",
    "nn.TransformerDecoder": "transformer decoder",
    "nn.TransformerEncoderLayer": "transformer encoder layer",
    "nn.TransformerDecoderLayer": "transformer decoder layer",
    "F.scaled_dot_product_attention": "attention",
    "F.interpolate": "upsampling",
    "F.pixel_shuffle": "pixel shuffle",
    **{name: f"{name.removeprefix('nn.')} layer" for name in RECURRENT},
    "nn.RNNCell": "RNN cell",
    "nn.LSTMCell": "LSTM cell",
    "nn.GRUCell": "GRU cell",
    **{f"F.max_pool{n}d": "max pooling" for n in (1, 2, 3)},
    **{f"F.{kind}avg_pool{n}d": "average pooling" for kind in ("", "adaptive_") for n in (1, 2, 3)},
    **dict.fromkeys(CONVOLUTIONS, "convolution"),
    **dict.fromkeys(TRANSPOSED, "transposed convolution"),
}
CONTAINERS = ("nn.Sequential", "nn.ModuleList")
GATES = ("torch.sigmoid", "F.sigmoid", "F.hardsigmoid")
MEANS = ("average pooling", "convolution", LINEAR)
COUNTED = ("layer", "convolution", "block", "embedding", "cell", "encoder", "decoder", "transformer")
NUMBERS = ("", "", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MAX_STEPS = 6  # a longer list says what there is, but not in which order


@dataclass(frozen=True)
class Step:
    """A layer or operation. `is_optional`: not in every instance. `is_many`: several, but nobody knows how many."""

    word: str
    is_optional: bool = False
    is_many: bool = False


def describe(classes: Sequence[ClassTree]) -> None:
    """Set `about` of the classes. It is "" where there is nothing to say."""
    nouns: dict[str, str] = {}
    for tree in classes:
        steps = [*_Steps(tree, nouns).of_forward()] or _of_matrix(tree)
        words = [step.word for step in steps]
        role = _role(tree, words)
        kind = "residual block" if steps and _adds_input(tree) else ""
        only = words[0] if len(steps) == 1 and not steps[0].is_many else ""
        nouns[tree.name] = role or kind or only or tree.name
        listed = "" if only in nouns else _listed(steps)  # the name of another class alone says nothing
        sentence = ": ".join(filter(None, (kind, role or listed)))
        tree.about = sentence[:1].upper() + sentence[1:]


class _Steps:
    """Finds the steps of a class.

    Attributes:
        made: the steps of each attribute of `self`.
        lists: those of each list that `__init__` fills.
    """

    def __init__(self, tree: ClassTree, nouns: dict[str, str]) -> None:
        self.tree, self.nouns = tree, nouns
        self.made: dict[str, list[Step]] = {}
        self.lists: dict[str, list[Step]] = {}
        self._read(tree.setup, False)
        for method in tree.own:
            self.made[method.name] = [*self._of_block(method.body)]

    def of_forward(self) -> Iterator[Step]:
        """Yield the steps in the order in which `forward` takes them."""
        return self._layers(ast.List(self.tree.items)) if self.tree.is_row else self._of_block(self.tree.body)

    def _read(self, block: Iterable[ast.stmt], is_optional: bool) -> None:
        for statement in block:
            if isinstance(statement, ast.If):
                self._read(statement.body, True)
                self._read(statement.orelse, True)
            elif isinstance(statement, ast.Assign) and isinstance(target := statement.targets[0], ast.Attribute):
                if target.attr not in SHORTCUTS:
                    self.made[target.attr] = self._marked(statement.value, is_optional)
            elif isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call):
                if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) and call.args:
                    self.lists.setdefault(call.func.value.id, []).extend(self._marked(call.args[0], is_optional))

    def _marked(self, tree: ast.expr, is_optional: bool) -> list[Step]:
        return [replace(step, is_optional=is_optional or step.is_optional) for step in self._layers(tree)]

    def _layers(self, tree: ast.expr) -> Iterator[Step]:
        """Yield the layers that an expression of `__init__` makes."""
        if isinstance(tree, ast.Call):
            name = function_of(tree)
            if name in CONTAINERS:
                yield from self._layers(ast.List(tree.args))
            elif name in PARAMETRISATIONS:
                yield from self._layers(tree.args[0])
            elif word := self.nouns.get(name) or _word(name, tree):
                yield Step(word)
        elif isinstance(tree, (ast.List, ast.Tuple)):
            for element in tree.elts:
                yield from self._layers(element)
        elif isinstance(tree, ast.Starred):
            yield from self._layers(tree.value)
        elif isinstance(tree, ast.ListComp):
            yield from self._several(tree)
        elif isinstance(tree, ast.IfExp):
            yield from self._marked(tree.body, True) + self._marked(tree.orelse, True)
        elif isinstance(tree, ast.Name):
            yield from self.lists.get(tree.id, ())

    def _several(self, tree: ast.ListComp) -> list[Step]:
        """Return the layers of `[Block(8) for _ in range(3)]`."""
        turns, steps = tree.generators[0].iter, [*self._layers(tree.elt)]
        count = turns.args[0] if isinstance(turns, ast.Call) and len(turns.args) == 1 else None
        if isinstance(count, ast.Constant) and isinstance(count.value, int):
            return steps * count.value
        return [replace(step, is_many=True) for step in steps]

    def _of_block(self, block: Iterable[ast.stmt]) -> Iterator[Step]:
        for statement in block:
            for part in ast.iter_child_nodes(statement):
                if isinstance(part, ast.expr):
                    yield from self._of_call(part)
            for name in ("body", "orelse"):
                steps = self._of_block(getattr(statement, name, ()))
                yield from (replace(s, is_optional=True) for s in steps) if isinstance(statement, ast.If) else steps

    def _of_call(self, tree: ast.AST) -> Iterator[Step]:
        """Yield the steps of an expression: first those of the operands."""
        if isinstance(tree, ast.Call):
            for operand in (*tree.args, *tree.keywords):
                yield from self._of_call(operand)
            if isinstance(tree.func, ast.Attribute) and function_of(tree.func.value) == "super":
                yield from self._layers(ast.List(self.tree.items))
            elif word := _word(function_of(tree), tree):
                yield Step(word)
            yield from self._of_call(tree.func)
        elif isinstance(tree, ast.Subscript) and _own(tree.value) and isinstance(tree.slice, ast.Constant):
            if tree.slice.value == 0:  # a list whose items are called one by one is named at its first
                yield from self._of_call(tree.value)
        elif name := _own(tree):
            yield from self.made.get(name, ())
        elif not isinstance(tree, ast.Attribute) or tree.attr not in ("device", "dtype"):  # these call no layer
            for part in ast.iter_child_nodes(tree):
                yield from self._of_call(part)


def _own(tree: ast.AST) -> str:
    """Return the attribute's name if an expression is an attribute of `self`, else ""."""
    is_own = isinstance(tree, ast.Attribute) and isinstance(tree.value, ast.Name) and tree.value.id == "self"
    return tree.attr if is_own and isinstance(tree, ast.Attribute) else ""


def _word(name: str, call: ast.Call) -> str:
    """Return what a layer or function of torch is called. A convolution is called by its kernel's size, too."""
    word = LAYERS.get(name, "")
    if not word.endswith("convolution") or not name.startswith("nn."):
        return word
    options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    channels, size = (ast.unparse(call.args[i]) if len(call.args) > i else "" for i in (0, 2))
    size = options.get("kernel_size", size)
    sizes = [size] * 2 if size.isdigit() else size.strip("()").split(", ")
    if name.endswith("2d") and len(sizes) == 2 and all(map(str.isdigit, sizes)):
        word = f"{'x'.join(sizes)} {word}"
    return word.replace("convolution", "depthwise convolution") if options.get("groups") == channels != "1" else word


def _of_matrix(tree: ClassTree) -> list[Step]:
    """Return the layer that a class is which multiplies once with a matrix of its own tensors, or looks up its rows."""
    nodes = [node for statement in tree.body for node in walk(statement)]
    products = [n for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.MatMult)]
    if len(products) > 1 or any(function_of(n).startswith("F.") for n in nodes):
        return []
    if [p for p in products if isinstance(p.left, ast.Name) and _has_own(p.right)]:
        return [Step(LINEAR)]
    return [Step(LAYERS["nn.Embedding"])] if _looks_up(nodes) else []


def _looks_up(nodes: Iterable[ast.AST]) -> bool:
    """True for rows of one table of a class's own."""
    tables = [n.value for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Name)]
    return len(tables) == 1 and _has_own(tables[0])


def _has_own(tree: ast.AST) -> bool:
    return any(map(_own, walk(tree)))


def _role(tree: ClassTree, words: list[str]) -> str:
    """Return what a class as a whole is known as, or ""."""
    nodes = [node for method in tree.methods for node in walk(method)]
    called = {*map(function_of, nodes)}
    multiplies = any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) for node in nodes)
    if words and {*words} == {LINEAR} and not called.isdisjoint(ACTIVATIONS):
        return {2: "feed-forward network", 3: "gated network" if multiplies else ""}.get(len(words), "")
    if multiplies and called & {*GATES} and "average pooling" in words and all(w.endswith(MEANS) for w in words):
        return "squeeze and excitation"
    return _attention(tree, words)


def _attention(tree: ClassTree, words: list[str]) -> str:
    """Return the kind of attention of a class that has only linear layers beside, or ""."""
    attention = [word for word in words if word.endswith("attention")]
    layers = len(words) - len(attention)
    if len(attention) != 1 or not layers or words.count(LINEAR) != layers:
        return ""
    if attention != ["attention"]:
        return attention[0] if layers == 1 else ""  # of a part, with the projection of its result
    return "self-attention" if _attends_to_itself(tree) else "attention"


def _attends_to_itself(tree: ClassTree) -> bool:
    """True if the layers of `forward` all take one input, but for one layer, which takes what the attention gives."""
    calls = (node for statement in tree.body for node in walk(statement) if isinstance(node, ast.Call))
    operands = [call.args[0] for call in calls if _own(call.func) and call.args]
    inputs = {argument.arg for argument in tree.inputs}
    taken = [argument.id for argument in operands if isinstance(argument, ast.Name) and argument.id in inputs]
    return len({*taken}) == 1 and len(operands) - len(taken) <= 1


def _adds_input(tree: ClassTree) -> bool:
    inputs = {argument.arg for argument in tree.inputs[:1]}
    for statement in tree.body:
        value = getattr(statement, "value", None)
        for node in walk(statement) if isinstance(statement, ast.If) or value is not None else ():
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
                if any(_is_shortcut(side, inputs) for side in (node.left, node.right)):
                    return True
        if isinstance(statement, ast.Assign):
            names = {node.id for target in statement.targets for node in walk(target) if isinstance(node, ast.Name)}
            inputs = inputs | names if _is_shortcut(value, inputs) else inputs - names
    return False


def _is_shortcut(value: ast.expr | None, inputs: set[str]) -> bool:
    """True for the input itself, perhaps through a projection that not every instance has."""
    if isinstance(value, ast.IfExp):
        return _is_shortcut(value.body, inputs) or _is_shortcut(value.orelse, inputs)
    if isinstance(value, ast.Call) and _own(value.func) in SHORTCUTS:
        value = value.args[0]
    return isinstance(value, ast.Name) and value.id in inputs


def _listed(steps: list[Step]) -> str:
    groups = [(step, len([*same])) for step, same in groupby(steps)]
    if len(groups) > MAX_STEPS:
        groups = [(step, steps.count(step)) for step in dict.fromkeys(steps)]
    texts = [_counted(step, count) for step, count in groups]
    return ", ".join([*texts[:MAX_STEPS], *(["and others"] if len(texts) > MAX_STEPS else [])])


def _counted(step: Step, count: int) -> str:
    optional = " (optional)" if step.is_optional else ""
    if count == 1 and not step.is_many:
        return step.word + optional
    number = NUMBERS[count] if count < len(NUMBERS) else str(count)
    if step.word.endswith(COUNTED) or step.word[0].isupper():  # a class's name
        words = step.word if step.word.endswith("s") else f"{step.word}s"
        return f"{words}{optional}" if step.is_many else f"{number} {words}{optional}"
    often = "several times" if step.is_many else "twice" if count == 2 else f"{number} times"
    return f"{step.word}{optional} {often}"
