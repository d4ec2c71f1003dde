from collections import OrderedDict

import torch
from torch import nn


def conv_block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(conv=nn.Conv2d(inputs, outputs, 5), pool=nn.MaxPool2d(2), act=nn.ReLU(inplace=True))
    )


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(OrderedDict(first=conv_block(1, 10), second=conv_block(10, 20)))
        self.classifier = nn.Sequential(
            OrderedDict(hidden=nn.Linear(320, 50), act=nn.ReLU(), out=nn.Linear(50, 10), last=nn.ReLU())
        )

    def forward(self, digits: torch.Tensor) -> torch.Tensor:
        maps = self.encoder(digits)
        scores = self.classifier(maps.view(maps.shape[0], -1))
        return scores - torch.logsumexp(scores, dim=1, keepdim=True)
