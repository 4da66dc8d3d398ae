"""Packages for Rust: a program with two of them is built without a network, and runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np

from .models import check_no_paths, counter, encoder, expected, needs, packaged

PROGRAM = r"""
use counter::{AddInputs, FindInputs, Tensor as Counted};
use encoder::{Inputs, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let x: Vec<f32> = (0..24).map(|k| -1.0 + 2.0 * k as f32 / 23.0).collect();
    let mut model = encoder::Model::new()?;
    let out = model.run(Inputs { x: Tensor::new(&x, [3, 8]) })?;
    println!("{:?}", out.output.shape());
    println!("{:?}", out.output.data());
    let large = vec![0.0; 72];
    let error = model.run(Inputs { x: Tensor::new(&large, [9, 8]) }).unwrap_err();
    println!("{} {}", error.status, error);

    let (mut first, mut second) = (counter::Model::with_threads(1)?, counter::Model::new()?);
    let ones = [1.0f32, 2.0, 3.0, 4.0];
    first.add(AddInputs { type_: Counted::new(&ones, [4]) })?;
    let sum = first.add(AddInputs { type_: Counted::new(&ones, [4]) })?.output.data()[3];
    println!("{} {} {}", sum, first.state_total()?.data()[3], second.state_total()?.data()[3]);
    first.reset()?;
    println!("{}", first.state_total()?.data()[3]);
    let mask = [true, false, true, false, true];
    let find = FindInputs { mask: Counted::new(&mask, [5]), scale: Counted::new(&[7], []) };
    let moved = std::thread::spawn(move || second.find(find_owned(&mask)).map(|f| f.output0.data().to_vec()));
    println!("{:?}", moved.join().unwrap()?);
    let found = first.find(find)?;
    println!("{:?} {:?}", found.output0.data(), found.output1.data());
    Ok(())
}

fn find_owned(mask: &[bool; 5]) -> FindInputs<'_> {
    FindInputs { mask: Counted::new(mask, [5]), scale: Counted::new(&[7], []) }
}
"""

MANIFEST = """
[package]
name = "program"
version = "0.1.0"
edition = "2021"

[dependencies]
encoder = { path = "../encoder" }
counter = { path = "../counter" }
"""


def cargo(folder: Path, *arguments: str) -> list[str]:
    environment = {**os.environ, "CARGO_TARGET_DIR": str(folder.parent / "built"), "RUSTFLAGS": "-D warnings"}
    done = subprocess.run(
        ["cargo", *arguments, "--offline", "--quiet"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_program_with_two_models(tmp_path: Path) -> None:
    needs("cargo", "cc")
    for which in (encoder, counter):
        check_no_paths(packaged(tmp_path, "rust", which))
    program = tmp_path / "program"
    (program / "src").mkdir(parents=True)
    (program / "src" / "main.rs").write_text(PROGRAM)
    (program / "Cargo.toml").write_text(MANIFEST)
    lines = cargo(program, "run")
    assert lines[0] == "[3, 2]"
    values = [float(v) for v in lines[1].strip("[]").split(",")]
    np.testing.assert_allclose(values, expected().ravel(), rtol=1e-5, atol=1e-6)
    assert lines[2].startswith("2 ") and "'batch' must be between 1 and 8" in lines[2]
    assert lines[3:] == ["8 8 0", "0", "[0, 2, 4]", "[0, 2, 4] [7, 0, 7, 0, 7]"]


def test_the_example_of_a_package(tmp_path: Path) -> None:
    needs("cargo", "cc")
    assert cargo(packaged(tmp_path, "rust"), "run", "--example", "run") == ["output: [1, 2]"]
