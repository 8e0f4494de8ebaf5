// One launch of a kernel on emulated threadgroups. Arguments of the program: a seed for the order of threads, the
// threads of the grid and of a threadgroup, a file of inputs, and one for the outputs.
#pragma once
#include "emulation.h"

#include <fstream>

// What Metal tells a thread about itself.
struct ThreadAttributes {
    uint3 thread_position_in_grid, thread_position_in_threadgroup, threadgroup_position_in_grid, threads_per_grid;
    uint thread_index_in_simdgroup, simdgroup_index_in_threadgroup;
};

// An input in the address space `constant`: no function that takes a pointer to `device` takes it.
template <class T>
struct ConstantPointer {
    const T* at;
    const T& operator[](size_t i) const { return at[i]; }
};

// A run's buffers: the length of each in bytes, with the contents of inputs.
class Buffers {
    // Each by itself, so that a sanitizer sees its end.
    std::vector<std::unique_ptr<char[]>> memory;
    std::vector<uint64_t> sizes;
    size_t inputs = 0;

  public:
    explicit Buffers(const char* path) {
        std::ifstream file(path, std::ios::binary);
        uint64_t counts[2];
        file.read((char*)counts, 16);
        inputs = counts[0];
        for (size_t i = 0; i < counts[0] + counts[1]; i++) {
            uint64_t size;
            file.read((char*)&size, 8);
            memory.emplace_back(new char[size]), sizes.push_back(size);
            // Outputs hold what no kernel writes.
            memset(memory.back().get(), 0xa5, size);
            if (i < inputs) file.read(memory.back().get(), size);
        }
        CHECK(file.good(), "no buffers in %s", path);
    }
    void write(const char* path) const {
        std::ofstream file(path, std::ios::binary);
        for (size_t i = inputs; i < memory.size(); i++) file.write(memory[i].get(), sizes[i]);
    }
    template <class T>
    T* at(size_t i) const { return (T*)memory.at(i).get(); }
};

template <class Body>
int launch(char** arguments, Body body) {
    const unsigned seed = (unsigned)atoi(arguments[1]);
    uint of[6];
    for (int i = 0; i < 6; i++) of[i] = (uint)atoi(arguments[2 + i]);
    const Buffers buffers(arguments[8]);
    const uint3 grid{of[0], of[1], of[2]};
    const uint3 most{std::min(of[3], of[0]), std::min(of[4], of[1]), std::min(of[5], of[2])};
    unsigned count = 0;
    for (uint z = 0; z < grid.z; z += most.z) {
        for (uint y = 0; y < grid.y; y += most.y) {
            for (uint x = 0; x < grid.x; x += most.x) {
                const uint3 size{std::min(most.x, grid.x - x), std::min(most.y, grid.y - y), std::min(most.z, grid.z - z)};
                Group(size.x * size.y * size.z, seed + count++, [&](uint index) {
                    const uint3 own{index % size.x, index / size.x % size.y, index / size.x / size.y};
                    body(buffers, ThreadAttributes{{x + own.x, y + own.y, z + own.z}, own, {x / most.x, y / most.y, z / most.z}, grid,
                                                   index % 32, index / 32});
                });
            }
        }
    }
    buffers.write(arguments[9]);
    return 0;
}
