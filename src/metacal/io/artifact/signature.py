"""Optional signature of a saved file: HMAC-SHA256 or Ed25519.

The checksum of a file detects damage, but anyone who can write the file can compute a new checksum.
A signature requires the key. It covers the same bytes as the checksum. The key determines the
algorithm, and the file does not: otherwise an attacker could declare "hmac-sha256" and use the
public key, which is not secret, as the secret.

HMAC is in Python's standard library. Ed25519 requires the package cryptography, which the extra
`sign` installs.
"""

from __future__ import annotations

import hmac
import os
import stat
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from metacal.errors import KeyFileError, MetacalWarning, SignatureError, needs_extra
from metacal.io.artifact.messages import check_keys, describe_json
from metacal.io.journal_lines import Seal
from metacal.io.opening import input_error_if_read_fails

#: Path of a key file, or the content of a key.
KeySource = str | os.PathLike[str] | bytes

#: Signature algorithm.
Algorithm = Literal["hmac-sha256", "ed25519"]

#: Number of hexadecimal digits of a signature, by algorithm.
N_SIGNATURE_DIGITS: dict[str, int] = {"hmac-sha256": 64, "ed25519": 128}

# Bounds that reject secrets that could be guessed, and files that are not keys.
_MIN_SECRET_BYTES = 32
_MIN_DISTINCT_BYTES = 8
_MAX_KEY_BYTES = 1 << 16

# First bytes of keys in PEM and OpenSSH format.
_KEY_FILE_PREFIXES = (b"-----BEGIN", b"ssh-", b"ecdsa-")

_MAKE_SECRET = "openssl rand -hex 32 > secret.key"
_MAKE_PAIR = "openssl genpkey -algorithm ed25519 -out private.pem"


@dataclass(frozen=True)
class Signature:
    """Signature of a file.

    Attributes
    ----------
    algorithm : {"hmac-sha256", "ed25519"}
        Algorithm that the file declares.

    value : str
        Signature in hexadecimal digits.
    """

    algorithm: Algorithm
    value: str


@dataclass(frozen=True, repr=False)
class Key(Seal):
    """Key that signs content, verifies signatures, or does both.

    Attributes
    ----------
    algorithm : {"hmac-sha256", "ed25519"}
        Signature algorithm.

    secret : bytes
        Shared secret of HMAC.

    private_key : Ed25519PrivateKey or None
        Private key. None if the key can only verify.

    public_key : Ed25519PublicKey or None
        Public key.
    """

    uses_key: ClassVar[bool] = True

    algorithm: Algorithm
    secret: bytes = b""
    private_key: Any = None
    public_key: Any = None

    def __repr__(self) -> str:
        return f"Key({self.algorithm})"

    @property
    def can_sign(self) -> bool:
        """Whether the key can sign, so that only its owner should read it."""
        return self.algorithm == "hmac-sha256" or self.private_key is not None

    def compute(self, content: bytes) -> str:
        """Return the signature of some bytes in hexadecimal digits.

        Raise InputError if the key is a public key.
        """
        if self.algorithm == "hmac-sha256":
            return hmac.digest(self.secret, content, "sha256").hex()
        if self.private_key is None:
            raise KeyFileError(
                "The key is a public key, which can verify signatures but not sign. Pass the"
                " private key."
            )
        return str(self.private_key.sign(content).hex())

    def matches(self, value: str, content: bytes) -> bool:
        """Check in constant time whether a value is the signature of some bytes."""
        if self.algorithm == "hmac-sha256":
            return hmac.compare_digest(value, self.compute(content))
        from cryptography.exceptions import InvalidSignature

        try:
            self.public_key.verify(bytes.fromhex(value), content)
        except InvalidSignature:
            return False
        return True


def read_key(source: KeySource) -> Key:
    """Read a key from a file or from bytes.

    A key in PEM format is an Ed25519 key. Any other content is the secret of an HMAC. White space
    around a printable secret is ignored. Warn if others can read a secret or private key file.

    Parameters
    ----------
    source : str, path or bytes
        Path of a key file, or the content of a key.

    Returns
    -------
    Key

    Raises
    ------
    InputError
        If the content is not a key, or the secret is too short.

    Examples
    --------
    >>> read_key(b"correct horse")
    Traceback (most recent call last):
    metacal.errors.KeyFileError: the key has 13 bytes, but a secret must have at least 32. ...
    """
    if isinstance(source, bytes):
        return _parse_key(source, "the key")
    path = os.fspath(source)
    with input_error_if_read_fails(path), open(path, "rb") as file:
        key_bytes = file.read(_MAX_KEY_BYTES + 1)
        file_mode = os.fstat(file.fileno()).st_mode
    key = _parse_key(key_bytes, path)
    if key.can_sign and _is_readable_by_others(file_mode):
        warnings.warn(
            f"{path}: other users can read this key. Run chmod 600 {path}",
            MetacalWarning,
            stacklevel=3,
        )
    return key


