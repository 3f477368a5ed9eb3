-- Film reviews and aspects of films.

-- IMDB-1: F
SELECT r.id FROM reviews r
WHERE AI.IF(PROMPT('{r.review} names something that the film does well'), {'selectivity': 0.80});

-- IMDB-2: J
SELECT r.id, a.aspect FROM reviews r
JOIN aspects a ON AI.IF(PROMPT('{r.review} discusses this aspect of the film: {a.description}'), {'selectivity': 0.29});

-- IMDB-3: F → J
SELECT r.id, a.aspect FROM reviews r
JOIN aspects a ON AI.IF(PROMPT('{r.review} discusses this aspect of the film: {a.description}'), {'selectivity': 0.29})
WHERE AI.IF(PROMPT('{r.review} names something that the film does well'), {'selectivity': 0.80});

-- IMDB-4: F → F → J
SELECT r.id, a.aspect FROM reviews r
JOIN aspects a ON AI.IF(PROMPT('{r.review} discusses this aspect of the film: {a.description}'), {'selectivity': 0.29})
WHERE AI.IF(PROMPT('{r.review} names something that the film does well'), {'selectivity': 0.80})
  AND AI.IF(PROMPT('{r.review} says something about the ending of the film'), {'selectivity': 0.24});

-- IMDB-5: F → F → F → J
SELECT r.id, a.aspect FROM reviews r
JOIN aspects a ON AI.IF(PROMPT('{r.review} discusses this aspect of the film: {a.description}'), {'selectivity': 0.29})
WHERE AI.IF(PROMPT('{r.review} names something that the film does well'), {'selectivity': 0.80})
  AND AI.IF(PROMPT('{r.review} says something about the ending of the film'), {'selectivity': 0.24})
  AND AI.IF(PROMPT('{r.review} mentions an actor or an actress by name'), {'selectivity': 0.57});

-- IMDB-6: F → F
SELECT r.id FROM reviews r
WHERE AI.IF(PROMPT('{r.review} names something that the film does well'), {'selectivity': 0.80})
  AND AI.IF(PROMPT('{r.review} says something about the ending of the film'), {'selectivity': 0.24});

-- IMDB-7: F → F → F
SELECT r.id FROM reviews r
WHERE AI.IF(PROMPT('{r.review} names something that the film does well'), {'selectivity': 0.80})
  AND AI.IF(PROMPT('{r.review} says something about the ending of the film'), {'selectivity': 0.24})
  AND AI.IF(PROMPT('{r.review} mentions an actor or an actress by name'), {'selectivity': 0.57});

-- IMDB-8: J → J, star, one anchor
SELECT r.id, a1.aspect, a2.aspect AS praised FROM reviews r
JOIN aspects a1 ON AI.IF(PROMPT('{r.review} discusses this aspect of the film: {a1.description}'), {'selectivity': 0.29})
JOIN aspects a2 ON AI.IF(PROMPT('{r.review} praises this aspect of the film: {a2.description}'), {'selectivity': 0.16});

-- IMDB-9: J → J → J, chain r1-a1-r2-a2
SELECT r1.id, r2.id AS other, a1.aspect, a2.aspect AS praised FROM reviews r1
JOIN aspects a1 ON AI.IF(PROMPT('{r1.review} discusses this aspect of the film: {a1.description}'), {'selectivity': 0.29})
JOIN reviews r2 ON AI.IF(PROMPT('{r2.review} discusses this aspect of the film: {a1.description}'), {'selectivity': 0.29})
JOIN aspects a2 ON AI.IF(PROMPT('{r2.review} praises this aspect of the film: {a2.description}'), {'selectivity': 0.16});

-- IMDB-10: F → IMDB-9
SELECT r1.id, r2.id AS other, a1.aspect, a2.aspect AS praised FROM reviews r1
JOIN aspects a1 ON AI.IF(PROMPT('{r1.review} discusses this aspect of the film: {a1.description}'), {'selectivity': 0.29})
JOIN reviews r2 ON AI.IF(PROMPT('{r2.review} discusses this aspect of the film: {a1.description}'), {'selectivity': 0.29})
JOIN aspects a2 ON AI.IF(PROMPT('{r2.review} praises this aspect of the film: {a2.description}'), {'selectivity': 0.16})
WHERE AI.IF(PROMPT('{r1.review} says something about the ending of the film'), {'selectivity': 0.24});
