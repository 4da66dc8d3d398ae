"""Packages for Android: what the loader reads, and the wrapper, which a Java machine runs here."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.artifact import stubs

from .models import check_no_paths, counter, encoder, expected, needs, packaged

PROGRAM = """
import java.nio.*;
public class Main {
  static ByteBuffer buffer(int bytes) {
    return ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder());
  }
  public static void main(String[] arguments) {
    org.example.one.EncoderNative model = new org.example.one.EncoderNative();
    long context = model.create(1);
    ByteBuffer x = buffer(96), y = buffer(24);
    for (int k = 0; k < 24; ++k) x.putFloat(4 * k, -1.0f + 2.0f * k / 23);
    model.run_main(context, 3, x, y);
    for (int k = 0; k < 6; ++k) System.out.print(y.getFloat(4 * k) + " ");
    System.out.println();
    Object[][] wrong = {{3L, x, buffer(20)}, {3L, x, ByteBuffer.allocate(24)}, {9L, buffer(288), buffer(72)}};
    for (Object[] w : wrong) {
      try {
        model.run_main(context, (Long) w[0], (ByteBuffer) w[1], (ByteBuffer) w[2]);
      } catch (IllegalArgumentException | IllegalStateException e) {
        System.out.println(e.getClass().getSimpleName() + ": " + e.getMessage());
      }
    }
    model.reset(context);
    model.destroy(context);
  }
}
"""


def segments(binary: Any) -> list[Any]:
    return [s for s in binary.segments if s.type.name == "LOAD"]


def test_the_libraries_are_what_androids_loader_demands(tmp_path: Path) -> None:
    lief = pytest.importorskip("lief")
    package = packaged(tmp_path, "android", target="aarch64-android,armv7-android,x86_64-android")
    check_no_paths(package)
    folders = sorted(path.name for path in (package / "src/main/jniLibs").iterdir())
    assert folders == ["arm64-v8a", "armeabi-v7a", "x86_64"]
    assert '"arm64-v8a", "armeabi-v7a", "x86_64"' in (package / "build.gradle.kts").read_text()
    for abi in folders:
        binary = lief.ELF.parse(str(package / "src/main/jniLibs" / abi / "libencoder.so"))
        assert set(binary.libraries) <= {"libc.so", "libm.so", "libdl.so"}
        known = {name for names in stubs.ANDROID.values() for name in names}
        assert {s.name for s in binary.imported_symbols if s.name} <= known
        assert all(s.alignment % 16384 == 0 for s in segments(binary)), "pages of 16 KiB, as in Android 15"
        tags = {entry.tag.name for entry in binary.dynamic_entries}
        assert "TEXTREL" not in tags and "SONAME" in tags
        assert binary[lief.ELF.DynamicEntry.TAG.SONAME].name == "libencoder.so"
        assert not any(s.type.name == "TLS" for s in binary.segments)
        exported = {s.name for s in binary.exported_symbols}
        assert "encoder_run" in exported and all(name.startswith("encoder_") for name in exported)


def java(kotlin: str, package: str, libraries: Path) -> str:
    """The class in Java for an object of external functions in Kotlin."""
    types = {"Int": "int", "Long": "long", "ByteBuffer": "java.nio.ByteBuffer", "": "void"}
    methods = []
    for name, parameters, result in re.findall(r"external fun (\w+)\((.*?)\)(?:: (\w+))?", kotlin):
        given = [p.split(": ") for p in parameters.split(", ")]
        methods.append(
            f"public native {types[result]} {name}({', '.join(f'{types[t]} {n}' for n, t in given)});"
        )
    assert len(methods) >= 4
    found = re.search(r"object (\w+)", kotlin)
    assert found
    loads = "".join(f'System.load("{path}");' for path in sorted(libraries.glob("*.so")))
    return f"package {package}; public class {found[1]} {{ static {{ {loads} }} {' '.join(methods)} }}"


def test_the_wrapper_runs_in_a_java_machine(tmp_path: Path) -> None:
    """The wrapper's C source, built for this machine, with the methods that the Kotlin object declares."""
    needs("javac", "java", "cc")
    home = Path(shutil.which("javac") or "").resolve().parents[1] / "include"
    if not (home / "jni.h").is_file():
        pytest.skip("needs the headers of a Java development kit")
    package = packaged(tmp_path, "android", target="x86_64-android", identifier="org.example.one")
    model, args, options = encoder()
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    tw.compile(model, args, **options).save(libraries / "libencoder.so", prefix="encoder")
    sources = package / "src/main/cpp"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{home}", f"-I{home}/linux"]
    link = [f"-L{libraries}", "-lencoder", "-Wl,-rpath,$ORIGIN", "-o", str(libraries / "libencoder_jni.so")]
    wrapper = [str(sources / "encoder_jni.c"), f"-I{sources}/include", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, *wrapper, *link], check=True)
    kotlin = (package / "src/main/kotlin/org/example/one/EncoderNative.kt").read_text()
    (tmp_path / "EncoderNative.java").write_text(java(kotlin, "org.example.one", libraries))
    (tmp_path / "Main.java").write_text(PROGRAM)
    subprocess.run(["javac", "-d", "classes", "EncoderNative.java", "Main.java"], cwd=tmp_path, check=True)
    done = subprocess.run(
        ["java", "-Xcheck:jni", "-cp", "classes", "Main"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    values, *messages = done.stdout.splitlines()
    np.testing.assert_allclose([float(v) for v in values.split()], expected().ravel(), rtol=1e-5, atol=1e-6)
    assert messages == [
        "IllegalArgumentException: output: the buffer has 20 bytes, and the tensor 24",
        "IllegalArgumentException: output: the buffer is not a direct one",
        "IllegalStateException: input 'x' has size 9 in dimension 0: 'batch' must be between 1 and 8",
    ]


def test_kotlin_compiles(tmp_path: Path) -> None:
    needs("kotlinc")
    package = packaged(tmp_path, "android", target="x86_64-android")
    sources = sorted(map(str, package.rglob("*.kt")))
    subprocess.run(["kotlinc", *sources, "-d", str(tmp_path / "classes")], check=True)
    assert list((tmp_path / "classes").rglob("Encoder.class"))


def test_an_output_whose_size_depends_on_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tw.ArtifactError, match="the size of the output output0 depends on data"):
        packaged(tmp_path, "android", counter, target="x86_64-android")
    assert not any(tmp_path.iterdir())
