"""Generated modules that were edited by hand, not always well."""

from __future__ import annotations

import random
import re
from pathlib import Path

OWN = "edited by hand"  # what the person's own exceptions say
THEIRS = r"\b[A-Z]\w+(Error|Exception|Exit|Iteration)\b: "  # a type, and what the person's own code raised
EDITS = (
    "remove", "rename the class", "raise in forward", "raise in init", "syntax", "dtype", "return", "argument",
    "import",
    "exit", "letters", "weights", "constant", "interrupt", "twice", "bases", "layer", "loop", "print",
)  # fmt: skip
RETURNS = (
    "None", "()", "[x]", "{'scores': 1}", "'text'", "3", "x.detach()", "x.long()", "x[0]", "x.to(torch.complex64)",
    "(x, None)", "(x, x, x)", "x.sum()", "x[:0]", "x.to('meta')", "x.to_sparse()", "torch.empty(0)", "x * float('nan')",
    "x > 0", "x.half()", "(x for _ in range(2))", "x.unsqueeze(0)", "x.expand(2, *x.shape)", "self", "x.numpy()",
)  # fmt: skip
RAISES = (
    f"raise ValueError('{OWN}')", f"raise RuntimeError('{OWN}')", f"raise KeyError('{OWN}')",
    f"raise Exception('{OWN}')",
    "1 / 0", "assert False", "undefined_name", "self.nothing", "[][1]", "None.x", "raise NotImplementedError",
    f"raise OSError('{OWN}')", "raise StopIteration", "raise MemoryError", "import nothing_of_this_name", "int('x')",
    "torch.zeros(2) @ torch.zeros(3)", "(lambda f: f(f))(lambda f: f(f))",
)  # fmt: skip


def edited(text: str, draw: random.Random) -> tuple[str, str]:
    """Edit the text of a module. Returns the text, and what was done."""
    way = draw.choice(EDITS)
    lines = text.splitlines()
    code = [n for n, line in enumerate(lines) if line.strip() and not line.lstrip().startswith(("#", '"'))]
    forward = next(n for n, line in enumerate(lines) if "def forward" in line)
    init = next(n for n, line in enumerate(lines) if "def __init__" in line)
    said = way
    if way == "remove":
        place = draw.choice(code)
        said = f"without {lines.pop(place).strip()!r}"
    elif way == "rename the class":
        name = re.search(r"^class (\w+)", text, re.M)
        assert name is not None
        return re.sub(rf"\b{name[1]}\b", draw.choice(("Other", "Model", "nn", "Path")), text), way
    elif way in ("raise in forward", "raise in init"):
        start = _body(lines, forward if way == "raise in forward" else init)
        said = f"{way}: {draw.choice(RAISES)}"
        lines.insert(start, "        " + said.partition(": ")[2])
    elif way == "return":
        places = [n for n, line in enumerate(lines) if line.strip().startswith("return ") and n > forward]
        place = draw.choice(places[:1] or code)
        indent, _, value = lines[place].partition("return ")
        said = draw.choice(RETURNS)
        lines[place : place + 1] = [f"{indent}x = {value}", f"{indent}return {said}"]
    elif way == "dtype":
        said = draw.choice((".double()", ".half()", ".long()", ".bool()", ".cfloat()"))
        name = re.search(r"def forward\(self, (\w+)", text)
        lines.insert(_body(lines, forward), f"        {name[1]} = {name[1]}{said}" if name else "        pass")
    elif way == "argument":
        lines[forward] = lines[forward].replace(
            "self, ", draw.choice(("self, extra, ", "self, *rest, ", "", "self, /, "))
        )
    elif way == "import":
        said = draw.choice(
            ("import nothing_of_this_name", "from torch import nothing", "from __future__ import x", "1/0")
        )
        lines.insert(0, said)
    elif way == "exit":
        said = draw.choice(("import sys; sys.exit(3)", "raise SystemExit", "exit()", "raise KeyboardInterrupt"))
        lines.append(said)
    elif way in ("letters", "syntax"):
        place, letter = draw.randrange(len(text)), draw.choice("xQ0({[=\x00\t\n'\"\\é\udcff")
        return text[:place] + letter + text[place + 1 :], f"{letter!r} at {place}"
    elif way == "weights":
        said = draw.choice(
            ("self.fc = None", "self.more = nn.Linear(3, 3)", "self.fc = nn.Linear(1, 1)", "self.eval()")
        )
        lines.insert(_end(lines, init), "        " + said)
    elif way == "constant":
        numbers = [n for n in code if re.search(r"\d", lines[n])]
        place = draw.choice(numbers)
        lines[place] = re.sub(
            r"\d+", lambda _: draw.choice(("0", "-1", "7", "10**30", "None", "1.5")), lines[place], count=1
        )
        said = lines[place].strip()
    elif way == "interrupt":
        lines.insert(_body(lines, forward), "        raise KeyboardInterrupt")
    elif way == "twice":
        return text + "\n\n" + text, way
    elif way == "bases":
        return re.sub(
            r"^(class \w+)\(nn\.Module\)", draw.choice((r"\1", r"\1(dict)", r"\1(nn.ModuleList)")), text, flags=re.M
        ), way
    elif way == "layer":
        return re.sub(
            r"nn\.(Linear|Conv2d|Embedding)", draw.choice(("nn.Nothing", "nn.Identity", "nn.LazyLinear")), text
        ), way
    elif way == "loop":
        lines.insert(_body(lines, forward), "        self.me = [self]")
    else:
        lines.insert(_body(lines, forward), "        print(chr(27), chr(0xdcff).encode('utf-8', 'replace'))")
    return "\n".join(lines) + "\n", said


def _body(lines: list[str], place: int) -> int:
    """Return where the body of a function begins."""
    while not lines[place].rstrip().endswith(":"):
        place += 1
    return place + 1


def _end(lines: list[str], place: int) -> int:
    """Return where the body of a function ends."""
    place = _body(lines, place)
    while place < len(lines) and (lines[place].startswith("        ") or not lines[place].strip()):
        place += 1
    return place


def edit(folder: Path, draw: random.Random) -> str:
    """Edit the module of a world, or that of its run. Returns what was done."""
    files = [path for path in (folder / "small.py", folder / "run" / "model.py") if path.exists()]
    file = draw.choice([*files, folder / "small.py"])
    text, said = edited(file.read_text(), draw)
    file.write_text(text, errors="surrogateescape")
    return f"{file.relative_to(folder)}: {said}"
