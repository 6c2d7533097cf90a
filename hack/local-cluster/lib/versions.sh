# Versions of what is built from Go modules. A changed version is built anew by the next `up` or `programs`.
# shellcheck shell=bash disable=SC2034
KUBERNETES=1.35.4      # the last minor that runs on containerd 1.x, which is what Debian 12 has
ETCD=3.6.16
HELM=4.3.1
PROMETHEUS=3.16.0      # its Go module is v0.316.0
PROMETHEUS_2=2         # the distribution's package: 2.42 on Debian 12
COREDNS=1.15.0
