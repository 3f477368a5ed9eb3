"""The SQL front end on text alone: what changes, what must not, and what is refused with which words."""

import random

import pytest

from quail_spark.errors import ConfigError, PromptError, SqlError
from quail_spark.sql import rewrite
from quail_spark.sql_tokens import Literals

VERBATIM = (
    "SELECT customers.id, products.id FROM customers JOIN products "
    'ON AI.IF(PROMPT("{customers.profile} might buy this: {products.description}"))'
)

REWRITTEN = [
    (
        VERBATIM,
        "SELECT customers.id, products.id FROM customers JOIN products "
        'ON ai_if(prompt("{0} might buy this: {1}", customers.profile, products.description))',
    ),
    # names and letter case
    ("SELECT AI.IF(PROMPT('{0}', a))", "SELECT ai_if(prompt('{0}', a))"),
    ("SELECT ai.if(prompt('{0}', a))", "SELECT ai_if(prompt('{0}', a))"),
    ("SELECT Ai.If(Prompt('{0}', A))", "SELECT ai_if(prompt('{0}', A))"),
    ("SELECT AI_IF(PROMPT('{0}', a))", "SELECT ai_if(prompt('{0}', a))"),
    ("SELECT AI_FILTER(PROMPT('{0}', a))", "SELECT ai_if(prompt('{0}', a))"),
    ("SELECT ai_filter ( PROMPT ('{0}', a) )", "SELECT ai_if ( prompt ('{0}', a) )"),
    ("SELECT SNOWFLAKE.CORTEX.AI_FILTER(PROMPT('{0}', a))", "SELECT ai_if(prompt('{0}', a))"),
    ("SELECT AI.IF(prompt => PROMPT('{0}', a))", "SELECT ai_if(prompt('{0}', a))"),
    ("AI.IF(PROMPT('a'))", "ai_if(prompt('a'))"),
    # whitespace and comments between the tokens
    ("SELECT AI . IF\n(\tPROMPT\n('{0}', a))", "SELECT ai_if\n(\tprompt\n('{0}', a))"),
    ("SELECT AI/* x */./* y */IF(PROMPT('{0}', a))", "SELECT ai_if(prompt('{0}', a))"),
    ("SELECT AI -- x\n.IF(PROMPT('{0}', a))", "SELECT ai_if(prompt('{0}', a))"),
    ("SELECT AI.IF/* ( */(PROMPT(/* t */'{0}' -- ,\n, a))", "SELECT ai_if/* ( */(prompt(/* t */'{0}' -- ,\n, a))"),
    ("AI.IF(PROMPT('{b}' /* , */ ))", "ai_if(prompt('{0}' /* , */ , b))"),
    # columns named in the template
    ("AI.IF(PROMPT('{body}'))", "ai_if(prompt('{0}', body))"),
    ("AI.IF(PROMPT('{ body }'))", "ai_if(prompt('{0}', body))"),
    ("AI.IF(PROMPT('{t.body}'))", "ai_if(prompt('{0}', t.body))"),
    ("AI.IF(PROMPT('{c.d.t.body.field}'))", "ai_if(prompt('{0}', c.d.t.body.field))"),
    ("AI.IF(PROMPT('{a} {b} {a} {t.a}'))", "ai_if(prompt('{0} {1} {0} {2}', a, b, t.a))"),
    ("AI.IF(PROMPT('{`odd name`.col}'))", "ai_if(prompt('{0}', `odd name`.col))"),
    ("AI.IF(PROMPT('{`a``b`}'))", "ai_if(prompt('{0}', `a``b`))"),
    ("AI.IF(PROMPT('{`a{b}c`}'))", "ai_if(prompt('{0}', `a{b}c`))"),
    ("AI.IF(PROMPT('{`plain`}'))", "ai_if(prompt('{0}', plain))"),
    (r"AI.IF(PROMPT('{`it\'s`}'))", "ai_if(prompt('{0}', `it's`))"),
    ("AI.IF(PROMPT('{`it''s`}'))", "ai_if(prompt('{0}', `it's`))"),
    (r"AI.IF(PROMPT(r'{`a\b`}'))", r"ai_if(prompt(r'{0}', `a\b`))"),
    ("AI.IF(PROMPT('{null} {größe} {1st} {select}'))", "ai_if(prompt('{0} {1} {2} {3}', `null`, `größe`, `1st`, `select`))"),
    ("AI.IF(PROMPT('costs ${t.price}'))", "ai_if(prompt('costs ${0}', t.price))"),
    ("AI.IF(PROMPT('${env:HOME} {a}'))", "ai_if(prompt('${env:HOME} {0}', a))"),
    ("AI.IF(PROMPT('{{a}} {b}'))", "ai_if(prompt('{{a}} {0}', b))"),
    ('AI.IF(PROMPT("say ""{a}"""))', 'ai_if(prompt("say ""{0}""", a))'),
    # other literals
    ("AI.IF(PROMPT('it''s {0}', a))", "ai_if(prompt('it''s {0}', a))"),
    (r"AI.IF(PROMPT('it\'s {0}, ) \\', a))", r"ai_if(prompt('it\'s {0}, ) \\', a))"),
    (r"AI.IF(PROMPT(r'\d{0}\', a))", r"ai_if(prompt(r'\d{0}\', a))"),
    (r"""AI.IF(PROMPT(R"\ {a}\"))""", r"""ai_if(prompt(R"\ {0}\", a))"""),
    ("AI.IF(PROMPT('{a} ' /* x */ 'and {b}'))", "ai_if(prompt('{0} ' /* x */ 'and {1}', a, b))"),
    ("AI.IF(PROMPT('{0}\nnew line', a))", "ai_if(prompt('{0}\nnew line', a))"),
    ("AI.IF(PROMPT('😀 {0} ü', 'é', AI_IF(PROMPT('{b}'))))", "ai_if(prompt('😀 {0} ü', 'é', ai_if(prompt('{0}', b))))"),
    # templates that are no literals, unused arguments
    ("AI.IF(PROMPT(template, a))", "ai_if(prompt(template, a))"),
    ("AI.IF(PROMPT('a' || '{0}', a))", "ai_if(prompt('a' || '{0}', a))"),
    ("AI.IF(PROMPT(:tpl, a))", "ai_if(prompt(:tpl, a))"),
    ("AI.IF(PROMPT(?, a))", "ai_if(prompt(?, a))"),
    ("AI.IF(PROMPT('{1}', a, b, c))", "ai_if(prompt('{1}', a, b, c))"),
    ("AI.IF(PROMPT('no column', a))", "ai_if(prompt('no column', a))"),
    # arguments of any shape
    ("AI.IF(PROMPT('{0} {1}', concat(a, ',', b), c[1]))", "ai_if(prompt('{0} {1}', concat(a, ',', b), c[1]))"),
    ("AI.IF(PROMPT('{0}', a::string))", "ai_if(prompt('{0}', a::string))"),
    ("AI.IF(PROMPT('{0}', v:x.y, 1L, 2BD, x'1F'))", "ai_if(prompt('{0}', v:x.y, 1L, 2BD, x'1F'))"),
    ("AI.IF(PROMPT('{0}', (SELECT max(a) FROM t)))", "ai_if(prompt('{0}', (SELECT max(a) FROM t)))"),
    ("AI.IF(PROMPT('{0}', ${col}))", "ai_if(prompt('{0}', ${col}))"),
    (
        "AI.IF(PROMPT('{0}', CASE WHEN AI.IF(PROMPT('{b}')) THEN c END))",
        "ai_if(prompt('{0}', CASE WHEN ai_if(prompt('{0}', b)) THEN c END))",
    ),
    # options
    (
        "AI.IF(PROMPT('{0}', a), {'selectivity': 0.1, 'anchor': 'n'})",
        "ai_if(prompt('{0}', a), map('selectivity', '0.1', 'anchor', 'n'))",
    ),
    ("AI.IF(PROMPT('{0}', a), {selectivity : .5})", "ai_if(prompt('{0}', a), map('selectivity', '.5'))"),
    ("AI_FILTER(PROMPT('{0}', a), map('selectivity', 1))", "ai_if(prompt('{0}', a), map('selectivity', '1'))"),
    ("AI.IF(PROMPT('{0}', a), MAP ( 'anchor', \"n\" ))", "ai_if(prompt('{0}', a), map('anchor', \"n\"))"),
    ("AI.IF(PROMPT('{0}', a), {})", "ai_if(prompt('{0}', a), map())"),
    (
        "AI.IF(PROMPT('{0}', a), map('selectivity', :rate))",
        "ai_if(prompt('{0}', a), map('selectivity', CAST(:rate AS STRING)))",
    ),
    # the anchor: placeholders of the table or column that it names
    ("AI.IF(PROMPT('{m.x} {N.y} {n.z}'), {'anchor': 'n'})", "ai_if(prompt('{0} {1} {2}', m.x, N.y, n.z), map('anchor', '1,2'))"),
    ("AI.IF(PROMPT('{0}{1}', m.x, n.y), {'anchor': 'n.y'})", "ai_if(prompt('{0}{1}', m.x, n.y), map('anchor', '1'))"),
    ("AI.IF(PROMPT('{0}{1}', x, f(n.y)), map('anchor', 'n'))", "ai_if(prompt('{0}{1}', x, f(n.y)), map('anchor', 'n'))"),
    ("AI.IF(PROMPT('{0}{1}', x, y), {'anchor': 1})", "ai_if(prompt('{0}{1}', x, y), map('anchor', '1'))"),
    # statements
    ("EXPLAIN EXTENDED SELECT AI.IF(PROMPT('{a}'))", "EXPLAIN EXTENDED SELECT ai_if(prompt('{0}', a))"),
    ("CREATE VIEW v AS SELECT AI.IF(PROMPT('{a}'))", "CREATE VIEW v AS SELECT ai_if(prompt('{0}', a))"),
    ("CREATE TABLE t AS SELECT AI.IF(PROMPT('{a}'))", "CREATE TABLE t AS SELECT ai_if(prompt('{0}', a))"),
    ("INSERT INTO t SELECT AI.IF(PROMPT('{a}'))", "INSERT INTO t SELECT ai_if(prompt('{0}', a))"),
    (
        "MERGE INTO t USING s ON AI.IF(PROMPT('{t.a}{s.b}')) WHEN MATCHED THEN DELETE",
        "MERGE INTO t USING s ON ai_if(prompt('{0}{1}', t.a, s.b)) WHEN MATCHED THEN DELETE",
    ),
    ("CACHE TABLE c AS SELECT AI.IF(PROMPT('{a}'))", "CACHE TABLE c AS SELECT ai_if(prompt('{0}', a))"),
    ("FROM t |> WHERE AI.IF(PROMPT('{a}'))", "FROM t |> WHERE ai_if(prompt('{0}', a))"),
    ("SELECT * FROM ai WHERE NOT AI.IF(PROMPT('{ai.if}'))", "SELECT * FROM ai WHERE NOT ai_if(prompt('{0}', ai.if))"),
    ("SELECT AI.IF(PROMPT('{a}')) OR AI_IF(PROMPT('{b}'));", "SELECT ai_if(prompt('{0}', a)) OR ai_if(prompt('{0}', b));"),
    ("a -- AI.IF( \\\nAI.IF(\n,AI.IF(PROMPT('{b}'))", "a -- AI.IF( \\\nAI.IF(\n,ai_if(prompt('{0}', b))"),
]  # fmt: skip


