# The cluster's certificates and kubeconfigs: made once, made anew when one of them ends within 30 days.
# shellcheck shell=bash

PKI=$CLUSTER/pki

make_key() { openssl ecparam -name prime256v1 -genkey -noout -out "$PKI/$1.key"; }

sign() { # sign NAME SUBJECT
  make_key "$1"
  openssl req -new -key "$PKI/$1.key" -subj "$2" |
    openssl x509 -req -CA "$PKI/ca.crt" -CAkey "$PKI/ca.key" -CAcreateserial -days 365 -out "$PKI/$1.crt" \
      -extfile <(echo "subjectAltName=IP:127.0.0.1,IP:$NODE_IP,IP:${SERVICE_CIDR%.0.0/*}.0.1,DNS:localhost,DNS:local,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local")
}

encoded() { base64 -w0 "$PKI/$1"; }

# kubeconfig WHO: with everything inside, so that a copy of the file works anywhere on this machine.
kubeconfig() {
  (umask 077; cat >"$CLUSTER/$1.kubeconfig") <<Y
apiVersion: v1
kind: Config
clusters: [{name: tailkeeper-local, cluster: {server: "https://127.0.0.1:6443", certificate-authority-data: $(encoded ca.crt)}}]
users: [{name: $1, user: {client-certificate-data: $(encoded "$1.crt"), client-key-data: $(encoded "$1.key")}}]
contexts: [{name: tailkeeper-local, context: {cluster: tailkeeper-local, user: $1}}]
current-context: tailkeeper-local
Y
}

still_valid() {
  local file
  [ -f "$PKI/complete" ] || return 1
  for file in "$PKI"/*.crt; do
    openssl x509 -checkend $((30 * 24 * 3600)) -noout -in "$file" >/dev/null || return 1
  done
}

ensure_certificates() {
  local who
  ! still_valid || return 0
  # The key of the service accounts' tokens outlives the certificates, so that pods that run keep their access.
  mkdir -p "$PKI"
  rm -f "$PKI/complete"
  (
    umask 077
    make_key ca
    openssl req -x509 -new -key "$PKI/ca.key" -out "$PKI/ca.crt" -days 365 -subj /CN=tailkeeper-local-ca
    [ -f "$PKI/service-accounts.key" ] || make_key service-accounts
    sign apiserver /CN=kube-apiserver
    sign admin /O=system:masters/CN=admin
    sign controller-manager /CN=system:kube-controller-manager
    sign scheduler /CN=system:kube-scheduler
    sign proxy /CN=system:kube-proxy
    sign kubelet /O=system:nodes/CN=system:node:local
  ) 2>"$CLUSTER/log/openssl.log"
  for who in admin controller-manager scheduler proxy kubelet; do kubeconfig $who; done
  touch "$PKI/complete"
}
