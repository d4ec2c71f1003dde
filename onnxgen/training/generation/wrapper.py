"""A generated module as a model of transformers. Imports transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    DynamicCache,
    GenerationConfig,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from onnxgen.errors import OnnxgenError
from onnxgen.surgery.ports import evaluating
from onnxgen.training.data.text.roles import BRANCH, IDS, MASK, POSITIONS, TYPES, past_shape
from onnxgen.training.data.text.tokenizer import GENERATION, PADS, beside, open_tokenizer, tokenizer_file
from onnxgen.training.generation.ports import CausalPorts
from onnxgen.training.goals.goal import IGNORED_CLASS
from onnxgen.training.goals.language import differ
from onnxgen.training.runs.folder import TOKENIZER

_TOLERANCE = 1e-3  # of the greatest score: more than rounding in a batch of another shape, less than a moved position
_PROBED = 6  # tokens


class CausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """See `causal_lm`.

    Attributes:
        network: the generated module.
        tokenizer: of transformers; None if there is none.
    """

    main_input_name = IDS

    def __init__(self, network: nn.Module, ports: CausalPorts) -> None:
        config = PreTrainedConfig(vocab_size=0, num_hidden_layers=len(ports.layers), use_cache=bool(ports.layers))
        config._attn_implementation = "eager"  # of layers that transformers made: there are none
        super().__init__(config)
        self.ports = ports
        self.network = network
        self.tokenizer: PreTrainedTokenizerFast | None = None
        self.generation_config.use_cache = bool(ports.layers)
        self._moves = MASK in ports.roles and POSITIONS not in ports.roles  # until `_check_padding` says otherwise
        self.eval()
        config.vocab_size = self._vocabulary()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: DynamicCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Return the scores of the next tokens.

        Args:
            input_ids: int64 [batch, new].
            attention_mask: int64 [batch, past + new]: 0 for padding.
            position_ids: int64 [batch, new]; by default they are counted from the first token that is no padding.
            past_key_values: of the tokens before; it grows by the new ones.
            labels: int64 [batch, new]: the ids themselves, and -100 for tokens that do not count in `loss`.
            use_cache: False to return no past.
        """
        past = self._length(past_key_values)
        batch, new = input_ids.shape
        mask = input_ids.new_ones(batch, past + new) if attention_mask is None else attention_mask
        self._check(input_ids, mask, past)
        if position_ids is None:
            position_ids = (mask.long().cumsum(1) - 1).masked_fill(mask == 0, 0)[:, -new:]
        outputs = self._outputs(input_ids, mask, position_ids, past_key_values)
        logits, loss = outputs[self.ports.logits], None
        if self._moves and past == 0:
            self._check_padding(input_ids, mask, logits)
        if labels is not None:
            shifted = labels[:, 1:].to(logits.device)
            loss = F.cross_entropy(logits[:, :-1].float().transpose(1, 2), shifted, ignore_index=IGNORED_CLASS)
        caches = self.ports.layers and use_cache is not False
        cache = self._grown(past_key_values, outputs, past, new) if caches else None
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)

    def _outputs(
        self, ids: Tensor, mask: Tensor, positions: Tensor, cache: DynamicCache | None = None
    ) -> tuple[Tensor, ...]:
        """Return what the network returns for tokens behind a past."""
        past = self._length(cache)
        known = {IDS: ids, MASK: mask, POSITIONS: positions, TYPES: torch.zeros_like(ids)}
        known[BRANCH] = torch.tensor([past > 0], device=ids.device)
        if cache is not None and past:
            for (names, _), layer in zip(self.ports.layers, cache.layers):
                known |= zip(names, (layer.keys, layer.values))
        arguments = []
        for role, port in zip(self.ports.roles, self.ports.given):
            kind = None if port.dtype is None else getattr(torch, port.dtype)
            if role not in known:  # a past; its type is that of the module, which `half()` changes
                known[role] = torch.zeros(len(ids), *past_shape(port), dtype=self.dtype, device=ids.device)
            arguments.append(known[role] if known[role].is_floating_point() else known[role].to(kind))
        results = self.network(*arguments)
        return results if isinstance(results, tuple) else (results,)

    def _grown(self, cache: DynamicCache | None, outputs: tuple[Tensor, ...], past: int, new: int) -> DynamicCache:
        cache = DynamicCache(config=self.config) if cache is None else cache
        for number, (names, places) in enumerate(self.ports.layers):
            keys, values = (outputs[place] for place in places)
            if keys.shape[2] != past + new or values.shape[2] != past + new:
                what = f"the outputs for {names[0]} have {keys.shape[2]} tokens after {past} and {new} new ones"
                raise OnnxgenError(what, help="export the network with a cache that holds all tokens")
            cache.update(keys[:, :, past:], values[:, :, past:], number)
        return cache

    def _length(self, cache: DynamicCache | None) -> int:
        if cache is None:
            return 0
        if not self.ports.layers:
            raise OnnxgenError("the network has no inputs for a cache", help="leave out use_cache=True")
        if not isinstance(cache, DynamicCache):
            what = f"the network takes a cache that grows, and not a {type(cache).__name__}"
            raise OnnxgenError(what, help="leave out cache_implementation")
        return int(cache.get_seq_length())

    def _check(self, ids: Tensor, mask: Tensor, past: int) -> None:
        if self.ports.batch not in (None, len(ids)):
            what = f"the file fixes a batch of {self.ports.batch}, and there are {len(ids)} texts, or beams of texts"
            raise OnnxgenError(what, help="generate the module again with --dynamic-batch")
        if mask.shape != (len(ids), past + ids.shape[1]):
            what = f"attention_mask is {list(mask.shape)}, but there are {past} past and {ids.shape[1]} new tokens"
            raise OnnxgenError(what, help="give a mask [batch, past + new] with 0 for padding")
        if MASK not in self.ports.roles and not bool(mask.all()):
            what = "the network has no input attention_mask, so it would read the padding"
            raise OnnxgenError(what, help="give texts of one length, without padding")

    def _check_padding(self, ids: Tensor, mask: Tensor, logits: Tensor) -> None:
        """Refuse padding on the left if the network counts positions from it: the scores of a text would change."""
        padding = (mask.cumsum(1) == 0).sum(1)
        row = int(padding.argmax())
        if not 0 < (first := int(padding[row])) < ids.shape[1]:
            return
        alone, its_mask = (x[row : row + 1, first:].expand(self.ports.batch or 1, -1) for x in (ids, mask))
        with evaluating(self.network), torch.no_grad():
            other = self._outputs(alone, its_mask, its_mask)[self.ports.logits][0, -1]
        if differ(logits[row, -1].detach(), other, _TOLERANCE):
            what = "padding on the left moves the positions of a text: the network counts them itself"
            raise OnnxgenError(what, help="give texts of one length, or export the network with position_ids")
        self._moves = False

    def _vocabulary(self) -> int:
        """Return the number of tokens. Raises `OnnxgenError` if scores depend on later tokens."""
        device = next((p.device for p in self.parameters()), torch.device("cpu"))
        ids = torch.zeros(self.ports.batch or 1, _PROBED, dtype=torch.int64, device=device)
        later, start = ids.clone(), _PROBED // 2
        later[:, start:] = 1
        positions = torch.arange(_PROBED, device=device).expand_as(ids)
        with torch.no_grad():
            one, other = (self._outputs(x, torch.ones_like(ids), positions)[self.ports.logits] for x in (ids, later))
        if one.shape[1] == _PROBED and differ(one[:, :start], other[:, :start]):
            what = f"the scores of position {start - 1} depend on token {start}: the network sees later tokens"
            raise OnnxgenError(what, help="it is no causal language model, so it can't continue a text")
        return int(one.shape[2])


def opened(lm: CausalLM, tokenizer: Path | None) -> CausalLM:
    """Give a model its tokenizer, and how it generates."""
    path = tokenizer_file(tokenizer, lm.network)
    folders, config = ([path.parent] if path is not None else beside(lm.network)), lm.generation_config
    if path is not None:
        facts = open_tokenizer(path).facts
        options: dict[str, Any] = {"padding_side": "left", "model_input_names": [IDS, MASK]}
        kind = PreTrainedTokenizerFast
        whole = path.name == TOKENIZER
        wrapped = kind.from_pretrained(path.parent, **options) if whole else kind(tokenizer_file=str(path), **options)
        if wrapped.pad_token is None:
            wrapped.pad_token = next((token for token in PADS if token in wrapped.get_vocab()), wrapped.eos_token)
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            setattr(config, name, facts.get(name, getattr(wrapped, name)))
        lm.tokenizer = wrapped
    if (folder := next((folder for folder in folders if (folder / GENERATION).is_file()), None)) is not None:
        lm.generation_config = GenerationConfig.from_pretrained(folder, use_cache=config.use_cache)
    return lm
