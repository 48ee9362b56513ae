"""What the repository promises as a whole: what is committed, imported, built and run by CI."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path
from textwrap import dedent

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import common
from common import env
from tools.strip_lock import strip

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

# From the bottom up. A module imports from its own layer and from those below it.
LAYERS = [
    {"env", "_errors", "_text", "_journal"},
    {"graph_utils", "models", "data", "metrics"}
    | {"_table", "_figure", "_fx_view", "_annotations", "_dot", "_drawing", "viz"}
    | {"_bars", "_page", "_flatbuffer"},
    {"pt2e"},
    {"_pte_file", "_memory", "_runtime", "_threads", "_runner", "_lowering"}
    | {"_damage", "_trial", "_isolated"}
    | {"_xnnpack_graph", "_pte_bytes", "_inspected", "_inspect_pte", "_difference"}
    | {"_shared_constants", "_support", "_unused_patterns", "_verification"}
    | {"_agreement", "_partitioner", "_size_one"}
    | {"_rounding", "_samples"}
    | {"_shapes", "_signature", "_example", "_state"}
    | {"_exported", "_float_nodes", "_kernel_dtypes", "_lowering_words"}
    | {"_names", "_one_at_a_time", "_passes", "_portable"}
    | {"_observers", "_prepared", "_source_line", "_exports"},
    {"executorch_utils"},
    {"timing", "profiling", "roofline", "layers", "inspection", "report"}
    | {"_advice", "_op_rows", "_unmarked", "_overview", "_figures", "_measured", "_progress"}
    | {"_reported", "_report_run", "_report_page", "_report_command"},
]
LAYER_OF = {name: i for i, names in enumerate(LAYERS) for name in names}
WITHOUT_EXECUTORCH = LAYERS[0] | LAYERS[1]
MODULES = sorted((ROOT / "common").rglob("*.py"))


def module_name(path: Path) -> str:
    """Name below ``common``; the package itself is ``__init__``."""
    return path.relative_to(ROOT / "common").with_suffix("").as_posix().replace("/", ".")


def imports(path: Path) -> set[str]:
    """Dotted names of all that a file imports, at its top, in functions and for types alike."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: write the import in full"
            assert node.module is not None
            if node.module == "common":  # `from common import env` names modules, not objects
                found.update(f"common.{alias.name}" for alias in node.names)
            else:
                found.add(node.module)
    return found


def common_imports(path: Path) -> set[str]:
    """Modules of ``common`` that a file imports, without the prefix."""
    return {name.removeprefix("common.") for name in imports(path) if name.startswith("common.")}


# --- which way the imports point


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_point_down(path: Path) -> None:
    name = module_name(path)
    if name == "__init__":
        assert common_imports(path) <= LAYERS[0], "common/__init__.py may import the lowest layer"
        return
    assert name in LAYER_OF, f"common/{path.name} has no layer: give it one in LAYERS in this file"
    upward = {n for n in common_imports(path) if LAYER_OF.get(n, len(LAYERS)) > LAYER_OF[name]}
    assert not upward, f"common.{name} imports from a layer above its own: {sorted(upward)}"


def test_imports_have_no_cycle() -> None:
    TopologicalSorter({module_name(p): common_imports(p) for p in MODULES}).prepare()


@pytest.mark.parametrize("name", sorted(WITHOUT_EXECUTORCH))
def test_lower_layers_do_not_name_executorch(name: str) -> None:
    path = ROOT / "common" / f"{name}.py"
    tops = {imported.partition(".")[0] for imported in imports(path)}
    assert not tops & {"executorch", "torchao"}


def test_importing_the_lower_layers_does_not_import_executorch() -> None:
    public = sorted(n for n in WITHOUT_EXECUTORCH if not n.startswith("_"))
    code = dedent(f"""
        import importlib, sys
        for name in ["common", *("common." + n for n in {public})]:
            importlib.import_module(name)
            assert "executorch" not in sys.modules, name + " imports executorch"
        """)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_common_imports_only_what_is_declared() -> None:
    declared = {canonicalize_name(Requirement(d).name) for d in PROJECT["project"]["dependencies"]}
    owners = packages_distributions()
    for path in MODULES:
        for top in {name.partition(".")[0] for name in imports(path)}:
            if top in sys.stdlib_module_names or top == "common":
                continue
            distributions = {canonicalize_name(d) for d in owners.get(top, [])}
            assert distributions & declared, f"{path.name} imports {top}: declare its distribution"


# --- what pyproject.toml says is what the package says


def test_version_and_name_agree_with_pyproject() -> None:
    assert common.__version__ == PROJECT["project"]["version"]
    assert PROJECT["project"]["name"] == common.DISTRIBUTION


