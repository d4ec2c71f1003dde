"""Language models that generate text: a generated module with `generate` of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from onnxgen.common.paths import installing
from onnxgen.errors import OnnxgenError
from onnxgen.surgery.ports import signature_of
from onnxgen.training.generation.ports import causal_ports

if TYPE_CHECKING:
    from onnxgen.training.generation.wrapper import CausalLM


def causal_lm(model: nn.Module, tokenizer: Path | str | None = None) -> CausalLM:
    """Return a causal language model as a model of transformers, with its `generate`.

        lm = causal_lm(Model.from_pretrained())
        ids = lm.tokenizer(["Once upon"], return_tensors="pt")
        print(lm.tokenizer.batch_decode(lm.generate(**ids, max_new_tokens=20)))

    It is called like a model of transformers: `lm(input_ids, attention_mask=..., labels=...)` returns `logits`
    [batch, length, vocabulary], `loss` (of the next tokens) and `past_key_values`. With inputs `past_key_values.0.key`
    and outputs `present.0.key`, `generate` computes each token once; without them it computes all of them each time.

    Args:
        model: a generated module, as optimum and others export it: inputs `input_ids`, and perhaps `attention_mask`,
            `position_ids`, `past_key_values...` and `use_cache_branch`. It is put into eval mode, and not copied.
        tokenizer: a `tokenizer.json`, or a folder with one. Default: the one beside the module or its weights.
            `lm.tokenizer` is transformers' for it; None if there is none. It pads on the left.
            `generation_config.json` beside it says with which token a text ends, and how `generate` chooses.

    Raises:
        OnnxgenError: transformers is missing; the network is no causal language model, sees later tokens, or fixes the
            number of tokens; there is no such tokenizer. From `generate` and calls: a batch of another size than the
            file fixes, or texts of several lengths that the network can't take at once.
    """
    roles = causal_ports(signature_of(model))
    try:
        from onnxgen.training.generation.wrapper import CausalLM, opened
    except ImportError as error:
        what = f"generating text needs the package transformers, 5.0 or newer ({error})"
        raise OnnxgenError(what, help=installing("generate")) from None
    return opened(CausalLM(model, roles), None if tokenizer is None else Path(tokenizer))
