"""Which line of the model an op comes from."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from torch import fx, nn

from common._exports import export
from common._signature import Inputs
from common._source_line import SourceLine, line_of, line_of_error


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(x)
        return self.shifted(x)

    def shifted(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1.5


def line(text: str) -> SourceLine:
    code, first = inspect.getsourcelines(Net)
    number = next(i for i, written in enumerate(code, start=first) if text in written)
    return SourceLine("tests/test_source_line.py", number, text)


def test_lines_of_torch_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent.parent)
    program = export(Net().eval(), Inputs((torch.ones(1, 3),), {}), None)
    lines = {n.name: line_of(n) for n in program.graph.nodes if n.op == "call_function"}
    layers = line("x = self.layers(x)")
    assert lines == {"linear": layers, "relu": layers, "add": line("return x + 1.5")}


def test_a_model_of_torch_alone_has_no_line() -> None:
    program = torch.export.export(Net().layers.eval(), (torch.ones(1, 3),))
    assert {line_of(n) for n in program.graph.nodes if n.op == "call_function"} == {None}


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/tmp/ipykernel_" + "77/1234.py", "cell"),
        ("/elsewhere/net.py", "net.py"),
        ("/env/lib/site-packages/timm/layers/norm.py", "timm/layers/norm.py"),
    ],
)
def test_no_path_of_a_machine(file: str, shown: str) -> None:
    node = fx.Graph().placeholder("x")
    node.meta["stack_trace"] = f'  File "{file}", line 7, in forward\n    y = self.fc(x)\n'
    assert line_of(node) == SourceLine(shown, 7, "y = self.fc(x)")
    for inner in (torch.__file__, "<eval_with_key>.1"):
        node.meta["stack_trace"] += f'  File "{inner}", line 1, in f\n    g()\n'
    assert line_of(node) == SourceLine(shown, 7, "y = self.fc(x)")


def test_the_line_of_an_error() -> None:
    with pytest.raises(RuntimeError) as caught:
        Net()(torch.ones(1, 4))
    found = line_of_error(caught.value)
    assert found is not None
    assert found.number == line("x = self.layers(x)").number
