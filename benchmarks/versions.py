"""Is the generated source the same under other versions of onnx, onnx-ir, black and Python?

    python -m benchmarks.versions [--only PART_OF_NAME] [--unformatted] [--env "PYTHON REQUIREMENT..."]... [--json FILE]

The models are ONNX's own tests, as the installed onnx makes them, and the collection of real files (`ONNXGEN_SHARED`).
They are written once, and generated in an environment for each row of `ENVIRONMENTS`, or of `--env`, without torch. A
row counts the sources that are byte for byte those of this environment. `refused`: only that environment refuses the
file, such as an opset that its onnx does not know. `differ` must be 0: their names are printed, and the exit code is 1.
`--unformatted` leaves black out, which takes most of the time.

Needs the network, and some minutes for each row.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, arguments, finish

HERE = sys.executable
# The oldest and the newest that are supported, and those between in which onnx's function bodies changed.
ENVIRONMENTS = [
    [HERE, "onnx==1.16.0", "onnx-ir==0.1.16", "black==24.1.0"],
    [HERE, "onnx==1.18.0", "onnx-ir==0.2.1", "black==25.1.0"],
    [HERE, "onnx==1.20.1", "onnx-ir==1.0.0", "black==26.1.0"],
    [HERE, "onnx==1.22.0", "onnx-ir==1.1.0"],
    ["python3.10", "onnx", "onnx-ir"],
    ["python3.12", "onnx", "onnx-ir"],
    ["python3.13", "onnx", "onnx-ir"],
    ["python3.14", "onnx", "onnx-ir"],
]


def write_suite(folder: Path) -> None:
    """Write the models of ONNX's tests: those of single nodes, which it makes, and those that it ships."""
    import onnx
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [case for case in collect_testcases(None) if case.model is not None]
    for case in cases:
        (folder / f"{case.name}.onnx").write_bytes(case.model.SerializeToString())
    shipped = Path(onnx.__file__).parent / "backend/test/data"
    for kind in ("simple", "pytorch-operator", "pytorch-converted", "light"):
        for file in sorted((shipped / kind).rglob("*.onnx")):
            name = file.parent.name if file.stem == "model" else file.stem
            shutil.copyfile(file, folder / f"{kind}-{name}.onnx")


def generate(folders: list[Path], only: str, is_formatted: bool) -> dict[str, list[str]]:
    """Return for each file how it ended, and its source or the error. Runs in the environment that is asked about."""
    from onnxgen.code import render
    from onnxgen.errors import OnnxgenError
    from onnxgen.options import Options
    from onnxgen.pipeline import build

    if not is_formatted:
        render.formatted = lambda source, keep_commas=True: source
    found = {}
    for path in (p for folder in folders for p in sorted(folder.rglob("*.onnx")) if only in p.name):
        try:
            found[str(path)] = ["made", build(path, Options(), path.with_suffix(".py")).source]
        except OnnxgenError as error:
            found[str(path)] = ["refused", str(error)]
        except Exception as error:
            found[str(path)] = ["failed", f"{type(error).__name__}: {error}"]
    return found


def environment(folder: Path, python: str, requirements: list[str]) -> Path:
    """Make an environment with what generating needs; return its Python."""
    made = folder / "bin/python" if os.name != "nt" else folder / "Scripts/python.exe"
    subprocess.run([python, "-m", "venv", str(folder)], check=True, capture_output=True)
    # onnxgen is found in this tree; its other requirements are as in `pyproject.toml`
    others = ["black", "click", "jinja2", "numpy", "platformdirs", "pygments", "rich", "safetensors", "tomli"]
    named = {r.split("=")[0] for r in requirements}
    wanted = [*requirements, *(name for name in others if name not in named)]
    subprocess.run([str(made), "-m", "pip", "install", "--quiet", *wanted], check=True, capture_output=True)
    return made


def child(python: str, folders: list[Path], only: str, is_formatted: bool, out: Path) -> dict[str, list[str]]:
    call = [python, str(Path(__file__)), "--child", str(out), only, str(int(is_formatted)), *map(str, folders)]
    subprocess.run(call, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    found: dict[str, list[str]] = json.loads(out.read_text(encoding="utf-8"))
    return found


def compare(name: str, here: dict[str, list[str]], there: dict[str, list[str]]) -> dict[str, Any]:
    kinds = Counter[str]()
    for path, made in here.items():
        other = there[path]
        same = made == other or made[0] == other[0] == "refused"  # a refusal may be worded by what is installed
        kind = "identical" if same else "refused" if other[0] == "refused" and made[0] == "made" else "differ"
        kinds[kind] += 1
        if kind == "differ":
            print(f"{name}: {Path(path).name}: {other[0]} {other[1][:200] if other[0] != 'made' else ''}")
    return {"environment": name, **{kind: kinds[kind] for kind in ("identical", "refused", "differ")}}


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="files whose name contains this")
    parser.add_argument("--unformatted", action="store_true", help="without black")
    parser.add_argument("--env", action="append", type=str.split, metavar="'PYTHON REQUIREMENT...'")
    args = parser.parse_args()
    shared = Path(os.environ.get("ONNXGEN_SHARED", ROOT / "shared")) / "models"
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        suite = Path(temporary) / "suite"
        suite.mkdir()
        write_suite(suite)
        asked = [suite, *([shared] if shared.is_dir() else [])], args.only, not args.unformatted
        here = child(HERE, *asked, Path(temporary) / "here.json")
        for number, (python, *requirements) in enumerate(args.env or ENVIRONMENTS):
            name = " ".join([python.replace(HERE, f"python{sys.version_info[0]}.{sys.version_info[1]}"), *requirements])
            try:
                other = environment(Path(temporary) / f"env{number}", python, requirements)
            except (OSError, subprocess.CalledProcessError) as error:
                rows.append({"environment": name, "identical": "not to be had here", "refused": "", "differ": ""})
                print(f"{name}: {error}", file=sys.stderr)
                continue
            rows.append(compare(name, here, child(str(other), *asked, Path(temporary) / f"{number}.json")))
            print(*rows[-1].values(), file=sys.stderr, flush=True)
    finish(rows, args.json)
    return 1 if any(row["differ"] for row in rows) else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        result = generate([Path(p) for p in sys.argv[5:]], sys.argv[3], sys.argv[4] == "1")
        Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")
    else:
        sys.exit(main())
