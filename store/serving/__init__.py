"""What all edges that serve clients share: who calls, within which limits, and publishing."""
