"""Range-based set reconciliation of SyncIDs (WAKU-SYNC). Pure.

What other rooms import, by module:

- `reconcile.session`: `ReconcileSession`, one side of one reconciliation, whose computations read a
  view; `PayloadFrame`, `SessionStep`, `Result`, `Role`, `SessionConfig`.
- `reconcile.compact`: the compact mode, which needs the kernel.
- `reconcile.view`: `View`, the seam of storage; `Spans`, and what is read of them (`Measured`,
  `SpanParts`, `Items`, `Probed`).
- `reconcile.index`: `Index` and `IndexView`, SyncIDs in memory.
- `reconcile.summaries`: `SummaryView`, a view of an index, or of counts and XORs of slices of time
  and IDs where needed; `proceed` runs what reads it.
- `reconcile.lattice`: `LatticeSum`, a set of hashes as a sum that cannot be forged.
- `reconcile.codec`: `decode`, `encode`, `Payload`, `Ranges`, `RangeKind`.
- `reconcile.ids`, `reconcile.errors`, `reconcile.limits`, `reconcile.kernel`.

The algorithm is `reconcile.algorithm`: from the ranges of a received payload to the answer.
"""
