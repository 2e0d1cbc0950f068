"""Range-based set reconciliation: from the ranges of a received payload to the answer.

`turn` is the algorithm: it compares fingerprints, splits what differs and exchanges item sets.
`questions` reads a payload, `plan` decides how finely to split, `differences` compares item sets,
`answer` assembles the answer. `direct` has the kernel do all of it in one call, where it can.
"""
