import torch
from torch import nn

dim = 8


class Model(nn.Module):
    """A list of tensors and a None among the arguments; a dictionary comes out."""

    def forward(self, parts, mask=None, *rest):
        total = parts[0] + parts[1]["inner"]
        return {"sum": total, "nothing": mask, "positive": total > 0, "count": int(rest[0].shape[0])}


def get_inputs():
    return [[torch.randn(dim), {"inner": torch.randn(dim)}], None, torch.randn(3)]


def get_init_inputs():
    return []
