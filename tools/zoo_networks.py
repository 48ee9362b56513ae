"""Networks of the zoo that torchvision and timm do not have, small and in plain ``torch.nn``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F


def conv(before: int, after: int, stride: int = 1, kernel: int = 3) -> nn.Sequential:
    """Convolution, BatchNorm, ReLU."""
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Segmentation: two levels down and up, transposed convolutions, skip connections by cat."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        w = width
        self.pool = nn.MaxPool2d(2)
        self.down1 = nn.Sequential(conv(3, w), conv(w, w))
        self.down2 = nn.Sequential(conv(w, 2 * w), conv(2 * w, 2 * w))
        self.bottom = nn.Sequential(conv(2 * w, 4 * w), conv(4 * w, 4 * w))
        self.up2 = nn.ConvTranspose2d(4 * w, 2 * w, 2, stride=2)
        self.right2 = nn.Sequential(conv(4 * w, 2 * w), conv(2 * w, 2 * w))
        self.up1 = nn.ConvTranspose2d(2 * w, w, 2, stride=2)
        self.right1 = nn.Sequential(conv(2 * w, w), conv(w, w))
        self.head = nn.Conv2d(w, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return two scores for each pixel."""
        left1 = self.down1(x)
        left2 = self.down2(self.pool(left1))
        y = self.up2(self.bottom(self.pool(left2)))
        y = self.right2(torch.cat([y, left2], dim=1))
        y = self.up1(y)
        y = self.right1(torch.cat([y, left1], dim=1))
        scores: torch.Tensor = self.head(y)
        return scores


class BilinearSegmentation(nn.Module):
    """A stride-8 backbone and a head whose scores are enlarged to the size of the image."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        w = width
        self.backbone = nn.Sequential(conv(3, w, 2), conv(w, 2 * w, 2), conv(2 * w, 4 * w, 2))
        self.head = nn.Sequential(conv(4 * w, 2 * w), nn.Conv2d(2 * w, 5, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return five scores for each pixel."""
        y = self.head(self.backbone(x))
        return F.interpolate(y, scale_factor=8.0, mode="bilinear", align_corners=False)


class Siamese(nn.Module):
    """One encoder for two images; the result is the difference of the two codes."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        w = width
        self.encoder = nn.Sequential(conv(3, w, 2), conv(w, 2 * w, 2), conv(2 * w, 2 * w, 2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.bottleneck = nn.Linear(2 * w, 16)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """Return the code of one image."""
        code: torch.Tensor = self.bottleneck(self.pool(self.encoder(x)).flatten(1))
        return code

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return the difference of the codes."""
        return self.encode(a) - self.encode(b)


class Recurrent(nn.Module):
    """An LSTM or GRU over a series; the last step is classified."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU], width: int = 6, hidden: int = 32) -> None:
        super().__init__()
        self.cells = kind(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return five scores."""
        steps, _ = self.cells(x)
        scores: torch.Tensor = self.head(steps[:, -1])
        return scores


