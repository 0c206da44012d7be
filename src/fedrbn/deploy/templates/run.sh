#!/bin/sh
# Starts the run that app/ and experiment.toml describe, or continues it after an interruption.
set -eu
cd "$(dirname "$0")"
exec sh ./flwr.sh run app site "$@"
