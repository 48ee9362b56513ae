"""The bootstrap cell in Colab and elsewhere.

Most tests run the cell alone, in a process that sees stand-ins for the packages, for pip and for
`google.colab`. The last, `pytest -m colab`, runs a lesson from its first cell to its last in a
new environment with the Python and torch of Colab, in a folder that holds nothing else.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.notebook_rules import code_cells, read
from tools import repository

ROOT = Path(__file__).resolve().parent.parent
LESSON = ROOT / "notebooks/M08-2_lowering.ipynb"
CELL = next(cell for cell in code_cells(read(LESSON)) if cell.id == repository.CELL).source
SOURCE = "git+file:///somewhere"
RIGHT = {"torch": "2.14.1", "torchao": "0.18.0", "executorch": "1.5.1"}
COLAB = RIGHT | {"torch": "2.11.0+cu128", "torchao": "0.10.0"}
OURS = 'DISTRIBUTION = "m08-executorch"\n'

# Notes how it was called; what is in `fails` it prints, and fails. Else it installs what is right.
PIP = """
import json, pathlib, sys
here = pathlib.Path(__file__).parents[1]
(here / "pip.json").write_text(json.dumps(sys.argv[1:]))
if (here / "fails").exists():
    sys.exit((here / "fails").read_text())
(here / "common").mkdir(exist_ok=True)
(here / "common" / "__init__.py").write_text('DISTRIBUTION = "m08-executorch"')
"""
# What pip prints without a network, shortened.
PAGE = (
    "WARNING: Retrying (Retry(total=0)) after connection broken\nERROR: No matching distribution\n"
)


@dataclass(frozen=True)
class Done:
    """How the cell ended: its exit status, what it showed, and with what it called pip."""

    status: int
    out: str
    err: str
    pip: list[str] | None


@dataclass(frozen=True)
class Machine:
    """A folder with stand-ins, which is all that a process sees beside the standard library."""

    site: Path
    folder: Path

    def add(self, path: str, text: str) -> Path:
        """Write a file into the folder of packages."""
        file = self.site / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def has(self, versions: dict[str, str], *, ours: bool = True, colab: bool = False) -> None:
        """Put packages in place; they cannot be imported."""
        for name, version in versions.items():
            self.add(f"{name}-{version}.dist-info/METADATA", f"Name: {name}\nVersion: {version}\n")
        if ours:
            self.add("common/__init__.py", OURS)
        if colab:
            self.add("google/colab/__init__.py", "")

    def run(self, *, before: str = "", after: str = "") -> Done:
        """Run the cell in a new process, with code before and after it."""
        code = f"{before}\n{CELL}\n{after}"
        done = subprocess.run(
            [sys.executable, "-S", "-c", code],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(self.site), "M08_SOURCE": SOURCE},
            capture_output=True,
            text=True,
        )
        called = self.site / "pip.json"
        pip = json.loads(called.read_text()) if called.exists() else None
        return Done(done.returncode, done.stdout, done.stderr, pip)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "site", tmp_path / "empty")
    made.folder.mkdir()
    made.add("pip/__main__.py", PIP)
    made.add("pip/__init__.py", "")
    return made


def stopped(done: Done, sentence: str) -> None:
    """The cell ended with one sentence and nothing else, and installed nothing."""
    assert (done.status, done.out, done.err) == (1, "", sentence + "\n")
    assert done.pip is None


# --- Where all is right


@pytest.mark.parametrize(
    ("versions", "colab"),
    [(RIGHT, False), (RIGHT | {"torch": "2.99.0", "executorch": "1.5.10"}, True)],
)
def test_it_does_nothing(machine: Machine, versions: dict[str, str], colab: bool) -> None:
    machine.has(versions, colab=colab)
    after = """
