"""The package as users get it: from a wheel, editable, and with the repository as the current directory."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAPPED = ("engine", "kernels", "optimizer")
IMPORTS = (
    "import quail_spark.engine, quail_spark.kernels, quail_spark.optimizer.plan, quail_spark.conf, quail_spark.cli"
)
SHOW = "print(*(sys.modules[n].__file__ for n in ('quail_spark', 'quail_spark.engine', 'quail_spark.optimizer.plan')))"


def run(*command, cwd, **environment) -> str:
    """Standard output of a command that must succeed, without this session's Python path."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    result = subprocess.run(command, cwd=cwd, env=inherited | environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> Path:
    """A copy of what is packaged, so that building leaves nothing in the working tree."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("quail_spark", "tests", "benchmarks", "examples", *MAPPED):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="session")
def wheel(source, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*pip, "--wheel-dir", out, source, cwd=out)
    (path,) = out.glob("quail_spark-*.whl")
    return path


def test_wheel_holds_every_module_below_quail_spark(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        f"{'' if folder == 'quail_spark' else 'quail_spark/'}{path.relative_to(ROOT)}"
        for folder in ("quail_spark", *MAPPED)
        for pattern in ("*.py", "*.java", "*.sh")
        for path in (ROOT / folder).rglob(pattern)
    }
    assert expected <= names
    assert {name.split("/")[0] for name in names} == {"quail_spark"}, "nothing else lands in site-packages"


def test_wheel_declares_command_and_licence(wheel):
    with zipfile.ZipFile(wheel) as archive:
        texts = {name.split("/")[-1]: archive.read(name).decode() for name in archive.namelist() if "dist-info" in name}
    assert "quail-spark = quail_spark.cli:main" in texts["entry_points.txt"]
    assert "Apache License" in texts["LICENSE"]
    assert "Requires-Python: >=3.11" in texts["METADATA"]


def test_wheel_installs_and_imports(wheel, tmp_path):
    target = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, wheel, cwd=tmp_path)
    assert os.access(target / "quail_spark" / "data" / "discover_gpus.sh", os.X_OK), "Spark runs it as it is"
    assert not [name for name in MAPPED if (target / name).exists()]
    out = run(sys.executable, "-c", f"import sys; {IMPORTS}; {SHOW}", cwd=tmp_path, PYTHONPATH=str(target))
    assert all(Path(path).is_relative_to(target) for path in out.split())


def test_editable_install_imports(source, tmp_path):
    """In an environment of its own, which sees this one's packages but not this one's editable installs."""
    environment = tmp_path / "env"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    own = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    (Path(own) / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*pip, "--editable", source, cwd=tmp_path)
    out = run(python, "-c", f"import sys; {IMPORTS}; {SHOW}", cwd=tmp_path)
    assert all(Path(path).is_relative_to(source) for path in out.split())
    assert run(environment / "bin" / "quail-spark", "--version", cwd=tmp_path).startswith("quail-spark ")


def test_our_kernels_are_not_taken_for_the_package_of_that_name(tmp_path):
    """From the repository's root the folder `kernels` can be imported under that name; transformers looks for one."""
    code = (
        "import transformers.utils; "
        "from transformers import AutoModelForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, LlamaForCausalLM; "
        "print(transformers.utils.is_kernels_available())"
    )
    assert run(sys.executable, "-c", code, cwd=ROOT) == run(sys.executable, "-c", code, cwd=tmp_path)


def test_imports_from_the_root_are_those_of_the_package():
    out = run(sys.executable, "-c", f"import sys; {IMPORTS}; print('kernels' in sys.modules)", cwd=ROOT)
    assert out.split() == ["False"]


def test_the_connector_imports_without_torch(tmp_path):
    """On the driver and in Spark's Python workers."""
    code = (
        "import sys, quail_spark, quail_spark.conf, quail_spark.models, quail_spark.cli; print('torch' in sys.modules)"
    )
    assert run(sys.executable, "-c", code, cwd=tmp_path).split() == ["False"]


def test_our_kernels_have_a_version_that_every_transformers_refuses():
    """Releases before 5.17 read the version of whatever imports as `kernels`, and parse it without a check."""
    code = "import kernels; from packaging.version import parse; print(kernels.__file__, parse(kernels.__version__) < parse('0.0.1'))"
    path, older = run(sys.executable, "-c", code, cwd=ROOT).split()
    assert Path(path).parent == ROOT / "kernels" and older == "True"
