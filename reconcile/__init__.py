"""Range-based set reconciliation of SyncIDs (WAKU-SYNC). Pure.

What other rooms import, by module:

- `reconcile.session`: `Session`, one side of one reconciliation as a state machine; its inputs
  (`Begin`, `Received`, `Answered`, `Ticked`), effects (`ReadEffect`, `Send`, `Ended`), `Result`,
  `Role`, `SessionConfig`, `SessionStateError`.
- `reconcile.view`: what a session reads (`Read`, `Answer`, `Spans`, `Items`, `Measured`, `Parts`).
- `reconcile.index`: `Index` and `IndexView`, SyncIDs in memory.
- `reconcile.summaries`: views over counts and XORs of slices of time (`buckets`, `summary`,
  `layered`, `leaves`, `loading`).
- `reconcile.lattice`: `LatticeSum`, a set of hashes as a sum that cannot be forged.
- `reconcile.codec`: `decode`, `encode`, `Payload`, `Ranges`, `RangeKind`.
- `reconcile.ids`, `reconcile.errors`, `reconcile.limits`, `reconcile.kernel`.

The algorithm is `reconcile.algorithm`: from the ranges of a received payload to the answer.
"""
