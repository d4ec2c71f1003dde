"""What `--strategy fsdp` can't train."""

from __future__ import annotations

from onnxgen.errors import OnnxgenError
from onnxgen.training.goals.own import own_modules
from onnxgen.training.optimizers import NOT_SHARDED, optimizer_class
from onnxgen.training.prepare import Plan
from onnxgen.training.sharded.units import refuse_unshardable


def refuse_sharded(plan: Plan) -> None:
    """Raise `OnnxgenError` if the strategy is fsdp, which can't train this."""
    if plan.settings.strategy != "fsdp":
        return
    optimizer = optimizer_class(plan.settings.optimizer)
    if optimizer in NOT_SHARDED:
        what = f"{optimizer.__name__} can't update sharded weights: torch lacks operators for them"
        raise OnnxgenError(what, help="--optimizer adamw, or --strategy ddp")
    cast = plan.settings.precision in ("bf16-true", "16-true", "64-true")
    refuse_unshardable(plan.model, plan.settings.processes, cast)
    if any(True for module in own_modules(plan.objectives) for _ in module.parameters()):
        what = f"--task {plan.settings.task} has parameters of its own, which --strategy fsdp does not exchange"
        raise OnnxgenError(what, help="--strategy ddp")
