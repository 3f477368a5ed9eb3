"""What a prompt says, and that sections which should be shared are equal."""

import random
from dataclasses import replace

import numpy as np
import pytest

from quail_spark.engine import prompts
from quail_spark.engine.prompts import Control, lay_out
from quail_spark.engine.rendering import Renderer, TokenCache
from quail_spark.engine.tokens import Tokens
from quail_spark.optimizer.plan import LAYOUTS, Argument, OperatorSpec, Predicate
from quail_spark.optimizer.template import Literal, Placeholder, parse_template

CHAT = ("<head>", "<tail>")
TEMPLATES = ["{0} is good", "is {0} as good as {1}?", "{1} {0} {1}", "{2}{{x}}{0}: {1}", "no text", "{0}"]


def predicate(template: str, anchor=None, arguments: int = 3) -> Predicate:
    return Predicate(template, tuple(Argument(i) for i in range(arguments)), anchor=anchor)


def test_one_document_stands_before_the_question():
    prompt = lay_out(predicate("{0} asks for a {{refund}}"), "document_first", CHAT)
    assert prompt.frame == ()
    text = prompt.text({0: "BODY"})
    assert text.startswith("<head>" + prompts.LABEL + "BODY")
    assert text.endswith("<tail>" + prompts.CUE)
    assert text.index("BODY") < text.index("the document asks for a {refund}")


def test_the_whole_question_stands_before_the_partner():
    prompt = lay_out(predicate("{0} might buy {1}"), "document_first", CHAT)
    text = prompt.text({0: "CUSTOMER", 1: "PRODUCT"})
    assert text.index("CUSTOMER") < text.index("the document might buy document B") < text.index("PRODUCT")
    assert Placeholder(1) not in prompt.document + prompt.frame and prompt.rest[0] == Placeholder(1)


def test_the_anchor_may_be_another_placeholder():
    prompt = lay_out(predicate("{0} might buy {1}", anchor=(1,)), "document_first", CHAT)
    text = prompt.text({0: "CUSTOMER", 1: "PRODUCT"})
    assert text.index("PRODUCT") < text.index("document B might buy the document") < text.index("CUSTOMER")


def test_literal_puts_texts_where_the_template_has_them():
    text = lay_out(predicate("Is {0} like {1}?"), "literal", CHAT).text({0: "A", 1: "B"})
    assert text == f"<head>Is A like B?{prompts.LITERAL_INSTRUCTION}<tail>"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("anchor", [None, (0,), (1,), (1, 0)])
@pytest.mark.parametrize("template", TEMPLATES)
def test_every_text_stands_in_the_prompt(template, anchor, layout):
    given = predicate(template, anchor)
    prompt = lay_out(given, layout, CHAT)
    texts = {0: "[zero]", 1: "[one]", 2: "[two]"}
    whole = prompt.text(texts)
    for index in given.used:
        wanted = parse_template(template).count(Placeholder(index)) if layout == "literal" else 1
        assert whole.count(texts[index]) == wanted
    partners = {i for i in given.used if i not in (anchor or given.used[:1])}
    shared = prompt.document + prompt.frame
    if set(given.used) - partners:
        assert not partners & {part.index for part in shared if isinstance(part, Placeholder)}
    assert not any(isinstance(part, Placeholder) for part in prompt.frame)
    assert prompt.rest.count(Control("<tail>")) == 1 and prompt.document[0] == Control("<head>")
    assert prompt.rest[-1] in (Control("<tail>"), Literal(prompts.CUE))


def test_one_argument_predicates_share_their_document():
    documents = {lay_out(predicate(t), "document_first", CHAT).document for t in ("{0} is good", "who likes {0}?")}
    joined = lay_out(predicate("{0} might buy {1}"), "document_first", CHAT).document
    assert documents == {joined}


def test_without_a_chat_template_the_cue_ends_the_prompt():
    assert lay_out(predicate("{0} is good"), "document_first", None).text({0: "x"}).endswith("\nANSWER:")


@pytest.fixture(scope="module")
def tokens(tiny_checkpoint):
    return Tokens.load(tiny_checkpoint)


def naive_ids(tokens: Tokens, given: Predicate, layout: str, texts: dict[int, str]) -> list[int]:
    """Part by part, without caches."""
    prompt = lay_out(given, layout, tokens.chat)
    ids = []
    for part in prompt.document + prompt.frame + prompt.rest:
        if isinstance(part, Control):
            ids += tokens.encode_control(part.text).tolist()
        else:
            ids += tokens.encode([texts[part.index] if isinstance(part, Placeholder) else part.text])[0].tolist()
    return ids


