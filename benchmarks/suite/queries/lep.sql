-- Excerpts of court opinions before a quotation, and the passages that are quoted.

-- LEP-1: F
SELECT x.id FROM contexts x
WHERE AI.IF(PROMPT('{x.context} says that the reasoning of a cited case does not apply here'), {'selectivity': 0.03});

-- LEP-2: J
SELECT x.id, p.id AS passage FROM contexts x
JOIN citations p ON AI.IF(PROMPT('the excerpt {x.context} goes on to cite the passage {p.passage}'), {'selectivity': 0.0023});

-- LEP-3: F → J
SELECT x.id, p.id AS passage FROM contexts x
JOIN citations p ON AI.IF(PROMPT('the excerpt {x.context} goes on to cite the passage {p.passage}'), {'selectivity': 0.0023})
WHERE AI.IF(PROMPT('{x.context} says that the reasoning of a cited case does not apply here'), {'selectivity': 0.03});

-- LEP-4: F → F → J
SELECT x.id, p.id AS passage FROM contexts x
JOIN citations p ON AI.IF(PROMPT('the excerpt {x.context} goes on to cite the passage {p.passage}'), {'selectivity': 0.0023})
WHERE AI.IF(PROMPT('{x.context} says that the reasoning of a cited case does not apply here'), {'selectivity': 0.03})
  AND AI.IF(PROMPT('{x.context} deals with a procedural issue'), {'selectivity': 0.46});

-- LEP-5: F on both sides → J
SELECT x.id, p.id AS passage FROM contexts x
JOIN citations p ON AI.IF(PROMPT('the excerpt {x.context} goes on to cite the passage {p.passage}'), {'selectivity': 0.0023})
WHERE AI.IF(PROMPT('{x.context} deals with a procedural issue'), {'selectivity': 0.46})
  AND AI.IF(PROMPT('{p.passage} states a general rule of law'), {'selectivity': 0.81});