import sys
mine = [name for name in globals() if not name.startswith("__") and name != "sys"]
assert mine == ["bootstrap"], mine
assert not {"torch", "common"} & sys.modules.keys()
"""
    assert machine.run(after=after) == Done(0, "", "", None)


def test_a_right_torch_may_be_imported_already(machine: Machine) -> None:
    machine.has(RIGHT)
    machine.add("torch/__init__.py", '__version__ = "2.14.1+cu130"')
    assert machine.run(before="import torch") == Done(0, "", "", None)


# --- Elsewhere


@pytest.mark.parametrize("versions", [{}, COLAB, RIGHT | {"executorch": "1.5.0"}])
def test_elsewhere_it_names_the_command(machine: Machine, versions: dict[str, str]) -> None:
    machine.has(versions)
    sentence = f"Packages are missing or too old. Type: pip install {SOURCE}"
    stopped(machine.run(), sentence)


def test_elsewhere_it_names_the_command_if_common_alone_is_missing(machine: Machine) -> None:
    machine.has(RIGHT, ours=False)
    machine.add("google/protobuf/__init__.py", "")
    (machine.folder / "common").mkdir()  # a folder without Python is no package
    sentence = f"Packages are missing or too old. Type: pip install {SOURCE}"
    stopped(machine.run(), sentence)


# --- In Colab


@pytest.mark.parametrize("versions", [COLAB, RIGHT])
def test_in_colab_it_installs(machine: Machine, versions: dict[str, str]) -> None:
    machine.has(versions, ours=False, colab=True)
    done = machine.run(after="import common; assert common.DISTRIBUTION")
    assert done == Done(0, f"Installing from {SOURCE}\n", "", ["install", "--quiet", SOURCE])


def test_in_colab_without_a_network_it_says_so(machine: Machine) -> None:
    machine.has(COLAB, ours=False, colab=True)
    machine.add("fails", PAGE)
    done = machine.run()
    assert done.status == 1
    assert done.out == f"Installing from {SOURCE}\n"
    assert done.err == (
        f"pip could not install {SOURCE}: check the network, then run this cell again.\n"
    )


# --- In either


@pytest.mark.parametrize("colab", [False, True])
def test_an_old_torch_in_this_process_needs_a_restart(machine: Machine, colab: bool) -> None:
    """Also where the right one was installed since."""
    machine.has(RIGHT, colab=colab)
    machine.add("torch/__init__.py", '__version__ = "2.11.0+cu128"')
    sentence = "torch 2.11.0+cu128 is loaded and too old: restart the session."
    stopped(machine.run(before="import torch"), sentence)


@pytest.mark.parametrize(
    ("path", "imported", "beside"),
    [
        ("common/__init__.py", False, False),
        ("common/__init__.py", True, True),
        ("common.py", False, True),
    ],
)
def test_a_foreign_common_is_named(
    machine: Machine, path: str, imported: bool, beside: bool
) -> None:
    """Beside the notebook, or installed; pip would mix the two."""
    machine.has(COLAB, ours=beside, colab=True)
    file = machine.add(path, "x = 1")
    if beside:
        file = (machine.folder / path).absolute()
        file.parent.mkdir(exist_ok=True)
        file.write_text("x = 1")
    sentence = f"Another package called common is at {file}: rename or remove it."
    stopped(machine.run(before="import common" if imported else ""), sentence)


# --- For real: `pytest -m colab`

# What Colab has, of what decides: published lists of 2026-08.
OLD = {"torch": "2.11.0", "torchao": "0.10.0"}
JUPYTER = ("ipython==7.34.0", "ipykernel==6.17.1", "setuptools", "nbclient")
# The versions that the other tests run with; M08_COLAB=newest: those that pip chooses.
NEWEST = os.environ.get("M08_COLAB") == "newest"
CLOSED = "http://127.0.0.1:9/simple"
NO_NETWORK = {
    "PIP_INDEX_URL": CLOSED,
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_RETRIES": "0",
}
RUN = """
import sys, nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
name, seconds = sys.argv[1], int(sys.argv[2])
nb = nbformat.read(name, 4)
for cell in nb.cells:
    if cell.cell_type == "code":
        cell.outputs, cell.execution_count = [], None
try:
    NotebookClient(nb, timeout=seconds, kernel_name="python3").execute()
except CellExecutionError as error:
    sys.exit(f"{error.ename}: {error.evalue}")
finally:
    nbformat.write(nb, "executed.ipynb")
"""


def pythons() -> Iterator[Path]:
    """The Pythons of this machine, the newest first; M08_COLAB_PYTHON names another."""
    if named := os.environ.get("M08_COLAB_PYTHON"):
        yield Path(named)
        return
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    supported = SpecifierSet(requires["requires-python"])
    homes = [
        Path.home() / ".pyenv/versions",
        Path.home() / ".local/share/uv/python",
        Path(os.environ.get("RUNNER_TOOL_CACHE", "/opt/hostedtoolcache")) / "Python",
    ]
    found = {Path(sys.base_prefix) / "bin/python3"}
    found |= {path for home in homes for path in home.glob("*/bin/python3")}
    found |= {path for home in homes for path in home.glob("*/x64/bin/python3")}
    found |= {Path(p) for n in range(11, 15) if (p := shutil.which(f"python3.{n}"))}
    versions = {}
    for path in found:
        code = "import ensurepip, platform, venv; print(platform.python_version())"
        done = subprocess.run([path, "-c", code], capture_output=True, text=True)
        if done.returncode == 0 and supported.contains(done.stdout.strip()):
            versions[path] = tuple(int(n) for n in re.findall(r"\d+", done.stdout)[:3])
    yield from sorted(versions, key=lambda path: versions[path], reverse=True)


def call(words: list[Any], folder: Path, **env: str) -> str:
    """Run a command to its end; its output, or a failure that shows it."""
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, env=os.environ | env,
        capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def needed() -> dict[str, str]:
    """{package: version} of what the project needs, as this environment has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    left = [Requirement(line) for line in project["dependencies"]]
    found: dict[str, str] = {}
    seen: set[str] = set()
    while left:
        wanted = left.pop()
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        found[canonicalize_name(wanted.name)] = metadata.version(wanted.name)
        for requirement in map(Requirement, metadata.requires(wanted.name) or []):
            extras = [{"extra": extra} for extra in wanted.extras or {""}]
            if not requirement.marker or any(map(requirement.marker.evaluate, extras)):
                left.append(requirement)
    return found


