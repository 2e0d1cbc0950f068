"""The reconciliation engine: IDs, codec, index and session of WAKU-SYNC. Pure."""