def test_parts_where_python_formats_the_text_or_prompt_is_not_registered():
    assert rewrite("AI.IF(('{{x}} {t} ', c))", formatted={"t"}) == "ai_if(prompt('{{{{x}}}} {t} ' '{{0}}', c))"
    assert rewrite("AI.IF('a' || c)", inline_prompt=True) == (
        "ai_if(named_struct('template', 'a' '{0}', 'args', array(CAST(c AS STRING))))"
    )
    assert rewrite("AI.IF(('a'))", inline_prompt=True) == (
        "ai_if(named_struct('template', 'a', 'args', CAST(array() AS ARRAY<STRING>)))"
    )


def test_double_quotes_that_make_a_name():
    def read(sql):
        return rewrite(sql, literals=lambda: Literals(double_quotes=False))

    assert read('AI.IF((\'is \', "a ""b"))') == "ai_if(prompt('is ' '{0}', \"a \"\"b\"))"
    assert read("AI.IF(PROMPT('{0}', \"t\".\"a b\"), {'anchor': 't'})") == (
        "ai_if(prompt('{0}', \"t\".\"a b\"), map('anchor', '0'))"
    )
    assert read('SELECT "AI.IF(x)", AI.IF(PROMPT("{a}"))') == 'SELECT "AI.IF(x)", ai_if(prompt("{a}"))'
    with pytest.raises(SqlError, match="is a form that is not supported"):
        read('AI.IF(("is ", c))')


