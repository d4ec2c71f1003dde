"""Functions for fine-tuning. Each works with any `nn.Module` and any training loop.

replace_head(model, 3)                           # another number of classes
freeze(model, "stem", "layer1.*")                # parameters, and the statistics of BatchNorms
groups = param_groups(model, lr=1e-3, head_lr=10)
optimizer = torch.optim.AdamW(groups)

`onnxgen.training` exports all of them.
"""
