"""Tensors on the wire of Open Inference Protocol v2: JSON, and the binary tensor extension that Triton's clients use
unless told otherwise. In a binary body the JSON comes first, `Inference-Header-Content-Length` bytes long, and then
the data of the inputs that say `binary_data_size`, in order."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic_core import to_json

from gpu_worker.engines.interface import Vector
from gpu_worker.server.embeddings import read_object
from gpu_worker.server.errors import Code, invalid

HEADER_LENGTH = b"inference-header-content-length"


@dataclass(frozen=True, slots=True)
class Given:
    """One input tensor of a request."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: list[Any] | bytes
    """Flattened JSON values, or the raw bytes."""


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request, its tensors not interpreted yet."""

    id: str | None
    inputs: tuple[Given, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, bool] = field(default_factory=dict)
    """Outputs that are asked for, and whether as binary; empty: all of them."""

    def binary(self, output: str) -> bool:
        """Whether this output goes out as binary."""
        return self.outputs.get(output, bool(self.parameters.get("binary_data_output", False)))


def read_request(body: bytes, header_length: bytes | None) -> InferRequest:
    """Raises ApiError 400."""
    length = _header_length(header_length, len(body))
    value = read_object(body[:length])
    given = value.get("inputs")
    if not isinstance(given, list) or not given:
        raise _bad("inputs must be a list of tensors")
    rest = memoryview(body)[length:]
    inputs = []
    for tensor in given:
        one, used = _tensor(tensor, rest)
        inputs.append(one)
        rest = rest[used:]
    if len(rest):
        raise _bad(f"{len(rest)} bytes of binary data belong to no input")
    request_id = value.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise _bad("id must be a text")
    return InferRequest(request_id, tuple(inputs), _parameters(value), _outputs(value.get("outputs")))


def texts(tensor: Given) -> list[str]:
    """The texts of a BYTES tensor. Raises ApiError 400."""
    if tensor.datatype != "BYTES":
        raise _bad(f"input {tensor.name} must be BYTES, not {tensor.datatype}")
    values = _lengths_and_bytes(tensor) if isinstance(tensor.data, bytes) else tensor.data
    if not values or not tensor.shape:
        raise _bad(f"input {tensor.name} must hold at least one text, and its shape at least one size")
    if len(values) != math.prod(tensor.shape):
        raise _bad(f"input {tensor.name} has {len(values)} values, its shape {list(tensor.shape)} another number")
    try:
        result = [value.decode() if isinstance(value, bytes) else value for value in values]
    except UnicodeDecodeError as error:
        raise _bad(f"input {tensor.name} is not UTF-8: {error}") from None
    if not all(isinstance(text, str) and text for text in result):
        raise _bad(f"input {tensor.name} must hold texts that are not empty")
    return result


def write_response(
    model: str, request: InferRequest, outputs: Mapping[str, Vector]
) -> tuple[bytes, list[tuple[bytes, bytes]], bytes]:
    """Body, headers and content type for float32 outputs of any shape."""
    tensors: list[dict[str, Any]] = []
    blobs: list[bytes] = []
    for name, array in outputs.items():
        tensor: dict[str, Any] = {"name": name, "datatype": "FP32", "shape": list(array.shape)}
        if request.binary(name):
            blobs.append(array.astype("<f4", copy=False).tobytes())
            tensor["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            tensor["data"] = np.ravel(array).tolist()
        tensors.append(tensor)
    answer: dict[str, Any] = {"model_name": model, "model_version": "1", "outputs": tensors}
    if request.id is not None:
        answer["id"] = request.id
    head = to_json(answer)
    if not blobs:
        return head, [], b"application/json"
    return b"".join([head, *blobs]), [(HEADER_LENGTH, str(len(head)).encode())], b"application/octet-stream"


def _header_length(header: bytes | None, size: int) -> int:
    if header is None:
        return size
    if not header.isdigit() or int(header) > size:
        raise _bad("Inference-Header-Content-Length must be a number of bytes within the body")
    return int(header)


def _tensor(value: Any, rest: memoryview) -> tuple[Given, int]:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise _bad("every input must have a name")
    name, shape = value["name"], value.get("shape")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise _bad(f"input {name}: shape must be a list of sizes")
    size = _parameters(value).get("binary_data_size")
    if size is None:
        return Given(name, str(value.get("datatype")), tuple(shape), _flat(value.get("data"), name)), 0
    if type(size) is not int or not 0 <= size <= len(rest):
        raise _bad(f"input {name}: binary_data_size is more than the body holds")
    return Given(name, str(value.get("datatype")), tuple(shape), bytes(rest[:size])), size


def _flat(data: Any, name: str) -> list[Any]:
    if not isinstance(data, list):
        raise _bad(f"input {name}: data must be a list")
    flat: list[Any] = data
    while any(isinstance(item, list) for item in flat):
        if not all(isinstance(item, list) for item in flat):
            raise _bad(f"input {name}: data must be nested evenly")
        flat = [inner for item in flat for inner in item]
    return flat


def _lengths_and_bytes(tensor: Given) -> list[bytes]:
    """Each element of a binary BYTES tensor is its length, 4 bytes little-endian, and then itself."""
    data = tensor.data
    assert isinstance(data, bytes)
    values: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if at + 4 > len(data) or end > len(data):
            raise _bad(f"input {tensor.name}: its binary data ends in the middle of an element")
        values.append(data[at + 4 : end])
        at = end
    return values


def _parameters(value: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = value.get("parameters", {})
    if not isinstance(parameters, dict):
        raise _bad("parameters must be an object")
    return parameters


def _outputs(value: Any) -> dict[str, bool]:
    if value is None:
        return {}
    if not isinstance(value, list) or not all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in value
    ):
        raise _bad("outputs must be a list of tensors with names")
    return {one["name"]: bool(_parameters(one).get("binary_data", False)) for one in value}


def _bad(message: str) -> Exception:
    return invalid(message, code=Code.INVALID_BODY)
