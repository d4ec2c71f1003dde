"""Generated source beside what authors wrote: lines, keys, outputs, and pairs for a reader who must tell them apart.

    python -m benchmarks.authors [--networks unet,tcn] [--exporters legacy,dynamo] [--fresh] [--json FILE]
    python -m benchmarks.authors --networks unet --show          # both sources, stripped
    python -m benchmarks.authors --pairs FOLDER --seed 1         # each pair in random order, and key.json
    python -m benchmarks.authors --tells                         # how many files have what authors do not write
    python -m benchmarks.authors --classifier                    # can a classifier tell them apart, and by what?

Lines: the network's classes and the functions that they use, without comments, docstrings and the code that loads
weights, formatted alike by black's default settings. `missing` counts keys of the original's `state_dict` that the
generated module lacks, `more` those that only the generated one has; a key whose shape differs counts in both. Every
parameter of a network is moved a little, as training would move it; `--fresh` leaves initial values such as zeros,
which exporters fold. Outputs are compared with the original's. Names that say nothing are counted over all that
`forward` assigns.
"""

from __future__ import annotations

import ast
import inspect
import json
import random
import re
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import black
import torch
from torch import Tensor, nn

from benchmarks.authors import classifier, language, science, vision
from benchmarks.common import arguments, finish
from benchmarks.structure import classes
from onnxgen.pipeline import generate
from tests.support.real import imported
from tests.zoo.export import quiet

TELLS = {
    "a network without arguments": r"def __init__\(self\)(?![^\x00]*\nclass )",
    "x, y or z, numbered": r"\b[xyz]\d+ = ",
    "one of x, y, z for one thing after another": r"(?s)\n        y = (?:(?!def ).)*\n        y = ",
    "a name of an operator": r"\b(clamp|sqrt|add|mul|sub|div|pow|slice|cat|stack|gather)(_?\d+)? = ",
    "nn.Identity()": r"nn\.Identity\(\)",
    "a folded constant": r"\d\.\d{5,}",
    "device='cpu'": r"device=.cpu.",
    "a helper": r"constant\(|nonnegative_index",
}
VAGUE = re.compile(r"x|h|out|.*\d")
AUTHORS = (vision, language, science)
OPSETS = {"legacy": 17, "dynamo": 18}
LOADING = {"from_pretrained", "SkipInit"}  # code beside the network

Made = tuple[nn.Module, tuple[Tensor, ...]]


def trained(model: nn.Module) -> nn.Module:
    """The network with every parameter moved a little."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
    return model


def generated(name: str, exporter: str, made: Made, folder: Path) -> ModuleType:
    """The imported module that was generated from the network's export."""
    model, inputs = made
    path = folder / f"{name}.onnx"
    with quiet():
        torch.onnx.export(model, inputs, path, dynamo=exporter == "dynamo", opset_version=OPSETS[exporter])
    generate(path, folder / f"{name}_{exporter}.py")
    module = imported(folder / f"{name}_{exporter}.py")
    sys.modules[module.__name__] = module  # where `inspect` looks for a class's source
    return module


# ---- the text that counts --------------------------------------------------------------------------------------------


