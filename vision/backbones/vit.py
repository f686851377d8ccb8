"""A plain Vision Transformer with timm's parameter names and inputs for prompts.

Dosovitskiy et al.: An Image Is Worth 16x16 Words, ICLR 2021, arXiv 2010.11929. Layer scale is
CaiT's (Touvron et al., ICCV 2021), as in DINOv2; register tokens are as in Darcet et al. (ICLR
2024). Parts for training only (dropout, stochastic depth) and the head are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Prefixes = Mapping[int, tuple[Tensor, Tensor]]
"""Additional keys and values of attention, each `(batch, length, width)`, by block (from 0)."""


@dataclass(frozen=True)
class Geometry:
    """Sizes of a Vision Transformer.

    Attributes:
        patch: height and width of a patch, in pixels.
        width: size of a token.
        depth: number of blocks.
        heads: attention heads of a block.
        hidden: hidden size of the perceptron of a block.
        grid: side of the grid of position embeddings, in patches.
        registers: register tokens in addition to the class token.
        class_position: whether class and register tokens have position embeddings.
        layer_scale: whether the outputs of attention and perceptron are scaled.
    """

    patch: int
    width: int
    depth: int
    heads: int
    hidden: int
    grid: int
    registers: int = 0
    class_position: bool = True
    layer_scale: bool = False

    @property
    def prefix(self) -> int:
        """Number of tokens before the patches' tokens."""
        return 1 + self.registers


class ViT(nn.Module):
    """Vision Transformer up to its final layer normalisation.

    Args:
        geometry: sizes.

    Shapes:
        images: `(batch, 3, height, width)`, normalised; the sides are multiples of the patch.
        prompts: `(batch, length, width)`, tokens added after the patch embedding, without
            positions.
        returns: `(batch, prefix + length + patches, width)`: the class token, registers, prompts,
            then patches row by row.
    """

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        g = self.geometry = geometry
        self.cls_token = nn.Parameter(torch.empty(1, 1, g.width))
        self.reg_token = nn.Parameter(torch.empty(1, g.registers, g.width)) if g.registers else None
        positions = g.grid**2 + (g.prefix if g.class_position else 0)
        self.pos_embed = nn.Parameter(torch.empty(1, positions, g.width))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, g.width, g.patch, g.patch)})
        self.blocks = nn.ModuleList(Block(g) for _ in range(g.depth))
        self.norm = nn.LayerNorm(g.width, eps=1e-6)
        for token in (self.cls_token, self.reg_token, self.pos_embed):
            if token is not None:
                nn.init.trunc_normal_(token, std=0.02)

    def embed(self, images: Tensor) -> Tensor:
        """Return class, register and patch tokens with their positions, before the first block."""
        patches = self.patch_embed["proj"](images)
        height, width = patches.shape[2:]
        tokens = patches.flatten(2).mT
        first = (self.cls_token,) if self.reg_token is None else (self.cls_token, self.reg_token)
        head = torch.cat(first, dim=1).expand(len(images), -1, -1)
        own, grid = self.positions(height, width)
        return torch.cat([head + own, tokens + grid], dim=1)

    def positions(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Return position embeddings of the first tokens and, resampled to a grid, of the patches.

        The resampling is bicubic and antialiased, as in timm.
        """
        g = self.geometry
        n = g.prefix if g.class_position else 0
        own, grid = self.pos_embed[:, :n], self.pos_embed[:, n:]
        if not n:
            own = grid.new_zeros(1, 1, 1)
        if (height, width) != (g.grid, g.grid):
            square = grid.reshape(1, g.grid, g.grid, g.width).permute(0, 3, 1, 2)
            new = F.interpolate(square, size=(height, width), mode="bicubic", antialias=True)
            grid = new.flatten(2).mT
        return own, grid

    def forward(
        self, images: Tensor, prompts: Tensor | None = None, prefixes: Prefixes | None = None
    ) -> Tensor:
        """Return the tokens after the last block and the final normalisation."""
        tokens = self.embed(images)
        if prompts is not None:
            n = self.geometry.prefix
            tokens = torch.cat([tokens[:, :n], prompts, tokens[:, n:]], dim=1)
        for i, block in enumerate(self.blocks):
            tokens = block(tokens, prefixes.get(i) if prefixes else None)
        return self.norm(tokens)


class Block(nn.Module):
    """Attention and a perceptron, each with a layer normalisation before it and a shortcut."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        g = geometry
        self.norm1, self.norm2 = (nn.LayerNorm(g.width, eps=1e-6) for _ in range(2))
        self.attn = Attention(g.width, g.heads)
        fc1, fc2 = nn.Linear(g.width, g.hidden), nn.Linear(g.hidden, g.width)
        self.mlp = nn.ModuleDict({"fc1": fc1, "fc2": fc2})
        self.ls1 = LayerScale(g.width) if g.layer_scale else nn.Identity()
        self.ls2 = LayerScale(g.width) if g.layer_scale else nn.Identity()

    def forward(self, x: Tensor, prefix: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Transform tokens `(batch, tokens, width)`."""
        x = x + self.ls1(self.attn(self.norm1(x), prefix))
        hidden = F.gelu(self.mlp["fc1"](self.norm2(x)))
        return x + self.ls2(self.mlp["fc2"](hidden))


class Attention(nn.Module):
    """Multi-head self-attention; a prefix adds keys and values but no queries."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, prefix: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Apply attention to tokens `(batch, tokens, width)`."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if prefix is not None:
            k, v = (torch.cat([p, t], dim=1) for p, t in zip(prefix, (k, v), strict=True))
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class LayerScale(nn.Module):
    """A learned factor for each feature."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Scale each feature."""
        return x * self.gamma


def geometry_of(weights: Mapping[str, Tensor], heads: int | None = None) -> Geometry:
    """Infer the sizes of a plain ViT from its weights under timm's names.

    Heads cannot be inferred; by default there is one per 64 features, as in every standard ViT.

    Raises:
        KeyError: if a weight of a ViT is missing; names the weight.
        ValueError: if the position embeddings do not fit a square grid, or heads do not
            divide the width.
    """
    width, _, patch, _ = weights["patch_embed.proj.weight"].shape
    registers = weights["reg_token"].shape[1] if "reg_token" in weights else 0
    positions = weights["pos_embed"].shape[1]
    bare = math.isqrt(positions) ** 2 == positions
    grid = math.isqrt(positions if bare else positions - 1 - registers)
    if not bare and grid**2 + 1 + registers != positions:
        raise ValueError(f"{positions} position embeddings form no square grid")
    heads = heads or max(1, width // 64)
    if width % heads:
        raise ValueError(f"{heads} attention heads do not divide a width of {width}")
    blocks = {name.split(".")[1] for name in weights if name.startswith("blocks.")}
    return Geometry(
        patch=patch,
        width=width,
        depth=len(blocks),
        heads=heads,
        hidden=weights["blocks.0.mlp.fc1.weight"].shape[0],
        grid=grid,
        registers=registers,
        class_position=not bare,
        layer_scale="blocks.0.ls1.gamma" in weights,
    )