def test_strings_without_escapes():
    literals = {"literals": lambda: Literals(escapes=False)}
    assert rewrite(r"AI.IF(('\173{', c))", **literals) == r"ai_if(prompt('\173{{' '{0}', c))"
    assert rewrite(r"AI.IF(PROMPT('{`a\b`}'))", **literals) == r"ai_if(prompt('{0}', `a\b`))"


UNCHANGED = [
    "",
    " ",
    "SELECT 1",
    "SELECT 'AI.IF(PROMPT(1))'",
    'SELECT "AI.IF(PROMPT(1))"',
    r"SELECT 'it\'s AI.IF(PROMPT(1))'",
    "SELECT 'it''s AI.IF(PROMPT(1))'",
    r"SELECT r'\', 'AI.IF(PROMPT(1))'",
    "SELECT 1 -- AI.IF(PROMPT(1))",
    "SELECT 1 -- x \\\nAI.IF(PROMPT(1))",
    "SELECT /* AI.IF(PROMPT(1)) */ 1",
    "SELECT /* /* */ AI.IF(PROMPT(1)) */ 1",
    "SELECT /*+ BROADCAST(ai_if) , AI.IF(x) */ 1",
    "SELECT `AI.IF(PROMPT(1))` FROM t",
    "SELECT $$ AI.IF(PROMPT(1)) $$",
    "SELECT ai.if FROM ai",
    "SELECT ai.`if`(1)",
    "SELECT ai.iffy(1), ai_iffy(2), my_ai_if(3), xai.if(4)",
    "SELECT x.ai_if(1), c.d.ai_if(2), x.ai.if(3), `x`.ai_filter(4), d.snowflake.cortex.ai_filter(5)",
    "SELECT ai_if, ai_score FROM ai_classify",
    "WITH q AS (SELECT 1), ai_if (x) AS (SELECT 2) SELECT * FROM q, ai_if",
    "CREATE FUNCTION ai_if(x STRING) RETURNS BOOLEAN RETURN TRUE",
    "CREATE TABLE ai_if (a INT)",
    "INSERT INTO ai_if (a) VALUES (1)",
    "DESCRIBE FUNCTION ai_if",
    "SELECT :ai_if (1)",
    "SELECT prompt('{a}')",
    "SELECT AI.IF(PROMPT('{0}', a)",  # Spark's parser has the word
    "SELECT AI.IF(PROMPT('{0}, a))",  # an open string: not tokenisable
    "/* AI.IF(PROMPT('{a}'))",
    "SELECT 'AI.IF(PROMPT(''{a}''))' /* open",
    "SELECT ai_if FROM t WHERE x = '",
    "!!! not { SQL ] AI.IF at ) all ai_if",
]

