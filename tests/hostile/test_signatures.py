"""A signed file is taken with its key only, and a key is taken only if it is one."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main
from metacal.errors import ArtifactError, InputError, MetacalWarning, MissingExtraError
from metacal.export import saved as artifact
from metacal.io.artifact.signature import read_key
from metacal.io.artifact.wrapping import canonical_json

SECRET = b"0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0"
OTHER = bytes(range(40))


@pytest.fixture(scope="module")
def gate():
    rng = np.random.default_rng(5)
    table = rng.normal(size=(400, 3)) * 3
    return mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(
        table, (table + rng.normal(size=table.shape)).argmax(1)
    )


@pytest.fixture
def keys(tmp_path):
    """A secret, and a pair of Ed25519 keys, as files that only their owner reads."""
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    contents = {
        "secret.key": SECRET + b"\n",
        "other.key": OTHER,
        "private.pem": private.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain),
        "public.pem": (
            private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
        ),
        "locked.pem": private.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"word")
        ),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
    return tmp_path


def refused(raw, key, match, error=ArtifactError):
    with pytest.raises(error, match=match) as caught:
        artifact.loads(raw, key=key)
    assert "\n" not in str(caught.value)
    assert SECRET.decode() not in str(caught.value)


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sign", "verify"), [("secret.key",) * 2, ("private.pem",) * 2, ("private.pem", "public.pem")]
)
def test_a_signed_file_loads_with_its_key_and_without(gate, keys, sign, verify):
    path = keys / "cal.json"
    mc.save(gate, path, key=keys / sign)
    for key in (None, keys / verify, (keys / verify).read_bytes()):
        assert mc.load(path, key=key).map_ == gate.map_
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data["version"] == 3
    assert data["checksum"] == artifact.checksum(data)
    assert list(data)[-2:] == ["checksum", "signature"]
    unsigned = json.loads(artifact.dumps(gate))
    assert {name: data[name] for name in unsigned} == unsigned


def test_the_signature_covers_what_the_checksum_covers(gate):
    data = json.loads(artifact.dumps(gate, key=SECRET))
    assert data["signature"] == {
        "algorithm": "hmac-sha256",
        "value": hmac.new(SECRET, canonical_json(data), hashlib.sha256).hexdigest(),
    }
    assert data["checksum"] == "sha256:" + hashlib.sha256(canonical_json(data)).hexdigest()
    # Spaces and the order of entries carry no meaning.
    assert (
        artifact.loads(json.dumps(dict(reversed(data.items())), indent=3).encode(), key=SECRET).map_
        == gate.map_
    )


def test_the_same_key_with_a_line_end_or_without(gate):
    raw = artifact.dumps(gate, key=SECRET).encode()
    for key in (SECRET + b"\n", b" " + SECRET + b"\r\n"):
        assert artifact.loads(raw, key=key).map_ == gate.map_
    binary = bytes(range(256))[10:60] + b"\n"
    raw = artifact.dumps(gate, key=binary).encode()
    refused(raw, binary[:-1], "signature does not match")


def test_another_key_or_another_file(gate, keys):
    raw = artifact.dumps(gate, key=SECRET).encode()
    refused(raw, OTHER, "The file was signed with another key, or changed")
    data = json.loads(raw)
    data["reject_label"] = -2
    data["checksum"] = artifact.checksum(data)
    assert (
        artifact.loads(json.dumps(data).encode()).reject_label == -2
    )  # a checksum is no signature
    refused(json.dumps(data).encode(), SECRET, "signature does not match")
    pair = artifact.dumps(gate, key=keys / "private.pem").encode()
    changed = json.loads(pair)
    changed["signature"]["value"] = "0" * 128
    refused(json.dumps(changed).encode(), keys / "public.pem", "signature does not match")


def test_an_unsigned_file_is_refused_where_a_key_is_given(gate):
    refused(artifact.dumps(gate).encode(), SECRET, "a key was given, but the file is not signed")


def test_the_kind_of_signature_follows_from_the_key(gate, keys):
    """A public key is no secret: whoever has it must not be able to sign by it."""
    public = (keys / "public.pem").read_bytes()
    data = json.loads(artifact.dumps(gate))
    forged = hmac.new(public, canonical_json(data), hashlib.sha256).hexdigest()
    data["signature"] = {"algorithm": "hmac-sha256", "value": forged}
    refused(
        json.dumps(data).encode(), public, "is signed with hmac-sha256, but the key is for ed25519"
    )
    refused(
        artifact.dumps(gate, key=keys / "private.pem").encode(),
        SECRET,
        "signed with ed25519, but the key is",
    )


@pytest.mark.parametrize(
    ("signature", "match"),
    [
        (None, r"signature must be an object, but it is null\."),
        ("0" * 64, "signature must be an object"),
        ({}, r"'algorithm', which is missing\."),
        ({"algorithm": "none", "value": ""}, "signature.algorithm must be hmac-sha256 or ed25519"),
        ({"algorithm": ["ed25519"], "value": ""}, "signature.algorithm must be"),
        ({"algorithm": "hmac-sha256", "value": "0" * 63}, "must be 64 hexadecimal digits"),
        ({"algorithm": "hmac-sha256", "value": "G" * 64}, "must be 64 hexadecimal digits"),
        ({"algorithm": "ed25519", "value": "٠" * 128}, "must be 128 hexadecimal digits"),
        ({"algorithm": "ed25519", "value": 5}, r"must be 128 hexadecimal digits, but it is 5\."),
        ({"algorithm": "ed25519", "value": "0" * 128, "by": "me"}, 'unexpected entry "by"'),
    ],
)
def test_signatures_that_are_none(gate, signature, match):
    data = {**json.loads(artifact.dumps(gate)), "signature": signature}
    refused(json.dumps(data).encode(), None, match)
    if signature is not None:
        refused(json.dumps(data).encode(), SECRET, match)


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", r"is empty\. Create a key with: openssl rand -hex 32"),
        (b" \n\n", "the key is empty"),
        (b"password", r"has 8 bytes, but a secret must have at least 32\."),
        (b"x" * 31 + b"\n", "has 31 bytes"),
        (b"a" * 64, "repeats the same few bytes"),
        (bytes(64), "repeats the same few bytes"),
        (b"k3" * 40_000, "too large to be a key"),
    ],
)
def test_contents_that_are_no_key(content, match):
    with pytest.raises(InputError, match=match):
        read_key(content)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (
            b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
            "not a valid PEM key",
        ),
        (b"-----BEGIN PUBLIC KEY-----\n" + b"A" * 64, "not a valid PEM key"),
        (
            b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me",
            "not a valid PEM key",
        ),
    ],
)
def test_pem_that_is_no_key(content, match):
    pytest.importorskip("cryptography")
    with pytest.raises(InputError, match=match):
        read_key(content)


def test_keys_of_another_kind(keys):
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    key = generate_private_key(SECP256R1()).public_key()
    content = key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    with pytest.raises(
        InputError, match=r"not an Ed25519 key\. Create a key pair with: openssl genpkey"
    ):
        read_key(content)
    with pytest.raises(
        InputError, match=r"locked\.pem: the private key is protected by a password"
    ):
        read_key(keys / "locked.pem")


def test_a_public_key_cannot_sign(gate, keys):
    path = keys / "cal.json"
    with pytest.raises(InputError, match="public key, which can verify"):
        mc.save(gate, path, key=keys / "public.pem")
    assert not path.exists()


def test_key_files_that_cannot_be_read(gate, tmp_path):
    with pytest.raises(InputError, match=r"no\.key: the file does not exist"):
        mc.save(gate, tmp_path / "cal.json", key=tmp_path / "no.key")
    with pytest.raises(InputError, match="path is a folder"):
        mc.load(tmp_path / "cal.json", key=tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="modes of files are those of POSIX")
def test_a_key_that_others_can_read_brings_a_warning(keys):
    (keys / "secret.key").chmod(0o644)
    with pytest.warns(MetacalWarning, match=r"other users can read this key. Run chmod 600"):
        read_key(keys / "secret.key")
    (keys / "public.pem").chmod(0o644)
    (keys / "private.pem").chmod(0o600)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_key(keys / "public.pem")
        read_key(keys / "private.pem")


def test_a_key_is_never_shown():
    assert repr(read_key(SECRET)) == "Key(hmac-sha256)"


def test_ed25519_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(
        MissingExtraError,
        match=r'a PEM key: a signature by Ed25519 .* pip install "metacal\[sign\]"',
    ):
        read_key(b"-----BEGIN PUBLIC KEY-----\n")
    assert read_key(SECRET).algorithm == "hmac-sha256"  # which needs nothing


# ── the command line ──────────────────────────────────────────────────────────────────────────────


def run(*args, code=0):
    done = CliRunner().invoke(main, [str(arg) for arg in args])
    assert done.exit_code == code, (done.output, done.exception)
    assert "Traceback" not in done.output
    return done


@pytest.fixture
def rows(keys):
    rng = np.random.default_rng(6)
    table = rng.normal(size=(300, 3)).astype(np.float32) * 3
    np.savez(
        keys / "val.npz", logits=table, labels=(table + rng.normal(size=table.shape)).argmax(1)
    )
    return keys / "val.npz"


@pytest.mark.slow
@pytest.mark.parametrize("calibrator", ["temperature", "vector"])
def test_fit_signs_and_show_says_so(keys, rows, calibrator):
    path = keys / "cal.json"
    fit = ("fit", rows, "--max-miscoverage", "0.1", "--calibrator", calibrator, "-o", path)
    assert "and signed" in run(*fit, "--sign", keys / "private.pem").stderr
    assert "signed by ed25519, not verified: give --key" in " ".join(
        run("show", path).stdout.split()
    )
    assert "verified with the key" in " ".join(
        run("show", path, "--key", keys / "public.pem").stdout.split()
    )
    answer = json.loads(run("show", path, "--key", keys / "public.pem", "--json").stdout)
    assert answer["signature"] == {"algorithm": "ed25519", "verified": True}
    run(*fit)
    assert "intact, unsigned" in " ".join(run("show", path).stdout.split())
    assert json.loads(run("show", path, "--json").stdout)["signature"] is None
    assert (
        "the file is not signed" in run("show", path, "--key", keys / "public.pem", code=2).stderr
    )


@pytest.mark.slow
def test_every_command_that_reads_a_saved_file_takes_a_key(keys, rows):
    path, out = keys / "cal.json", keys / "out"
    run("fit", rows, "--max-miscoverage", "0.1", "-o", path, "--sign", keys / "secret.key")
    commands = {
        "apply": ("apply", path, rows, "-o", f"{out}.csv"),
        "evaluate": ("evaluate", path, rows),
        "verify": ("verify", path, rows, "--confidence", "0.999999"),
        "report": ("report", path, rows, "-o", f"{out}.html"),
        "show": ("show", path),
        "export": ("export", path, "--to", "onnx", "-o", f"{out}.onnx"),
        "attach": ("attach", "model.onnx", path, "-o", f"{out}.onnx"),
    }
    for name, command in commands.items():
        assert (
            "signature does not match" in run(*command, "--key", keys / "other.key", code=2).stderr
        ), name
    for name in ("apply", "evaluate", "show"):
        run(*commands[name], "--key", keys / "secret.key")
    # The rows are those of the fit, which do not judge the gate.
    assert "not judged" in run(*commands["verify"], "--key", keys / "secret.key", code=1).stdout


def test_a_key_that_cannot_sign_is_refused_before_anything_is_fitted(keys):
    missing = keys / "none.npz"  # would be the next complaint
    fit = ("fit", missing, "--max-miscoverage", "0.1")
    assert (
        "can verify"
        in run(*fit, "-o", keys / "a.json", "--sign", keys / "public.pem", code=2).stderr
    )
    assert (
        "file does not exist"
        in run(*fit, "-o", keys / "a.json", "--sign", keys / "no.key", code=2).stderr
    )
    assert (
        "--sign has no effect, because no gate is saved"
        in run(*fit, "--sign", keys / "secret.key", code=2).stderr
    )
    assert (
        "is also an input file"
        in run(*fit, "-o", keys / "secret.key", "--sign", keys / "secret.key", code=2).stderr
    )


def test_openssl_makes_the_keys_that_the_messages_name(gate, tmp_path):
    pytest.importorskip("cryptography")
    made = subprocess.run(
        "openssl genpkey -algorithm ed25519 -out private.pem && openssl pkey -in private.pem"
        " -pubout -out public.pem && openssl rand -hex 32 > secret.key && chmod 600 private.pem"
        " secret.key",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
    )
    if made.returncode == 127:
        pytest.skip("openssl is not installed")
    assert made.returncode == 0, made.stderr
    for sign, verify in (("private.pem", "public.pem"), ("secret.key", "secret.key")):
        mc.save(gate, tmp_path / "cal.json", key=tmp_path / sign)
        assert mc.load(tmp_path / "cal.json", key=tmp_path / verify).map_ == gate.map_
