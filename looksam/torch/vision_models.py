"""The models of the trainer as PyTorch modules: MLP, ViT, ResNet and wide ResNet.

Modules and parameters are named and ordered as in ``looksam.trainer.models``, and a test copies the weights of each
model from there and compares logits and gradients. Images are (batch, channels, height, width), normalised.
``looksam.torch.load_exported`` builds them from the folder that ``looksam export`` writes.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

SMALL_SIDE, EXPANSION, WIDE_STEM = 64, 4, 16  # as in looksam/trainer/models/resnet.py


def build(name: str, image_shape: Sequence[int], num_classes: int, **options: Any) -> nn.Module:
    """Returns a module by the name of its builder in ``looksam.trainer.models``: mlp, resnet, vit or wide_resnet.

    ``image_shape`` is (height, width, channels); options that are not given have the trainer's defaults.

    Example:
      >>> import torch
      >>> model = build("vit", (8, 8, 3), 10, width=24, depth=1)
      >>> model(torch.zeros(2, 3, 8, 8)).shape
      torch.Size([2, 10])
    """
    if name not in BUILDERS:
        raise ValueError(f"model {name!r} has no PyTorch module here; those that have one are {', '.join(BUILDERS)}.")
    module: nn.Module = BUILDERS[name](tuple(image_shape), num_classes, **options)
    return module


# --- MLP ----------------------------------------------------------------------------------------------------------


class MLP(nn.Module):
    """A linear layer and a ReLU for each hidden width, then a linear layer to the classes."""

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, *, widths: Sequence[int] = (128,) * 3):
        super().__init__()
        height, width, channels = image_shape
        sizes = (height * width * channels, *widths)
        self.hidden = nn.ModuleList(nn.Linear(n_in, n_out) for n_in, n_out in itertools.pairwise(sizes))
        self.head = nn.Linear(sizes[-1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = images.permute(0, 2, 3, 1).flatten(1)  # rows of (height, width, channels), as in JAX
        for layer in self.hidden:
            x = functional.relu(layer(x))
        return self.head(x)


# --- ViT ----------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        query, key, value = (
            layer(x).view(n, tokens, self.heads, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.out(mixed.transpose(1, 2).reshape(n, tokens, width))


class DropPath(nn.Module):
    """Stochastic depth: drops all activations of an image, or none."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        keep = torch.rand(len(x), *[1] * (x.ndim - 1), dtype=x.dtype) >= self.rate
        return x * keep / (1 - self.rate)


