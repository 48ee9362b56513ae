"""The environment line, the version check, and stderr captured wherever Python runs."""

from __future__ import annotations

import ctypes
import io
import os
import platform
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from packaging.specifiers import SpecifierSet

from common import env
from common.env import CapturedStderr, capture_stderr, check_versions, env_summary

ROOT = Path(__file__).parents[1]
posix_only = pytest.mark.skipif(os.name == "nt", reason="needs a C library with a known stderr")

# --- env_summary


def test_env_summary_is_one_line_with_what_decides_the_numbers() -> None:
    line = env_summary()
    assert "\n" not in line
    assert line.startswith(f"env: {platform.system()} {platform.machine()}, {os.cpu_count()} CPUs")
    for name in ("torch", "torchao", "executorch"):
        assert f" {name} {metadata.version(name)}" in line
    assert f"Python {platform.python_version()}" in line
    assert f"mkldnn {'on' if torch.backends.mkldnn.is_available() else 'off'}" in line
    assert "nnpack on" in line or "nnpack off" in line


def test_env_summary_follows_the_threads() -> None:
    before = torch.get_num_threads()
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            assert f"torch threads {n}," in env_summary()
    finally:
        torch.set_num_threads(before)


def test_env_summary_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert "torch missing torchao missing executorch missing" in env_summary()


# --- check_versions (that its ranges are those of pyproject.toml: test_project.py)


def install(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
    """Pretend that these versions are installed, and of the others one that is tested."""
    good = {"torch": "2.14.1+cpu", "torchao": "0.18.0", "executorch": "1.5.1"}
    monkeypatch.setattr(env, "_installed", (good | versions).get)


def test_tested_versions_pass_without_a_word(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    check_versions()
    install(monkeypatch)
    check_versions()
    install(monkeypatch, torch="2.13.0", executorch="1.5.9")
    check_versions()
    assert not recwarn.list


@pytest.mark.parametrize(
    ("name", "found"),
    [("torch", "2.12.1"), ("torch", "2.11.0+cu128"), ("torchao", "0.10.0"), ("executorch", "1.5.0"),
     ("torch", None), ("executorch", None)],
)  # fmt: skip
def test_an_older_or_missing_library_is_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, name: str, found: str | None
) -> None:
    install(monkeypatch, **{name: found})
    with pytest.raises(ImportError) as error:
        check_versions()
    said = str(error.value)
    assert f"common needs {name} {env.TESTED[name]}, found {found or 'none'};" in said
    assert f'pip install "{name}{env.TESTED[name]}"' in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("name", "found"), [("torch", "2.16.0"), ("torchao", "1.0"), ("executorch", "1.6.0")]
)
def test_a_newer_library_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, name: str, found: str
) -> None:
    install(monkeypatch, **{name: found})
    with pytest.warns(UserWarning, match=rf"tested with {name} .*, found {found}") as warned:
        check_versions()
    assert len(warned) == 1
    assert warned[0].filename == __file__


def test_the_installed_versions_are_tested_ones() -> None:
    for name, tested in env.TESTED.items():
        assert SpecifierSet(tested).contains(metadata.version(name))


# --- capture_stderr


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def c_prints(text: bytes) -> None:
    """Write through the buffered stdio stream of C."""
    lib = libc()
    name = "__stderrp" if sys.platform == "darwin" else "stderr"
    lib.fputs(text, ctypes.c_void_p.in_dll(lib, name))


def test_python_text_is_captured() -> None:
    with capture_stderr() as log:
        print("one", file=sys.stderr)
        sys.stderr.write("two")
    assert log.text == str(log) == "one\ntwo"


def test_text_of_file_descriptor_2_is_captured() -> None:
    with capture_stderr() as log:
        os.write(2, b"from C\n")
    assert log.text == "from C\n"


@posix_only
def test_text_of_the_c_library_is_captured() -> None:
    with capture_stderr() as log:
        c_prints(b"from stdio\n")
    assert log.text == "from stdio\n"


def test_text_of_a_child_process_is_captured() -> None:
    code = "import sys; sys.stderr.write('from a child')"
    with capture_stderr() as log:
        subprocess.run([sys.executable, "-S", "-c", code], check=True)
    assert log.text == "from a child"


def test_order_of_python_and_c_is_kept() -> None:
    with capture_stderr() as log:
        for n in range(3):
            print(f"python {n}", file=sys.stderr)
            os.write(2, f"c {n}\n".encode())
    assert log.text == "python 0\nc 0\npython 1\nc 1\npython 2\nc 2\n"


def test_nothing_written_is_an_empty_text() -> None:
    with capture_stderr() as log:
        assert log.text == ""
    assert log.text == ""


def test_nested_captures_keep_their_own() -> None:
    with capture_stderr() as outer:
        print("a", file=sys.stderr)
        os.write(2, b"b\n")
        with capture_stderr() as inner:
            print("c", file=sys.stderr)
            os.write(2, b"d\n")
        assert inner.text == "c\nd\n"
        print("e", file=sys.stderr)
        os.write(2, b"f\n")
    assert outer.text == "a\nb\ne\nf\n"


