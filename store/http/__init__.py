"""HTTP: requests in, JSON out. An edge: it knows the database as the ports of `store.domain`."""
