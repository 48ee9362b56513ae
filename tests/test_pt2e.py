"""Export, the quantizer, and which noise `quiet` hides."""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from common import pt2e
from common.models import TinyConvNet, example_inputs
from common.pt2e import export_module, get_xnnpack_quantizer, quiet
from tests.programs import TwoLinear

# --- export_module


@pytest.fixture(scope="module")
def model() -> TinyConvNet:
    torch.manual_seed(0)
    return TinyConvNet().eval()


@pytest.mark.parametrize("traced_with", [1, 2, 4])
def test_dynamic_batch_takes_every_batch(model: TinyConvNet, traced_with: int) -> None:
    gm = export_module(model, example_inputs(traced_with))
    for batch in (1, 2, 3, 7):
        (x,) = example_inputs(batch)
        assert torch.allclose(gm(x), model(x), atol=1e-6)


def test_static_batch_is_that_of_the_example(model: TinyConvNet) -> None:
    gm = export_module(model, example_inputs(3), dynamic_batch=False)
    assert torch.allclose(gm(*example_inputs(3)), model(*example_inputs(3)), atol=1e-6)
    with pytest.raises(AssertionError, match=r"size\(\)\[0\] == 3"):
        gm(*example_inputs(1))


def test_torch_export_itself_takes_a_batch_of_one_for_a_constant(model: TinyConvNet) -> None:
    """The trap that export_module covers; if this fails, two rows are no longer needed."""
    batch = torch.export.Dim("batch", min=1)
    with pytest.raises(Exception, match="specialized"):
        torch.export.export(model, example_inputs(1), dynamic_shapes=({0: batch},))


def test_only_the_batch_is_dynamic(model: TinyConvNet) -> None:
    gm = export_module(model, example_inputs(1))
    with pytest.raises(AssertionError, match=r"size\(\)\[2\] == 16"):
        gm(torch.zeros(1, 3, 8, 16))


def test_all_inputs_share_the_batch() -> None:
    model = TwoLinear().eval()
    gm = export_module(model, (torch.ones(1, 6), torch.zeros(1, 6)))
    x, y = torch.randn(5, 6), torch.randn(5, 6)
    assert torch.allclose(gm(x, y), model(x, y), atol=1e-6)


def test_inputs_without_a_batch_are_left_alone() -> None:
    class Scaled(nn.Module):
        def forward(self, x, factor, times: int):
            return x * factor * times

    gm = export_module(Scaled().eval(), (torch.ones(1, 2), torch.tensor(2.0), 3))
    assert torch.equal(gm(torch.ones(4, 2), torch.tensor(0.5), 3), torch.full((4, 2), 1.5))


def test_export_leaves_the_model_as_it_was(model: TinyConvNet) -> None:
    before = copy.deepcopy(model.state_dict())
    (x,) = example_inputs(1)
    copied = x.clone()
    export_module(model, (x,))
    assert torch.equal(x, copied)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert not any(m.training for m in model.modules())


@pytest.mark.parametrize(
    ("example", "said"),
    [
        (torch.zeros(1, 3, 16, 16), r"expected a tuple, got Tensor\. Write \(x,\)"),
        ([torch.zeros(1, 3, 16, 16)], r"expected a tuple, got list\."),
        (None, r"expected a tuple, got NoneType\."),
    ],
)
def test_the_example_must_be_a_tuple(model: TinyConvNet, example, said: str) -> None:
    with pytest.raises(TypeError, match=f"example_inputs: {said}"):
        export_module(model, example)


def test_a_model_in_training_mode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"training mode \(the model itself, .*…\).*model.eval"):
        export_module(TinyConvNet(), example_inputs(1))


def test_a_part_in_training_mode_is_refused_by_name() -> None:
    dropout = nn.Dropout()
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(dropout)).eval()
    dropout.train()
    with pytest.raises(ValueError, match=r"training mode \(1\.0\): dropout"):
        export_module(model, (torch.zeros(1, 2),))


# --- get_xnnpack_quantizer


def test_quantizer_of_executorch() -> None:
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer

    quantizer, config = get_xnnpack_quantizer("executorch", is_per_channel=True)
    assert type(quantizer) is XNNPACKQuantizer
    assert quantizer.global_config is config
    assert type(get_xnnpack_quantizer()[0]) is XNNPACKQuantizer


def test_quantizer_of_torchao_is_another_class() -> None:
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer
    from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer as Copy

    quantizer, config = get_xnnpack_quantizer("torchao")
    assert type(quantizer) is Copy
    assert not isinstance(quantizer, XNNPACKQuantizer)
    assert quantizer.global_config is config


