#!/bin/sh
# Starts Patroni, which starts Postgres. Begins as root, which may read the secrets, and goes on as
# postgres.
set -eu

secret() { cat "/run/secrets/$1"; }
PATRONI_SUPERUSER_PASSWORD=$(secret postgres-superuser)
PATRONI_REPLICATION_PASSWORD=$(secret postgres-replication)
STORENODE_PASSWORD=$(secret postgres-storenode)
export PATRONI_SUPERUSER_PASSWORD PATRONI_REPLICATION_PASSWORD STORENODE_PASSWORD

PATRONI_RESTAPI_CONNECT_ADDRESS=$PATRONI_NAME:8008
PATRONI_POSTGRESQL_CONNECT_ADDRESS=$PATRONI_NAME:5432
export PATRONI_RESTAPI_CONNECT_ADDRESS PATRONI_POSTGRESQL_CONNECT_ADDRESS

chown postgres:postgres /var/lib/postgresql/data
install -d -o postgres -g postgres -m 0700 /var/lib/postgresql/data/node
exec gosu postgres patroni /etc/patroni/patroni.yml
