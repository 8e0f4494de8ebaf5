//! The MLX wheel of each target, pinned by version and sha256; pure, so that every choice is tested
//! on any machine.

/// The MLX release every wheel below belongs to.
pub(crate) const MLX_VERSION: &str = "0.32.4";

/// One prebuilt MLX: a wheel with headers, the shared library and, for Metal, the kernel library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wheel {
    /// Package name on the Python package index.
    pub package: &'static str,
    /// Platform tag that makes pip pick this wheel on any host.
    pub platform: &'static str,
    pub sha256: &'static str,
    /// File name of the shared library under `mlx/lib`.
    pub library: &'static str,
}

pub(crate) const WHEELS: &[Wheel] = &[
    Wheel {
        package: "mlx-cpu",
        platform: "manylinux_2_35_x86_64",
        sha256: "0e0a24fa2ce8b6b94d2e6a90604e8813aa8e29fcb918bb2aa01cfb6d133d8cee",
        library: "libmlx.so",
    },
    Wheel {
        package: "mlx-cpu",
        platform: "manylinux_2_35_aarch64",
        sha256: "1289e85e64af1fd16380bf331438bfe4afe875d27afc3e0bcf35f427c488fadd",
        library: "libmlx.so",
    },
    Wheel {
        package: "mlx-cuda-13",
        platform: "manylinux_2_35_x86_64",
        sha256: "94cb48fba73e5ee39467e51c35c51c691123359ca17bafd1a24cf92ad6732bee",
        library: "libmlx.so",
    },
    Wheel {
        package: "mlx-cuda-13",
        platform: "manylinux_2_35_aarch64",
        sha256: "cf8a67b49cebff85cd98b1d118c09f6c8ee966b899a914c50cc74d614b25616e",
        library: "libmlx.so",
    },
    Wheel {
        package: "mlx-metal",
        platform: "macosx_14_0_arm64",
        sha256: "8019b2db622599267d66cc168b2f0dbf5af929790a6c3b3913e00eabc42a7947",
        library: "libmlx.dylib",
    },
    Wheel {
        package: "mlx-metal",
        platform: "macosx_15_0_arm64",
        sha256: "9f0a3cc26d89724434d9684932fc6f3e4e83669d2a895d858ed2c8a55eb84e8b",
        library: "libmlx.dylib",
    },
    Wheel {
        package: "mlx-metal",
        platform: "macosx_26_0_arm64",
        sha256: "514df92d41a286895d2564b4b18f4da45096bd7a4a0c47e1042f345ad5a7f936",
        library: "libmlx.dylib",
    },
];

/// Picks the wheel for a target, as Cargo names its parts.
///
/// `macos_major` is the macOS version of the building machine: newer wheels have kernels for newer
/// chips.
///
/// # Errors
/// One sentence for a platform that MLX has no wheel for.
pub(crate) fn choose(
    os: &str,
    arch: &str,
    cuda: bool,
    macos_major: Option<u32>,
) -> Result<&'static Wheel, String> {
    let (package, platform) = match (os, arch, cuda) {
        ("linux", "x86_64", false) => ("mlx-cpu", "manylinux_2_35_x86_64"),
        ("linux", "aarch64", false) => ("mlx-cpu", "manylinux_2_35_aarch64"),
        ("linux", "x86_64", true) => ("mlx-cuda-13", "manylinux_2_35_x86_64"),
        ("linux", "aarch64", true) => ("mlx-cuda-13", "manylinux_2_35_aarch64"),
        ("macos", "aarch64", false) => match macos_major {
            Some(26..) => ("mlx-metal", "macosx_26_0_arm64"),
            Some(15..) => ("mlx-metal", "macosx_15_0_arm64"),
            _ => ("mlx-metal", "macosx_14_0_arm64"),
        },
        ("macos", _, true) => {
            return Err("the feature `cuda` is for Linux; macOS uses Metal without it".into());
        }
        _ => {
            return Err(format!(
                "MLX {MLX_VERSION} has no prebuilt library for {os} on {arch}; \
                 build MLX yourself and set MLX_DIR to the folder that holds its include/ and lib/"
            ));
        }
    };
    let found = WHEELS.iter().find(|w| w.package == package && w.platform == platform);
    found.ok_or_else(|| format!("no pinned wheel {package} for {platform}"))
}

/// Paths that must exist under the unpacked wheel's `mlx` folder for the build to work.
pub(crate) fn required_files(wheel: &Wheel) -> Vec<String> {
    let mut files = vec![
        format!("lib/{}", wheel.library),
        "include/mlx/mlx.h".into(),
        "include/mlx/backend/cpu/encoder.h".into(),
    ];
    if wheel.package == "mlx-metal" {
        files.push("lib/mlx.metallib".into());
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(os: &str, arch: &str, cuda: bool, macos: Option<u32>, expected: &str) {
        let got = match choose(os, arch, cuda, macos) {
            Ok(wheel) => format!("{} {}", wheel.package, wheel.platform),
            Err(message) => message,
        };
        assert!(got.contains(expected), "{os} {arch} cuda={cuda}: {got}");
    }

    #[test]
    fn every_supported_platform_has_its_wheel() {
        check("linux", "x86_64", false, None, "mlx-cpu manylinux_2_35_x86_64");
        check("linux", "aarch64", false, None, "mlx-cpu manylinux_2_35_aarch64");
        check("linux", "x86_64", true, None, "mlx-cuda-13 manylinux_2_35_x86_64");
        check("macos", "aarch64", false, Some(13), "mlx-metal macosx_14_0_arm64");
        check("macos", "aarch64", false, Some(15), "mlx-metal macosx_15_0_arm64");
        check("macos", "aarch64", false, Some(27), "mlx-metal macosx_26_0_arm64");
        check("macos", "aarch64", false, None, "mlx-metal macosx_14_0_arm64");
    }

    #[test]
    fn unsupported_platform_error_says_what_to_do() {
        check("macos", "x86_64", false, Some(14), "set MLX_DIR");
        check("windows", "x86_64", false, None, "set MLX_DIR");
        check("macos", "aarch64", true, Some(15), "macOS uses Metal");
    }

    #[test]
    fn required_files_of_a_metal_wheel_include_its_kernel_library() {
        for wheel in WHEELS {
            let files = required_files(wheel);
            assert_eq!(files.contains(&"lib/mlx.metallib".to_string()), wheel.platform.starts_with("macosx"));
            assert!(files.contains(&format!("lib/{}", wheel.library)));
        }
    }

    #[test]
    fn wheel_hashes_are_distinct_sha256() {
        for (i, wheel) in WHEELS.iter().enumerate() {
            assert!(wheel.sha256.len() == 64 && wheel.sha256.bytes().all(|b| b.is_ascii_hexdigit()));
            assert!(WHEELS[..i].iter().all(|other| other.sha256 != wheel.sha256));
        }
    }
}
