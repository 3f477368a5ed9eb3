"""Every query shape: planned = not planned = plain Python, and the model is asked each distinct question once at most."""

from dataclasses import dataclass

import pytest

from .engine_calls import calls
from .oracle import answer

# id, text, grp, n
MAILS = [
    (1, "the parcel is late", "a", 10),
    (2, "where is my refund", "b", 20),
    (3, "the parcel is late", "a", 30),  # equal text, another row
    (4, None, "a", 40),
    (5, "thank you", None, 50),
    (6, "", "b", 60),
    (7, 'it\'s broken \\ "quoted" {0} {{x}} <|im_end|>', "c", 70),
    (8, "zwölf Boxkämpfer 🥊", "c", 80),
    (9, "please call back", "a", 90),
    (10, "the box was open", "b", 100),
    (11, "double charge", "c", 110),
    (12, "wrong size", "a", 120),
]
# id, name, grp
TOPICS = [
    (1, "delivery", "a"),
    (2, "money", "b"),
    (3, "praise", None),
    (4, None, "a"),
    (5, "quality", "c"),
    (6, "money", "a"),
]


@dataclass(frozen=True)
class Shape:
    """A query with `#` for the tag that makes its templates unique, its result in Python, operators its plan must have.

    `rows(ask)` computes the result; `ask(template, *texts)` is the model.
    """

    name: str
    sql: str
    rows: object
    operators: tuple[str, ...] = ("ai_filter",)


def pairs(ask, template, key=lambda m, t: True):
    """(mail id, topic id) of pairs with a true answer and `key`."""
    return [(m[0], t[0]) for m in MAILS for t in TOPICS if key(m, t) and ask(template, m[1], t[1])]


def same_group(m, t):
    return m[2] is not None and m[2] == t[2]


def grouped_having(ask):
    totals = {}
    for m in MAILS:
        if ask("{0} HAV#", m[1]):
            totals.setdefault(m[2], []).append(m[0])
    return [(g, len(ids)) for g, ids in totals.items() if ask("{0} grp#", g)]


