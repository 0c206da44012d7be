#!/bin/sh
# Registers every key in keys/ that is not registered yet, while the SuperLink runs; registered/ keeps the node ids.
set -eu
umask 077
cd "$(dirname "$0")"
mkdir -p registered
for key in keys/*.pub; do
  name=$(basename "$key" .pub)
  if cmp -s "$key" "registered/$name.pub"; then
    echo "$name: already registered"
    continue
  fi
  answer=$(sh ./flwr.sh supernode register "$key" site --name "$name" --format json)
  case $answer in
    *'"success": true'*) ;;
    *) echo "$name: refused: $answer" >&2; exit 1 ;;
  esac
  echo "$answer" >"registered/$name.json"
  cp "$key" "registered/$name.pub"
  echo "$name: registered"
done