REFUSED = [
    ("SELECT AI.IF((b, c))", SqlError, "line 1, column 8"),
    ("SELECT AI.IF(a || c)", SqlError, "AI.IF(PROMPT("),
    ("SELECT AI.IF(CONCAT(PROMPT('is it'), 'x'))", SqlError, "CONCAT"),
    ("SELECT AI.IF(max_error_ratio => 1)", SqlError, "AI.IF(PROMPT("),
    ("SELECT AI.IF(('a', c), ('b', c))", SqlError, "options of an AI call are ('b', c)"),
    ("SELECT AI.IF(('a', c), temperature => 1)", SqlError, "AI.IF(PROMPT("),
    ("SELECT AI.IF(('a', c), max_error_ratio => 2)", ConfigError, "max_error_ratio is 2"),
    ("SELECT AI.IF(PROMPT('{0}', c) || 'x')", SqlError, "AI.IF(PROMPT("),
    ("SELECT ai_if(x)", SqlError, "AI.IF(PROMPT("),
    ("SELECT AI.IF()", SqlError, "AI.IF()"),
    ("SELECT AI.IF(PROMPT('a'),)", SqlError, "AI.IF(PROMPT("),
    ("SELECT AI.IF(PROMPT('a'), {}, 1)", SqlError, "AI.IF(PROMPT("),
    ("SELECT AI.IF(PROMPT('a'), TRUE)", SqlError, "'selectivity'"),
    ("SELECT AI.IF(PROMPT('a'), map('selectivity'))", SqlError, "map('selectivity')"),
    ("SELECT AI.IF(PROMPT('a'), {'selectivity'})", SqlError, "no value"),
    ("SELECT AI.IF(PROMPT())", SqlError, "empty argument"),
    ("SELECT AI.IF(PROMPT('a', ))", SqlError, "empty argument"),
    ("SELECT AI.SCORE(PROMPT('a'))", SqlError, "AI.SCORE is not supported yet"),
    ("SELECT ai_score(PROMPT('a'))", SqlError, "not supported yet"),
    ("SELECT ai.classify(a, ['x'])", SqlError, "AI.CLASSIFY is not supported yet"),
    ("SELECT ai_classify(a, ARRAY('x'))", SqlError, "not supported yet"),
    (
        "SELECT ai_query('e', 'x')",
        SqlError,
        "accepted: ai_query('endpoint', CONCAT('…', column), returnType => 'BOOLEAN')",
    ),
    ("SELECT 1,\n ai_query('e', 'x ' || c, returnType => 'STRING')", SqlError, "line 2, column 2"),
    ("SELECT ai_query('e', c, returnType => 'BOOLEAN')", SqlError, "ai_query('e', c, returnType => 'BOOLEAN') (line 1"),
    ("SELECT ai_query('e', 'x', returnType => 'BOOLEAN', responseFormat => 's')", SqlError, "returnType => 'BOOLEAN')"),
    ("SELECT ai_query('e', 'x', returnType => 'BOOLEAN', failOnError => c)", SqlError, "failOnError => false"),
    ("SELECT AI.GENERATE_BOOL(c).result", SqlError, "AI.GENERATE_BOOL(c) (line 1, column 8 of the SQL)"),
    ("SELECT AI.IF(request => ('a', c))", SqlError, "AI.IF(PROMPT("),
    (r"SELECT AI.IF(PROMPT('{a\nb}'))", PromptError, "neither a number nor a column's name"),
    (r"SELECT AI.IF(PROMPT('{\u0061}'))", PromptError, r"placeholder {\u0061}"),
    (r"SELECT AI.IF(PROMPT('{`a\tb`}'))", PromptError, "neither a number nor a column's name"),
    ("SELECT 1,\n  AI.IF(PROMPT('{0} {2}', a, b))", PromptError, "{2} but has 2 arguments"),
    ("SELECT 1,\n  AI.IF(PROMPT('{0} {2}', a, b))", PromptError, "line 2, column 16"),
    ("SELECT AI.IF(PROMPT('{0}'))", PromptError, "'{0}' uses {0} but has 0 arguments"),
    ("SELECT AI.IF(PROMPT('{a} {0}'))", PromptError, "mixed"),
    ("SELECT AI.IF(PROMPT('{0} {a}', b))", PromptError, "mixed"),
    ("SELECT AI.IF(PROMPT('{a}', b))", PromptError, "1 argument stands behind"),
    ("SELECT AI.IF(PROMPT('{}', b))", PromptError, "placeholder {}"),
    ("SELECT AI.IF(PROMPT('{a b}'))", PromptError, "placeholder {a b}"),
    ("SELECT AI.IF(PROMPT('{a[0]}'))", PromptError, "placeholder {a[0]}"),
    ("SELECT AI.IF(PROMPT('{-1}', b))", PromptError, "placeholder {-1}"),
    ("SELECT AI.IF(PROMPT('{\"a\": 1}', b))", PromptError, "{{ for a brace"),
    ("SELECT AI.IF(PROMPT('a { b', b))", PromptError, "lone '{'"),
    ("SELECT AI.IF(PROMPT('a } b', b))", PromptError, "line 1, column 24"),
    ("SELECT AI.IF(PROMPT('a'), {'selectiviti': 0.1})", ConfigError, "accepted: selectivity, anchor, max_error_ratio"),
    ("SELECT AI.IF(PROMPT('a'), {'selectivity': 1.5})", ConfigError, "from 0 to 1"),
    ("SELECT AI.IF(PROMPT('a'), {'selectivity': 'high'})", ConfigError, "'high'"),
    ("SELECT AI.IF(PROMPT('a'), {'anchor': 'a', 'anchor': 'b'})", ConfigError, "twice"),
]


