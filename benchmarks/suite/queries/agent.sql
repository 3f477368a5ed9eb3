-- Traces of coding agents: `snapshots` has for each turn of a run all that was said so far.

-- AGENT-1: F
SELECT s.run, s.turn FROM snapshots s
WHERE AI.IF(PROMPT('in {s.history} the agent recovers after a failed attempt'), {'selectivity': 0.32});

-- AGENT-2: F
SELECT s.run, s.turn FROM snapshots s
WHERE AI.IF(PROMPT('in {s.history} the agent has implemented a fix'), {'selectivity': 0.30});

-- R-1: a column's test before the filter
SELECT s.run, s.turn FROM snapshots s
WHERE s.turn >= 10 AND AI.IF(PROMPT('in {s.history} the agent has implemented a fix'), {'selectivity': 0.30});

-- R-2: the filter, then ORDER BY and LIMIT
SELECT s.run, s.turn FROM snapshots s
WHERE AI.IF(PROMPT('in {s.history} the agent recovers after a failed attempt'), {'selectivity': 0.32})
ORDER BY s.characters DESC, s.run, s.turn LIMIT 10 OFFSET 10;

-- R-3: the filter, then DISTINCT
SELECT DISTINCT s.run FROM snapshots s
WHERE AI.IF(PROMPT('in {s.history} the agent recovers after a failed attempt'), {'selectivity': 0.32});

-- R-6: the filter, then GROUP BY and HAVING
SELECT s.run, COUNT(*) AS turns, MIN(s.turn) AS first_turn, MAX(s.characters) AS longest FROM snapshots s
WHERE AI.IF(PROMPT('in {s.history} the agent has implemented a fix'), {'selectivity': 0.30})
GROUP BY s.run HAVING COUNT(*) >= 2;
