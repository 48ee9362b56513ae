"""The line that says what a long call is doing: seen by people, kept by nobody."""

from __future__ import annotations

import io
from typing import Any

import pytest

from common._progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(written: str) -> str:
    """What a terminal shows after these characters, one line high."""
    shown = ""
    for part in written.split("\r"):
        shown = part[3:] if part.startswith("\x1b[K") else part + shown[len(part) :]
    return shown


def test_a_terminal_shows_a_line_and_is_left_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    with progress("report") as on_step:
        on_step("a step with a long name")
        on_step("draw")
        assert screen(stream.getvalue()).startswith("report: draw (0 s")
        on_step("x" * 200)
        assert len(screen(stream.getvalue())) < 80
    assert screen(stream.getvalue()) == ""


def test_a_file_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with progress("report") as on_step:
        on_step("draw")
    assert stream.getvalue() == ""


@pytest.fixture(scope="module")
def kernel() -> Any:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


CELL = """
from common._progress import progress
with progress("report") as on_step:
    on_step("export")
    on_step("draw")
"""


def outputs(client: Any, metadata: dict[str, Any]) -> list[str]:
    """Kinds of the messages with output that a cell leads to."""
    content = {"code": CELL, "silent": False, "store_history": True, "user_expressions": {}}
    message = client.session.msg("execute_request", {**content, "allow_stdin": False})
    message["metadata"] = metadata
    client.shell_channel.send(message)
    found = []
    while True:
        got = client.get_iopub_msg(timeout=60)
        if got["parent_header"].get("msg_id") != message["header"]["msg_id"]:
            continue
        if got["msg_type"] == "status" and got["content"]["execution_state"] == "idle":
            return found
        if got["msg_type"] not in ("status", "execute_input"):
            found.append(got["msg_type"])


def test_a_notebook_that_a_program_executes_keeps_nothing(kernel: Any) -> None:
    assert outputs(kernel, {}) == []


def test_a_front_end_sees_a_line_that_is_cleared(kernel: Any) -> None:
    found = outputs(kernel, {"cellId": "4f1c", "recordTiming": False})
    assert found == ["display_data", "update_display_data", "clear_output"]
