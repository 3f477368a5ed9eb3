"""Find a Java that Spark runs on. Standard library only: also runs as a script, before anything is installed.

`python quail_spark/java_home.py` prints the home directory, or says what to do and exits with 1.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ACCEPTED = (17, 21)
INSTALL = "sudo apt-get install -y --no-install-recommends openjdk-17-jre-headless   (openjdk-21-jre-headless on releases without 17)"
INSTALLED_UNDER = ("/usr/lib/jvm", "/Library/Java/JavaVirtualMachines", "/opt/java", "/opt")


def version_of(home: Path) -> int | None:
    """The major version of the Java below `home`; None when there is none that runs."""
    try:
        result = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', result.stderr)
    return int(match[1]) if match and result.returncode == 0 else None


def spark_would_use() -> Path | None:
    """The home of the Java that Spark's launcher takes: $JAVA_HOME, else the `java` on the PATH."""
    if home := os.environ.get("JAVA_HOME"):
        return Path(home)
    java = shutil.which("java")
    return Path(java).resolve().parent.parent if java else None


def find_java() -> Path | None:
    """The home of an accepted Java: what Spark would use, else an installed one; None when there is none."""
    for home in (spark_would_use(), *_installed()):
        if home is not None and version_of(home) in ACCEPTED:
            return home
    return None


def use_java() -> Path:
    """Driver-side, before the session starts: point $JAVA_HOME to an accepted Java. Raises SetupError when there is none."""
    home = find_java()
    if home is None:
        from quail_spark.optimizer.errors import SetupError

        raise SetupError(missing())
    os.environ["JAVA_HOME"] = str(home)
    return home


def missing() -> str:
    """One sentence: what was found, what is accepted, what to do."""
    home = spark_would_use()
    version = version_of(home) if home else None
    found = f"Java {version} was found at {home}" if version else "no Java was found"
    return f"Spark needs Java 17 or 21 and {found}; install one with: {INSTALL}"


def _installed() -> list[Path]:
    roots = [Path(root) for root in INSTALLED_UNDER]
    homes = [home for root in roots if root.is_dir() for home in sorted(root.iterdir())]
    homes += [home / "Contents" / "Home" for home in homes]
    return [home for home in homes if (home / "bin" / "java").is_file()]


if __name__ == "__main__":
    found = find_java()
    if found is None:
        sys.exit(missing())
    print(found)
