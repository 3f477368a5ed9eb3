"""The calls of other engines on text alone: what they become. That they run is in test_vendors.py."""

import pytest

from quail_spark.sql import rewrite

VENDORS = [
    # BigQuery
    ("AI.IF(('is ', t.c, ' red?'))", "ai_if(prompt('is ' '{0}' ' red?', t.c))"),
    ("AI.IF((c, ' is it?'))", "ai_if(prompt('{0}' ' is it?', c))"),
    ("AI.IF(STRUCT('is ', c))", "ai_if(prompt('is ' '{0}', c))"),
    ("AI.IF(STRUCT('is ' AS q, c AS doc))", "ai_if(prompt('is ' '{0}', c))"),
    ("AI.IF(prompt => ('is ', c))", "ai_if(prompt('is ' '{0}', c))"),
    ("AI.IF(prompt => STRUCT('is ', c), max_error_ratio => 0.25)", "ai_if(prompt('is ' '{0}', c), map('max_error_ratio', '0.25'))"),
    ("AI.IF(CONCAT('is ', c, '?'))", "ai_if(prompt('is ' '{0}' '?', c))"),
    ("AI.IF('is ' || c || '?')", "ai_if(prompt('is ' '{0}' '?', c))"),
    ("AI.IF('is ' || upper(c || d) || CONCAT('?', e))", "ai_if(prompt('is ' '{0}' '?' '{1}', upper(c || d), e))"),
    ("AI.IF(('is water wet?'))", "ai_if(prompt('is water wet?'))"),
    ("AI.IF('is water wet?')", "ai_if(prompt('is water wet?'))"),
    ("AI.IF(('{0} is {c}', c))", "ai_if(prompt('{{0}} is {{c}}' '{0}', c))"),
    (r"""AI.IF(('it\'s ' 'so', c, "it''s"))""", r"""ai_if(prompt('it\'s ' 'so' '{0}' "it''s", c))"""),
    ("AI.IF(('is ', c), optimization_mode => 'MINIMIZE_COST', embeddings => e)", "ai_if(prompt('is ' '{0}', c))"),
    ("AI.IF(('is ', CASE WHEN AI.IF(PROMPT('{b}')) THEN c END))", "ai_if(prompt('is ' '{0}', CASE WHEN ai_if(prompt('{0}', b)) THEN c END))"),
    ("AI.IF(('x ', c)) AND AI.IF(PROMPT('{c}'))", "ai_if(prompt('x ' '{0}', c)) AND ai_if(prompt('{0}', c))"),
    # Snowflake
    ("AI_FILTER('is it? ' || t.c)", "ai_if(prompt('is it? ' '{0}', t.c))"),
    ("AI_FILTER(PROMPT('{0} is it?', c), TRUE)", "ai_if_details(prompt('{0} is it?', c))"),
    ("SNOWFLAKE.CORTEX.AI_FILTER('is it? ' || c, true)", "ai_if_details(prompt('is it? ' '{0}', c))"),
    ("AI_FILTER(PROMPT('{c}'), FALSE)", "ai_if(prompt('{0}', c))"),
    ("AI_FILTER(PROMPT('{c}'), TRUE).value", "ai_if(prompt('{0}', c), map('max_error_ratio', '1'))"),
    ("AI_FILTER(PROMPT('{c}'), TRUE).error", "ai_if_details(prompt('{0}', c)).error"),
    # BigQuery's and Databricks' functions that also answer otherwise
    ("AI.GENERATE_BOOL(('is ', c)).result", "ai_if(prompt('is ' '{0}', c), map('max_error_ratio', '1'))"),
    ("ai.generate_bool(prompt => ('is ', c), optimization_mode => 'x') . Result", "ai_if(prompt('is ' '{0}', c), map('max_error_ratio', '1'))"),
    ("AI.GENERATE_BOOL(('is ', c), max_error_ratio => .1).result", "ai_if(prompt('is ' '{0}', c), map('max_error_ratio', '.1'))"),
    ("AI.GENERATE_BOOL(PROMPT('{c}'), {'selectivity': 0.1}).result", "ai_if(prompt('{0}', c), map('selectivity', '0.1', 'max_error_ratio', '1'))"),
    ("AI.GENERATE_BOOL(('is ', c))", "CAST(ai_if_details(prompt('is ' '{0}', c)) AS STRUCT<result: BOOLEAN, status: STRING>)"),
    ("AI.GENERATE_BOOL(('is ', c)).status", "CAST(ai_if_details(prompt('is ' '{0}', c)) AS STRUCT<result: BOOLEAN, status: STRING>).status"),
    # queries and CASE within a part
    ("AI.IF(('is ', (SELECT max(c) || 'x' FROM t), '?'))", "ai_if(prompt('is ' '{0}' '?', (SELECT max(c) || 'x' FROM t)))"),
    ("AI.IF('is ' || (WITH q AS (VALUES ('a' || 'b')) FROM q) || '?')", "ai_if(prompt('is ' '{0}' '?', (WITH q AS (VALUES ('a' || 'b')) FROM q)))"),
    ("AI.IF('is ' || CASE WHEN c THEN 'a' || d ELSE CASE WHEN e THEN 'x' END || 'b' END || '?')",
     "ai_if(prompt('is ' '{0}' '?', CASE WHEN c THEN 'a' || d ELSE CASE WHEN e THEN 'x' END || 'b' END))"),
    # escapes that Spark reads as braces
    (r"AI.IF(('\u007b\173x\U0000007D', c))", r"ai_if(prompt('\u007b\u007b\173\173x\U0000007D\U0000007D' '{0}', c))"),
    (r"AI.IF(('\\173 \\u007b \'{', c))", r"ai_if(prompt('\\173 \\u007b \'{{' '{0}', c))"),
    (r"AI.IF((r'\173{', c))", r"ai_if(prompt(r'\173{{' '{0}', c))"),
    # with our options
    ("AI.IF(('is ', m.c, n.d), {'selectivity': 0.1, 'anchor': 'n'})", "ai_if(prompt('is ' '{0}' '{1}', m.c, n.d), map('selectivity', '0.1', 'anchor', '1'))"),
    ("AI.IF(PROMPT('{c}'), {'selectivity': 0.1}, max_error_ratio => 0)", "ai_if(prompt('{0}', c), map('selectivity', '0.1', 'max_error_ratio', '0'))"),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "expected"), VENDORS)
