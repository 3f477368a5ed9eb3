"""Write docs/settings.md from the table in quail_spark/conf.py. `--check`: only say whether it is current."""

import sys
from pathlib import Path

from quail_spark.conf import settings_table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
HEAD = """\
<!-- Made by `make docs` from quail_spark/conf.py; do not edit. -->
# Settings

Set them in the session's configuration (`spark.conf.set`, `--conf`, `spark-defaults.conf`), or as keyword arguments of
`quail_spark.enable`: `spark.quail.engine.tokenBudget` is `engine_token_budget`. `enable`
refuses a name that is not in this table. `RESET` and `spark.newSession()` drop what `enable` has set; call it again there.
Sizes take `k`, `m`, `g`; times take `ms`, `s`, `m`, `h`.

Another model, device, number type, answer store or `engine.*` (but for timeouts) means another engine, which loads its model anew. There is one to a
device: while the present one is at work, a query with other settings waits half a minute and then fails.

Environment variables: `QUAIL_SPARK_MODEL` names the model where `spark.quail.model` is empty; `QUAIL_SPARK_CACHE` is where
fetched and converted models are kept (else `$XDG_CACHE_HOME/quail-spark` or `~/.cache/quail-spark`).

"""


def page() -> str:
    """The page's whole text."""
    return f"{HEAD}{settings_table()}\n"


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != page():
        sys.exit(f"{PAGE.relative_to(PAGE.parent.parent)} is not current; run: make docs")
