"""Several threads that quantize at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from common.executorch_utils import xnnpack_ptq
from tests.programs import rows


def test_threads_that_quantize_at_once_get_their_own_graphs(one_thread: None) -> None:
    """Without the lock their exports fail, or hang in each other's tracers."""
    models = [nn.Linear(6, 3 + i).eval() for i in range(4)]

    def quantize(model: nn.Module) -> torch.nn.Module:
        return xnnpack_ptq(model, (rows(2),), calibration=[(rows(2),)])

    with ThreadPoolExecutor(len(models)) as pool:
        graphs = list(pool.map(quantize, models))
    for model, graph in zip(models, graphs, strict=True):
        assert torch.allclose(graph(rows(2)), model(rows(2)), atol=0.1)
