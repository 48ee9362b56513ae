"""`PteRunner` against eager PyTorch, and beside ExecuTorch's own API.

Where the raw API is silently wrong, a test shows that too: when one of these fails, ExecuTorch
has mended it, and the runner can do less.
"""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from common import _runner, _runtime
from common.env import capture_stderr
from common.executorch_utils import (
    PteError,
    PteExecutionError,
    PteFormatError,
    PteLoadError,
    PteRunner,
    ScalarSpec,
    TensorSpec,
)
from common.metrics import lsb_distance, sqnr_db
from tests.programs import Program, image, last_scale, portable, raw, siblings


@pytest.fixture(scope="module")
def runner(conv: Program) -> PteRunner:
    return PteRunner(conv.pte)


@pytest.fixture(scope="module")
def many(many_values: Program) -> PteRunner:
    return PteRunner(many_values.pte)


class Tagged(torch.Tensor):
    """A subclass, as libraries make them."""


# --- inputs that have to work, whatever their layout


def channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.to(memory_format=torch.channels_last)


def from_a_picture(x: torch.Tensor) -> torch.Tensor:
    """As a picture comes: (H, W, C) in NumPy, permuted."""
    array = np.ascontiguousarray(x[0].permute(1, 2, 0).numpy())
    return torch.from_numpy(array).permute(2, 0, 1)[None]


