"""What only a fresh process can show; tests/in_fresh_process.py is what runs there."""

from __future__ import annotations

import hashlib

import pytest

from tests.conftest import Fresh
from tests.programs import Program


def test_nothing_is_written_to_stderr(fresh: Fresh) -> None:
    """Import, quantizing, lowering, loading, running and being refused.

    That something is written without `quiet` is shown by the notebook in test_env.py.
    """
    assert fresh.stderr == ""


def test_quiet_twice_adds_each_filter_once(fresh: Fresh) -> None:
    filters = fresh.facts["filters"]
    assert filters == {"experimental API": 1, "torchao": 1, "torch.utils._pytree": 1}


def test_lowering_gives_the_same_bytes_in_every_process(fresh: Fresh, conv_int8: Program) -> None:
    """With another hash seed, and after other imports."""
    assert fresh.facts["checksum"] == hashlib.sha256(conv_int8.pte).hexdigest()


def test_quantized_kernels_are_imported_when_a_program_needs_them(fresh: Fresh) -> None:
    assert fresh.facts["quantized kernels"] < 1e-6


@pytest.mark.parametrize("dropped", ["without its program", "without its file"])
def test_a_runner_needs_nothing_of_the_callers(dropped: str, fresh: Fresh) -> None:
    """The raw API ends the process in both cases."""
    errors = fresh.facts[dropped]
    assert len(errors) >= 3
    assert max(errors) < 1e-5


@pytest.mark.parametrize("where", ["identifier", "operator name"])
def test_names_that_are_not_utf8_do_not_end_the_process(where: str, fresh: Fresh) -> None:
    assert fresh.facts[where] == "PteFormatError"
