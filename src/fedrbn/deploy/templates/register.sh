#!/bin/sh
# Registers every key in keys/ that is not registered yet, while the SuperLink runs; registered/ keeps the node ids.
set -eu
umask 077
cd "$(dirname "$0")"
mkdir -p registered

# a SuperLink that was just started needs some seconds before it answers
register() {
  tries=0
  while :; do
    answer=$(sh ./flwr.sh supernode register "$1" site --name "$2" --format json)
    case $answer in *"SuperLink is unavailable"*) ;; *) return ;; esac
    tries=$((tries + 1))
    if [ "$tries" -gt 20 ]; then return; fi
    if [ "$tries" -eq 1 ]; then echo "waiting for the SuperLink" >&2; fi
    sleep 2
  done
}

for key in keys/*.pub; do
  name=$(basename "$key" .pub)
  if cmp -s "$key" "registered/$name.pub"; then
    echo "$name: already registered"
    continue
  fi
  register "$key" "$name"
  case $answer in
    *'"success": true'*) ;;
    *) echo "$name: refused: $answer" >&2; exit 1 ;;
  esac
  echo "$answer" >"registered/$name.json"
  cp "$key" "registered/$name.pub"
  echo "$name: registered"
done
