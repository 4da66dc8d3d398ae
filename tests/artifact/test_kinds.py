"""The name of an artifact must fit its kind. Files that are not artifacts, that were made for another
machine, or that were altered are refused with an error that says so.
"""

from __future__ import annotations

import io
import json
import shutil
import struct
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.caches import new_cache
from tests.cli.test_cli import run

import tilewright as tw
from tilewright.artifact.kinds import check_suffix, kind_of, suffixes_of
from tilewright.artifact.package import sign
from tilewright.artifact.trailer import SIZE, read_metadata
from tilewright.errors import ArtifactError, TilewrightError

X = np.ones(4, np.float32)


def doubled(x: Any) -> Any:
    return x * 2


@pytest.fixture(scope="module")
def libraries() -> dict[str, Any]:
    targets = ("cpu", "aarch64-linux", "wasm32", "webgpu")
    found = {target: tw.compile(doubled, (X,), target=target, cache=False) for target in targets}
    return found


@pytest.fixture(scope="module")
def saved(libraries: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("saved")
    names = {"cpu": "m.so", "aarch64-linux": "a.so", "wasm32": "m.wasm", "webgpu": "m.tar"}
    return {target: library.save(folder / names[target]) for target, library in libraries.items()}


@pytest.mark.parametrize(
    ("target", "name", "right"),
    [
        (
            "cpu",
            "m.wasm",
            r"has the suffix .so, .a or .tar, not .wasm, which is that of the target wasm32; name it m.so",
        ),
        ("cpu", "m.dll", "not .dll, which is that of Windows; name it m.so"),
        ("cpu", "m.o", "name it m.so"),
        ("cpu", "m.onnx", "name it m.so"),
        ("cpu", "m", "not none; name it m.so"),
        ("aarch64-linux", "m.dylib", "not .dylib, which is that of macOS and iOS; name it m.so"),
        ("wasm32", "m.so", "has the suffix .wasm or .tar, not .so; name it m.wasm"),
        ("webgpu", "m.so", "has the suffix .tar, not .so; name it m.tar"),
    ],
)
def test_a_wrong_name_is_refused(
    libraries: dict[str, Any], saved: dict[str, Path], tmp_path: Path, target: str, name: str, right: str
) -> None:
    loaded = [tw.load(saved[target])] if target != "aarch64-linux" else []
    for library in (libraries[target], *loaded):
        with pytest.raises(ArtifactError, match=right):
            library.save(tmp_path / name)
    assert not any(tmp_path.iterdir())


def test_names_of_other_systems() -> None:
    assert suffixes_of("arm64-apple-darwin")[0] == ".dylib"
    assert suffixes_of("x86_64-pc-windows-msvc")[0] == ".dll"
    for name in ("libm.so", "libm.so.1", "libm.so.1.2.3", "M.SO", "m.cpython-311-x86_64-linux-gnu.so"):
        check_suffix(name, (".so",), "linux")


def test_copies_are_of_the_kind_that_they_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_cache(monkeypatch, tmp_path / "cache")
    for target, name in (("cpu", "m.tar"), ("wasm32", "m.tar"), ("wasm32", "m.wasm")):
        for _ in range(2):  # the second library is read from the cache
            path = tw.compile(doubled, (X,), target=target).save(tmp_path / name)
            assert kind_of(path).format == {"m.tar": "tar", "m.wasm": "WebAssembly"}[name]
    with pytest.raises(
        ArtifactError,
        match=r"m.so is a linked library: to save objects and sources as a .tar file, compile the "
        r"model again",
    ):
        tw.load(tw.compile(doubled, (X,)).save(tmp_path / "m.so")).save(tmp_path / "n.tar")


def test_the_command_line_looks_before_it_compiles(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, saved: dict[str, Path]
) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"not looked at")
    for target, name in (("cpu", "a.wasm"), ("cpu", "a.dll"), ("webgpu", "a.so"), ("wasm32", "a")):
        assert run("compile", str(model), "-o", str(tmp_path / name), "--target", target) == 2
        assert f"an artifact for target {target} has the suffix" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_contents_and_not_names_say_how_a_file_is_loaded(saved: dict[str, Path], tmp_path: Path) -> None:
    for target, name in (("cpu", "m.wasm"), ("wasm32", "m.so"), ("cpu", "m.tar"), ("wasm32", "m.bin")):
        np.testing.assert_array_equal(tw.load(shutil.copy(saved[target], tmp_path / name))(X), 2 * X)


def test_foreign_artifacts_are_told_as_such(
    saved: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(ArtifactError, match=r"a.so: a shared library for Linux on aarch64; this machine is "):
        tw.load(saved["aarch64-linux"])
    assert run("run", str(saved["aarch64-linux"])) == 1
    assert "a shared library for Linux on aarch64; this machine is" in capsys.readouterr().err
    for target, path in saved.items():
        assert run("inspect", str(path)) == 0, target
        assert "float32" in capsys.readouterr().out
        metadata = read_metadata(path)
        assert metadata is not None and metadata["target"]["name"] == target
    heads = {
        "a shared library for macOS on aarch64": struct.pack("<II", 0xFEEDFACF, 0x0100000C),
        "a shared library for Windows on x86_64": b"MZ".ljust(60)
        + struct.pack("<I4sH", 64, b"PE\0\0", 0x8664),
    }
    for what, head in heads.items():
        other = tmp_path / "other.so"
        other.write_bytes(head + bytes(500))
        sign(other)
        with pytest.raises(ArtifactError, match=f"{what}; this machine is"):
            tw.load(other)


def resealed(source: Path, path: Path, change: Callable[[bytes], bytes]) -> Path:
    """Write the changed contents of `source` to `path` with a valid checksum."""
    path.write_bytes(change(source.read_bytes()[:-SIZE]))
    sign(path)
    return path


def archive(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as made:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            made.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def contents(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as made:
        return {m.name: made.extractfile(m).read() for m in made.getmembers()}  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["program.json", "metadata.json"])
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b"null", b"3"])
def test_a_resealed_archive_is_refused(
    saved: dict[str, Path], tmp_path: Path, name: str, data: bytes
) -> None:
    path = resealed(
        saved["webgpu"], tmp_path / "m.tar", lambda whole: archive({**contents(whole), name: data})
    )
    with pytest.raises(ArtifactError, match="damaged file"):
        tw.load(path)


