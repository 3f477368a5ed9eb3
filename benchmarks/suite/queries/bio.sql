-- Reports of adverse events, and reaction terms. `reports` are full texts and abstracts, `case_reports` the full texts.

-- BIO-1: F
SELECT d.id FROM reports d
WHERE AI.IF(PROMPT('{d.text} describes a serious or life-threatening event'), {'selectivity': 0.64});

-- BIO-2: J
SELECT d.id, t.term FROM case_reports d
JOIN reaction_terms t ON AI.IF(PROMPT('the patient in {d.text} had this reaction: {t.term}'), {'selectivity': 0.034});

-- BIO-3: F → J
SELECT d.id, t.term FROM case_reports d
JOIN reaction_terms t ON AI.IF(PROMPT('the patient in {d.text} had this reaction: {t.term}'), {'selectivity': 0.034})
WHERE AI.IF(PROMPT('{d.text} describes a serious or life-threatening event'), {'selectivity': 0.64});

-- BIO-4: F on all three inputs, J → J, star
SELECT d.id, n.term AS neurological, c.term AS cardiovascular FROM case_reports d
JOIN reaction_terms n ON AI.IF(PROMPT('the patient in {d.text} had this reaction: {n.term}'), {'selectivity': 0.034})
JOIN reaction_terms c ON AI.IF(PROMPT('the patient in {d.text} had this reaction: {c.term}'), {'selectivity': 0.034})
WHERE AI.IF(PROMPT('{d.text} describes a serious or life-threatening event'), {'selectivity': 0.64})
  AND AI.IF(PROMPT('{n.term} is a neurological reaction'), {'selectivity': 0.45})
  AND AI.IF(PROMPT('{c.term} is a cardiovascular reaction'), {'selectivity': 0.35});
