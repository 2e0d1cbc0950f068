"""Range-based set reconciliation: from the ranges of a received payload to the answer.

`turn` is the algorithm: it compares fingerprints, splits what differs and exchanges item sets.
`plan` decides how finely to split, `questions` what a payload asks, `narrow` compares item sets;
`pieces` and `answer` put the answer together.
"""
