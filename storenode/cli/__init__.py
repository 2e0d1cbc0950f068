"""The command `storenode`: the client commands; the node adds its own."""
