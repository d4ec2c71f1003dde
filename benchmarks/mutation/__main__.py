"""Mutation test of the product itself: of 300 wrong lines that make a wrong module, how many does it stop?

python -m benchmarks.mutation --mutants 300 --seed 1 [--jobs 2] [--write]

One line of `structure/`, `code/` or `passes/` is made wrong, drawn by seed from those that a corpus of small files
runs. Where a file then comes out with another meaning, the product's own checks are turned on (`ONNXGEN_STRICT=1`,
`ONNXGEN_PARANOID=1`) and it is generated again: they should refuse it. No test of the suite judges. The corpus is made
at the first run, in many minutes, and kept in `--folder`.

With `--by-default` neither variable is set: the checks are those of any generation, and a rewriting that they refuse is
left out. Where the module is right then, the mutant is stopped, too. `--in passes` draws in one folder.
With `--judge tests` the lines are those of every room, and the test suite judges: see `tested.py`.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.mutation import corpus as files
from benchmarks.mutation import tested
from benchmarks.mutation.corpus import PACKAGE, Corpus, prepare
from benchmarks.mutation.forks import forked
from benchmarks.mutation.mutants import Mutant, at, drawn
from benchmarks.mutation.page import TITLE
from benchmarks.mutation.trial import OUTCOMES, Verdict, import_product, task, tried

LIMIT = 300.0  # seconds of one mutant
WANTED = 0.98
REPORT = Path(__file__).resolve().parents[1] / "MUTATION.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=300, help="how many that make a wrong module")
    parser.add_argument("--minutes", type=float, default=600, help="after which it ends with those that it has")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--at", metavar="FILE:LINE", help="all mutants of one line instead: structure/loops.py:120")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "onnxgen-mutation"))
    parser.add_argument("--judge", choices=("checks", "tests"), default="checks", help="the product's checks, or tests")
    parser.add_argument("--by-default", action="store_true", help="neither variable is set")
    parser.add_argument("--in", dest="within", default="", metavar="FOLDER", help="only mutants of this folder")
    tested.add_arguments(parser)
    args = parser.parse_args()
    if args.judge == "tests":
        return tested.main(args, REPORT)
    began = time.monotonic()
    if args.by_default:
        os.environ.update(dict.fromkeys(files.SWITCHES, "0"))
        files.SWITCHES = ()
    _preload()
    _, made = next(forked(prepare, [(args.folder, args.jobs)], 1, 7200))
    assert made is not None, "the corpus could not be made"
    print(f"{len(made.entries)} files, {time.monotonic() - began:.0f} s", flush=True)
    import_product()
    gc.freeze()  # forks share it
    results: list[tuple[Mutant, Verdict]] = []
    for mutant, verdict in trials(made, args):
        results.append((mutant, verdict))
        if verdict.is_counted or args.at:
            print(f"{verdict.outcome:<9} {mutant}  [{verdict.file}: {verdict.why or verdict.refusal}]", flush=True)
        if sum(v.is_counted for _, v in results) >= args.mutants or time.monotonic() - began > 60 * args.minutes:
            break
    alarms = [reason for reason in made.left_out if "FALSE ALARM" in reason]
    text = report(results, len(made.entries), alarms, args.seed, time.monotonic() - began)
    print(text)
    if args.write:
        tests = REPORT.read_text(encoding="utf-8").partition(TITLE)[1:] if REPORT.exists() else ()
        REPORT.write_text("\n".join([text, "".join(tests)]) if any(tests) else text, encoding="utf-8")


def _preload() -> None:
    """What every fork needs, but for the product itself: the corpus is made with a trace of what importing it runs."""
    import black  # noqa: F401
    import jinja2  # noqa: F401
    import onnx.reference  # noqa: F401
    import onnx_ir  # noqa: F401
    import onnxruntime  # noqa: F401
    import safetensors.torch  # noqa: F401
    import torch

    torch.set_num_threads(1)


def trials(corpus: Corpus, args: argparse.Namespace) -> Iterator[tuple[Mutant, Verdict]]:
    """The mutants that are asked for, without end if none are, and what becomes of each."""
    covered: dict[str, set[int]] = {}
    for part in (corpus.imports, *(e.lines for e in corpus.entries)):
        for file, lines in part.items():
            covered.setdefault(file, set()).update(lines)
    mutants = at(PACKAGE, args.at) if args.at else drawn(PACKAGE, covered, args.seed)
    mutants = (each for each in mutants if each[0].file.startswith(args.within))
    work = (task(mutant, lines, corpus) for mutant, lines in mutants)
    for (mutant, *_), verdict in forked(tried, work, args.jobs, LIMIT):
        yield mutant, verdict or Verdict("error", why="the process died, or had no end")


def report(results: Sequence[tuple[Mutant, Verdict]], files: int, alarms: Sequence[str], seed: int, took: float) -> str:
    """What `MUTATION.md` says."""
    counts = Counter(verdict.outcome for _, verdict in results)
    counted = [(m, v) for m, v in results if v.is_counted]
    share = counts["stopped"] / max(1, len(counted))
    lines = [
        "# Wrong lines in the product, and what stops them",
        "",
        f"`python -m benchmarks.mutation --mutants {len(counted)} --seed {seed}`, {took / 60:.0f} minutes, "
        f"{files} files, {len(results)} mutants.",
        "",
        f"**{counts['stopped']} of {len(counted)} mutants that make a wrong module are stopped: {share:.1%}** "
        f"(wanted: {WANTED:.0%}).",
        f"Files that the checks refuse although no line is wrong: {len(alarms)}.",
        "",
        "One line at a time is made wrong, and files that run it are generated with the product's checks off, then on.",
        "Of what came out wrong, outputs, training, gradients, trained tensors and their way back count.",
        "",
        *_table("outcome", [(f"{name}: {what}", [counts[name]]) for name, what in OUTCOMES.items()], ["mutants"]),
    ]
    for title, name in (("kind of mistake", lambda m: m.kind), ("folder", lambda m: m.file.rpartition("/")[0])):
        stopped = Counter(name(m) for m, v in counted if v.outcome == "stopped")
        every = Counter(name(m) for m, _ in counted)
        lines += _table(title, [(k, [n, stopped[k]]) for k, n in every.most_common()], ["wrong module", "stopped"])
    by = Counter(v.refusal.partition(":")[0] for _, v in counted if v.outcome == "stopped")
    lines += _table("stopped by", [(name, [n]) for name, n in by.most_common()], ["mutants"])
    lines += ["## Survivors", "", *["None."] * (not counts["survived"])]
    for mutant, verdict in counted:
        if verdict.outcome == "survived":
            lines += [f"- `{mutant.file}:{mutant.line}` {mutant.kind}: `{mutant.before}` becomes `{mutant.after}`;"]
            lines += [f"  `{verdict.file}`: {verdict.why}"]
    return "\n".join(lines) + "\n"


def _table(title: str, rows: Sequence[tuple[str, list[int]]], columns: Sequence[str]) -> Iterator[str]:
    yield f"| {title} | {' | '.join(columns)} |"
    yield f"|---|{'---:|' * len(columns)}"
    yield from (f"| {name} | {' | '.join(map(str, figures))} |" for name, figures in rows)
    yield ""


if __name__ == "__main__":
    main()
