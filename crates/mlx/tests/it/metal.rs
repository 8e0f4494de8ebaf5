use lanner_mlx::{
    Array, Dtype, OutputSpec,
    metal::{Kernel, Launch, TemplateArg, is_available},
};

const SCALE: Kernel = Kernel {
    name: "scale",
    inputs: "x factors shift",
    outputs: "out last",
    header: "// Before the function.\n",
    body: "const uint i = thread_position_in_grid.x;\nout[i] = static_cast<T>(x[i] * factors[0] + shift);\n",
};

#[test]
fn mlx_writes_the_signature_of_a_kernel() {
    let x = Array::zeros(&[64, 4], Dtype::Bfloat16);
    let (factors, shift) = (Array::from_slice(&[1.0_f32, 2.0], &[2]), Array::scalar(0.5, Dtype::Float32));
    let outputs = [(vec![64, 4], Dtype::Float16), (vec![3], Dtype::Uint8)]
        .map(|(shape, dtype)| OutputSpec { shape, dtype });
    let launch = Launch {
        inputs: &[&x, &factors, &shift],
        outputs: &outputs,
        template: &[
            ("T", TemplateArg::Type(Dtype::Float16)),
            ("N", TemplateArg::Int(5)),
            ("B", TemplateArg::Bool(true)),
        ],
        grid: [256, 1, 1],
        threadgroup: [32, 1, 1],
    };
    let text = SCALE.text(&launch).unwrap();
    let mut from = 0;
    for part in [
        "// Before the function.\n",
        "template <typename T, int N, bool B>",
        "const device bfloat16_t* x [[buffer(0)]]",
        "const constant float* factors [[buffer(1)]]",
        "const constant float& shift [[buffer(2)]]",
        "device float16_t* out [[buffer(3)]]",
        "device uint8_t* last [[buffer(4)]]",
        "uint3 thread_position_in_grid [[thread_position_in_grid]]",
        SCALE.body,
        "<float16_t, 5, 1>",
    ] {
        let at = text[from..].find(part).unwrap_or_else(|| panic!("no {part} after {from} of:\n{text}"));
        from += at + part.len();
    }
    let fewer = Launch { inputs: &[&x], ..launch };
    assert!(SCALE.text(&fewer).unwrap_err().to_string().contains("Expected `inputs` to have size 3"));
}

#[test]
fn without_metal_a_launch_says_that_there_is_none() {
    if is_available() {
        return;
    }
    let x = Array::zeros(&[64], Dtype::Float32);
    let launch = || {
        let outputs = [OutputSpec { shape: vec![64], dtype: Dtype::Float32 }];
        let (inputs, template) = ([&x, &x, &x], [("T", TemplateArg::Type(Dtype::Float32))]);
        let launch = Launch {
            inputs: &inputs,
            outputs: &outputs,
            template: &template,
            grid: [64, 1, 1],
            threadgroup: [32, 1, 1],
        };
        let kernel = Kernel { outputs: "out", name: "scale_once", ..SCALE };
        let [_] = kernel.launch(&launch);
    };
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(launch)).unwrap_err();
    assert!(lanner_mlx::panic_message(&*panic).contains("No Metal back-end"));
}
