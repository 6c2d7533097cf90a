# Folders that are filled once per version and swapped in whole.
# shellcheck shell=bash

# locked PACKAGE: its version in uv.lock.
locked() {
  python3 - "$REPOSITORY/uv.lock" "$1" <<'PY'
import sys, tomllib

with open(sys.argv[1], "rb") as file:
    print(next(p["version"] for p in tomllib.load(file)["package"] if p["name"] == sys.argv[2]))
PY
}

# put_in_place NEW TARGET STAMP: swaps a finished folder in, so that an interrupted run leaves nothing half there.
put_in_place() {
  echo "$3" >"$1/.version"
  rm -rf "$2.old"
  [ ! -e "$2" ] || mv "$2" "$2.old"
  mv "$1" "$2"
  rm -rf "$2.old"
}

has() { [ "$(cat "$1/.version" 2>/dev/null)" = "$2" ]; }
