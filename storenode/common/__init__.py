"""What all rooms share: bounded dictionaries, pauses between attempts, randomness."""