class _Stripped(ast.NodeTransformer):
    """Without docstrings and the code that loads weights; `ast` itself drops comments."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST | None:
        return None if node.name in LOADING else self._body(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        return None if node.name in LOADING else self._body(node)

    def _body(self, node: ast.ClassDef | ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.body = node.body[ast.get_docstring(node) is not None :] or [ast.Pass()]
        return node


def names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def used(model: nn.Module) -> tuple[str, list[ast.stmt]]:
    """The file of a network; its classes there, and the functions, classes and constants that these use."""
    source = inspect.getsource(sys.modules[type(model).__module__])
    wanted = {kind.__name__ for kind in classes(model)}
    kept: list[ast.stmt] = []
    for node in reversed(ast.parse(source).body):  # what is used stands above
        targets = names(node) if isinstance(node, ast.Assign) else {getattr(node, "name", "")}
        defines = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Assign)
        if defines and targets & wanted and not {"WEIGHTS", "FINGERPRINT", "Model"} & targets:
            kept.insert(0, node)
            wanted |= names(node)
    return source, kept


def stripped(model: nn.Module) -> str:
    """What a network uses of its file, without comments and docstrings."""
    tree = _Stripped().visit(ast.Module(used(model)[1], []))
    return black.format_str(ast.unparse(tree), mode=black.Mode())


def commented(model: nn.Module) -> str:
    """What a network uses of its file, as it stands there."""
    source, kept = used(model)
    rows = source.splitlines()
    starts = [min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))]) for node in kept]
    return "\n\n\n".join("\n".join(rows[start - 1 : node.end_lineno]) for start, node in zip(starts, kept)) + "\n"


def lines(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())


# ---- figures ---------------------------------------------------------------------------------------------------------


def keys(model: nn.Module) -> set[tuple[str, tuple[int, ...]]]:
    return {(name, tuple(tensor.shape)) for name, tensor in model.state_dict().items()}


def outputs(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def measure(name: str, exporter: str, made: Made, ours: nn.Module) -> dict[str, Any]:
    original, inputs = made
    theirs, found = keys(original), keys(ours)
    pairs = zip(outputs(original(*inputs)), outputs(ours(*inputs)), strict=True)
    before, after = lines(stripped(original)), lines(stripped(ours))
    return {
        "network": name,
        "exporter": exporter,
        "original lines": before,
        "generated lines": after,
        "lines": round(after / before, 2),
        "missing": len(theirs - found),
        "more": len(found - theirs),
        "equal": "yes" if all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs) else "NO",
    }


def write_pairs(pairs: list[tuple[str, str, str]], folder: Path, seed: int) -> None:
    """Write each original and its counterpart as NN_a.py and NN_b.py in random order; key.json says which is which."""
    chance = random.Random(seed)
    chance.shuffle(pairs)
    key = {}
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, theirs, ours) in enumerate(pairs, 1):
        first, second = chance.sample(["original", "generated"], 2)
        for letter, which in (("a", first), ("b", second)):
            (folder / f"{number:02}_{letter}.py").write_text(theirs if which == "original" else ours)
        key[f"{number:02}"] = {"network": name, "a": first, "b": second}
    (folder / "key.json").write_text(json.dumps(key, indent=2) + "\n")


def print_tells(pairs: list[tuple[str, str, str]]) -> None:
    """Print in how many of the originals, and of the generated files, each of `TELLS` is."""
    for what, pattern in TELLS.items():
        theirs, ours = (sum(bool(re.search(pattern, pair[i])) for pair in pairs) for i in (1, 2))
        print(f"{what}: {theirs} originals, {ours} generated")


def vague(texts: Iterable[str]) -> str:
    """The share of the names that `forward` assigns, loops and unpackings too, which are x, h, out or have a number."""
    assigned = [name for text in texts for name in classifier.Text(text).locals]
    return f"{100 * classifier.share(assigned, VAGUE.fullmatch):.1f} % of {len(assigned)}"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--networks", help="which (default: all)")
    parser.add_argument("--exporters", default="legacy,dynamo", help="legacy, dynamo or both (default: both)")
    parser.add_argument("--fresh", action="store_true", help="leave initial values as they are")
    parser.add_argument("--tells", action="store_true", help="count what authors do not write")
    parser.add_argument("--classifier", action="store_true", help="let a classifier tell them apart (classifier.py)")
    parser.add_argument("--show", action="store_true", help="print both sources")
    parser.add_argument("--pairs", metavar="FOLDER", type=Path, help="write pairs of sources for a reader")
    parser.add_argument("--seed", type=int, default=0, help="of the pairs' order and the classifier (default: 0)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows, pairs = [], []
    examples: dict[tuple[str, str], classifier.Example] = {}
    made = {name: (author, of) for author in AUTHORS for name, of in author.networks().items()}
    with TemporaryDirectory() as folder:
        for name in given.networks.split(",") if given.networks else made:
            original, inputs = made[name][1]
            network = (original if given.fresh else trained(original), inputs)
            for exporter in given.exporters.split(","):
                module = generated(name, exporter, network, Path(folder))
                ours = module.Model.from_pretrained().eval()
                rows.append(measure(name, exporter, network, ours))
                print(*rows[-1].values(), file=sys.stderr, flush=True)
                examples[name, ""] = (name, commented(original), False)
                examples[name, exporter] = (name, commented(ours), True)
                pairs.append((f"{name} {exporter}", stripped(original), stripped(ours)))
                if given.show:
                    print(f"# ---- {name}: original\n\n{pairs[-1][1]}\n# ---- {name}: {exporter}\n\n{pairs[-1][2]}")
    finish(rows, given.json)
    ratios = [row["lines"] for row in rows]
    print(f"lines: median {statistics.median(ratios):.2f}, worst {max(ratios):.2f}")
    for who in ("", *given.exporters.split(",")):
        texts = [text for key, (_, text, _) in examples.items() if key[1] == who]
        print(f"locals x, h, out or numbered: {who or 'originals'} {vague(texts)}")
    print(f"every key: {sum(row['missing'] + row['more'] == 0 for row in rows)} of {len(rows)}")
    if given.tells:
        print_tells(pairs)
    if given.classifier:
        classifier.judge([*examples.values()], given.seed)
    if given.pairs:
        write_pairs(pairs, given.pairs, given.seed)


if __name__ == "__main__":
    main()
