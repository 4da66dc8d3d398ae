"""Objects, linking and packing for this machine and others, with the system's compiler and with zig."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import xxhash

from tilewright.artifact import link, package, symbols, trailer
from tilewright.artifact.sources import COMPILE_FLAGS, EXPORTS, INCLUDE_DIR
from tilewright.artifact.symbols import _symbols
from tilewright.artifact.weights import gather_weights
from tilewright.errors import ArtifactError
from tilewright.ir.constant import Constant
from tilewright.runtime.library import Library
from tilewright.targets.cpu.isa import isa_named
from tilewright.targets.llvm.toolchain import compile_object

SOURCES = Path(__file__).parents[1] / "runtime" / "c"
WEIGHTS = np.concatenate([np.arange(1, 9) * 0.5, np.arange(1, 9) * 10.0]).astype(np.float32).view(np.uint8)
METADATA = {
    "inputs": [
        {"name": "x", "dtype": "float32", "shape": ["batch", 8]},
        {"name": "z", "dtype": "float32", "shape": ["batch"]},
    ],
    "outputs": [
        {"name": "y", "dtype": "float32", "shape": ["batch", 8]},
        {"name": "pairs", "dtype": "float32", "shape": ["2 * batch"]},
    ],
    "kernels": ["scale", "shift"],
}


def host_triple() -> str:
    import llvmlite.binding as llvm

    return str(llvm.get_default_triple())


def model(triple: str) -> list[bytes]:
    return link.compile_c([SOURCES / "affine_module.c"], [INCLUDE_DIR], triple, list(COMPILE_FLAGS))


def check(library: Library) -> None:
    x, z = np.random.default_rng(0).random((5, 8), np.float32), np.arange(5, dtype=np.float32)
    y, pairs = library(x, z)
    w, b = WEIGHTS.view(np.float32)[:8], WEIGHTS.view(np.float32)[8:]
    np.testing.assert_allclose(y, x * w + b + z[:, None], rtol=1e-6)
    np.testing.assert_array_equal(pairs, np.concatenate([z, z]))


@pytest.mark.parametrize("compiler", ["", "zig"])
def test_a_library_for_this_machine(compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CC", compiler)
    weights = gather_weights([(0, Constant(WEIGHTS))], WEIGHTS.nbytes)
    target = host_triple()
    whole = package.link_library(tmp_path / "whole.so", model(target), METADATA, target, weights=weights)
    check(Library(whole))
    bare = package.link_library(tmp_path / "bare.so", model(target), METADATA, target)
    check(Library(bare, weights=weights))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bare.so", "whole.so"]


def test_no_compiler_is_needed_but_zig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TILEWRIGHT_CC", raising=False)
    weights = gather_weights([(0, Constant(WEIGHTS))], WEIGHTS.nbytes)
    target = host_triple()
    check(Library(package.link_library(tmp_path / "m.so", model(target), METADATA, target, weights=weights)))


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
def test_only_the_interface_is_exported(tmp_path: Path) -> None:
    target = host_triple()
    weights = gather_weights([(0, Constant(WEIGHTS))], WEIGHTS.nbytes)
    path = package.link_library(tmp_path / "m.so", model(target), METADATA, target, weights=weights)
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True
    ).stdout
    assert {line.split()[-1] for line in listing.splitlines()} == set(EXPORTS)


@pytest.mark.parametrize("target", ["aarch64-macos", "x86_64-macos", "aarch64-ios"])
def test_what_objects_define_is_not_exported(target: str, tmp_path: Path) -> None:
    """Functions and data of an object and of a static library of the user's stay inside the library."""
    isa = isa_named(target)
    define = "@value_{0} = constant i32 7\ndefine i32 @{0}() {{ ret i32 1 }}\n"
    call = "declare i32 @other()\ndefine i32 @tw_first() { %a = call i32 @other()\n ret i32 %a }\n"
    names = ["other", "a_function_whose_name_is_longer_than_the_name_of_a_member", "odd"]
    members = [compile_object(define.format(name), isa) for name in names]
    link.archive(members, tmp_path / "users.a", isa)
    parts = [compile_object(define.format("one") + call, isa), (tmp_path / "users.a").read_bytes()]
    link.link_shared(parts, tmp_path / "library", isa, ["tw_*"])
    found = {s.name for s in _symbols((tmp_path / "library").read_bytes()) if s.defined}
    assert found - {"_mh_dylib_header", "__dso_handle"} == {"tw_first"}


@pytest.mark.parametrize(
    ("target", "magic"),
    [
        ("aarch64-unknown-linux-gnu", b"\x7fELF\x02"),
        ("riscv64-unknown-linux-musl", b"\x7fELF\x02"),
        pytest.param(
            "x86_64-pc-windows-gnu", b"MZ", marks=pytest.mark.slow
        ),  # zig first builds MinGW, which takes a minute
        ("aarch64-apple-darwin", b"\xcf\xfa\xed\xfe"),
        ("wasm32-unknown-unknown", b"\0asm"),
    ],
)
def test_other_machines(target: str, magic: bytes, tmp_path: Path) -> None:
    weights = gather_weights([(0, Constant(WEIGHTS))], WEIGHTS.nbytes)
    path = package.link_library(tmp_path / "model", model(target), METADATA, target, weights=weights)
    data = path.read_bytes()
    assert data.startswith(magic)
    assert WEIGHTS.tobytes() in data
    assert xxhash.xxh64_intdigest(WEIGHTS).to_bytes(8, "little") in data
    trailer.verify_file(path)


