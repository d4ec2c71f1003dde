"""What fine-tuning a model takes: each verb works on any `nn.Module`, with any loop.

replace_head(model, 3)                           # another number of classes
freeze(model, "stem", "layer1.*")                # parameters, and the statistics of BatchNorms
groups = param_groups(model, lr=1e-3, head_lr=10)
optimizer = torch.optim.AdamW(groups)

`onnxgen.training` has them all by name.
"""
