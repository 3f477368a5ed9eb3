"""Shapes of prompts against the prompts that the engine writes."""

import random
from dataclasses import replace

import pytest

from quail_spark.engine.prompts import lay_out
from quail_spark.optimizer.errors import ConfigError, PromptError
from quail_spark.optimizer.layout import CHAT_END, prompt_shape
from quail_spark.optimizer.logical import AiPredicate, TextRef
from quail_spark.optimizer.plan import LAYOUTS, Argument, OperatorSpec, Predicate
from quail_spark.optimizer.statistics import BYTES_PER_TOKEN, Number, TextStats
from quail_spark.optimizer.template import Placeholder

CHAT = ("", "x" * int(CHAT_END * BYTES_PER_TOKEN))


def random_predicate(rng: random.Random) -> AiPredicate:
    texts = rng.sample(["{r.t}", "{r.u}", "{s.t}"], rng.randint(1, 2))
    pieces = [word for text in texts for word in ("w" * rng.randint(0, 30), text)] + ["is it?"]
    return AiPredicate.of(" ".join(pieces))


@pytest.mark.parametrize("layout", ["document_first", "literal"])
@pytest.mark.parametrize("seed", range(25))
def test_sections_are_as_long_as_those_of_the_engine(layout, seed):
    rng = random.Random(seed)
    predicate = random_predicate(rng)
    anchor = rng.choice(predicate.relations)
    front = predicate.front(anchor)
    numbers = tuple(i for i, text in enumerate(predicate.arguments) if text in front)
    arguments = tuple(Argument(i) for i in range(len(predicate.arguments)))
    prompt = lay_out(Predicate(predicate.template, arguments, numbers), layout, CHAT)
    tokens = {text: rng.randint(1, 500) for text in predicate.used}
    shape = prompt_shape(predicate, anchor, layout, lambda text: TextStats(Number(tokens[text], "known"), 1.0))

    def length(parts) -> float:
        constants = sum(len(p.text) for p in parts if not isinstance(p, Placeholder))
        texts = sum(tokens[predicate.arguments[p.index]] for p in parts if isinstance(p, Placeholder))
        return constants / BYTES_PER_TOKEN + texts

    if shape.key is None:
        assert not any(isinstance(p, Placeholder) for p in prompt.document)
        assert shape.rest.mean == pytest.approx(length(prompt.document + prompt.frame + prompt.rest))
        return
    for mine, theirs in ((shape.document, prompt.document), (shape.frame, prompt.frame), (shape.rest, prompt.rest)):
        assert mine.mean == pytest.approx(length(theirs))
        assert mine.square == pytest.approx(mine.mean**2)


def shape(words: str, anchor: str, layout: str):
    return prompt_shape(AiPredicate.of(words), anchor, layout, lambda text: TextStats(Number(100, "known")))


def test_what_shares_a_document():
    first = [
        shape(w, "r", "document_first").key for w in ("{r.t} is a", "is {r.t} b?", "{r.t} and {s.t}", "{r.u} is a")
    ]
    assert first[0] == first[1] == first[2] != first[3]
    literal = [shape(w, "r", "literal").key for w in ("{r.t} is a", "{r.t} has {s.t}", "is {r.t} b?", "{s.t} of {r.t}")]
    assert literal[0] == literal[1] != literal[2]
    assert literal[3] is None


def test_names_and_hints():
    predicate = AiPredicate.of("{r.t} {{or}} {s.u}, {r.t}")
    assert predicate.template == "{0} {{or}} {1}, {0}"
    assert predicate.words == "{r.t} {or} {s.u}, {r.t}"
    assert predicate.relations == ("r", "s")
    assert AiPredicate.of("{r.t} and {r.u}", anchor="1").front("r") == (TextRef("r", "u"),)
    assert AiPredicate.of("{r.t} and {s.u}", anchor="S").hinted() == (TextRef("s", "u"),)
    with pytest.raises(
        ConfigError, match=r"anchor is 'x' of the question '\{r.t\} and \{s.u\}'; accepted: one of r, s, r.t, s.u"
    ):
        AiPredicate.of("{r.t} and {s.u}", anchor="x").hinted()
    with pytest.raises(ConfigError, match="anchor is '0,1'"):
        AiPredicate.of("{r.t} and {s.u}", anchor="0,1").hinted()
    with pytest.raises(PromptError, match="'body' does not name a column"):
        AiPredicate.of("{body} is long")
    with pytest.raises(PromptError, match="reads no column"):
        AiPredicate.of("is it?")


def test_a_question_keeps_its_own_layout():
    given = AiPredicate.of("is {r.t} kind?")
    for layout in LAYOUTS:
        alone = prompt_shape(given, "r", layout, lambda text: TextStats(Number(100, "known")))
        for other in LAYOUTS:
            assert (
                prompt_shape(replace(given, layout=layout), "r", other, lambda text: TextStats(Number(100, "known")))
                == alone
            )


def test_layouts_survive_the_way_to_the_engine():
    spec = OperatorSpec("x", "answers", tuple(Predicate("is it?", (), layout=layout) for layout in (None, *LAYOUTS)))
    assert OperatorSpec.from_json(spec.to_json()) == spec
    with pytest.raises(ConfigError, match="layout is 'auto'; accepted: document_first, literal"):
        OperatorSpec("x", "answers", (Predicate("is it?", (), layout="auto"),))