def test_forms_of_other_engines(sql, expected):
    assert rewrite(f"SELECT 1 WHERE {sql} -- AI.IF()") == f"SELECT 1 WHERE {expected} -- AI.IF()"
    assert rewrite(expected) == expected


QUERIES = [
    ("ai_query('ep', CONCAT('is ', c), returnType => 'BOOLEAN')", "ai_if(prompt('is ' '{0}', c))"),
    ("AI_QUERY('ep', 'is ' || c, returntype=>\"boolean\")", "ai_if(prompt('is ' '{0}', c))"),
    ("ai_query(endpoint => 'ep', request => 'is ' || c, returnType => 'BOOLEAN', failOnError => true)", "ai_if(prompt('is ' '{0}', c))"),
    ("ai_query('ep', PROMPT('{c}'), returnType => 'BOOLEAN', modelParameters => named_struct('max_tokens', 1))", "ai_if(prompt('{0}', c))"),
    ("ai_query('ep', 'is ' || c, returnType => 'BOOLEAN', failOnError => false).result", "ai_if(prompt('is ' '{0}', c), map('max_error_ratio', '1'))"),
    ("ai_query('ep', 'is ' || c, failOnError => false, returnType => 'BOOLEAN')",
     "CAST(ai_if_details(prompt('is ' '{0}', c)) AS STRUCT<result: BOOLEAN, errorMessage: STRING>)"),
    ("ai_query('ep', 'is ' || c, {'selectivity': 0.1}, returnType => 'BOOLEAN')", "ai_if(prompt('is ' '{0}', c), map('selectivity', '0.1'))"),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "expected"), QUERIES)
def test_ai_query_for_a_boolean(sql, expected):
    with pytest.warns(UserWarning, match="ignored in AI calls.*endpoint"):
        assert rewrite(f"SELECT {sql} FROM t") == f"SELECT {expected} FROM t"
    assert rewrite(expected) == expected


def test_arguments_without_a_meaning_are_named_once():
    sql = "SELECT AI.IF(('a', c), connection_id => 'x.y', endpoint => 'gemini'), AI.IF(PROMPT('{c}'), endpoint => 'e', model_params => JSON '{\"a\": 1}')"
    with pytest.warns(UserWarning, match="connection_id, endpoint, model_params") as caught:
        assert rewrite(sql) == "SELECT ai_if(prompt('a' '{0}', c)), ai_if(prompt('{0}', c))"
    assert len(caught) == 1