def test_tested_ranges_agree_with_pyproject() -> None:
    ranges = {r.name: r.specifier for r in map(Requirement, PROJECT["project"]["dependencies"])}
    for name, tested in env.TESTED.items():
        assert Requirement(name + tested).specifier == ranges[name]


# --- uv.lock


FULL_LOCK = """\
version = 1
revision = 5
requires-python = ">=3.11, <3.15"
resolution-markers = ["python_full_version >= '3.12'", "python_full_version < '3.12'"]

[[package]]
name = "us"
version = "0.1.0"
source = { editable = "." }
dependencies = [{ name = "them" }]

[[package]]
name = "them"
version = "1.0"
source = { registry = "https://index.example/simple" }
resolution-markers = ["python_full_version < '3.12'"]
wheels = [{ url = "https://files.example/them-1.0.whl", hash = "sha256:00" }]

[[package]]
name = "them"
version = "2.0"
source = { registry = "https://index.example/simple" }
resolution-markers = ["python_full_version >= '3.12'"]
"""


def test_strip_keeps_every_version_and_nothing_else() -> None:
    stripped = strip(FULL_LOCK)
    assert "example" not in stripped
    assert "us" not in {p["name"] for p in tomllib.loads(stripped)["package"]}
    assert tomllib.loads(stripped) == {
        "version": 1,
        "requires-python": ">=3.11, <3.15",
        "package": [
            {"name": "them", "version": "1.0", "source": {"registry": "."}},
            {"name": "them", "version": "2.0", "source": {"registry": "."}},
        ],
    }
    assert strip(stripped) == stripped


def test_strip_refuses_a_source_that_a_version_does_not_find_again() -> None:
    lock = FULL_LOCK.replace('registry = "https://index.example/simple"', 'git = "x"', 1)
    with pytest.raises(ValueError, match=r"them comes from .*git"):
        strip(lock)


def test_lock_meets_the_requirements() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))
    versions: dict[str, list[str]] = {}
    for package in lock["package"]:
        versions.setdefault(package["name"], []).append(package.get("version", ""))
    groups = PROJECT["dependency-groups"].values()
    for line in [*PROJECT["project"]["dependencies"], *(d for group in groups for d in group)]:
        wanted = Requirement(line)
        locked = versions.get(canonicalize_name(wanted.name), [])
        assert locked, f"uv.lock has no {wanted.name}: run `uv lock`, then tools/strip_lock.py"
        for version in locked:
            assert wanted.specifier.contains(version), f"uv.lock has {wanted.name} {version}"


# --- what is committed (the work tree differs: uv completes uv.lock in it)


@pytest.fixture(scope="module")
def blobs() -> dict[str, bytes]:
    """Path and content of every file in HEAD."""

    def git(*words: str, stdin: bytes = b"") -> bytes:
        done = subprocess.run(["git", *words], cwd=ROOT, input=stdin, capture_output=True)
        if done.returncode != 0:
            unavailable = pytest.fail if os.environ.get("CI") else pytest.skip
            unavailable(f"git has no commit to look at here: {done.stderr.decode()}")
        return done.stdout

    paths = git("ls-tree", "-r", "-z", "--name-only", "HEAD").decode("utf-8").split("\0")[:-1]
    out = git("cat-file", "--batch", stdin="".join(f"HEAD:{p}\n" for p in paths).encode("utf-8"))
    found = {}
    for path in paths:
        header, _, out = out.partition(b"\n")
        size = int(header.split()[-1])
        found[path], out = out[:size], out[size + 1 :]
    return found


def test_committed_lock_is_stripped(blobs: dict[str, bytes]) -> None:
    text = blobs["uv.lock"].decode("utf-8")
    assert "://" not in text
    assert strip(text) == text, "run: python tools/strip_lock.py"


def test_no_committed_file_names_a_package_index(blobs: dict[str, bytes]) -> None:
    # Assembled here, so that this file does not name them either.
    hosts = ["".join(p) + ".org" for p in [("py", "pi"), ("python", "hosted"), ("npm", "js")]]
    hosts += [".".join(p) for p in [("pypi", "python", "org"), ("download", "pytorch", "org")]]
    named = [
        (path, host) for path, blob in blobs.items() for host in hosts if host.encode() in blob
    ]
    assert not named


