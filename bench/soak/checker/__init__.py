"""What was promised, what is held, and whether the two agree.

Nothing here imports a room of the project but ``wire``, the generated classes: hashes are computed
from the specification, and calls are made with the stubs alone. A fault that nodes and clients
share would otherwise be hidden from it.
"""
