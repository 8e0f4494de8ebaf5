// Kernels of an earlier commit, whose folder is on the include path, under names of their own.
#define quantize old_quantize
#define quantize_norm old_quantize_norm
#define quantize_gated old_quantize_gated
#define quantize_gated_norm old_quantize_gated_norm
#define delta_inputs_64 old_delta_inputs_64
#define delta_inputs_128 old_delta_inputs_128
#define conv_state old_conv_state
#include "quantize.cu"
#include "attention_many.cu"
#include "delta_inputs.cu"
#define delta_64 old_delta_64
#define delta_128 old_delta_128
#include "delta.cu"
