"""The laws of the house: arrows between packages run down, kernel source names no target."""

import ast
import configparser
import re
from pathlib import Path

import pytest

import gemm
import gemm.backends
import gemm.microkernels

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "gemm": Path(gemm.__file__).parent,
    "gemm.backends": Path(gemm.backends.__path__[0]),
    "gemm.microkernels": Path(gemm.microkernels.__path__[0]),
}
# What each may import of the project.
ALLOWED = {
    "gemm.microkernels": {"gemm.microkernels"},
    "gemm.backends": {"gemm.backends", "gemm.microkernels"},
    "gemm": {"gemm", "gemm.backends", "gemm.microkernels"},
    "gemm.perf": {"gemm", "gemm.backends", "gemm.microkernels", "gemm.perf"},
}
TOP = ("gemm.backends", "gemm.microkernels", "gemm.perf")


def package_of(module: str) -> str:
    """Which of the four packages a module belongs to; '' for other projects."""
    for package in TOP:
        if module == package or module.startswith(package + "."):
            return package
    return "gemm" if module == "gemm" or module.startswith("gemm.") else ""


def imports(source: str, module: str) -> set[str]:
    """Absolute names of everything a module imports, also inside functions."""
    parts = module.split(".")
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{name}.{alias.name}" for alias in node.names} | {name}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            found |= {x.value for x in node.args[:1] if isinstance(x, ast.Constant)}
    return found


def wrong_arrows(source: str, module: str) -> set[str]:
    package = package_of(module)
    # `gemm.backends` names the folder itself, which may import nothing upwards.
    return {
        name
        for name in imports(source, module)
        if package_of(name) and package_of(name) not in ALLOWED[package]
        and not (name == "gemm" and package != "gemm.microkernels" and _only_locates(source))
    }  # fmt: skip


def _only_locates(source: str) -> bool:
    """`import gemm` to find its folder: the digest of the sources needs it, nothing is called."""
    uses = re.findall(r"\bgemm\.(?!backends|microkernels|perf)(\w+)", source)
    return set(uses) <= {"__file__", "__path__"}


def modules():
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            relative = path.relative_to(folder).with_suffix("")
            name = ".".join([package, *relative.parts])
            if "asv_benchmarks" not in name:
                yield name.removesuffix(".__init__"), path
    for path in sorted((ROOT / "perf").glob("*.py")):
        yield f"gemm.perf.{path.stem}", path


def test_arrows_run_down():
    wrong = {
        name: arrows for name, path in modules() if (arrows := wrong_arrows(path.read_text(), name))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("gemm.backends.cpu.kernels", "from gemm.engine import product"),
        ("gemm.backends.compiler", "import gemm.plan"),
        ("gemm.backends.compiler", "from gemm import plan"),
        ("gemm.backends.compiler", "def f():\n    from ..plan import Plan"),
        ("gemm.backends.compiler", "import importlib\nimportlib.import_module('gemm.plan')"),
        ("gemm.microkernels.dtypes", "from gemm.backends import values"),
        ("gemm.microkernels.dtypes", "import gemm"),
        ("gemm.engine", "from gemm.perf import timing"),
        ("gemm.engine", "from .perf import timing"),
    ],
)
def test_a_planted_arrow_is_found(module, line):
    assert wrong_arrows(line, module)


# -- targets -------------------------------------------------------------------------------------

WORDS = re.compile(
    r"(?<![a-z])(cpus?|cuda|gpus?|ptx|nvptx|avx\w*|amx\w*|sse\w*|neon|x86\w*|aarch64|arm64|sm_\d+\w*|"
    r"wgmma|tma|nvidia|simt|zmm|ymm)(?![a-z])",
    re.IGNORECASE,
)


def kernel_sources() -> list[Path]:
    """Kernel source, packing, loops, plans and epilogues."""
    from gemm.backends.cpu.kernels import KERNEL_SOURCES

    package = FOLDERS["gemm"]
    files = [package / name for name in KERNEL_SOURCES] + [package / "plan.py"]
    return [*files, *package.glob("team/*.py"), *FOLDERS["gemm.microkernels"].glob("*.py")]


