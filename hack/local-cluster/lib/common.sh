# Sourced by every script here: where things are kept, and how a step says what it does and how long it took.
# shellcheck shell=bash
set -Eeuo pipefail
LOGGED=no   # while a command's output goes to a log, the log's end is shown instead
trap '[ $LOGGED = yes ] || printf "\n%s: failed in line %s of %s: %s\n" "${0##*/}" "$LINENO" "${BASH_SOURCE[0]}" "$BASH_COMMAND" >&2' ERR
export LC_ALL=C   # EPOCHREALTIME and awk must agree on the decimal point

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
REPOSITORY=$(cd "$HERE/../.." && pwd)
CACHE=${TAILKEEPER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tailkeeper}
BIN=$CACHE/bin             # programs built from source, kept for ever
CLUSTER=$CACHE/cluster     # everything that `down` removes
SITE=$CACHE/site           # torch, mounted into the pods
MODELS=$CACHE/models       # model folders, mounted into the pods
IMAGES=$CACHE/images       # image archives and buildah's storage
LOGS=$CACHE/log            # logs of builds; those of the cluster are in $CLUSTER/log

NODE_IP=10.244.0.1         # on the pods' own bridge, so that pods reach the API server there
POD_CIDR=10.244.0.0/24
SERVICE_CIDR=10.96.0.0/16
DNS_IP=10.96.0.10
BRIDGE=cni0
export CACHE REPOSITORY BIN CLUSTER SITE MODELS IMAGES LOGS NODE_IP POD_CIDR SERVICE_CIDR DNS_IP BRIDGE
export PATH="$BIN:$PATH:$CACHE/uv/bin"
mkdir -p "$BIN" "$SITE" "$MODELS" "$IMAGES" "$LOGS"

say() { printf '%s\n' "$*"; }

die() {
  printf '\n%s: %s\n' "${0##*/}" "$1" >&2
  shift
  [ $# -eq 0 ] || printf '  %s\n' "$@" >&2
  exit 1
}

seconds_since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'; }

# step "what is done" COMMAND...: runs the command in this shell and prints the text, then the seconds.
step() {
  local what=$1 started=$EPOCHREALTIME
  shift
  printf '  %-66s' "$what"
  "$@"
  printf '%7s s\n' "$(seconds_since "$started")"
}

# run_logged LOG COMMAND...: its output goes to the log; when it fails, the log's end is shown and the script ends.
# `set +e` around it and not `||`: in a condition bash would ignore every failure inside the command.
run_logged() {
  local log=$1 status
  shift
  set +e
  LOGGED=yes
  (set -e; LOGGED=no; "$@") >"$log" 2>&1
  status=$?
  LOGGED=no
  set -e
  [ $status -eq 0 ] && return
  printf '\n'
  tail -n 20 "$log" >&2
  die "failed: $*" "the whole output is in $log"
}

in_folder() { cd "$1" && "${@:2}"; }

# in_background NAME "what is done" COMMAND...: the same beside the other steps; its output goes to a log, and its line is
# printed by await_background, so that it does not fall into that of another step.
declare -A BACKGROUND=()
in_background() {
  local name=$1 what=$2
  shift 2
  (
    started=$EPOCHREALTIME
    run_logged "$LOGS/$name.log" "$@"
    printf '  %-66s%7s s\n' "$what" "$(seconds_since "$started")" >"$LOGS/$name.done"
  ) &
  BACKGROUND[$name]=$!
}

await_background() {
  local name failed=0
  for name in "${!BACKGROUND[@]}"; do
    wait "${BACKGROUND[$name]}" && cat "$LOGS/$name.done" || failed=1
  done
  BACKGROUND=()
  [ $failed -eq 0 ] || die "a preparation failed"
}

# eventually SECONDS COMMAND...: tries every 0.1 s; false when the time is over.
eventually() {
  local until=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $until ] || return 1
    sleep 0.1
  done
}

# only_one_at_a_time LOCK: holds a lock until the script ends. Daemons close fd 9, or they would hold it for ever.
only_one_at_a_time() {
  exec 9>"$CACHE/$1.lock"
  flock -n 9 || { say "  another run holds $CACHE/$1.lock; waiting for it"; flock 9; }
}

need_root() {
  [ "$(id -u)" -eq 0 ] || die "needs root (containers, mounts, iptables)" "run: sudo --preserve-env=PATH,HOME,XDG_CACHE_HOME,TAILKEEPER_CACHE $0"
}

# write_if_changed FILE < TEXT: leaves the file alone when the text is the same.
write_if_changed() {
  local new
  new=$(cat; printf x)
  new=${new%x}
  [ -f "$1" ] && [ "$(cat "$1"; printf x)" = "${new}x" ] || printf '%s' "$new" >"$1"
}
