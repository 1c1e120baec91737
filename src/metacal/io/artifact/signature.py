"""An optional signature on a saved file: HMAC-SHA256 with a shared secret, or Ed25519 with a pair
of keys.

The checksum finds damage; whoever can write the file can compute a new one. A signature needs the
key. It covers the very bytes that the checksum covers. Which kind it is follows from the *key*,
never from the file: a file that says "hmac-sha256" is not checked with a public key as if that were
a secret.

HMAC is in Python's standard library; Ed25519 is not, and comes with the extra `sign` (the package
cryptography).
"""

from __future__ import annotations

import hmac
import os
import stat
import warnings
from dataclasses import dataclass
from typing import Any, Literal

from metacal.errors import ArtifactError, InputError, MetacalWarning, needs_extra
from metacal.io.artifact.messages import exact_keys, shown
from metacal.io.journal import Seal
from metacal.io.opening import plain_read_errors

#: A key: the path of its file, or its content.
KeySource = str | os.PathLike[str] | bytes
Algorithm = Literal["hmac-sha256", "ed25519"]

#: Hexadecimal digits of a signature.
DIGITS: dict[str, int] = {"hmac-sha256": 64, "ed25519": 128}

#: A shared secret of fewer bytes can be guessed; a file of more is no key. Fewer different bytes
#: are no secret either.
_FEWEST, _MOST, _DIFFERENT = 32, 1 << 16, 8
_MAKE_SECRET = "openssl rand -hex 32 > secret.key"
_MAKE_PAIR = "openssl genpkey -algorithm ed25519 -out private.pem"


@dataclass(frozen=True, repr=False)
class Key(Seal):
    """A key that signs, verifies, or both; never shown."""

    algorithm: Algorithm
    secret: bytes = b""
    private: Any = None
    public: Any = None

    def __repr__(self) -> str:
        return f"Key({self.algorithm})"

    def make(self, content: bytes) -> str:
        """The signature of these bytes in hexadecimal digits; of a record of a journal, its
        seal.
        """
        if self.algorithm == "hmac-sha256":
            return hmac.digest(self.secret, content, "sha256").hex()
        if self.private is None:
            raise InputError(
                "this is a public key, which can only verify; sign with the private key."
            )
        return str(self.private.sign(content).hex())

    def fits(self, value: str, content: bytes) -> bool:
        """Whether `value` is the signature of `content`, compared in constant time."""
        if self.algorithm == "hmac-sha256":
            return hmac.compare_digest(value, self.make(content))
        from cryptography.exceptions import InvalidSignature

        try:
            self.public.verify(bytes.fromhex(value), content)
        except InvalidSignature:
            return False
        return True


def read_key(source: KeySource) -> Key:
    """The key in a file, or in bytes: PEM is Ed25519, anything else is the secret of an HMAC.

    A secret of printable characters is taken without the spaces and line ends around it. It needs
    32 bytes. A secret or private key that others can read brings a warning.

    Examples
    --------
    >>> read_key(b"correct horse")
    Traceback (most recent call last):
    metacal.errors.InputError: the key has 13 bytes, and a secret needs at least 32; make one: openssl rand ...
    """
    if isinstance(source, bytes):
        return _key(source, "the key")
    name = os.fspath(source)
    with plain_read_errors(name), open(name, "rb") as file:
        content, mode = file.read(_MOST + 1), os.fstat(file.fileno()).st_mode
    found = _key(content, name)
    secret = found.algorithm == "hmac-sha256" or found.private is not None
    if (
        secret
        and os.name == "posix"
        and stat.S_ISREG(mode)
        and mode & (stat.S_IRGRP | stat.S_IROTH)
    ):
        warnings.warn(
            f"{name}: others can read this key; chmod 600 {name}", MetacalWarning, stacklevel=3
        )
    return found


def checked_signature(data: Any) -> tuple[Algorithm, str]:
    """The algorithm and the digits of a file's entry `signature`, or ArtifactError.

    Examples
    --------
    >>> checked_signature({"algorithm": "none", "value": ""})
    Traceback (most recent call last):
    metacal.errors.ArtifactError: signature.algorithm must be hmac-sha256 or ed25519, not "none".
    """
    exact_keys(data, ["algorithm", "value"], "signature")
    algorithm, value = data["algorithm"], data["value"]
    if type(algorithm) is not str or algorithm not in DIGITS:
        raise ArtifactError(
            f"signature.algorithm must be {' or '.join(DIGITS)}, not {shown(algorithm)}."
        )
    if (
        type(value) is not str
        or len(value) != DIGITS[algorithm]
        or not set(value) <= set("0123456789abcdef")
    ):
        raise ArtifactError(
            f"signature.value must be {DIGITS[algorithm]} hexadecimal digits, not {shown(value)}."
        )
    return algorithm, value  # type: ignore[return-value]


def verify(signature: tuple[Algorithm, str] | None, content: bytes, key: Key) -> None:
    """Raise ArtifactError unless a checked signature (None: there is none) signs `content` by
    `key`.
    """
    if signature is None:
        raise ArtifactError(
            "it is not signed, and a key was given; load it without the key if you trust where it"
            " comes from, or fit and sign it again."
        )
    algorithm, value = signature
    if algorithm != key.algorithm:
        raise ArtifactError(
            f"it is signed by {algorithm}, but the key is one for {key.algorithm}; give the other"
            " key."
        )
    if not key.fits(value, content):
        raise ArtifactError(
            "the signature does not match: it was signed with another key, or changed since."
        )


def _key(content: bytes, name: str) -> Key:
    if len(content) > _MOST:
        raise InputError(f"{name}: this is too large for a key; make one: {_MAKE_SECRET}")
    if content.lstrip().startswith((b"-----BEGIN", b"ssh-", b"ecdsa-")):
        return _pair(content, name)
    printable = all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in content)
    secret = content.strip() if printable else content
    if len(secret) < _FEWEST:
        what = (
            f"has {len(secret)} bytes, and a secret needs at least {_FEWEST}"
            if secret
            else "is empty"
        )
        raise InputError(f"{name} {what}; make one: {_MAKE_SECRET}")
    if len(set(secret)) < _DIFFERENT:
        raise InputError(
            f"{name} holds the same few bytes again and again, no secret; make one: {_MAKE_SECRET}"
        )
    return Key("hmac-sha256", secret=secret)


def _pair(content: bytes, name: str) -> Key:
    with needs_extra(f"{name} is a PEM key: a signature by Ed25519", "sign"):
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (
            Ed25519PrivateKey,
            Ed25519PublicKey,
        )
        from cryptography.hazmat.primitives.serialization import (
            load_pem_private_key,
            load_pem_public_key,
        )
    try:
        private = (
            load_pem_private_key(content, password=None) if b"PRIVATE KEY" in content else None
        )
        public = load_pem_public_key(content) if private is None else private.public_key()
    except TypeError:
        raise InputError(
            f"{name}: this private key is locked by a password; give one without."
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(
            f"{name}: this is no PEM key that can be read; make one: {_MAKE_PAIR}"
        ) from None
    if not isinstance(public, Ed25519PublicKey) or not isinstance(
        private, Ed25519PrivateKey | None
    ):
        raise InputError(
            f"{name}: this is a key of another kind than Ed25519; make one: {_MAKE_PAIR}"
        )
    return Key("ed25519", private=private, public=public)
