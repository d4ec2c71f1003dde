"""What tells generated source from an author's: counted features, and a classifier that has to tell the two apart.

    python -m benchmarks.authors --classifier [--seed 1] [--json FILE]

A text is the source of one network with its comments: its classes and the functions that they use, without the code
that loads weights. Texts of one network, its original and what its exports come back as, are in the same fold, so no
classifier learns a network's names. The area under the curve (AUC) is the share of pairs of an original and a generated
text of which the classifier gives the second the higher score: 0.5 is chance, 1 tells all. It is the mean of `ROUNDS`
drawn partitions into `FOLDS` folds, for a logistic regression and for boosted trees; the higher one counts.

Three AUCs: with everything, without annotations, comments and docstrings (`WORDS`), and by structure alone
(`STRUCTURE`, which drops names and habits of writing). The same is done with classes of installed libraries that define
`__init__` and `forward` beside such generated classes. Other networks differ in more than their hand.

A tell's own AUC needs no classifier: the share of pairs that it alone has in order, in either direction.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import random
import re
import statistics
import tokenize
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.common import finish

ROUNDS, FOLDS = 5, 10
LIBRARIES = {
    "torch": "nn/modules/*.py",
    "torch.testing": "_internal/**/*.py",
    "transformers": "models/*/modeling_*.py",
    "peft": "tuners/*/layer.py",
}
FILES, CLASSES = 60, 150  # of one library, at most
BOTH = {"__init__", "forward"}
ACTS = {kind.lower() for kind in "ReLU ReLU6 GELU SiLU ELU Tanh Sigmoid Hardswish LeakyReLU Softplus Hardtanh".split()}
SHAPE = re.compile(r"[\[(]\w+, ")
WIDE = re.compile(r"nn\.(Lazy)?(Linear|Conv|Embedding|LayerNorm|BatchNorm|GroupNorm|GRU|LSTM|RNN|Multihead)")
NAMES_OF_OPERATORS = set("clamp sqrt add sum total mul product sub div pow slice cat concat stack gather zeros".split())

Def = ast.FunctionDef
Example = tuple[str, str, bool]  # its group, the text, whether it is generated


def of(kind: type, *nodes: ast.AST) -> list[Any]:
    """Every node of a kind below some nodes, in the order of the text."""
    found = (inner for node in nodes for inner in ast.walk(node) if isinstance(inner, kind))
    return sorted(found, key=lambda inner: (getattr(inner, "lineno", 0), getattr(inner, "col_offset", 0)))


def share(items: Iterable[Any], holds: Callable[[Any], Any]) -> float:
    """The part of some items for which something holds; 0 where there are none."""
    held = [bool(holds(item)) for item in items]
    return sum(held) / len(held) if held else 0.0


def mean(values: Iterable[float]) -> float:
    return statistics.fmean(found) if (found := list(values)) else 0.0


def depth(node: ast.AST) -> int:
    """How many calls are nested in one another."""
    return isinstance(node, ast.Call) + max((depth(inner) for inner in ast.iter_child_nodes(node)), default=0)


class Text:
    """A text and what is counted in it."""

    def __init__(self, text: str) -> None:
        self.text, self.tree = text, ast.parse(text)
        self.classes, self.functions = of(ast.ClassDef, self.tree), of(Def, self.tree)
        self.inits = [one for one in self.functions if one.name == "__init__"]
        self.forwards = [one for one in self.functions if one.name == "forward"]
        self.methods = [one for tree in self.classes for one in tree.body if isinstance(one, Def)]
        self.given = [one for f in self.functions for one in [*f.args.args, *f.args.kwonlyargs] if one.arg != "self"]
        self.init_given = [[one.arg for one in f.args.args[1:] + f.args.kwonlyargs] for f in self.inits]
        self.steps = [one for f in self.forwards for one in of(ast.stmt, *f.body) if not hasattr(one, "body")]
        self.calls, self.made = of(ast.Call, self.tree), of(ast.Call, *self.inits)
        self.acts = [one for one in self.calls if isinstance(f := one.func, ast.Attribute) and f.attr.lower() in ACTS]
        self.computed = of(ast.Call, *(one for one in self.functions if one.name != "__init__"))
        self.kept = [one for one in of(ast.Assign, *self.inits) if "self." in ast.unparse(one.targets[0])]
        self.locals = [n.id for n in of(ast.Name, *self.forwards) if isinstance(n.ctx, ast.Store)]
        self.layers = [one for one in self.made if WIDE.match(ast.unparse(one.func)) and one.args]
        self.empty = sum(ast.get_source_segment(text, one).count("\n\n") for one in self.forwards)
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        self.comments = [one.string for one in tokens if one.type == tokenize.COMMENT]

    def per_line(self, count: float) -> float:
        """A count for 100 lines of `forward`."""
        return 100 * count / max(1, sum(f.end_lineno - f.lineno + 1 for f in self.forwards))

    def each(self, nodes: Sequence[Any]) -> float:
        """How many for each class."""
        return len(nodes) / max(1, len(self.classes))

    def called(self, name: str) -> list[ast.Call]:
        return [one for one in self.calls if isinstance(one.func, ast.Attribute) and one.func.attr == name]


def keyed(name: str) -> Callable[[ast.Call], bool]:
    return lambda call: any(one.arg == name for one in call.keywords)


def stores_argument(tree: ast.FunctionDef) -> bool:
    """`self.k = k`, alone or in a tuple."""
    names = {one.arg for one in tree.args.args}
    for one in of(ast.Assign, tree):
        pairs = zip(of(ast.Attribute, one.targets[0]), getattr(one.value, "elts", [one.value]))
        if any(isinstance(value, ast.Name) and value.id in names for _, value in pairs):
            return True
    return False


def returns_name(tree: ast.FunctionDef) -> bool:
    return isinstance(end := tree.body[-1], ast.Return) and isinstance(end.value, ast.Name)


Counts = dict[str, Callable[[Text], float]]

WORDS: Counts = {
    "annotated arguments": lambda t: share(t.given, lambda one: one.annotation),
    "annotated results": lambda t: share(t.functions, lambda one: one.returns),
    "comments of shapes per 100 lines of forward": lambda t: t.per_line(len(list(filter(SHAPE.search, t.comments)))),
    "other comments per 100 lines of forward": lambda t: t.per_line(sum(not SHAPE.search(one) for one in t.comments)),
    "classes with a docstring": lambda t: share(t.classes, ast.get_docstring),
    "functions with a docstring": lambda t: share(t.functions, ast.get_docstring),
}
WRITING: Counts = {
    "empty lines per 100 lines of forward": lambda t: t.per_line(t.empty),
    "`forward` returns a name": lambda t: share(t.forwards, returns_name),
    "calls in one statement of forward": lambda t: mean(depth(one) for one in t.steps),
    "`kernel_size=` by name": lambda t: share((c for c in t.made if ".Conv" in ast.unparse(c)), keyed("kernel_size")),
    "`dim=` by name": lambda t: share(t.computed, keyed("dim")),
    "`inplace=True`": lambda t: share(t.acts, keyed("inplace")),
    "numbered names": lambda t: share(t.locals, lambda name: name[-1].isdigit()),
    "shortcut, identity, residual, skip": lambda t: share(
        t.locals, lambda name: name in ("shortcut", "identity", "residual", "skip")
    ),
    "locals that are x": lambda t: share(t.locals, lambda name: name == "x"),
    "locals that are h": lambda t: share(t.locals, lambda name: name == "h"),
    "locals that are operators": lambda t: share(t.locals, lambda name: name.rstrip("_0123") in NAMES_OF_OPERATORS),
    "locals that are attributes": lambda t: share(t.locals, lambda name: f"self.{name}" in t.text),
    "letters of a name": lambda t: mean(map(len, t.locals)),
    "f-strings": lambda t: t.each(of(ast.JoinedStr, t.tree)),
    "several attributes in one statement": lambda t: share(t.kept, lambda one: isinstance(one.targets[0], ast.Tuple)),
    "letters of a line": lambda t: mean(len(row) for row in t.text.splitlines() if row.strip()),
    "unpacked arguments": lambda t: t.each(of(ast.Starred, t.tree)),
}
STRUCTURE: Counts = {
    "layers with a literal width": lambda t: share(t.layers, lambda one: isinstance(one.args[:2][-1], ast.Constant)),
    "arguments of a constructor": lambda t: mean(map(len, t.init_given)),
    "constructors without arguments": lambda t: share(t.init_given, lambda names: not names),
    "`self.k = k`": lambda t: share(t.inits, stores_argument),
    "`if` in a constructor": lambda t: share(t.inits, lambda one: of(ast.If, one) or of(ast.IfExp, one)),
    "local variables in a constructor": lambda t: share(
        t.inits, lambda f: any(isinstance(n.ctx, ast.Store) for one in f.body for n in of(ast.Name, one))
    ),
    "loops in a constructor": lambda t: share(t.inits, lambda one: of(ast.For, one) or of(ast.comprehension, one)),
    "`nn.init` in a class": lambda t: t.each([c for c in t.made if ast.unparse(c.func).startswith("nn.init.")]),
    "activations that are layers": lambda t: share(t.acts, lambda call: call in t.made),
    "`nn.Identity()`": lambda t: t.each(t.called("Identity")),
    "`.unflatten`": lambda t: t.each(t.called("unflatten")),
    "`B, N, C = x.shape`": lambda t: t.each(re.findall(r"\w+, \w+ = \w+\.shape", t.text)),
    "sizes read from a tensor": lambda t: t.each(t.called("size")) + t.text.count(".shape") / max(1, len(t.classes)),
    "loops in forward": lambda t: share(t.forwards, lambda one: of(ast.For, one)),
    "numbers in forward": lambda t: t.per_line(len([c for c in of(ast.Constant, *t.forwards) if c.value is not True])),
    "lines of a class": lambda t: t.text.count("\n") / max(1, len(t.classes)),
    "statements of forward": lambda t: len(t.steps) / max(1, len(t.forwards)),
    "functions beside the classes": lambda t: t.each(t.functions) - t.each(t.methods),
}
FEATURES = {**WORDS, **WRITING, **STRUCTURE}
SETS = {"everything": FEATURES, "without words": {**WRITING, **STRUCTURE}, "structure": STRUCTURE}


def library(name: str, chance: random.Random) -> list[tuple[str, str]]:
    """(group, class) of some classes of an installed library, as far as they have both methods of a layer."""
    roots = spec.submodule_search_locations or () if (spec := importlib.util.find_spec(name)) else ()
    files = sorted(file for root in roots for file in Path(root).glob(LIBRARIES[name]))
    texts = [file.read_text(encoding="utf-8") for file in chance.sample(files, min(FILES, len(files)))]
    found = [one for text in texts for one in layers(text)]
    return [(f"{name} {i}", one) for i, one in enumerate(chance.sample(found, min(CLASSES, len(found))))]


def layers(source: str) -> list[str]:
    """The classes of a text that have both methods of a layer."""
    body = ast.parse(source).body if "def forward" in source else []
    kept = (one for one in body if isinstance(one, ast.ClassDef) and {f.name for f in of(Def, one)} >= BOTH)
    return [ast.get_source_segment(source, one) or "" for one in kept]


def aucs(texts: Sequence[Text], generated: Sequence[bool], groups: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """For each set of features, the mean AUC of both classifiers over partitions that keep groups together."""
    rows = []
    for features, counts in SETS.items():
        table = np.array([[count(text) for count in counts.values()] for text in texts])
        row: dict[str, Any] = {"features": features}
        for kind, made in {
            "regression": make_pipeline(StandardScaler(), LogisticRegression(C=0.1, class_weight="balanced")),
            "trees": GradientBoostingClassifier(n_estimators=60, max_depth=2, subsample=0.7, random_state=seed),
        }.items():
            scores = []
            for number in range(ROUNDS):
                folds = GroupKFold(min(FOLDS, len({*groups})), shuffle=True, random_state=seed + number)
                found = cross_val_predict(made, table, generated, groups=groups, cv=folds, method="predict_proba")
                scores.append(float(roc_auc_score(generated, found[:, 1])))
            row[kind] = round(statistics.fmean(scores), 3)
        rows.append(row)
    return rows


def tells(texts: Sequence[Text], generated: Sequence[bool]) -> list[dict[str, Any]]:
    """Each feature with its means in both hands and its own AUC, the strongest first."""
    rows = []
    for name, count in FEATURES.items():
        values, ours = np.array([count(text) for text in texts]), np.array(generated)
        own = float(roc_auc_score(generated, values))
        means = {"original": f"{values[~ours].mean():.3g}", "generated": f"{values[ours].mean():.3g}"}
        rows.append({"tell": name, **means, "auc": round(max(own, 1 - own), 3)})
    return sorted(rows, key=lambda row: -row["auc"])


def judge(examples: Sequence[Example], seed: int) -> list[dict[str, Any]]:
    """Print every table; return the AUCs beside the originals, and beside each installed library."""
    texts, generated = [Text(text) for _, text, _ in examples], [is_generated for *_, is_generated in examples]
    finish(tells(texts, generated), None)
    groups = [group for group, *_ in examples]
    rows = [{"beside": "originals", **row} for row in aucs(texts, generated, groups, seed)]
    ours = [(group, one) for group, text, is_generated in examples if is_generated for one in layers(text)]
    for name in LIBRARIES:
        if theirs := library(name, random.Random(seed)):
            found = [*theirs, *ours]
            generated, groups = [i >= len(theirs) for i in range(len(found))], [group for group, _ in found]
            table = aucs([Text(text) for _, text in found], generated, groups, seed)
            rows += [{"beside": f"{len(theirs)} classes of {name}", **row} for row in table]
    finish(rows, None)
    return rows
