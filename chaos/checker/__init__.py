"""The history of a run, and the rules that stores, logs and processes must keep.

Nothing here imports a package of the project except ``storenode.wire``, the generated classes:
hashes follow the specification, and clients use the generated stubs. A fault that nodes and the
client library share would otherwise stay hidden.
"""
