from torch import nn


class Model(nn.Module):
    """Remaining useful life, from a window of 20 steps of 20 sensors."""

    def __init__(self):
        super().__init__()
        layers, channels = [], 1
        for out, height in ((5, 5), (10, 5), (5, 5), (5, 3)):
            layers += [nn.Conv2d(channels, out, (height, 1)), nn.ReLU()]
            channels = out
        self.temporal = nn.Sequential(*layers)
        self.dense = nn.Conv2d(5, 100, (6, 20))
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(100, 1)

    def forward(self, window):
        x = self.dense(self.temporal(window)).clamp_min(0.0)
        return self.out(self.drop(x)[:, :, 0, 0])
