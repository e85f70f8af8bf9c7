import io
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as generate_ec_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from printed import Capture, refusal

from torchserve_neuron_lstm.archiver_ext.archive import archived_files, writer
from torchserve_neuron_lstm.archiver_ext.archive.file_list import list_text, parsed, write_list
from torchserve_neuron_lstm.archiver_ext.archive.writer import rewrite_manifest
from torchserve_neuron_lstm.archiver_ext.cli import main
from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.config.manifest import read_manifest
from torchserve_neuron_lstm.config.manifest_writer import manifest_text
from torchserve_neuron_lstm.handlers.neuron_lstm import check_folder
from torchserve_neuron_lstm.inference.reader import ArchiveReader

from .conftest import Said, pack


@pytest.mark.parametrize("name", ["tiny", "tiny.mar"])
def test_a_signed_archive_passes_in_both_forms(made: Path, verify: Callable[..., Said], name: str) -> None:
    both = made / "both.pub"
    both.write_bytes((made / "other.pub").read_bytes() + (made / "own.pub").read_bytes())

    code, out, err = verify(made / f"signed-{name}")
    assert (code, err) == (0, "")
    assert "as signed" in out
    assert verify(made / f"signed-{name}", keys=both)[0] == 0
    assert verify(Path(shutil.make_archive(str(made / "with-folders"), "zip", made / "signed-tiny")))[0] == 0
    code, _, err = verify(made / f"signed-{name}", keys=made / "other.pub")
    assert (code, "of none of the keys" in err) == (1, True)
    code, _, err = verify(made / name)
    assert (code, "is not signed" in err) == (1, True)


def test_a_key_is_not_replaced_by_an_archive(made: Path, tmp_path: Path, capsys: Capture) -> None:
    """A key that is lost cannot be made again."""
    key = Path(shutil.copy(made / "own.pem", tmp_path))
    before = key.read_bytes()

    told = refusal(capsys, "sign", made / "tiny.mar", "--key", key, "-o", key)
    assert f"{key} is the private key: give another file with -o" in told
    assert key.read_bytes() == before


def test_one_bad_archive_of_several_is_told_and_gives_exit_code_1(made: Path, verify: Callable[..., Said]) -> None:
    code, out, err = verify(made / "tiny.mar", made / "signed-tiny.mar", made / "missing.mar")

    assert code == 1
    assert "signed-tiny.mar" in out
    assert "tiny.mar: the archive is not signed" in err
    assert "missing.mar" in err


def test_every_file_of_a_packed_archive_is_compared(made: Path, tmp_path: Path, verify: Callable[..., Said]) -> None:
    folder = Path(shutil.copytree(made / "signed-tiny", tmp_path / "folder"))
    for change, told in (
        (lambda: (folder / "weights.pt").write_bytes(b"other"), "weights.pt was changed"),
        (lambda: (folder / "json.py").write_text(""), "json.py is not in SHA256SUMS"),
        ((folder / "variants.json").unlink, "variants.json is missing"),
        (lambda: (folder / "SHA256SUMS").write_bytes(b"# other"), "SHA256SUMS was changed"),
    ):
        change()
        pack(folder, tmp_path / "changed.mar")
        code, _, err = verify(tmp_path / "changed.mar")
        assert (code, told in err) == (1, True), err
    shutil.rmtree(folder)
    shutil.copytree(made / "signed-tiny", folder)
    (folder / "codec_of_tests.py").write_text("print('other')\n")
    signature = parsed((folder / "SHA256SUMS").read_bytes())[2]
    write_list(folder)
    _, signed, _ = parsed((folder / "SHA256SUMS").read_bytes())
    (folder / "SHA256SUMS").write_bytes(list_text(signed, signature))
    pack(folder, tmp_path / "changed.mar")
    assert "of none of the keys" in verify(tmp_path / "changed.mar")[2]