def test_no_committed_text_holds_a_path_of_a_machine(blobs: dict[str, bytes]) -> None:
    folders = ["root", "work", r"home/\w+", r"Users/\w+"]
    machine = re.compile(
        rf"(?<![\w./+-])/(?:{'|'.join(folders)})/|[A-Z]:\\+Users|ipykernel" + r"_\d+"
    )
    shows_them = {"tests/test_notebook_rules.py"}  # tests of the rule that forbids them
    found = []
    for path, blob in blobs.items():
        if b"\0" in blob or path in shows_them:
            continue
        for number, line in enumerate(blob.decode("utf-8").splitlines(), 1):
            found += [f"{path}:{number}: {hit.group()}" for hit in machine.finditer(line)]
    assert not found


# --- README.md and .ci/run


def commands(markdown: str) -> list[str]:
    """Lines of the fenced blocks that hold shell commands."""
    blocks = re.findall(r"^```(?:bash|sh|console)\n(.*?)^```", markdown, re.M | re.S)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def test_readme_shows_the_commands_that_ci_runs() -> None:
    shown = commands((ROOT / "README.md").read_text("utf-8"))
    ran = (ROOT / ".ci/run").read_text("utf-8").splitlines()
    workflow = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    assert "python3 run.py tests" in shown
    assert ran[-1] == "python3 run.py tests", "the summary of pytest comes last"
    assert "python3 run.py lessons" in shown
    assert "run: python3 run.py lessons" in workflow


def test_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    targets = re.findall(r"\]\(([^)#]+)\)", text) + re.findall(r'(?:src|href)="([^"#]+)"', text)
    missing = [t for t in targets if "://" not in t and not (ROOT / t).exists()]
    assert targets
    assert not missing


def test_the_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    example, _ = re.findall(  # the other one: tests/test_report.py
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.M | re.S
    )
    exec(compile(example, "README.md", "exec"), {})
    assert "1 delegate," in capsys.readouterr().out


def test_every_tool_has_a_line_in_its_readme() -> None:
    text = (ROOT / "tools/README.md").read_text("utf-8")
    missing = [p.name for p in (ROOT / "tools").glob("*.py") if f"| `{p.name}` |" not in text]
    assert not missing


def test_workflows_pin_actions_and_read_only() -> None:
    for path in sorted((ROOT / ".github/workflows").glob("*.yml")):
        text = path.read_text("utf-8")
        uses = re.findall(r"uses: *(\S+)(.*)", text)
        assert uses
        for action, comment in uses:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), f"{path.name}: {action}"
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{path.name}: {action}{comment}"
        assert "\npermissions:\n  contents: read\n" in text
        assert text.count("actions/checkout@") == text.count("persist-credentials: false")
        assert text.count("runs-on:") == text.count("timeout-minutes:")


# --- what is built


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the wheel and the source archive."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_wheel_works_outside_the_checkout(built: Path, tmp_path: Path) -> None:
    """A wheel of pure Python is installed by unpacking it, which is done here."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = dedent(f"""
        import sys
        checkout, site = {str(ROOT)!r}, {str(tmp_path / "site")!r}
        sys.path = [p for p in sys.path if p not in ("", checkout)]
        sys.path_importer_cache.clear()
        sys.meta_path = [f for f in sys.meta_path if "editable" not in repr(f)]
        import importlib.util
        assert importlib.util.find_spec("common") is None, "the checkout is still importable"
        sys.path.append(site)

        from importlib import metadata, resources
        import common
        from common.data import digits, trained_tiny_net
        import common.viz
        net, data = trained_tiny_net(), digits()
        right = (net(data.test_images).argmax(1) == data.test_labels).sum().item()
        assert right > 0.95 * len(data.test_labels), right
        assert (resources.files("common") / "py.typed").is_file()
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "common" and module.__file__:
                assert module.__file__.startswith(site), module.__file__
        print(metadata.version(common.DISTRIBUTION))
        """)
    isolated = [sys.executable, "-I", "-c", code]
    done = subprocess.run(isolated, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == PROJECT["project"]["version"]


def test_wheel_holds_the_package_and_its_licences(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(n for n in names if n.endswith(".dist-info/METADATA")))
    package = {
        p.relative_to(ROOT).as_posix()
        for p in (ROOT / "common").rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    assert {n for n in names if ".dist-info/" not in n} == package
    licences = {n.partition(".dist-info/licenses/")[2] for n in names if "/licenses/" in n}
    assert licences == {"LICENSE", "LICENSES/CC-BY-4.0.txt", "NOTICE.md"}
    assert b"License-Expression: Apache-2.0 AND CC-BY-4.0\n" in metadata


def test_source_archive_holds_the_licences(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "LICENSES/CC-BY-4.0.txt", "NOTICE.md", "pyproject.toml"} <= names
    assert "common/py.typed" in names