class EncoderBlock(nn.Module):
    """An encoder block: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float, drop_path: float, gelu: str):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.dropout, self.drop_path = nn.Dropout(dropout), DropPath(drop_path)
        self.approximate = {"tanh": "tanh", "exact": "none"}[gelu]

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.dropout(self.attention(self.norm1(x))))
        hidden = functional.gelu(self.up(self.norm2(x)), approximate=self.approximate)
        return x + self.drop_path(self.dropout(self.down(self.dropout(hidden))))


class ViT(nn.Module):
    """Patch embedding, encoder blocks, norm, and head on the mean token or on a class token."""

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        patch: int = 4,
        width: int = 192,
        depth: int = 6,
        heads: int = 3,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        pooling: str = "mean",
        gelu: str = "tanh",
    ):
        super().__init__()
        height, image_width, channels = image_shape
        self.embed = nn.Conv2d(channels, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(width)) if pooling == "token" else None
        tokens = (height // patch) * (image_width // patch) + (pooling == "token")
        self.position = nn.Parameter(0.02 * torch.randn(tokens, width))
        self.dropout = nn.Dropout(dropout)
        rates = [stochastic_depth * (i + 1) / depth for i in range(depth)]
        hidden = round(width * mlp_ratio)
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads, hidden, dropout, rate, gelu) for rate in rates))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images).flatten(2).transpose(1, 2)
        if self.token is not None:
            x = torch.cat([self.token.expand(len(x), 1, -1), x], 1)
        x = self.norm(self.blocks(self.dropout(x + self.position)))
        return self.head(x.mean(1) if self.token is None else x[:, 0])


# --- residual networks --------------------------------------------------------------------------------------------


def _conv(n_in: int, n_out: int, size: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, size, stride, (size - 1) // 2, bias=False)


class ConvNorm(nn.Module):
    """A convolution followed by BatchNorm."""

    def __init__(self, n_in: int, n_out: int, size: int, stride: int, *, zero_scale: bool = False):
        super().__init__()
        self.conv, self.norm = _conv(n_in, n_out, size, stride), nn.BatchNorm2d(n_out)
        if zero_scale:
            nn.init.zeros_(self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class ResidualBlock(nn.Module):
    """A residual block, relu(skip(x) + units(x)): two 3×3 convolutions, or 1×1, 3×3 and 1×1 in a bottleneck."""

    def __init__(self, n_in: int, width: int, stride: int, *, bottleneck: bool, zero_init: bool):
        super().__init__()
        n_out = width * EXPANSION if bottleneck else width
        *first, last = (
            [(n_in, width, 1, 1), (width, width, 3, stride), (width, n_out, 1, 1)]
            if bottleneck
            else [(n_in, width, 3, stride), (width, n_out, 3, 1)]
        )
        self.units = nn.ModuleList([*(ConvNorm(*sizes) for sizes in first), ConvNorm(*last, zero_scale=zero_init)])
        changes = stride > 1 or n_in != n_out
        self.skip = ConvNorm(n_in, n_out, 1, stride) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        skip = self.skip(x)
        for unit in self.units[:-1]:
            x = functional.relu(unit(x))
        return functional.relu(skip + self.units[-1](x))


class ResNet(nn.Module):
    """A stem, stages of blocks (each after the first halves the image and doubles the width), and a head."""

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        blocks: Sequence[int] = (2, 2, 2),
        width: int = 16,
        bottleneck: bool = False,
        zero_init: bool = False,
    ):
        super().__init__()
        large = max(image_shape[:2]) > SMALL_SIDE
        self.stem = ConvNorm(image_shape[2], width, *((7, 2) if large else (3, 1)))
        self.pool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        residual, n_in = [], width
        for stage, i in _stages(blocks):
            inner = width * 2**stage
            residual.append(ResidualBlock(n_in, inner, _stride(stage, i), bottleneck=bottleneck, zero_init=zero_init))
            n_in = inner * EXPANSION if bottleneck else inner
        self.blocks = nn.Sequential(*residual)
        self.head = nn.Linear(n_in, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.pool(functional.relu(self.stem(images)))).mean((2, 3)))


class WideBlock(nn.Module):
    """A pre-activation block, skip + conv2(dropout(relu(norm2(conv1(a))))) with a = relu(norm1(x))."""

    def __init__(self, n_in: int, n_out: int, stride: int, dropout: float):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(n_in), _conv(n_in, n_out, 3, stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(n_out), _conv(n_out, n_out, 3, 1)
        self.dropout = nn.Dropout(dropout)
        self.skip = _conv(n_in, n_out, 1, stride) if stride > 1 or n_in != n_out else None

    def forward(self, x: Tensor) -> Tensor:
        active = functional.relu(self.norm1(x))
        skip = x if self.skip is None else self.skip(active)
        return skip + self.conv2(self.dropout(functional.relu(self.norm2(self.conv1(active)))))


class WideResNet(nn.Module):
    """A 3×3 stem, three stages of blocks, BatchNorm and ReLU, and a head."""

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        depth: int = 10,
        widen: int = 2,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.stem = _conv(image_shape[2], WIDE_STEM, 3, 1)
        residual, n_in = [], WIDE_STEM
        for stage, i in _stages([(depth - 4) // 6] * 3):
            n_out = WIDE_STEM * widen * 2**stage
            residual.append(WideBlock(n_in, n_out, _stride(stage, i), dropout))
            n_in = n_out
        self.blocks = nn.Sequential(*residual)
        self.norm = nn.BatchNorm2d(n_in)
        self.head = nn.Linear(n_in, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(functional.relu(self.norm(self.blocks(self.stem(images)))).mean((2, 3)))


def _stages(blocks: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the stage of each block, and its position there."""
    return [(stage, i) for stage, count in enumerate(blocks) for i in range(count)]


def _stride(stage: int, i: int) -> int:
    return 2 if stage > 0 and i == 0 else 1


BUILDERS: Mapping[str, type[nn.Module]] = {"mlp": MLP, "resnet": ResNet, "vit": ViT, "wide_resnet": WideResNet}
