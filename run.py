"""Do all set-up and run the lessons or the tests, on a machine that has only Python.

    python3 run.py lessons    execute the notebooks and store their outputs in them
    python3 run.py tests      run all tests, every notebook included
    python3 run.py lab        open the notebooks in JupyterLab
    python3 run.py uv ...     anything else that uv can do here, such as: uv run ruff check

Further words are handed on: notebooks after `lessons`, options of pytest after `tests`; paths are
seen from the folder of this file. The first run downloads what it needs. All of it stays in .uv
and .venv beside this file and in uv's cache; nothing is installed into your Python.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - the reader's may be older than the project's
    sys.exit(
        f"This project needs Python 3.11 to 3.14, and this is Python {sys.version.split()[0]}: "
        "start run.py with a newer one, or install uv and type: uv run pytest"
    )

ROOT = Path(__file__).resolve().parent
HOME = ROOT / ".uv"
UV = "uv>=0.13,<0.14"
NEXT = """
The lessons are executed. To read and change them in JupyterLab, type in the folder
{root}
    {command}
"""


def usable(uv: str | Path | None) -> bool:
    """Say whether this file is a uv that starts and has the version wanted here."""
    try:
        out = subprocess.run([uv or "", "--version"], capture_output=True, text=True).stdout
    except OSError:
        return False
    return re.match(r"uv 0\.13\.", out) is not None


def private_uv() -> Path | None:
    """Return the uv inside .uv; a target folder of pip has bin/ on Windows as well."""
    places = [HOME / folder / name for folder in ("bin", "Scripts") for name in ("uv", "uv.exe")]
    return next(filter(usable, places), None)


def install_uv() -> None:
    """Put uv into .uv with what this Python has: venv, or else pip alone."""
    print("Setting up uv in .uv", file=sys.stderr, flush=True)
    shutil.rmtree(HOME, ignore_errors=True)  # what an interrupted run left
    # pip must follow these two lines whatever the user's own settings ask for.
    env = os.environ | {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}

    def works(*words: str | Path) -> bool:
        done = subprocess.run([sys.executable, *words], env=env, capture_output=True)
        return done.returncode == 0

    if works("-m", "venv", HOME):  # fails on Debian and Ubuntu without python3-venv
        python = HOME / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        pip = [python, "-m", "pip", "install"]
    elif works("-m", "pip", "--version"):
        shutil.rmtree(HOME, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--target", HOME]
    else:
        shutil.rmtree(HOME, ignore_errors=True)
        sys.exit(
            "This Python has neither venv nor pip: install one of them (on Debian and Ubuntu: "
            "sudo apt install python3-venv) or uv itself, then run this again."
        )
    if call([*pip, "--quiet", "--disable-pip-version-check", UV], env) or not private_uv():
        sys.exit(f"pip could not install {UV} (its message is above); nothing else was changed.")


def call(command: list[str | Path], env: dict[str, str]) -> int:
    """Run a command in the project's folder and return its exit status."""
    with subprocess.Popen(command, cwd=ROOT, env=env) as process:
        while True:
            try:
                status = process.wait()
            except KeyboardInterrupt:  # the command got Ctrl-C too: let it finish its own way
                continue
            return status if status >= 0 else 128 - status


def main(words: list[str]) -> int:
    """Find or install uv, then run the command that the first word names."""
    commands = {
        "lessons": ["run", "python", "tools/execute_notebooks.py", *(words[1:] or ["notebooks"])],
        "tests": ["run", "pytest", *words[1:]],
        "lab": ["run", "jupyter", "lab", *(words[1:] or ["notebooks"])],
        "uv": words[1:],
    }
    if not words or words[0] not in commands:
        print(__doc__)
        return 0 if words in (["-h"], ["--help"]) else 2

    on_path = shutil.which("uv")
    if not usable(on_path):
        on_path = None
        if not private_uv():
            install_uv()
    uv = on_path or private_uv() or ""

    env = dict(os.environ)
    # The first two refuse our short uv.lock, the third names another environment, and without
    # bytecode every kernel spends half a minute on compiling torch and ExecuTorch again.
    for name in ("UV_LOCKED", "UV_FROZEN", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"):
        env.pop(name, None)
    if sys.version_info < (3, 15):  # otherwise uv looks for a Python, or downloads one
        env.setdefault("UV_PYTHON", sys.executable)
    if not (ROOT / ".venv").exists():
        print("First run: downloading what is missing; README.md says how much.", file=sys.stderr)

    status = call([uv, *commands[words[0]]], env)
    if words[0] == "lessons" and status == 0:
        python = "py" if os.name == "nt" else "python3"
        how = "uv run jupyter lab notebooks" if on_path else f"{python} run.py lab"
        print(NEXT.format(root=shlex.quote(str(ROOT)), command=how))
    return status


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # while uv was being set up
        sys.exit(130)