@pytest.mark.parametrize("kind", ["answers", "pairs"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rendered_ids_are_those_of_the_parts(tokens, layout, kind):
    rng = random.Random(2)
    predicates = tuple(
        replace(predicate(t, anchor), layout=rng.choice([None, *LAYOUTS]))
        for t in TEMPLATES
        for anchor in (None, (0,), (1, 0))
    )
    renderer = Renderer(
        tokens, TokenCache(tokens, capacity=50), OperatorSpec("x", kind, predicates, layout), "m", 10_000
    )
    words = ["", "film", "<|im_end|>", "a b c", "\n\nANSWER: TRUE"]
    for _ in range(3):
        requests = [
            (p, tuple(rng.choice(words) for _ in given.used)) for p, given in enumerate(predicates) for _ in range(6)
        ]
        ids_by_key, keys_by_ids = {}, {}
        for (p, texts), question in zip(requests, renderer.questions(requests), strict=True):
            own = predicates[p].layout or layout
            ids = naive_ids(tokens, predicates[p], own, dict(zip(predicates[p].used, texts, strict=True)))
            assert np.concatenate(question.parts).tolist() == ids
            assert question.length == len(ids) and question.error is None
            assert question.document == len(question.parts[0])
            assert ids_by_key.setdefault(question.key, ids) == ids
            assert keys_by_ids.setdefault(tuple(ids), question.key) == question.key


def test_keys_belong_to_a_model(tokens):
    spec = OperatorSpec("x", "answers", (predicate("{0} is good"),))
    (one,), (other,) = (
        Renderer(tokens, TokenCache(tokens), spec, model, 100).questions([(0, ("x",))]) for model in ("a", "b")
    )
    assert one.key != other.key


def test_equal_sections_of_a_call_are_one_array(tokens):
    spec = OperatorSpec("x", "answers", (predicate("{0} is good"), predicate("{0} and {1}")))
    renderer = Renderer(tokens, TokenCache(tokens), spec, "m", 1000)
    a, b, c, d = renderer.questions([(0, ("x",)), (1, ("x", "y")), (1, ("z", "y")), (1, ("x", "w"))])
    assert a.parts[0] is b.parts[0] is d.parts[0] and a.document_key == b.document_key == d.document_key
    assert b.parts[2] is c.parts[2] and b.parts[1] is d.parts[1] and b.frame_key == d.frame_key != c.frame_key


def test_a_prompt_beyond_the_context_is_an_error_of_its_own(tokens):
    renderer = Renderer(tokens, TokenCache(tokens), OperatorSpec("x", "answers", (predicate("{0} is good"),)), "m", 100)
    long, short = renderer.questions([(0, ("word " * 200,)), (0, ("word",))])
    assert short.error is None
    assert long.error.startswith(f"the prompt has {long.length} tokens; accepted: at most 100")


def test_no_chat_template_means_the_beginning_of_a_sequence(tmp_path, tokenizer_of):
    from tokenizers.processors import TemplateProcessing

    tokenizer = tokenizer_of(chat_template=None)
    begin = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", begin)]
    )
    tokenizer.save_pretrained(tmp_path)
    tokens = Tokens.load(tmp_path)
    assert tokens.chat is None and tokens.beginning().tolist() == [begin]
    renderer = Renderer(tokens, TokenCache(tokens), OperatorSpec("x", "answers", (predicate("{0} is good"),)), "m", 100)
    (question,) = renderer.questions([(0, ("word",))])
    assert np.concatenate(question.parts).tolist().count(begin) == 1 and question.parts[0][0] == begin


class CountingTokens:
    """Stands for `Tokens`; counts what is encoded."""

    def __init__(self):
        self.encoded: list[str] = []

    def encode(self, texts):
        self.encoded += texts
        return [np.zeros(len(text), np.int32) for text in texts]


def test_partners_are_encoded_once_while_there_is_room():
    counting = CountingTokens()
    cache = TokenCache(counting, capacity=40)
    assert cache.encode(["abc", "defg", "abc"], remember=True).keys() == {"abc", "defg"}
    cache.encode(["defg", "abc"], remember=True)
    assert counting.encoded == ["abc", "defg"]
    cache.encode(["x" * 31], remember=True)  # the oldest text has to leave
    cache.encode(["abc"], remember=True)
    assert counting.encoded[2:] == ["x" * 31]
    cache.encode(["defg"], remember=False)
    cache.encode(["defg"], remember=True)
    assert counting.encoded[3:] == ["defg", "defg"]
