"""The command `quail-spark`."""

import argparse
import os
import sys
from pathlib import Path

from quail_spark.optimizer.errors import QuailError


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status. What went wrong is one sentence on stderr, never a stack trace."""
    options = _parser().parse_args(arguments)
    try:
        status = options.run(options)
        sys.stdout.flush()
        return status
    except QuailError as error:
        print(f"quail-spark: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("quail-spark: interrupted; run the command again to go on where it stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    from quail_spark import __version__

    parser = argparse.ArgumentParser(prog="quail-spark", description="AI-SQL inside Apache Spark.")
    parser.add_argument("--version", action="version", version=f"quail-spark {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    fetch = commands.add_parser("fetch-model", help="bring a model to this machine (the default one unless named)")
    fetch.add_argument("--model", default="default", help="a directory, a GGUF file, a hub id, or `default`")
    fetch.add_argument("--to", type=Path, metavar="DIR", help="also put a plain copy there, to carry elsewhere")
    fetch.add_argument("--force", action="store_true", help="fetch the default model anew even if it is here")
    fetch.set_defaults(run=_fetch_model)

    doctor = commands.add_parser("doctor", help="say what is here, what is missing, and how to get it")
    doctor.set_defaults(run=_doctor)

    metrics = commands.add_parser("metrics", help="print the totals of this machine's engines, for Prometheus")
    metrics.add_argument("--application", metavar="ID", help="only those of one Spark application")
    metrics.set_defaults(run=_metrics)

    script = commands.add_parser("gpu-script", help="print the path of a GPU discovery script for Spark")
    script.set_defaults(run=_gpu_script)

    settings = commands.add_parser("settings", help="print the table of spark.quail.* settings")
    settings.set_defaults(run=_settings)
    return parser


def _fetch_model(options: argparse.Namespace) -> int:
    from .models import fetch

    fetch(options.model, to=options.to, force=options.force)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from .doctor import examine, report

    checks = examine()
    print(report(checks))
    return 1 if any(check.missing for check in checks) else 0


def _metrics(options: argparse.Namespace) -> int:
    from .prometheus import machine_metrics

    print(machine_metrics(options.application), end="")
    return 0


def _gpu_script(options: argparse.Namespace) -> int:
    print(Path(__file__).with_name("data") / "discover_gpus.sh")
    return 0


def _settings(options: argparse.Namespace) -> int:
    from .conf import settings_table

    print(settings_table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
