"""The models of the zoo: how each is made, what goes in, and what must come out.

Nothing is downloaded. Weights are seeded; models with BatchNorm are run on a few batches in
training mode, because with the initial statistics activations grow or vanish from layer to layer.
Where a library starts parameters at almost zero, as the class token of a transformer, they are
started anew: a signal that small is lost in int8, and then any program would pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from common.data import trained_tiny_net
from tools import zoo_inputs as data
from tools import zoo_networks as own

CALIBRATION = 8
"""Inputs that the static quantization sees."""
BATCHES, BATCH = 4, 8
"""Batches in training mode, and their size."""


@dataclass(frozen=True)
class Entry:
    """One model.

    Attributes:
        name: as the page shows it.
        package: what the model comes from: ``torchvision``, ``timm``, or ``own`` for
            tools/zoo_networks.py and common.
        make: makes the model; seeded by the caller.
        inputs: makes an input tuple of batch 1.
        dynamic: quantize activations at run time.
        refused: a pattern that the refusal of the int8 program must match; empty for a model
            that lowers and agrees.
        refused_fp32: the same for the fp32 program.
        note: what a reader must know to understand the row.
    """

    name: str
    package: str
    make: Callable[[], nn.Module]
    inputs: data.Make
    dynamic: bool = False
    refused: str = ""
    refused_fp32: str = ""
    note: str = ""

    def model(self) -> nn.Module:
        """Return the model in ``eval()`` mode; the same weights at each call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = self.make()
            _settle(model, self.batches(BATCHES * BATCH, seed=3))
        return model.eval()

    def refusals(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Return the patterns of the two programs, each behind its name."""
        return ("int8", self.refused), ("fp32", self.refused_fp32)

    def batches(self, count: int, seed: int) -> list[data.Inputs]:
        """Return input tuples."""
        generator = torch.Generator().manual_seed(seed)
        return [self.inputs(generator) for _ in range(count)]


def _settle(model: nn.Module, batches: list[data.Inputs]) -> None:
    """Set the statistics of every BatchNorm to the average over a few batches.

    Its weight and bias become 0.5. With 1 and 0 a deep untrained network passes on less and less
    of what makes two inputs differ, and each BatchNorm enlarges the rest together with all
    rounding: after the 52 convolutions of MobileNetV2, int8 keeps 5 dB, and 24 dB so.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if any(int(norm.num_batches_tracked or 0) for norm in norms):
        return  # trained
    model.eval()
    for norm in norms:
        if norm.affine:
            nn.init.constant_(norm.weight, 0.5)
            nn.init.constant_(norm.bias, 0.5)
        norm.train()
        norm.momentum = (
            None  # an average: a share of the initial variance, 1, would hide a small one
        )
    with torch.no_grad():
        for n in range(0, len(batches), BATCH):
            model(*map(torch.cat, zip(*batches[n : n + BATCH], strict=True)))


def torchvision(name: str, **options: Any) -> Callable[[], nn.Module]:
    """A function that makes one of torchvision's models."""

    def make() -> nn.Module:
        import torchvision.models

        model: nn.Module = getattr(torchvision.models, name)(**options)
        return model

    return make


def timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    """A function that makes one of timm's models."""

    def make() -> nn.Module:
        import timm as package

        model: nn.Module = package.create_model(name, pretrained=False, **options)
        return model

    return make


def shortened(make: Callable[[], nn.Module], blocks: int = 1) -> Callable[[], nn.Module]:
    """A function that makes a model and leaves the first blocks of each of its stages."""

    def made() -> nn.Module:
        model = make()
        stages: Any = model.layers if hasattr(model, "layers") else model.blocks
        for stage in stages:
            if isinstance(stage, nn.Sequential):
                del stage[blocks:]
        return model

    return made


def shufflenet() -> nn.Module:
    """Return ShuffleNetV2 x0.5 with two blocks a stage: one that halves, one that shuffles."""
    from torchvision.models import ShuffleNetV2

    model: nn.Module = ShuffleNetV2([2, 2, 2], [24, 48, 96, 192, 1024], num_classes=10)
    return model


def ghostnet() -> nn.Module:
    """Return GhostNet x0.5 with one block in each of four stages."""
    from timm.models.ghostnet import GhostNet

    # kernel, width inside, channels, squeeze-and-excitation, stride
    stages = [
        (3, 16, 16, 0, 1), (3, 48, 24, 0, 2), (5, 72, 40, 0.25, 2), (3, 240, 80, 0, 2),
    ]  # fmt: skip
    model: nn.Module = GhostNet([[[*stage]] for stage in stages], num_classes=10, width=0.5)
    return model


def mobilevit() -> nn.Module:
    """Return the first three stages of MobileViT-XXS, its transformer with one layer."""
    from timm.models import ByobNet
    from timm.models.byobnet import ByoBlockCfg, ByoModelCfg

    def bottle(channels: int, stride: int) -> Any:
        inside = {"bottle_in": True, "linear_out": True}
        return ByoBlockCfg("bottle", d=1, c=channels, s=stride, gs=1, br=2.0, block_kwargs=inside)

    def attention(channels: int, width: int) -> Any:
        inside = {"transformer_dim": width, "transformer_depth": 1, "patch_size": 2}
        return ByoBlockCfg("mobilevit", d=1, c=channels, s=1, block_kwargs=inside)

    blocks = (bottle(16, 1), bottle(24, 2), (bottle(48, 2), attention(48, 64)))
    config = ByoModelCfg(
        blocks=blocks, stem_type="3x3", stem_chs=16, stem_pool="", downsample="", act_layer="silu"
    )
    model: nn.Module = ByobNet(config, num_classes=10)
    return model


def regnet() -> nn.Module:
    """Return a small RegNet with grouped convolutions and squeeze-and-excitation."""
    from torchvision.models import RegNet
    from torchvision.models.regnet import BlockParams

    params = BlockParams.from_init_params(
        depth=6, w_0=24, w_a=24.0, w_m=2.5, group_width=8, se_ratio=0.25
    )
    model: nn.Module = RegNet(params, num_classes=10)
    return model


def efficientnet() -> nn.Module:
    """Return EfficientNet with half of B0's channels, one block a stage."""
    from torchvision.models import EfficientNet
    from torchvision.models.efficientnet import MBConvConfig

    # expansion, kernel, stride, channels of B0
    stages = [
        (1, 3, 1, 32, 16), (6, 3, 2, 16, 24), (6, 5, 2, 24, 40), (6, 3, 2, 40, 80),
        (6, 5, 1, 80, 112), (6, 5, 2, 112, 192), (6, 3, 1, 192, 320),
    ]  # fmt: skip
    settings = [MBConvConfig(*stage, 1, width_mult=0.5) for stage in stages]
    model: nn.Module = EfficientNet(settings, dropout=0.2, last_channel=320, num_classes=10)
    return model


def inception() -> nn.Module:
    """Return a stem and two of GoogLeNet's blocks of four branches."""
    from torchvision.models.googlenet import Inception

    return nn.Sequential(
        own.conv(3, 32, 2),
        own.conv(32, 64, 2),
        Inception(64, 32, 48, 64, 8, 16, 16),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Inception(128, 64, 64, 96, 16, 48, 32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(240, 10),
    )


def repvgg() -> nn.Module:
    """Return RepVGG's blocks as they are trained: three branches, summed."""
    from timm.models import ByobNet
    from timm.models.byobnet import ByoBlockCfg, ByoModelCfg

    blocks = tuple(ByoBlockCfg("rep", d=2, c=c, s=2, gs=0) for c in (24, 48, 96))
    config = ByoModelCfg(blocks=blocks, stem_type="rep", stem_chs=16, downsample="")
    model: nn.Module = ByobNet(config, num_classes=10)
    return model


def swin() -> nn.Module:
    """Return a small Swin transformer: windows of 4×4 patches, shifted in the second layer."""
    from torchvision.models import SwinTransformer

    model: nn.Module = SwinTransformer([4, 4], 24, [2], [2], [4, 4], num_classes=10)
    return model


def siamese() -> nn.Module:
    """Return the siamese network without its BatchNorms."""
    model = own.Siamese()
    for block in model.encoder:
        assert isinstance(block, nn.Sequential)
        block[1] = nn.Identity()
    return model


def vit(name: str, depth: int) -> Callable[[], nn.Module]:
    """A function that makes one of timm's vision transformers; tokens and layers start anew."""

    def make() -> nn.Module:
        model: Any = timm(name, img_size=64, depth=depth, num_classes=10)()
        for token in ("cls_token", "dist_token"):
            if hasattr(model, token):
                nn.init.normal_(getattr(model, token))
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
        whole: nn.Module = model
        return whole

    return make


def mixer() -> nn.Module:
    """Return a small MLP-Mixer."""
    from timm.models import MlpMixer

    model = MlpMixer(10, 64, patch_size=16, num_blocks=3, embed_dim=64)
    model.head.reset_parameters()  # timm starts it with zeros
    mixing: nn.Module = model
    return mixing


def lraspp() -> nn.Module:
    """Return the head LR-ASPP on a small backbone; one tensor is taken of its dict."""
    from torchvision.models.segmentation import LRASPP

    class Backbone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low = nn.Sequential(own.conv(3, 16, 2), own.conv(16, 24, 2))
            self.high = nn.Sequential(own.conv(24, 48, 2), own.conv(48, 64))

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            low = self.low(x)
            return {"low": low, "high": self.high(low)}

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = LRASPP(Backbone(), 24, 64, num_classes=5, inter_channels=32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.model(x)["out"]
            return scores

    return Scores()


_T, _M, _O = "torchvision", "timm", "own"
_SMALL: dict[str, Any] = {"num_classes": 10}
_PATTERNS = (
    "A BatchNorm without a convolution in front of it: torchao looks for what it could be part "
    "of, and exports some seventy small patterns for that. These are the seconds of the export."
)
_RECURRENT = (
    "The quantizer sees one op, `lstm` or `gru`, and leaves it in fp32: only the head is int8. "
    "Lowering writes the op out, step by step, so the program grows with the length of the series."
)

ENTRIES: tuple[Entry, ...] = (
    # convolutional networks
    Entry("TinyConvNet, trained", _O, trained_tiny_net, data.digit),
    Entry("ResNet18", _T, torchvision("resnet18", **_SMALL), data.image(64)),
    Entry("MobileNetV2", _T, torchvision("mobilenet_v2", **_SMALL), data.image(64)),
    Entry(
        "MobileNetV3-small, 6 blocks",
        _M,
        shortened(timm("mobilenetv3_small_100", **_SMALL)),
        data.image(64),
    ),
    Entry("ShuffleNetV2 x0.5, 6 blocks", _T, shufflenet, data.image(64)),
    Entry("SqueezeNet 1.1", _T, torchvision("squeezenet1_1", **_SMALL), data.image(64)),
    Entry(
        "MNASNet 0.5, 7 blocks",
        _T,
        shortened(torchvision("mnasnet0_5", **_SMALL)),
        data.image(64),
    ),
    Entry("RegNet, 6 blocks", _T, regnet, data.image(64)),
    Entry("EfficientNet, 7 blocks", _T, efficientnet, data.image(64)),
    Entry(
        "DenseNet, 2 blocks of 3",
        _T,
        torchvision(
            "DenseNet", growth_rate=12, block_config=(3, 3), num_init_features=24, **_SMALL
        ),
        data.image(64),
        note=_PATTERNS,
    ),
    Entry("GoogLeNet, 2 blocks", _T, inception, data.image(64)),
    Entry(
        "ConvNeXt-atto, 5 blocks",
        _M,
        timm("convnext_atto", depths=(1, 1, 2, 1), **_SMALL),
        data.image(64),
    ),
    Entry("GhostNet x0.5, 4 blocks", _M, ghostnet, data.image(64)),
    Entry("RepVGG, 7 blocks", _M, repvgg, data.image(64), note=_PATTERNS),
    Entry(
        "MobileNetV4-small x0.5, 9 blocks",
        _M,
        shortened(timm("mobilenetv4_conv_small_050", **_SMALL), 2),
        data.image(64),
    ),
    Entry(
        "LCNet x0.5, 6 blocks",
        _M,
        shortened(timm("lcnet_050", **_SMALL)),
        data.image(64),
    ),
    # attention on images
    Entry("ViT-tiny, 3 layers", _M, vit("vit_tiny_patch16_224", 3), data.image(64)),
    Entry(
        "DeiT-tiny, distilled, 2 layers",
        _M,
        vit("deit_tiny_distilled_patch16_224", 2),
        data.image(64),
    ),
    Entry("Swin, 2 layers", _T, swin, data.image(64)),
    Entry("MobileViT-XXS, 4 blocks", _M, mobilevit, data.image(64)),
    Entry(
        "EdgeNeXt-XXS, 4 blocks",
        _M,
        timm(
            "edgenext_xx_small",
            depths=(1, 1, 1, 1),
            global_block_counts=(0, 1, 0, 1),
            **_SMALL,
        ),
        data.image(64),
    ),
    Entry("MLP-Mixer", _M, mixer, data.image(64)),
    # other tasks on images
    Entry("LR-ASPP", _T, lraspp, data.image(64)),
    Entry("bilinear segmentation", _O, own.BilinearSegmentation, data.image(64)),
    Entry("U-Net", _O, own.UNet, data.image(48)),
    Entry("autoencoder", _O, own.AutoEncoder, data.image(32)),
    Entry("DCGAN generator", _O, own.Generator, data.features(32)),
    Entry("super-resolution", _O, own.SuperResolution, data.image(32)),
    Entry("detector, two outputs", _O, own.Detector, data.image(64)),
    Entry(
        "detector with a threshold",
        _O,
        own.Proposals,
        data.image(96),
        refused=r"the \.pte gives \(\d+,\)",
        note="The number of results depends on the scores, and rounding moves a few across the "
        "threshold: program and graph return different numbers of them. Return all scores, and "
        "choose outside the program.",
    ),
    Entry("siamese", _O, siamese, data.image_pair(48)),
    Entry(
        "siamese with BatchNorm",
        _O,
        own.Siamese,
        data.image_pair(48),
        refused="torchao folds a BatchNorm into the layer in front of it",
        note="torchao folds a BatchNorm at each use of its layer: twice here. Fold it once before, "
        "with `torch.nn.utils.fusion.fuse_conv_bn_eval`.",
    ),
    Entry(
        "video, Conv3d",
        _O,
        own.Clip,
        data.clip(4, 24),
        refused=r"^LoweringError: conv3d \(",
        refused_fp32=r"^LoweringError: conv3d \(",
        note="Neither XNNPACK nor the portable kernels have a 3-D convolution.",
    ),
    # sound, series, points, tables
    Entry("keyword spotting, DS-CNN", _O, own.KeywordSpotting, data.spectrum(49, 10)),
    Entry("sound, Conv1d", _O, own.WaveConv, data.sound(2048)),
    Entry("TCN", _O, own.TemporalConv, data.series(32, 6)),
    Entry(
        "LSTM",
        _O,
        lambda: own.Recurrent(nn.LSTM),
        data.series(12, 6),
        dynamic=True,
        note=_RECURRENT,
    ),
    Entry(
        "GRU",
        _O,
        lambda: own.Recurrent(nn.GRU),
        data.series(12, 6),
        dynamic=True,
        note=_RECURRENT,
    ),
    Entry("PointNet", _O, own.PointNet, data.points(64)),
    Entry("tabular, SELU", _O, own.Tabular, data.features(20)),
    # text
    Entry("bag of words", _O, own.BagOfWords, data.ids(24, 2000), dynamic=True),
    Entry(
        "EmbeddingBag",
        _O,
        own.EmbeddingBagText,
        data.ids(24, 2000),
        dynamic=True,
        refused=r"has no kernel for aten::_embedding_bag\.out",
        refused_fp32=r"has no kernel for aten::_embedding_bag\.out",
        note="The runtime has no kernel. `nn.Embedding` and a mean compute the same: bag of words.",
    ),
    Entry("text, Conv1d", _O, own.TextConv, data.ids(24, 2000)),
    Entry("encoder, as BERT", _O, own.Encoder, data.ids(32, 2000), dynamic=True),
    Entry("decoder, as GPT", _O, own.Decoder, data.ids(32, 500), dynamic=True),
)
BY_NAME = {entry.name: entry for entry in ENTRIES}