def snapshot(folder: Path) -> Path:
    """A git repository that holds the files as they are here, committed or not."""
    names = call(["git", "ls-files", "-z", "-co", "--exclude-standard"], ROOT).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.com"]
    call([*git, "init", "-q"], folder)
    call([*git, "add", "-A"], folder)
    call([*git, "commit", "-q", "-m", "as it is here"], folder)
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder that is removed at once: pytest would keep gigabytes."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.colab
@pytest.mark.skipif(sys.platform != "linux", reason="Colab is Linux")
def test_a_lesson_runs_in_an_environment_like_that_of_colab(place: Path) -> None:
    took: dict[str, float] = {}
    begin = time.monotonic()

    def lap(what: str) -> None:
        nonlocal begin
        took[what], begin = time.monotonic() - begin, time.monotonic()

    call([next(pythons()), "-m", "venv", "venv"], place)
    python = place / "venv/bin/python"
    if uv := os.environ.get("UV") or shutil.which("uv"):  # its cache has most of it
        install = [uv, "pip", "install", "-q", "--python", python]
    else:
        install = [python, "-m", "pip", "install", "-q", "--retries=10", "--no-compile"]
    versions = needed()
    pins = {name: f"{name}=={version}" for name, version in versions.items()}
    # The libraries of the new torch are 2 GB: they are there, torch itself is not.
    present = [pins[name] for name in sorted(pins.keys() - {*repository.INSTALLED_FIRST})]
    call([*install, *JUPYTER], place)
    call([*install, "--no-deps", *present], place)
    call([*install, "--no-deps", *(f"{name}=={version}" for name, version in OLD.items())], place)
    constraints = place / "constraints.txt"
    constraints.write_text("\n".join([] if NEWEST else pins.values()), encoding="utf-8")
    site = Path(
        call([python, "-c", "import site; print(site.getsitepackages()[0])"], place).strip()
    )
    (site / "google/colab").mkdir(parents=True)
    (site / "google/colab/__init__.py").touch()
    lap("environment")

    repo = place / "repository"
    repo.mkdir()
    env = {
        "M08_SOURCE": f"git+file://{snapshot(repo)}",
        "PIP_DEFAULT_TIMEOUT": "300",
        "PIP_RETRIES": "10",
        "PIP_CONSTRAINT": str(constraints),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "JUPYTER_DATA_DIR": str(place / "jupyter"),
        "IPYTHONDIR": str(place / "ipython"),
        "PYTHONPATH": "",
        "OMP_NUM_THREADS": "1",
    }
    own = {k: v for k, v in os.environ.items() if k not in ("PYTEST_CURRENT_TEST", "COLUMNS")}
    folder = place / "content"
    folder.mkdir()
    shutil.copy(LESSON, folder)
    script = place / "run.py"
    script.write_text(RUN, encoding="utf-8")

    def run(name: str, **more: str) -> subprocess.CompletedProcess[str]:
        words = [python, script, name, "900"]
        return subprocess.run(
            words,
            cwd=folder,
            env=own | env | more,
            capture_output=True,
            text=True,
            timeout=3000,
        )

    # pip itself, without a network
    failed = run(LESSON.name, **NO_NETWORK)
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1] == (
        f"SystemExit: pip could not install {env['M08_SOURCE']}: check the network, then run this "
        "cell again."
    )
    lap("no network")

    done = run(LESSON.name)
    assert done.returncode == 0, done.stderr[-3000:]
    lap("lesson")
    cells = code_cells(read(folder / "executed.ipynb"))
    torch = call(
        [python, "-c", "from importlib.metadata import version as v; print(v('torch'))"], place
    )
    assert NEWEST or torch.strip().partition("+")[0] == versions["torch"].partition("+")[0]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert cells[0].outputs[0].text == f"Installing from {env['M08_SOURCE']}\n"
    (line,) = re.findall(r"^env: .*$", "".join(o.get("text", "") for o in cells[1].outputs), re.M)

    # Restarted, or opened again, in the same environment: nothing to do.
    alone = read(folder / LESSON.name)
    alone.cells = code_cells(alone)[:1]
    (folder / "alone.ipynb").write_text(json.dumps(alone), encoding="utf-8")
    again = run("alone.ipynb", **NO_NETWORK)
    assert again.returncode == 0, again.stderr[-3000:]
    assert not code_cells(read(folder / "executed.ipynb"))[0].outputs
    print(line, {what: f"{seconds:.0f} s" for what, seconds in took.items()}, sep="\n")
