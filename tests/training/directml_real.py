"""Run by hand in its own environment: asks the real torch_directml, and checks that onnxgen survives it.

    python3.11 -m venv dml && . dml/bin/activate
    pip install torch-directml lightning scikit-learn matplotlib platformdirs pytest && pip install -e .
    LD_LIBRARY_PATH=$(python -c "import sysconfig as s; print(s.get_paths()['purelib'])")/torch_directml \\
        python tests/training/directml_real.py

Only Linux needs the library path. Outside WSL it has no device, and asking for one raises or kills the process. So each
question is asked in its own process. With a device, a small network is trained on it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

QUESTIONS = ("is_available()", "device_count()", "default_device()", "device_name(0)", "device()", "gpu_memory()")


def ask(question: str) -> str:
    code = f"import torch_directml as d\nprint('answer:', repr(d.{question}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    for line in done.stdout.splitlines():
        if line.startswith("answer:"):
            return line
    last = (done.stderr.strip().splitlines() or ["no word"])[-1]
    return f"exit code {done.returncode}: {last}"


def main() -> None:
    import torch

    print("torch", torch.__version__, "on", sys.platform)
    for question in QUESTIONS:
        print(f"torch_directml.{question:18}", ask(question))
    import onnxgen.training as training
    from onnxgen.training import choose, devices, fit

    names = [name for name in training.__all__ if getattr(training, name) is not None]
    print(f"onnxgen.training: {len(names)} names import")
    for device in devices(test=True):
        print(device.text, "|", device.name, "|", *device.works, "|", device.verdict)
    device = choose("auto")
    print("auto:", device.text)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from tests.training.standin.nets import Net, data

    with tempfile.TemporaryDirectory() as out:
        result = fit(Net(), data(96), device=device.text, epochs=2, batch_size=16, lr=0.01, workers=0, out=Path(out))
    print("trained:", [round(row["train_loss"], 4) for row in result.history])


if __name__ == "__main__":
    main()
