"""Write the tables of docs/COMMANDS.md: `python docs/commands.py`.

What an option does is declared with it (`onnxgen/options.py`, `onnxgen/training/settings.py`, `onnxgen/cli/app.py`).
The page adds what is in `MORE`, and the text between the tables, which is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from onnxgen.cli.app import app
from onnxgen.cli.group import CODES, EVERY
from onnxgen.options import OPTIONS

PAGE = Path(__file__).with_name("COMMANDS.md")
GENERATION = {about.option for about in OPTIONS.values()}
TABLE = re.compile(r"<!-- (options|codes):?(.*?) -->\n(?:\n(?:\|.*\n)+)?")

# By command and option, or by option: what the page says besides.
MORE = {
    "generate --force": "So is a file of weights that onnxgen did not write.",
    "verify --inputs": "",
    "--inputs": "[A part of the network](USES.md#a-part-of-the-network).",
    "--outputs": "[A part of the network](USES.md#a-part-of-the-network).",
    "--trainable": "[The rules](CONVERT.md#which-tensors-are-trained).",
    "--frozen": "A pattern without a match is an error, as with `--trainable`.",
    "--tied": "It must match a tensor of several layers. [The rules](CONVERT.md#which-tensors-are-one-parameter).",
    "--untied": "As with `--tied`, which it overrules.",
    "--dynamic-batch": "[A batch of any size](CONVERT.md#a-batch-of-any-size).",
    "--restore-batchnorm": "[How](CONVERT.md#batchnorm-that-the-export-folded).",
    "--quantized": "[Quantised models](QUANTIZED.md).",
    "--dropout": "[How](CONVERT.md#dropout-that-the-export-dropped).",
    "--nchwc-block": "An error asks for it if the shapes do not show it.",
    "--paranoid": "A difference ends with exit code 70. [What is checked](CONVERT.md#check-every-rewriting).",
    "--limit": "For example `nodes=500000`. [All limits](../SECURITY.md#limits).",
    "--embed": "It excludes `--weights`.",
    "--templates": "[Templates](TEMPLATES.md).",
    "--plugin": "[Plugins](EXTENDING.md).",
    "--allow-unsupported": "[How](EXTENDING.md#without-a-function---allow-unsupported).",
    "verify --runs": "Each run has other inputs and other sizes of dynamic dims.",
    "verify --atol": "`abs(got - expected) <= atol + rtol * abs(expected)`.",
    "verify --integrity": "The weights are generated again for that.",
    "train --data": "A folder has images or idx files. A file is `.npz`, `.npy`, `.csv`, `.tsv`, `.parquet` or "
    "`.safetensors`. `digits`: 1,797 real digits of 8x8 that come with scikit-learn. [Data](DATA.md).",
    "train --inputs": "An input that is not named takes the column of its own name, or the only one that is left.",
    "train --table": "[Text, gaps and scales](DATA.md#text-gaps-and-scales-of-a-table).",
    "train --normalize": "`MEAN,STD` are two numbers, or one for each channel joined by `/`. Several inputs have each "
    "their own by its name: `left=0.1,0.3;right=none`.",
    "train --augment": "[Data](DATA.md).",
    "train --monitor": "Another metric is given by its name: `val_loss`, `val_accuracy`, ... `auto` is otherwise the "
    "loss, on the validation part if there is one. Lower is better for losses and errors, higher for all others. "
    "Between equal epochs, the lower loss decides.",
    "train --optimizer-arg": "Another is `betas=(0.9,0.99)`.",
    "train --loss": "Others are `nll_loss`, `mse_loss`, ..., and `boxes=mse_loss,scores=cross_entropy`. The first "
    "lines of the run name what was chosen.",
    "train --weights": "",
    "train --size": "Files of several sizes are stretched to it.",
    "train --resume": "They are in `config.toml` there.",
    "export --onnx": "It is looked for beside the module, and in what `[[tool.onnxgen.models]]` of `pyproject.toml` "
    "says. It must be the very file that the module was generated from.",
    "export --weights": "They have the module's own keys. Of several files, name the index.",
    "export --output": "Default: `<original>-tuned.onnx` beside the module; of a run `NAME.onnx` in its folder. An "
    "earlier export is written over.",
    "export --same-graph": "These are a free batch, fixed sizes, BatchNorms put back, another floating point type.",
    "export --plugin": "Name what you generated with. [Plugins](EXTENDING.md).",
    "build --watch": "It needs the extra `watch`: [Watch](BUILDING.md#watch).",
    "devices --test": "Exit with 1 if one fails.",
}


def options(command: str, group: str = "") -> Iterator[click.Option]:
    """The options of a table: of a command its own, of one title only if one is named."""
    for one in app.commands["generate" if command in ("generation", "every") else command].params:
        if isinstance(one, click.Option):
            of_all = {"every": getattr(one, "group", "") == EVERY, "generation": one.opts[0] in GENERATION}
            own = not of_all["every"] and (
                command not in ("generate", "verify", "view", "diff") or not is_generation(command, one)
            )
            if of_all.get(command, own and group in ("", getattr(one, "group", ""))):
                yield one


def is_generation(command: str, one: click.Option) -> bool:
    """Whether an option says how the module is generated; `verify` has an `--inputs` of its own."""
    return one.opts[0] in GENERATION and one.name != "files"


def row(command: str, one: click.Option) -> str:
    """A line of a table."""
    like = one.metavar or ("|".join(one.type.choices) if isinstance(one.type, click.Choice) else "")
    like = {"int": "N", "float": "X"}.get(type(one.default).__name__, like) if not like and not one.is_flag else like
    last = one.opts[-1] + (f" {like}" if like else "")
    second = [] if command == "train" else one.secondary_opts
    names = ", ".join(f"`{name}`" for name in (*one.opts[:-1], last, *second)).replace("|", "\\|")
    text = (one.help or "").replace("*", "\\*")
    text = re.sub(r"(?<![\w`-])--?[a-z][a-z-]*", r"`\g<0>`", text)
    text += f" Default: {one.default}." if one.show_default and one.default is not None else ""
    more = MORE.get(f"{command} {one.opts[-1]}", MORE.get(one.opts[-1], ""))
    return f"| {names} | {' '.join(filter(None, (text, more)))} |"


def table(found: re.Match[str]) -> str:
    """A marker, and the table that it stands for."""
    what = found[2].strip()
    if found[1] == "codes":
        rows = [f"| {code} | {meaning} |" for code, meaning in sorted(CODES.items())]
        head = "| code | meaning |"
    else:
        command, _, group = what.partition(" ")
        rows = [row(command, one) for one in options(command, group)]
        rows += ["| `-h`, `--help` | Show the command's help. `onnxgen --version` shows the version. |"] * (
            what == "every"
        )
        head = "| option | meaning |"
    marker = f"<!-- {found[1]}{': ' if what else ''}{what} -->"
    return "\n".join([marker, "", head, "|---|---|", *rows, ""])


def page() -> str:
    """The page with its tables written anew."""
    return TABLE.sub(table, PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