@pytest.mark.parametrize(("sql", "expected"), REWRITTEN)
def test_rewrites_only_the_call(sql, expected):
    assert rewrite(sql) == expected


@pytest.mark.parametrize(("sql", "expected"), REWRITTEN)
def test_a_rewritten_text_stays_as_it_is(sql, expected):
    assert rewrite(rewrite(sql)) == expected


@pytest.mark.parametrize("sql", UNCHANGED)
def test_the_same_object_without_a_call(sql):
    assert rewrite(sql) is sql


@pytest.mark.parametrize(("sql", "error", "words"), REFUSED)
def test_refuses_and_says_what_is_accepted(sql, error, words):
    with pytest.raises(error) as caught:
        rewrite(sql)
    assert words in str(caught.value)


CALLS = [
    ("AI.IF(PROMPT('{a} ''q'' {b}'))", "ai_if(prompt('{0} ''q'' {1}', a, b))"),
    ('ai . if ( prompt ( "{t.x}" ) )', 'ai_if ( prompt ( "{0}" , t.x) )'),
    ("AI_FILTER(PROMPT(r'\\{0}', f(a, ')')), {'selectivity': 0.5})", "ai_if(prompt(r'\\{0}', f(a, ')')), map('selectivity', '0.5'))"),
    ("Ai_If(Prompt('😀', a))", "ai_if(prompt('😀', a))"),
]  # fmt: skip
INNER = [
    "AI.IF(PROMPT('{a}'))",
    "ai_if(",
    "AI.SCORE(x)",
    "😀",
    "\\\\",
    " ",
    "\n",
    "--",
    "/*x*/",
    "{",
    "}",
    ",",
    ")",
    "é",
]
WORDS = [
    "SELECT",
    "x",
    "ai",
    "1.5e3",
    "=",
    ",",
    "\n",
    "\t",
    "t.c",
    ":p",
    "?",
    "||",
    "(a)",
    "[1]",
    "=>",
    "ai.x",
    "`if`",
    "::",
    "😀",
]


