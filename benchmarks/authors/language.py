"""Ten small networks over sequences, as an engineer of language and speech writes them."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def sinusoidal_positions(max_position_embeddings: int, hidden_size: int) -> Tensor:
    """Return the sin/cos table of "Attention Is All You Need"."""
    position = torch.arange(max_position_embeddings).unsqueeze(1)
    step = -math.log(10000.0) / hidden_size
    angles = position * torch.exp(torch.arange(0, hidden_size, 2) * step)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def init_bert_weights(module: nn.Module) -> None:
    """Normal(0, 0.02) weights, zero biases; use with ``model.apply``."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, mean=0.0, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


@dataclass
class EncoderConfig:
    vocab_size: int = 200
    hidden_size: int = 48
    num_attention_heads: int = 4
    intermediate_size: int = 96
    num_hidden_layers: int = 2
    max_position_embeddings: int = 64
    num_labels: int = 3


class TransformerForSequenceClassification(nn.Module):
    """Encoder + masked mean pooling + MLP head."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        hidden, heads = config.hidden_size, config.num_attention_heads
        self.word_embeddings = nn.Embedding(config.vocab_size, hidden, padding_idx=0)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, hidden)
        self.embedding_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(0.1)
        encoder_layer = nn.TransformerEncoderLayer(
            hidden, heads, config.intermediate_size, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(encoder_layer, config.num_hidden_layers, enable_nested_tensor=False)
        self.classifier = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, config.num_labels))
        self.apply(init_bert_weights)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        position_ids = torch.arange(input_ids.size(1), device=input_ids.device)
        embeddings = self.word_embeddings(input_ids)
        embeddings = embeddings + self.position_embeddings(position_ids)
        embeddings = self.dropout(self.embedding_norm(embeddings))
        padding_mask = attention_mask == 0
        hidden_states = self.encoder(embeddings, src_key_padding_mask=padding_mask)
        mask = attention_mask.unsqueeze(-1).to(hidden_states.dtype)
        pooled = (hidden_states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1e-9)
        return self.classifier(self.dropout(pooled))


class Seq2SeqTranslator(nn.Module):
    """Encoder-decoder translation model around ``nn.Transformer``."""

    def __init__(self, src_vocab_size=120, tgt_vocab_size=100, d_model=32, nhead=4):
        super().__init__()
        self.d_model = d_model
        self.src_embedding = nn.Embedding(src_vocab_size, d_model, padding_idx=0)
        self.tgt_embedding = nn.Embedding(tgt_vocab_size, d_model, padding_idx=0)
        self.register_buffer("positions", sinusoidal_positions(128, d_model))
        self.transformer = nn.Transformer(d_model, nhead, 2, 2, dim_feedforward=64, batch_first=True, norm_first=True)
        self.generator = nn.Linear(d_model, tgt_vocab_size)

    def embed(self, tokens: Tensor, embedding: nn.Embedding) -> Tensor:
        scaled = embedding(tokens) * math.sqrt(self.d_model)
        return scaled + self.positions[: tokens.size(1)]

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        src_padding_mask = src == 0
        tgt_len = tgt.size(1)
        causal_mask = torch.ones(tgt_len, tgt_len, dtype=torch.bool).triu(diagonal=1)
        decoded = self.transformer(
            self.embed(src, self.src_embedding),
            self.embed(tgt, self.tgt_embedding),
            tgt_mask=causal_mask,
            tgt_is_causal=True,
            src_key_padding_mask=src_padding_mask,
            memory_key_padding_mask=src_padding_mask,
        )
        return self.generator(decoded)


class GPTBlock(nn.Module):
    """Pre-norm causal self-attention followed by a GELU feed-forward."""

    def __init__(self, n_embd: int, n_head: int, block_size: int):
        super().__init__()
        self.n_head = n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * n_embd, n_embd),
        )
        causal = torch.tril(torch.ones(block_size, block_size))
        self.register_buffer("bias", causal.view(1, 1, block_size, block_size))

    def attention(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        qkv = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in qkv)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(scores, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPTLanguageModel(nn.Module):
    """Decoder-only language model whose output head shares the token embedding."""

    def __init__(self, vocab_size=96, n_embd=48, n_head=4, n_layer=2, block_size=32):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        blocks = [GPTBlock(n_embd, n_head, block_size) for _ in range(n_layer)]
        self.h = nn.ModuleList(blocks)
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.apply(init_bert_weights)
        self.lm_head.weight = self.wte.weight  # weight tying

    def forward(self, idx: Tensor) -> Tensor:
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class BiLSTMTagger(nn.Module):
    """Token tagger: word embeddings + capitalisation feature -> BiLSTM -> tags."""

    def __init__(self, vocab_size=250, embedding_dim=32, hidden_dim=40, num_tags=9):
        super().__init__()
        self.word_embedding = nn.Embedding(vocab_size, embedding_dim, padding_idx=0)
        self.case_embedding = nn.Embedding(4, 8)
        self.embedding_dropout = nn.Dropout(0.3)
        self.lstm = nn.LSTM(embedding_dim + 8, hidden_dim, 2, batch_first=True, bidirectional=True)
        self.hidden2tag = nn.Linear(2 * hidden_dim, num_tags)

    def forward(self, word_ids: Tensor, case_ids: Tensor) -> Tensor:
        features = [self.word_embedding(word_ids), self.case_embedding(case_ids)]
        lstm_out, _ = self.lstm(self.embedding_dropout(torch.cat(features, dim=-1)))
        return F.log_softmax(self.hidden2tag(lstm_out), dim=-1)


class GRUSequenceClassifier(nn.Module):
    """Utterance classifier on feature frames, reading the last hidden state."""

    def __init__(self, input_size=20, hidden_size=48, num_layers=2, num_classes=6):
        super().__init__()
        self.input_norm = nn.LayerNorm(input_size)
        self.gru = nn.GRU(input_size, hidden_size, num_layers, batch_first=True)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.out_proj = nn.Linear(hidden_size, num_classes)

    def forward(self, features: Tensor) -> Tensor:
        _, last_hidden = self.gru(self.input_norm(features))
        return self.out_proj(F.relu(self.dense(last_hidden[-1])))


class CharRNN(nn.Module):
    """Elman character model; feed ``hidden`` back in to keep generating."""

    def __init__(self, num_chars: int = 64, hidden_size: int = 64, num_layers: int = 2):
        super().__init__()
        self.num_layers, self.hidden_size = num_layers, hidden_size
        self.encoder = nn.Embedding(num_chars, hidden_size)
        self.rnn = nn.RNN(hidden_size, hidden_size, num_layers, nonlinearity="tanh")
        self.decoder = nn.Linear(hidden_size, num_chars)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)

    def forward(self, chars: Tensor, hidden: Tensor | None = None):
        """``chars`` is (seq_len, batch), as in the PyTorch word LM example."""
        if hidden is None:
            hidden = torch.zeros(self.num_layers, chars.size(1), self.hidden_size)
        output, hidden = self.rnn(self.encoder(chars), hidden)
        return self.decoder(output), hidden


class TemporalBlock(nn.Module):
    """Two causal dilated convolutions with a residual connection."""

    def __init__(self, in_channels, out_channels, kernel_size, dilation):
        super().__init__()
        self.left_padding = (kernel_size - 1) * dilation
        conv_args = {"kernel_size": kernel_size, "dilation": dilation}
        self.conv1 = nn.Conv1d(in_channels, out_channels, **conv_args)
        self.conv2 = nn.Conv1d(out_channels, out_channels, **conv_args)
        self.dropout = nn.Dropout(0.1)
        self.downsample = nn.Identity()
        if in_channels != out_channels:
            self.downsample = nn.Conv1d(in_channels, out_channels, kernel_size=1)

    def forward(self, x):
        out = self.dropout(F.relu(self.conv1(F.pad(x, (self.left_padding, 0)))))
        out = self.dropout(F.relu(self.conv2(F.pad(out, (self.left_padding, 0)))))
        return F.relu(out + self.downsample(x))


class TemporalConvNet(nn.Module):
    """TCN over (batch, channels, time); predicts one value per time step."""

    def __init__(self, num_inputs=4, num_channels=(16, 16, 24), kernel_size=3):
        super().__init__()
        layers, in_channels = [], num_inputs
        for i, out_channels in enumerate(num_channels):
            layers.append(TemporalBlock(in_channels, out_channels, kernel_size, 2**i))
            in_channels = out_channels
        self.network = nn.Sequential(*layers)
        self.linear = nn.Linear(num_channels[-1], 1)

    def forward(self, x):
        return self.linear(self.network(x).transpose(1, 2)).squeeze(-1)


def conv_bn(in_channels, out_channels, kernel_size, stride=1, padding=0, groups=1):
    """Bias-free convolution, batch norm, ReLU."""
    args = (in_channels, out_channels, kernel_size, stride, padding)
    conv = nn.Conv2d(*args, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True))


class KeywordSpottingDSCNN(nn.Module):
    """DS-CNN ("Hello Edge") keyword spotter on log-mel features."""

    def __init__(self, num_keywords: int = 12, channels: int = 32, num_blocks: int = 3):
        super().__init__()
        layers = [conv_bn(1, channels, (10, 4), stride=2, padding=(5, 1))]
        for _ in range(num_blocks):
            layers.append(conv_bn(channels, channels, 3, padding=1, groups=channels))
            layers.append(conv_bn(channels, channels, 1))
        self.features = nn.Sequential(*layers)
        self.fc = nn.Linear(channels, num_keywords)

    def forward(self, mel_features: Tensor) -> Tensor:
        log_mel = torch.log(mel_features + 1e-6).unsqueeze(1)  # (B, 1, T, n_mels)
        log_mel = log_mel - log_mel.mean(dim=2, keepdim=True)
        return self.fc(self.features(log_mel).mean(dim=(2, 3)))


class CTCAcousticModel(nn.Module):
    """DeepSpeech2-like: strided 2-D convolutions, BiGRU, per-frame log-probs."""

    def __init__(self, n_mels: int = 40, rnn_dim: int = 48, vocab_size: int = 29):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, kernel_size=3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.Hardtanh(0, 20, inplace=True),
            nn.Conv2d(8, 16, kernel_size=3, stride=(2, 1), padding=1),
            nn.BatchNorm2d(16),
            nn.Hardtanh(0, 20, inplace=True),
        )
        self.projection = nn.Linear(16 * (n_mels // 4), rnn_dim)
        self.rnn = nn.GRU(rnn_dim, rnn_dim, batch_first=True, bidirectional=True)
        self.layer_norm = nn.LayerNorm(2 * rnn_dim)
        self.ctc_head = nn.Linear(2 * rnn_dim, vocab_size)

    def forward(self, spectrogram: Tensor) -> Tensor:
        features = self.conv(spectrogram.unsqueeze(1))  # (B, C, n_mels / 4, T / 2)
        features = features.permute(0, 3, 1, 2).flatten(start_dim=2)
        rnn_out, _ = self.rnn(F.gelu(self.projection(features)))
        logits = self.ctc_head(self.layer_norm(rnn_out))
        return F.log_softmax(logits, dim=-1).transpose(0, 1)  # (T, B, V) for CTCLoss


class CrossAttentionPooler(nn.Module):
    """Pool frame embeddings into a unit-norm vector with learned queries."""

    def __init__(self, input_dim=24, embed_dim=32, num_heads=4, num_queries=4):
        super().__init__()
        self.frame_encoder = nn.Linear(input_dim, embed_dim)
        self.query = nn.Parameter(torch.empty(1, num_queries, embed_dim))
        nn.init.trunc_normal_(self.query, std=0.02)
        self.norm_kv = nn.LayerNorm(embed_dim)
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)
        self.norm_out = nn.LayerNorm(embed_dim)
        self.output_proj = nn.Linear(num_queries * embed_dim, embed_dim)

    def forward(self, frames: Tensor, padding_mask: Tensor) -> tuple[Tensor, Tensor]:
        keys = self.norm_kv(F.silu(self.frame_encoder(frames)))
        query = self.query.expand(frames.size(0), -1, -1)
        pooled, weights = self.attn(query, keys, keys, key_padding_mask=padding_mask)
        pooled = self.norm_out(pooled + query).flatten(1)
        return F.normalize(self.output_proj(pooled), dim=-1), weights


def networks() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Every model in eval mode with example inputs."""
    torch.manual_seed(1234)
    attention_mask = (torch.arange(12) < torch.tensor([[12], [9]])).long()
    padding_mask = attention_mask == 0
    token_ids = torch.randint(1, 90, (2, 12))
    padded_ids = token_ids * attention_mask
    classifier = TransformerForSequenceClassification(EncoderConfig())
    frames = torch.randn(2, 12, 24)
    models = {
        "transformer_classifier": (classifier, (padded_ids, attention_mask)),
        "seq2seq_transformer": (Seq2SeqTranslator(), (padded_ids, token_ids[:, :7])),
        "gpt_tied": (GPTLanguageModel(), (token_ids,)),
        "bilstm_tagger": (BiLSTMTagger(), (padded_ids, torch.randint(0, 4, (2, 12)))),
        "gru_classifier": (GRUSequenceClassifier(), (torch.randn(2, 15, 20),)),
        "char_rnn": (CharRNN(), (torch.randint(64, (10, 2)), torch.randn(2, 2, 64))),
        "tcn": (TemporalConvNet(), (torch.randn(2, 4, 24),)),
        "keyword_spotting_dscnn": (KeywordSpottingDSCNN(), (torch.rand(2, 49, 40),)),
        "ctc_acoustic_model": (CTCAcousticModel(), (torch.randn(2, 40, 32),)),
        "cross_attention_pooler": (CrossAttentionPooler(), (frames, padding_mask)),
    }
    return {name: (model.eval(), args) for name, (model, args) in models.items()}
