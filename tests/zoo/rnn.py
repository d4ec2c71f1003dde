"""Recurrent taggers and classifiers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Tagger(nn.Module):
    """Token ids [batch, length] int64 -> tag scores [batch, length, tags]."""

    def __init__(
        self,
        kind: str = "LSTM",
        layers: int = 2,
        bidirectional: bool = True,
        vocabulary: int = 50,
        embedding: int = 12,
        hidden: int = 10,
        tags: int = 5,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.rnn = getattr(nn, kind)(
            embedding,
            hidden,
            num_layers=layers,
            bidirectional=bidirectional,
            batch_first=True,
            dropout=0.3 if layers > 1 else 0.0,
        )
        self.dropout = nn.Dropout(0.2)
        self.tags = nn.Linear(hidden * (1 + bidirectional), tags)

    def forward(self, tokens: Tensor) -> Tensor:
        x, _ = self.rnn(self.embedding(tokens))
        return self.tags(self.dropout(x))


class StatefulLSTM(nn.Module):
    """One step after another: takes its state and returns the new one. [length, batch, features]."""

    def __init__(self, features: int = 6, hidden: int = 8) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, num_layers=2)
        self.out = nn.Linear(hidden, features)

    def forward(self, frames: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, (hidden, cell) = self.lstm(frames, (hidden, cell))
        return self.out(x), hidden, cell


class SentenceGRU(nn.Module):
    """Classifies by the last hidden states of both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 7, bidirectional=True)
        self.norm = nn.LayerNorm(14)
        self.fc = nn.Linear(14, 3)

    def forward(self, frames: Tensor) -> Tensor:
        _, hidden = self.gru(frames)
        return self.fc(self.norm(torch.cat([hidden[0], hidden[1]], dim=-1)))
