import torch
from torch import nn


class ChannelsLast(nn.Module):
    """Calls a layer of images with the channels last, as Keras keeps them."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class Model(nn.Sequential):
    def __init__(self):
        dense = []
        for i, o in ((576, 128), (128, 64)):
            dense += [nn.Linear(i, o), nn.ReLU()]
        super().__init__(
            *(ChannelsLast(nn.Conv2d(3, 8, 4, 2)), nn.ReLU()),
            *(ChannelsLast(nn.Conv2d(8, 16, 4, 2)), nn.ReLU()),
            *(nn.Flatten(), *dense, nn.Linear(64, 10)),
        )

    def forward(self, images: torch.Tensor):
        for layer in self:
            images = layer(images)
        return images