def test_config_per_channel_and_per_tensor() -> None:
    _, config = get_xnnpack_quantizer(is_per_channel=True)
    assert config.weight.qscheme == torch.per_channel_symmetric
    assert config.weight.ch_axis == 0
    assert config.weight.dtype == torch.int8
    activation = config.input_activation
    assert (activation.dtype, activation.quant_min, activation.quant_max) == (torch.int8, -128, 127)
    assert activation.qscheme == torch.per_tensor_affine
    _, config = get_xnnpack_quantizer(is_per_channel=False)
    assert config.weight.qscheme == torch.per_tensor_symmetric


def test_config_of_four_bit_weights() -> None:
    _, config = get_xnnpack_quantizer(weight_qmin=-8, weight_qmax=7)
    assert (config.weight.quant_min, config.weight.quant_max) == (-8, 7)


def test_config_of_dynamic_quantization() -> None:
    assert get_xnnpack_quantizer(is_dynamic=True)[1].input_activation.is_dynamic
    with pytest.raises(ValueError, match="dynamic quantization needs per-channel weights"):
        get_xnnpack_quantizer(is_dynamic=True, is_per_channel=False)


@pytest.mark.parametrize("source", ["xnnpack", "", "ExecuTorch", None, True])
def test_an_unknown_source_is_refused(source) -> None:
    with pytest.raises(ValueError, match=r'source: expected "executorch" or "torchao", got'):
        get_xnnpack_quantizer(source)


# --- quiet: what a fresh process shows is in test_fresh_kernel.py


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """Loggers and warnings as Python starts with them, `quiet` called twice, and what got through.

    pytest itself changes the list of warning filters around each test.
    """
    messages: list[str] = []

    def show(message: Warning | str, *_: object, **__: object) -> None:
        messages.append(str(message))

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(f"{record.name}: {record.getMessage()}")

    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    before = [(logger.filters[:], logger.propagate, logger.level) for logger in loggers]
    ear = Ear()
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.showwarning = show
        for logger in loggers:
            logger.filters.clear()
            logger.addHandler(ear)
            logger.propagate = False
            logger.setLevel(logging.DEBUG)
        quiet()
        quiet()
        yield messages
    for logger, (filters, propagate, level) in zip(loggers, before, strict=True):
        logger.removeHandler(ear)
        logger.filters[:] = filters
        logger.propagate = propagate
        logger.setLevel(level)


def test_quiet_hides_the_known_messages(heard: list[str]) -> None:
    logging.getLogger("torchao").warning("Failed to load /x/%s: no CUDA", "_C_mxfp8.abi3.so")
    logging.getLogger("torch.utils._pytree").warning(
        "<enum 'KernelPreference'> is an Enum subclass and is now natively supported"
    )
    warnings.warn("`isinstance(treespec, LeafSpec)` is deprecated, use", FutureWarning, 1)
    warnings.warn(
        "This API is experimental and subject to change without notice.", DeprecationWarning, 1
    )
    assert heard == []


def test_quiet_lets_everything_else_through(heard: list[str]) -> None:
    logging.getLogger("torchao").warning("Skipping import of cpp extensions")
    logging.getLogger("torchao").error("It failed to load the model")
    logging.getLogger("torch.utils._pytree").warning("Color is an Enum subclass")
    logging.getLogger("torch.utils._pytree").info("KernelPreference registered")
    warnings.warn("LeafSpec is going away", FutureWarning, 1)
    warnings.warn("`isinstance(treespec, LeafSpec)` is deprecated", UserWarning, 1)
    warnings.warn("This API is experimental", DeprecationWarning, 1)
    warnings.warn("results may differ", UserWarning, 1)
    assert heard == [
        "torchao: Skipping import of cpp extensions",
        "torchao: It failed to load the model",
        "torch.utils._pytree: Color is an Enum subclass",
        "torch.utils._pytree: KernelPreference registered",
        "LeafSpec is going away",
        "`isinstance(treespec, LeafSpec)` is deprecated",
        "This API is experimental",
        "results may differ",
    ]


def test_quiet_twice_adds_one_filter(heard: list[str]) -> None:
    for name in ("torchao", "torch.utils._pytree"):
        assert len(logging.getLogger(name).filters) == 1
    texts = [f[1].pattern for f in warnings.filters if f[1] is not None]
    assert len(texts) == len(set(texts)) == 2


def test_quiet_has_a_line_in_its_docstring_for_each_message() -> None:
    text = inspect.getdoc(quiet) or ""
    assert len(pt2e._LOG_MESSAGES) + len(pt2e._WARNINGS) == 4
    for word in ("Failed to load", "KernelPreference", "LeafSpec", "experimental"):
        assert word in text