def test_blob_object_is_aligned_data(tmp_path: Path) -> None:
    parts = {"first": b"x" * 65, "second": bytes(range(256)), "nothing": b""}
    objects = [link.blob_object(data, name, host_triple()) for name, data in parts.items()]
    link.link_shared(objects, tmp_path / "data.so", host_triple(), list(parts))
    native = ctypes.CDLL(str(tmp_path / "data.so"))
    for name, data in parts.items():
        symbol = ctypes.c_char.in_dll(native, name)
        assert ctypes.addressof(symbol) % 64 == 0
        assert ctypes.string_at(ctypes.addressof(symbol), len(data)) == data


def test_errors_show_what_the_compiler_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "broken.c"
    source.write_text("int f(void) { return undeclared; }\n")
    with pytest.raises(ArtifactError, match=r"compiling broken\.c failed[\s\S]*undeclared"):
        link.compile_c([source], [], host_triple(), [])
    source.write_text("void missing(void);\nvoid f(void) { missing(); }\n")
    with pytest.raises(ArtifactError, match="cannot be written|linking"):
        link.link_shared([b"not an object"], tmp_path / "x.so", host_triple(), [])
    monkeypatch.setenv("TILEWRIGHT_CC", "no-such-compiler")
    with pytest.raises(ArtifactError, match="TILEWRIGHT_CC names 'no-such-compiler'"):
        link.compile_c([source], [], host_triple(), [])


def test_compiled_sources_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    source, header = tmp_path / "f.c", tmp_path / "value.h"
    source.write_text('#include "value.h"\nint f(void) { return VALUE; }\n')
    header.write_text("#define VALUE 1\n")
    runs: list[list[str]] = []
    original = link._run
    monkeypatch.setattr(link, "_run", lambda command, what: (runs.append(command), original(command, what)))
    for _ in range(2):
        first = link.compile_c([source], [tmp_path], host_triple(), [])
    assert len(runs) == 1
    header.write_text("#define VALUE 2\n")
    assert link.compile_c([source], [tmp_path], host_triple(), []) != first
    assert len(runs) == 2


def test_objects_are_joined_once_to_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that join the same objects at the same time get equal bytes, and later calls read the cache.
    Functions of one name that are local to their files stay apart.
    """
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    sources = [tmp_path / "a.c", tmp_path / "b.c"]
    sources[0].write_text(
        "static int own(void) { return 1; }\nint b(void);\nint a(void) { return own() + b(); }"
    )
    sources[1].write_text("static int own(void) { return 40; }\nint b(void) { return own() + 1; }")

    def joined(_: object = None) -> list[bytes]:
        return link.compile_c(sources, [], host_triple(), ["-O0"], join=True)

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(joined, range(4)))
    assert len(made[0]) == 1 and made.count(made[0]) == 4
    link.link_shared(made[0], tmp_path / "both.so", host_triple(), ["a"])
    assert ctypes.CDLL(str(tmp_path / "both.so")).a() == 42
    with monkeypatch.context() as patch:
        patch.setattr(link, "_run", lambda *arguments: pytest.fail(f"runs {arguments}"))
        assert joined() == made[0]
    sources[1].write_text("int b(void) { return 7; }")
    link.link_shared(joined(), tmp_path / "new.so", host_triple(), ["a"])
    assert ctypes.CDLL(str(tmp_path / "new.so")).a() == 8


@pytest.mark.parametrize(
    ("target", "count"),
    [
        ("aarch64-unknown-linux-gnu", 1),
        ("armv7-unknown-linux-android21eabi", 1),
        ("hexagon-unknown-linux-musl", 1),
        ("wasm32-unknown-unknown", 1),
        ("aarch64-apple-macosx11.0.0", 2),
        ("x86_64-pc-windows-gnu", 2),
    ],
)
def test_objects_that_no_linker_joins_stay_apart(target: str, count: int, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.c").write_text(f"int {name}(void) {{ return 1; }}\n")
    found = link.compile_c([tmp_path / "a.c", tmp_path / "b.c"], [], target, ["-O1"], join=True)
    assert len(found) == count
    if "wasm" not in target:  # whose symbols have no reader
        assert sorted(name for data in found for name in symbols.global_names(data)[0]) == ["a", "b"]


def test_tar_holds_the_parts(tmp_path: Path) -> None:
    parts = [(0, Constant(WEIGHTS))]
    path = package.save_artifact(
        tmp_path / "model.tar", [b"object"], parts, WEIGHTS.nbytes, METADATA, host_triple(), beside=False
    )
    trailer.verify_file(path)
    with tarfile.open(path) as archive:
        names = archive.getnames()
        text = archive.extractfile("metadata.json")
        assert text is not None
        assert json.load(text) == METADATA
    assert {
        "objects/0.o",
        "runtime/pool.c",
        "runtime/runtime.h",
        "tilewright.h",
        "tw_blob_weights.bin",
    } <= set(names)


def test_what_was_just_written_is_not_read_again_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triple, weights = host_triple(), np.ones(17 << 20, np.uint8)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    path = package.link_library(tmp_path / "model.so", model(triple), METADATA, triple, weights=weights)
    reads: list[int] = []
    digest = trailer._digest
    monkeypatch.setattr(trailer, "_digest", lambda file, length: reads.append(length) or digest(file, length))
    trailer.verify_file(path)
    assert not reads
    with path.open("r+b") as file:
        file.seek(9 << 20)
        file.write(b"\x55")
    with pytest.raises(ArtifactError, match="checksum"):
        trailer.verify_file(path)
