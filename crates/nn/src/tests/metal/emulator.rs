//! Runs our Metal kernels without Metal: g++ compiles what MLX would, for emulated threadgroups
//! whose threads run in shuffled orders, with sanitizers.

use std::{
    collections::BTreeSet,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::{Command, Output},
    rc::Rc,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use mlx::{
    Array,
    metal::{Kernel, Launch, emulate},
};

const HEADERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../mlx/tests/metal");
const FLAGS: [&str; 7] = [
    "-std=c++20",
    "-O1",
    "-w",
    "-ffp-contract=off",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-include",
];
/// For orders of threads, which must not matter.
const SEEDS: [&str; 2] = ["1", "2"];

/// Names of the kernels that ran.
static RAN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Emulates this thread's kernels from here on, or with `LANNER_GPU=1` runs them on this machine's
/// Metal; false without either.
pub(crate) fn install() -> bool {
    if is_gpu() {
        return crate::use_gpu(true).is_ok();
    }
    let found = cfg!(target_os = "linux") && Command::new("g++").arg("--version").output().is_ok();
    match found {
        true => emulate(Some(Rc::new(|kernel, launch| run(kernel, launch, None)))),
        false => eprintln!("skipped: no g++ on Linux"),
    }
    found
}

/// Whether kernels run on Metal itself.
pub(crate) fn is_gpu() -> bool {
    std::env::var_os("LANNER_GPU").is_some() && cfg!(target_os = "macos")
}

/// Computes on the CPU from here on.
pub(crate) fn leave() {
    emulate(None);
    crate::use_gpu(false).expect("there is a CPU");
}

/// Emulates kernels from here on with a part of their text replaced, as if a GPU computed something
/// else.
pub(crate) fn install_altered(from: &'static str, to: &'static str) {
    emulate(Some(Rc::new(move |kernel, launch| run(kernel, launch, Some((from, to))))));
}

/// The bodies of kernels that ran since the program began.
pub(crate) fn bodies_that_ran() -> BTreeSet<&'static str> {
    RAN.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn run(kernel: &Kernel, launch: &Launch, altered: Option<(&str, &str)>) -> Vec<Array> {
    RAN.lock().unwrap_or_else(PoisonError::into_inner).insert(kernel.body);
    let mut text = kernel.text(launch).expect("inputs are the kernel's");
    if let Some((from, to)) = altered {
        text = text.replace(from, to);
    }
    let function = Function::new(&text);
    let program = compiled(kernel.name, &function.program);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let own = folder().join(format!("launch-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed)));
    let (inputs, outputs) = (own.with_extension("in"), own.with_extension("out"));
    fs::write(&inputs, contents(kernel, &function, launch)).expect("writes inputs");
    let threads = [launch.grid, launch.threadgroup].concat().iter().map(i32::to_string).collect::<Vec<_>>();
    let results = SEEDS.map(|seed| {
        let mut command = Command::new(&program);
        command.arg(seed).args(&threads).args([&inputs, &outputs]);
        // Fibers have stacks of their own.
        command.env("ASAN_OPTIONS", "detect_stack_use_after_return=0:detect_leaks=0");
        succeeded(kernel.name, command.output());
        fs::read(&outputs).expect("reads outputs")
    });
    assert!(altered.is_some() || results[0] == results[1], "{} depends on the order of threads", kernel.name);
    for path in [inputs, outputs] {
        fs::remove_file(path).expect("removes a file");
    }
    let mut from = &results[0][..];
    let take = |spec: &mlx::OutputSpec| {
        Array::fill_with(&spec.shape, spec.dtype, |bytes| {
            let (own, rest) = from.split_at(bytes.len());
            bytes.copy_from_slice(own);
            from = rest;
            Ok(())
        })
    };
    launch.outputs.iter().map(take).collect::<mlx::Result<_>>().expect("allocates outputs")
}

/// The buffers of a launch, as `launch.h` reads them.
fn contents(kernel: &Kernel, function: &Function, launch: &Launch) -> Vec<u8> {
    let names: Vec<&str> = kernel.inputs.split(' ').collect();
    let input = |name: &str| names.iter().position(|own| *own == name).map(|i| launch.inputs[i]);
    let buffers: Vec<Vec<u8>> = function
        .inputs
        .iter()
        .map(|name| match (input(name), name.strip_suffix("_shape").and_then(input)) {
            (Some(array), _) => array.to_bytes().expect("evaluates"),
            (None, Some(array)) => array.shape().iter().flat_map(|dim| dim.to_ne_bytes()).collect(),
            (None, None) => panic!("no input {name} of {}", kernel.name),
        })
        .collect();
    let mut bytes = vec![];
    let mut put = |number: usize| bytes.extend((number as u64).to_ne_bytes());
    put(buffers.len());
    put(launch.outputs.len());
    for buffer in buffers {
        bytes.extend((buffer.len() as u64).to_ne_bytes());
        bytes.extend(buffer);
    }
    for spec in launch.outputs {
        let size = spec.shape.iter().map(|&dim| dim as usize).product::<usize>() * spec.dtype.size();
        bytes.extend((size as u64).to_ne_bytes());
    }
    bytes
}

/// A kernel's function as MLX writes it, in C++.
struct Function {
    program: String,
    /// Names of its inputs, those that MLX adds included.
    inputs: Vec<String>,
}

impl Function {
    fn new(text: &str) -> Function {
        const START: &str = "[[kernel]] void ";
        let (own, instance) = text.split_once("\ntemplate [[host_name(").expect("constants");
        let (_, called) = instance.split_once("decltype(").expect("an instance");
        let (called, _) = called.split_once(") ").expect("an instance");
        let (before, rest) = own.split_once(START).expect("a kernel");
        let before = before.replace("#include <metal_simdgroup_matrix>", "");
        let (name, rest) = rest.split_once("(\n").expect("parameters");
        let (parameters, body) = rest.split_once(") {\n").expect("a body");
        let (mut declared, mut arguments, mut inputs) = (vec![], vec![], vec![]);
        for (i, parameter) in parameters.split(",\n").enumerate() {
            let (declaration, attribute) = parameter.trim().split_once(" [[").expect("an attribute");
            let (kind, name) = declaration.rsplit_once(' ').expect("a name");
            let of = kind.trim_start_matches("const ").trim_start_matches("constant ");
            let of = of.trim_start_matches("device ").trim_end_matches(['*', '&']);
            if !attribute.starts_with("buffer") {
                declared.push(declaration.to_string());
                arguments.push(format!("own.{name}"));
                continue;
            }
            if kind.starts_with("const ") {
                inputs.push(name.to_string());
            }
            let constant = kind.contains("constant ");
            let (declaration, argument) = match (constant, kind.ends_with('&')) {
                (true, false) => (
                    format!("const ConstantPointer<{of}> {name}"),
                    format!("ConstantPointer<{of}>{{buffers.at<{of}>({i})}}"),
                ),
                (_, true) => (format!("const {of}& {name}"), format!("*buffers.at<{of}>({i})")),
                (false, false) => (declaration.to_string(), format!("buffers.at<{of}>({i})")),
            };
            declared.push(declaration);
            arguments.push(argument);
        }
        let body: Vec<String> = body.lines().map(in_cpp).collect();
        let (declared, arguments, body) = (declared.join(", "), arguments.join(", "), body.join("\n"));
        let program = format!(
            "namespace metal {{}}\n{before}void {name}({declared}) {{\n{body}\n\
             int main(int, char** arguments) {{\n\
             return launch(arguments, [](const Buffers& buffers, const ThreadAttributes& own) {{ {called}({arguments}); }});\n}}\n"
        );
        Function { program, inputs }
    }
}

/// A line as C++ has it, where a word of Metal's language means something that no macro can say.
fn in_cpp(line: &str) -> String {
    match line.trim_start().strip_prefix("threadgroup ") {
        // `threadgroup` alone also qualifies pointers.
        Some(array) if array.ends_with("];") => format!("static {array}"),
        _ => line.into(),
    }
}

/// A program, compiled once until its sources change.
fn compiled(name: &str, source: &str) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    (FLAGS, source, headers()).hash(&mut hasher);
    let finished = folder().join(format!("{name}-{:016x}", hasher.finish()));
    if !finished.exists() {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let own = format!("{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let (file, program) = (folder().join(&own).with_extension("cc"), folder().join(&own));
        fs::write(&file, source).expect("writes a source");
        let mut command = Command::new("g++");
        command.args(FLAGS).arg(precompiled()).arg(&file).arg("-o").arg(&program);
        succeeded(name, command.output());
        fs::rename(&program, &finished).expect("renames a program");
        fs::remove_file(file).expect("removes a source");
    }
    finished
}

/// The emulation's headers, which the compiler has read already.
fn precompiled() -> PathBuf {
    let mut hasher = DefaultHasher::new();
    (FLAGS, headers()).hash(&mut hasher);
    let finished = folder().join(format!("headers-{:016x}", hasher.finish()));
    static ONCE: Mutex<()> = Mutex::new(());
    let _alone = ONCE.lock().unwrap_or_else(PoisonError::into_inner);
    if !finished.exists() {
        let own = folder().join(format!("headers-{}", std::process::id()));
        fs::create_dir_all(&own).expect("creates a folder");
        let header = own.join("launch.h");
        fs::write(&header, headers()).expect("writes a header");
        let mut command = Command::new("g++");
        command.args(&FLAGS[..FLAGS.len() - 1]).args(["-x", "c++-header"]).arg(&header);
        succeeded("launch.h", command.output());
        fs::rename(own, &finished).expect("renames a folder");
    }
    finished.join("launch.h")
}

fn headers() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let read = |name| fs::read_to_string(Path::new(HEADERS).join(name)).expect("reads a header");
        let [emulation, launch] = ["emulation.h", "launch.h"].map(read);
        emulation + &launch.replace("#include \"emulation.h\"\n", "")
    })
}

/// A folder beside the test program.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let program = std::env::current_exe().expect("has a path");
        let folder = program.with_file_name("metal-kernels");
        fs::create_dir_all(&folder).expect("creates a folder");
        folder
    })
}

#[track_caller]
fn succeeded(what: &str, output: std::io::Result<Output>) {
    let output = output.expect("starts");
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}
