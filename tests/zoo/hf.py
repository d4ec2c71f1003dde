"""Networks of Hugging Face's transformers with small random weights: their own classes, whose files users have.

Each wrapper is what its users write to export: the tensors they have in, the tensors they want out. Where transformers
is not installed, building one skips the test.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn


def _transformers() -> Any:
    return pytest.importorskip("transformers")


class Bert(nn.Module):
    """Ids and mask [batch, length] int64 -> hidden states [batch, length, 24], pooled [batch, 24]."""

    def __init__(self) -> None:
        super().__init__()
        hf = _transformers()
        config = hf.BertConfig(
            vocab_size=60,
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=48,
            max_position_embeddings=32,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.bert = hf.BertModel(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        found = self.bert(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)
        return found[0], found[1]


class GPT2(nn.Module):
    """Ids and mask [batch, length] int64 -> logits [batch, length, 60]."""

    def __init__(self) -> None:
        super().__init__()
        hf = _transformers()
        config = hf.GPT2Config(
            vocab_size=60,
            n_positions=32,
            n_embd=24,
            n_layer=2,
            n_head=3,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=1,
            eos_token_id=2,
            use_cache=False,
        )
        self.model = hf.GPT2LMHeadModel(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        found = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False, return_dict=False)
        return found[0]


class Llama(nn.Module):
    """Ids and mask [batch, length] int64 -> logits [batch, length, 60]."""

    def __init__(self) -> None:
        super().__init__()
        hf = _transformers()
        config = hf.LlamaConfig(
            vocab_size=60,
            hidden_size=24,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            use_cache=False,
        )
        self.model = hf.LlamaForCausalLM(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        found = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False, return_dict=False)
        return found[0]


class T5Encoder(nn.Module):
    """Ids and mask [batch, length] int64 -> hidden states [batch, length, 24]."""

    def __init__(self) -> None:
        super().__init__()
        hf = _transformers()
        config = hf.T5Config(
            vocab_size=60,
            d_model=24,
            d_kv=6,
            d_ff=40,
            num_layers=2,
            num_heads=4,
            dropout_rate=0.0,
            feed_forward_proj="gated-gelu",
            attn_implementation="eager",  # the dynamo exporter of torch 2.13 fails on the strides of the fused one
            use_cache=False,
        )
        self.model = hf.T5EncoderModel(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)[0]


class WhisperEncoder(nn.Module):
    """Log-mel frames [batch, 8, 24] -> hidden states [batch, 12, 20]."""

    def __init__(self) -> None:
        super().__init__()
        hf = _transformers()
        from transformers.models.whisper.modeling_whisper import WhisperEncoder as Encoder

        config = hf.WhisperConfig(
            vocab_size=50,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            num_mel_bins=8,
            d_model=20,
            encoder_layers=2,
            encoder_attention_heads=4,
            decoder_layers=1,
            decoder_attention_heads=4,
            encoder_ffn_dim=40,
            decoder_ffn_dim=40,
            max_source_positions=12,
            max_target_positions=12,
            dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
        )
        self.encoder = Encoder(config)

    def forward(self, input_features: Tensor) -> Tensor:
        return self.encoder(input_features, return_dict=False)[0]


class CLIP(nn.Module):
    """Ids and mask [texts, length] int64, pixels [images, 3, 16, 16] -> scores both ways, both embeddings."""

    def __init__(self) -> None:
        super().__init__()
        hf = _transformers()
        text = {
            "vocab_size": 57,
            "hidden_size": 24,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 16,
            "bos_token_id": 55,
            "eos_token_id": 56,
        }
        vision = {
            "hidden_size": 20,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 16,
            "patch_size": 8,
        }
        self.model = hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=12))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, pixel_values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        found = self.model(
            input_ids=input_ids, attention_mask=attention_mask, pixel_values=pixel_values, return_dict=False
        )
        return found[0], found[1], found[2], found[3]