def strided_slice(x: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros(1, 3, 16, 24)
    wide[:, :, ::2, ::3] = x
    return wide[:, :, ::2, ::3]


def imaginary_part(x: torch.Tensor) -> torch.Tensor:
    """A strided view with a lazy negation."""
    return torch.complex(torch.zeros_like(x), -x).conj().imag


def read_only(x: torch.Tensor) -> torch.Tensor:
    array = x.numpy().copy()
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


LAYOUTS = {
    "contiguous": lambda x: x,
    "channels_last": channels_last,
    "picture": from_a_picture,
    "strided slice": strided_slice,
    "with an offset": lambda x: torch.cat([torch.zeros(5), x.flatten()])[5:].view(x.shape),
    "other order": lambda x: x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
    "channel slice": lambda x: torch.cat([x, x + 1], 1)[:, :3],
    "odd stride of a dimension of size 1": lambda x: torch.cat([x, x + 1])[::2],
    "lazy negation": lambda x: torch._neg_view(-x),
    "lazy negation, channels_last": lambda x: torch._neg_view(channels_last(-x)),
    "imaginary part of a conjugate": imaginary_part,
    "requires grad": lambda x: x.clone().requires_grad_(),
    "result of a computation with a gradient": lambda x: x.clone().requires_grad_() * 1,
    "parameter": nn.Parameter,
    "subclass": lambda x: x.as_subclass(Tagged),
    "channels_last subclass": lambda x: channels_last(x).as_subclass(Tagged),
    "read-only memory": read_only,
    "copy on write": torch._lazy_clone,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("exported_with", ["conv", "conv_channels_last", "conv_dynamic"])
def test_every_layout_gives_the_result_of_eager(
    layout: str, exported_with: str, request: pytest.FixtureRequest
) -> None:
    program = request.getfixturevalue(exported_with)
    plain = image(1)
    x = LAYOUTS[layout](plain)
    assert torch.equal(x.detach().as_subclass(torch.Tensor), plain)
    y = PteRunner(program.pte)(x)
    with torch.no_grad():
        assert torch.allclose(y, program.model(plain), atol=1e-5)
    assert type(y) is torch.Tensor
    assert not y.requires_grad


def test_expanded_input(conv: Program, runner: PteRunner) -> None:
    x = torch.tensor([0.5, -1.0, 2.0]).view(1, 3, 1, 1).expand(1, 3, 8, 8)
    assert torch.allclose(runner(x), conv.model(x), atol=1e-5)


def test_conjugate_view_of_a_complex_input() -> None:
    class Copy(nn.Module):
        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return z.clone()

    pte = portable(Copy().eval(), (torch.zeros(2, dtype=torch.complex64),))
    z = torch.tensor([1 + 2j, 3 - 4j]).conj()
    assert PteRunner(pte)(z).tolist() == [1 - 2j, 3 + 4j]
    assert raw(pte, z)[0].tolist() == [1 + 2j, 3 - 4j], "mended in ExecuTorch"


def test_the_callers_input_is_not_changed(runner: PteRunner) -> None:
    x = channels_last(image(2))
    copied, strides = x.clone(), x.stride()
    runner(x)
    assert torch.equal(x, copied)
    assert x.stride() == strides


def test_under_inference_mode_and_no_grad(conv: Program, runner: PteRunner) -> None:
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            x = image(3) + 0
            for given in (x, channels_last(x), image(3)):
                assert torch.allclose(runner(given), conv.model(given), atol=1e-5)


@pytest.mark.parametrize(
    ("exported_with", "layout"),
    [("conv", "channels_last"), ("conv", "picture"), ("conv_channels_last", "contiguous"),
     ("conv", "lazy negation")],
)  # fmt: skip
def test_raw_api_is_silently_wrong(
    exported_with: str, layout: str, request: pytest.FixtureRequest
) -> None:
    program = request.getfixturevalue(exported_with)
    x = LAYOUTS[layout](image(1))
    (y,) = raw(program.pte, x)
    assert (y - program.model(image(1))).abs().max() > 0.1, "mended in ExecuTorch"


@pytest.mark.parametrize("layout", ["strided slice", "parameter", "subclass", "other order"])
def test_raw_api_refuses(layout: str, conv: Program) -> None:
    with pytest.raises(RuntimeError):
        raw(conv.pte, LAYOUTS[layout](image(1)))


# --- inputs that have to be refused

X = image()

WRONG_INPUTS: dict[str, tuple[tuple, type[Exception], str]] = {
    "none": ((), ValueError, r"expected 1 input: float32 \(1, 3, 8, 8\), got 0$"),
    "two": ((X, X), ValueError, r"expected 1 input: float32 \(1, 3, 8, 8\), got 2$"),
    "numpy": (
        (X.numpy(),), TypeError,
        r"input 0: expected a torch\.Tensor, float32 \(1, 3, 8, 8\); got numpy\.ndarray\. "
        r"Convert it: torch\.from_numpy\(array\)$",
    ),
    "None": ((None,), TypeError, r"input 0: expected a torch\.Tensor, .*; got NoneType$"),
    "number": ((1.0,), TypeError, r"input 0: expected a torch\.Tensor, .*; got float$"),
    "list": (([X],), TypeError, r"input 0: expected a torch\.Tensor, .*; got list$"),
    "dict": (({"x": X},), TypeError, r"input 0: expected a torch\.Tensor, .*; got dict$"),
    "float64": (
        (X.double(),), TypeError,
        r"input 0: expected dtype float32, got float64\. Convert it: x\.to\(torch\.float32\)$",
    ),
    "half": ((X.half(),), TypeError, "input 0: expected dtype float32, got float16"),
    "bfloat16": ((X.bfloat16(),), TypeError, "input 0: expected dtype float32, got bfloat16"),
    "int64": ((X.long(),), TypeError, "input 0: expected dtype float32, got int64"),
    "bool": ((X > 0,), TypeError, "input 0: expected dtype float32, got bool"),
    "complex": ((X + 0j,), TypeError, "input 0: expected dtype float32, got complex64"),
    "rank 3": (
        (X[0],), ValueError,
        r"input 0: expected shape \(1, 3, 8, 8\), got \(3, 8, 8\): 3 dimensions instead of 4$",
    ),
    "rank 5": ((X[None],), ValueError, "5 dimensions instead of 4$"),
    "rank 0": ((X.sum(),), ValueError, r"got \(\): 0 dimensions instead of 4$"),
    "batch 4": (
        (X.repeat(4, 1, 1, 1),), ValueError,
        r"input 0: expected shape \(1, 3, 8, 8\), got \(4, 3, 8, 8\): dimension 0 is 4, not 1$",
    ),
    "batch 0": ((X[:0],), ValueError, r"got \(0, 3, 8, 8\): dimension 0 is 0, not 1$"),
    "height": ((X[:, :, :7],), ValueError, r"got \(1, 3, 7, 8\): dimension 2 is 7, not 8$"),
    "same number of elements": (
        (X.reshape(1, 3, 16, 4),), ValueError, r"got \(1, 3, 16, 4\): dimension 2 is 16, not 8$",
    ),
    "HWC": ((X.permute(0, 2, 3, 1),), ValueError, "dimension 1 is 8, not 3$"),
    "meta": (
        (X.to("meta"),), TypeError,
        "input 0: expected a dense tensor on the CPU, got a strided one on meta$",
    ),
    "sparse": ((X.to_sparse(),), TypeError, "dense tensor on the CPU, got a sparse_coo one on cpu"),
    "mkldnn": ((X.to_mkldnn(),), TypeError, "got a _mkldnn one on cpu"),
}  # fmt: skip


@pytest.mark.parametrize("exported_with", ["conv", "conv_channels_last"])
@pytest.mark.parametrize("kind", WRONG_INPUTS)
def test_wrong_input_is_a_sentence_and_the_next_call_is_right(
    kind: str,
    exported_with: str,
    request: pytest.FixtureRequest,
    capfd: pytest.CaptureFixture[str],
) -> None:
    program = request.getfixturevalue(exported_with)
    runner = PteRunner(program.pte)
    inputs, error, said = WRONG_INPUTS[kind]
    if exported_with == "conv_channels_last":
        said = said.replace(r"float32 \(1, 3, 8, 8\)", r"float32 \(1, 3, 8, 8\) dim order .*")
    with pytest.raises(error, match=said):
        runner(*inputs)
    assert torch.allclose(runner(X), program.model(X), atol=1e-5)
    assert capfd.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_rarer_layouts_are_refused(runner: PteRunner) -> None:
    nested = torch.nested.nested_tensor([X[0]])
    jagged = torch.nested.nested_tensor([X[0]], layout=torch.jagged)
    for x, layout in (
        (X[0, 0].to_sparse_csr(), "sparse_csr"),
        (nested, "nested"),
        (jagged, "nested"),
    ):
        with pytest.raises(TypeError, match=f"tensor on the CPU, got a {layout} one on cpu"):
            runner(x)


def freed(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("exported_with", ["conv", "conv_channels_last", "conv_dynamic"])
def test_what_has_no_memory_is_refused(exported_with: str, request: pytest.FixtureRequest) -> None:
    """ExecuTorch reads address 0: each of these ends the process otherwise."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    program = request.getfixturevalue(exported_with)
    runner = PteRunner(program.pte)
    with FakeTensorMode():
        fake = torch.zeros(1, 3, 8, 8)
    attempts: dict[str, Callable[[], object]] = {
        "vmap": lambda: torch.vmap(runner)(X[None]),
        "grad": lambda: torch.func.grad(lambda x: runner(x).sum())(X),
        "functionalize": lambda: torch.func.functionalize(runner)(X),
        "fake": lambda: runner(fake),
        "freed": lambda: runner(freed(X)),
        "freed channels_last": lambda: runner(freed(channels_last(X))),
        "zero tensor": lambda: runner(torch._efficientzerotensor((1, 3, 8, 8))),
    }
    for attempt in attempts.values():
        with pytest.raises(TypeError, match="input 0: this tensor has no memory to read"):
            attempt()
    assert torch.allclose(runner(X), program.model(X), atol=1e-5)


def test_a_program_without_inputs() -> None:
    class Constant(nn.Module):
        def forward(self) -> torch.Tensor:
            return torch.arange(3) * 2

    runner = PteRunner(portable(Constant().eval()))
    assert runner.inputs == ()
    assert runner().tolist() == [0, 2, 4]
    with pytest.raises(ValueError, match=r"expected 0 inputs, got 1$"):
        runner(X)


# --- several inputs and outputs of several kinds


def test_outputs_have_the_structure_of_the_model(many: PteRunner, many_values: Program) -> None:
    wanted, structure = pytree.tree_flatten(many_values.model(*many_values.example))
    result, result_structure = pytree.tree_flatten(many(*many_values.example))
    assert result_structure == structure
    assert len(result) == len(many.outputs) == 4
    in_file = raw(many_values.pte, *many_values.example)
    for actual, expected, flat, spec in zip(result, wanted, in_file, many.outputs, strict=True):
        assert isinstance(spec, TensorSpec)
        assert torch.allclose(actual, expected)
        assert torch.equal(actual, flat)
        assert actual.dtype == expected.dtype == spec.dtype
        assert tuple(actual.shape) == tuple(expected.shape) == spec.shape


@pytest.mark.parametrize(
    ("packed", "kind"),
    [
        (lambda x: (x + 1, x * 2), tuple),
        (lambda x: {"one": x + 1}, dict),
    ],
)
def test_a_tuple_and_a_container_of_one_output(packed, kind: type) -> None:
    class Packed(nn.Module):
        def forward(self, x: torch.Tensor) -> object:
            return packed(x)

    x = torch.randn(2, 3)
    result = PteRunner(portable(Packed().eval(), (torch.zeros(2, 3),)))(x)
    assert type(result) is kind
    for actual, expected in zip(
        pytree.tree_leaves(result), pytree.tree_leaves(packed(x)), strict=True
    ):
        assert torch.equal(actual, expected)


def test_integer_and_bool_inputs_of_other_values(many: PteRunner, many_values: Program) -> None:
    x, ids = torch.randn(4, 3).T, torch.tensor([0, 9, 2, 9])[::2]
    mask = torch.tensor([[True, False], [False, False]])[:, 0]
    expected = pytree.tree_leaves(many_values.model(x, ids, mask, 3, 0.5))
    actual = pytree.tree_leaves(many(x, ids, mask, 3, 0.5))
    for a, b in zip(actual, expected, strict=True):
        assert torch.allclose(a, b)


@pytest.mark.parametrize(
    ("position", "value", "error", "said"),
    [
        (1, torch.tensor([2, 0], dtype=torch.int32), TypeError,
         r"input 1: expected dtype int64, got int32"),
        (2, torch.tensor([1, 0]), TypeError, "input 2: expected dtype bool, got int64"),
        (3, 4, ValueError, "input 3: the program was exported for int 3, got 4"),
        (3, 3.0, TypeError, "input 3: expected int 3, got float"),
        (3, True, TypeError, "input 3: expected int 3, got bool"),
        (3, torch.tensor(3), TypeError, "input 3: expected int 3, got Tensor"),
        (4, 1, TypeError, r"input 4: expected double 0\.5, got int"),
        (4, None, TypeError, r"input 4: expected double 0\.5, got NoneType"),
    ],
)  # fmt: skip
def test_the_wrong_one_of_several_inputs_is_named(
    many: PteRunner, many_values: Program, position: int, value, error, said: str
) -> None:
    inputs = list(many_values.example)
    inputs[position] = value
    with pytest.raises(error, match=said):
        many(*inputs)
    assert torch.allclose(many(*many_values.example)[0], many_values.model(*many_values.example)[0])


def test_count_of_several_inputs(many: PteRunner, many_values: Program) -> None:
    said = (r"expected 5 inputs: float32 \(3, 4\); int64 \(2,\); bool \(2,\); int 3; double 0\.5, "
            "got 1$")  # fmt: skip
    with pytest.raises(ValueError, match=said):
        many(many_values.example[0])


def test_a_kernel_that_refuses_a_value_is_an_error_in_words(
    many: PteRunner, many_values: Program, capfd: pytest.CaptureFixture[str]
) -> None:
    x, _, mask, times, plus = many_values.example
    with pytest.raises(PteExecutionError) as error:
        many(x, torch.tensor([0, 99]), mask, times, plus)
    said = str(error.value)
    assert said.startswith("the program failed while it ran: an argument is invalid (0x12).")
    assert "99 out of range" in said
    assert error.value.__cause__ is None
    assert torch.allclose(many(*many_values.example)[0], many_values.model(*many_values.example)[0])
    assert capfd.readouterr() == ("", "")


# --- dynamic shapes


def test_dynamic_batch_of_every_size(conv_dynamic: Program) -> None:
    runner = PteRunner(conv_dynamic.pte)
    for batch in (3, 8, 1, 2, 7, 4, 6, 5, 8, 1):
        x = image(batch, batch=batch)
        for given in (x, channels_last(x)):
            y = runner(given)
            assert y.shape == (batch, 4, 8, 8)
            assert torch.allclose(y, conv_dynamic.model(x), atol=1e-5)


def test_a_batch_of_none_is_refused_where_a_delegate_would_get_it(conv_dynamic: Program) -> None:
    """XNNPACK returns a tensor with sizes that nobody set, or ends the process."""
    runner = PteRunner(conv_dynamic.pte)
    for x in (image(batch=2)[:0], channels_last(image(batch=2))[:0]):
        with pytest.raises(ValueError, match=r"got \(0, 3, 8, 8\): dimension 0 is 0, at least 1$"):
            runner(x)
    runner._bounds = None
    runner.inputs = (replace(runner.inputs[0], minimum=None),)  # type: ignore[type-var]
    with pytest.raises(ValueError, match=r"input 0: shape \(0, 3, 8, 8\) holds no element"):
        runner(image(batch=2)[:0])
    assert torch.allclose(runner(X), conv_dynamic.model(X), atol=1e-5)


def test_a_batch_of_none_without_a_delegate() -> None:
    """C++ aborts on the strides of an empty channels_last tensor."""
    batch = torch.export.Dim("batch", max=4)
    exported = torch.export.export(
        nn.ReLU().eval(), (image(batch=2),), dynamic_shapes=({0: batch},)
    )
    runner = PteRunner(portable(exported))
    for x in (image(batch=2)[:0], channels_last(image(batch=2))[:0], image(batch=2)):
        assert torch.equal(runner(x), x.relu())


@pytest.mark.parametrize("batch", [9, 16, 1000])
def test_a_batch_above_the_maximum_is_refused(conv_dynamic: Program, batch: int) -> None:
    runner = PteRunner(conv_dynamic.pte)
    said = rf"expected shape \(1…8, 3, 8, 8\), got \({batch}, 3, .* is {batch}, at most 8$"
    with pytest.raises(ValueError, match=said):
        runner(torch.zeros(batch, 3, 8, 8))
    assert torch.allclose(runner(X), conv_dynamic.model(X), atol=1e-5)


def test_each_dimension_of_a_dynamic_input_is_checked(conv_dynamic: Program) -> None:
    """The raw API compares the number of elements alone, and computes for a shape not declared."""
    runner = PteRunner(conv_dynamic.pte)
    wide = torch.zeros(1, 3, 4, 100)
    assert raw(conv_dynamic.pte, wide)[0].shape == (1, 4, 4, 100), "mended in ExecuTorch"
    with pytest.raises(ValueError, match=r"dimension 2 is 4, not 8$"):
        runner(wide)
    with pytest.raises(ValueError, match=r"dimension 3 is 100, not 8$"):
        runner(torch.zeros(1, 3, 8, 100))
    with pytest.raises(ValueError, match="3 dimensions instead of 4"):
        runner(X[0])


def test_static_dimensions_of_a_dynamic_input(conv_dynamic: Program) -> None:
    """The raw API takes smaller ones."""
    runner = PteRunner(conv_dynamic.pte)
    small = image(batch=2, size=5)
    assert raw(conv_dynamic.pte, small)[0].shape == (2, 4, 5, 5), "mended in ExecuTorch"
    with pytest.raises(ValueError, match=r"dimension 2 is 5, not 8$"):
        runner(small)
    with pytest.raises(ValueError, match=r"dimension 1 is 2, not 3$"):
        runner(X[:, :2])
    assert torch.allclose(runner(X), conv_dynamic.model(X), atol=1e-5)


def test_outputs_whose_size_depends_on_values() -> None:
    class NonZero(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.nonzero()

    runner = PteRunner(portable(NonZero().eval(), (torch.ones(4),)))
    for x in (torch.tensor([0.0, 1, 0, 2]), torch.zeros(4), torch.ones(4)):
        assert torch.equal(runner(x), x.nonzero())


NESTED: dict[str, Any] = {
    "tensor": lambda y: y,
    "tuple": lambda y: (y, y + 1),
    "list": lambda y: [y],
    "tuple in tuple": lambda y: ((y,),),
    "state of one": lambda y: (y, (y + 1,)),
    "dict of one": lambda y: (y, {"a": y + 1}),
    "empty list": lambda y: ((y, y + 1), []),
    "none": lambda y: {"a": None, "b": (y, None)},
}


@pytest.mark.parametrize("kind", NESTED)
def test_every_structure_comes_back(kind: str) -> None:
    class Returns(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return NESTED[kind](x * 2)

    x = torch.arange(3.0)
    found = PteRunner(portable(Returns(), (x,)))(x)
    (leaves, structure), (wanted, expected) = map(pytree.tree_flatten, (found, Returns()(x)))
    assert structure == expected
    assert all(a is b or torch.equal(a, b) for a, b in zip(leaves, wanted, strict=True))


def test_a_tuple_of_one_comes_back_as_its_tensor() -> None:
    class Returns(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return (x * 2,)

    x = torch.arange(3.0)
    assert torch.equal(PteRunner(portable(Returns(), (x,)))(x), x * 2)


# --- inputs by name, nested, and such that must agree


@pytest.fixture(scope="module")
def family(siblings_fp32: Program) -> PteRunner:
    return PteRunner(siblings_fp32.pte)


def alike(actual: object, expected: object) -> bool:
    found, structure = pytree.tree_flatten(actual)
    wanted, same = pytree.tree_flatten(expected)
    return structure == same and all(
        torch.allclose(a, b, atol=1e-5) if isinstance(b, torch.Tensor) else a is b or a == b
        for a, b in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize(("batch", "length"), [(4, 8), (1, 2), (3, 5), (2, 2)])
def test_named_nested_and_dynamic_inputs(
    family: PteRunner, siblings_fp32: Program, batch: int, length: int
) -> None:
    args, kwargs = siblings(batch, length, seed=batch)
    expected = siblings_fp32.model(*args, **kwargs)
    assert alike(family(*args, **kwargs), expected)
    assert alike(family(*args, **dict(reversed(kwargs.items()))), expected)
    pair = {"rows": args[1]["rows"], "right": tuple(args[1]["right"])}
    assert alike(family(args[0], pair, **kwargs), expected)
    # flat, in the program's order, which is that of forward
    flat = (args[0], *pair["right"], pair["rows"], None, kwargs["mask"], 3)
    assert alike(family(*flat), expected)


def test_named_nested_and_dynamic_inputs_in_int8(siblings_int8: Program) -> None:
    runner = PteRunner(siblings_int8.pte)
    for batch, length in ((4, 8), (1, 2), (3, 5)):
        args, kwargs = siblings(batch, length, seed=batch)
        ours, theirs = runner(*args, **kwargs), siblings_int8.qdq(*args, **kwargs)
        steps = lsb_distance(ours["sum"], theirs["sum"], last_scale(siblings_int8.qdq))
        assert steps.max() <= 1
        assert alike(ours["rest"][1:], theirs["rest"][1:])
        expected = siblings_int8.model(*args, **kwargs)
        assert sqnr_db(expected["sum"], ours["sum"]) > 20
        assert sqnr_db(expected["rest"][0], ours["rest"][0]) > 20


def test_raw_api_takes_sizes_that_do_not_agree(siblings_fp32: Program) -> None:
    (x, pair), kwargs = siblings(2, 4)
    rows = torch.ones(5, 2)  # two for each of the batch would be (4, 3)
    outputs = raw(siblings_fp32.pte, x, *pair["right"], rows, None, kwargs["mask"], 3)
    assert outputs[1].shape == (5, 2), "mended in ExecuTorch"


def bad_siblings(**change: object) -> tuple[tuple, dict]:
    """The inputs of batch 2 and length 4, with one of them exchanged."""
    (x, pair), kwargs = siblings(2, 4)
    for name, value in change.items():
        if name == "x":
            x = value
        elif name in pair:
            pair[name] = value
        else:
            kwargs[name] = value
    return (x, pair), {k: v for k, v in kwargs.items() if v is not ...}


Y = torch.zeros(2, 4, 6)

WRONG_SIBLINGS: dict[str, tuple[tuple[tuple, dict], type[Exception], str]] = {
    "batches": (
        bad_siblings(right=[torch.zeros(3, 4, 6)]), ValueError,
        r"input 1 \(\[1\]\['right'\]\[0\]\): dimension 0 is 3, but must be 2, as dimension 0 of "
        r"input 0$",
    ),
    "twice the batch": (
        bad_siblings(rows=torch.zeros(3, 3)), ValueError,
        r"input 2 \(\[1\]\['rows'\]\): dimension 0 is 3, but must be 2\*s0 = 4, where s0 = 2 is",
    ),
    "lengths": (
        bad_siblings(right=[torch.zeros(2, 3, 6)]), ValueError,
        r"dimension 1 is 3, but must be 4, as dimension 1 of input 0$",
    ),
    "too long": (
        bad_siblings(x=torch.zeros(2, 9, 6)), ValueError,
        r"input 0: expected shape \(1…4, 2…8, 6\), got \(2, 9, 6\): dimension 1 is 9, at most 8$",
    ),
    "too short": (bad_siblings(x=Y[:, :1]), ValueError, "dimension 1 is 1, at least 2$"),
    "static": (bad_siblings(x=Y[..., :5]), ValueError, "dimension 2 is 5, not 6$"),
    "no name": (
        bad_siblings(mask=...), ValueError,
        "expected 2 positional inputs and the keyword inputs extra, mask, times, "
        "got 2 positional and times, extra$",
    ),
    "unknown name": (bad_siblings(msk=Y), ValueError, "inputs extra, mask, times, got .*, msk$"),
    "no key": (
        ((Y, {"rows": Y}), bad_siblings()[1]), ValueError,
        "positional input 1: expected the keys right, rows, got rows$",
    ),
    "no dict": (((Y, [Y, Y]), bad_siblings()[1]), TypeError, "input 1: expected a dict, got list$"),
    "two in a list": (
        bad_siblings(right=[Y, Y]), ValueError, r"\['right'\]: expected 1 values, got 2"
    ),
    "no list": (bad_siblings(right=Y), TypeError, r"\['right'\]: expected a list, got Tensor$"),
    "a list": (bad_siblings(x=[Y]), TypeError, "input 0: expected one input, got a list$"),
    "array": (bad_siblings(mask=Y.numpy()), TypeError, r"input 4 \(mask\): expected a torch\.T"),
    "other number": (bad_siblings(times=4), ValueError, r"input 5 \(times\): .* for int 3, got 4$"),
    "not None": (bad_siblings(extra=Y), TypeError, r"input 3 \(extra\): expected null None, got T"),
    "too few": (((Y, Y), {}), ValueError, "expected 6 inputs: .*, or 2 positional inputs and the"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG_SIBLINGS)
def test_what_does_not_fit_the_signature_or_each_other(family: PteRunner, kind: str) -> None:
    (args, kwargs), error, said = WRONG_SIBLINGS[kind]
    with pytest.raises(error, match=said):
        family(*args, **kwargs)


def test_the_description_names_inputs(family: PteRunner) -> None:
    said = "[1]['right'][0]: float32 (1…4, 2…8, 6); [1]['rows']: float32 (2…8, 3); extra: null"
    assert said in repr(family)
    assert family.inputs[2] == TensorSpec((8, 3), torch.float32, (0, 1), True, (2, 3))


def test_a_name_for_an_input_by_position(runner: PteRunner) -> None:
    with pytest.raises(ValueError, match=r"all of them by position, got x by name\. .*kwargs\.$"):
        runner(x=X)


# --- outputs and state


def test_outputs_are_not_overwritten_by_later_calls(conv: Program, runner: PteRunner) -> None:
    inputs = [image(seed) for seed in range(5)]
    outputs = [runner(x) for x in inputs]
    for x, y in zip(inputs, outputs, strict=True):
        assert torch.allclose(y, conv.model(x), atol=1e-5)
    outputs[0].zero_()
    assert torch.allclose(runner(inputs[0]), conv.model(inputs[0]), atol=1e-5)


def test_an_output_outlives_its_runner(conv: Program) -> None:
    runner = PteRunner(conv.pte)
    y = runner(X)
    del runner
    gc.collect()
    [torch.full((1, 4, 8, 8), float(i)) for i in range(50)]
    assert torch.allclose(y, conv.model(X), atol=1e-5)


def test_state_is_kept_until_reset(counter: bytes) -> None:
    runner, ones = PteRunner(counter), torch.ones(2, 3)
    assert [runner(ones)[0, 0].item() for _ in range(3)] == [1, 2, 3]
    runner.reset()
    assert [runner(ones)[0, 0].item() for _ in range(2)] == [1, 2]


def test_runners_of_one_program_have_states_of_their_own(counter: bytes) -> None:
    """In the raw API a second `load_method` goes on where the first one is."""
    first, second, ones = PteRunner(counter), PteRunner(counter), torch.ones(2, 3)
    assert [first(ones)[0, 0].item() for _ in range(2)] == [1, 2]
    assert second(ones)[0, 0].item() == 1
    assert first(ones)[0, 0].item() == 3


def test_a_failed_call_does_not_count(counter: bytes) -> None:
    runner, ones = PteRunner(counter), torch.ones(2, 3)
    runner(ones)
    with pytest.raises(ValueError, match="expected shape"):
        runner(torch.ones(3, 2))
    assert runner(ones)[0, 0].item() == 2


# --- NaN (the docstring says so)


def test_nan_goes_through_fp32_and_vanishes_in_int8(conv: Program, conv_int8: Program) -> None:
    x = torch.full_like(X, torch.nan)
    assert PteRunner(conv.pte)(x).isnan().any()
    assert PteRunner(conv_int8.pte)(x).isfinite().all(), "mended in ExecuTorch: update the Note"


def test_nan_is_refused_where_asked(conv_int8: Program, many_values: Program) -> None:
    runner = PteRunner(conv_int8.pte, refuse_nan=True)
    assert torch.equal(runner(X), PteRunner(conv_int8.pte)(X))
    bad = X.clone()
    bad[0, 1, 2, 3] = torch.nan
    said = r"input 0: holds a NaN, first at index \(0, 1, 2, 3\)"
    for x in (bad, channels_last(bad)):
        with pytest.raises(ValueError, match=said):
            runner(x)
    assert PteRunner(conv_int8.pte)(X * torch.inf).isfinite().all(), "infinities are saturated"
    many = PteRunner(many_values.pte, refuse_nan=True)
    assert torch.allclose(many(*many_values.example)[0], many_values.model(*many_values.example)[0])


# --- what cannot be loaded


def test_a_missing_backend_is_named_with_those_there_are(
    conv: Program, capfd: pytest.CaptureFixture[str]
) -> None:
    """A program for another backend: the name in the file is replaced by one as long."""
    pte = conv.pte.replace(b"XnnpackBackend", b"VulkanXBackend")
    assert pte != conv.pte
    with pytest.raises(PteLoadError) as error:
        PteRunner(pte)
    said = str(error.value)
    assert "needs the backend VulkanXBackend, which this runtime does not have" in said
    assert "it has: " in said
    assert "XnnpackBackend" in said.partition("it has: ")[2]
    assert "Lower the model for one of these" in said
    assert capfd.readouterr() == ("", "")


def test_a_missing_operator_is_named(
    many_values: Program, capfd: pytest.CaptureFixture[str]
) -> None:
    pte = many_values.pte.replace(b"aten::bitwise_not", b"aten::bitwise_xyz").replace(
        b"aten::logical_not", b"aten::logical_xyz"
    )
    assert pte != many_values.pte
    with pytest.raises(PteLoadError, match=r"calls aten::\w+_xyz\.out, .* has no kernel\. Import"):
        PteRunner(pte)
    with pytest.raises(RuntimeError, match=r"0x:?14"):
        raw(pte, *many_values.example)
    assert capfd.readouterr() == ("", "")


def test_a_refusal_by_the_runtime_itself_is_in_words(
    conv: Program, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without the look into the registries, what C++ says is an exception as well."""
    monkeypatch.setattr(_runner, "missing_backends", lambda names: [])
    pte = conv.pte.replace(b"XnnpackBackend", b"VulkanXBackend")
    with pytest.raises(PteLoadError) as error:
        PteRunner(pte)
    said = str(error.value)
    assert "a backend or a resource was not found (0x20)" in said
    assert "VulkanXBackend is not registered" in said
    assert capfd.readouterr() == ("", "")


def test_a_code_without_a_meaning_is_shown_as_it_is() -> None:
    said = _runtime.explain(RuntimeError("failed with 0x77"), "")
    assert said == "failed with 0x77 (0x77). The runtime's log says:\n  nothing"
    assert _runtime.explain(RuntimeError("odd"), "[a.cpp:1] x\n\n[cpuinfo_utils.cpp:2] y") == (
        "odd. The runtime's log says:\n  [a.cpp:1] x"
    )


@pytest.mark.parametrize("damage", [PteFormatError, PteLoadError, PteExecutionError])
def test_errors_have_one_base(damage: type[PteError]) -> None:
    assert issubclass(damage, PteError)


def test_a_constructor_that_fails_leaves_nothing_behind(conv: Program) -> None:
    before = sys.stderr
    for _ in range(5):
        with pytest.raises(PteError):
            PteRunner(conv.pte[:-8])
    assert sys.stderr is before
    assert _runtime.LOG.getvalue() == ""
    assert torch.allclose(PteRunner(conv.pte)(X), conv.model(X), atol=1e-5)


# --- what it says of itself


def test_repr_and_specs(conv: Program, many: PteRunner) -> None:
    runner = PteRunner(conv.pte)
    assert repr(runner) == (
        f"PteRunner({len(conv.pte):,} B, 1 input: float32 (1, 3, 8, 8) -> float32 (1, 4, 8, 8), "
        "delegates: XnnpackBackend)"
    )
    assert runner.inputs == (TensorSpec((1, 3, 8, 8), torch.float32, (0, 1, 2, 3), False),)
    assert many.inputs[3:] == (ScalarSpec("Int", 3), ScalarSpec("Double", 0.5))
    assert "5 inputs: float32 (3, 4); int64 (2,); bool (2,); int 3; double 0.5 -> " in repr(many)


# --- stderr and threads


def fails_in_cpp(runner: PteRunner) -> PteRunner:
    """Let every input pass, so that it is C++ that refuses it and logs."""
    runner._checks = tuple(lambda value: True for _ in runner._checks)
    return runner


def test_the_log_of_a_failing_call_is_in_the_exception(
    conv: Program, capfd: pytest.CaptureFixture[str]
) -> None:
    runner, before = fails_in_cpp(PteRunner(conv.pte)), sys.stderr
    with pytest.raises(PteExecutionError) as error:
        runner(X.repeat(4, 1, 1, 1))
    said = str(error.value)
    assert "the shape does not fit what the program was planned for (0x10)" in said
    assert "resize" in said
    assert sys.stderr is before
    assert _runtime.LOG.getvalue() == ""
    assert torch.allclose(runner(X), conv.model(X), atol=1e-5)
    assert capfd.readouterr() == ("", "")


def test_the_raw_api_does_write_to_stderr(conv: Program) -> None:
    """The control of the test above."""
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(conv.pte).load_method("forward")
    assert method is not None
    with capture_stderr() as log, pytest.raises(RuntimeError, match="0x10"):
        method.execute([X.repeat(4, 1, 1, 1)])
    assert "resize" in log.text


def test_text_that_is_not_of_cpp_is_passed_on(
    conv: Program, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another thread may write to stderr while a program runs."""
    runner = PteRunner(conv.pte)
    execute = runner._execute

    def slow(args):
        thread = threading.Thread(target=lambda: print("from a thread", file=sys.stderr))
        thread.start()
        thread.join()
        return execute(args)

    monkeypatch.setattr(runner, "_execute", slow)
    assert torch.allclose(runner(X), conv.model(X), atol=1e-5)
    assert capsys.readouterr().err == "from a thread\n"
    assert _runtime.LOG.getvalue() == ""


def test_an_exception_of_another_kind_restores_stderr(
    conv: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, before = PteRunner(conv.pte), sys.stderr

    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "_execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner(X)
    assert sys.stderr is before
    assert _runtime.LOCK.acquire(blocking=False)
    _runtime.LOCK.release()


def test_without_a_stderr(conv: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under pythonw; the raw API fails to load anything then."""
    monkeypatch.setattr(sys, "stderr", None)
    runner = PteRunner(conv.pte)
    assert torch.allclose(runner(X), conv.model(X), atol=1e-5)
    with pytest.raises(PteExecutionError, match="resize"):
        fails_in_cpp(runner)(X.repeat(4, 1, 1, 1))
    assert sys.stderr is None


@pytest.fixture
def hurried_threads() -> Iterator[None]:
    """Python changes the thread as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_get_their_own_results(
    conv: Program, conv_int8: Program, hurried_threads: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two runners and one that fails, in four threads."""
    before = sys.stderr
    runners = [(PteRunner(p.pte), p.qdq or p.model) for p in (conv, conv_int8)]
    inputs = [image(seed) for seed in range(8)]
    expected = [[model(x).detach() for x in inputs] for _, model in runners]
    failing = fails_in_cpp(PteRunner(conv.pte))

    def work(n: int) -> bool:
        if n % 9 == 0:
            try:
                failing(X.repeat(4, 1, 1, 1))
            except PteExecutionError as error:
                return "resize" in str(error)
            return False
        which, seed = n % 2, n % 8
        y = runners[which][0](inputs[seed])
        return torch.allclose(y, expected[which][seed], atol=(1e-5, 0.05)[which])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(2000)))
    assert sys.stderr is before
    assert _runtime.LOG.getvalue() == ""
    assert capfd.readouterr() == ("", "")
