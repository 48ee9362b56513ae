"""run.py, seen from outside: started as readers start it, with stand-ins for uv, venv and pip."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

RUN_PY = Path(__file__).resolve().parent.parent / "run.py"

pytestmark = pytest.mark.skipif(
    os.name == "nt", reason="the stand-ins are scripts with #!; CI runs run.py itself on Windows"
)

# Writes down how it was called, then ends with the status it was told to. A shell script, as a #!
# line cannot name a Python whose path has a space in it.
UV = """#!/bin/sh
[ "$*" = --version ] && { echo "uv VERSION (stand-in)"; exit 0; }
{
    echo "$0"
    pwd
    env | grep -E '^(UV_PYTHON|UV_LOCKED|UV_FROZEN|VIRTUAL_ENV|PYTHONDONTWRITEBYTECODE)='
    echo --
    printf '%s\\n' "$@"
} > "$CALLS"
exit "${STATUS:-0}"
"""

# Stand-ins for `python -m venv` and `python -m pip`, put in front of the real ones by PYTHONPATH.
NO_VENV = "import sys; sys.exit('ensurepip is not available')\n"
NO_PIP = "import sys; sys.exit('No module named pip')\n"
BROKEN_PIP = "import sys; sys.exit('--version' not in sys.argv and 'no route to the index')\n"
PIP = """
import pathlib, shutil, sys
if "--version" not in sys.argv:
    folder = pathlib.Path(sys.argv[sys.argv.index("--target") + 1], "bin")
    folder.mkdir(parents=True)
    shutil.copy2(SOURCE, folder / "uv")
