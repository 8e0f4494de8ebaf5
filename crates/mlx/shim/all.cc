// All of the shim as one translation unit: parsing MLX's headers takes most of the time of compiling a file.
#include "array.cc"
#include "device.cc"
#include "eval.cc"
#include "fast.cc"
#include "kernel.cc"
#include "metal.cc"
#include "ops.cc"
#include "streams.cc"
