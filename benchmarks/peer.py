"""The child of `benchmarks.peers`: one tool, one network. Runs in the tool's environment: imports nothing of ours.

    python benchmarks/peer.py TOOL NET FOLDER SCRATCH

It makes the model, prints a line of JSON, and then times a call for each line that it reads.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from importlib import import_module, util
from pathlib import Path
from typing import Any

TOOL, NET, FOLDER, SCRATCH = sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
FILE = FOLDER / "net.onnx"
SAY = os.dup(1)  # tools print, too
LEAST = 0.05  # CPU seconds of a timing
HIGHEST = [0.0]  # MiB, of processes that were started


def say(found: dict[str, Any]) -> None:
    os.write(SAY, (json.dumps(found) + "\n").encode())


def imported(path: Path) -> Any:
    sys.path.insert(0, str(path.parent))
    spec = util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def declare_vision() -> None:
    """torchvision's wheel is built for CUDA: beside a torch for the CPU its operators do not load, nor does it then."""
    import torch

    if "+cpu" in torch.__version__:
        library: Any = vars(torch.library)["Library"]("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        globals()["_kept"] = library


def original() -> Any:
    import torch

    from benchmarks.nets import NETS

    with torch.device("meta"):
        model = NETS[NET].build()
    rest = {name: buffer for name, buffer in model.named_buffers() if name not in model.state_dict()}
    if rest:  # tables that are made when the network is
        model = NETS[NET].build()
    first: dict[Any, str] = {}
    tied = [(first.setdefault(p, name), name) for name, p in model.named_parameters(remove_duplicate=False)]
    model.load_state_dict(torch.load(FOLDER / "state.pt", mmap=True), assign=True)
    for kept, name in tied:  # `assign` makes two of one
        place, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(place), leaf, model.get_parameter(kept))
    return model


def onnxgen() -> Any:
    run(sys.executable, "-m", "onnxgen", str(FILE), "-o", str(SCRATCH / "net.py"))
    return imported(SCRATCH / "net.py").Model.from_pretrained()


def onnxgen_load() -> Any:
    from onnxgen import load

    return load(FILE)


def onnxgen_generated() -> Any:
    return imported(FOLDER / "generated" / "net.py").Model.from_pretrained()


def onnx2torch() -> Any:
    declare_vision()
    return import_module("onnx2torch").convert(str(FILE))


def onnx2pytorch() -> Any:
    declare_vision()
    import onnx

    return import_module("onnx2pytorch").ConvertModel(onnx.load(FILE), experimental=True)


def onnx_pytorch() -> Any:
    declare_vision()
    import_module("onnx_pytorch.code_gen").gen(str(FILE), str(SCRATCH))
    return imported(SCRATCH / "model.py").Model()


def pnnx() -> Any:
    import torch

    inputs, _ = torch.load(FOLDER / "example.pt")
    kinds = {torch.float32: "f32", torch.int64: "i64"}
    shapes = ",".join(f"[{','.join(map(str, x.shape))}]{kinds[x.dtype]}" for x in inputs)
    (SCRATCH / "net.onnx").symlink_to(FILE)
    run(str(Path(sys.executable).with_name("pnnx")), "net.onnx", f"inputshape={shapes}")
    return imported(SCRATCH / "net_pnnx.py").Model()


def run(*command: str) -> None:
    """Run a command to its end; what memory it takes counts."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=SCRATCH) as child:
        while child.poll() is None:
            HIGHEST.append(highest(child.pid))
            time.sleep(0.02)  # looking takes time itself, which counts: at 2 ms a tenth of it


def highest(pid: int | str) -> float:
    """MiB that a process had at the most; `getrusage` counts what its parent had, too."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


def used() -> tuple[float, float]:
    """CPU seconds so far, with those of processes that it started, and the most MiB that one of them had."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in both), max(*HIGHEST, highest("self"))


def compared(made: Any, stated: Any) -> str:
    import torch

    made = made if isinstance(made, (tuple, list)) else (made,)
    for ours, theirs in zip(made, stated):
        if ours.shape != theirs.shape or not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3):
            return "other outputs than the original's"
    return ""


def timed(call: Any) -> float:
    """Milliseconds of one call."""
    calls, begun = 0, time.process_time()
    while (spent := time.process_time() - begun) < LEAST or not calls:
        call()
        calls += 1
    return 1e3 * spent / calls


def main() -> None:
    os.dup2(2, 1)
    try:
        makers = {"onnxgen.load": onnxgen_load, "onnxgen, generated": onnxgen_generated, "onnx-pytorch": onnx_pytorch}
        model = (makers.get(TOOL) or globals()[TOOL])().eval()
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.detach().reshape(-1)[::512].sum()
        seconds, mib = used()
        import torch

        torch.set_num_threads(1)
        # glibc takes memory from the system anew for each call until a process has once freed a block as large as its
        # activations: who read a file into memory was a fifth quicker afterwards. So everybody frees one of 31 MiB.
        torch.empty(31 << 20, dtype=torch.uint8)
        inputs, outputs = torch.load(FOLDER / "example.pt")
        with torch.no_grad():
            note = compared(model(*inputs), outputs)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        say({"seconds": seconds, "mib": mib, "note": note, "trained": trained})
    except BaseException as error:
        say({"error": f"{type(error).__name__}: {' '.join(str(error).split())[:90]}"})
        return

    def forward() -> None:
        with torch.no_grad():
            model(*inputs)

    def backward() -> None:
        made = model(*inputs)
        made = made if isinstance(made, (tuple, list)) else (made,)
        torch.autograd.backward(torch.stack([y.square().mean() for y in made]).sum())
        model.zero_grad()

    calls = {"forward": forward, "backward": backward}
    for line in sys.stdin:
        try:
            say({"ms": timed(calls[line.strip()])})
        except Exception as error:
            say({"error": f"{line.strip()}: {type(error).__name__}: {' '.join(str(error).split())[:90]}"})


if __name__ == "__main__":
    main()
