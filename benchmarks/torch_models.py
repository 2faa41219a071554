"""The models of benchmarks/models.py in PyTorch, for timing; each function returns a module and a batch."""

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

Model = tuple[nn.Module, tuple[Tensor, Tensor]]


def mlp(widths: tuple[int, ...] = (1024, 4096, 3072, 1024, 10), batch: int = 8) -> Model:
    """Returns an MLP with 20M parameters at batch size 8: moving the parameters takes most of a step."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.GELU()]
    return nn.Sequential(*layers[:-1]), _batch((batch, widths[0]))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, width)
        x = x + self.out(mixed)
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self, width: int, depth: int, heads: int, patch: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.position = nn.Parameter(torch.zeros((32 // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.blocks(tokens).mean(1))


def vit(width: int = 128, depth: int = 4, heads: int = 4, patch: int = 4, batch: int = 16) -> Model:
    """Returns a ViT with 0.8M parameters on 64 tokens."""
    torch.manual_seed(0)
    return ViT(width, depth, heads, patch), _batch((batch, 3, 32, 32))


def _unit(n_in: int, n_out: int, stride: int = 1, size: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(n_in, n_out, size, stride, size // 2, bias=False), nn.BatchNorm2d(n_out))


class Residual(nn.Module):
    def __init__(self, n_in: int, n_out: int, stride: int, skip: bool) -> None:
        super().__init__()
        self.first, self.second = _unit(n_in, n_out, stride), _unit(n_out, n_out)
        self.skip = _unit(n_in, n_out, stride, 1) if skip else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.skip(x) + self.second(functional.relu(self.first(x))))


def resnet(width: int = 16, blocks: int = 2, batch: int = 16) -> Model:
    """Returns a ResNet with three stages, batch normalisation and 0.2M parameters."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [_unit(3, width), nn.ReLU()]
    for stage in range(3):
        n_in, n_out = width * 2 ** max(stage - 1, 0), width * 2**stage
        layers.append(Residual(n_in, n_out, 2 if stage else 1, skip=True))
        layers += [Residual(n_out, n_out, 1, skip=False) for _ in range(blocks - 1)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10)]
    return nn.Sequential(*layers), _batch((batch, 3, 32, 32))


def _batch(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return torch.randn(shape), torch.randint(10, shape[:1])