def _noise(rng: random.Random) -> str:
    inner = "".join(rng.choices(INNER, k=rng.randint(0, 4)))
    kind = rng.randrange(8)
    if kind == 0:
        return "'" + inner.replace("'", "''") + "'"
    if kind == 1:
        return "'" + inner.replace("'", r"\'") + "'"
    if kind == 2:
        return '"' + inner.replace('"', "") + '"'
    if kind == 3:
        return "r'" + inner.replace("'", "") + "'"
    if kind == 4:
        return "`" + inner.replace("`", "``") + "`"
    if kind == 5:
        return "-- " + inner.replace("\n", " ") + " \n"
    if kind == 6:
        return "/* " + inner.replace("/*x*/", "").replace("/*", "").replace("*/", "") + " /* nested */ */"
    return rng.choice(WORDS)


@pytest.mark.parametrize("seed", range(300))
def test_calls_in_any_surroundings(seed):
    """Random strings, comments and quoted names around calls: exactly the calls change."""
    rng = random.Random(seed)
    pieces = [(text, text) for text in (_noise(rng) for _ in range(rng.randint(0, 12)))]
    calls = rng.choices(CALLS, k=rng.randint(0, 3))
    for call in calls:
        pieces.insert(rng.randint(0, len(pieces)), (call[0], call[1]))
    separator = rng.choice([" ", "\n", "  /**/ ", "\r\n"])
    sql, expected = (separator.join(piece[i] for piece in pieces) for i in (0, 1))
    assert rewrite(sql) == expected and rewrite(expected) == expected
    if not calls:
        assert rewrite(sql) is sql


