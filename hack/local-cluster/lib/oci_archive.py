"""Streams an image as an OCI archive without the blobs that the reader has, so that only a new layer is sent.

usage: oci_archive.py FOLDER IMAGE < digests that the reader has, one a line > archive
FOLDER is what `buildah push --format oci ... dir:FOLDER` writes: manifest.json, and each blob under its hex digest.
"""

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def main(folder: Path, image: str) -> None:
    known = set(sys.stdin.read().split())
    manifest_bytes = (folder / "manifest.json").read_bytes()
    manifest = json.loads(manifest_bytes)
    digest = hashlib.sha256(manifest_bytes).hexdigest()
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                "mediaType": manifest["mediaType"],
                "digest": f"sha256:{digest}",
                "size": len(manifest_bytes),
                "annotations": {"io.containerd.image.name": image},
            }
        ],
    }
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        for blob in (manifest["config"], *manifest["layers"]):
            if blob["digest"] not in known:
                hexadecimal = blob["digest"].removeprefix("sha256:")
                archive.add(folder / hexadecimal, f"blobs/sha256/{hexadecimal}")
        add(archive, f"blobs/sha256/{digest}", manifest_bytes)
        add(archive, "index.json", json.dumps(index).encode())


main(Path(sys.argv[1]), sys.argv[2])
