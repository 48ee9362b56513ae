"""Asking the partitioner, against what it does when a program is really lowered."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from common._support import partition, refusals, why_not
from common.executorch_utils import delegation_summary
from tests.programs import Program

LOGGER = logging.getLogger("executorch.backends.xnnpack.partition.config")


class Mixed(nn.Module):
    """One op that is taken, and three that are refused: with a reason, without, and unknown."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.relu(x), x.mean((2, 3)), x[:, ::2], x.cumsum(1)


def exported(model: nn.Module, x: torch.Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(model.eval(), (x,))


def test_reasons_are_the_partitioners_own_words() -> None:
    asked = partition(exported(Mixed(), torch.zeros(1, 4, 8, 8)))
    assert asked.taken == {"aten_relu_default"}
    assert str(asked) == "1 of 4 nodes would be delegated"
    assert why_not(asked) == {
        "aten_mean_dim": "mean.dim only supports keepdim=True",
        "aten_slice_copy_tensor": "refused without a reason",
        "aten_cumsum_default": "XNNPACK's partitioner has no rule for it",
    }


def test_an_op_refused_before_its_decomposition() -> None:
    """The node that was asked about is gone; its refusal is kept."""
    asked = partition(exported(nn.MaxPool2d(2, stride=3), torch.zeros(1, 4, 8, 8)))
    (refusal,) = asked.refusals
    assert refusal.reason.startswith("stride ([3, 3]) must be less than or equal to kernel size")
    assert why_not(asked) == {
        "aten_max_pool2d_with_indices_default": "XNNPACK's partitioner has no rule for it"
    }


def test_taken_is_what_lowering_takes(cumsum: Program) -> None:
    asked = partition(torch.export.export(cumsum.qdq, cumsum.example))
    assert len(asked.taken) == delegation_summary(cumsum.edge).n_delegated
    assert list(why_not(asked)) == ["aten_cumsum_default"]
    again = partition(torch.export.export(cumsum.model, cumsum.example))
    assert list(why_not(again)) == ["aten_cumsum_default"]


@pytest.mark.parametrize("level", [logging.NOTSET, logging.ERROR])
def test_the_logger_is_left_as_it_was(level: int, caplog: pytest.LogCaptureFixture) -> None:
    LOGGER.setLevel(level)
    handlers = list(LOGGER.handlers)
    with pytest.raises(KeyError), refusals():
        raise KeyError
    assert (LOGGER.level, LOGGER.propagate, LOGGER.handlers) == (level, True, handlers)
    LOGGER.setLevel(logging.NOTSET)
    assert not caplog.records


def test_refusals_listens_around_other_calls() -> None:
    """And drops what is no answer about a node, and the same answer given twice."""
    with refusals() as found:
        LOGGER.debug("something else")
        for refusal in partition(exported(nn.Softmax(dim=1), torch.zeros(1, 3, 2))).refusals * 2:
            LOGGER.debug(refusal)
    assert [(r.node.name, r.reason.partition(",")[0]) for r in found] == [
        ("aten__softmax_default", "dim must be the last dim")
    ]
