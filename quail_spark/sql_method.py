"""`SparkSession.sql` with the front end before it, in every Python object of an enabled session. Driver-side.

pyspark makes such objects anew: `SparkSession.getActiveSession()`, `df.sparkSession` in foreachBatch. So the class is wrapped,
not an object, as long as one session is enabled; which sessions that concerns their settings say.
"""

import functools
from weakref import WeakSet

from .conf import PREFIX
from .engines import propagate
from .sql import rewrite
from .sql_tokens import Literals

_ORIGINAL = "_quail_spark_original"  # on the wrapped method
_users: WeakSet = WeakSet()  # sessions that were enabled and not disabled


def wrap_sql(spark) -> None:
    """From now on AI calls in texts that the session gets are rewritten. May be called again."""
    _users.add(spark)
    owner = _owner(spark)
    if not hasattr(owner.sql, _ORIGINAL):
        owner.sql = _wrapped(owner.sql)


def unwrap_sql(spark) -> None:
    """The session's texts go to Spark as they are; the method is Spark's own once no session of the class is left."""
    _users.discard(spark)
    owner = _owner(spark)
    if hasattr(owner.sql, _ORIGINAL) and not any(_owner(user) is owner for user in _users):
        owner.sql = getattr(owner.sql, _ORIGINAL)


def is_connect(spark) -> bool:
    """Whether this is a session of Spark Connect, which has no JVM."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _owner(spark) -> type:
    """The class that defines the session's `sql`."""
    return next(kind for kind in type(spark).__mro__ if "sql" in vars(kind))


def _wrapped(spark_sql):
    @functools.wraps(spark_sql)
    def sql(self, sqlQuery, *args, **kwargs):
        if not isinstance(sqlQuery, str) or not _is_enabled(self):
            return spark_sql(self, sqlQuery, *args, **kwargs)  # Spark has the word
        connect, formatted = is_connect(self), kwargs.keys() - {"args"}
        how = {"formatted": formatted or None, "literals": functools.partial(_literals, self)}
        text = rewrite(sqlQuery, inline_prompt=connect, **how)
        if text is not sqlQuery and not connect:
            propagate(self)
        return spark_sql(self, text, *args, **kwargs)

    setattr(sql, _ORIGINAL, spark_sql)
    return sql


def _is_enabled(spark) -> bool:
    """Also a session whose settings were reset: what AI calls find there says so."""
    return spark in _users or spark.conf.get(PREFIX + "model", None) is not None


def _literals(spark) -> Literals:
    """How the session reads text in quotes."""

    def is_on(name: str) -> bool:
        return spark.conf.get(name) == "true"

    names = is_on("spark.sql.ansi.enabled") and is_on("spark.sql.ansi.doubleQuotedIdentifiers")
    return Literals(double_quotes=not names, escapes=not is_on("spark.sql.parser.escapedStringLiterals"))