@pytest.mark.parametrize("data", [b"", b"{"])
def test_an_archive_with_weights_cut_off_is_refused(tmp_path: Path, data: bytes) -> None:
    library = tw.compile(lambda x: x * np.arange(4, dtype=np.float32), (X,), target="webgpu", cache=False)
    path = library.save(tmp_path / "w.tar")
    short = resealed(
        path, tmp_path / "m.tar", lambda whole: archive({**contents(whole), "weights.bin": data})
    )
    with pytest.raises(ArtifactError, match="damaged file"):
        tw.load(short)


@pytest.mark.parametrize("change", [{"slots": [], "version": None}, {"version": 99}])
def test_an_archive_of_another_version_is_refused(
    saved: dict[str, Path], tmp_path: Path, change: dict[str, Any]
) -> None:
    def changed(whole: bytes) -> bytes:
        files = contents(whole)
        program = json.loads(files["program.json"]) | change
        kept = {key: value for key, value in program.items() if value is not None}
        return archive({**files, "program.json": json.dumps(kept).encode()})

    version = change["version"] or 1
    sentence = (
        f"its program has version {version}, this Tilewright supports version 4: compile the model again"
    )
    with pytest.raises(ArtifactError, match=sentence):
        tw.load(resealed(saved["webgpu"], tmp_path / "m.tar", changed))


def test_a_resealed_program_is_refused(saved: dict[str, Path], tmp_path: Path) -> None:
    def change(step: dict[str, Any]) -> Callable[[bytes], bytes]:
        def changed(whole: bytes) -> bytes:
            files = contents(whole)
            program = json.loads(files["program.json"])
            steps = program["functions"]["main"]["steps"]
            kind = next((k for k in step if k in ("kernel", "copy")), "kernel")
            index = next((i for i, s in enumerate(steps) if kind in s), len(steps) - 1)
            steps[index] = {**steps[index], **step} if kind == "kernel" else step
            return archive({**files, "program.json": json.dumps(program).encode()})

        return changed

    for step in (
        {"kernel": "none"},
        {"buffers": [99]},
        {"buffers": ["heap"]},
        {"copy": [[1]]},
        {"copy": [0]},
        {"grid": 5},
    ):
        with pytest.raises(ArtifactError, match="damaged file"):
            tw.load(resealed(saved["webgpu"], tmp_path / "m.tar", change(step)))


@pytest.mark.parametrize("target", ["cpu", "wasm32"])
def test_resealed_metadata_are_refused(saved: dict[str, Path], tmp_path: Path, target: str) -> None:
    whole = saved[target].read_bytes()
    if target == "wasm32":
        whole = whole[: whole.rindex(b"\x0atilewright") - 2] + bytes(
            SIZE
        )  # the last section, which holds the trailer
    start = whole.index(b'{"format":1')
    end = whole.index(b"\0", start)
    for text in (
        b"",
        b"{",
        b"[]",
        b'{"inputs": 3}',
        b'{"inputs": [{}], "outputs": []}',
        b'{"inputs": [], "outputs": null}',
    ):
        source = tmp_path / "source"
        source.write_bytes(whole[:start] + text.ljust(end - start, b" ") + whole[end:])
        path = tmp_path / f"m{len(text)}"
        path.write_bytes(source.read_bytes()[:-SIZE])
        sign(path, wasm=target == "wasm32")
        with pytest.raises(ArtifactError, match="metadata"):
            tw.load(path)


def test_what_is_no_artifact_is_refused(tmp_path: Path, saved: dict[str, Path]) -> None:
    whole = saved["cpu"].read_bytes()
    for name in ("m.so", "m.wasm", "m.tar", "m.dylib"):
        path = tmp_path / name
        for data in (
            b"",
            b"text",
            b"\0asm\1\0\0\0",
            archive({"a": b"b"}),
            whole[:1000],
            b"PK\3\4" + bytes(200),
        ):
            path.write_bytes(data)
            with pytest.raises(ArtifactError, match="not a Tilewright artifact"):
                tw.load(path)
            sign(path)
            with pytest.raises(TilewrightError):
                tw.load(path)
    with pytest.raises(ArtifactError, match="cannot be read"):
        tw.load(tmp_path)


@pytest.mark.parametrize(
    ("target", "package", "name"), [("wasm32", "wasmtime", "m.wasm"), ("webgpu", "wgpu", "m.tar")]
)
def test_artifacts_are_made_without_what_runs_them(
    target: str, package: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_cache(monkeypatch, tmp_path / "cache")
    tables = np.arange(4, dtype=np.float32)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, package, None)
        for _ in range(2):  # the second compilation reads the cache
            library = tw.compile(lambda x: x * tw.Tensor(tables), (X,), target=target)
            path = library.save(tmp_path / name)
        assert library.ir("asm")
        assert run("inspect", str(path)) == 0
        with pytest.raises(ArtifactError, match=f"needs {package}: pip install"):
            library(X)
        with pytest.raises(ArtifactError, match=f"needs {package}: pip install"):
            tw.load(path)(X)
    np.testing.assert_array_equal(tw.load(path)(X), tables)
