"""The command `quail-spark`: what it prints, its exit status, and never a stack trace."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import quail_spark
from quail_spark import cli, conf, doctor, java_home
from quail_spark.doctor import HERE, MISSING, NOTE, Check
from quail_spark.errors import SetupError


def fake_java(home: Path, version: str) -> Path:
    """A `java` that only knows its version, as OpenJDK prints it."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return home


@pytest.fixture
def no_java(monkeypatch, tmp_path):
    """A machine without Java; returns the folder in which installed ones are looked for."""
    installed = tmp_path / "jvm"
    installed.mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java_home, "INSTALLED_UNDER", (str(installed),))
    return installed


def by_name(checks):
    return {check.name: check for check in checks}


def test_version(capsys):
    with pytest.raises(SystemExit) as raised:
        cli.main(["--version"])
    assert raised.value.code == 0
    assert capsys.readouterr().out == f"quail-spark {quail_spark.__version__}\n"


def test_settings_prints_every_setting(capsys):
    assert cli.main(["settings"]) == 0
    out = capsys.readouterr().out
    assert all(f"`{conf.PREFIX}{setting.name}`" in out for setting in conf.SETTINGS)


def test_an_error_is_one_line_and_status_1(capsys):
    assert cli.main(["fetch-model", "--model", "./nowhere"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "'./nowhere'" in err and "Traceback" not in err


def test_the_command_runs_as_a_process():
    command = [sys.executable, "-P", "-m", "quail_spark.cli", "fetch-model", "--model", "./nowhere"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and result.stderr.startswith("quail-spark: the model './nowhere'")


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -P -m quail_spark.cli settings | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_doctor_on_this_machine(capsys, real_model):
    """The tests run here, so what they need is here: all but the model's memory, which others may be using."""
    assert not [check for check in doctor.examine() if check.missing and check.name != "memory"]


def test_doctor_says_what_is_missing_and_exits_with_1(no_java, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("QUAIL_SPARK_CACHE", str(tmp_path / "empty"))
    monkeypatch.delenv("QUAIL_SPARK_MODEL", raising=False)
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "→ quail-spark fetch-model" in out and f"→ {java_home.INSTALL}" in out
    assert out.rstrip().splitlines()[-1] == "Missing: Java, default model"


def test_doctor_names_the_versions_it_accepts(monkeypatch):
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: ["pyspark<4.4,>=4.0", "numpy>=1", "no-such-thing>=2"])
    versions = {"pyspark": "3.5.9", "numpy": "2.4.6"}

    def version(name):
        if name not in versions:
            raise doctor.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(doctor.metadata, "version", version)
    checks = by_name(doctor._packages())
    assert [checks[name].state for name in ("pyspark", "numpy", "no-such-thing")] == [MISSING, HERE, MISSING]
    assert checks["pyspark"].found == "3.5.9; accepted: <4.4,>=4.0"
    assert checks["no-such-thing"].fix.endswith("-m pip install 'no-such-thing>=2'")


def test_doctor_examines_every_declared_dependency():
    names = {check.name for check in doctor._packages()}
    assert {"pyspark", "pyarrow", "torch", "transformers", "sqlglot"} <= names
    assert "pytest" not in names, "a development tool is not needed to run"


def test_doctor_survives_a_broken_library(monkeypatch):
    def broken(name):
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(doctor.importlib, "import_module", broken)
    check = next(check for check in doctor.examine() if check.name == "torch" and "looking failed" in check.found)
    assert check.missing and "libcudart.so.13" in check.found


def test_doctor_compares_memory_with_the_model(monkeypatch):
    monkeypatch.setattr(doctor, "_available_memory", lambda: 4 << 30)
    assert doctor._memory(model_bytes=(1 << 30) - 1).state == HERE
    assert doctor._memory(model_bytes=(1 << 30) + 1).state == MISSING


def test_doctor_notices_a_cache_that_can_not_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QUAIL_SPARK_CACHE", str(tmp_path / "file" / "below"))
    (check,) = doctor._cache()
    assert check.state == MISSING and "QUAIL_SPARK_CACHE" in check.fix


def test_report_lists_fixes_below_what_they_mend():
    text = doctor.report([Check("Java", MISSING, "none", "install it"), Check("GPU", NOTE, "none")])
    assert text == "MISSING  Java  none\n               → install it\n   note  GPU   none\n\nMissing: Java"
    assert doctor.report([Check("Java", HERE, "17")]).endswith("All that a query needs is here.")


def test_java_home_wins_over_installed_ones(no_java, monkeypatch, tmp_path):
    fake_java(no_java / "java-21", "21.0.1")
    given = fake_java(tmp_path / "given", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(given))
    assert java_home.find_java() == given


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392", "25"])
def test_an_unsupported_java_yields_to_an_installed_one(no_java, monkeypatch, tmp_path, version):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "given", version)))
    assert java_home.find_java() is None
    good = fake_java(no_java / "java-21", "21.0.1")
    assert java_home.find_java() == good
    (check,) = doctor._java()
    assert check.state == MISSING and check.fix == f"export JAVA_HOME={good}"


def test_java_on_the_path_is_found_through_links(no_java, tmp_path):
    home = fake_java(tmp_path / "elsewhere", "17.0.1")
    os.symlink(home / "bin" / "java", tmp_path / "java")
    assert java_home.find_java() == home


def test_use_java_sets_the_environment_or_says_what_to_install(no_java, monkeypatch):
    with pytest.raises(SetupError, match=r"needs Java 17 or 21 and no Java was found; install one with: sudo apt-get"):
        java_home.use_java()
    home = fake_java(no_java / "java-17", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", "")
    java_home.use_java()
    assert os.environ["JAVA_HOME"] == str(home)


def test_java_home_runs_as_a_script_before_anything_is_installed(no_java):
    script = Path(quail_spark.__file__).with_name("java_home.py")
    command = [sys.executable, "-I", "-S", str(script)]
    home = fake_java(no_java / "java-17", "17.0.1")
    result = subprocess.run(command, capture_output=True, text=True, env={"JAVA_HOME": str(home)}, check=False)
    assert (result.returncode, result.stdout) == (0, f"{home}\n")


def test_the_settings_page_is_current():
    """docs/settings.md is made from the table; an edit of one without the other fails here."""
    script = Path(__file__).parent.parent / "tools" / "settings_page.py"
    result = subprocess.run([sys.executable, "-P", script, "--check"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
