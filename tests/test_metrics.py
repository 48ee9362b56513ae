"""SQNR, distance in LSB and accuracy, against NumPy and against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from common.metrics import accuracy, lsb_distance, sqnr_db

# --- sqnr_db


def test_sqnr_is_the_formula_in_numpy() -> None:
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(3, 5, generator=generator)
    actual = reference + 0.01 * torch.randn(3, 5, generator=generator)
    r, a = reference.double().numpy(), actual.double().numpy()
    expected = 10 * np.log10(np.sum(r**2) / np.sum((r - a) ** 2))
    assert sqnr_db(reference, actual) == pytest.approx(expected, abs=1e-9)


def test_one_bit_more_is_six_decibel() -> None:
    reference = torch.rand(10_000, generator=torch.Generator().manual_seed(0)) * 2 - 1

    def rounded(bits: int) -> torch.Tensor:
        steps = 2 ** (bits - 1)
        return (reference * steps).round() / steps

    eight, nine = (sqnr_db(reference, rounded(bits)) for bits in (8, 9))
    assert nine - eight == pytest.approx(6.02, abs=0.1)


@pytest.mark.parametrize(
    ("reference", "actual", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], math.inf),
        ([0.0, 0.0], [0.0, 0.0], math.inf),
        ([0.0, 0.0], [0.0, 1.0], -math.inf),
        ([3.0], [0.0], 0.0),
    ],
)
def test_sqnr_at_the_ends(reference: list[float], actual: list[float], expected: float) -> None:
    assert sqnr_db(torch.tensor(reference), torch.tensor(actual)) == expected


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_sqnr_of_what_is_not_finite_is_nan(bad: float) -> None:
    good, spoiled = torch.tensor([1.0, 2.0]), torch.tensor([1.0, bad])
    assert math.isnan(sqnr_db(good, spoiled))
    assert math.isnan(sqnr_db(spoiled, good))


def test_sqnr_is_computed_in_double() -> None:
    reference = torch.full((4,), 1e25)  # its square overflows float32
    assert sqnr_db(reference, reference * 0.5) == pytest.approx(20 * math.log10(2), abs=1e-4)


def test_sqnr_takes_integers_and_tensors_with_a_gradient() -> None:
    assert sqnr_db(torch.tensor([10, 0]), torch.tensor([9, 0])) == pytest.approx(20)
    assert sqnr_db(torch.ones(1, requires_grad=True), torch.full((1,), 0.9)) > 19


# --- lsb_distance


def test_lsb_distance_counts_steps_of_the_quantizer() -> None:
    scale = 0.037
    steps = torch.tensor([[0, 1, -1], [5, -128, 127]])
    distance = lsb_distance(steps * scale, torch.zeros(2, 3), scale)
    assert torch.equal(distance, steps.abs())
    assert distance.dtype == torch.int64


@pytest.mark.parametrize("scale", [0.0, -0.1, math.nan, math.inf])
def test_lsb_distance_refuses_a_scale_that_is_none(scale: float) -> None:
    with pytest.raises(ValueError, match=r"scale: expected a positive number, got"):
        lsb_distance(torch.zeros(1), torch.zeros(1), scale)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_lsb_distance_refuses_what_is_not_finite(bad: float) -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        lsb_distance(torch.tensor([bad]), torch.zeros(1), 1.0)


# --- shapes


@pytest.mark.parametrize("measure", [sqnr_db, lambda a, b: lsb_distance(a, b, 1.0)])
def test_shapes_must_agree(measure) -> None:
    with pytest.raises(ValueError, match=r"shapes differ: \(2,\) and \(1, 2\)"):
        measure(torch.zeros(2), torch.zeros(1, 2))  # would broadcast
    with pytest.raises(ValueError, match=r"at least one element, got shape \(0, 3\)"):
        measure(torch.zeros(0, 3), torch.zeros(0, 3))


# --- accuracy


def test_accuracy_calls_the_model_on_full_batches_in_order() -> None:
    seen: list[torch.Tensor] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x

    images = torch.eye(6)
    labels = torch.tensor([0, 1, 2, 5, 5, 5])
    assert accuracy(model, images, labels, batch=3) == pytest.approx(4 / 6)
    assert [len(x) for x in seen] == [3, 3]
    assert torch.equal(torch.cat(seen), images)


def test_accuracy_leaves_no_gradient() -> None:
    weight = torch.ones(2, 2, requires_grad=True)
    assert accuracy(lambda x: x @ weight, torch.eye(2), torch.tensor([0, 0]), batch=1) == 1.0
    assert weight.grad is None


@pytest.mark.parametrize(("images", "batch"), [(6, 4), (6, 0), (0, 1), (6, -1)])
def test_accuracy_refuses_a_batch_that_does_not_divide(images: int, batch: int) -> None:
    with pytest.raises(ValueError, match=rf"batch: {batch} does not divide {images} images"):
        accuracy(lambda x: x, torch.zeros(images, 2), torch.zeros(images).long(), batch=batch)


def test_accuracy_refuses_labels_of_another_number() -> None:
    with pytest.raises(ValueError, match=r"labels: expected shape \(4,\), got \(4, 1\)"):
        accuracy(lambda x: x, torch.eye(4), torch.zeros(4, 1).long(), batch=1)