def needed_by(*roots: str) -> set[str]:
    """Files of gemm/ that these import, directly or not; backends and microkernels apart."""
    package, found, waiting = FOLDERS["gemm"], set(), [*roots]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        module = ".".join(["gemm", *Path(name).with_suffix("").parts])
        for other in imports((package / name).read_text(), module):
            file = "/".join(other.split(".")[1:]) + ".py"
            if package_of(other) == "gemm" and (package / file).is_file():
                waiting.append(file)
    return found


def test_the_digest_of_kernels_covers_what_they_are_made_of():
    from gemm.backends.cpu.kernels import KERNEL_SOURCES
    from gemm.backends.cuda.kernels import SOURCES

    assert "epilogues/writer.py" in needed_by("kernels.py")
    assert needed_by("kernels.py", "convolution/specs.py") == set(KERNEL_SOURCES)
    assert needed_by("team/__init__.py", "team/choice.py") == set(SOURCES)


def named_targets(source: str) -> list[str]:
    """Targets named in the code of a file: docstrings and comments may explain."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            if isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str):
                body[0].value.value = ""
    return WORDS.findall(ast.unparse(tree))


def test_kernel_source_names_no_target():
    found = {
        str(path): names for path in kernel_sources() if (names := named_targets(path.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    "planted",
    [
        "def f(target):\n    if target == 'cuda':\n        return 1",
        "def f():\n    return target.is_cpu",
        "from gemm.backends.cuda import driver",
        "LANES = {'avx2': 8}",
        "use_avx512 = True",
    ],
)
def test_a_planted_target_is_found(planted):
    assert named_targets('"""A cpu kernel."""\n' + planted)
    assert not named_targets('"""A cpu kernel."""\n# for cuda\nx = 1')


def test_the_rest_of_gemm_names_targets_only_to_reach_a_backend():
    """In imports of gemm.backends.X, and as option values that a user types."""
    wrong = {}
    for name, path in modules():
        if package_of(name) != "gemm" or path in kernel_sources():
            continue
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            names = [getattr(node, key, None) for key in ("id", "attr", "arg")]
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.append(node.name)
            for text in names:
                # `cpus` is a module of data.
                if isinstance(text, str) and WORDS.fullmatch(text) and text != "cpus":
                    wrong.setdefault(name, set()).add(text)
    # The drop-ins speak their hosts' language, where devices have these names.
    hosts = ("gemm.torch", "gemm.onnx")
    assert {name: words for name, words in wrong.items() if not name.startswith(hosts)} == {}


def test_share_of_kernel_source_that_all_targets_share(capsys):
    """Lines of kernel source that no target has to itself: all of them."""
    shared = total = 0
    for path in kernel_sources():
        lines = [x for x in path.read_text().splitlines() if x.strip()]
        total += len(lines)
        shared += 0 if named_targets(path.read_text()) else len(lines)
    with capsys.disabled():
        share = f"{shared} of {total} lines ({shared / total:.0%})"
        print(f"\nkernel source shared by all targets: {share}")
    assert shared == total


# -- packaging -----------------------------------------------------------------------------------


def test_every_package_is_installed():
    """setup.cfg names each folder that holds modules, and maps the siblings into the package."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    packages = set(config["options"]["packages"].split())
    on_disk = set()
    for package, folder in [*FOLDERS.items(), ("gemm.perf", ROOT / "perf")]:
        for init in folder.rglob("__init__.py"):
            parts = init.parent.relative_to(folder).parts
            if "asv_benchmarks" not in parts:
                on_disk.add(".".join([package, *parts]))
    assert packages == on_disk
    mapped = dict(
        line.split(" = ") for line in config["options"]["package_dir"].strip().splitlines()
    )
    assert set(mapped) == packages
    assert all((ROOT / folder).is_dir() for folder in mapped.values())


def test_nothing_names_a_registry_host():
    for path in [ROOT / "setup.cfg", ROOT / "pyproject.toml", *(ROOT / ".ci").glob("*")]:
        assert not re.search(r"(index-url|find-links|https?://)", path.read_text()), path
