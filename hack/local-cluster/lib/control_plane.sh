# The daemons with their arguments, and how each tells that it is ready.
# shellcheck shell=bash

ensure_etcd() {
  ensure etcd "" "$BIN/etcd" --name local --data-dir "$CLUSTER/etcd" --log-level warn \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
}

ensure_apiserver() {
  ensure kube-apiserver "$PKI/apiserver.crt $PKI/ca.crt" "$BIN/kube-apiserver" \
    --etcd-servers http://127.0.0.1:2379 --bind-address 0.0.0.0 --secure-port 6443 --advertise-address "$NODE_IP" \
    --tls-cert-file "$PKI/apiserver.crt" --tls-private-key-file "$PKI/apiserver.key" --client-ca-file "$PKI/ca.crt" \
    --service-cluster-ip-range "$SERVICE_CIDR" --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --allow-privileged \
    --service-account-issuer https://kubernetes.default.svc \
    --service-account-key-file "$PKI/service-accounts.key" --service-account-signing-key-file "$PKI/service-accounts.key" \
    --kubelet-client-certificate "$PKI/admin.crt" --kubelet-client-key "$PKI/admin.key" --kubelet-certificate-authority "$PKI/ca.crt" \
    --kubelet-preferred-address-types InternalIP --cert-dir "$CLUSTER/run"
}

ensure_controller_manager() {
  ensure kube-controller-manager "$CLUSTER/controller-manager.kubeconfig" "$BIN/kube-controller-manager" \
    --kubeconfig "$CLUSTER/controller-manager.kubeconfig" --bind-address 127.0.0.1 \
    --service-account-private-key-file "$PKI/service-accounts.key" --root-ca-file "$PKI/ca.crt" --use-service-account-credentials \
    --leader-elect=false --kube-api-qps 100 --kube-api-burst 200
}

ensure_scheduler() {
  ensure kube-scheduler "$CLUSTER/scheduler.kubeconfig" "$BIN/kube-scheduler" \
    --kubeconfig "$CLUSTER/scheduler.kubeconfig" --bind-address 127.0.0.1 --leader-elect=false --kube-api-qps 100 --kube-api-burst 200
}

ensure_proxy() {
  ensure kube-proxy "$CLUSTER/proxy.kubeconfig" "$BIN/kube-proxy" \
    --kubeconfig "$CLUSTER/proxy.kubeconfig" --proxy-mode iptables --cluster-cidr "$POD_CIDR" --hostname-override local \
    --healthz-bind-address 127.0.0.1:10256 --metrics-bind-address 127.0.0.1:10249 \
    --conntrack-max-per-core 0 --conntrack-tcp-timeout-established 0 --conntrack-tcp-timeout-close-wait 0
}

ensure_containerd() {
  local config="$CLUSTER/containerd/config.toml"
  ensure containerd "$config $CLUSTER/containerd/base-spec.json" containerd --config "$config"
}

ensure_kubelet() {
  ensure kubelet "$CLUSTER/kubelet.yaml $CLUSTER/kubelet.kubeconfig $PKI/kubelet.crt" "$BIN/kubelet" \
    --config "$CLUSTER/kubelet.yaml" --kubeconfig "$CLUSTER/kubelet.kubeconfig" --hostname-override local \
    --root-dir "$CLUSTER/kubelet" --node-ip "$NODE_IP"
}

api_is_ready() { kubectl get --raw /readyz; }

# What etcd remembers of the node may be from before a restart, so the kubelet is asked itself as well: through the API
# server, as `kubectl logs` and `exec` do. It knows no pods before it has heard from the API server.
node_is_ready() {
  [ "$(kubectl get node local --output 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" = True ] &&
    kubectl get --raw /api/v1/nodes/local/proxy/pods | grep '"uid"' >/dev/null
}
