"""The digits and the trained model: the same on every machine, and trained as the tool says."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from common.data import calibration_batches, digits, trained_tiny_net
from tools.train_tiny_net import held_out_accuracy, train


def sha256(t: torch.Tensor) -> str:
    return hashlib.sha256(t.numpy().tobytes()).hexdigest()


def rows(t: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in t}


# --- digits


def test_digits_are_the_same_on_every_machine() -> None:
    """The values are multiples of 1/256, which resizing computes without rounding."""
    d = digits()
    assert sha256(d.train_images)[:16] == "9aa1033a527463d0"
    assert sha256(d.test_images)[:16] == "c812ddd1d2f5d035"
    assert sha256(d.train_labels)[:16] == "a01ef876f35b32e0"
    assert sha256(d.test_labels)[:16] == "775ef3b3e51b8d04"
    assert torch.equal(d.train_images * 256, (d.train_images * 256).round())


def test_digits_are_those_of_scikit_learn() -> None:
    """Counted by class, and by their means: resizing by two keeps the mean of an image."""
    bunch = load_digits(n_class=4)
    d = digits()
    labels = torch.cat([d.train_labels, d.test_labels])
    assert np.array_equal(labels.bincount().numpy(), np.bincount(bunch["target"]))
    means = torch.cat([d.train_images, d.test_images]).mean((1, 2, 3))
    expected = np.sort(bunch["images"].mean((1, 2)) / 16)
    assert np.allclose(np.sort(means.numpy()), expected, atol=1e-6)


def test_digits_have_the_shape_that_is_promised() -> None:
    d = digits()
    assert d.train_images.shape == (504, 3, 16, 16)
    assert d.test_images.shape == (216, 3, 16, 16)
    assert d.train_labels.shape == (504,)
    assert d.test_labels.shape == (216,)
    assert d.train_images.dtype == d.test_images.dtype == torch.float32
    assert d.train_labels.dtype == d.test_labels.dtype == torch.int64
    for images in (d.train_images, d.test_images):
        assert images.is_contiguous()
        assert images.min() == 0
        assert 0.9 < images.max() <= 1
        assert torch.equal(images[:, 0], images[:, 2])


def test_no_held_out_image_is_trained_with() -> None:
    d = digits()
    assert not rows(d.train_images) & rows(d.test_images)
    assert all(n > 40 for n in d.test_labels.bincount().tolist())


def test_a_change_to_the_digits_stays_with_the_caller() -> None:
    digits().train_images.zero_()
    assert digits().train_images.sum() > 0


# --- calibration_batches


def test_calibration_takes_training_images_in_order() -> None:
    batches = list(calibration_batches(8))
    assert len(batches) == 16
    assert all(type(b) is tuple and len(b) == 1 for b in batches)
    assert torch.equal(torch.cat([x for (x,) in batches]), digits().train_images[:128])


@pytest.mark.parametrize(
    ("batch", "images", "groups"), [(1, 128, 128), (50, 128, 2), (200, 128, 1), (504, 1, 1)]
)
def test_calibration_groups_are_full(batch: int, images: int, groups: int) -> None:
    sizes = [len(x) for (x,) in calibration_batches(batch, images=images)]
    assert sizes == [batch] * groups


@pytest.mark.parametrize("batch", [0, -1, 505])
def test_calibration_refuses_a_batch_it_cannot_fill(batch: int) -> None:
    with pytest.raises(ValueError, match=rf"batch: expected 1 to 504 images, got {batch}"):
        next(calibration_batches(batch))


@pytest.mark.parametrize("images", [0, 505])
def test_calibration_refuses_more_images_than_there_are(images: int) -> None:
    with pytest.raises(ValueError, match=rf"images: expected 1 to 504, got {images}"):
        next(calibration_batches(1, images=images))


# --- the trained model


def test_trained_model_names_215_of_the_216_held_out_digits() -> None:
    d = digits()
    with torch.no_grad():
        guesses = trained_tiny_net()(d.test_images).argmax(1)
    assert (guesses == d.test_labels).sum().item() == 215


def test_trained_model_is_a_new_one_at_each_call() -> None:
    first = trained_tiny_net()
    assert not any(m.training for m in first.modules())
    with torch.no_grad():
        first.fc.weight.zero_()
    assert trained_tiny_net().fc.weight.abs().sum() > 0


def test_retraining_reaches_the_same_accuracy() -> None:
    """Another seed, so that the accuracy belongs to the recipe and not to one draw."""
    stored = held_out_accuracy(trained_tiny_net())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    state = torch.get_rng_state()
    try:
        model = train(seed=1)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), state), "training moved the global generator"
    assert held_out_accuracy(model) >= stored - 0.015