SHAPES = [
    Shape("one filter", "SELECT id FROM mails WHERE AI.IF(PROMPT('{0} one#', text))",
          lambda ask: [(m[0],) for m in MAILS if ask("{0} one#", m[1])]),
    Shape("two filters", "SELECT id, grp FROM mails WHERE AI.IF(PROMPT('{0} a#', text)) AND AI_FILTER(PROMPT('{0} b#', text))",
          lambda ask: [(m[0], m[2]) for m in MAILS if ask("{0} a#", m[1]) and ask("{0} b#", m[1])]),
    Shape("relational first", "SELECT id FROM mails WHERE AI.IF(PROMPT('{0} rel#', text)) AND n > 50 AND grp = 'c'",
          lambda ask: [(m[0],) for m in MAILS if m[3] > 50 and m[2] == "c" and ask("{0} rel#", m[1])]),
    Shape("different columns", "SELECT id FROM mails WHERE AI.IF(PROMPT('{0} c#', text)) AND AI.IF(PROMPT('{text} of {grp} d#')) AND AI.IF(PROMPT('{0} e#', n))",
          lambda ask: [(m[0],) for m in MAILS if ask("{0} c#", m[1]) and ask("{0} of {1} d#", m[1], m[2]) and ask("{0} e#", str(m[3]))]),
    Shape("no column kept", "SELECT count(*) FROM mails WHERE AI.IF(PROMPT('{0} cnt#', text))",
          lambda ask: [(sum(bool(ask("{0} cnt#", m[1])) for m in MAILS),)]),
    Shape("filter over a view", "SELECT shout FROM loud WHERE AI.IF(PROMPT('{0} view#', shout))",
          lambda ask: [(m[1].upper(),) for m in MAILS if m[1] is not None and m[3] >= 30 and ask("{0} view#", m[1].upper())]),
    Shape("CTE used twice", "WITH w AS (SELECT * FROM mails WHERE AI.IF(PROMPT('{0} cte#', text))) SELECT x.id, y.id FROM w x JOIN w y ON x.grp = y.grp",
          lambda ask: (lambda w: [(x[0], y[0]) for x in w for y in w if x[2] is not None and x[2] == y[2]])([m for m in MAILS if ask("{0} cte#", m[1])])),
    Shape("self join", "SELECT x.id, y.id FROM mails x JOIN mails y ON x.id < y.id AND AI.IF(PROMPT('{x.text} before {y.text} self#'))",
          lambda ask: [(x[0], y[0]) for x in MAILS for y in MAILS if x[0] < y[0] and ask("{0} before {1} self#", x[1], y[1])], ("ai_join",)),
    Shape("AI join", "SELECT m.id, t.id FROM mails m JOIN topics t ON AI.IF(PROMPT('{m.text} is about {t.name} join#'))",
          lambda ask: pairs(ask, "{0} is about {1} join#"), ("ai_join",)),
    Shape("comma join", "SELECT m.id, t.id FROM mails m, topics t WHERE AI.IF(PROMPT('{0} is about {1} comma#', m.text, t.name))",
          lambda ask: pairs(ask, "{0} is about {1} comma#"), ("ai_join",)),
    Shape("anchor hint", "SELECT m.id, t.id FROM mails m JOIN topics t ON AI.IF(PROMPT('{0} is about {1} hint#', m.text, t.name), {'anchor': 't', 'selectivity': 0.4})",
          lambda ask: pairs(ask, "{0} is about {1} hint#"), ("ai_join",)),
    Shape("equality and AI join", "SELECT m.id, t.id FROM mails m JOIN topics t ON m.grp = t.grp AND AI.IF(PROMPT('{0} is about {1} eq#', m.text, t.name))",
          lambda ask: pairs(ask, "{0} is about {1} eq#", same_group), ("ai_join",)),
    Shape("equality, inequality and AI join", "SELECT m.id, t.id FROM mails m JOIN topics t ON AI.IF(PROMPT('{0} is about {1} ne#', m.text, t.name)) AND m.grp = t.grp AND m.id <> t.id + 1",
          lambda ask: pairs(ask, "{0} is about {1} ne#", lambda m, t: same_group(m, t) and m[0] != t[0] + 1), ("ai_join",)),
    Shape("two predicates in a join", "SELECT m.id, t.id FROM mails m JOIN topics t ON AI.IF(PROMPT('{0} f# {1}', m.text, t.name)) AND AI.IF(PROMPT('{1} g# {0}', m.text, t.name))",
          lambda ask: [(m[0], t[0]) for m in MAILS for t in TOPICS if ask("{0} f# {1}", m[1], t[1]) and ask("{1} g# {0}", m[1], t[1])], ("ai_join",)),
    Shape("filters on both sides of a join", "SELECT m.id, t.id FROM mails m JOIN topics t ON AI.IF(PROMPT('{0} h# {1}', m.text, t.name)) WHERE AI.IF(PROMPT('{0} i#', m.text)) AND AI.IF(PROMPT('{0} j#', t.name)) AND m.n < 100",
          lambda ask: [(m[0], t[0]) for m in MAILS for t in TOPICS if m[3] < 100 and ask("{0} i#", m[1]) and ask("{0} j#", t[1]) and ask("{0} h# {1}", m[1], t[1])], ("ai_filter", "ai_join")),
    Shape("join of three", "SELECT m.id, t.id, u.id FROM mails m JOIN topics t ON m.grp = t.grp AND AI.IF(PROMPT('{0} k# {1}', m.text, t.name)) JOIN topics u ON AI.IF(PROMPT('{0} l# {1}', t.name, u.name)) WHERE m.id < 8",
          lambda ask: [(m, t, u[0]) for m, t in pairs(ask, "{0} k# {1}", lambda m, t: m[0] < 8 and same_group(m, t)) for u in TOPICS if ask("{0} l# {1}", TOPICS[t - 1][1], u[1])], ("ai_join",)),
    Shape("join, nothing kept", "SELECT count(*) FROM mails m JOIN topics t ON AI.IF(PROMPT('{0} m# {1}', m.text, t.name))",
          lambda ask: [(len(pairs(ask, "{0} m# {1}")),)], ("ai_join",)),
    Shape("SELECT and WHERE at once", "SELECT id, AI.IF(PROMPT('{0} both#', text)) AS flag FROM mails WHERE AI.IF(PROMPT('{0} both#', text)) AND n > 10",
          lambda ask: [(m[0], True) for m in MAILS if m[3] > 10 and ask("{0} both#", m[1])]),
    Shape("only in SELECT", "SELECT id, AI.IF(PROMPT('{0} sel#', text)) AS flag FROM mails",
          lambda ask: [(m[0], ask("{0} sel#", m[1])) for m in MAILS], ()),
    Shape("OR", "SELECT id FROM mails WHERE AI.IF(PROMPT('{0} or#', text)) OR AI.IF(PROMPT('{0} ro#', grp)) OR n = 40",
          lambda ask: [(m[0],) for m in MAILS if ask("{0} or#", m[1]) or ask("{0} ro#", m[2]) or m[3] == 40], ()),
    Shape("filter and OR", "SELECT id FROM mails WHERE AI.IF(PROMPT('{0} n#', text)) AND (n > 60 OR AI.IF(PROMPT('{0} o#', text)))",
          lambda ask: [(m[0],) for m in MAILS if ask("{0} n#", m[1]) and (m[3] > 60 or ask("{0} o#", m[1]))]),
    Shape("NOT", "SELECT id FROM mails WHERE NOT AI.IF(PROMPT('{0} not#', text))",
          lambda ask: [(m[0],) for m in MAILS if ask("{0} not#", m[1]) is False], ()),
    Shape("IS NULL", "SELECT id FROM mails WHERE AI.IF(PROMPT('{0} nul#', text)) IS NULL",
          lambda ask: [(m[0],) for m in MAILS if ask("{0} nul#", m[1]) is None], ()),
    Shape("CASE", "SELECT id, CASE WHEN AI.IF(PROMPT('{0} case#', text)) THEN 'yes' WHEN n > 60 THEN 'big' ELSE 'no' END FROM mails",
          lambda ask: [(m[0], "yes" if ask("{0} case#", m[1]) else "big" if m[3] > 60 else "no") for m in MAILS], ()),
    Shape("GROUP BY and HAVING", "SELECT grp, count(*) c FROM mails WHERE AI.IF(PROMPT('{0} HAV#', text)) GROUP BY grp HAVING AI.IF(PROMPT('{0} grp#', grp)) ORDER BY c DESC, grp",
          grouped_having),
    Shape("GROUP BY an answer", "SELECT AI.IF(PROMPT('{0} by#', text)) k, count(*) FROM mails GROUP BY 1",
          lambda ask: [(k, n) for k in (True, False, None) if (n := sum(ask("{0} by#", m[1]) is k for m in MAILS))], ()),
    Shape("window", "SELECT id, row_number() OVER (PARTITION BY grp ORDER BY id) r FROM mails WHERE AI.IF(PROMPT('{0} win#', text))",
          lambda ask: (lambda w: [(m[0], sum(x[2] == m[2] and x[0] <= m[0] for x in w)) for m in w])([m for m in MAILS if ask("{0} win#", m[1])])),
    Shape("UNION ALL", "SELECT id FROM mails WHERE AI.IF(PROMPT('{0} un#', text)) UNION ALL SELECT id FROM topics WHERE AI.IF(PROMPT('{0} un#', name))",
          lambda ask: [(r[0],) for r in [*MAILS, *TOPICS] if ask("{0} un#", r[1])]),
    Shape("IN (subquery)", "SELECT id FROM mails WHERE grp IN (SELECT grp FROM topics WHERE AI.IF(PROMPT('{0} in#', name)))",
          lambda ask: (lambda g: [(m[0],) for m in MAILS if m[2] in g])({t[2] for t in TOPICS if t[2] and ask("{0} in#", t[1])})),
    Shape("scalar subquery", "SELECT id FROM mails WHERE id > (SELECT count(*) FROM topics WHERE AI.IF(PROMPT('{0} sc#', name)))",
          lambda ask: (lambda c: [(m[0],) for m in MAILS if m[0] > c])(sum(bool(ask("{0} sc#", t[1])) for t in TOPICS)), ()),
    Shape("ORDER BY and LIMIT", "SELECT id FROM mails WHERE AI.IF(PROMPT('{0} lim#', text)) ORDER BY id DESC LIMIT 3",
          lambda ask: [(m[0],) for m in sorted(MAILS, reverse=True) if ask("{0} lim#", m[1])][:3]),
    Shape("DISTINCT", "SELECT DISTINCT text FROM mails WHERE AI.IF(PROMPT('{0} dis#', text))",
          lambda ask: [(t,) for t in dict.fromkeys(m[1] for m in MAILS) if ask("{0} dis#", t)]),
    Shape("empty table", "SELECT id FROM no_mails WHERE AI.IF(PROMPT('{0} emp#', text)) AND AI.IF(PROMPT('{0} x#', grp))", lambda ask: []),
    Shape("join with an empty table", "SELECT m.id FROM mails m JOIN no_mails x ON AI.IF(PROMPT('{0} y# {1}', m.text, x.text))", lambda ask: [], ("ai_join",)),
    Shape("empty anchors", "SELECT m.id FROM no_mails x JOIN mails m ON AI.IF(PROMPT('{0} z# {1}', x.text, m.text))", lambda ask: [], ("ai_join",)),
    Shape("one row", "SELECT id FROM one_mail WHERE AI.IF(PROMPT('{0} row#', text)) OR id = 2", lambda ask: [(2,)], ()),
    Shape("join of one row", "SELECT m.id FROM mails m JOIN one_mail x ON AI.IF(PROMPT('{0} w# {1}', x.text, m.text))",
          lambda ask: [(m[0],) for m in MAILS if ask("{0} w# {1}", MAILS[1][1], m[1])], ("ai_join",)),
    Shape("no argument", "SELECT id FROM one_mail WHERE AI.IF(PROMPT('is water wet? #'))",
          lambda ask: [(2,)] if ask("is water wet? #") else [], ()),
]  # fmt: skip


