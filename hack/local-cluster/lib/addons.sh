# What runs in the cluster besides the user's own: names, Prometheus, the claim on the models.
# shellcheck shell=bash

render() { # render FILE NAME=VALUE...
  local file=$1 pair text
  shift
  text=$(cat "$HERE/manifests/$file")
  for pair in "$@"; do text=${text//${pair%%=*}/${pair#*=}}; done
  printf '%s\n' "$text"
}

# The PersistentVolume is bound again when its claim was deleted and made anew: its reference must not name the old claim.
rebind_models() {
  [ "$(kubectl get pv models --ignore-not-found --output 'jsonpath={.status.phase}')" != Released ] ||
    kubectl patch pv models --type json --patch '[{"op": "remove", "path": "/spec/claimRef/uid"}, {"op": "remove", "path": "/spec/claimRef/resourceVersion"}]'
}

render_addons() {
  local interval=${TAILKEEPER_SCRAPE_INTERVAL:-1s} hash
  hash=$(cat "$HERE/manifests/prometheus.yaml" - <<<"$interval" | sha256sum | cut -c1-16)
  render coredns.yaml
  echo ---
  render prometheus.yaml "SCRAPE_INTERVAL=$interval" "CONFIG_HASH=$hash"
  echo ---
  render models.yaml "MODELS=$MODELS"
}

apply_addons() {
  render_addons >"$CLUSTER/addons.yaml"
  kubectl apply --server-side --force-conflicts --field-manager local-cluster --filename "$CLUSTER/addons.yaml"
  rebind_models
}

# Asked through the Service, as a pod would: this proves the kube-proxy as well.
dns_is_ready() { curl --silent --fail --noproxy '*' --max-time 1 "http://$DNS_IP:8181/ready"; }

prometheus_is_ready() {
  local address
  address=$(kubectl get service prometheus --namespace monitoring --output 'jsonpath={.spec.clusterIP}') &&
    curl --silent --fail --noproxy '*' --max-time 1 "http://$address:9090/-/ready"
}

# need_pod NAMESPACE DEPLOYMENT SECONDS COMMAND...
need_pod() {
  local namespace=$1 deployment=$2 limit=$3
  shift 3
  eventually "$limit" "$@" && return
  printf '\n'
  kubectl get pods --namespace "$namespace" --output wide >&2
  kubectl logs --namespace "$namespace" "deployment/$deployment" --tail 10 >&2 || true
  die "$namespace/$deployment did not become ready in $limit s"
}