FORMATTED = [
    ("SELECT * FROM {t} WHERE AI.IF(PROMPT('{0}', a))", "SELECT * FROM {t} WHERE ai_if(prompt('{{0}}', a))"),
    ("SELECT AI.IF(PROMPT('{{0}}', a))", "SELECT ai_if(prompt('{{0}}', a))"),
    ("SELECT AI.IF(PROMPT('{{body}} {x}'))", "SELECT ai_if(prompt('{{0}} {{1}}', body, x))"),
    ("SELECT AI.IF(PROMPT('{{{{x}}}} {body}'))", "SELECT ai_if(prompt('{{{{x}}}} {{0}}', body))"),
    ("SELECT AI.IF(PROMPT('{t} {t[a]} {0}', {t}.a))", "SELECT ai_if(prompt('{t} {t[a]} {{0}}', {t}.a))"),
    ("SELECT AI.IF(PROMPT('{`a{b`}'))", "SELECT ai_if(prompt('{{0}}', `a{{b`))"),
    (
        "SELECT AI.IF(PROMPT('{a}'), {{'selectivity': 0.1}})",
        "SELECT ai_if(prompt('{{0}}', a), map('selectivity', '0.1'))",
    ),
]


@pytest.mark.parametrize(("sql", "expected"), FORMATTED)
def test_text_that_python_formats_afterwards(sql, expected):
    assert rewrite(sql, formatted={"t"}) == expected


def test_text_that_python_formats_needs_all_arguments():
    with pytest.raises(PromptError, match=r"uses \{1\}"):
        rewrite("SELECT AI.IF(PROMPT('{{1}}', a))", formatted=set())


INLINE = [
    (
        "AI.IF(PROMPT('{0} {1}', a, b -- x\n), {'selectivity': 1})",
        "ai_if(named_struct('template', '{0} {1}', 'args', array(CAST( a AS STRING), CAST( b -- x\n AS STRING))), "
        "map('selectivity', '1'))",
    ),
    ("AI.IF(PROMPT('{a}'))", "ai_if(named_struct('template', '{0}', 'args', array(CAST(a AS STRING))))"),
    ("AI.IF(PROMPT('a'))", "ai_if(named_struct('template', 'a', 'args', CAST(array() AS ARRAY<STRING>)))"),
]


@pytest.mark.parametrize(("sql", "expected"), INLINE)
def test_prompt_as_the_expression_it_stands_for(sql, expected):
    assert rewrite(sql, inline_prompt=True) == expected
