# The cluster's daemons. There are no pid files: after a restart of the machine a number may be another's, so the process
# table itself is asked. One of ours has our program as its first word and names a path in $CLUSTER in a later one.
# shellcheck shell=bash

DAEMONS_STARTED=()   # names of the daemons that this run started

# processes: a line for each process of this machine: "ours" or "other", its number, its first word.
processes() {
  local folder argv whose
  for folder in /proc/[0-9]*; do
    { mapfile -d '' -t argv <"$folder/cmdline"; } 2>/dev/null || continue   # it has just ended
    [ ${#argv[@]} -gt 0 ] || continue                                       # one of the kernel
    whose=other
    [[ "${argv[*]:1}" != *"$CLUSTER/"* ]] || whose=ours
    printf '%s %s %s\n' $whose "${folder#/proc/}" "${argv[0]%%[[:space:]]*}"
  done
}

# pids_of PROGRAM: numbers of this cluster's processes that run the program (a path, or a name as given to exec).
pids_of() { processes | awk -v program="$1" '$1 == "ours" && $3 == program { print $2 }'; }

# stranger_kubelets: numbers of kubelets and kube-proxies that are not ours; two would fight over pods and iptables.
stranger_kubelets() { processes | awk '$1 == "other" && $3 ~ /(^|\/)(kubelet|kube-proxy|k3s|rke2)$/ { print $2 }'; }

# ensure NAME INPUTS PROGRAM ARGUMENTS...: leaves a running daemon alone when its command line, the program's version and
# the contents of the files INPUTS (words) are those it was started with; else stops it, if need be, and starts it.
ensure() {
  local name=$1 inputs=$2 sum
  shift 2
  # shellcheck disable=SC2086  # a list of words
  sum=$({ printf '%s\n' "$@"; cat "$BIN/.$name.version" $inputs 2>/dev/null || true; } | sha256sum)
  if [ -n "$(pids_of "$1")" ] && [ "$(cat "$CLUSTER/run/$name" 2>/dev/null)" = "$sum" ]; then return 0; fi
  stop_program "$1"
  [ ! -f "$CLUSTER/log/$name.log" ] || mv -f "$CLUSTER/log/$name.log" "$CLUSTER/log/$name.log.1"
  echo "$sum" >"$CLUSTER/run/$name"
  setsid nohup "$@" </dev/null >"$CLUSTER/log/$name.log" 2>&1 9>&- &
  DAEMONS_STARTED+=("$name")
}

# stop_program PROGRAM...: ends the processes and waits; those that do not end within 5 s are killed.
stop_program() {
  local program pids
  for program in "$@"; do
    pids=$(pids_of "$program")
    # shellcheck disable=SC2086
    [ -z "$pids" ] || kill $pids 2>/dev/null || true
  done
  for program in "$@"; do
    eventually 5 gone "$program" || {
      # shellcheck disable=SC2046
      kill -KILL $(pids_of "$program") 2>/dev/null || true
      eventually 5 gone "$program" || die "$program does not end"
    }
  done
}

gone() { [ -z "$(pids_of "$1")" ]; }

# need NAME SECONDS COMMAND...: waits until the command succeeds; else shows the end of the daemon's log and ends.
need() {
  local name=$1 limit=$2
  shift 2
  eventually "$limit" "$@" && return
  printf '\n'
  tail -n 15 "$CLUSTER/log/$name.log" >&2
  die "$name did not become ready in $limit s" "its log: $CLUSTER/log/$name.log"
}