def test_an_exception_inside_leaves_the_text_and_restores_everything(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = sys.stderr
    log = CapturedStderr()

    def fail() -> None:
        nonlocal log
        with capture_stderr() as log:
            print("before it", file=sys.stderr)
            os.write(2, b"and C\n")
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        fail()
    assert log.text == "before it\nand C\n"
    assert sys.stderr is before
    print("after", file=sys.stderr)
    os.write(2, b"it\n")
    assert capfd.readouterr().err == "after\nit\n"


def test_text_that_is_not_utf8_is_no_error() -> None:
    """A write that raises inside C++ aborts the process."""
    with capture_stderr() as log:
        os.write(2, b"\xff\xfe ok\n")
        sys.stderr.write("\udcff \u2713\n")
    assert log.text == "\ufffd\ufffd ok\n\\udcff \u2713\n"


def test_much_text_does_not_block() -> None:
    """A pipe would be full after 64 KB, with nobody to read it."""
    with capture_stderr() as log:
        os.write(2, b"x" * 2_000_000)
        sys.stderr.write("y" * 2_000_000)
    assert len(log.text) == 4_000_000


def test_text_of_another_thread_is_captured() -> None:
    with capture_stderr() as log:
        thread = threading.Thread(target=lambda: print("thread", file=sys.stderr))
        thread.start()
        thread.join()
    assert log.text == "thread\n"


def test_blocks_of_two_threads_that_overlap() -> None:
    """The first ends before the second: neither may leave its own, closed file behind."""
    before, fd2 = sys.stderr, os.fstat(2)
    first_ends, second_began = threading.Event(), threading.Event()
    texts: list[str] = []

    def second() -> None:
        with capture_stderr() as log:
            second_began.set()
            first_ends.wait(30)
            print("python", file=sys.stderr)
            os.write(2, b"c\n")
        texts.append(log.text)

    thread = threading.Thread(target=second)
    with capture_stderr() as log:
        print("first", file=sys.stderr)
        thread.start()
        assert second_began.wait(30)
    first_ends.set()
    thread.join()
    assert log.text == "first\n"
    assert texts == ["python\nc\n"]
    assert sys.stderr is before
    assert os.path.samestat(os.fstat(2), fd2)


def test_blocks_of_many_threads() -> None:
    before, fd2 = sys.stderr, os.fstat(2)

    def work(_: int) -> None:
        with capture_stderr():
            print("x" * 10, file=sys.stderr)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(300)))
    assert sys.stderr is before
    assert os.path.samestat(os.fstat(2), fd2)


def test_a_stderr_that_cannot_be_flushed_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    with capture_stderr() as log:
        print("text", file=sys.stderr)
    assert log.text == "text\n"
    assert sys.stderr is closed


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files by /proc")
def test_no_file_stays_open() -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = open_files()
    for _ in range(20):
        with capture_stderr():
            os.write(2, b"x")
    assert open_files() == before


# --- capture_stderr where Python itself was started in another way


def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", dedent(code), *words],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_without_a_stderr_at_all() -> None:
    """As under pythonw, and as a daemon: `sys.stderr` is None, file descriptor 2 is closed."""
    done = run("""
        import os, sys
        from common.env import capture_stderr

        def captured():
            with capture_stderr() as log:
                print("python", file=sys.stderr)
                try:
                    os.write(2, b"c\\n")
                except OSError:
                    pass
            return log.text

        real = sys.stderr
        sys.stderr = None
        print(repr(captured()), sys.stderr)
        os.close(2)
        print(repr(captured()), sys.stderr)
        sys.stderr = real
        print(repr(captured()), sys.stderr is real)
        try:
            os.fstat(2)
        except OSError:
            print("2 is closed")
        """)
    assert done.returncode == 0, done.stderr
    with_fd, *without_fd, restored, closed = done.stdout.splitlines()
    assert with_fd == r"'python\nc\n' None"
    assert without_fd[0].startswith(r"'python\n")
    assert restored.endswith("True")
    assert closed == "2 is closed"


CAPTURE_TEST = """\
import os, sys
from common.env import capture_stderr

def test_capture():
    before = sys.stderr
    print("outside before", file=sys.stderr)
    with capture_stderr() as log:
        print("python", file=sys.stderr)
        os.write(2, b"c\\n")
    assert log.text == "python\\nc\\n"
    assert sys.stderr is before
    print("outside after", file=sys.stderr)
"""


def test_under_pytest_in_every_capture_mode(tmp_path: Path) -> None:
    """Without any plugin but the capture itself; one process runs pytest once for each mode."""
    (tmp_path / "test_it.py").write_text(CAPTURE_TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = run(
        """
        import os, sys, pytest
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        for mode in ("no", "sys", "fd", "tee-sys"):
            status = pytest.main([f"--capture={mode}", "-q", "-p", "no:cacheprovider",
                                  f"--rootdir={sys.argv[1]}", f"--confcutdir={sys.argv[1]}",
                                  "-rA", sys.argv[1]])
            print(f"== {mode}: {int(status)}")
        """,
        str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    statuses = [line for line in done.stdout.splitlines() if line.startswith("== ")]
    assert statuses == ["== no: 0", "== sys: 0", "== fd: 0", "== tee-sys: 0"], done.stdout
    # What was written outside is pytest's: shown at once by "no" and "tee-sys", reported by the
    # others, and in no mode is what was inside.
    assert done.stderr.splitlines() == ["outside before", "outside after"] * 2
    assert done.stdout.count("outside after") == 3
    assert "python\n" not in done.stdout + done.stderr
