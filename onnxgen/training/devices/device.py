"""A device, as `devices()` lists it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Devices whose recurrent kernels are PyTorch's own; of any other it takes a self-test to know.
OWN_KERNELS = ("cpu", "cuda", "rocm", "xpu", "mps")
# What a self-test can find to work (`Device.works`), and why it matters.
FEATURES = {
    "float64": "double precision",
    "bf16": "autocast to bfloat16 (precision bf16-mixed)",
    "fp16": "autocast to float16 (precision 16-mixed)",
    "lerp": "optimizers as torch has them; without it Adam and its like compute the same without lerp",
    "foreach": "optimizers that update all parameters in few calls",
    "recurrent": "LSTM, GRU and RNN kernels; without them these layers are unrolled",
    "distributed": "several processes (a torch.distributed back end for it is built in)",
}


@dataclass(frozen=True)
class Device:
    """One device.

    Attributes:
        kind: "cuda", "rocm" (of torch type "cuda"), "xpu", "mps", "directml", "cpu", or the name of another back end.
        index: its number among those of its kind.
        name: as the driver calls it.
        memory: bytes of its own memory; None if the driver doesn't tell.
        torch_device: what tensors are moved to.
        works: what the self-test found to work, by the names of `FEATURES`; empty if it was not tested.
        verdict: "ok", or why the self-test failed; None if it was not tested.
    """

    kind: str
    index: int
    name: str
    memory: int | None
    torch_device: torch.device
    works: tuple[str, ...] = ()
    verdict: str | None = None

    @property
    def text(self) -> str:
        """As it is chosen by: "cuda:0", or "cpu" and "mps", of which there is one."""
        return self.kind if self.kind in ("cpu", "mps") else f"{self.kind}:{self.index}"

    @property
    def type(self) -> str:
        """The type of its torch device: "cuda" also for ROCm, "privateuseone" for DirectML."""
        return self.torch_device.type

    @property
    def float64(self) -> bool:
        """Whether float64 may be used on it; taken as given where PyTorch itself has the kernels, until tested."""
        if self.kind in ("mps", "directml"):
            return False
        return "float64" in self.works or (self.verdict is None or not self.works)

    @property
    def recurrent(self) -> bool:
        """Whether it runs LSTM, GRU and RNN itself."""
        return self.kind in OWN_KERNELS or (self.kind != "directml" and "recurrent" in self.works)

    @property
    def plain_optimizers(self) -> bool:
        """Whether optimizers must do without lerp and without foreach and fused kernels."""
        return self.kind == "directml" or (bool(self.works) and not {"lerp", "foreach"} <= set(self.works))
