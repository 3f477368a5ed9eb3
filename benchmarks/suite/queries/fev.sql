-- Claims and passages of an encyclopedia. `gold` names the passages that a claim was written from.

-- FEV-1: F
SELECT c.id FROM claims c
WHERE AI.IF(PROMPT('{c.claim} is about a person'), {'selectivity': 0.59});

-- FEV-2: J
SELECT c.id, e.id AS passage FROM claims c
JOIN passages e ON AI.IF(PROMPT('the claim {c.claim} is supported by the passage {e.text}'), {'selectivity': 0.0022});

-- FEV-3: F → J
SELECT c.id, e.id AS passage FROM claims c
JOIN passages e ON AI.IF(PROMPT('the claim {c.claim} is supported by the passage {e.text}'), {'selectivity': 0.0022})
WHERE AI.IF(PROMPT('{c.claim} is about a person'), {'selectivity': 0.59});

-- FEV-4: F → F → J
SELECT c.id, e.id AS passage FROM claims c
JOIN passages e ON AI.IF(PROMPT('the claim {c.claim} is supported by the passage {e.text}'), {'selectivity': 0.0022})
WHERE AI.IF(PROMPT('{c.claim} is about a person'), {'selectivity': 0.59})
  AND AI.IF(PROMPT('{c.claim} contains a date'), {'selectivity': 0.14});

-- FEV-5: F on both sides → J
SELECT c.id, e.id AS passage FROM claims c
JOIN passages e ON AI.IF(PROMPT('the claim {c.claim} is supported by the passage {e.text}'), {'selectivity': 0.0022})
WHERE AI.IF(PROMPT('{c.claim} is about a person'), {'selectivity': 0.59})
  AND AI.IF(PROMPT('the subject of {e.text} is a person'), {'selectivity': 0.55});

-- FEV-6: F → F on one side, F on the other → J
SELECT c.id, e.id AS passage FROM claims c
JOIN passages e ON AI.IF(PROMPT('the claim {c.claim} is supported by the passage {e.text}'), {'selectivity': 0.0022})
WHERE AI.IF(PROMPT('{c.claim} is about a person'), {'selectivity': 0.59})
  AND AI.IF(PROMPT('{c.claim} contains a date'), {'selectivity': 0.14})
  AND AI.IF(PROMPT('the subject of {e.text} is a person'), {'selectivity': 0.55});

-- FEV-7: J → J, star
SELECT c.id, e1.id AS support, e2.id AS contradiction FROM claims c
JOIN passages e1 ON AI.IF(PROMPT('the claim {c.claim} is supported by the passage {e1.text}'), {'selectivity': 0.0022})
JOIN passages e2 ON AI.IF(PROMPT('the claim {c.claim} is contradicted by the passage {e2.text}'), {'selectivity': 0.0033});

-- FEV-8: J → J → J, chain c1-e1-c2-e2
SELECT c1.id, e1.id AS shared, c2.id AS other, e2.id AS support FROM claims c1
JOIN passages e1 ON AI.IF(PROMPT('the claim {c1.claim} is supported by the passage {e1.text}'), {'selectivity': 0.0022})
JOIN claims c2 ON AI.IF(PROMPT('the claim {c2.claim} is contradicted by the passage {e1.text}'), {'selectivity': 0.0033})
JOIN passages e2 ON AI.IF(PROMPT('the claim {c2.claim} is supported by the passage {e2.text}'), {'selectivity': 0.0022});

-- FEV-9: F on all four inputs → FEV-8
SELECT c1.id, e1.id AS shared, c2.id AS other, e2.id AS support FROM claims c1
JOIN passages e1 ON AI.IF(PROMPT('the claim {c1.claim} is supported by the passage {e1.text}'), {'selectivity': 0.0022})
JOIN claims c2 ON AI.IF(PROMPT('the claim {c2.claim} is contradicted by the passage {e1.text}'), {'selectivity': 0.0033})
JOIN passages e2 ON AI.IF(PROMPT('the claim {c2.claim} is supported by the passage {e2.text}'), {'selectivity': 0.0022})
WHERE AI.IF(PROMPT('{c1.claim} is about a person'), {'selectivity': 0.59})
  AND AI.IF(PROMPT('{c2.claim} is about a person'), {'selectivity': 0.59})
  AND AI.IF(PROMPT('the subject of {e1.text} is a person'), {'selectivity': 0.55})
  AND AI.IF(PROMPT('the subject of {e2.text} is a person'), {'selectivity': 0.55});

-- FEV-10: F on both sides → J under an equality
-- (of a claim's own passages about half support it)
SELECT c.id, e.id AS passage FROM claims c
JOIN gold g ON g.claim = c.id
JOIN passages e ON e.id = g.passage
  AND AI.IF(PROMPT('the claim {c.claim} is supported by the passage {e.text}'), {'selectivity': 0.5})
WHERE AI.IF(PROMPT('{c.claim} is about a person'), {'selectivity': 0.59})
  AND AI.IF(PROMPT('the subject of {e.text} is a person'), {'selectivity': 0.55});
