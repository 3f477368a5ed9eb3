"""Recognise AI calls in Catalyst expressions. Driver-side."""

from dataclasses import dataclass

from quail_spark.optimizer.options import CallOptions, parse_options
from quail_spark.optimizer.template import check_arguments, placeholders

from .scala import Catalyst, JavaObject, items, kind


@dataclass(frozen=True)
class AiCall:
    """`ai_if(named_struct('template', …, 'args', array(…)), options)` with a literal template."""

    expression: JavaObject
    template: str
    arguments: tuple[JavaObject, ...]
    options: CallOptions

    @property
    def used(self) -> tuple[int, ...]:
        """Indices of the arguments the template uses, by first use."""
        return placeholders(self.template)

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for calls of one query that ask the same about the same columns."""
        return (self.template, *(str(argument.toString()) for argument in self.arguments))


def is_ai(expression: JavaObject) -> bool:
    """Whether this expression is an AI call."""
    return kind(expression) == "PythonUDF" and expression.name() == "ai_if"


def ai_call(catalyst: Catalyst, expression: JavaObject) -> AiCall | None:
    """The call this expression is, or None: not an AI call, or one whose prompt or options are not spelled out in the plan.

    Raises PromptError and ConfigError for a call that can't be right.
    """
    if not is_ai(expression):
        return None
    prompt, *options = items(expression.children())
    if kind(prompt) != "CreateNamedStruct":
        return None
    _, template, _, arguments = items(prompt.children())
    if kind(template) != "Literal" or template.value() is None or kind(arguments) != "CreateArray":
        return None
    if len(options) > 1 or not all(option.foldable() for option in options):
        return None
    text = str(template.value())
    values = tuple(items(arguments.children()))
    check_arguments(text, len(values))
    return AiCall(expression, text, values, parse_options(_options(catalyst, options[0]) if options else {}))


def ai_expressions(planning, expression: JavaObject) -> list[JavaObject]:
    """Every AI call in an expression, outermost first."""
    if not planning.calls_ai(expression):
        return []
    own = [expression] if is_ai(expression) else []
    return own + [call for child in items(expression.children()) for call in ai_expressions(planning, child)]


def given_options(catalyst: Catalyst, call: AiCall) -> dict[str, str]:
    """The call's options as they stand in the query."""
    _, *options = items(call.expression.children())
    return _options(catalyst, options[0]) if options else {}


def _options(catalyst: Catalyst, expression: JavaObject) -> dict[str, str]:
    """A foldable map as a dictionary of text, without the options that are NULL."""
    data = catalyst.cast_to_text_map(expression).eval(None)
    if data is None:
        return {}
    keys, values = data.keyArray(), data.valueArray()
    given = [i for i in range(data.numElements()) if not values.isNullAt(i)]
    return {str(keys.getUTF8String(i)): str(values.getUTF8String(i)) for i in given}