class BagOfWords(nn.Module):
    """The mean of word vectors, then two layers."""

    def __init__(self, words: int = 2000, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return four scores of a text."""
        scores: torch.Tensor = self.layers(self.embedding(ids).mean(dim=1))
        return scores


class EmbeddingBagText(nn.Module):
    """The same with ``nn.EmbeddingBag``, an op of its own."""

    def __init__(self, words: int = 2000, width: int = 64) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(words, width, mode="mean")
        self.head = nn.Linear(width, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return four scores of a text."""
        scores: torch.Tensor = self.head(self.bag(ids))
        return scores


class TextConv(nn.Module):
    """Convolutions of two widths over word vectors, the largest answer of each filter."""

    def __init__(self, words: int = 2000, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.filters = nn.ModuleList(nn.Conv1d(width, 32, n) for n in (3, 5))
        self.head = nn.Linear(64, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return four scores of a text."""
        x = self.embedding(ids).transpose(1, 2)
        found = [torch.relu(f(x)).amax(dim=2) for f in self.filters]
        scores: torch.Tensor = self.head(torch.cat(found, dim=1))
        return scores


class Attention(nn.Module):
    """Self-attention written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return the tokens mixed; ``mask`` is added to the scores."""
        batch, length, width = x.shape
        split = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(x).view(split).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        mixed: torch.Tensor = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return mixed


class Block(nn.Module):
    """A transformer layer: attention and two linear layers, LayerNorm before each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return the tokens of the next layer."""
        x = x + self.attention(self.norm1(x), mask)
        after: torch.Tensor = x + self.mlp(self.norm2(x))
        return after


class Encoder(nn.Module):
    """As BERT: words and positions, layers that see the whole text, the first token classified."""

    def __init__(self, words: int = 2000, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.randn(1, 32, width) * 0.1)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.pooler, self.head = nn.Linear(width, width), nn.Linear(width, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return four scores of a text of 32 tokens."""
        x = self.norm(self.words(ids) + self.places)
        for block in self.blocks:
            x = block(x)
        scores: torch.Tensor = self.head(torch.tanh(self.pooler(x[:, 0])))
        return scores


class Decoder(nn.Module):
    """As GPT: a token sees those before it; scores for the next token at every place."""

    mask: torch.Tensor

    def __init__(
        self, words: int = 500, width: int = 64, layers: int = 2, length: int = 32
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.randn(1, length, width) * 0.1)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        future = torch.full((length, length), -1e4).triu(1)
        self.register_buffer("mask", future)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return ``(1, 32, words)`` scores."""
        x = self.words(ids) + self.places
        for block in self.blocks:
            x = block(x, self.mask)
        scores: torch.Tensor = self.head(self.norm(x))
        return scores


class KeywordSpotting(nn.Module):
    """DS-CNN: a wide first convolution, then depthwise separable ones, over a spectrum."""

    def __init__(self, width: int = 32, layers: int = 4) -> None:
        super().__init__()
        w = width
        stem: list[nn.Module] = [
            nn.Conv2d(1, w, (10, 4), 2, (5, 1), bias=False), nn.BatchNorm2d(w), nn.ReLU(),
        ]  # fmt: skip
        for _ in range(layers):
            stem += [nn.Conv2d(w, w, 3, 1, 1, groups=w, bias=False), nn.BatchNorm2d(w), nn.ReLU()]
            stem += [nn.Conv2d(w, w, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU()]
        self.features = nn.Sequential(*stem)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(w, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return twelve scores."""
        scores: torch.Tensor = self.head(self.pool(self.features(x)).flatten(1))
        return scores


class WaveConv(nn.Module):
    """1-D convolutions over samples of sound, as in M5."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        w = width
        layers: list[nn.Module] = []
        for before, after, kernel, stride in [
            (1, w, 32, 8),
            (w, 2 * w, 3, 2),
            (2 * w, 2 * w, 3, 2),
        ]:
            layers += [nn.Conv1d(before, after, kernel, stride, bias=False)]
            layers += [nn.BatchNorm1d(after), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(2 * w, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return eight scores."""
        scores: torch.Tensor = self.head(self.features(x).mean(dim=2))
        return scores


class TemporalConv(nn.Module):
    """TCN: dilated causal convolutions with residuals; a forecast of the next step."""

    def __init__(self, width: int = 6, hidden: int = 24) -> None:
        super().__init__()
        self.first = nn.Conv1d(width, hidden, 1)
        self.layers = nn.ModuleList(nn.Conv1d(hidden, hidden, 3, dilation=2**n) for n in range(4))
        self.last = nn.Conv1d(hidden, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``(1, steps, width)``."""
        y = self.first(x.transpose(1, 2))
        for n, layer in enumerate(self.layers):
            y = y + torch.relu(layer(F.pad(y, (2 * 2**n, 0))))
        forecast: torch.Tensor = self.last(y).transpose(1, 2)
        return forecast


class AutoEncoder(nn.Module):
    """Convolutions down to a short code, transposed convolutions back to the image."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        w = width
        self.down = nn.Sequential(conv(3, w, 2), conv(w, 2 * w, 2), conv(2 * w, 2 * w, 2))
        self.bottleneck, self.back = nn.Linear(2 * w * 16, 24), nn.Linear(24, 2 * w * 16)
        self.up = nn.Sequential(
            nn.ConvTranspose2d(2 * w, 2 * w, 4, 2, 1), nn.BatchNorm2d(2 * w), nn.ReLU(),
            nn.ConvTranspose2d(2 * w, w, 4, 2, 1), nn.BatchNorm2d(w), nn.ReLU(),
            nn.ConvTranspose2d(w, 3, 4, 2, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return an image of 32×32 pixels."""
        y = self.down(x)
        back = torch.relu(self.back(self.bottleneck(y.flatten(1))))
        image: torch.Tensor = self.up(back.view(y.shape))
        return image


class SuperResolution(nn.Module):
    """ESPCN: three convolutions, then PixelShuffle to twice the size."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 5, padding=2), nn.ReLU(),
            nn.Conv2d(width, width // 2, 3, padding=1), nn.ReLU(),
            nn.Conv2d(width // 2, 3 * 4, 3, padding=1),
            nn.PixelShuffle(2),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the image at twice the size."""
        y: torch.Tensor = self.layers(x)
        return y


class Detector(nn.Module):
    """A head with two outputs, classes and boxes, for every cell of two scales."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        w = width
        self.stem = nn.Sequential(conv(3, w, 2), conv(w, 2 * w, 2), conv(2 * w, 4 * w, 2))
        self.deeper = conv(4 * w, 4 * w, 2)
        self.classes = nn.ModuleList(nn.Conv2d(4 * w, 4, 3, padding=1) for _ in range(2))
        self.boxes = nn.ModuleList(nn.Conv2d(4 * w, 4, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores and boxes, ``(1, cells, 4)`` each."""
        fine = self.stem(x)
        scales = (fine, self.deeper(fine))
        return self._cells(self.classes, scales), self._cells(self.boxes, scales)

    @staticmethod
    def _cells(heads: nn.ModuleList, scales: Sequence[torch.Tensor]) -> torch.Tensor:
        maps = [head(x) for head, x in zip(heads, scales, strict=True)]
        return torch.cat([m.permute(0, 2, 3, 1).reshape(1, -1, 4) for m in maps], dim=1)


class Proposals(Detector):
    """The detector with its last step inside: scores above a threshold, as many as there are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Return the scores above the mean of their class."""
        scores, _ = super().forward(x)
        return scores[scores > scores.mean(dim=1, keepdim=True)]


class Generator(nn.Module):
    """DCGAN: an image of 32×32 pixels from numbers."""

    def __init__(self, codes: int = 32, width: int = 16) -> None:
        super().__init__()
        w = width
        self.first = nn.Linear(codes, 4 * w * 16)
        self.width = 4 * w
        layers: list[nn.Module] = []
        for before, after in [(4 * w, 2 * w), (2 * w, w)]:
            layers += [nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False)]
            layers += [nn.BatchNorm2d(after), nn.ReLU()]
        self.up = nn.Sequential(*layers, nn.ConvTranspose2d(w, 3, 4, 2, 1), nn.Tanh())

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """Return the image."""
        image: torch.Tensor = self.up(self.first(z).view(-1, self.width, 4, 4))
        return image


class Clip(nn.Module):
    """3-D convolutions over a few frames."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv3d(3, width, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv3d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(2 * width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return five scores."""
        scores: torch.Tensor = self.head(self.layers(x).mean(dim=(2, 3, 4)))
        return scores


class PointNet(nn.Module):
    """Points one by one, then the largest of each feature: the order does not matter."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.each = nn.Sequential(
            nn.Conv1d(3, width, 1), nn.ReLU(), nn.Conv1d(width, 2 * width, 1), nn.ReLU()
        )
        self.head = nn.Linear(2 * width, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return six scores."""
        scores: torch.Tensor = self.head(self.each(x).max(dim=2).values)
        return scores


class Tabular(nn.Module):
    """Layers over a row of numbers, with SELU."""

    def __init__(self, width: int = 20) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, 64), nn.SELU(), nn.Linear(64, 64), nn.SELU(), nn.Linear(64, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return three scores."""
        scores: torch.Tensor = self.layers(x)
        return scores
