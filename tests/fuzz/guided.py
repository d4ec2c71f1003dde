"""A run that coverage guides: atheris (libFuzzer) chooses what to mutate.

    python -m tests.fuzz.guided reader FOLDER [libFuzzer's flags]

`pip install atheris`, in an environment apart. It ends at the first finding, which it stores in `FOLDER/findings`.
"""

from __future__ import annotations

import random
import sys
import tempfile
import warnings
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["onnxgen"]):
    from tests.fuzz.__main__ import stored_seeds
    from tests.fuzz.cases import Place
    from tests.fuzz.judge import Judge
    from tests.fuzz.mutate import LARGEST, mutate
    from tests.fuzz.targets import TARGETS


def main(target: str, corpus: Path, flags: list[str]) -> None:
    """Run a target until libFuzzer ends the process."""
    warnings.simplefilter("ignore")
    seeds = stored_seeds(corpus / "seeds")
    for name in ("guided", "findings"):
        (corpus / name).mkdir(exist_ok=True)
    judge = Judge(Place(Path(tempfile.mkdtemp(prefix="onnxgen-fuzz-"))), TARGETS[target])

    def one(data: bytes) -> None:
        judge.run(data)

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        return mutate(rng, data, rng.choice(seeds))[:most]

    given = [f"-artifact_prefix={corpus}/findings/", f"-max_len={LARGEST}", "-rss_limit_mb=0", *flags]
    places = [str(corpus / "guided"), str(corpus / "seeds")]
    atheris.Setup([sys.argv[0], *given, *places], one, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
