"""The gateway: Waku clients over libp2p on one side, the `Store.Query` of a node on the other."""
