"""What the migrations leave is what `store.db.schema.tables` says."""

from __future__ import annotations

import psycopg
import pytest

from store.db.checks.drift import differences


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)


def test_the_migrated_schema_is_the_described_one(database_url: str) -> None:
    assert differences(database_url) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("ALTER TABLE storenode.messages ADD COLUMN colour text", "colour"),
        ("ALTER TABLE storenode.messages DROP COLUMN batch CASCADE", "batch"),
        ("DROP VIEW storenode.export_sds", "export_sds"),
        ("DROP INDEX storenode.sds_time_idx", "sds_time_idx"),
        ("ALTER TABLE storenode.archived DROP COLUMN archive", "archive"),
        ("ALTER TABLE storenode.hashes ALTER COLUMN topic DROP NOT NULL", "topic"),
        ("ALTER TABLE storenode.sds ALTER COLUMN channel_key TYPE text", "channel_key"),
        ("DROP INDEX storenode.messages_topic_idx", "messages_topic_idx"),
        ("DROP TABLE storenode.topics", "topics"),
        ("ALTER TABLE storenode.hashes DROP CONSTRAINT hashes_pkey", "primary keys"),
        ("ALTER TABLE storenode.topics ALTER pubsub_topic TYPE text", "collations"),
        ("DROP SEQUENCE storenode.batch_seq", "batch_seq"),
        ("ALTER TABLE storenode.messages ALTER payload SET STORAGE EXTENDED", "payloads"),
        ("ALTER TABLE storenode.store ALTER horizon_ns DROP DEFAULT", "horizon_ns"),
    ],
)
def test_a_change_of_the_schema_is_found(database_url: str, change: str, told: str) -> None:
    execute(database_url, change)
    assert told in " ".join(differences(database_url))
