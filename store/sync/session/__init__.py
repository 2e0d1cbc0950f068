"""Sessions of reconciliation and transfer: who has one, and both roles of it."""
