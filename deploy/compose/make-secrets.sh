#!/bin/sh
# usage: make-secrets.sh [DIRECTORY]
# Makes what the nodes of compose.yaml keep secret, once: an authority, a certificate for each node,
# passwords of the databases, tokens of a client and an operator. What is there already stays as it is.
# Run it again after deleting a file to renew that file; a node takes a new certificate without restart.
set -eu
umask 077

if [ "$(id -u)" != 0 ]; then
    echo "make-secrets.sh gives what it makes to the user of the containers: run it as root." >&2
    exit 1
fi
here=$(cd "$(dirname "$0")" && pwd)
directory=${1:-$here/secrets}
days=825
mkdir -p "$directory"
cd "$directory"

# ca.pem signs both nodes; keep ca.key elsewhere once both have their certificates.
if [ ! -e ca.pem ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256 -days 3650 \
        -subj '/CN=storenode peers' -addext basicConstraints=critical,CA:TRUE \
        -addext keyUsage=critical,keyCertSign,cRLSign -keyout ca.key -out ca.pem 2>/dev/null
fi

# The first DNS name is the node's ID; the others are for clients on the same host.
for node in node-a node-b; do
    [ -e $node.pem ] && continue
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256 -subj "/CN=$node" \
        -keyout $node.key.new -out $node.csr 2>/dev/null
    printf '%s\n' "subjectAltName=DNS:$node,DNS:localhost,IP:127.0.0.1" \
        'basicConstraints=critical,CA:FALSE' 'keyUsage=critical,digitalSignature' \
        'extendedKeyUsage=serverAuth,clientAuth' >$node.ext
    openssl x509 -req -in $node.csr -CA ca.pem -CAkey ca.key -CAcreateserial -sha256 -days $days \
        -extfile $node.ext -out $node.pem.new 2>/dev/null
    mv $node.key.new $node.key
    mv $node.pem.new $node.pem
    rm $node.csr $node.ext
done

for name in postgres-superuser postgres-replication postgres-storenode grafana-admin; do
    [ -e $name.password ] || openssl rand -hex 24 >$name.password
done
for node in a b; do
    printf 'database-url = "postgresql://storenode:%s@db-%s-1:5432,db-%s-2:5432/storenode"\n' \
        "$(cat postgres-storenode.password)" $node $node >database-$node.toml
done

for client in app gateway operator; do
    [ -e $client.token ] || openssl rand -hex 32 >$client.token
done
digest() { tr -d '\n' <"$1.token" | sha256sum | cut -d ' ' -f 1; }
cat >clients.toml <<END
[clients.app]
token_sha256 = "$(digest app)"
rights = ["read", "publish", "follow"]

[clients.gateway]
token_sha256 = "$(digest gateway)"
rights = ["read"]

[clients.operator]
token_sha256 = "$(digest operator)"
rights = ["read", "admin"]
END

# Containers see these files with the owner that they have here, and nodes run as this user.
chown -R 10001:10001 .
chmod 0711 .
install -d -o 10001 -g 10001 "$here/archive"
echo "The secrets of the nodes are in $directory."
