// Warpgroups' matrix instructions for g++. A product is computed when it is waited for: until then its
// sums are nonsense, and shared memory that it reads must stay as it was.
#pragma once
#include "emulation.h"

#include <vector>

struct PendingProduct {
    // One of them.
    int* sums;
    float* halves;
    int columns;
    bool accumulate;
    // Whether bytes of features are signed.
    bool has_signs;
    // Bytes or halves of features g and g + 8, and the description of columns.
    unsigned short a[2][32];
    unsigned long long b;
    unsigned group;
};
// Of the calling thread.
struct PendingProducts {
    std::vector<PendingProduct> products;
    // Groups that were ended.
    unsigned groups = 0;
};
PendingProducts& own_products();

inline void warpgroup_begin() {}
inline void pin(unsigned (&)[8]) {}
inline void pin(unsigned (&)[16]) {}
template <int OFFSET>
uint4 load_shared_16(unsigned from) {
    return *(uint4*)(emulated_shared + from + OFFSET);
}
template <int OFFSET>
unsigned load_shared_4(unsigned from) {
    return *(unsigned*)(emulated_shared + from + OFFSET);
}
template <int N>
void use(const unsigned (&)[N]) {}
inline void hold(unsigned&) {}
inline void trap() {
    abort();
}
inline void warpgroup_commit() { own_products().groups++; }

// Starts the product whose fragments of features the lanes have, `PER` numbers in a register: the lane's rows are g and
// g + 8.
template <int PER>
void start_product(PendingProduct product, unsigned a0, unsigned a1, unsigned a2, unsigned a3) {
    const int lane = threadIdx.x & 31;
    const unsigned own[4] = {a0, a1, a2, a3};
    memcpy(own_warp().fragment[lane], own, sizeof(own));
    sync_warp();
    for (int row = 0; row < 2; row++) {
        for (int k = 0; k < 8 * PER; k++) {
            const unsigned word = own_warp().fragment[lane / 4 * 4 + k / PER % 4][row + k / PER / 4 * 2];
            product.a[row][k] = word >> k % PER * (32 / PER) & (1u << 32 / PER) - 1;
        }
    }
    sync_warp();
    own_products().products.push_back(product);
}

template <bool ACCUMULATE, int N>
void wgmma_u8_s8(int (&d)[N], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned long long b) {
    start_product<4>({d, nullptr, 2 * N, ACCUMULATE, false, {}, b, own_products().groups}, a0, a1, a2, a3);
    if (!ACCUMULATE) {
        for (int& sum : d) sum = 0x5a5a5a5a;
    }
}

template <int N>
void wgmma_s8_s8(int (&d)[N], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned long long b) {
    start_product<4>({d, nullptr, 2 * N, false, true, {}, b, own_products().groups}, a0, a1, a2, a3);
    for (int& sum : d) sum = 0x5a5a5a5a;
}

template <bool ACCUMULATE, int N>
void wgmma_f16(float (&d)[N], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned long long b) {
    start_product<2>({nullptr, d, 2 * N, ACCUMULATE, false, {}, b, own_products().groups}, a0, a1, a2, a3);
    if (!ACCUMULATE) {
        for (float& sum : d) sum = NAN;
    }
}

inline void compute(const PendingProduct& product) {
    const auto field = [&](int bit) { return (unsigned)(product.b >> bit & 0x3fff) * 16; };
    const int lane = threadIdx.x & 31;
    for (int column = lane % 4 * 2; column < product.columns; column += column % 2 ? 7 : 1) {
        const unsigned at = field(0) + column / 8 * field(32) + column % 8 * 16;
        for (int row = 0; row < 2; row++) {
            const int to = column / 8 * 4 + row * 2 + column % 2;
            if (product.halves) {
                double sum = product.accumulate ? product.halves[to] : 0.0;
                for (int k = 0; k < 16; k++) {
                    const unsigned short* core = (unsigned short*)(emulated_shared + at + k / 8 * field(16));
                    sum += (double)float_of_half(product.a[row][k]) * float_of_half(core[k % 8]);
                }
                // A GPU's sum may be another if it is not exact.
                product.halves[to] = (double)(float)sum == sum ? (float)sum : NAN;
            } else {
                int sum = product.accumulate ? product.sums[to] : 0;
                for (int k = 0; k < 32; k++) {
                    const int a = product.has_signs ? (signed char)product.a[row][k] : product.a[row][k];
                    sum += a * (int)(signed char)emulated_shared[at + k / 16 * field(16) + k % 16];
                }
                product.sums[to] = sum;
            }
        }
    }
}

template <int LEFT, class T, int N>
void warpgroup_wait(T (&)[N]) {
    PendingProducts& own = own_products();
    size_t done = 0;
    while (done < own.products.size() && own.products[done].group + LEFT < own.groups) compute(own.products[done++]);
    own.products.erase(own.products.begin(), own.products.begin() + done);
}