@pytest.fixture(scope="module")
def files(bare_spark, tmp_path_factory):
    """The tables as Parquet in several files, so that partitions, batches and unknown statistics are real."""
    home = tmp_path_factory.mktemp("tables")
    mails = bare_spark.createDataFrame(MAILS, "id int, text string, grp string, n int")
    mails.repartition(2).write.parquet(f"{home}/mails")
    bare_spark.createDataFrame(TOPICS, "id int, name string, grp string").coalesce(1).write.parquet(f"{home}/topics")
    mails.where("id < 0").write.parquet(f"{home}/no_mails")
    return home


@pytest.fixture
def tables(spark, files):
    """A session with the tables as views."""
    for name in ("mails", "topics", "no_mails"):
        spark.read.parquet(f"{files}/{name}").createOrReplaceTempView(name)
    spark.sql("SELECT * FROM mails WHERE id = 2").createOrReplaceTempView("one_mail")
    spark.sql("SELECT upper(text) AS shout FROM mails WHERE n >= 30").createOrReplaceTempView("loud")
    return spark


def ordered(sql: str) -> bool:
    """Whether the query itself is ordered (not a window in it)."""
    return "ORDER BY" in sql.rsplit(")", 1)[-1]


def result(df, sql: str) -> list[tuple]:
    """Rows, sorted unless the query orders them."""
    rows = [tuple(row) for row in df.collect()]
    return rows if ordered(sql) else sorted(rows, key=repr)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_planned_is_unplanned_is_python(tables, shape):
    """Planned first: every question is asked once at most. Then unplanned: nothing is left to ask."""
    tag = " planned"
    sql = shape.sql.replace("#", tag)
    rows = list(shape.rows(lambda template, *texts: answer(template.replace("#", tag), *texts)))
    expected = rows if ordered(sql) else sorted(rows, key=repr)
    planned = tables.sql(sql)
    plan = planned._jdf.queryExecution().optimizedPlan().toString()
    for operator in shape.operators:
        assert f"MapInArrow {operator}-" in plan
    assert result(planned, sql) == expected
    asked = calls(tables, tag)
    assert set(asked.values()) <= {1}, "a question was asked twice"
    tables.conf.set("spark.quail.optimizer.enabled", "false")
    assert result(tables.sql(sql), sql) == expected


