#!/bin/sh
# Ends with a sentence unless there is a Java runtime that Spark can use.
set -eu

java=${JAVA_HOME:+$JAVA_HOME/bin/}java
found=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1) || found=
if [ -z "$found" ]; then
    echo "The tests of the pipeline need Java 17 or newer, and there is no $java: install it, on Debian and Ubuntu with \`apt install openjdk-17-jre-headless\`, or run other tests by \`make test ARGS=tests/unit\`." >&2
    exit 1
fi
if [ "$found" -lt 17 ]; then
    echo "The tests of the pipeline need Java 17 or newer, and $java is version $found: install a newer one, or name it by JAVA_HOME." >&2
    exit 1
fi