def _is_readable_by_others(file_mode: int) -> bool:
    """Check whether a file mode allows users other than the owner to read."""
    if os.name != "posix" or not stat.S_ISREG(file_mode):
        return False
    return bool(file_mode & (stat.S_IRGRP | stat.S_IROTH))


def parse_signature(data: Any) -> Signature:
    """Check the format of the entry `signature` of a file.

    Parameters
    ----------
    data : JSON value
        Entry of the file.

    Returns
    -------
    Signature

    Raises
    ------
    ArtifactError
        If the entry is not a signature of a supported algorithm.

    Examples
    --------
    >>> parse_signature({"algorithm": "none", "value": ""})
    Traceback (most recent call last):
    metacal.errors.SignatureError: signature.algorithm must be hmac-sha256 or ed25519, but it ...
    """
    check_keys(data, ["algorithm", "value"], "signature")
    algorithm = data["algorithm"]
    if type(algorithm) is not str or algorithm not in N_SIGNATURE_DIGITS:
        raise SignatureError(
            f"signature.algorithm must be {' or '.join(N_SIGNATURE_DIGITS)}, but it is"
            f" {describe_json(algorithm)}."
        )
    signature_text = data["value"]
    n_digits = N_SIGNATURE_DIGITS[algorithm]
    has_right_length = type(signature_text) is str and len(signature_text) == n_digits
    if not has_right_length or not set(signature_text) <= set("0123456789abcdef"):
        raise SignatureError(
            f"signature.value must be {n_digits} hexadecimal digits, but it is"
            f" {describe_json(signature_text)}."
        )
    return Signature(algorithm=cast(Algorithm, algorithm), value=signature_text)


def verify_signature(signature: Signature | None, content: bytes, key: Key) -> None:
    """Verify the signature of a file.

    Parameters
    ----------
    signature : Signature or None
        Signature of the file. None if the file is not signed.

    content : bytes
        Signed bytes.

    key : Key
        Key to verify with.

    Raises
    ------
    ArtifactError
        If there is no signature, it has another algorithm than the key, or it does not match.
    """
    if signature is None:
        raise SignatureError(
            "a key was given, but the file is not signed. If you trust the source of the file,"
            " load it without the key. Otherwise fit and sign the gate again."
        )
    if signature.algorithm != key.algorithm:
        raise SignatureError(
            f"the file is signed with {signature.algorithm}, but the key is for {key.algorithm}."
            f" Pass a key for {signature.algorithm}."
        )
    if not key.matches(signature.value, content):
        raise SignatureError(
            "the signature does not match the file. The file was signed with another key, or"
            " changed after it was signed. Pass the right key, or get the original file."
        )


def _parse_key(content: bytes, name: str) -> Key:
    """Parse the content of a key, and use `name` in the errors."""
    if len(content) > _MAX_KEY_BYTES:
        raise KeyFileError(
            f"{name}: the file is too large to be a key. Create a key with: {_MAKE_SECRET}"
        )
    if content.lstrip().startswith(_KEY_FILE_PREFIXES):
        return _parse_ed25519_key(content, name)

    is_printable = all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in content)
    secret = content.strip() if is_printable else content
    if not secret:
        raise KeyFileError(f"{name} is empty. Create a key with: {_MAKE_SECRET}")
    if len(secret) < _MIN_SECRET_BYTES:
        raise KeyFileError(
            f"{name} has {len(secret)} bytes, but a secret must have at least"
            f" {_MIN_SECRET_BYTES}. Create a key with: {_MAKE_SECRET}"
        )
    if len(set(secret)) < _MIN_DISTINCT_BYTES:
        raise KeyFileError(
            f"{name} repeats the same few bytes, so it is easy to guess. Create a key with:"
            f" {_MAKE_SECRET}"
        )
    return Key("hmac-sha256", secret=secret)


def _parse_ed25519_key(content: bytes, name: str) -> Key:
    """Parse a private or public Ed25519 key in PEM format."""
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
    private_key: Any = None
    public_key: Any
    try:
        if b"PRIVATE KEY" in content:
            private_key = load_pem_private_key(content, password=None)
            public_key = private_key.public_key()
        else:
            public_key = load_pem_public_key(content)
    except TypeError:
        raise KeyFileError(
            f"{name}: the private key is protected by a password. Pass a key without a password."
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise KeyFileError(
            f"{name}: the file is not a valid PEM key. Create a key pair with: {_MAKE_PAIR}"
        ) from None
    is_ed25519 = isinstance(public_key, Ed25519PublicKey)
    if not is_ed25519 or not isinstance(private_key, Ed25519PrivateKey | None):
        raise KeyFileError(
            f"{name}: the key is not an Ed25519 key. Create a key pair with: {_MAKE_PAIR}"
        )
    return Key("ed25519", private_key=private_key, public_key=public_key)