def test_a_large_file_keeps_its_form_in_a_rewritten_zip(
    made: Path, tmp_path: Path, verify: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 2 GiB on, its sizes are in a field of their own, of which there is one."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)
    pack(made / "tiny", tmp_path / "tiny.mar")
    signed = tmp_path / "signed.mar"
    assert main(["sign", str(tmp_path / "tiny.mar"), "--key", str(made / "own.pem"), "-o", str(signed)]) == 0

    code, out, _ = verify(signed)
    assert (code, "as signed" in out) == (0, True)


@pytest.mark.parametrize("name", ["tiny", "tiny.mar"])
def test_what_rewrites_an_archive_keeps_its_mode_and_a_link_to_it(made: Path, tmp_path: Path, name: str) -> None:
    copy = shutil.copytree if (made / name).is_dir() else shutil.copy
    archive = Path(copy(made / name, tmp_path / name))
    archive.chmod(0o700)
    link = tmp_path / "current"
    link.symlink_to(archive)

    assert main(["sign", str(link), "--key", str(made / "own.pem")]) == 0
    assert link.is_symlink()
    assert archive.stat().st_mode & 0o777 == 0o700
    assert b"# ed25519 " in (ArchiveReader(archive).file_list() or b"")


def test_an_archive_that_was_replaced_meanwhile_is_left_as_it_is(made: Path, tmp_path: Path) -> None:
    """Another command may have written weights while this one measured."""
    archive = Path(shutil.copy(made / "tiny.mar", tmp_path / "tiny.mar"))
    before = ArchiveReader(archive).file_list()
    shutil.copy(made / "signed-tiny.mar", archive)

    with pytest.raises(PackagingError, match="was changed while it was used"):
        rewrite_manifest(archive, "{}", archive, before)
    assert archive.read_bytes() == (made / "signed-tiny.mar").read_bytes()


@pytest.mark.parametrize("name", ["tiny", "tiny.mar"])
def test_an_archive_that_is_replaced_while_it_is_signed_is_left_as_it_is(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, name: str
) -> None:
    archive, other = tmp_path / name, made / f"signed-{name}"
    copy = shutil.copytree if other.is_dir() else shutil.copy
    copy(made / name, archive)
    check = archived_files.check_packed_files

    def replaced(*given: Any) -> None:
        check(*given)
        shutil.rmtree(archive) if archive.is_dir() else archive.unlink()
        copy(other, archive)

    monkeypatch.setattr(archived_files, "check_packed_files", replaced)
    assert main(["sign", str(archive), "--key", str(made / "own.pem")]) == 1
    assert "was changed while it was used, and is left as it is" in capsys.readouterr().err
    assert ArchiveReader(archive).file_list() == ArchiveReader(other).file_list()


def test_a_folder_is_as_before_if_an_interrupt_ends_its_second_write(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Path(shutil.copytree(made / "tiny", tmp_path / "tiny"))
    text = manifest_text(read_manifest(archive)).replace('"milliseconds": 0.5', '"milliseconds": 0.25')
    written: list[Path] = []
    names = sorted(archive.iterdir())

    def replaced(finished: Path, destination: Path) -> None:
        assert sorted(archive.iterdir()) == names  # a process that is killed now leaves no file within
        written.append(destination)
        if len(written) == 2:
            raise KeyboardInterrupt
        finished.replace(destination)

    monkeypatch.setattr(writer, "replace_atomically", replaced)
    with pytest.raises(KeyboardInterrupt):
        rewrite_manifest(archive, text, archive)

    assert len(written) == 2
    check_folder(str(archive.resolve()), None)


@pytest.mark.parametrize("name", ["signed-tiny", "signed-tiny.mar", "tiny.tar.gz"])
def test_what_rewrites_archives_renews_the_list_and_drops_the_signature(made: Path, tmp_path: Path, name: str) -> None:
    copy = shutil.copytree if (made / name).is_dir() else shutil.copy
    archive = Path(copy(made / name, tmp_path / name))
    with ArchiveReader(archive).unpacked() as folder:
        text = manifest_text(read_manifest(folder)).replace('"milliseconds": 0.5', '"milliseconds": 0.25')

    assert rewrite_manifest(archive, text, archive) == name.startswith("signed")
    assert not rewrite_manifest(archive, text, archive)
    with ArchiveReader(archive).unpacked() as folder:
        check_folder(str(folder.resolve()), None)
        assert (folder / "variants.json").read_text() == text
        with pytest.raises(RuntimeError, match="is not signed"):
            check_folder(str(folder.resolve()), str(made / "own.pub"))


def test_calibrate_says_that_a_signature_is_gone(
    made: Path, tmp_path: Path, verify: Callable[..., Said], capfd: Capture
) -> None:
    archive = Path(shutil.copy(made / "signed-tiny.mar", tmp_path))

    assert main(["calibrate", str(archive), "--threads", "1", "--json"]) == 0
    assert f"{archive} is no longer signed" in capfd.readouterr().err
    assert verify(archive)[0] == 1
    assert main(["sign", str(archive), "--key", str(made / "own.pem")]) == 0
    assert verify(archive)[0] == 0


@pytest.mark.parametrize("words", [["calibrate"], ["predict", "-"]], ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("change", "told"),
    [("variants.json", "was changed"), ("orjson.py", "is not in SHA256SUMS"), ("SHA256SUMS", "is not signed")],
)
def test_nothing_of_a_changed_archive_is_run_or_written_again(
    words: list[str], change: str, told: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever signs what a command has written would sign the change."""
    folder = Path(shutil.copytree(made / "signed-tiny", tmp_path / "changed"))
    if change == "SHA256SUMS":  # is right again, and its signature gone
        write_list(folder)
        monkeypatch.setenv("NEURON_LSTM_TRUSTED_KEYS", str(made / "own.pub"))
    else:
        (folder / change).write_text((made / "tiny" / "variants.json").read_text() + " ")
    before = (folder / "SHA256SUMS").read_bytes()
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())

    assert main([words[0], str(folder), *words[1:]]) == 1
    assert told in said.getvalue()
    assert (folder / "SHA256SUMS").read_bytes() == before


@pytest.mark.parametrize("words", [["sign", "--key", "own.pem"], ["calibrate"]])
def test_an_archive_without_a_list_is_refused_and_a_changed_one_not_signed(
    words: list[str], made: Path, tmp_path: Path, capsys: Capture
) -> None:
    """The commands that write an archive compare its files with the list first: a signature would hide a change."""
    folder = Path(shutil.copytree(made / "tiny", tmp_path / "tiny"))
    (folder / "weights.pt").write_bytes(b"other")
    assert "weights.pt was changed" in refusal(capsys, "sign", folder, "--key", made / "own.pem")

    shutil.copy(made / "tiny" / "weights.pt", folder)
    (folder / "SHA256SUMS").unlink()
    assert "has no list SHA256SUMS: package the model again" in refusal(capsys, words[0], folder, *words[1:])


def test_a_key_that_cannot_sign_is_refused(made: Path, tmp_path: Path, capsys: Capture) -> None:
    keys = {name: tmp_path / f"{name}.pem" for name in ("open", "shared", "public", "encrypted", "elliptic", "missing")}
    for name in ("open", "shared"):
        shutil.copy(made / "own.pem", keys[name])
    shutil.copy(made / "own.pub", keys["public"])
    pkcs8, encryption = (Encoding.PEM, PrivateFormat.PKCS8), serialization.BestAvailableEncryption(b"pass")
    keys["encrypted"].write_bytes(Ed25519PrivateKey.generate().private_bytes(*pkcs8, encryption))
    keys["elliptic"].write_bytes(generate_ec_key(SECP256R1()).private_bytes(*pkcs8, NoEncryption()))
    told = {
        "open": "can be read by other users",
        "shared": "can be read by other users",
        "public": "cannot be read",
        "encrypted": "encrypted",
        "elliptic": "is not an ed25519 key",
        "missing": "cannot be read",
    }
    for name, key in keys.items():
        if key.exists():
            key.chmod({"open": 0o604, "shared": 0o640}.get(name, 0o600))
        assert told[name] in refusal(capsys, "sign", made / "tiny.mar", "--key", key, "-o", tmp_path / "out.mar")
    assert not (tmp_path / "out.mar").exists()


def test_trusted_keys_that_are_none_are_refused(made: Path, tmp_path: Path) -> None:
    elliptic = generate_ec_key(SECP256R1()).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for content in (None, b"", b"not a key", elliptic, elliptic + (made / "own.pub").read_bytes()):
        keys = tmp_path / "keys.pub"
        if content is not None:
            keys.write_bytes(content)
        with pytest.raises(RuntimeError, match="the trusted keys"):
            check_folder(str(made / "signed-tiny"), str(keys) if content is not None else "")


def test_a_host_without_cryptography_is_unready_if_it_trusts_keys(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "cryptography", None)

    check_folder(str(made / "signed-tiny"), None)
    with pytest.raises(RuntimeError, match="install cryptography on this host"):
        check_folder(str(made / "signed-tiny"), str(made / "own.pub"))


def test_a_missing_archive_and_a_missing_file_of_keys_are_named(made: Path, tmp_path: Path, capsys: Capture) -> None:
    archives, missing = [made / "signed-tiny.mar", made / "signed-tiny"], tmp_path / "none"
    for given, keys, told in (
        ([missing], made / "own.pub", f"{missing}: no such file or directory"),
        (archives, missing, f"--trusted-keys: there is no file {missing}"),
    ):
        assert refusal(capsys, "verify", *given, "--trusted-keys", keys) == f"error: {told}\n"


def test_a_list_that_would_fill_the_memory_is_refused(
    made: Path, verify: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few kilobytes of a zip can become as many gigabytes."""
    monkeypatch.setattr("torchserve_neuron_lstm.archiver_ext.archive.archived_files._LONGEST_LIST", 1000)
    code, _, error = verify(made / "signed-tiny.mar")

    assert code == 1
    assert "SHA256SUMS has more than 1000 bytes" in error
