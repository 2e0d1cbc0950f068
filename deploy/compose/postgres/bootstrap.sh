#!/bin/sh
# Called by Patroni once, when it has made a new database: makes the nodes' role and its database. $1 is
# a connection to the new server.
set -eu

psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --set password="$STORENODE_PASSWORD" "$1" <<'END'
CREATE ROLE storenode LOGIN PASSWORD :'password';
-- How far standbys are behind is for members of this role only; the node's metrics show it.
GRANT pg_read_all_stats TO storenode;
CREATE DATABASE storenode OWNER storenode ENCODING 'UTF8' TEMPLATE template0;
END
