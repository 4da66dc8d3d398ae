//! Links the static library of the model for the target of the build.

use std::{env, path::PathBuf};

fn main() {
    let get = |name: &str| env::var(name).unwrap_or_default();
    let (processor, system) = (get("CARGO_CFG_TARGET_ARCH"), get("CARGO_CFG_TARGET_OS"));
    let (library, abi) = (get("CARGO_CFG_TARGET_ENV"), get("CARGO_CFG_TARGET_ABI"));
    let simulator = abi == "sim" || get("TARGET").ends_with("-sim");
    let system = match (system.as_str(), library.as_str()) {
        ("linux", "musl") => "linux-musl",
        ("ios", _) if simulator => "ios-simulator",
        (name, _) => name,
    };
    let processor = if processor == "arm" { "armv7" } else { processor.as_str() };
    let place = format!("{}-{}", processor, system);
    let folder = PathBuf::from(get("CARGO_MANIFEST_DIR")).join("lib").join(&place);
    if !folder.is_dir() {
        panic!("the crate @name@ has libraries for @places@, not for {}", place);
    }
    println!("cargo:rustc-link-search=native={}", folder.display());
    println!("cargo:rustc-link-lib=static=@name@");
    if matches!(system, "linux" | "linux-musl" | "android" | "freebsd") {
        println!("cargo:rustc-link-lib=m");
    }
    println!("cargo:rerun-if-changed={}", folder.display());
}
