"""Installs the peers into a work folder, from PyPI packages by name: mlx-lm into a virtual environment, and llama-bench,
built from the llama.cpp that llama-cpp-python's source distribution carries. The only part that needs a network.

WORK/llama then holds llama-bench and every library it needs besides the C library's own; the folder can be carried to
another machine with the same instruction sets.
"""

import json
import platform
import re
import shutil
import subprocess
import sys
import tarfile

import machine

MLX_LM = ["mlx[cpu]==0.32.4", "mlx-lm==0.32.2"]
LLAMA = "llama-cpp-python==0.3.36"  # its llama.cpp knows the architecture qwen35

# llama.cpp's names of instruction sets, and their flags in /proc/cpuinfo. AMX stays off: its path crashes.
INSTRUCTIONS = {
    "SSE42": "sse4_2", "AVX": "avx", "AVX2": "avx2", "BMI2": "bmi2", "FMA": "fma", "F16C": "f16c",
    "AVX512": "avx512f avx512cd avx512vl avx512dq avx512bw", "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni", "AVX512_BF16": "avx512_bf16",
}
OFF = ["GGML_NATIVE", "GGML_AMX_TILE", "GGML_AMX_INT8", "GGML_AMX_BF16", "GGML_CCACHE", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS",
       "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_SERVER", "LLAMA_BUILD_APP", "LLAMA_BUILD_UI", "LLAMA_USE_PREBUILT_UI"]


def mlx_lm(work):
    venv = work / "mlx-lm"
    if not (venv / "installed").exists():
        say(f"installing {' '.join(MLX_LM)}")
        make_venv(venv, MLX_LM)
        (venv / "installed").write_text("\n".join(MLX_LM) + "\n")


def llama(work, jobs, avx512):
    """Builds llama-bench for this machine's instruction sets, without AVX-512 where `avx512` is false."""
    built = work / "llama/build.json"
    instructions = supported(avx512)
    if built.exists() and json.loads(built.read_text()) == describe(instructions):
        return
    source = unpack(work)
    say(f"building llama-bench with {' '.join(instructions) or 'native instructions'}")
    build = work / "build"
    flags = {name: "OFF" for name in OFF} | {f"GGML_{name}": "ON" if name in instructions else "OFF" for name in INSTRUCTIONS}
    if platform.machine() != "x86_64":
        flags["GGML_NATIVE"] = "ON"
    flags |= {"CMAKE_BUILD_TYPE": "Release", "BUILD_SHARED_LIBS": "ON", "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
              "CMAKE_INSTALL_RPATH": "$ORIGIN", "CMAKE_MAKE_PROGRAM": work / "tools/bin/ninja"}
    cmake = work / "tools/bin/cmake"
    check([cmake, "-S", source, "-B", build, "-G", "Ninja", *(f"-D{name}={value}" for name, value in flags.items())])
    check([cmake, "--build", build, "--target", "llama-bench", "-j", jobs])
    collect(build / "bin/llama-bench", work / "llama")
    built.write_text(json.dumps(describe(instructions), indent=1) + "\n")


def supported(avx512):
    if platform.machine() != "x86_64":
        return []
    have = machine.flags()
    return [name for name, needs in INSTRUCTIONS.items()
            if have.issuperset(needs.split()) and (avx512 or not name.startswith("AVX512"))]


def describe(instructions):
    return {"package": LLAMA, "instructions": instructions, "flags": "GGML_NATIVE=OFF, AMX off, OpenMP" if instructions
            else "GGML_NATIVE=ON, OpenMP"}


def unpack(work):
    """The source of llama.cpp, downloaded if missing, and the tools to build it."""
    source, partial, tools = work / "source", work / "source.part", work / "tools"
    if not (tools / "bin/ninja").exists():
        make_venv(tools, ["cmake", "ninja"])
    if not source.exists():
        say(f"fetching {LLAMA}")
        shutil.rmtree(partial, ignore_errors=True)
        check([tools / "bin/pip", "download", "--quiet", "--no-deps", "--no-binary", LLAMA.split("==")[0], "--dest", partial,
               LLAMA])
        with tarfile.open(next(partial.glob("*.tar.gz"))) as archive:
            archive.extractall(partial, filter="data")
        partial.rename(source)
    llama = next(source.glob("llama_cpp_python-*/vendor/llama.cpp"))
    if '"qwen35"' not in (llama / "src/llama-arch.cpp").read_text():
        sys.exit(f"the llama.cpp of {LLAMA} does not know Qwen3.5")
    return llama


def collect(program, folder):
    """Copies a program and its libraries, except the C library's, into one folder, and strips them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy2(program, folder)
    for name, path in re.findall(r"(\S+) => (/\S+)", check(["ldd", program])):
        if re.match(r"lib(llama|ggml|gomp|stdc\+\+|gcc_s)", name):
            shutil.copy2(path, folder / name)
    if shutil.which("strip"):
        check(["strip", *folder.iterdir()])


def make_venv(folder, packages):
    check([sys.executable, "-m", "venv", folder])
    check([folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *packages])


def check(command):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


def say(text):
    print(text, file=sys.stderr, flush=True)
