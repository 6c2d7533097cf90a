"""`metadata` of an object: the part that Tailkeeper reads."""

import re
from typing import Annotated, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from tailkeeper.api.base import LABEL, Contract, Count, Namespace, ObjectName, Str
from tailkeeper.api.names import LONGEST_POLICY_NAME

NAME_FORM = (
    "metadata.name must be a DNS label that starts with a letter (a-z, 0-9, -; no dot): Services are named after it"
)


class ObjectMeta(Contract):
    """The part of `metadata` that Tailkeeper reads; everything else passes by."""

    model_config = ConfigDict(extra="ignore")

    name: ObjectName
    namespace: Namespace | None = None
    uid: Str | None = None
    generation: Count | None = None
    resource_version: Str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    deletion_timestamp: Str | None = None


class PolicyMeta(ObjectMeta):
    """`metadata` of a policy, whose name is a part of the names of Services."""

    name: Annotated[Str, StringConstraints(min_length=1, max_length=LONGEST_POLICY_NAME)]

    @model_validator(mode="after")
    def _name_is_a_label(self) -> Self:
        if not re.fullmatch(LABEL.strip("^$"), self.name):
            raise ValueError(NAME_FORM)
        return self
