import torch
from torch import nn


class Cell(nn.Module):
    """A layer of LSTM for one frame."""

    def __init__(self, inputs, units):
        super().__init__()
        self.gates = nn.LSTMCell(inputs, units)

    def forward(self, frame, state):
        hidden, cell = self.gates(frame, (state[..., 0], state[..., 1]))
        return hidden, torch.stack((hidden, cell), dim=-1)


class Model(nn.Module):
    """The first half of DTLN: a mask of the spectrum, frame by frame."""

    def __init__(self, bins=257, units=128):
        super().__init__()
        self.cells = nn.ModuleList([Cell(bins, units), Cell(units, units)])
        self.mask = nn.Linear(units, bins)

    def forward(self, magnitude, states):
        x, new = magnitude[:, 0], []
        for number, cell in enumerate(self.cells):
            x, state = cell(x, states[:, number])
            new.append(state)
        return torch.sigmoid(self.mask(x))[:, None], torch.stack(new, dim=1)
