"""The schema that migrations leave, against ``store/db/schema/schema.txt``."""

from __future__ import annotations

import psycopg

from store.db.schema.description import EXPECTED, describe, differences

CHANGES = {
    "ALTER TABLE storenode.messages ADD COLUMN colour text": "colour",
    "ALTER TABLE storenode.messages DROP COLUMN batch CASCADE": "batch",
    "DROP VIEW storenode.export_sds": "export_sds",
    "DROP INDEX storenode.sds_time_idx": "sds_time_idx",
    "ALTER TABLE storenode.archived DROP COLUMN archive": "archive",
    "ALTER TABLE storenode.hashes ALTER COLUMN key DROP NOT NULL": "hashes.key",
    "ALTER TABLE storenode.sds ALTER COLUMN channel_key TYPE text": "channel_key",
    "DROP INDEX storenode.messages_topic_idx": "messages_topic_idx",
    "DROP TABLE storenode.topics": "topics",
    "ALTER TABLE storenode.topics DROP CONSTRAINT topics_pkey": "topics_pkey",
    "ALTER TABLE storenode.topics ALTER pubsub_topic TYPE text": "pubsub_topic",
    "DROP SEQUENCE storenode.batch_seq": "batch_seq",
    "ALTER TABLE storenode.messages ALTER payload SET STORAGE EXTENDED": "payload",
    "ALTER TABLE storenode.store ALTER horizon_ns DROP DEFAULT": "horizon_ns",
}
"""A name that the check must mention, by the change of the schema."""


def test_the_migrated_schema_is_the_described_one(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        lines = sorted(line for _, _, line in describe(connection))
        assert "\n".join(lines) + "\n" == EXPECTED.read_text()
        assert differences(connection) == []
        # What an operator adds is left out.
        connection.execute("CREATE TABLE storenode.other (x int)")
        connection.execute("ALTER TABLE storenode.unread ADD CHECK (needed < 100)")
        assert differences(connection) == []


def test_a_change_of_the_schema_is_found(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        for change, named in CHANGES.items():
            with connection.transaction(force_rollback=True):
                connection.execute(change.encode())
                assert named in " ".join(differences(connection)), change
        assert differences(connection) == []
