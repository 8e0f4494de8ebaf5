//! Kernels in Metal's language as operations on arrays: MLX writes their signatures, compiles them
//! for its GPU and runs them in its graph. Without Metal there is nothing to run them, apart from a
//! test's [emulator](emulate).

use std::{cell::RefCell, rc::Rc};

use crate::{
    Array, Dtype, OutputSpec, Result,
    bridge::{self, MetalKind, MetalSource, MetalTemplateArg},
    eval::{list, unlist},
};

/// A kernel. MLX makes a function of its body: with the arguments of a [`Launch`] as template
/// parameters, a pointer for each input and output (a reference for an input of no dimensions), and
/// those of Metal's thread attributes, such as `thread_position_in_grid`, that the body names.
///
/// Inputs of fewer than 8 numbers are in the address space `constant`, all others in `device`; all
/// are row-major.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Unique in the program.
    pub name: &'static str,
    /// Names of inputs, and of outputs, separated by spaces.
    pub inputs: &'static str,
    pub outputs: &'static str,
    /// What stands before the function.
    pub header: &'static str,
    pub body: &'static str,
}

/// A template argument, with which a kernel is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TemplateArg {
    Int(i32),
    Bool(bool),
    Type(Dtype),
}

/// One run of a kernel.
pub struct Launch<'a> {
    pub inputs: &'a [&'a Array],
    pub outputs: &'a [OutputSpec],
    pub template: &'a [(&'static str, TemplateArg)],
    /// All threads, and those of a threadgroup: a threadgroup at the end of the grid may have
    /// fewer.
    pub grid: [i32; 3],
    pub threadgroup: [i32; 3],
}

/// Computes a launch in place of a GPU.
pub type Emulator = dyn Fn(&Kernel, &Launch) -> Vec<Array>;

thread_local! {
    static EMULATOR: RefCell<Option<Rc<Emulator>>> = const { RefCell::new(None) };
}

/// Runs this thread's kernels from here on: for tests on machines without Metal.
#[doc(hidden)]
pub fn emulate(emulator: Option<Rc<Emulator>>) {
    EMULATOR.set(emulator);
}

fn emulator() -> Option<Rc<Emulator>> {
    EMULATOR.with_borrow(Clone::clone)
}

/// Whether this thread's operations run on Metal.
pub fn is_available() -> bool {
    emulator().is_some() || bridge::on_gpu() && bridge::metal_available().unwrap_or(false)
}

impl Kernel {
    /// Runs the kernel as one operation of the graph.
    ///
    /// # Panics
    /// Without Metal, or if the inputs are not the kernel's.
    #[track_caller]
    pub fn launch<const N: usize>(&self, launch: &Launch) -> [Array; N] {
        let outs = match emulator() {
            Some(run) => run(self, launch),
            None => unlist(bridge::metal_launch(
                &self.source(),
                &list(launch.inputs.iter().copied()),
                launch.outputs,
                &launch.template_args(),
                &launch.threads(),
            )),
        };
        outs.try_into().unwrap_or_else(|_| panic!("kernel {} has {N} outputs", self.name))
    }

    /// The source that MLX compiles for a launch; only without Metal.
    ///
    /// # Errors
    /// The inputs or outputs are not the kernel's.
    pub fn text(&self, launch: &Launch) -> Result<String> {
        let inputs = list(launch.inputs.iter().copied());
        let (template, threads) = (launch.template_args(), launch.threads());
        Ok(bridge::metal_text(&self.source(), &inputs, launch.outputs, &template, &threads)?)
    }

    fn source(&self) -> MetalSource<'static> {
        let Kernel { name, inputs, outputs, header, body } = *self;
        MetalSource { name, inputs, outputs, header, body }
    }
}

impl Launch<'_> {
    fn template_args(&self) -> Vec<MetalTemplateArg<'static>> {
        let arg = |&(name, arg): &(&'static str, TemplateArg)| {
            let (kind, value, dtype) = match arg {
                TemplateArg::Int(value) => (MetalKind::Int, value, Dtype::Int32),
                TemplateArg::Bool(value) => (MetalKind::Bool, value.into(), Dtype::Bool),
                TemplateArg::Type(dtype) => (MetalKind::Type, 0, dtype),
            };
            MetalTemplateArg { name, kind, value, dtype }
        };
        self.template.iter().map(arg).collect()
    }

    fn threads(&self) -> [i32; 6] {
        let ([x, y, z], [a, b, c]) = (self.grid, self.threadgroup);
        [x, y, z, a, b, c]
    }
}
