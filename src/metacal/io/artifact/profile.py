"""The profile of the calibration rows in a file, and back: checked alone and against the certificate."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from metacal.errors import ArtifactError
from metacal.io.artifact.encoding import annotations_of, built, decode, encode, exact_keys
from metacal.promises.certificate import Certificate
from metacal.promises.sequential.profile import Profile

#: The entries of a profile.
PROFILE_KEYS = tuple(field.name for field in fields(Profile))


def encode_profile(profile: Profile) -> dict[str, Any]:
    """A profile as JSON.

    Examples
    --------
    >>> encode_profile(Profile(5, (), ()))["n_rows"]
    5
    """
    return {name: encode(getattr(profile, name), f"profile.{name}", {}) for name in PROFILE_KEYS}


def decode_profile(data: Any, certificate: Certificate) -> Profile:
    """The profile that `data` describes, or ArtifactError."""
    exact_keys(data, PROFILE_KEYS, "profile")
    kinds = annotations_of(Profile)
    values = {name: decode(kinds[name], data[name], f"profile.{name}", {}) for name in PROFILE_KEYS}
    profile: Profile = built(Profile, values, "profile")
    if profile.n_rows < certificate.n_rows:
        raise ArtifactError("the profile has fewer rows than the certificate.")
    return profile
