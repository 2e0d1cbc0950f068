"""Range-based set reconciliation of SyncIDs (WAKU-SYNC). Pure.

What other rooms import, by module:

- `reconcile.session`: `ReconcileSession`, one side of one reconciliation, whose computations ask a
  view (`advance`); `PayloadFrame`, `SessionStep`, `Result`, `Role`, `SessionConfig`.
- `reconcile.compact`: the compact mode, which needs the kernel.
- `reconcile.view`: the reads of a session (`ViewRead`, `Spans`) and their answers (`ViewAnswer`,
  `Items`, `Measured`, `SpanParts`, `Probed`).
- `reconcile.index`: `Index` and `IndexView`, SyncIDs in memory.
- `reconcile.summaries`: `SummaryView`, counts and XORs of slices of time, and IDs where needed.
- `reconcile.lattice`: `LatticeSum`, a set of hashes as a sum that cannot be forged.
- `reconcile.codec`: `decode`, `encode`, `Payload`, `Ranges`, `RangeKind`.
- `reconcile.ids`, `reconcile.errors`, `reconcile.limits`, `reconcile.kernel`.

The algorithm is `reconcile.algorithm`: from the ranges of a received payload to the answer.
"""
