# Debian packages that the cluster runs on: installed when a program is missing.
# shellcheck shell=bash

CNI_PLUGINS=/usr/lib/cni

missing_packages() {
  local pair
  for pair in containerd:containerd runc:runc iptables:iptables conntrack:conntrack openssl:openssl \
    buildah:buildah debootstrap:debootstrap ip:iproute2 curl:curl flock:util-linux; do
    command -v "${pair%%:*}" >/dev/null || printf '%s ' "${pair#*:}"
  done
  [ -x $CNI_PLUGINS/bridge ] || printf 'containernetworking-plugins '
}

install_packages() {
  local missing
  missing=$(missing_packages)
  [ -n "$missing" ] || return 0
  command -v apt-get >/dev/null || die "missing, and this machine has no apt-get: $missing" "install them and run this again"
  [ "$(id -u)" -eq 0 ] || die "missing, and installing needs root: $missing" "run: sudo apt-get install -y $missing"
  printf '\n    installing: %s\n  %-66s' "$missing" ""
  {
    apt-get update
    # shellcheck disable=SC2086  # a list of words
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing
  } >"$LOGS/apt.log" 2>&1 || die "apt-get failed" "see $LOGS/apt.log"
  missing=$(missing_packages)
  [ -z "$missing" ] || die "still missing after the installation: $missing"
}

need_toolchain() {
  command -v go >/dev/null || die "Go 1.26 or newer is needed to build the cluster's programs, and there is no 'go' on the PATH"
  need_python
}

need_python() {
  command -v python3 >/dev/null || die "python3 is needed"
  command -v uv >/dev/null || { python3 -m venv "$CACHE/uv" && "$CACHE/uv/bin/pip" install --quiet uv; }
}
