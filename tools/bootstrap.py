"""What `make setup` runs: a virtual environment with this package and its development tools, and a Java for Spark.

Standard library only. Written so that an old Python reads far enough to say what is wrong.
"""

import os
import shutil
import subprocess
import sys

LEAST = (3, 11)
REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main():
    if sys.version_info < LEAST:
        sys.exit(
            f"quail-spark needs Python 3.11 or newer and {sys.executable} is {sys.version.split()[0]}; "
            "name another one with: make PYTHON=python3.12"
        )
    venv = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".venv")
    make_venv(venv)
    install_package(venv)
    find_or_install_java(venv)


def say(line):
    print("==> " + line, flush=True)


def run(*command, **options):
    """Run a command; its output shows only when it fails, which ends the set-up with one line that names it."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if result.returncode != 0:
        print(result.stdout, end="")
        sys.exit(f"Set-up stopped: `{' '.join(command)}` failed (exit status {result.returncode})")


def runs(*command):
    """Whether a command exists and succeeds."""
    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def may_apt():
    return shutil.which("apt-get") is not None and os.geteuid() == 0


def apt_install(*alternatives):
    """Install the first of `alternatives` that this release offers; False when it offers none."""
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    run("apt-get", "update", "-qq", env=environment)
    for package in alternatives:
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends"]
        if runs(*command, "--simulate", package):
            run(*command, package, env=environment)
            return True
    return False


def make_venv(venv):
    python = os.path.join(venv, "bin", "python")
    if runs(python, "-m", "pip", "--version"):
        say(f"Using the virtual environment {venv}")
        return
    say(f"Creating the virtual environment {venv} with {sys.executable}")
    if os.path.isdir(venv):
        shutil.rmtree(venv)
    if has_ensurepip():
        run(sys.executable, "-m", "venv", venv)
    elif runs(sys.executable, "-m", "virtualenv", "--version"):
        run(sys.executable, "-m", "virtualenv", "--quiet", venv)
    elif may_apt():
        say("This Python lacks ensurepip: installing Debian's package for it")
        if not apt_install(f"python{sys.version_info[0]}.{sys.version_info[1]}-venv", "python3-venv"):
            sys.exit("apt offers no python3-venv for this Python; name another Python with: make PYTHON=python3.12")
        run(sys.executable, "-m", "venv", venv)
    elif runs(sys.executable, "-m", "pip", "--version"):
        make_venv_by_virtualenv(venv)
    else:
        sys.exit("This Python can't make a virtual environment; run: sudo apt-get install -y python3-venv")


def has_ensurepip():
    """Debian's python3 without python3-venv has the module venv, but not the pip wheel that ensurepip unpacks."""
    return runs(sys.executable, "-c", "import ensurepip, venv; ensurepip.version()")


def make_venv_by_virtualenv(venv):
    """`--target` leaves the system's Python alone, so an externally managed one allows it."""
    scratch = venv + "-virtualenv"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", scratch]
    run(*pip, "virtualenv")
    run(sys.executable, "-m", "virtualenv", "--quiet", venv, env=dict(os.environ, PYTHONPATH=scratch))
    shutil.rmtree(scratch)


def install_package(venv):
    say("Installing quail-spark and what it needs (the first time this brings some GB, PyTorch the most)")
    pip = [os.path.join(venv, "bin", "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, "--upgrade", "pip>=25")  # Debian 12's builds Spark in a way of which it then warns
    run(*pip, "--constraint", "constraints.txt", "--editable", ".[dev]", cwd=REPOSITORY)


def find_or_install_java(venv):
    finder = [os.path.join(venv, "bin", "python"), "-P", os.path.join(REPOSITORY, "quail_spark", "java_home.py")]
    if not runs(*finder) and may_apt():
        say("No Java 17 or 21 found: installing a headless one with apt")
        apt_install("openjdk-17-jre-headless", "openjdk-21-jre-headless")
    result = subprocess.run(finder, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(result.stderr.strip())
    say("Java: " + result.stdout.strip())


if __name__ == "__main__":
    main()
