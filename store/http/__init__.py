"""HTTP: requests in, JSON out. An edge: it uses the database by the ports of `store.domain`."""
