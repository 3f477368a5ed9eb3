"""The SQL front end for texts that Spark itself parses: `df.filter("AI.IF(…)")`, `expr`, `EXECUTE IMMEDIATE`. Driver-side.

The text of `spark.sql` was rewritten before (sql_method.py), so that its errors keep their class; rewriting it again
changes nothing.
"""

from quail_spark.optimizer.errors import QuailError

from .scala import JavaObject
from .sql import rewrite
from .sql_tokens import Literals


class FrontEnd:
    """`java.util.function.Function` from [text, whether double quotes and escapes are those of literals] to [text, error or null]."""

    def __init__(self, gateway):
        self._gateway = gateway

    def apply(self, arguments: JavaObject) -> JavaObject:
        """Called by AiParser in the thread that parses."""
        text, double_quotes, escapes = arguments[0], arguments[1], arguments[2]
        answer = self._gateway.jvm.java.util.ArrayList()
        try:
            answer.add(rewrite(text, literals=lambda: Literals(double_quotes=double_quotes, escapes=escapes)))
            answer.add(None)
        except QuailError as error:
            answer.add(text)
            answer.add(f"{type(error).__name__}: {error}")
        return answer

    class Java:
        implements = ("java.util.function.Function",)
