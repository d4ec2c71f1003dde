import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.GRU(input_size=6, hidden_size=7, num_layers=1, bidirectional=True)
        self.gain, self.shift = nn.Parameter(torch.ones(14)), nn.Parameter(torch.zeros(14))
        self.out = nn.Linear(14, 3)

    def forward(self, frames):
        last = self.encoder(frames)[1].transpose(0, 1).flatten(1)
        centred = last - last.mean(-1, keepdim=True)
        variance = last.var(dim=-1, unbiased=False, keepdim=True)
        return self.out(centred * torch.rsqrt(variance + 1e-5) * self.gain + self.shift)