UDF_FIRST = ("two filters", "self join", "equality and AI join", "SELECT and WHERE at once", "OR")


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.name in UDF_FIRST], ids=lambda shape: shape.name)
def test_unplanned_asks_each_question_once(tables, shape):
    sql = shape.sql.replace("#", " as udf")
    rows = list(shape.rows(lambda template, *texts: answer(template.replace("#", " as udf"), *texts)))
    tables.conf.set("spark.quail.optimizer.enabled", "false")
    assert result(tables.sql(sql), sql) == sorted(rows, key=repr)
    asked = calls(tables, " as udf")
    assert set(asked.values()) <= {1}
    tables.conf.set("spark.quail.optimizer.enabled", "true")
    assert result(tables.sql(sql), sql) == sorted(rows, key=repr)
    assert calls(tables, " as udf") == asked


def test_only_needed_questions_are_asked(tables):
    """Relational predicates come first, a row leaves at its first FALSE, an equality limits the pairs."""
    tables.sql(
        "SELECT id FROM mails WHERE n > 60 AND AI.IF(PROMPT('{0} need1', text)) AND AI.IF(PROMPT('{0} need2', text))"
    ).collect()
    asked = calls(tables, " need")
    for text in (m[1] for m in MAILS if m[3] > 60):
        answers = [answer(template, t) for template, (t,) in asked if t == text]
        assert answers == [False] or (len(answers) == 2 and any(answers)), text
    assert {t for _, (t,) in asked} == {m[1] for m in MAILS if m[3] > 60}

    tables.sql(
        "SELECT m.id FROM mails m JOIN topics t ON m.grp = t.grp AND m.n < t.id * 30 AND AI.IF(PROMPT('{0} {1} needed', m.text, t.name))"
    ).collect()
    pairs_asked = {texts for _, texts in calls(tables, " needed")}
    assert pairs_asked == {
        (m[1], t[1])
        for m in MAILS
        for t in TOPICS
        if same_group(m, t) and m[3] < t[0] * 30 and None not in (m[1], t[1])
    }