"""


def write_uv(path: Path, version: str = "0.13.9") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(UV.replace("VERSION", version))
    path.chmod(0o755)
    return path


class Call(NamedTuple):
    """What the stand-in for uv wrote down."""

    uv: str
    cwd: str
    env: dict[str, str]
    words: list[str]


@dataclass
class Place:
    """A copy of run.py in a folder with a space in its name, on a machine that has only Python."""

    folder: Path
    elsewhere: Path
    env: dict[str, str] = field(default_factory=dict)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(self.folder / "run.py"), *words],
            cwd=self.elsewhere,
            env=self.env,
            capture_output=True,
            text=True,
        )

    def call(self) -> Call:
        """How uv was called."""
        uv, cwd, *rest = Path(self.env["CALLS"]).read_text().splitlines()
        end = rest.index("--")
        return Call(uv, cwd, dict(line.split("=", 1) for line in rest[:end]), rest[end + 1 :])

    def has(self, **modules: str) -> None:
        """Replace venv or pip of the Python that runs run.py."""
        for name, source in modules.items():
            (self.elsewhere / "modules").mkdir(exist_ok=True)
            (self.elsewhere / "modules" / f"{name}.py").write_text(source)
        self.env["PYTHONPATH"] = str(self.elsewhere / "modules")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    folder = tmp_path / "a tree"
    elsewhere = tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    shutil.copy2(RUN_PY, folder)
    env = {"PATH": "/usr/bin:/bin", "CALLS": str(elsewhere / "call"), "PIP_NO_INDEX": "1"}
    return Place(folder, elsewhere, env)


def put_on_path(place: Place, version: str = "0.13.9") -> Path:
    uv = write_uv(place.elsewhere / "bin" / "uv", version)
    place.env["PATH"] = f"{uv.parent}:{place.env['PATH']}"
    return uv


def test_tests_hands_its_words_to_pytest(place: Place) -> None:
    uv = put_on_path(place)
    assert place.run("tests", "-k", "a or b", "--maxfail=1").returncode == 0
    call = place.call()
    assert call.words == ["run", "pytest", "-k", "a or b", "--maxfail=1"]
    assert call.uv == str(uv)
    assert call.cwd == str(place.folder)
    assert call.env == {"UV_PYTHON": sys.executable}
    assert not (place.folder / ".uv").exists(), "a suitable uv was on the PATH"


@pytest.mark.parametrize(
    ("words", "handed_on"),
    [(["lessons"], ["notebooks"]), (["lessons", "--check", "x.ipynb"], ["--check", "x.ipynb"])],
)
def test_lessons_executes_and_says_how_to_open(
    place: Place, words: list[str], handed_on: list[str]
) -> None:
    put_on_path(place)
    done = place.run(*words)
    executed = ["run", "python", "tools/execute_notebooks.py", *handed_on]
    assert place.call().words == executed
    assert "uv run jupyter lab notebooks" in done.stdout
    assert str(place.folder) in done.stdout


def test_without_uv_on_the_path_the_hint_needs_no_uv_either(place: Place) -> None:
    write_uv(place.folder / ".uv" / "bin" / "uv")
    assert "python3 run.py lab" in place.run("lessons").stdout
    assert place.run("lab").returncode == 0
    assert place.call().words == ["run", "jupyter", "lab", "notebooks"]


def test_the_exit_status_is_handed_on(place: Place) -> None:
    put_on_path(place)
    place.env["STATUS"] = "7"
    assert place.run("tests").returncode == 7
    lessons = place.run("lessons")
    assert lessons.returncode == 7
    assert "jupyter" not in lessons.stdout


def test_variables_that_would_break_the_run_are_dropped(place: Place) -> None:
    put_on_path(place)
    broken = ("UV_LOCKED", "UV_FROZEN", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    place.env.update(dict.fromkeys(broken, "1"))
    place.env["UV_PYTHON"] = "3.12"
    place.run("tests")
    assert place.call().env == {"UV_PYTHON": "3.12"}, "the user's own choice of Python stands"


@pytest.mark.parametrize("version", ["0.12.24", "0.14.0", "1.13.0"])
def test_another_version_on_the_path_is_left_alone(place: Place, version: str) -> None:
    put_on_path(place, version)
    private = write_uv(place.folder / ".uv" / "bin" / "uv")
    assert place.run("uv", "--help").returncode == 0
    assert place.call().uv == str(private)
    assert place.call().words == ["--help"]


def test_a_half_made_uv_is_made_again_with_pip_alone(place: Place) -> None:
    source = write_uv(place.elsewhere / "uv from the index")
    broken = place.folder / ".uv" / "bin" / "uv"
    broken.parent.mkdir(parents=True)
    broken.write_text("half a download")
    (place.folder / ".uv" / "leftover").touch()
    place.has(venv=NO_VENV, pip=f"SOURCE = {str(source)!r}\n{PIP}")
    done = place.run("tests")
    assert done.returncode == 0, done.stderr
    assert place.call().uv == str(broken)
    assert not (place.folder / ".uv" / "leftover").exists()


@pytest.mark.parametrize(
    ("pip", "says"),
    [(NO_PIP, "neither venv nor pip: install"), (BROKEN_PIP, "pip could not install uv>=0.13")],
)
def test_without_a_way_to_install_uv_it_says_what_to_do(place: Place, pip: str, says: str) -> None:
    place.has(venv=NO_VENV, pip=pip)
    done = place.run("tests")
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (place.elsewhere / "call").exists()


def test_an_older_python_gets_a_sentence(place: Place) -> None:
    code = (
        "import runpy, sys; sys.version_info = (3, 10, 4, 'final', 0); sys.version = '3.10.4 (x)'; "
        f"runpy.run_path({str(place.folder / 'run.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "needs Python 3.11 to 3.14, and this is Python 3.10.4" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_newer_python_leaves_the_choice_to_uv(place: Place) -> None:
    put_on_path(place)
    code = (
        "import runpy, sys; sys.version_info = (3, 15, 0, 'final', 0); sys.argv[1:] = ['tests']; "
        f"runpy.run_path({str(place.folder / 'run.py')!r}, run_name='__main__')"
    )
    subprocess.run([sys.executable, "-c", code], env=place.env, check=True, capture_output=True)
    assert "UV_PYTHON" not in place.call().env


@pytest.mark.parametrize("words", [[], ["lesson"], ["--help"]])
def test_other_words_get_the_help(place: Place, words: list[str]) -> None:
    done = place.run(*words)
    assert done.returncode == (0 if words == ["--help"] else 2)
    assert "run.py lessons" in done.stdout
    assert not (place.folder / ".uv").exists()


def test_ctrl_c_waits_for_the_command_to_clean_up(place: Place) -> None:
    uv = put_on_path(place)
    uv.write_text(
        "#!/bin/sh\n"
        '[ "$*" = --version ] && { echo "uv 0.13.9"; exit 0; }\n'
        'here=$(dirname "$0")\n'
        "trap 'sleep 1; touch \"$here/cleaned\"; exit 130' INT\n"
        'touch "$here/started"\n'
        # Short ones: a sleep that is just being started does not hear the signal.
        "for i in $(seq 300); do sleep 0.2; done\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(place.folder / "run.py"), "tests"],
        env=place.env,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    while not (uv.parent / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (uv.parent / "cleaned").exists()
    assert "Traceback" not in stderr
