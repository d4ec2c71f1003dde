"""The facts about a device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# PyTorch itself has recurrent kernels for these devices. For any other device the self-test finds out.
RECURRENT_KERNELS = ("cpu", "cuda", "rocm", "xpu", "mps")
# The features that the self-test looks for (`Device.works`), and what they are needed for.
FEATURES = {
    "float64": "double precision",
    "bf16": "autocast to bfloat16 (precision bf16-mixed)",
    "fp16": "autocast to float16 (precision 16-mixed)",
    "lerp": "torch's own optimizer kernels; without it Adam and similar optimizers compute the same without lerp",
    "foreach": "optimizers that update all parameters in few calls",
    "recurrent": "LSTM, GRU and RNN kernels; without them these layers are unrolled",
    "distributed": "several processes (a torch.distributed back end for it is built in)",
}


@dataclass(frozen=True)
class Device:
    """One device.

    Attributes:
        kind: "cuda", "rocm" (of torch type "cuda"), "xpu", "mps", "directml", "cpu", or the name of another back end.
        index: its number among the devices of its kind.
        name: the driver's name for it.
        memory: bytes of its own memory; None if the driver doesn't tell.
        torch_device: the device for tensors.
        works: the `FEATURES` that passed the self-test; empty if it was not tested.
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
        """The name to choose it by: "cuda:0"; "cpu" and "mps" have no number."""
        return self.kind if self.kind in ("cpu", "mps") else f"{self.kind}:{self.index}"

    @property
    def type(self) -> str:
        """The type of its torch device: "cuda" also for ROCm, "privateuseone" for DirectML."""
        return self.torch_device.type

    @property
    def float64(self) -> bool:
        """True if float64 may be used. An untested device is assumed to have it, except MPS and DirectML."""
        if self.kind in ("mps", "directml"):
            return False
        return "float64" in self.works or (self.verdict is None or not self.works)

    @property
    def recurrent(self) -> bool:
        """True if it has kernels for LSTM, GRU and RNN."""
        return self.kind in RECURRENT_KERNELS or (self.kind != "directml" and "recurrent" in self.works)

    @property
    def plain_optimizers(self) -> bool:
        """True if optimizers must not use lerp, foreach and fused kernels."""
        return self.kind == "directml" or (bool(self.works) and not {"lerp", "foreach"} <= set(self.works))
