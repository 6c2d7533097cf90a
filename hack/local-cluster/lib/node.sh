# The node's side: the pods' network, containerd with the read-only mounts, the kubelet's configuration.
# shellcheck shell=bash

CONTAINERD_ROOT=$CACHE/containerd   # images as containerd unpacks them: slow to make and slow to delete, so `down` keeps them
CONTAINERD_SOCKET=$CLUSTER/containerd/containerd.sock

ctr() { command ctr --address "$CONTAINERD_SOCKET" --namespace k8s.io "$@"; }

# The node's address lives on the pods' bridge, which is there before the first pod.
ensure_network() {
  ip link show "$BRIDGE" >/dev/null 2>&1 || ip link add "$BRIDGE" type bridge
  ip -4 addr show dev "$BRIDGE" | grep "inet $NODE_IP/" >/dev/null || ip addr add "$NODE_IP/24" dev "$BRIDGE"
  ip link set "$BRIDGE" up
  echo 1 >/proc/sys/net/ipv4/ip_forward
  # A pod's answer to another pod that asked a Service passes over the bridge alone; iptables must see it there.
  if [ -e /proc/sys/net/bridge/bridge-nf-call-iptables ] || modprobe br_netfilter 2>/dev/null; then
    echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables
  fi
  mkdir -p "$CLUSTER/cni"
  write_if_changed "$CLUSTER/cni/10-pods.conflist" <<Y
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "$BRIDGE", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$CLUSTER/ipam",
            "ranges": [[{"subnet": "$POD_CIDR", "rangeStart": "${POD_CIDR%.0/*}.10"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
Y
}

# The base of every container's specification gets two more mounts, so that no pod needs a hostPath for them and all
# stay within the "restricted" pod security. A pod's own volume at the same path replaces one of them.
write_base_spec() {
  command ctr oci spec | python3 -c '
import json, sys

spec = json.load(sys.stdin)
for source, target in zip(sys.argv[1::2], sys.argv[2::2]):
    spec["mounts"].append({"destination": target, "source": source, "type": "bind", "options": ["bind", "ro", "nosuid", "nodev"]})
json.dump(spec, sys.stdout, indent=1)
' "$SITE/torch" /opt/torch "$MODELS" /models | write_if_changed "$CLUSTER/containerd/base-spec.json"
}

write_containerd_config() {
  write_if_changed "$CLUSTER/containerd/config.toml" <<Y
version = 2
root = "$CONTAINERD_ROOT"
state = "$CLUSTER/containerd/state"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]

[grpc]
  address = "$CONTAINERD_SOCKET"

[plugins."io.containerd.internal.v1.opt"]
  path = "$CLUSTER/containerd/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:dev"
  restrict_oom_score_adj = true   # where lowering it is not permitted, every sandbox would fail
  netns_mounts_under_state_dir = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$CNI_PLUGINS"
    conf_dir = "$CLUSTER/cni"

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    base_runtime_spec = "$CLUSTER/containerd/base-spec.json"
Y
}

# Containers of a cluster that is no more: their images are kept, they are not.
forget_containers() {
  ctr containers ls -q | xargs --no-run-if-empty --max-args 50 ctr --address "$CONTAINERD_SOCKET" --namespace k8s.io containers rm
}

# The name servers that pods with dnsPolicy Default (CoreDNS) see. A stub on the loopback is of no use inside a pod.
resolv_conf() {
  local file
  for file in /run/systemd/resolve/resolv.conf /etc/resolv.conf; do
    [ ! -f $file ] || { echo $file; return; }
  done
}

write_kubelet_config() {
  write_if_changed "$CLUSTER/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $NODE_IP
tlsCertFile: $PKI/kubelet.crt
tlsPrivateKeyFile: $PKI/kubelet.key
containerRuntimeEndpoint: unix://$CONTAINERD_SOCKET
cgroupDriver: cgroupfs
failCgroupV1: false        # 1.35 otherwise refuses a machine with cgroup v1
failSwapOn: false
oomScoreAdj: 0
maxPods: 230
podLogsDir: $CLUSTER/pod-logs
volumePluginDir: $CLUSTER/volume-plugins
resolvConf: $(resolv_conf)
clusterDNS: [$DNS_IP]
clusterDomain: cluster.local
authentication: {anonymous: {enabled: false}, x509: {clientCAFile: $PKI/ca.crt}, webhook: {enabled: true}}
authorization: {mode: Webhook}
enforceNodeAllocatable: []
# A full disk of a developer's machine is no reason to evict pods or to delete images that no registry has.
evictionHard: {imagefs.available: 0%, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.inodesFree: 0%, memory.available: 0%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
eventRecordQPS: 0
Y
}
