# Images: built by buildah without a daemon, stored as plain folders in $IMAGES, imported into the cluster's containerd.
# An image is made anew only when the fingerprint of what goes into it changes.
# shellcheck shell=bash

BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm

# Storage of our own: nothing of this machine's other images is touched. `chroot` needs no namespaces of its own.
buildah() {
  BUILDAH_ISOLATION=chroot STORAGE_DRIVER=overlay command buildah --root "$IMAGES/buildah" --runroot "$IMAGES/buildah-run" "$@"
}

folder_of() { echo "$IMAGES/$(basename "${1%:*}")"; }

is_stored() { [ "$(cat "$(folder_of "$1")/fingerprint" 2>/dev/null)" = "$2" ]; }

# store IMAGE FINGERPRINT: writes manifest and layers to its folder, layers that lie there already being left alone.
store() {
  local folder file
  folder=$(folder_of "$1")
  mkdir -p "$folder"
  rm -f "$folder/fingerprint"
  buildah push --quiet --disable-compression --format oci "$1" "dir:$folder"
  for file in "$folder"/*; do   # layers of images before this one
    case $(basename "$file") in manifest.json | version) continue ;; esac
    grep -q "$(basename "$file")" "$folder/manifest.json" || rm "$file"
  done
  echo "$2" >"$folder/fingerprint"
}

# import_image IMAGE: brings containerd what it lacks of the image, unless just this one is there.
import_image() {
  local folder record
  folder=$(folder_of "$1")
  record=$CONTAINERD_ROOT/imported/$(basename "$folder")
  mkdir -p "$CONTAINERD_ROOT/imported"
  if cmp -s "$folder/fingerprint" "$record" && ctr images ls -q "name==$1" | grep . >/dev/null; then return 0; fi
  ctr content ls -q | python3 "$HERE/lib/oci_archive.py" "$folder" "$1" | ctr images import -
  cp "$folder/fingerprint" "$record"
}

import_image_in_step() { step "importing $1" run_logged "$LOGS/import.log" import_image "$1"; }

# --- images of one program ---

# program_image NAME ENTRYPOINT USER: an image that holds nothing but $BIN/NAME.
build_program_image() {
  local image=localhost/$1:dev container
  container=$(buildah from scratch)
  buildah copy "$container" "$BIN/$1" "/$1"
  buildah config --entrypoint "[\"/$1\"]" --user "$2" "$container"
  buildah commit --rm "$container" "$image"
  store "$image" "$3"
}

ensure_program_image() { # NAME USER
  local fingerprint
  fingerprint="$(cat "$BIN/.$1.version") user $2"
  is_stored "localhost/$1:dev" "$fingerprint" ||
    step "building the image localhost/$1:dev" run_logged "$LOGS/image-$1.log" build_program_image "$1" "$2" "$fingerprint"
}

# --- the base image ---

# The Debian archive that this machine itself installs from.
debian_mirror() {
  local mirror=${TAILKEEPER_DEBIAN_MIRROR:-}
  # shellcheck disable=SC2016  # apt-get fills in the $(...)
  [ -n "$mirror" ] || mirror=$(apt-get indextargets --format '$(CREATED_BY) $(CODENAME) $(COMPONENT) $(REPO_URI)' 2>/dev/null |
    awk '$1 == "Packages" && $2 == "bookworm" && $3 == "main" { print $4; exit }')
  [ -n "$mirror" ] || die "no Debian bookworm archive among this machine's apt sources" "say one: TAILKEEPER_DEBIAN_MIRROR=URL"
  echo "$mirror"
}

has_base_image() { buildah inspect --type image "$BASE_IMAGE"; }

# Debian's Python under the name that the Dockerfiles say. The real image has its own in /usr/local: they use neither path.
build_base_image() {
  local root=$IMAGES/base-root mirror container
  mirror=$(debian_mirror)
  rm -rf "$root"
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" "$mirror"
  rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb \
    "$root"/usr/share/{doc,man,locale} "$root"/var/log/*.log "$root"/etc/apt/sources.list "$root"/etc/{hostname,resolv.conf}
  container=$(buildah from scratch)
  buildah add "$container" "$root" /
  buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --env LANG=C.UTF-8 --cmd python3 "$container"
  buildah commit --rm "$container" "$BASE_IMAGE"
  rm -rf "$root"
}

ensure_base_image() { has_base_image >/dev/null 2>&1 || build_base_image; }

# --- the project's images ---

# fingerprint DOCKERFILE: of everything that the build can see.
fingerprint() {
  (
    cd "$REPOSITORY" || exit
    {
      printf '%s\n' "$1" .dockerignore pyproject.toml uv.lock README.md LICENSE
      find operator/tailkeeper gpu_worker -type f ! -name '*.pyc' ! -name Dockerfile | sort
    } | xargs sha256sum
    buildah inspect --type image --format '{{.FromImageID}}' "$BASE_IMAGE"
  ) | sha256sum | cut -d' ' -f1
}

# What pip needs to reach its index from here. It is a secret of the build, so none of it stays in the image.
pip_conf() {
  local index=${PIP_INDEX_URL:-} certificates=/etc/ssl/certs/ca-certificates.crt
  [ -n "$index" ] || index=$(python3 -m pip config get global.index-url 2>/dev/null) || true
  echo '[global]'
  [ -z "$index" ] || echo "index-url = $index"
  [ ! -f $certificates ] || echo "cert = $certificates"
}

# Each build leaves the layers of the one before it. From time to time they go, and the next build starts from nothing.
tidy_storage() {
  buildah rm --all   # of builds that were killed; the lock says that none runs
  [ "$(buildah images --all --quiet | wc -l)" -lt 400 ] || buildah rmi --prune
}

build_project_image() { # IMAGE DOCKERFILE FINGERPRINT [BUILD OPTION...]
  local image=$1 dockerfile=$2 fingerprint=$3
  shift 3
  tidy_storage
  (umask 077; pip_conf >"$IMAGES/pip.conf")
  buildah bud --layers --force-rm --pull-never --tag "$image" --file "$REPOSITORY/$dockerfile" --secret "id=pip.conf,src=$IMAGES/pip.conf" \
    --volume /etc/ssl/certs:/etc/ssl/certs:ro "$@" "$REPOSITORY"
  store "$image" "$fingerprint"
}

ensure_project_image() { # NAME DOCKERFILE [BUILD OPTION...]
  local image=localhost/tailkeeper-$1:dev dockerfile=$2 fingerprint
  fingerprint=$(fingerprint "$dockerfile")
  shift 2
  is_stored "$image" "$fingerprint" ||
    step "building the image $image" run_logged "$LOGS/image-$(basename "${image%:*}").log" build_project_image "$image" "$dockerfile" "$fingerprint" "$@"
}
